//! Kernel launches.
//!
//! A launch checks what a driver checks, finds out how long the kernel runs, and submits that. The
//! kernel's parameters are not read, but for those of a kernel that spins.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use ffi::driver::{CUDA_KERNEL_NODE_PARAMS, CUfunction, CUlaunchConfig, CUresult, CUstream};
use sim::kernels;
use sim::proto::Command;

use crate::capture;
use crate::device::{MAX_BLOCK_THREADS, MAX_GRID_X, MAX_GRID_YZ};
use crate::graph::Work;
use crate::guard::{Answer, INVALID_VALUE, take};
use crate::module::{Function, Timing, find_function};
use crate::state::{Driver, driver};
use crate::stream::{self, Flavour, PerThread, Plain, Stream};
use crate::watch::Condition;

/// Key of the parameter buffer's address in `extra`.
const BUFFER_POINTER: usize = 1;
/// Key of the parameter buffer's size in `extra`.
const BUFFER_SIZE: usize = 2;

/// A grid of blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared: c_uint,
}

impl Shape {
    fn blocks(&self) -> u64 {
        self.grid.iter().map(|side| u64::from(*side)).product()
    }

    fn threads(&self) -> u64 {
        self.block.iter().map(|side| u64::from(*side)).product()
    }

    fn check(&self, function: &Function) -> Answer {
        let [x, y, z] = self.grid;
        let has_blocks = x <= MAX_GRID_X && y <= MAX_GRID_YZ && z <= MAX_GRID_YZ;
        let is_possible = self.blocks() > 0
            && has_blocks
            && (1..=u64::from(MAX_BLOCK_THREADS)).contains(&self.threads())
            && self.block[2] <= 64
            && i64::from(self.shared) <= i64::from(function.max_dynamic_shared());
        if is_possible {
            Ok(())
        } else {
            Err(INVALID_VALUE)
        }
    }
}

/// The kernel's parameter at `index`, which a buffer of parameters has at `offset`.
fn parameter<T: Copy>(
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
    index: usize,
    offset: usize,
) -> Answer<T> {
    if !parameters.is_null() {
        let place = take(parameters.wrapping_add(index))?;
        if place.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the kernel has a parameter of that size there, so its place is the caller's duty.
        return Ok(unsafe { place.cast::<T>().read_unaligned() });
    }
    let (mut buffer, mut at) = (std::ptr::null_mut(), extra);
    let mut room = 0;
    while !at.is_null() {
        let value = at.wrapping_add(1);
        match take(at)? as usize {
            BUFFER_POINTER => buffer = take(value)?,
            BUFFER_SIZE => room = take(take(value)?.cast::<usize>())?,
            _ => break,
        }
        at = at.wrapping_add(2);
    }
    if buffer.is_null() || room < offset + size_of::<T>() {
        return Err(INVALID_VALUE);
    }
    let place = buffer.wrapping_byte_add(offset);
    // SAFETY: the caller's buffer has so many bytes, by its own word.
    Ok(unsafe { place.cast::<T>().read_unaligned() })
}

pub(crate) fn submit<F: Flavour>(
    handle: CUfunction,
    shape: Shape,
    given: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer {
    let driver = driver()?;
    let function = find_function(driver, handle)?;
    let stream = stream::find::<F>(given)?;
    if function
        .context_id()
        .is_some_and(|id| id != stream.context_id)
    {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    if stream.is_capturing() {
        let device = stream.context()?.device;
        let kernel = Kernel::new(driver, handle, device, shape, parameters, extra)?;
        return capture::add(driver, &stream, Work::Kernel(kernel));
    }
    let device = || Ok(stream.context()?.device);
    let cost = cost(driver, &function, device, shape, parameters, extra)?;
    cost.submit(driver, &stream)
}

/// What a kernel takes of the device.
#[derive(Clone, Copy)]
struct Cost {
    command: Command,
    /// What ends it, where that is not the time.
    until: Option<Condition>,
}

impl Cost {
    fn submit(self, driver: &'static Driver, stream: &Stream) -> Answer {
        match self.until {
            None => stream.submit(driver, self.command).map(drop),
            Some(condition) => crate::watch::submit(driver, stream, condition, self.command),
        }
    }
}

/// Checks what a driver checks, and finds out how long the kernel runs.
fn cost(
    driver: &Driver,
    function: &Function,
    device: impl FnOnce() -> Answer<usize>,
    shape: Shape,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer<Cost> {
    shape.check(function)?;
    if !parameters.is_null() && !extra.is_null() {
        return Err(INVALID_VALUE);
    }
    if parameters.is_null() && extra.is_null() && !function.entry.parameters.is_empty() {
        return Err(INVALID_VALUE);
    }
    let warps = kernels::warps(shape.blocks(), shape.threads());
    let duration_ns = match function.timing {
        Timing::Until => {
            let address: u64 = parameter(parameters, extra, 0, 0)?;
            let value: u32 = parameter(parameters, extra, 1, size_of::<u64>())?;
            return Ok(Cost {
                command: Command::Spin { warps },
                until: Some(Condition::at_least(driver, address, value)?),
            });
        }
        Timing::For => parameter(parameters, extra, 0, 0)?,
        Timing::Modelled => {
            let profile = driver.devices[device()?].info.profile;
            kernels::cost_ns(warps, profile.warps())
        }
    };
    Ok(Cost {
        command: Command::Kernel { duration_ns, warps },
        until: None,
    })
}

/// A kernel with its parameters, to be launched any number of times.
#[derive(Clone)]
pub(crate) struct Kernel {
    function: usize,
    shape: Shape,
    cost: Cost,
    parameters: Arc<Parameters>,
}

/// The values of a kernel's parameters, and their places as `cuGraphKernelNodeGetParams` shows them.
struct Parameters {
    places: Vec<*mut c_void>,
    _values: Vec<Box<[u8]>>,
}

// SAFETY: the places lie in the values, which nobody changes.
unsafe impl Send for Parameters {}
// SAFETY: as above.
unsafe impl Sync for Parameters {}

impl Kernel {
    /// Takes the parameters' values now.
    pub(crate) fn new(
        driver: &Driver,
        handle: CUfunction,
        device: usize,
        shape: Shape,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Answer<Self> {
        let function = find_function(driver, handle)?;
        let cost = cost(driver, &function, || Ok(device), shape, parameters, extra)?;
        let mut values: Vec<Box<[u8]>> = Vec::new();
        if !parameters.is_null() {
            for (index, (_, bytes)) in function.entry.parameters.iter().enumerate() {
                let place = take(parameters.wrapping_add(index))?;
                if place.is_null() {
                    return Err(INVALID_VALUE);
                }
                // SAFETY: not null; that the parameter has its size there is the caller's duty.
                let value =
                    unsafe { std::slice::from_raw_parts(place.cast::<u8>(), *bytes as usize) };
                values.push(value.to_vec().into_boxed_slice());
            }
        }
        let places = values
            .iter()
            .map(|value| value.as_ptr().cast_mut().cast())
            .collect();
        Ok(Self {
            function: handle as usize,
            shape,
            cost,
            parameters: Arc::new(Parameters {
                places,
                _values: values,
            }),
        })
    }

    /// Submits it to a stream.
    pub(crate) fn run(&self, driver: &'static Driver, stream: &Stream) -> Answer {
        self.cost.submit(driver, stream)
    }

    /// As a kernel node's parameters.
    pub(crate) fn params(&self) -> CUDA_KERNEL_NODE_PARAMS {
        let [grid_x, grid_y, grid_z] = self.shape.grid;
        let [block_x, block_y, block_z] = self.shape.block;
        CUDA_KERNEL_NODE_PARAMS {
            func: self.function as CUfunction,
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: block_x,
            blockDimY: block_y,
            blockDimZ: block_z,
            sharedMemBytes: self.shape.shared,
            kernelParams: self.parameters.places.as_ptr().cast_mut(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        }
    }
}

#[allow(
    clippy::too_many_arguments,
    reason = "the arguments are the driver API's"
)]
fn launch<F: Flavour>(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer {
    let shape = Shape {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared,
    };
    submit::<F>(function, shape, stream, parameters, extra)
}

#[allow(
    clippy::too_many_arguments,
    reason = "the arguments are the driver API's"
)]
pub(crate) fn launch_cooperative<F: Flavour>(
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: CUstream,
    parameters: *mut *mut c_void,
) -> Answer {
    let shape = Shape {
        grid: [grid_x, grid_y, grid_z],
        block: [block_x, block_y, block_z],
        shared,
    };
    // All blocks must be there at once.
    let device = stream::find::<F>(stream)?.context()?.device;
    let capacity = driver()?.devices[device].info.profile.warps();
    if kernels::warps(shape.blocks(), shape.threads()) > capacity {
        return Err(CUresult::CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    }
    submit::<F>(function, shape, stream, parameters, std::ptr::null_mut())
}

/// Attributes are taken and change nothing.
fn launch_ex<F: Flavour>(
    config: *const CUlaunchConfig,
    function: CUfunction,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Answer {
    let config = take(config)?;
    if config.numAttrs > 0 && config.attrs.is_null() {
        return Err(INVALID_VALUE);
    }
    let shape = Shape {
        grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
        block: [config.blockDimX, config.blockDimY, config.blockDimZ],
        shared: config.sharedMemBytes,
    };
    submit::<F>(function, shape, config.hStream, parameters, extra)
}

driver! {
    cuLaunchKernel(f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream, kernel_params: *mut *mut c_void, extra: *mut *mut c_void) => launch::<Plain>;
    cuLaunchKernel_ptsz(f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream, kernel_params: *mut *mut c_void, extra: *mut *mut c_void) => launch::<PerThread>;
    cuLaunchKernelEx(config: *const CUlaunchConfig, f: CUfunction, kernel_params: *mut *mut c_void, extra: *mut *mut c_void) => launch_ex::<Plain>;
    cuLaunchKernelEx_ptsz(config: *const CUlaunchConfig, f: CUfunction, kernel_params: *mut *mut c_void, extra: *mut *mut c_void) => launch_ex::<PerThread>;
    cuLaunchCooperativeKernel(f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream, kernel_params: *mut *mut c_void) => launch_cooperative::<Plain>;
    cuLaunchCooperativeKernel_ptsz(f: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, h_stream: CUstream, kernel_params: *mut *mut c_void) => launch_cooperative::<PerThread>;
}
