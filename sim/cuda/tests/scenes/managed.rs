//! Scenes about managed memory and attributes of streams.

use super::*;

type Range = CUmem_range_attribute_enum;
type Advise = CUmem_advise_enum;

const NOWHERE: c_int = -2;
const CPU: c_int = -1;

fn managed(bytes: usize) -> CUdeviceptr {
    let mut at = 0;
    ok!(cuMemAllocManaged(&mut at, bytes, 1));
    at
}

fn said(attribute: CUmem_range_attribute, at: CUdeviceptr, bytes: usize) -> c_int {
    let mut value: c_int = 77;
    ok!(cuMemRangeGetAttribute(
        (&raw mut value).cast(),
        4,
        attribute,
        at,
        bytes
    ));
    value
}

fn location(kind: c_uint, id: c_int) -> CUmemLocation {
    let mut location: CUmemLocation = unsafe { std::mem::zeroed() };
    location.type_ = CUmemLocationType_enum(kind);
    location.__bindgen_anon_1.id = id;
    location
}

#[test]
#[ignore = "a scene that another test plays"]
fn advice_is_kept_for_every_byte_of_managed_memory() {
    context();
    let at = managed(MIB);
    let half = at + MIB as u64 / 2;
    let preferred = Range::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION;
    let mostly = Range::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
    assert_eq!(
        (said(preferred, at, MIB), said(mostly, at, MIB)),
        (NOWHERE, 0)
    );
    let set = Advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    ok!(cuMemAdvise(at, MIB / 2, set, 0));
    ok!(cuMemAdvise(half, MIB / 2, set, CPU));
    ok!(cuMemAdvise(
        at,
        MIB,
        Advise::CU_MEM_ADVISE_SET_READ_MOSTLY,
        99
    ));
    assert_eq!(said(preferred, at, MIB / 2), 0);
    assert_eq!(said(preferred, half, 1), CPU);
    assert_eq!(said(preferred, half - 1, 2), NOWHERE);
    assert_eq!(said(mostly, at, MIB), 1);
    ok!(cuMemAdvise_v2(half, 10, set, location(1, 0)));
    assert_eq!(said(preferred, half - 1, 11), 0);
    let kind = Range::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE;
    let id = Range::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID;
    assert_eq!((said(kind, half, 1), said(id, half, 1)), (1, 0));
    assert_eq!(said(kind, half + 10, 1), 2);
    ok!(cuMemAdvise(
        at,
        MIB,
        Advise::CU_MEM_ADVISE_SET_ACCESSED_BY,
        CPU
    ));
    let mut users = [7; 3];
    let mut value = 7;
    let mut places = [users.as_mut_ptr().cast(), (&raw mut value).cast()];
    let mut rooms = [12, 4];
    let mut wanted = [Range::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, mostly];
    ok!(cuMemRangeGetAttributes(
        places.as_mut_ptr(),
        rooms.as_mut_ptr(),
        wanted.as_mut_ptr(),
        2,
        at,
        MIB
    ));
    assert_eq!((users, value), ([CPU, NOWHERE, NOWHERE], 1));
    // What is no managed memory, or no place.
    let linear = allocate(MIB);
    fails!(cuMemAdvise(linear, MIB, set, 0), CUDA_ERROR_INVALID_VALUE);
    fails!(cuMemAdvise(at, MIB + 1, set, 0), CUDA_ERROR_INVALID_VALUE);
    fails!(cuMemAdvise(at, MIB, set, 5), CUDA_ERROR_INVALID_DEVICE);
    let unknown = CUmem_advise_enum(99);
    fails!(cuMemAdvise(at, MIB, unknown, 0), CUDA_ERROR_INVALID_VALUE);
    fails!(
        cuMemRangeGetAttribute((&raw mut value).cast(), 8, mostly, at, MIB),
        CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(value, 1);
    // What comes to lie there later is not what was advised about.
    ok!(cuMemFree_v2(at));
    let again = managed(MIB);
    assert_eq!(again, at);
    assert_eq!(said(mostly, again, MIB), 0);
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_prefetch_takes_its_turn_and_the_time_of_a_transfer() {
    context();
    let lane = stream(1);
    let bytes = 50 * MIB;
    let at = managed(bytes);
    let (from, to, again) = (event(), event(), event());
    let gate = Gate::close(lane);
    ok!(cuEventRecord(from, lane));
    ok!(cuMemPrefetchAsync(at, bytes, CPU, lane));
    ok!(cuEventRecord(to, lane));
    ok!(cuMemPrefetchAsync_v2(at, bytes, location(2, 0), 0, lane));
    ok!(cuEventRecord(again, lane));
    fails!(cuStreamQuery(lane), CUDA_ERROR_NOT_READY);
    gate.open();
    ok!(cuStreamSynchronize(lane));
    let last = Range::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;
    assert_eq!(said(last, at, bytes), CPU);
    let (mut first, mut second) = (0f32, 0f32);
    ok!(cuEventElapsedTime(&mut first, from, to));
    ok!(cuEventElapsedTime(&mut second, to, again));
    // 50 MiB at 25 GB/s; the second time it is there.
    assert!((first - 2.099).abs() < 0.01, "{first} ms");
    assert!(second < 0.01, "{second} ms");
    let (mut starts, mut sizes) = ([at, at + 4096], [4096usize, 4096]);
    let mut locations = [location(1, 0), location(2, 0)];
    let mut indices = [0usize, 1];
    ok!(cuMemPrefetchBatchAsync(
        starts.as_mut_ptr(),
        sizes.as_mut_ptr(),
        2,
        locations.as_mut_ptr(),
        indices.as_mut_ptr(),
        2,
        0,
        lane
    ));
    assert_eq!(said(last, at, 4096), 0);
    assert_eq!(said(last, at, 8192), NOWHERE);
    ok!(cuMemDiscardBatchAsync(
        starts.as_mut_ptr(),
        sizes.as_mut_ptr(),
        2,
        0,
        lane
    ));
    indices[1] = 0;
    fails!(
        cuMemPrefetchBatchAsync(
            starts.as_mut_ptr(),
            sizes.as_mut_ptr(),
            2,
            locations.as_mut_ptr(),
            indices.as_mut_ptr(),
            2,
            0,
            lane
        ),
        CUDA_ERROR_INVALID_VALUE
    );
    let linear = allocate(MIB);
    fails!(
        cuMemPrefetchAsync(linear, MIB, 0, lane),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(
        cuMemPrefetchAsync(at, MIB, 9, lane),
        CUDA_ERROR_INVALID_DEVICE
    );
    fails!(
        cuMemPrefetchAsync_v2(at, MIB, location(1, 0), 1, lane),
        CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn managed_memory_is_attached_whole_or_not_at_all() {
    context();
    let lane = stream(1);
    let at = managed(MIB);
    for flags in [1, 2, 4] {
        ok!(cuStreamAttachMemAsync(lane, at, 0, flags));
        ok!(cuStreamAttachMemAsync(lane, at, MIB, flags));
    }
    ok!(cuStreamAttachMemAsync(null_mut(), at, 0, 1));
    let linear = allocate(MIB);
    for (stream, address, bytes, flags) in [
        (null_mut(), at, 0, 4),
        (lane, at, MIB / 2, 1),
        (lane, at + 4096, 0, 1),
        (lane, at, 0, 3),
        (lane, linear, 0, 1),
    ] {
        fails!(
            cuStreamAttachMemAsync(stream, address, bytes, flags),
            CUDA_ERROR_INVALID_VALUE
        );
    }
    ok!(cuStreamBeginCapture_v2(lane, CUstreamCaptureMode(2)));
    fails!(
        cuStreamAttachMemAsync(lane, at, 0, 1),
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_stream_keeps_its_attributes_and_hands_them_on() {
    type Id = CUlaunchAttributeID_enum;
    context();
    let (one, other) = (stream(1), stream(0));
    let policy = Id::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY;
    let mut value: CUstreamAttrValue = unsafe { std::mem::zeroed() };
    ok!(cuStreamGetAttribute(one, policy, &mut value));
    assert_eq!(unsafe { value.syncPolicy }.0, 1);
    value.syncPolicy = CUsynchronizationPolicy_enum(4);
    ok!(cuStreamSetAttribute(one, policy, &value));
    value.syncPolicy = CUsynchronizationPolicy_enum(9);
    fails!(
        cuStreamSetAttribute(one, policy, &value),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuStreamCopyAttributes(other, one));
    ok!(cuStreamGetAttribute(other, policy, &mut value));
    assert_eq!(unsafe { value.syncPolicy }.0, 4);
    let mut urgent = null_mut();
    ok!(cuStreamCreateWithPriority(&mut urgent, 1, -3));
    let priority = Id::CU_LAUNCH_ATTRIBUTE_PRIORITY;
    ok!(cuStreamGetAttribute(urgent, priority, &mut value));
    assert_eq!(unsafe { value.priority }, -3);
    fails!(
        cuStreamGetAttribute(one, Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &mut value),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(
        cuStreamGetAttribute(number(0x1234).cast(), policy, &mut value),
        CUDA_ERROR_INVALID_HANDLE
    );
    let mut own = null_mut();
    ok!(cuCtxCreate_v2(&mut own, 0, 0));
    fails!(
        cuStreamCopyAttributes(stream(1), one),
        CUDA_ERROR_INVALID_VALUE
    );
}
