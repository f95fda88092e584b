//! What the cap knows of every function that can take, give back or show device memory.
//!
//! `docs/coverage.md` is made from [`ROWS`], and the tests below keep the rows complete: no function of
//! those kinds is without one, no row speaks of a hook that is not there, and the tests that rows name
//! exist.

use crate::hooks;
use ffi::symbols::{Class, DRIVER, Symbol};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// What is known of one function, under the name that `cuGetProcAddress` has for it.
struct Row {
    base: &'static str,
    how: How,
}

enum How {
    /// Has a hook in all its variants. Tests are `file::name` below `tests/`.
    Hooked {
        /// What it does to the charge.
        charged: &'static str,
        /// What takes the charge back; "-" where there is none.
        until: &'static str,
        shown_by: &'static str,
    },
    /// Goes through untouched, and may: why.
    Free(&'static str),
    /// Can take device memory that is not charged yet: why, and what is seen of it.
    Open(&'static str),
}

const fn hooked(
    base: &'static str,
    charged: &'static str,
    until: &'static str,
    shown_by: &'static str,
) -> Row {
    Row {
        base,
        how: How::Hooked {
            charged,
            until,
            shown_by,
        },
    }
}

const fn free(base: &'static str, why: &'static str) -> Row {
    Row {
        base,
        how: How::Free(why),
    }
}

const fn open(base: &'static str, why: &'static str) -> Row {
    Row {
        base,
        how: How::Open(why),
    }
}

/// Overheads, which only measuring knows.
const MEASURED: &str = "the driver's own memory: measured, and set aside of the cap (test `audit`)";
const MEASURED_AND_REFUSED: &str = "the driver's own memory: measured, and set aside of the cap; refused where the cap is exceeded already";
const BLOCK_ENDS: &str = "`cuMemFree`, `cuMemFreeAsync`, the end of its context or process";
const POOL_SHRINKS: &str = "what the pool gives back: at a synchronisation, trim or destruction";
const HANDLE_ENDS: &str = "the last of its references, mappings and descriptors here";
const ARRAYS: &str = "what a twin of deferred mapping says that it needs; its texels where the driver has no twins; nothing for deferred and sparse ones";
const ARRAY_ENDS: &str = "the destruction of the array, the end of its context or process";
const GRAPHS_KEEP: &str = "what `cuDeviceGraphMemTrim` gives back; a refusal trims as well";
const LATER: &str = "has addresses only; the memory comes with a launch or an upload";
const QUERY: &str = "asks only";
const OWNER_PAYS: &str = "the memory is its maker's, who keeps paying";
const NO_MEMORY: &str = "takes no device memory";
const SYNCHRONISED: &str = "looks again at what this process's pools have reserved";
const POOLS_KEEP: &str = "pools::what_a_pool_keeps_is_charged_until_it_gives_it_back";
const OF_THE_HOST: &str = "takes memory of the host";

#[rustfmt::skip] // A row is a line, or a few.
const ROWS: &[Row] = &[
    // Linear memory.
    hooked("cuMemAlloc", "the request, in whole units of 512 B", BLOCK_ENDS,
        "memory::an_allocation_beyond_the_quota_is_refused_and_reserves_nothing"),
    hooked("cuMemAllocPitch", "the driver's pitch times the height", BLOCK_ENDS,
        "memory::padded_rows_are_charged_as_they_lie_in_memory"),
    hooked("cuMemAllocManaged", "in full, wherever its pages lie", BLOCK_ENDS,
        "memory::managed_memory_counts_in_full_and_is_still_seen_as_managed"),
    hooked("cuMemFree", "gives back what the pointer was charged", "-",
        "memory::freeing_twice_gives_nothing_back_twice"),
    hooked("cuMemFreeAsync", "gives back a linear block at once; of a pool's, what the pool gives back", "-",
        "pools::either_free_frees_what_the_other_family_allocated"),

    // Pools.
    hooked("cuMemAllocAsync", "the growth of what the current pool has reserved", POOL_SHRINKS,
        "pools::churn_in_a_pool_never_drifts_into_a_refusal"),
    hooked("cuMemAllocFromPoolAsync", "the growth of what the pool has reserved", POOL_SHRINKS,
        "pools::an_explicit_pool_is_held_to_the_cap"),
    hooked("cuMemPoolCreate", "nothing yet; remembers the pool's device", "-",
        "pools::an_explicit_pool_is_held_to_the_cap"),
    hooked("cuMemPoolDestroy", "gives the pool's charge back with its last allocation", "-",
        "pools::a_destroyed_pool_s_live_allocations_stay_charged"),
    hooked("cuMemPoolTrimTo", "gives back what the pool gave back", "-",
        "pools::a_refusal_first_takes_back_what_the_process_s_own_pools_only_keep"),
    hooked("cuStreamSynchronize", SYNCHRONISED, "-", POOLS_KEEP),
    hooked("cuEventSynchronize", SYNCHRONISED, "-", POOLS_KEEP),
    hooked("cuCtxSynchronize", SYNCHRONISED, "-", POOLS_KEEP),
    free("cuDeviceGetDefaultMemPool", QUERY),
    free("cuDeviceGetMemPool", QUERY),
    free("cuDeviceSetMemPool", "the next allocation asks which pool is current"),
    free("cuMemGetDefaultMemPool", QUERY),
    free("cuMemGetMemPool", QUERY),
    free("cuMemSetMemPool", "the next allocation asks which pool is current"),
    free("cuMemPoolGetAccess", QUERY),
    free("cuMemPoolSetAccess", "takes no memory on the device that gains access"),
    free("cuMemPoolGetAttribute", "the pool's own figures are true"),
    free("cuMemPoolSetAttribute", "a release threshold changes what the pool keeps, which is charged"),

    // Physical memory by handle.
    hooked("cuMemCreate", "the size of the handle, if it is on a device", HANDLE_ENDS,
        "physical::a_handle_is_charged_until_its_last_reference_and_its_last_mapping_are_gone"),
    hooked("cuMemRetainAllocationHandle", "nothing; one more reference", "-",
        "physical::a_handle_that_is_retained_through_its_mapping_is_charged_once_and_until_both_are_released"),
    hooked("cuMemRelease", "gives the handle's charge back, if nothing else holds it", "-",
        "physical::a_handle_that_is_unmapped_first_is_charged_until_its_release"),
    hooked("cuMemMap", "nothing; holds the handle's memory", "-",
        "physical::segments_that_grow_and_shrink_by_chunks_are_charged_chunk_by_chunk"),
    hooked("cuMemUnmap", "gives the handle's charge back, if nothing else holds it", "-",
        "physical::segments_that_grow_and_shrink_by_chunks_are_charged_chunk_by_chunk"),
    free("cuMemAddressReserve", "address space is not memory"),
    free("cuMemAddressFree", "address space is not memory"),
    free("cuMemGetAccess", QUERY),
    free("cuMemSetAccess", NO_MEMORY),
    free("cuMemGetAllocationGranularity", QUERY),
    free("cuMemGetAllocationPropertiesFromHandle", QUERY),
    free("cuMemGetHandleForAddressRange", "names memory that is charged already"),
    hooked("cuMemMapArrayAsync", "nothing; holds the handle's charge", ARRAY_ENDS,
        "arrays::an_array_that_defers_its_mapping_holds_what_is_mapped_into_it"),

    // Arrays.
    hooked("cuArrayCreate", ARRAYS, ARRAY_ENDS,
        "arrays::an_array_is_charged_what_the_driver_makes_of_it"),
    hooked("cuArray3DCreate", ARRAYS, ARRAY_ENDS,
        "arrays::an_array_is_charged_what_the_driver_makes_of_it"),
    hooked("cuMipmappedArrayCreate", ARRAYS, ARRAY_ENDS,
        "arrays::a_mipmapped_array_is_charged_with_all_its_levels"),
    hooked("cuArrayDestroy", "gives back what the array was charged", "-",
        "arrays::an_array_is_charged_what_the_driver_makes_of_it"),
    hooked("cuMipmappedArrayDestroy", "gives back what the array was charged", "-",
        "arrays::a_mipmapped_array_is_charged_with_all_its_levels"),

    // Contexts: what they cost themselves only measuring knows.
    hooked("cuDevicePrimaryCtxRetain", MEASURED_AND_REFUSED, "the end of the context",
        "audit::a_context_too_many_is_refused"),
    hooked("cuDevicePrimaryCtxRelease", "with the last: gives back the linear memory of the context", "-",
        "physical::a_context_that_is_retained_often_frees_its_memory_with_its_last_release"),
    hooked("cuDevicePrimaryCtxReset", "gives back the linear memory of the context", "-",
        "physical::physical_memory_outlives_the_context_and_linear_memory_does_not"),
    hooked("cuCtxDestroy", "gives back the linear memory of the context", "-",
        "accounts::whatever_a_program_does_its_account_is_the_hardwares"),
    hooked("cuCtxCreate", MEASURED_AND_REFUSED, "the end of the context",
        "audit::a_context_too_many_is_refused"),
    hooked("cuCtxAttach", "nothing; one more use of the context", "-",
        "physical::a_context_that_was_attached_to_ends_with_its_last_detachment"),
    hooked("cuCtxDetach", "the last gives back the linear memory of the context", "-",
        "physical::a_context_that_was_attached_to_ends_with_its_last_detachment"),
    open("cuGLCtxCreate", MEASURED),
    open("cuVDPAUCtxCreate", MEASURED),
    open("cuGreenCtxCreate", MEASURED),
    free("cuGreenCtxDestroy", "memory allocated through it is the primary context's"),
    free("cuCtxFromGreenCtx", "another name for the primary context's memory"),
    open("cuCtxSetLimit", MEASURED),

    // Sharing between processes.
    free("cuIpcGetMemHandle", "names memory that is charged already"),
    free("cuIpcOpenMemHandle", OWNER_PAYS),
    free("cuIpcCloseMemHandle", OWNER_PAYS),
    free("cuIpcGetEventHandle", NO_MEMORY),
    free("cuIpcOpenEventHandle", NO_MEMORY),
    hooked("cuMemExportToShareableHandle", "nothing; the descriptor holds the handle's charge while it is open in this process", HANDLE_ENDS,
        "sharing::a_descriptor_that_is_open_here_keeps_the_charge"),
    hooked("cuMemImportFromShareableHandle", "nothing: its maker pays; of this process's own memory, one more reference", HANDLE_ENDS,
        "sharing::physical_memory_of_another_tenant_is_charged_to_its_maker_alone"),
    free("cuMemPoolExportToShareableHandle", "names memory that is charged already"),
    free("cuMemPoolImportFromShareableHandle", OWNER_PAYS),
    free("cuMemPoolExportPointer", "names memory that is charged already"),
    free("cuMemPoolImportPointer", OWNER_PAYS),
    free("cuImportExternalMemory", OWNER_PAYS),
    free("cuDestroyExternalMemory", OWNER_PAYS),
    free("cuExternalMemoryGetMappedBuffer", OWNER_PAYS),
    free("cuExternalMemoryGetMappedMipmappedArray", OWNER_PAYS),
    free("cuImportExternalSemaphore", NO_MEMORY),
    free("cuDestroyExternalSemaphore", NO_MEMORY),
    free("cuSignalExternalSemaphoresAsync", NO_MEMORY),
    free("cuWaitExternalSemaphoresAsync", NO_MEMORY),
    free("cuMulticastCreate", "has no memory of its own: what is bound to it is charged"),
    free("cuMulticastAddDevice", NO_MEMORY),
    free("cuMulticastBindMem", "holds memory that its handle is charged for"),
    free("cuMulticastBindAddr", "holds memory that its handle is charged for"),
    free("cuMulticastUnbind", NO_MEMORY),
    free("cuMulticastGetGranularity", QUERY),
    free("cuLogicalEndpointCreate", "has no memory of its own: what is bound to it is charged"),
    free("cuLogicalEndpointDestroy", NO_MEMORY),
    free("cuLogicalEndpointAddDevice", NO_MEMORY),
    free("cuLogicalEndpointBindAddr", "holds memory that its handle is charged for"),
    free("cuLogicalEndpointBindMem", "holds memory that its handle is charged for"),
    free("cuLogicalEndpointUnbind", NO_MEMORY),
    free("cuLogicalEndpointExport", NO_MEMORY),
    free("cuLogicalEndpointImport", NO_MEMORY),
    free("cuLogicalEndpointGetLimits", QUERY),
    free("cuLogicalEndpointIdReserve", NO_MEMORY),
    free("cuLogicalEndpointIdRelease", NO_MEMORY),
    free("cuLogicalEndpointQuery", QUERY),

    // Graphs.
    free("cuGraphAddMemAllocNode", LATER),
    free("cuGraphAddMemFreeNode", "gives back within the graph: what the graph has reserved stays"),
    free("cuGraphAddNode", LATER),
    hooked("cuGraphInstantiate", "nothing yet; refuses a graph that can never fit", "-",
        "graph_memory::a_graph_that_can_never_fit_is_refused_when_it_is_made"),
    hooked("cuGraphInstantiateWithFlags", "nothing yet; refuses a graph that can never fit", "-",
        "graph_memory::a_graph_that_can_never_fit_is_refused_when_it_is_made"),
    hooked("cuGraphInstantiateWithParams", "what it uploads, if it is told to", GRAPHS_KEEP,
        "graph_memory::a_graph_that_can_never_fit_is_refused_when_it_is_made"),
    hooked("cuGraphUpload", "the growth of what graphs have reserved on the device", GRAPHS_KEEP,
        "graph_memory::an_upload_takes_what_a_launch_takes"),
    hooked("cuGraphLaunch", "the growth of what graphs have reserved on the device", GRAPHS_KEEP,
        "graph_memory::a_graph_is_charged_what_the_driver_has_for_it_until_a_trim"),
    hooked("cuDeviceGraphMemTrim", "gives back what the driver gave back", "-",
        "graph_memory::a_graph_is_charged_what_the_driver_has_for_it_until_a_trim"),
    hooked("cuGraphExecDestroy", "gives nothing back: the driver keeps the memory until it is trimmed", "-",
        "graph_memory::a_graph_is_charged_what_the_driver_has_for_it_until_a_trim"),
    free("cuGraphDestroy", "gives no device memory back"),
    free("cuGraphDestroyNode", "gives no device memory back"),

    // Code.
    open("cuModuleLoad", MEASURED),
    open("cuModuleLoadData", MEASURED),
    open("cuModuleLoadDataEx", MEASURED),
    open("cuModuleLoadFatBinary", MEASURED),
    open("cuLibraryLoadData", MEASURED),
    open("cuLibraryLoadFromFile", MEASURED),
    free("cuModuleUnload", "gives back what was never charged"),
    free("cuLibraryUnload", "gives back what was never charged"),

    // Memory of the host.
    free("cuMemAllocHost", OF_THE_HOST),
    free("cuMemHostAlloc", OF_THE_HOST),
    free("cuMemHostRegister", OF_THE_HOST),
    free("cuMemFreeHost", OF_THE_HOST),
    free("cuMemHostUnregister", OF_THE_HOST),

    // Checkpoints.
    open("cuCheckpointProcessCheckpoint", "moves another process's memory to the host; it stays charged there"),
    free("cuCheckpointProcessRestore", "takes back what has stayed charged"),
    free("cuCheckpointProcessLock", NO_MEMORY),
    free("cuCheckpointProcessUnlock", NO_MEMORY),
    free("cuCheckpointProcessGetState", QUERY),
    free("cuCheckpointProcessGetRestoreThreadId", QUERY),
    free("cuCheckpointOperationComplete", NO_MEMORY),

    // The size of the GPU.
    hooked("cuMemGetInfo", "shows the cap as the total and what it leaves as free", "-",
        "views::all_ways_to_ask_for_the_memory_agree_with_the_cap_and_with_one_another"),
    hooked("cuDeviceTotalMem", "shows the cap", "-",
        "views::all_ways_to_ask_for_the_memory_agree_with_the_cap_and_with_one_another"),
];

/// Kinds of functions of which every one must have a row.
fn is_about_memory(class: Class) -> bool {
    matches!(
        class,
        Class::Alloc
            | Class::AllocHost
            | Class::Checkpoint
            | Class::CtxCreate
            | Class::CtxDestroy
            | Class::Endpoint
            | Class::External
            | Class::Free
            | Class::FreeHost
            | Class::GraphAlloc
            | Class::GraphExec
            | Class::GraphFree
            | Class::GraphLaunch
            | Class::Ipc
            | Class::Multicast
            | Class::Pool
            | Class::QueryMem
            | Class::Vmm
    )
}

/// Hooks that have nothing to do with memory, or whose memory another function answers for.
const OTHER_HOOKS: &[&str] = &[
    "cuInit",
    "cuGetProcAddress",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLaunchCooperativeKernel",
    "cuLaunchCooperativeKernelMultiDevice",
    "cuLaunch",
    "cuLaunchGrid",
    "cuLaunchGridAsync",
    "cuGraphExecUpdate",
    "cuStreamBeginCapture",
    "cuStreamBeginCaptureToGraph",
    "cuStreamBeginRecaptureToGraph",
];

fn variants(base: &str) -> impl Iterator<Item = (usize, &'static Symbol)> {
    DRIVER
        .iter()
        .enumerate()
        .filter(move |(_, symbol)| symbol.base == base)
}

fn is_hooked(base: &str) -> bool {
    variants(base).any(|(ordinal, _)| hooks::export(ordinal).is_some())
}

fn page() -> String {
    let mut page = String::from(PREFACE);
    let symbols = |base: &str| {
        let names: Vec<String> = variants(base)
            .map(|(_, symbol)| format!("`{}`", symbol.name))
            .collect();
        names.join(" ")
    };
    for row in ROWS {
        if let How::Hooked {
            charged,
            until,
            shown_by,
        } = row.how
        {
            let (file, name) = shown_by.split_once("::").unwrap_or((shown_by, ""));
            let test = format!("`{file}`: {}", name.replace('_', " "));
            _ = writeln!(
                page,
                "| {} | {charged} | {until} | {test} |",
                symbols(row.base)
            );
        }
    }
    page.push_str(OPEN_PREFACE);
    for row in ROWS {
        if let How::Open(why) = row.how {
            _ = writeln!(page, "| {} | {why} |", symbols(row.base));
        }
    }
    page.push_str(FREE_PREFACE);
    for row in ROWS {
        if let How::Free(why) = row.how {
            _ = writeln!(page, "| {} | {why} |", symbols(row.base));
        }
    }
    page
}

const PREFACE: &str = "\
<!-- Made from shim/src/coverage.rs: `SLUICE_UPDATE=1 cargo test -p sluice-shim coverage`. -->
# What counts against the cap

Every function of the driver that can take, give back or show device memory, in all its variants. A
test keeps this page true: a function without a row, a row without its hook and a test that does not
exist are failures.

Reserve, call the driver, commit or roll back: nothing is charged for a call that fails, and a call that
does not fit is refused with `CUDA_ERROR_OUT_OF_MEMORY`, its outputs untouched. A process that dies
gives back all it held.

## Counted

| functions | effect on the account | given back by | shown by the test |
|---|---|---|---|
";

const OPEN_PREFACE: &str = "
## Not counted, though it can take device memory

| functions | why |
|---|---|
";

const FREE_PREFACE: &str = "
## Not counted, because there is nothing to count

| functions | why |
|---|---|
";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Whether a hook of the function has nothing to do with memory's account.
fn is_other(symbol: &Symbol) -> bool {
    let is_move = matches!(symbol.class, Class::Copy | Class::Memset);
    is_move || OTHER_HOOKS.contains(&symbol.base)
}

#[test]
fn every_function_that_can_take_give_back_or_show_device_memory_has_one_row() {
    let known: BTreeSet<&str> = ROWS.iter().map(|row| row.base).collect();
    assert_eq!(known.len(), ROWS.len(), "a function has two rows");
    for symbol in DRIVER {
        let must = is_about_memory(symbol.class) || (is_hooked(symbol.base) && !is_other(symbol));
        assert!(
            !must || known.contains(symbol.base),
            "{} can take, give back or show device memory, or has a hook, and has no row in \
             shim/src/coverage.rs",
            symbol.name
        );
    }
}

#[test]
fn a_row_says_counted_where_there_is_a_hook_and_nowhere_else() {
    for row in ROWS {
        assert!(variants(row.base).count() > 0, "no function {}", row.base);
        if OTHER_HOOKS.contains(&row.base) {
            continue;
        }
        let says = matches!(row.how, How::Hooked { .. });
        assert_eq!(is_hooked(row.base), says, "the row of {}", row.base);
    }
}

#[test]
fn the_tests_that_rows_name_exist() {
    for row in ROWS {
        if let How::Hooked { shown_by, .. } = row.how {
            let (file, name) = shown_by.split_once("::").unwrap_or((shown_by, ""));
            let path = repository().join("tests").join(format!("{file}.rs"));
            let source = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                source.contains(&format!("fn {name}()")),
                "{}: no test {name} in {}",
                row.base,
                path.display()
            );
        }
    }
}

#[test]
fn the_page_on_coverage_is_what_the_rows_say() {
    let path = repository().join("docs/coverage.md");
    let page = page();
    if std::env::var_os("SLUICE_UPDATE").is_some() {
        let written = std::fs::write(&path, &page);
        assert!(written.is_ok(), "{written:?}");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/coverage.md is stale; `SLUICE_UPDATE=1 cargo test -p sluice-shim coverage` makes it anew"
    );
}
