//! Every function that is implemented, one row each: `symbol(arguments) => policy`.
//!
//! Versions of one function that differ in nothing but their name share a policy. The types are the
//! header's; outputs are an [`Out`], inputs by pointer an [`In`], devices a [`Handle`].
#![allow(non_snake_case, reason = "the names are the header's")]

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_ulonglong, c_void};

use ffi::nvml::*;

use crate::events::EventSet;
use crate::guard::{In, Out};
use crate::library::Handle;
use crate::utilisation;
use crate::{
    condition, events, guard, identity, library, limits, memory, private, process, system,
};

/// Makes the exported functions out of the rows below.
macro_rules! nvml {
    ($($symbol:ident($($argument:ident: $type:ty),* $(,)?) => $policy:path;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $symbol($($argument: $type),*) -> nvmlReturn_t {
            if let Some(code) = sim::faults::at(stringify!($symbol)) {
                return nvmlReturn_t(code);
            }
            guard::answer(move || $policy($($argument),*))
        }
    )*};
}

/// A sentence for a code. Needs no initialisation; a code that is not known has a sentence too.
#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    system::sentence(code).as_ptr()
}

nvml! {
    nvmlInit() => library::initialise;
    nvmlInit_v2() => library::initialise;
    nvmlInitWithFlags(flags: c_uint) => library::initialise_with;
    nvmlShutdown() => library::shut_down;
    nvmlInternalGetExportTable(table: Out<*const c_void>, uuid: In<[u8; 16]>) => private::table;

    nvmlSystemGetDriverVersion(text: Out<c_char>, length: c_uint) => system::driver_version;
    nvmlSystemGetNVMLVersion(text: Out<c_char>, length: c_uint) => system::library_version;
    nvmlSystemGetCudaDriverVersion(version: Out<c_int>) => system::cuda_version;
    nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) => system::cuda_version;
    nvmlSystemGetDriverBranch(branch: Out<nvmlSystemDriverBranchInfo_v1_t>, length: c_uint) => system::driver_branch;
    nvmlSystemGetProcessName(pid: c_uint, text: Out<c_char>, length: c_uint) => system::process_name;
    nvmlSystemGetHicVersion(count: Out<c_uint>, entries: Out<nvmlHwbcEntry_t>) => system::no_interface_cards;
    nvmlUnitGetCount(count: Out<c_uint>) => system::none;
    nvmlGetExcludedDeviceCount(count: Out<c_uint>) => system::none;
    nvmlGetBlacklistDeviceCount(count: Out<c_uint>) => system::none;

    nvmlDeviceGetCount(count: Out<c_uint>) => identity::count;
    nvmlDeviceGetCount_v2(count: Out<c_uint>) => identity::count;
    nvmlDeviceGetHandleByIndex(index: c_uint, device: Out<Handle>) => identity::by_index;
    nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<Handle>) => identity::by_index;
    nvmlDeviceGetHandleByPciBusId(address: In<c_char>, device: Out<Handle>) => identity::by_address;
    nvmlDeviceGetHandleByPciBusId_v2(address: In<c_char>, device: Out<Handle>) => identity::by_address;
    nvmlDeviceGetHandleByUUID(uuid: In<c_char>, device: Out<Handle>) => identity::by_uuid;
    nvmlDeviceGetHandleByUUIDV(uuid: In<nvmlUUID_v1_t>, device: Out<Handle>) => identity::by_versioned_uuid;
    nvmlDeviceGetHandleBySerial(serial: In<c_char>, device: Out<Handle>) => identity::by_serial;
    nvmlDeviceGetIndex(device: Handle, index: Out<c_uint>) => identity::index;
    nvmlDeviceGetMinorNumber(device: Handle, minor: Out<c_uint>) => identity::index;
    nvmlDeviceGetModuleId(device: Handle, module: Out<c_uint>) => identity::index;
    nvmlDeviceGetName(device: Handle, text: Out<c_char>, length: c_uint) => identity::name;
    nvmlDeviceGetUUID(device: Handle, text: Out<c_char>, length: c_uint) => identity::uuid;
    nvmlDeviceGetSerial(device: Handle, text: Out<c_char>, length: c_uint) => identity::serial;
    nvmlDeviceGetBoardId(device: Handle, board: Out<c_uint>) => identity::board;
    nvmlDeviceGetBoardPartNumber(device: Handle, text: Out<c_char>, length: c_uint) => identity::part_number;
    nvmlDeviceGetVbiosVersion(device: Handle, text: Out<c_char>, length: c_uint) => identity::firmware;
    nvmlDeviceGetPciInfo(device: Handle, pci: Out<identity::PciInfoV1>) => identity::pci_v1;
    nvmlDeviceGetPciInfo_v2(device: Handle, pci: Out<identity::PciInfoV2>) => identity::pci_v2;
    nvmlDeviceGetPciInfo_v3(device: Handle, pci: Out<nvmlPciInfo_t>) => identity::pci_v3;
    nvmlDeviceGetPciInfoExt(device: Handle, pci: Out<nvmlPciInfoExt_v1_t>) => identity::pci_extended;
    nvmlDeviceGetBrand(device: Handle, brand: Out<nvmlBrandType_t>) => identity::brand;
    nvmlDeviceGetArchitecture(device: Handle, architecture: Out<c_uint>) => identity::architecture;
    nvmlDeviceGetCudaComputeCapability(device: Handle, major: Out<c_int>, minor: Out<c_int>) => identity::compute_capability;
    nvmlDeviceGetBusType(device: Handle, kind: Out<c_uint>) => identity::bus_type;
    nvmlDeviceGetMultiGpuBoard(device: Handle, is_multi: Out<c_uint>) => condition::zero;
    nvmlDeviceGetNumGpuCores(device: Handle, cores: Out<c_uint>) => identity::cores;
    nvmlDeviceGetMemoryBusWidth(device: Handle, bits: Out<c_uint>) => identity::memory_bus;
    nvmlDeviceIsMigDeviceHandle(device: Handle, is_mig: Out<c_uint>) => condition::zero;
    nvmlDeviceOnSameBoard(device: Handle, other: Handle, is_same: Out<c_int>) => identity::on_same_board;
    nvmlDeviceGetTopologyCommonAncestor(device: Handle, other: Handle, level: Out<nvmlGpuTopologyLevel_t>) => identity::common_ancestor;
    nvmlDeviceGetCpuAffinity(device: Handle, words: c_uint, set: Out<c_ulong>) => identity::cpu_affinity;
    nvmlDeviceGetCpuAffinityWithinScope(device: Handle, words: c_uint, set: Out<c_ulong>, scope: c_uint) => identity::cpu_affinity_within;

    nvmlDeviceGetMemoryInfo(device: Handle, memory: Out<nvmlMemory_t>) => memory::info;
    nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: Out<nvmlMemory_v2_t>) => memory::info_v2;
    nvmlDeviceGetMemoryLimits_v1(device: Handle, limits: Out<nvmlGetMemoryLimits_v1_t>) => limits::get;
    nvmlDeviceSetMemoryLimits_v1(device: Handle, limits: In<nvmlSetMemoryLimits_v1_t>) => limits::set;
    nvmlDeviceGetBAR1MemoryInfo(device: Handle, memory: Out<nvmlBAR1Memory_t>) => memory::bar1;

    nvmlDeviceGetComputeRunningProcesses(device: Handle, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v1_t>) => process::compute_v1;
    nvmlDeviceGetComputeRunningProcesses_v2(device: Handle, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) => process::compute;
    nvmlDeviceGetComputeRunningProcesses_v3(device: Handle, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) => process::compute;
    nvmlDeviceGetGraphicsRunningProcesses(device: Handle, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v1_t>) => process::none_v1;
    nvmlDeviceGetGraphicsRunningProcesses_v2(device: Handle, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) => process::none;
    nvmlDeviceGetGraphicsRunningProcesses_v3(device: Handle, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) => process::none;
    nvmlDeviceGetMPSComputeRunningProcesses(device: Handle, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v1_t>) => process::mps_v1;
    nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Handle, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) => process::mps;
    nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Handle, count: Out<c_uint>, infos: Out<nvmlProcessInfo_v2_t>) => process::mps;
    nvmlDeviceGetRunningProcessDetailList(device: Handle, list: Out<nvmlProcessDetailList_v1_t>) => process::details;
    nvmlDeviceGetProcessUtilization(device: Handle, samples: Out<nvmlProcessUtilizationSample_t>, count: Out<c_uint>, since_us: c_ulonglong) => utilisation::of_processes;
    nvmlDeviceGetProcessesUtilizationInfo(device: Handle, info: Out<nvmlProcessesUtilizationInfo_v1_t>) => utilisation::of_processes_info;
    nvmlDeviceGetAccountingMode(device: Handle, mode: Out<nvmlEnableState_t>) => condition::disabled;
    nvmlDeviceGetAccountingBufferSize(device: Handle, size: Out<c_uint>) => condition::zero;
    nvmlDeviceGetAccountingPids(device: Handle, count: Out<c_uint>, pids: Out<c_uint>) => process::no_pids;
    nvmlDeviceGetEncoderSessions(device: Handle, count: Out<c_uint>, infos: Out<nvmlEncoderSessionInfo_t>) => process::no_encoder_sessions;
    nvmlDeviceGetFBCSessions(device: Handle, count: Out<c_uint>, infos: Out<nvmlFBCSessionInfo_t>) => process::no_capture_sessions;

    nvmlDeviceGetUtilizationRates(device: Handle, rates: Out<nvmlUtilization_t>) => utilisation::rates;
    nvmlDeviceGetSamples(device: Handle, kind: nvmlSamplingType_t, since_us: c_ulonglong, value_kind: Out<nvmlValueType_t>, count: Out<c_uint>, samples: Out<nvmlSample_t>) => utilisation::samples;
    nvmlDeviceGetEncoderUtilization(device: Handle, percent: Out<c_uint>, period_us: Out<c_uint>) => utilisation::idle_engine;
    nvmlDeviceGetDecoderUtilization(device: Handle, percent: Out<c_uint>, period_us: Out<c_uint>) => utilisation::idle_engine;
    nvmlDeviceGetJpgUtilization(device: Handle, percent: Out<c_uint>, period_us: Out<c_uint>) => utilisation::idle_engine;
    nvmlDeviceGetOfaUtilization(device: Handle, percent: Out<c_uint>, period_us: Out<c_uint>) => utilisation::idle_engine;
    nvmlDeviceGetEncoderStats(device: Handle, sessions: Out<c_uint>, frames: Out<c_uint>, latency: Out<c_uint>) => condition::three_zeros;
    nvmlDeviceGetFBCStats(device: Handle, stats: Out<nvmlFBCStats_t>) => condition::capture_stats;

    nvmlDeviceGetPersistenceMode(device: Handle, mode: Out<nvmlEnableState_t>) => condition::enabled;
    nvmlDeviceGetComputeMode(device: Handle, mode: Out<nvmlComputeMode_t>) => condition::compute_mode;
    nvmlDeviceGetVirtualizationMode(device: Handle, mode: Out<c_uint>) => condition::zero;
    nvmlDeviceGetDisplayMode(device: Handle, mode: Out<nvmlEnableState_t>) => condition::disabled;
    nvmlDeviceGetDisplayActive(device: Handle, mode: Out<nvmlEnableState_t>) => condition::disabled;
    nvmlDeviceGetMigMode(device: Handle, current: Out<c_uint>, pending: Out<c_uint>) => condition::two_zeros;
    nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: Out<c_uint>) => condition::zero;
    nvmlDeviceGetEccMode(device: Handle, current: Out<nvmlEnableState_t>, pending: Out<nvmlEnableState_t>) => condition::ecc_mode;
    nvmlDeviceGetDefaultEccMode(device: Handle, mode: Out<nvmlEnableState_t>) => condition::enabled;
    nvmlDeviceGetTotalEccErrors(device: Handle, error: c_uint, counter: c_uint, errors: Out<c_ulonglong>) => condition::total_errors;
    nvmlDeviceGetMemoryErrorCounter(device: Handle, error: c_uint, counter: c_uint, location: c_uint, errors: Out<c_ulonglong>) => condition::memory_errors;
    nvmlDeviceGetDetailedEccErrors(device: Handle, error: c_uint, counter: c_uint, errors: Out<nvmlEccErrorCounts_t>) => condition::detailed_errors;
    nvmlDeviceGetRetiredPages(device: Handle, cause: c_uint, count: Out<c_uint>, pages: Out<c_ulonglong>) => condition::no_retired_pages;
    nvmlDeviceGetRetiredPages_v2(device: Handle, cause: c_uint, count: Out<c_uint>, pages: Out<c_ulonglong>, times: Out<c_ulonglong>) => condition::no_retired_pages_v2;
    nvmlDeviceGetRetiredPagesPendingStatus(device: Handle, pending: Out<nvmlEnableState_t>) => condition::disabled;
    nvmlDeviceGetRemappedRows(device: Handle, corrected: Out<c_uint>, uncorrected: Out<c_uint>, is_pending: Out<c_uint>, has_failed: Out<c_uint>) => condition::four_zeros;
    nvmlDeviceGetPerformanceState(device: Handle, state: Out<nvmlPstates_t>) => condition::performance_state;
    nvmlDeviceGetPowerState(device: Handle, state: Out<nvmlPstates_t>) => condition::performance_state;
    nvmlDeviceGetPowerManagementMode(device: Handle, mode: Out<nvmlEnableState_t>) => condition::enabled;
    nvmlDeviceGetPowerUsage(device: Handle, milliwatts: Out<c_uint>) => condition::power_usage;
    nvmlDeviceGetPowerManagementLimit(device: Handle, milliwatts: Out<c_uint>) => condition::power_limit;
    nvmlDeviceGetPowerManagementDefaultLimit(device: Handle, milliwatts: Out<c_uint>) => condition::power_limit;
    nvmlDeviceGetEnforcedPowerLimit(device: Handle, milliwatts: Out<c_uint>) => condition::power_limit;
    nvmlDeviceGetPowerManagementLimitConstraints(device: Handle, least: Out<c_uint>, most: Out<c_uint>) => condition::power_range;
    nvmlDeviceGetTemperature(device: Handle, sensor: c_uint, degrees: Out<c_uint>) => condition::temperature;
    nvmlDeviceGetTemperatureV(device: Handle, reading: Out<nvmlTemperature_v1_t>) => condition::temperature_versioned;
    nvmlDeviceGetTemperatureThreshold(device: Handle, threshold: c_uint, degrees: Out<c_uint>) => condition::temperature_threshold;
    nvmlDeviceGetNumFans(device: Handle, fans: Out<c_uint>) => condition::zero;
    nvmlDeviceGetClockInfo(device: Handle, kind: c_uint, megahertz: Out<c_uint>) => condition::clock;
    nvmlDeviceGetMaxClockInfo(device: Handle, kind: c_uint, megahertz: Out<c_uint>) => condition::clock;
    nvmlDeviceGetApplicationsClock(device: Handle, kind: c_uint, megahertz: Out<c_uint>) => condition::clock;
    nvmlDeviceGetDefaultApplicationsClock(device: Handle, kind: c_uint, megahertz: Out<c_uint>) => condition::clock;
    nvmlDeviceGetMaxCustomerBoostClock(device: Handle, kind: c_uint, megahertz: Out<c_uint>) => condition::clock;
    nvmlDeviceGetClock(device: Handle, kind: c_uint, which: c_uint, megahertz: Out<c_uint>) => condition::clock_by_id;
    nvmlDeviceGetSupportedMemoryClocks(device: Handle, count: Out<c_uint>, megahertz: Out<c_uint>) => condition::memory_clocks;
    nvmlDeviceGetSupportedGraphicsClocks(device: Handle, memory_megahertz: c_uint, count: Out<c_uint>, megahertz: Out<c_uint>) => condition::graphics_clocks;
    nvmlDeviceGetCurrentClocksThrottleReasons(device: Handle, reasons: Out<c_ulonglong>) => condition::throttle_reasons;
    nvmlDeviceGetCurrentClocksEventReasons(device: Handle, reasons: Out<c_ulonglong>) => condition::throttle_reasons;
    nvmlDeviceGetSupportedClocksThrottleReasons(device: Handle, reasons: Out<c_ulonglong>) => condition::throttle_reasons;
    nvmlDeviceGetSupportedClocksEventReasons(device: Handle, reasons: Out<c_ulonglong>) => condition::throttle_reasons;
    nvmlDeviceGetCurrPcieLinkGeneration(device: Handle, generation: Out<c_uint>) => condition::link_generation;
    nvmlDeviceGetMaxPcieLinkGeneration(device: Handle, generation: Out<c_uint>) => condition::link_generation;
    nvmlDeviceGetGpuMaxPcieLinkGeneration(device: Handle, generation: Out<c_uint>) => condition::link_generation;
    nvmlDeviceGetCurrPcieLinkWidth(device: Handle, lanes: Out<c_uint>) => condition::link_width;
    nvmlDeviceGetMaxPcieLinkWidth(device: Handle, lanes: Out<c_uint>) => condition::link_width;
    nvmlDeviceGetPcieThroughput(device: Handle, counter: c_uint, kilobytes: Out<c_uint>) => condition::link_throughput;
    nvmlDeviceGetPcieReplayCounter(device: Handle, replays: Out<c_uint>) => condition::zero;
    nvmlDeviceGetViolationStatus(device: Handle, policy: c_uint, time: Out<nvmlViolationTime_t>) => condition::no_violation;
    nvmlDeviceGetFieldValues(device: Handle, count: c_int, values: Out<nvmlFieldValue_t>) => condition::field_values;

    nvmlEventSetCreate(set: Out<EventSet>) => events::create;
    nvmlEventSetFree(set: EventSet) => events::free;
    nvmlDeviceGetSupportedEventTypes(device: Handle, kinds: Out<c_ulonglong>) => events::supported;
    nvmlDeviceRegisterEvents(device: Handle, kinds: c_ulonglong, set: EventSet) => events::register;
    nvmlEventSetWait(set: EventSet, event: Out<nvmlEventData_t>, timeout_ms: c_uint) => events::wait;
    nvmlEventSetWait_v2(set: EventSet, event: Out<nvmlEventData_t>, timeout_ms: c_uint) => events::wait;
}
