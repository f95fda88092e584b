//! What a Rust program sees through cudarc: allocates, copies there and back, launches, and asks
//! for more than there is. Prints `total free echoed refused`.

use cudarc::driver::{CudaContext, LaunchConfig, PushKernelArg, sys::CUresult};
use cudarc::nvrtc::Ptx;

fn main() {
    let context = CudaContext::new(0).expect("a device");
    let (free, total) = context.mem_get_info().expect("memory figures");
    let stream = context.new_stream().expect("a stream");
    let numbers: Vec<u32> = (0..4096).collect();
    let on_device = stream.clone_htod(&numbers).expect("a copy to the device");
    let module = context
        .load_module(Ptx::from_src(include_str!("../spin.ptx")))
        .expect("a module");
    let spin = module.load_function("spin_ns").expect("a kernel");
    let ns = 100_000u64;
    let mut launch = stream.launch_builder(&spin);
    launch.arg(&ns);
    // SAFETY: the kernel takes one 64-bit number and touches no memory.
    unsafe { launch.launch(LaunchConfig::for_num_elems(1)) }.expect("a launch");
    let back = stream.clone_dtoh(&on_device).expect("a copy back");
    stream.synchronize().expect("the end of the work");
    // SAFETY: the memory is never read.
    let beyond = unsafe { cudarc::driver::result::malloc_sync(total + 1) };
    let refused = matches!(beyond, Err(error) if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    println!("{total} {free} {} {refused}", back == numbers);
}
