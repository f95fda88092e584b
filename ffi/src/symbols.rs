//! Every name that a known driver exports or a header declares, with what it does.
//!
//! Drivers 535, 550 and 555 (CUDA 12.2, 12.4, 12.5) and the headers of CUDA 11.7 to 13.5. The tables
//! are sorted by name, bytewise, for `binary_search_by`; there is no look-up here. They are generated
//! from `ffi/gen/tables/`; `docs/regenerating-bindings.md` says how.

mod codes;
mod driver;
mod nvml;

pub use codes::{ERRORS, NVML_ERRORS};
pub use driver::DRIVER;
pub use nvml::NVML;

/// One exported symbol of `libcuda.so.1` or `libnvidia-ml.so.1`.
///
/// CUDA versions are 1000 major + 10 minor, as `cuGetProcAddress` takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// The symbol as the library exports it: `cuMemcpyHtoD_v2_ptds`.
    pub name: &'static str,
    /// What `cuGetProcAddress` calls it: `cuMemcpyHtoD`. For NVML the name without its `_vN`.
    pub base: &'static str,
    /// Lowest version that `cuGetProcAddress` answers with this symbol; for NVML, as [`header`].
    ///
    /// Counted apart for the per-thread variants. [`since`] and [`until`] are both 0 where the driver
    /// exports a symbol that `cuGetProcAddress` does not know.
    ///
    /// [`header`]: Symbol::header
    /// [`since`]: Symbol::since
    /// [`until`]: Symbol::until
    pub since: u32,
    /// First version that `cuGetProcAddress` answers with a newer variant; `u32::MAX` if none.
    pub until: u32,
    /// Whether this is the variant for per-thread default streams (`_ptds`, `_ptsz`).
    pub per_thread: bool,
    /// What kind of call it is.
    pub class: Class,
    /// What it means to whoever stands in front of the driver.
    pub action: Action,
    /// Which argument names the stream that the call's work goes to, if one does.
    pub stream_arg: Option<StreamArg>,
    /// CUDA version whose header declared it first; 11070 for 11.7 (driver) and 11080 for 11.8 (NVML)
    /// also where it is older; 0 where no header of 11.7 to 13.5 does.
    pub header: u32,
    /// Size of the object where the symbol is data; 0 where it is a function.
    ///
    /// Only the debugger's `cudbg*` words are data. Source: dynamic symbols of libcuda 535.
    pub data_bytes: u16,
}

/// Where a call names the stream it works on; arguments count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamArg {
    /// The argument is the `CUstream`.
    Handle(u8),
    /// The argument is a pointer to a `CUlaunchConfig`, whose `hStream` it is.
    LaunchConfig(u8),
}

/// What a call means to whoever counts memory and GPU time in front of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Nothing: goes through untouched.
    Pass,
    /// Nothing to change, but it tells that work has ended.
    Observe,
    /// Changes what later calls mean (pools, handles, captures, nodes of a graph).
    Track,
    /// Takes device memory whose amount follows from the call.
    Charge,
    /// Gives device memory back.
    Release,
    /// Takes or gives back memory for the driver's own use; only measuring says how much.
    Measure,
    /// Submits work to the GPU that must await its turn.
    Gate,
    /// Submits work that must never wait: others may depend on it.
    Exempt,
    /// Answers about the device or about other processes; the answer is made the tenant's own.
    Virtualise,
    /// Is how a client gets at the driver: must lead back to whoever stands in front.
    Intercept,
    /// Needs a policy of its own (checkpoints).
    Special,
}

/// What kind of call a symbol is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// NVML: accounting of ended processes.
    Acct,
    /// Allocates device or managed memory.
    Alloc,
    /// Allocates or registers host memory.
    AllocHost,
    /// Begins, ends or inspects a stream capture.
    Capture,
    /// Freezes, saves or restores a process.
    Checkpoint,
    /// Copies memory.
    Copy,
    /// Asks or changes something of a context.
    Ctx,
    /// Makes or retains a context.
    CtxCreate,
    /// Ends or resets a context.
    CtxDestroy,
    /// Profiler, core dumps, error names.
    Debug,
    /// Asks something of a device.
    DeviceQuery,
    /// Logical endpoints.
    Endpoint,
    /// Events: the driver's on streams, or NVML's event sets.
    Event,
    /// Memory and semaphores of other interfaces.
    External,
    /// NVML: field values, many readings in one call.
    Field,
    /// Frees device memory.
    Free,
    /// Frees host memory.
    FreeHost,
    /// NVML: GPU performance metrics.
    Gpm,
    /// Builds or edits a graph.
    Graph,
    /// Adds a node that allocates.
    GraphAlloc,
    /// Instantiates, uploads, updates or destroys a graph.
    GraphExec,
    /// Adds a node that frees.
    GraphFree,
    /// Launches a graph.
    GraphLaunch,
    /// OpenGL, EGL, VDPAU and graphics resources.
    Graphics,
    /// Green contexts and device resources.
    Greenctx,
    /// Host functions and callbacks on streams.
    Hostfunc,
    /// NVML: counts, handles, names and addresses of devices.
    Identity,
    /// Initialises the library.
    Init,
    /// Shares memory and events between processes.
    Ipc,
    /// Launches a kernel.
    Launch,
    /// Sets up a function before its launch.
    LaunchCfg,
    /// Looks up entry points and export tables.
    Loader,
    /// NVML: memory of the device.
    Mem,
    /// Waits for or writes a value in stream order.
    Memop,
    /// Sets memory.
    Memset,
    /// NVML: GPU and compute instances.
    Mig,
    /// Modules, libraries, kernels and functions.
    Module,
    /// Multicast objects.
    Multicast,
    /// NVML: changes a setting of the device or the machine.
    Mutate,
    /// NVML: nothing of the other classes.
    Other,
    /// Memory pools.
    Pool,
    /// Moves or discards managed memory.
    Prefetch,
    /// NVML: the private export table.
    Private,
    /// NVML: processes on the device.
    Proc,
    /// Asks something of an allocation, pointer, function or the driver.
    Query,
    /// Asks how much memory there is.
    QueryMem,
    /// NVML: reads a sensor, counter or setting.
    Read,
    /// Streams.
    Stream,
    /// Waits for or asks about the end of work.
    Sync,
    /// NVML: the machine, the driver's version.
    System,
    /// Textures, surfaces and tensor maps.
    Texsurf,
    /// NVML: topology.
    Topo,
    /// Exported, in no header.
    Undocumented,
    /// NVML: S-class units.
    Unit,
    /// NVML: utilisation of the device.
    Util,
    /// NVML: utilisation by process.
    UtilProc,
    /// NVML: virtual GPUs.
    Vgpu,
    /// Virtual memory management: reserve, create, map, release.
    Vmm,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_sorted_and_unique(symbols: &[Symbol]) -> bool {
        symbols.windows(2).all(|pair| pair[0].name < pair[1].name)
    }

    #[test]
    fn the_tables_are_sorted_and_name_nothing_twice() {
        assert!(is_sorted_and_unique(DRIVER));
        assert!(is_sorted_and_unique(NVML));
    }

    #[test]
    fn the_tables_hold_every_known_symbol() {
        assert_eq!(DRIVER.len(), 754);
        assert_eq!(NVML.len(), 444);
        let exported_only = DRIVER.iter().filter(|symbol| symbol.header == 0).count();
        assert_eq!(exported_only, 31);
        let data = DRIVER.iter().filter(|symbol| symbol.data_bytes > 0).count();
        assert_eq!(data, 20);
    }

    #[test]
    fn variants_of_one_base_never_answer_for_the_same_version() {
        for one in DRIVER {
            for other in DRIVER {
                let is_rival = one.name != other.name
                    && one.base == other.base
                    && one.per_thread == other.per_thread;
                assert!(
                    !is_rival || one.until <= other.since || other.until <= one.since,
                    "{} and {}",
                    one.name,
                    other.name
                );
            }
        }
    }

    #[test]
    fn what_is_gated_says_which_stream_or_uses_the_default_one() {
        for symbol in DRIVER {
            let names_stream = symbol.name.contains("Async") || symbol.name.ends_with("_ptsz");
            if symbol.action == Action::Gate && names_stream {
                assert!(symbol.stream_arg.is_some(), "{}", symbol.name);
            }
        }
    }

    #[test]
    fn codes_are_sorted_and_name_nothing_twice() {
        assert!(ERRORS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(NVML_ERRORS.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert_eq!(ERRORS.len(), 106);
        assert_eq!(NVML_ERRORS.len(), 32);
    }
}
