//! The stand-in GPU: the process that *is* the hardware, and what its client libraries share with it.
//!
//! * [`hardware`]: the device model: memory and execution, without clock and without I/O.
//! * [`proto`]: the pages and messages between the `gpu` process and its clients.
//! * [`gpu`]: the process: sockets, rings, deaths; it drives [`hardware`] by the machine's clock.
//! * [`client`]: what the stand-in's `libcuda.so.1` and `libnvidia-ml.so.1` are built on.
//! * [`faults`]: calls that fail on purpose.
//! * [`profile`]: the devices that it can stand in for.
//! * [`kernels`]: how long a kernel runs, and the one kernel of our own.
//!
//! What it does not do: kernels compute nothing; they only take time.

pub mod client;
pub mod faults;
pub mod gpu;
pub mod hardware;
pub mod kernels;
pub mod profile;
pub mod proto;
pub mod shared;
