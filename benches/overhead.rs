//! What does Sluice add to a call? Nanoseconds per call, each beside the same call without it, in one run.
//!
//! | group | question | baseline |
//! |---|---|---|
//! | `launch` | one empty kernel into a stream | the driver's own `cuLaunchKernel` |
//! | `allocate_and_free` | 4 KiB, with 0 and with 100,000 live allocations | the driver's own pair |
//! | `attach` | `cuInit` of a new process | the driver's own `cuInit` |
//!
//! The driver is the stand-in: in null mode (it answers within the process, at once) for the first two, so
//! that what is added can be seen; with its `gpu` process for the third. Both ways are taken in the same
//! process, on the same driver: the program is preloaded with the shim, finds the shim by name, and the
//! driver by absolute path.
//!
//! `cargo bench --bench overhead`

#[path = "../tests/support/mod.rs"]
mod support;

use criterion::{BenchmarkId, Criterion, criterion_group};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::hint::black_box;
use std::process::Command;
use std::ptr;
use std::time::{Duration, Instant};
use support::{Node, stand_in};

/// Set in the process that is measured: it runs under `sluice run`.
const INSIDE: &str = "SLUICE_BENCH_INSIDE";
/// Set in a process that calls `cuInit` once and prints how long it took: whose `cuInit`.
const ATTACH: &str = "SLUICE_BENCH_ATTACH";

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
type Load = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> c_int;
type Function = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type Free = unsafe extern "C" fn(u64) -> c_int;
type Launch = unsafe extern "C" fn(
    *mut c_void,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

/// One of the two ways to the driver.
struct Way {
    name: &'static str,
    library: Library,
}

impl Way {
    fn open(name: &'static str) -> Self {
        let path = match name {
            "sluice" => "libcuda.so.1".into(),
            _ => stand_in().join("libcuda.so.1"),
        };
        // SAFETY: the stand-in and the shim have no constructors.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        Self {
            name,
            library: library.expect("the build made both libraries"),
        }
    }

    fn both() -> [Self; 2] {
        ["plain", "sluice"].map(Self::open)
    }

    /// The function `name`, whose type the caller knows.
    fn function<T: Copy>(&self, name: &str) -> T {
        // SAFETY: the types above are the header's.
        *unsafe { self.library.get::<T>(name.as_bytes()) }.expect("every symbol is exported")
    }

    fn init(&self) -> c_int {
        // SAFETY: the header's contract: no pointers.
        unsafe { self.function::<Init>("cuInit")(0) }
    }

    /// One allocation and its end.
    fn pair(&self) -> impl Fn() + use<> {
        let allocate: Allocate = self.function("cuMemAlloc_v2");
        let free: Free = self.function("cuMemFree_v2");
        move || {
            let mut pointer = 0;
            // SAFETY: a place for one address.
            let given = unsafe { allocate(&mut pointer, 4096) };
            assert_eq!(given, 0, "4 KiB fit");
            // SAFETY: allocated above.
            black_box(unsafe { free(pointer) });
        }
    }

    /// One empty launch.
    fn launch(&self, kernel: usize) -> impl Fn() + use<> {
        let launch: Launch = self.function("cuLaunchKernel");
        move || {
            let mut nanoseconds = 0u64;
            let mut parameters = [ptr::from_mut(&mut nanoseconds).cast::<c_void>()];
            let none = ptr::null_mut();
            // SAFETY: the kernel takes one `u64`, which is there; the default stream.
            black_box(unsafe {
                launch(
                    kernel as *mut c_void,
                    1,
                    1,
                    1,
                    1,
                    1,
                    1,
                    0,
                    none,
                    parameters.as_mut_ptr(),
                    ptr::null_mut(),
                )
            });
        }
    }
}

fn must(what: &str, code: c_int) {
    assert_eq!(code, 0, "{what} answers {code}");
}

/// Takes the seat, makes a context current, and loads the kernel.
fn prepare(way: &Way) -> usize {
    must("cuInit", way.init());
    let mut context = ptr::null_mut();
    let retain: Retain = way.function("cuDevicePrimaryCtxRetain");
    // SAFETY: a place for one handle; device 0 is there.
    must("cuDevicePrimaryCtxRetain", unsafe {
        retain(&mut context, 0)
    });
    let set_current: SetCurrent = way.function("cuCtxSetCurrent");
    // SAFETY: retained above.
    must("cuCtxSetCurrent", unsafe { set_current(context) });
    let text = std::ffi::CString::new(sim::kernels::SPIN_PTX).expect("PTX has no zero in it");
    let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
    let load: Load = way.function("cuModuleLoadData");
    // SAFETY: a terminated text, and a place for one handle.
    must("cuModuleLoadData", unsafe {
        load(&mut module, text.as_ptr().cast())
    });
    let find: Function = way.function("cuModuleGetFunction");
    // SAFETY: loaded above; the name is terminated.
    must("cuModuleGetFunction", unsafe {
        find(&mut function, module, c"spin_ns".as_ptr())
    });
    function as usize
}

/// What does the shim add to `cuLaunchKernel`? ns per call; baseline: the driver's own, same process.
fn launch(criterion: &mut Criterion) {
    let ways = Way::both();
    let [_, sluice] = &ways;
    let kernel = prepare(sluice);
    let mut group = criterion.benchmark_group("launch");
    for way in &ways {
        let once = way.launch(kernel);
        group.bench_function(way.name, |bench| bench.iter(&once));
    }
    group.finish();
}

/// What does the shim add to an allocation and its end? ns per pair; baseline: the driver's own pair,
/// same process; once with nothing else live, once with 100,000 allocations.
fn allocate_and_free(criterion: &mut Criterion) {
    let ways = Way::both();
    let [_, sluice] = &ways;
    prepare(sluice);
    let allocate: Allocate = sluice.function("cuMemAlloc_v2");
    let mut group = criterion.benchmark_group("allocate_and_free");
    for live in [0, 100_000] {
        for _ in 0..live {
            let mut pointer = 0;
            // SAFETY: a place for one address.
            must("cuMemAlloc", unsafe { allocate(&mut pointer, 512) });
        }
        for way in &ways {
            let once = way.pair();
            group.bench_function(BenchmarkId::new(way.name, live), |bench| bench.iter(&once));
        }
    }
    group.finish();
}

/// What does the shim add to `cuInit` of a new process? Baseline: the driver's own, in a process that
/// is preloaded as well.
fn attach(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("attach");
    group.sample_size(20);
    for way in ["plain", "sluice"] {
        group.bench_function(way, |bench| {
            bench.iter_custom(|times| (0..times).map(|_| one_attach(way)).sum());
        });
    }
    group.finish();
}

fn one_attach(way: &str) -> Duration {
    let program = std::env::current_exe().expect("a running program has a path");
    let output = Command::new(program)
        .env(ATTACH, way)
        .env_remove("SLUICE_SIM_NULL")
        .output()
        .expect("this program can be started again");
    let text = String::from_utf8_lossy(&output.stdout);
    let ns = text.trim().parse();
    Duration::from_nanos(ns.unwrap_or_else(|_| panic!("{output:?}")))
}

criterion_group!(benches, launch, allocate_and_free, attach);

fn main() {
    if let Ok(way) = std::env::var(ATTACH) {
        let way = Way::open(if way == "plain" { "plain" } else { "sluice" });
        let begin = Instant::now();
        must("cuInit", way.init());
        println!("{}", begin.elapsed().as_nanos());
    } else if std::env::var_os(INSIDE).is_some() {
        benches();
        Criterion::default().configure_from_args().final_summary();
    } else {
        // `cargo test` runs a bench program to see that it starts; that takes a node all the same.
        // The daemon, too, must know the device of null mode.
        // SAFETY: no other thread runs yet that could read the environment meanwhile.
        unsafe { std::env::set_var("SLUICE_SIM_NULL", "1") };
        let node = Node::start();
        let program = std::env::current_exe().expect("a running program has a path");
        let status = node
            .run("bench", "4GiB")
            .arg(program)
            .args(std::env::args_os().skip(1))
            .env(INSIDE, "1")
            .status()
            .expect("the program under test can be started");
        drop(node);
        std::process::exit(status.code().unwrap_or(1));
    }
}
