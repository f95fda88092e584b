//! The driver API as a tenant of the demo uses it: `cudarc`'s thin layer, loaded when first used.

use super::event::View;
use anyhow::{Context, Result};
use cudarc::driver::{result, sys};
use nvml_wrapper::Nvml;
use std::ffi::{CString, c_void};
use std::fmt::Write;

/// The first device that the driver shows, its primary context current on the thread that opened it.
///
/// Not to be sent to other threads: the context is current on one.
#[derive(Debug)]
pub(crate) struct Device {
    ordinal: sys::CUdevice,
    uuid: String,
    spin: sys::CUfunction,
    nvml: Nvml,
}

/// A refusal to allocate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusal {
    /// What the driver answered.
    pub(crate) code: u32,
    /// Whether the output pointer is what it was.
    pub(crate) output_is_untouched: bool,
}

/// Device memory, freed when it goes away.
#[derive(Debug)]
pub(crate) struct Block<'device> {
    address: sys::CUdeviceptr,
    bytes: u64,
    _device: &'device Device,
}

impl Device {
    /// Initialises the driver and NVML, and takes the first device.
    ///
    /// # Errors
    /// Either of them fails.
    pub(crate) fn open() -> Result<Self> {
        result::init().context("cuInit")?;
        let ordinal = result::device::get(0).context("cuDeviceGet")?;
        let uuid = spelled(
            result::device::get_uuid(ordinal)
                .context("cuDeviceGetUuid")?
                .bytes,
        );
        // SAFETY: the device comes from the driver.
        let context =
            unsafe { result::primary_ctx::retain(ordinal) }.context("cuDevicePrimaryCtxRetain")?;
        // SAFETY: the context is retained, and never released before the process ends.
        unsafe { result::ctx::set_current(context) }.context("cuCtxSetCurrent")?;
        let image = CString::new(sim::kernels::SPIN_PTX).context("PTX without a zero byte")?;
        // SAFETY: the image is PTX, and ends with a zero byte.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .context("cuModuleLoadData")?;
        let name = CString::new(sim::kernels::SPIN_PREFIX).context("a name without a zero byte")?;
        // SAFETY: the module is loaded and is never unloaded.
        let spin =
            unsafe { result::module::get_function(module, name) }.context("cuModuleGetFunction")?;
        let nvml = Nvml::init().context("nvmlInit")?;
        Ok(Self {
            ordinal,
            uuid,
            spin,
            nvml,
        })
    }

    /// How large the device is by each interface.
    pub(crate) fn view(&self) -> Result<View> {
        let (_, info_total) = result::mem_get_info().context("cuMemGetInfo")?;
        let nvml = self
            .nvml
            .device_by_uuid(self.uuid.as_str())
            .and_then(|device| device.memory_info())
            .context("nvmlDeviceGetMemoryInfo")?;
        Ok(View {
            device_total_bytes: self.total_bytes()?,
            info_total_bytes: info_total as u64,
            nvml_total_bytes: nvml.total,
        })
    }

    /// `cuDeviceTotalMem`.
    pub(crate) fn total_bytes(&self) -> Result<u64> {
        // SAFETY: the device comes from the driver.
        let total = unsafe { result::device::total_mem(self.ordinal) };
        Ok(total.context("cuDeviceTotalMem")? as u64)
    }

    /// What `cuMemGetInfo` says is free.
    pub(crate) fn free_bytes(&self) -> Result<u64> {
        let (free, _) = result::mem_get_info().context("cuMemGetInfo")?;
        Ok(free as u64)
    }

    /// Allocates, or says how it was refused.
    pub(crate) fn try_allocate(&self, bytes: u64) -> Result<Block<'_>, Refusal> {
        /// No address: not aligned, and beyond what a 57-bit machine can name.
        const NOTHING: sys::CUdeviceptr = 0xfeed_feed_feed_feed;
        let mut address = NOTHING;
        // 64-bit machines only: no driver for others has been made since CUDA 10.
        // SAFETY: the pointer is to a local of the right type.
        let code = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes as usize) };
        if code == sys::CUresult::CUDA_SUCCESS {
            return Ok(Block {
                address,
                bytes,
                _device: self,
            });
        }
        Err(Refusal {
            code: code as u32,
            output_is_untouched: address == NOTHING,
        })
    }

    /// Allocates what must be there.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<Block<'_>> {
        self.try_allocate(bytes).map_err(|refusal| {
            anyhow::anyhow!("cuMemAlloc of {bytes} bytes answered {}", refusal.code)
        })
    }

    /// Launches a kernel that runs for `nanoseconds`, on the default stream.
    pub(crate) fn spin(&self, mut nanoseconds: u64) -> Result<()> {
        let mut parameters = [(&raw mut nanoseconds).cast::<c_void>()];
        let one = (1, 1, 1);
        let stream = result::stream::null();
        // SAFETY: the kernel takes one u64, which the driver copies before the call returns.
        unsafe { result::launch_kernel(self.spin, one, one, 0, stream, &mut parameters) }
            .context("cuLaunchKernel")
    }

    /// An event that can be waited for.
    pub(crate) fn event(&self) -> Result<sys::CUevent> {
        result::event::create(sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC).context("cuEventCreate")
    }

    /// Puts `event` behind everything so far.
    pub(crate) fn record(&self, event: sys::CUevent) -> Result<()> {
        // SAFETY: the event comes from `event`, and is never destroyed.
        unsafe { result::event::record(event, result::stream::null()) }.context("cuEventRecord")
    }

    /// Waits until everything before `event` has run.
    pub(crate) fn wait_for(&self, event: sys::CUevent) -> Result<()> {
        // SAFETY: the event comes from `event`, and is never destroyed.
        unsafe { result::event::synchronize(event) }.context("cuEventSynchronize")
    }

    /// Waits until everything has run.
    pub(crate) fn finish(&self) -> Result<()> {
        result::ctx::synchronize().context("cuCtxSynchronize")
    }
}

impl Block<'_> {
    /// Its size.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes `value` over its first `bytes`.
    pub(crate) fn fill(&self, value: u8, bytes: usize) -> Result<()> {
        debug_assert!(bytes as u64 <= self.bytes);
        // SAFETY: the block is allocated and at least that large.
        unsafe { result::memset_d8_sync(self.address, value, bytes) }.context("cuMemsetD8")
    }

    /// Reads its first `bytes`.
    pub(crate) fn read(&self, bytes: usize) -> Result<Vec<u8>> {
        debug_assert!(bytes as u64 <= self.bytes);
        let mut host = vec![0_u8; bytes];
        // SAFETY: the block is allocated and at least as large as the vector.
        unsafe { result::memcpy_dtoh_sync(&mut host, self.address) }.context("cuMemcpyDtoH")?;
        Ok(host)
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        // SAFETY: the block is allocated, and freed once. A failure shows as memory in use.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// A UUID as NVML spells it: `GPU-` and five groups of hexadecimal digits.
fn spelled(bytes: [std::ffi::c_char; 16]) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in bytes.into_iter().enumerate() {
        if [0, 4, 6, 8, 10].contains(&index) {
            text.push('-');
        }
        // Writing to a String cannot fail.
        let _ = write!(text, "{:02x}", byte.cast_unsigned());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_spelled_as_nvml_spells_it() {
        let mut bytes = [0; 16];
        for (index, byte) in (-8..).zip(&mut bytes) {
            *byte = index;
        }
        assert_eq!(spelled(bytes), "GPU-f8f9fafb-fcfd-feff-0001-020304050607");
    }
}
