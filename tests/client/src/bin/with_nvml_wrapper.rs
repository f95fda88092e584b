//! What a Rust program sees through nvml-wrapper. Prints `total used free` of each device.

fn main() {
    let nvml = nvml_wrapper::Nvml::init().expect("the management library");
    for index in 0..nvml.device_count().expect("a number of devices") {
        let device = nvml.device_by_index(index).expect("a device");
        let memory = device.memory_info().expect("memory figures");
        println!("{} {} {}", memory.total, memory.used, memory.free);
    }
}
