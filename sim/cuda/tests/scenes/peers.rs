//! Scenes about several devices, and about events of several processes.

use super::*;

#[test]
#[ignore = "a scene that another test plays"]
fn access_between_devices_is_given_once_and_taken_back() {
    let first = context();
    let mut second = null_mut();
    ok!(cuDevicePrimaryCtxRetain(&mut second, 1));
    let mut reaches = 7;
    ok!(cuDeviceCanAccessPeer(&mut reaches, 0, 1));
    assert_eq!(reaches, 1);
    ok!(cuDeviceCanAccessPeer(&mut reaches, 0, 0));
    assert_eq!(reaches, 0);
    fails!(
        cuDeviceCanAccessPeer(&mut reaches, 0, 7),
        CUDA_ERROR_INVALID_DEVICE
    );
    type P = CUdevice_P2PAttribute_enum;
    let supported = P::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    ok!(cuDeviceGetP2PAttribute(&mut reaches, supported, 0, 1));
    assert_eq!(reaches, 1);
    fails!(
        cuDeviceGetP2PAttribute(&mut reaches, supported, 1, 1),
        CUDA_ERROR_INVALID_DEVICE
    );
    fails!(
        cuDeviceGetP2PAttribute(&mut reaches, CUdevice_P2PAttribute_enum(99), 0, 1),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(
        cuCtxDisablePeerAccess(second),
        CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
    );
    fails!(cuCtxEnablePeerAccess(second, 1), CUDA_ERROR_INVALID_VALUE);
    fails!(cuCtxEnablePeerAccess(first, 0), CUDA_ERROR_INVALID_CONTEXT);
    ok!(cuCtxEnablePeerAccess(second, 0));
    fails!(
        cuCtxEnablePeerAccess(second, 0),
        CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
    );
    // It has a direction.
    ok!(cuCtxSetCurrent(second));
    fails!(
        cuCtxDisablePeerAccess(first),
        CUDA_ERROR_PEER_ACCESS_NOT_ENABLED
    );
    ok!(cuCtxSetCurrent(first));
    ok!(cuCtxDisablePeerAccess(second));
    let mut same = null_mut();
    ok!(cuCtxCreate_v2(&mut same, 0, 0));
    fails!(
        cuCtxEnablePeerAccess(first, 0),
        CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
    );
    ok!(cuCtxDestroy_v2(same));
    // Of physical memory and of pools for each device.
    let handle = physical(2 * MIB).unwrap();
    let mut at = 0;
    ok!(cuMemAddressReserve(&mut at, 2 * MIB, 0, 0, 0));
    ok!(cuMemMap(at, 2 * MIB, 0, handle, 0));
    let mut peer = access();
    peer.location.__bindgen_anon_1.id = 1;
    let mut flags = 7;
    let both = [access(), peer];
    ok!(cuMemSetAccess(at, 2 * MIB, both.as_ptr(), 2));
    ok!(cuMemGetAccess(&mut flags, &peer.location, at));
    assert_eq!(flags, 3);
    peer.flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE;
    ok!(cuMemSetAccess(at, 2 * MIB, &peer, 1));
    ok!(cuMemGetAccess(&mut flags, &peer.location, at));
    assert_eq!(flags, 0);
    ok!(cuMemGetAccess(&mut flags, &access().location, at));
    assert_eq!(flags, 3);
    let mut pool = null_mut();
    ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
    let mut seen = CUmemAccess_flags_enum(7);
    ok!(cuMemPoolGetAccess(&mut seen, pool, &mut peer.location));
    assert_eq!(seen.0, 0);
    ok!(cuMemPoolSetAccess(pool, &both[1], 1));
    ok!(cuMemPoolGetAccess(&mut seen, pool, &mut peer.location));
    assert_eq!(seen.0, 3);
}

const INTERPROCESS: c_uint = 4 | 2;

fn shared_event() -> CUevent {
    let mut event = null_mut();
    ok!(cuEventCreate(&mut event, INTERPROCESS));
    event
}

fn handle_of(event: CUevent) -> Vec<u8> {
    let mut handle: CUipcEventHandle = unsafe { std::mem::zeroed() };
    ok!(cuIpcGetEventHandle(&mut handle, event));
    handle.reserved.iter().map(|byte| *byte as u8).collect()
}

fn handle_from(bytes: &[u8]) -> CUipcEventHandle {
    let mut handle: CUipcEventHandle = unsafe { std::mem::zeroed() };
    for (place, byte) in handle.reserved.iter_mut().zip(bytes) {
        *place = *byte as c_char;
    }
    handle
}

/// Records one event behind a long kernel, waits for the other to be recorded.
#[test]
#[ignore = "a scene that another test plays"]
fn records_an_event_for_another_process() {
    context();
    let mut plain = null_mut();
    ok!(cuEventCreate(&mut plain, 2));
    let mut handle: CUipcEventHandle = unsafe { std::mem::zeroed() };
    fails!(
        cuIpcGetEventHandle(&mut handle, plain),
        CUDA_ERROR_INVALID_HANDLE
    );
    let (ours, theirs) = (shared_event(), shared_event());
    // Never recorded: nothing to wait for.
    ok!(cuEventQuery(ours));
    let lane = stream(1);
    let gate = Gate::close(lane);
    ok!(cuEventRecord(ours, lane));
    fails!(cuEventQuery(ours), CUDA_ERROR_NOT_READY);
    let mut again = null_mut();
    fails!(
        cuIpcOpenEventHandle(&mut again, handle_from(&handle_of(ours))),
        CUDA_ERROR_INVALID_CONTEXT
    );
    let mut both = handle_of(ours);
    both.extend(handle_of(theirs));
    std::fs::write(notes(), both).unwrap();
    say_ready();
    // The other says by recording `theirs` that it has seen ours unreached; it is behind a wait for ours.
    let deadline = Instant::now() + Duration::from_secs(20);
    while unsafe { cuEventQuery(theirs) } != Code::CUDA_ERROR_NOT_READY {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
    gate.open();
    // Recorded by the other, and waited for here: by the host and by a stream.
    let after = stream(1);
    ok!(cuStreamWaitEvent(after, theirs, 0));
    ok!(cuStreamSynchronize(after));
    ok!(cuEventSynchronize(theirs));
    ok!(cuEventQuery(theirs));
    ok!(cuEventQuery(ours));
}

#[test]
#[ignore = "a scene that another test plays"]
fn waits_for_an_event_of_another_process() {
    context();
    let bytes = std::fs::read(notes()).unwrap();
    let (mut ours, mut theirs) = (null_mut(), null_mut());
    ok!(cuIpcOpenEventHandle(&mut theirs, handle_from(&bytes[..64])));
    ok!(cuIpcOpenEventHandle(&mut ours, handle_from(&bytes[64..])));
    fails!(cuEventQuery(theirs), CUDA_ERROR_NOT_READY);
    let lane = stream(1);
    ok!(cuStreamWaitEvent(lane, theirs, 0));
    ok!(cuEventRecord(ours, lane));
    fails!(cuStreamQuery(lane), CUDA_ERROR_NOT_READY);
    ok!(cuEventSynchronize(theirs));
    ok!(cuStreamSynchronize(lane));
    ok!(cuEventQuery(ours));
    let mut milliseconds = 0f32;
    fails!(
        cuEventElapsedTime(&mut milliseconds, theirs, ours),
        CUDA_ERROR_INVALID_HANDLE
    );
    fails!(
        cuIpcOpenEventHandle(&mut ours, handle_from(&[7; 64])),
        CUDA_ERROR_INVALID_VALUE
    );
}

/// Has recorded another's event in a stream that never gets there.
#[test]
#[ignore = "a scene that another test plays"]
fn records_another_s_event_and_is_killed() {
    context();
    let bytes = std::fs::read(notes()).unwrap();
    let mut theirs = null_mut();
    ok!(cuIpcOpenEventHandle(&mut theirs, handle_from(&bytes[..64])));
    let lane = stream(1);
    let _gate = Gate::close(lane);
    ok!(cuEventRecord(theirs, lane));
    say_ready();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
#[ignore = "a scene that another test plays"]
fn waits_for_one_who_is_killed() {
    context();
    let event = shared_event();
    std::fs::write(notes(), handle_of(event)).unwrap();
    say_ready();
    let deadline = Instant::now() + Duration::from_secs(20);
    while unsafe { cuEventQuery(event) } != Code::CUDA_ERROR_NOT_READY {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
    ok!(cuEventSynchronize(event));
}
