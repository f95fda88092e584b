//! The stand-in driver library `libcuda.so.1`.
//!
//! Every symbol that a known driver exports is here. What is implemented stands in one table row,
//! `symbol(arguments) => policy`, in the file of its family; the rest answers
//! `CUDA_ERROR_NOT_SUPPORTED`. What each family does not do is said in `docs/stand-in.md`.
//!
//! * `guard`: how every call comes in; `state`: what the process holds; `link`: the device behind.
//! * `entry`, `device`, `context`, `memory`, `array`, `array_copy`, `sharing`, `vmm`, `pool`, `host`, `pointer`, `copy`, `copy_batch`, `fill`, `texture`, `linker`, `multicast`,
//!   `stream`, `stream_attributes`, `values`, `graph`, `graph_edit`, `graph_edges`, `graph_node`, `user_object`, `event`, `event_sharing`, `managed`, `peers`, `module`, `launch`, `occupancy`,
//!   `checkpoint`: the families.
//!
//! Nothing happens when the library is loaded; threads begin with `cuInit`. Locks are held only for
//! bookkeeping, never while something waits for the device, and in this order: a device's primary
//! context, a context's lists, a pool, the table of ranges, the registries.

#[macro_use]
mod guard;

mod array;
mod array_copy;
mod capture;
mod checkpoint;
mod context;
mod copy;
mod copy_batch;
mod deferred;
mod device;
mod entry;
mod event;
mod event_sharing;
mod fill;
mod graph;
mod graph_edges;
mod graph_edit;
mod graph_memory;
mod graph_memory_node;
mod graph_node;
mod green;
mod host;
mod image;
mod launch;
mod legacy_launch;
mod limits;
mod link;
mod linker;
mod managed;
mod memory;
mod module;
mod multicast;
mod occupancy;
mod peers;
mod pointer;
mod pool;
mod ranges;
mod registry;
mod sharing;
mod spans;
mod state;
mod stream;
mod stream_attributes;
mod stubs;
mod texture;
mod user_object;
mod values;
mod vmm;
mod watch;

pub use stubs::STUBS;
