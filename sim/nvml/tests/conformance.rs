//! The management library over a `gpu` process of this test's own, function by function.
//!
//! The library is one for the whole process, so the tests take turns.

use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use ffi::nvml::*;
use parking_lot::{Mutex, MutexGuard};
use sim::client::Compute;
use sim::gpu::{self, Options};
use sim::proto::Command;
// Linked for the functions that it exports.
use sim_nvml as _;
use tempfile::TempDir;

const SUCCESS: nvmlReturn_t = nvmlReturn_t::NVML_SUCCESS;
const INVALID: nvmlReturn_t = nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT;
const TOO_SMALL: nvmlReturn_t = nvmlReturn_t::NVML_ERROR_INSUFFICIENT_SIZE;
const MIB: u64 = 1 << 20;

/// Makes one call of the library.
macro_rules! call {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: what is handed over is null, or a place or a list of the test's own and as long as
        // its count says.
        unsafe { $function($($argument),*) }
    }};
}

/// Whose turn it is.
static TURN: Mutex<()> = Mutex::new(());

/// Two devices of 8 GiB, and the library set up to find them.
struct Node {
    socket: PathBuf,
    _folder: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Node {
    fn start() -> Node {
        let turn = TURN.lock();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let socket = folder.path().join("gpu.sock");
        let options = Options {
            socket: socket.clone(),
            devices: 2,
            ..Options::default()
        };
        thread::spawn(move || gpu::run(options).expect("the hardware runs"));
        let begin = Instant::now();
        while Compute::connect_to(&socket).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(10), "no gpu process");
            thread::sleep(Duration::from_millis(1));
        }
        point_library_at(&socket);
        Node {
            socket,
            _folder: folder,
            _turn: turn,
        }
    }

    fn initialised() -> Node {
        let node = Node::start();
        assert_eq!(call!(nvmlInit_v2()), SUCCESS);
        node
    }

    /// A process (this one) with a context and `bytes` on device 0.
    fn holding(&self, bytes: u64) -> (Compute, u64) {
        let client = Compute::connect_to(&self.socket).expect("the gpu process answers");
        let context = client.open_context(0).expect("a context");
        client
            .allocate(0, bytes, context)
            .expect("the device is empty");
        (client, context)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        while call!(nvmlDeviceGetCount_v2(&mut 0)) == SUCCESS {
            call!(nvmlShutdown());
        }
    }
}

/// An environment variable that is set for as long as this lives.
struct Variable(&'static str);

impl Variable {
    fn set(name: &'static str, value: &str) -> Variable {
        // SAFETY: tests hold `TURN` here, and nothing else in this process reads the environment.
        unsafe { std::env::set_var(name, value) };
        Variable(name)
    }
}

impl Drop for Variable {
    fn drop(&mut self) {
        // SAFETY: as in `set`.
        unsafe { std::env::remove_var(self.0) };
    }
}

fn point_library_at(socket: &std::path::Path) {
    // SAFETY: tests hold `TURN` here, and nothing else in this process reads the environment.
    unsafe { std::env::set_var("SLUICE_SIM_SOCKET", socket) };
}

fn device(index: u32) -> nvmlDevice_t {
    let mut device = std::ptr::null_mut();
    assert_eq!(
        call!(nvmlDeviceGetHandleByIndex_v2(index, &mut device)),
        SUCCESS
    );
    device
}

fn text(ask: impl FnOnce(*mut c_char, u32) -> nvmlReturn_t) -> String {
    let mut buffer = [0; 96];
    assert_eq!(ask(buffer.as_mut_ptr(), buffer.len() as u32), SUCCESS);
    read(buffer.as_ptr()).to_string_lossy().into_owned()
}

/// What the library wrote, or a sentence of its own.
fn read<'a>(text: *const c_char) -> &'a CStr {
    // SAFETY: only used on what a call that succeeded has closed with a zero, while it is there.
    unsafe { CStr::from_ptr(text) }
}

fn index_of(device: nvmlDevice_t) -> u32 {
    let mut index = u32::MAX;
    assert_eq!(call!(nvmlDeviceGetIndex(device, &mut index)), SUCCESS);
    index
}

#[test]
fn without_a_gpu_process_there_is_no_driver_and_nothing_is_counted() {
    let _turn = TURN.lock();
    point_library_at("/nonexistent/gpu.sock".as_ref());
    let absent = nvmlReturn_t::NVML_ERROR_DRIVER_NOT_LOADED;
    assert_eq!(call!(nvmlInit_v2()), absent);
    assert_eq!(call!(nvmlInitWithFlags(0)), absent);
    let uninitialised = nvmlReturn_t::NVML_ERROR_UNINITIALIZED;
    assert_eq!(call!(nvmlDeviceGetCount_v2(&mut 0)), uninitialised);
    assert_eq!(
        call!(nvmlUnitGetLedState(
            std::ptr::null_mut(),
            std::ptr::null_mut()
        )),
        uninitialised
    );
    assert_eq!(call!(nvmlShutdown()), SUCCESS);
    assert!(!text(|at, length| call!(nvmlSystemGetNVMLVersion(at, length))).is_empty());
    let sentence = call!(nvmlErrorString(absent));
    assert!(read(sentence).to_bytes().len() > 5);
}

#[test]
fn null_mode_has_one_device_and_needs_no_gpu_process() {
    let _turn = TURN.lock();
    point_library_at("/nonexistent/gpu.sock".as_ref());
    let _null = Variable::set("SLUICE_SIM_NULL", "1");
    assert_eq!(call!(nvmlInit_v2()), SUCCESS);
    let mut count = 0;
    assert_eq!(call!(nvmlDeviceGetCount_v2(&mut count)), SUCCESS);
    let mut memory = nvmlMemory_t {
        total: 0,
        free: 0,
        used: 0,
    };
    assert_eq!(
        call!(nvmlDeviceGetMemoryInfo(device(0), &mut memory)),
        SUCCESS
    );
    assert_eq!((count, memory.total, memory.used), (1, 8192 * MIB, 0));
    assert_eq!(call!(nvmlShutdown()), SUCCESS);
}

#[test]
fn the_version_that_the_environment_names_is_the_one_reported() {
    let _node = Node::start();
    for (word, full, cuda) in [
        ("550", "550.163.01", 12040),
        ("535.1.2", "535.1.2", 12020),
        ("nonsense", "580.65.06", 13000),
    ] {
        let _version = Variable::set("SLUICE_SIM_DRIVER_VERSION", word);
        assert_eq!(call!(nvmlInit_v2()), SUCCESS);
        let mut version = 0;
        assert_eq!(
            call!(nvmlSystemGetCudaDriverVersion_v2(&mut version)),
            SUCCESS
        );
        assert_eq!(version, cuda, "{word}");
        let reported = text(|at, length| call!(nvmlSystemGetDriverVersion(at, length)));
        assert_eq!(reported, full);
        let own = text(|at, length| call!(nvmlSystemGetNVMLVersion(at, length)));
        assert_eq!(own, format!("{}.{full}", cuda / 1000));
        assert_eq!(call!(nvmlShutdown()), SUCCESS);
    }
}

#[test]
fn each_field_is_answered_by_itself() {
    let _node = Node::initialised();
    // SAFETY: plain numbers.
    let blank: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
    let mut fields = [
        NVML_FI_DEV_POWER_INSTANT,
        NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
        9999,
    ]
    .map(|id| nvmlFieldValue_t {
        fieldId: id,
        ..blank
    });
    let told = call!(nvmlDeviceGetFieldValues(device(0), 3, fields.as_mut_ptr()));
    assert_eq!(told, SUCCESS);
    let codes = fields.map(|field| field.nvmlReturn);
    let unknown = nvmlReturn_t::NVML_ERROR_NOT_SUPPORTED;
    assert_eq!(codes, [SUCCESS, SUCCESS, unknown]);
    // SAFETY: the library says that it is an unsigned number.
    let power_mw = unsafe { fields[0].value.uiVal };
    assert!(power_mw > 0);
    assert_eq!(
        call!(nvmlDeviceGetFieldValues(device(0), -1, fields.as_mut_ptr())),
        INVALID
    );
}

#[test]
fn initialisation_counts_and_the_last_shutdown_ends_it() {
    let _node = Node::initialised();
    assert_eq!(call!(nvmlInitWithFlags(1)), SUCCESS);
    assert_eq!(call!(nvmlShutdown()), SUCCESS);
    let mut count = 0;
    assert_eq!(call!(nvmlDeviceGetCount_v2(&mut count)), SUCCESS);
    assert_eq!(count, 2);
    assert_eq!(call!(nvmlShutdown()), SUCCESS);
    let ended = call!(nvmlDeviceGetCount_v2(&mut count));
    assert_eq!(ended, nvmlReturn_t::NVML_ERROR_UNINITIALIZED);
    assert_eq!(call!(nvmlInitWithFlags(1 << 20)), INVALID);
}

#[test]
fn a_device_is_found_by_every_name_it_has() {
    let _node = Node::initialised();
    let second = device(1);
    let uuid = text(|at, length| call!(nvmlDeviceGetUUID(second, at, length)));
    let serial = text(|at, length| call!(nvmlDeviceGetSerial(second, at, length)));
    let mut pci = MaybeUninit::<nvmlPciInfo_t>::zeroed();
    assert_eq!(
        call!(nvmlDeviceGetPciInfo_v3(second, pci.as_mut_ptr())),
        SUCCESS
    );
    // SAFETY: plain integers and characters.
    let pci = unsafe { pci.assume_init() };
    let addresses = [read(pci.busId.as_ptr()), read(pci.busIdLegacy.as_ptr())];
    assert_eq!(addresses[0], c"00000000:02:00.0");
    let named = |name: &str| CString::new(name).expect("no zero in a name");
    type Find = unsafe extern "C" fn(*const c_char, *mut nvmlDevice_t) -> nvmlReturn_t;
    let find = |ask: Find, name: &CStr| {
        let mut found = std::ptr::null_mut();
        assert_eq!(call!(ask(name.as_ptr(), &mut found)), SUCCESS, "{name:?}");
        index_of(found)
    };
    assert_eq!(find(nvmlDeviceGetHandleByUUID, &named(&uuid)), 1);
    assert_eq!(find(nvmlDeviceGetHandleBySerial, &named(&serial)), 1);
    for address in addresses {
        assert_eq!(find(nvmlDeviceGetHandleByPciBusId_v2, address), 1);
    }
    let mut found = std::ptr::null_mut();
    let absent = call!(nvmlDeviceGetHandleByUUID(c"GPU-0".as_ptr(), &mut found));
    assert_eq!(absent, nvmlReturn_t::NVML_ERROR_NOT_FOUND);
    assert_eq!(call!(nvmlDeviceGetHandleByIndex_v2(2, &mut found)), INVALID);
    assert!(found.is_null());
}

#[test]
fn what_is_no_handle_is_refused_and_so_is_a_place_that_is_none() {
    let _node = Node::initialised();
    let mut index = 7;
    for handle in [0usize, 1, 2, 0x51C0_0001, 0x51C0_0080, usize::MAX] {
        assert_eq!(
            call!(nvmlDeviceGetIndex(handle as nvmlDevice_t, &mut index)),
            INVALID
        );
    }
    assert_eq!(index, 7);
    let first = device(0);
    assert_eq!(
        call!(nvmlDeviceGetIndex(first, std::ptr::null_mut())),
        INVALID
    );
    let mut short = [7; 4];
    let refused = call!(nvmlDeviceGetName(first, short.as_mut_ptr(), 4));
    assert_eq!((refused, short), (TOO_SMALL, [7; 4]));
}

#[test]
fn both_versions_of_the_memory_question_agree_with_the_hardware() {
    let node = Node::initialised();
    let _held = node.holding(512 * MIB);
    let first = device(0);
    let mut old = nvmlMemory_t {
        total: 0,
        free: 0,
        used: 0,
    };
    assert_eq!(call!(nvmlDeviceGetMemoryInfo(first, &mut old)), SUCCESS);
    assert_eq!(
        (old.total, old.used, old.free),
        (8192 * MIB, 512 * MIB, 7680 * MIB)
    );
    let mut new = nvmlMemory_v2_t {
        version: 0x0200_0028,
        total: 0,
        reserved: 0,
        free: 0,
        used: 0,
    };
    assert_eq!(call!(nvmlDeviceGetMemoryInfo_v2(first, &mut new)), SUCCESS);
    assert_eq!(
        (new.version, new.total, new.free),
        (0x0200_0028, old.total, old.free)
    );
    assert_eq!(new.reserved + new.used + new.free, new.total);
    assert_eq!(new.used, 512 * MIB);
}

#[test]
fn a_structure_of_an_unknown_version_is_refused_untouched() {
    let _node = Node::initialised();
    for version in [0, 0x0100_0028, 0x0200_0020, 0x0300_0028] {
        let mut info = nvmlMemory_v2_t {
            version,
            total: 1,
            reserved: 1,
            free: 1,
            used: 1,
        };
        let refused = call!(nvmlDeviceGetMemoryInfo_v2(device(0), &mut info));
        assert_eq!(refused, nvmlReturn_t::NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        assert_eq!((info.version, info.total, info.used), (version, 1, 1));
    }
}

#[test]
fn a_process_list_says_how_long_it_is_before_it_is_written() {
    let node = Node::initialised();
    let _held = node.holding(64 * MIB);
    let (first, second) = (device(0), device(1));
    let null = std::ptr::null_mut();

    let mut count = 0;
    let told = call!(nvmlDeviceGetComputeRunningProcesses_v3(
        first, &mut count, null
    ));
    assert_eq!((told, count), (TOO_SMALL, 1));
    let told = call!(nvmlDeviceGetComputeRunningProcesses_v3(
        first, &mut count, null
    ));
    assert_eq!(told, INVALID, "a place is promised and there is none");
    let mut count = 4;
    let none = call!(nvmlDeviceGetComputeRunningProcesses_v3(
        second, &mut count, null
    ));
    assert_eq!((none, count), (SUCCESS, 0));

    let blank = nvmlProcessInfo_t {
        pid: 0,
        usedGpuMemory: 0,
        gpuInstanceId: 0,
        computeInstanceId: 0,
    };
    let (mut infos, mut count) = ([blank; 4], 4);
    let told = call!(nvmlDeviceGetComputeRunningProcesses_v3(
        first,
        &mut count,
        infos.as_mut_ptr()
    ));
    assert_eq!((told, count), (SUCCESS, 1));
    assert_eq!(
        (infos[0].pid, infos[0].usedGpuMemory),
        (std::process::id(), 64 * MIB)
    );
    assert_eq!((infos[0].gpuInstanceId, infos[1].pid), (u32::MAX, 0));

    let mut old = [nvmlProcessInfo_v1_t {
        pid: 0,
        usedGpuMemory: 0,
    }; 2];
    let mut count = 2;
    let told = call!(nvmlDeviceGetComputeRunningProcesses(
        first,
        &mut count,
        old.as_mut_ptr()
    ));
    assert_eq!((told, count), (SUCCESS, 1));
    assert_eq!((old[0].usedGpuMemory, old[1].pid), (64 * MIB, 0));
    let told = call!(nvmlDeviceGetGraphicsRunningProcesses_v3(
        first,
        &mut count,
        infos.as_mut_ptr()
    ));
    assert_eq!((told, count), (SUCCESS, 0));
}

#[test]
fn the_detailed_process_list_follows_its_mode() {
    let node = Node::initialised();
    let _held = node.holding(64 * MIB);
    let blank = nvmlProcessDetail_v1_t {
        pid: 0,
        usedGpuMemory: 0,
        gpuInstanceId: 0,
        computeInstanceId: 0,
        usedGpuCcProtectedMemory: 0,
    };
    let mut entries = [blank; 2];
    let mut ask = |version, mode, places| {
        let mut list = nvmlProcessDetailList_v1_t {
            version,
            mode,
            numProcArrayEntries: places,
            procArray: if places == 0 {
                std::ptr::null_mut()
            } else {
                entries.as_mut_ptr()
            },
        };
        let told = call!(nvmlDeviceGetRunningProcessDetailList(device(0), &mut list));
        (told, list.numProcArrayEntries)
    };
    assert_eq!(ask(0x0100_0018, 0, 0), (TOO_SMALL, 1));
    assert_eq!(ask(0x0100_0018, 0, 2), (SUCCESS, 1));
    assert_eq!(ask(0x0100_0018, 1, 2), (SUCCESS, 0));
    assert_eq!(ask(0x0100_0018, 9, 2).0, INVALID);
    assert_eq!(
        ask(1, 0, 2).0,
        nvmlReturn_t::NVML_ERROR_ARGUMENT_VERSION_MISMATCH
    );
    assert_eq!(
        (entries[0].pid, entries[0].usedGpuMemory),
        (std::process::id(), 64 * MIB)
    );
}

#[test]
fn a_device_that_works_is_seen_to_work_and_so_is_the_process_it_works_for() {
    let node = Node::initialised();
    let (client, context) = node.holding(MIB);
    let first = device(0);
    let mut rates = nvmlUtilization_t {
        gpu: 77,
        memory: 77,
    };
    assert_eq!(
        call!(nvmlDeviceGetUtilizationRates(first, &mut rates)),
        SUCCESS
    );
    assert_eq!(rates.gpu, 0, "nothing has run yet");

    let second = Duration::from_secs(30).as_nanos() as u64;
    let work = [
        Command::Open {
            context,
            priority: 0,
        },
        Command::Kernel {
            duration_ns: second,
            warps: 1,
        },
    ];
    client
        .submit(0, &AtomicU64::new(0), &work)
        .expect("the gpu process takes work");
    // Two sampling periods: the second of them is busy from end to end.
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(150));
        assert_eq!(
            call!(nvmlDeviceGetUtilizationRates(first, &mut rates)),
            SUCCESS
        );
    }
    assert!(rates.gpu > 90, "{}", rates.gpu);

    let blank = nvmlProcessUtilizationSample_t {
        pid: 0,
        timeStamp: 0,
        smUtil: 0,
        memUtil: 0,
        encUtil: 0,
        decUtil: 0,
    };
    let (mut samples, mut count) = ([blank; 8], 0);
    let null = std::ptr::null_mut();
    let told = call!(nvmlDeviceGetProcessUtilization(first, null, &mut count, 0));
    assert_eq!((told, count), (TOO_SMALL, 1));
    let told = call!(nvmlDeviceGetProcessUtilization(
        first,
        samples.as_mut_ptr(),
        &mut count,
        0
    ));
    assert_eq!((told, count), (SUCCESS, 1));
    assert_eq!(samples[0].pid, std::process::id());
    assert!(samples[0].smUtil > 90, "{}", samples[0].smUtil);
    let since = samples[0].timeStamp;
    let told = call!(nvmlDeviceGetProcessUtilization(
        device(1),
        samples.as_mut_ptr(),
        &mut count,
        since
    ));
    assert_eq!(
        told,
        nvmlReturn_t::NVML_ERROR_NOT_FOUND,
        "nobody is on the other device"
    );
}

#[test]
fn a_wait_for_events_ends_with_its_time_or_with_its_set() {
    let _node = Node::initialised();
    let mut set = std::ptr::null_mut();
    assert_eq!(call!(nvmlEventSetCreate(&mut set)), SUCCESS);
    assert_eq!(call!(nvmlDeviceRegisterEvents(device(0), 8, set)), SUCCESS);
    let mut event = MaybeUninit::<nvmlEventData_t>::zeroed();
    let begin = Instant::now();
    let waited = call!(nvmlEventSetWait_v2(set, event.as_mut_ptr(), 30));
    assert_eq!(waited, nvmlReturn_t::NVML_ERROR_TIMEOUT);
    assert!(begin.elapsed() >= Duration::from_millis(30));

    let address = set as usize;
    let waiter = thread::spawn(move || {
        let mut event = MaybeUninit::<nvmlEventData_t>::zeroed();
        let set = address as nvmlEventSet_t;
        call!(nvmlEventSetWait_v2(set, event.as_mut_ptr(), u32::MAX))
    });
    thread::sleep(Duration::from_millis(20));
    assert_eq!(call!(nvmlEventSetFree(set)), SUCCESS);
    assert_eq!(waiter.join().expect("no panic"), INVALID);
    assert_eq!(call!(nvmlEventSetFree(set)), INVALID);
}

#[test]
fn a_device_that_falls_off_the_bus_is_lost_and_told_of_once() {
    let node = Node::initialised();
    let (first, second) = (device(0), device(1));
    let mut set = std::ptr::null_mut();
    assert_eq!(call!(nvmlEventSetCreate(&mut set)), SUCCESS);
    for device in [first, second] {
        assert_eq!(call!(nvmlDeviceRegisterEvents(device, 8, set)), SUCCESS);
    }
    // Asks for other kinds only, and hears of nothing.
    let mut other = std::ptr::null_mut();
    assert_eq!(call!(nvmlEventSetCreate(&mut other)), SUCCESS);
    assert_eq!(call!(nvmlDeviceRegisterEvents(first, 4, other)), SUCCESS);
    let address = set as usize;
    let waiter = thread::spawn(move || {
        let mut event = MaybeUninit::<nvmlEventData_t>::zeroed();
        let set = address as nvmlEventSet_t;
        let told = call!(nvmlEventSetWait_v2(set, event.as_mut_ptr(), 10_000));
        assert_eq!(told, SUCCESS);
        // SAFETY: the call has filled it.
        let event = unsafe { event.assume_init() };
        (event.device as usize, event.eventType, event.eventData)
    });
    let client = Compute::connect_to(&node.socket).expect("the gpu process answers");
    client.lose(0, 79).expect("the device is there");
    assert_eq!(waiter.join().expect("no panic"), (first as usize, 8, 79));
    let mut event = MaybeUninit::<nvmlEventData_t>::zeroed();
    for set in [set, other] {
        let waited = call!(nvmlEventSetWait_v2(set, event.as_mut_ptr(), 30));
        assert_eq!(waited, nvmlReturn_t::NVML_ERROR_TIMEOUT);
    }
    let lost = nvmlReturn_t::NVML_ERROR_GPU_IS_LOST;
    let mut memory = nvmlMemory_t {
        total: 7,
        free: 7,
        used: 7,
    };
    assert_eq!(call!(nvmlDeviceGetMemoryInfo(first, &mut memory)), lost);
    assert_eq!((memory.total, memory.free, memory.used), (7, 7, 7));
    let mut handle = std::ptr::null_mut();
    assert_eq!(call!(nvmlDeviceGetHandleByIndex_v2(0, &mut handle)), lost);
    assert!(handle.is_null());
    assert_eq!(call!(nvmlDeviceRegisterEvents(first, 8, set)), lost);
    assert_eq!(call!(nvmlDeviceGetMemoryInfo(second, &mut memory)), SUCCESS);
    let mut count = 0;
    assert_eq!(call!(nvmlDeviceGetCount_v2(&mut count)), SUCCESS);
    assert_eq!(count, 2);
}

#[test]
fn a_forked_child_asks_over_a_connection_of_its_own() {
    let node = Node::initialised();
    let _held = node.holding(32 * MIB);
    let first = device(0);
    // SAFETY: the child makes calls of the library and ends without unwinding into the test; no
    // other thread is inside the library while this test has its turn.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut memory = nvmlMemory_t {
            total: 0,
            free: 0,
            used: 0,
        };
        let told = call!(nvmlDeviceGetMemoryInfo(first, &mut memory));
        let is_right = told == SUCCESS && memory.used == 32 * MIB;
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if is_right { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn a_gpu_process_that_goes_away_has_lost_its_devices() {
    let node = Node::initialised();
    let first = device(0);
    std::fs::remove_file(&node.socket).expect("the gpu process listens there");
    let begin = Instant::now();
    let mut memory = nvmlMemory_t {
        total: 0,
        free: 0,
        used: 0,
    };
    loop {
        match call!(nvmlDeviceGetMemoryInfo(first, &mut memory)) {
            SUCCESS => thread::sleep(Duration::from_millis(20)),
            refused => break assert_eq!(refused, nvmlReturn_t::NVML_ERROR_GPU_IS_LOST),
        }
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "the devices are still there"
        );
    }
}
