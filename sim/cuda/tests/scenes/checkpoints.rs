//! Scenes about processes that are locked, taken off the device and brought back.

use super::*;

type State = CUprocessState_enum;

fn state_of(pid: c_int) -> State {
    let mut state = State::CU_PROCESS_STATE_FAILED;
    ok!(cuCheckpointProcessGetState(pid, &mut state));
    state
}

fn lock_within(pid: c_int, milliseconds: c_uint) -> Code {
    let mut args: CUcheckpointLockArgs = unsafe { std::mem::zeroed() };
    args.timeoutMs = milliseconds;
    unsafe { cuCheckpointProcessLock(pid, &mut args) }
}

/// How often the other process has come round.
fn rounds() -> u64 {
    let text = std::fs::read_to_string(notes()).unwrap();
    text.trim().parse().unwrap_or(0)
}

fn stands_still() -> bool {
    let before = rounds();
    std::thread::sleep(Duration::from_millis(50));
    rounds() == before
}

fn goes_on() {
    let before = rounds();
    let deadline = Instant::now() + Duration::from_secs(10);
    while rounds() <= before {
        assert!(Instant::now() < deadline, "it did not go on in 10 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn target() -> c_int {
    std::env::var("SIM_TARGET").unwrap().parse().unwrap()
}

/// Calls again and again until its input ends; what it holds must be what it was.
#[test]
#[ignore = "a scene that another test plays"]
fn works_until_its_input_ends() {
    context();
    let memory = allocate(GIB);
    let end = memory + GIB as u64 - 4;
    ok!(cuMemsetD32_v2(memory, 0x1234_5678, 1));
    ok!(cuMemsetD32_v2(end, 0x9abc_def0, 1));
    let input = std::thread::spawn(|| std::io::read_to_string(std::io::stdin()));
    let mut round = 0u64;
    // Never half a number for the reader.
    let next = notes().with_extension("next");
    while !input.is_finished() {
        ok!(cuCtxSynchronize());
        round += 1;
        std::fs::write(&next, round.to_string()).unwrap();
        std::fs::rename(&next, notes()).unwrap();
        if round == 1 {
            say_ready();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let word_at = |at| {
        let mut word = 0u32;
        ok!(cuMemcpyDtoH_v2((&raw mut word).cast(), at, 4));
        word
    };
    assert_eq!(word_at(memory), 0x1234_5678);
    assert_eq!(word_at(end), 0x9abc_def0);
}

#[test]
#[ignore = "a scene that another test plays"]
fn takes_another_process_off_the_device_and_brings_it_back() {
    let pid = target();
    context();
    let before = free_bytes();
    assert_eq!(state_of(pid), State::CU_PROCESS_STATE_RUNNING);
    let none = null_mut();
    fails!(
        cuCheckpointProcessCheckpoint(pid, null_mut()),
        CUDA_ERROR_ILLEGAL_STATE
    );
    fails!(
        cuCheckpointProcessRestore(pid, null_mut()),
        CUDA_ERROR_ILLEGAL_STATE
    );
    fails!(
        cuCheckpointProcessUnlock(pid, null_mut()),
        CUDA_ERROR_ILLEGAL_STATE
    );
    fails!(
        cuCheckpointProcessGetState(pid, null_mut()),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut state = State::CU_PROCESS_STATE_FAILED;
    // The test itself computes nothing.
    let parent = std::os::unix::process::parent_id() as c_int;
    for stranger in [0, -1, c_int::MAX, parent] {
        fails!(
            cuCheckpointProcessGetState(stranger, &mut state),
            CUDA_ERROR_INVALID_VALUE
        );
    }
    let mut thread = 0;
    ok!(cuCheckpointProcessGetRestoreThreadId(pid, &mut thread));
    assert!(std::path::Path::new(&format!("/proc/{pid}/task/{thread}")).exists());

    goes_on();
    ok!(cuCheckpointProcessLock(pid, none));
    assert_eq!(state_of(pid), State::CU_PROCESS_STATE_LOCKED);
    assert!(stands_still());
    assert_eq!(lock_within(pid, 1), Code::CUDA_ERROR_ILLEGAL_STATE);
    assert_eq!(free_bytes(), before);

    ok!(cuCheckpointProcessCheckpoint(pid, null_mut()));
    assert_eq!(state_of(pid), State::CU_PROCESS_STATE_CHECKPOINTED);
    assert_eq!(free_bytes(), before + GIB);
    fails!(
        cuCheckpointProcessUnlock(pid, null_mut()),
        CUDA_ERROR_ILLEGAL_STATE
    );
    // Who has taken its place keeps it.
    let memory = allocate(before + GIB / 2);
    fails!(
        cuCheckpointProcessRestore(pid, null_mut()),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    assert_eq!(state_of(pid), State::CU_PROCESS_STATE_CHECKPOINTED);
    ok!(cuMemsetD8_v2(memory, 7, 64 * MIB));
    ok!(cuMemFree_v2(memory));

    let mut pair: CUcheckpointGpuPair = unsafe { std::mem::zeroed() };
    pair.newUuid.bytes[0] = 1;
    let mut args: CUcheckpointRestoreArgs = unsafe { std::mem::zeroed() };
    args.gpuPairsCount = 1;
    fails!(
        cuCheckpointProcessRestore(pid, &mut args),
        CUDA_ERROR_INVALID_VALUE
    );
    args.gpuPairs = &raw mut pair;
    fails!(
        cuCheckpointProcessRestore(pid, &mut args),
        CUDA_ERROR_NOT_SUPPORTED
    );
    unsafe { (*args.gpuPairs).newUuid = (*args.gpuPairs).oldUuid };
    ok!(cuCheckpointProcessRestore(pid, &mut args));
    assert_eq!(state_of(pid), State::CU_PROCESS_STATE_LOCKED);
    assert_eq!(free_bytes(), before);
    assert!(stands_still());
    ok!(cuCheckpointProcessUnlock(pid, null_mut()));
    assert_eq!(state_of(pid), State::CU_PROCESS_STATE_RUNNING);
    goes_on();
}

/// Leaves it so.
#[test]
#[ignore = "a scene that another test plays"]
fn takes_another_process_off_the_device_for_good() {
    let pid = target();
    ok!(cuInit(0));
    ok!(cuCheckpointProcessLock(pid, null_mut()));
    ok!(cuCheckpointProcessCheckpoint(pid, null_mut()));
}

/// Has work that does not end, and asks again and again whether it has.
#[test]
#[ignore = "a scene that another test plays"]
fn works_without_an_end() {
    context();
    let stream = stream(1);
    let _gate = Gate::close(stream);
    for round in 0u64.. {
        fails!(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
        std::fs::write(notes(), round.to_string()).unwrap();
        if round == 0 {
            say_ready();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "a scene that another test plays"]
fn waits_in_vain_for_another_process() {
    let pid = target();
    ok!(cuInit(0));
    assert_eq!(lock_within(pid, 100), Code::CUDA_ERROR_NOT_READY);
    assert_eq!(state_of(pid), State::CU_PROCESS_STATE_RUNNING);
    say_ready();
    let code = lock_within(pid, 0);
    unreachable!("{code:?}");
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_process_leaves_the_device_and_comes_back_by_itself() {
    context();
    let own = std::process::id() as c_int;
    let free = free_bytes();
    let memory = allocate(GIB);
    ok!(cuMemsetD8_v2(memory, 42, GIB));
    let (function, stream) = (function(c"spin_ns"), stream(1));
    spin(function, 300_000_000, stream);
    assert_eq!(lock_within(own, 20), Code::CUDA_ERROR_NOT_READY);
    assert_eq!(state_of(own), State::CU_PROCESS_STATE_RUNNING);
    fails!(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    // With all the time that it needs it is locked when its work is done.
    assert_eq!(lock_within(own, 0), Code::CUDA_SUCCESS);
    ok!(cuCheckpointProcessCheckpoint(own, null_mut()));
    ok!(cuCheckpointProcessRestore(own, null_mut()));
    ok!(cuCheckpointProcessUnlock(own, null_mut()));
    ok!(cuStreamQuery(stream));
    let mut byte = 0u8;
    ok!(cuMemcpyDtoH_v2((&raw mut byte).cast(), memory + 12345, 1));
    assert_eq!(byte, 42);
    // What others can reach stays: the process stays locked, and may be let go.
    let file = export(shareable(2 * MIB));
    assert_eq!(lock_within(own, 0), Code::CUDA_SUCCESS);
    fails!(
        cuCheckpointProcessCheckpoint(own, null_mut()),
        CUDA_ERROR_NOT_SUPPORTED
    );
    assert_eq!(state_of(own), State::CU_PROCESS_STATE_LOCKED);
    ok!(cuCheckpointProcessUnlock(own, null_mut()));
    assert_eq!(unsafe { libc::close(file) }, 0);
    ok!(cuMemFree_v2(memory));
    assert_eq!(free_bytes(), free - 2 * MIB);
}
