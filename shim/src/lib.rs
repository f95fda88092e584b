//! `libsluice.so`: stands in front of the CUDA driver and NVML in other people's processes.
//!
//! It is preloaded, and it *is* `libcuda.so.1`, `libcuda.so`, `libnvidia-ml.so.1` and
//! `libnvidia-ml.so` to whoever asks for them afterwards (`docs/architecture.md` says how). Every
//! symbol that a known driver exports is here: most are a jump to the real one ([`trampoline`]), and
//! those of the table in [`hooks`] go through a policy first.
//!
//! | module | what it is |
//! |---|---|
//! | [`hooks`] | the table: one row for each intercepted function |
//! | [`guard`] | what stands between a policy and the host: no panic gets out |
//! | [`real`], [`discovery`] | the real libraries: where they are, and their functions |
//! | [`trampoline`] | the jump of every function without a hook |
//! | [`lookup`] | `cuGetProcAddress`: swaps the pointers of hooked functions |
//! | [`session`], [`attach`], [`link`] | this process's place with the daemon: state, messages, thread |
//! | [`account`] | this process's account in the usage page |
//! | [`memory`], [`pool`], [`vmm`], [`context`] | what allocates and frees, and whose end frees all |
//! | [`gate`] | whose turn it is on the GPU, and what is in flight |
//! | [`query`], [`management`] | the cap shown as the size of the GPU, by CUDA and by NVML |
//! | [`neighbours`] | NVML's lists of processes, reduced to the tenant's own |
//! | [`device`], [`blocks`], [`claim`] | devices by UUID, live allocations by address, places named by the host |
//! | [`log`], [`fork`] | standard error, and children |
//!
//! A process that never calls CUDA or NVML runs none of this: no constructor, no thread, no file.
//!
//! Lock order: `session`'s attach lock, then none; `gate`'s, then none. The locks of `pool`, `blocks`, `vmm` and `account`
//! are taken in this order and none but `pool`'s (it says why) is held across a call of the real driver.
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod account;
mod array;
mod attach;
mod blocks;
mod claim;
mod context;
#[cfg(test)]
mod coverage;
mod device;
mod discovery;
mod fork;
mod gate;
mod graph_memory;
mod guard;
mod hooks;
mod init;
mod link;
mod log;
mod lookup;
mod management;
mod memory;
mod neighbours;
mod overcommit;
mod pool;
mod query;
mod real;
mod session;
mod trampoline;
mod vmm;
