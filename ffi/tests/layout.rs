//! The bindings lay memory out as a C compiler does.
//!
//! Sizes, offsets and version words were measured with gcc on the headers of CUDA 13.5, not with
//! bindgen: what bindgen asserts about itself is beside each type in `ffi::driver` and `ffi::nvml`.

use std::mem::{offset_of, size_of};

use ffi::{driver, nvml};

/// `Type: bytes { field: offset, .. };` for each type.
macro_rules! layouts {
    ($room:ident; $($type:ident: $bytes:literal $({ $($($field:ident).+: $offset:literal),+ })?;)+) => {$(
        assert_eq!(size_of::<$room::$type>(), $bytes, stringify!($type));
        $($(assert_eq!(
            offset_of!($room::$type, $($field).+),
            $offset,
            stringify!($type, $($field).+)
        );)+)?
    )+};
}

/// `constant = version, bytes;`: NVML keeps the version above the low 24 bits, the size in them.
macro_rules! version_words {
    ($($constant:ident = $version:literal, $bytes:literal;)+) => {$(
        assert_eq!(nvml::$constant, ($version << 24) | $bytes, stringify!($constant));
    )+};
}

#[test]
#[rustfmt::skip] // A table: a type is a row.
fn driver_types_have_the_size_and_offsets_that_gcc_gives_them() {
    layouts! { driver;
        CUuuid: 16;
        CUDA_ARRAY_DESCRIPTOR: 24;
        CUDA_ARRAY3D_DESCRIPTOR: 40 { Width: 0, Height: 8, Depth: 16, Format: 24, NumChannels: 28, Flags: 32 };
        CUDA_ARRAY_MEMORY_REQUIREMENTS: 32 { size: 0, alignment: 8 };
        CUDA_ARRAY_SPARSE_PROPERTIES: 48;
        CUmemLocation: 8 { type_: 0, __bindgen_anon_1.id: 4 };
        CUmemAllocationProp: 32 { type_: 0, requestedHandleTypes: 4, location: 8, win32HandleMetaData: 16, allocFlags: 24 };
        CUmemAccessDesc: 12;
        CUmemPoolProps: 88 { allocType: 0, handleTypes: 4, location: 8, win32SecurityAttributes: 16, maxSize: 24, usage: 32 };
        CUmemPoolPtrExportData: 64;
        CUDA_MEM_ALLOC_NODE_PARAMS: 120 { poolProps: 0, accessDescs: 88, accessDescCount: 96, bytesize: 104, dptr: 112 };
        CUDA_KERNEL_NODE_PARAMS: 72 { func: 0, gridDimX: 8, sharedMemBytes: 32, kernelParams: 40, extra: 48, kern: 56, ctx: 64 };
        CUDA_MEMCPY3D: 200;
        CUDA_MEMCPY2D: 128;
        CUDA_MEMCPY3D_PEER: 200;
        CUlaunchConfig: 56 { gridDimX: 0, blockDimX: 12, sharedMemBytes: 24, hStream: 32, attrs: 40, numAttrs: 48 };
        CUlaunchAttribute: 72 { id: 0, value: 8 };
        CUlaunchAttributeValue: 64;
        CUstreamBatchMemOpParams: 48 { operation: 0, waitValue: 0, writeValue: 0 };
        CUipcMemHandle: 64;
        CUipcEventHandle: 64;
        CUarrayMapInfo: 96;
        CUexecAffinityParam: 8;
        CUDA_EXTERNAL_MEMORY_HANDLE_DESC: 104;
        CUDA_LAUNCH_PARAMS: 56;
        CUdevprop: 56;
        CUDA_MEM_ALLOC_NODE_PARAMS_v1: 120;
        CUDA_MEM_ALLOC_NODE_PARAMS_v2: 120;
        CUDA_MEM_FREE_NODE_PARAMS: 8;
        CUDA_KERNEL_NODE_PARAMS_v3: 72;
        CUgraphNodeParams: 256 { type_: 0, __bindgen_anon_1.kernel: 16, __bindgen_anon_1.alloc: 16, __bindgen_anon_1.free: 16, __bindgen_anon_1.conditional: 16 };
        CUDA_CONDITIONAL_NODE_PARAMS: 32;
        CUDA_GRAPH_INSTANTIATE_PARAMS: 32 { flags: 0, hUploadStream: 8, hErrNode_out: 16, result_out: 24 };
        CUmulticastObjectProp: 32 { numDevices: 0, size: 8, handleTypes: 16, flags: 24 };
        CUdevResource: 144;
        CUgraphExecUpdateResultInfo: 24;
        CUasyncNotificationInfo: 16;
        CUDA_MEMCPY3D_BATCH_OP: 112 { src: 0, dst: 40, extent: 80, srcAccessOrder: 104, flags: 108 };
        CUmemcpyAttributes: 24;
        CUctxCreateParams: 24 { execAffinityParams: 0, numExecAffinityParams: 8, cigParams: 16 };
        CUcheckpointLockArgs: 64;
        CUcheckpointCheckpointArgs: 64;
        CUcheckpointRestoreArgs: 64;
        CUDA_FABRIC_COPY_BATCH_OP: 64;
    }
}

#[test]
fn nvml_types_have_the_size_that_gcc_gives_them() {
    layouts! { nvml;
        nvmlMemory_t: 24;
        nvmlMemory_v2_t: 40;
        nvmlBAR1Memory_t: 24;
        nvmlProcessInfo_v1_t: 16;
        nvmlProcessInfo_v2_t: 24;
        nvmlProcessInfo_t: 24;
        nvmlProcessUtilizationSample_t: 32;
        nvmlUtilization_t: 8;
        nvmlSample_t: 16;
        nvmlValue_t: 8;
        nvmlFieldValue_t: 40;
        nvmlAccountingStats_t: 56;
        nvmlDeviceAttributes_t: 40;
        nvmlPciInfo_t: 68;
        nvmlGpmMetricsGet_t: 19104;
        nvmlGpuInstanceInfo_t: 24;
        nvmlComputeInstanceInfo_t: 32;
        nvmlVgpuProcessUtilizationSample_t: 96;
        nvmlProcessDetail_v1_t: 32;
        nvmlProcessDetailList_v1_t: 24;
        nvmlConfComputeMemSizeInfo_t: 16;
        nvmlProcessUtilizationInfo_v1_t: 40;
        nvmlProcessesUtilizationInfo_v1_t: 24;
        nvmlPciInfoExt_v1_t: 64;
        nvmlEccSramErrorStatus_v1_t: 104;
        nvmlDeviceCapabilities_v1_t: 8;
        nvmlUUID_v1_t: 52;
        nvmlAccountingStats_v2_t: 64;
        nvmlGetMemoryLimits_v1_t: 32;
        nvmlSetMemoryLimits_v1_t: 24;
        nvmlPerfMetricsSamples_v1_t: 115344;
    }
}

#[test]
fn nvml_version_words_are_those_of_the_header() {
    version_words! {
        nvmlComputeInstanceProfileInfo_v2 = 2, 136;
        nvmlGpuInstanceProfileInfo_v2 = 2, 152;
        nvmlMemory_v2 = 2, 40;
        nvmlPowerValue_v2 = 2, 12;
        nvmlProcessDetailList_v1 = 1, 24;
        nvmlC2cModeInfo_v1 = 1, 4;
        nvmlComputeInstanceProfileInfo_v3 = 3, 140;
        nvmlEccSramErrorStatus_v1 = 1, 104;
        nvmlGpuFabricInfo_v2 = 2, 36;
        nvmlGpuInstanceProfileInfo_v3 = 3, 152;
        nvmlPciInfoExt_v1 = 1, 64;
        nvmlProcessesUtilizationInfo_v1 = 1, 24;
        nvmlSystemConfComputeSettings_v1 = 1, 20;
        nvmlVgpuHeterogeneousMode_v1 = 1, 8;
        nvmlVgpuInstancesUtilizationInfo_v1 = 1, 32;
        nvmlVgpuPlacementId_v1 = 1, 8;
        nvmlVgpuPlacementList_v1 = 1, 24;
        nvmlVgpuProcessesUtilizationInfo_v1 = 1, 24;
        nvmlActiveVgpuInstanceInfo_v1 = 1, 16;
        nvmlClockOffset_v1 = 1, 24;
        nvmlCoolerInfo_v1 = 1, 16;
        nvmlDeviceCapabilities_v1 = 1, 8;
        nvmlDeviceCurrentClockFreqs_v1 = 1, 2052;
        nvmlDevicePerfModes_v1 = 1, 2052;
        nvmlDramEncryptionInfo_v1 = 1, 8;
        nvmlFanSpeedInfo_v1 = 1, 12;
        nvmlMarginTemperature_v1 = 1, 8;
        nvmlNvlinkGetBwMode_v1 = 1, 12;
        nvmlNvlinkSetBwMode_v1 = 1, 12;
        nvmlNvlinkSupportedBwModes_v1 = 1, 28;
        nvmlPlatformInfo_v1 = 1, 44;
        nvmlPlatformInfo_v2 = 2, 44;
        nvmlPowerSmoothingProfile_v1 = 1, 24;
        nvmlPowerSmoothingState_v1 = 1, 8;
        nvmlSystemDriverBranchInfo_v1 = 1, 84;
        nvmlSystemEventSetCreateRequest_v1 = 1, 16;
        nvmlSystemEventSetFreeRequest_v1 = 1, 16;
        nvmlSystemEventSetWaitRequest_v1 = 1, 32;
        nvmlSystemRegisterEventRequest_v1 = 1, 24;
        nvmlTemperature_v1 = 1, 12;
        nvmlUUID_v1 = 1, 52;
        nvmlVgpuCreatablePlacementInfo_v1 = 1, 32;
        nvmlVgpuPlacementList_v2 = 2, 32;
        nvmlVgpuRuntimeState_v1 = 1, 16;
        nvmlVgpuSchedulerLogInfo_v1 = 1, 9632;
        nvmlVgpuSchedulerStateInfo_v1 = 1, 24;
        nvmlVgpuSchedulerState_v1 = 1, 24;
        nvmlVgpuTypeBar1Info_v1 = 1, 16;
        nvmlVgpuTypeIdInfo_v1 = 1, 16;
        nvmlVgpuTypeMaxInstance_v1 = 1, 12;
        nvmlWorkloadPowerProfileCurrentProfiles_v1 = 1, 100;
        nvmlWorkloadPowerProfileInfo_v1 = 1, 44;
        nvmlWorkloadPowerProfileProfilesInfo_v1 = 1, 11256;
        nvmlWorkloadPowerProfileRequestedProfiles_v1 = 1, 36;
        nvmlDeviceAddressingMode_v1 = 1, 8;
        nvmlEccSramUniqueUncorrectedErrorCounts_v1 = 1, 16;
        nvmlGpuFabricInfo_v3 = 3, 40;
        nvmlNvLinkInfo_v1 = 1, 8;
        nvmlNvLinkInfo_v2 = 2, 1612;
        nvmlPdi_v1 = 1, 16;
        nvmlRepairStatus_v1 = 1, 12;
        nvmlRusdSettings_v1 = 1, 16;
        nvmlSystemConfComputeSettings_v2 = 2, 24;
        nvmlWorkloadPowerProfileUpdateProfiles_v1 = 1, 36;
    }
}
