//! At every instant that can be looked at, what is accounted is what the hardware holds.
//!
//! Random programs over every family of memory calls, right and wrong, by several processes of two
//! tenants on two devices that together promise more than there is, so that both the caps and the
//! driver refuse. Processes are killed, end, and fork in the middle; caps move; calls of the driver fail
//! out of turn; memory is lent from process to process. After each step the accounts of tenants and of
//! processes must equal what the hardware says.
//!
//! `SLUICE_EXACT_PROGRAMS=5000 cargo test --test exactness` runs as many as one likes. A program that
//! fails is shrunk, and printed as the steps of `tests/client`.

mod support;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;
use sim::client::Gpu;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::stepper::number;
use support::{MIB, Node, OUT_OF_MEMORY, PATIENCE, Program, Setup, Stepper, Tenant};

/// Programs that are run where the environment does not say.
const PROGRAMS: u32 = 400;
/// Memory of each device: less than the caps together.
const DEVICE: &str = "256MiB";
/// Devices.
const DEVICES: usize = 2;
/// Tenants, and their caps on each device, in MiB.
const TENANTS: [(&str, u64); 2] = [("left", 128), ("right", 192)];
/// Whose each process is.
const PROCESSES: [usize; 3] = [0, 0, 1];
/// Values that a process plays with.
const NAMES: u8 = 5;
/// Room of each name in the reserved range, in MiB.
const ROOM: u64 = 64;
/// How soon memory of a dead process must be back.
const GIVEN_BACK: Duration = Duration::from_secs(1);

/// What goes wrong in the driver that a program runs on, as `SLUICE_SIM_FAULTS` reads it.
const FAULTS: [&str; 8] = [
    "",
    "cuMemAlloc_v2@3=CUDA_ERROR_OUT_OF_MEMORY",
    "cuMemFree_v2@2=CUDA_ERROR_UNKNOWN; cuMemFree_v2@3=CUDA_ERROR_UNKNOWN",
    "cuMemCreate@2=CUDA_ERROR_OUT_OF_MEMORY; cuMemRelease@2=CUDA_ERROR_UNKNOWN",
    "cuMemMap@1=CUDA_ERROR_OUT_OF_MEMORY; cuMemUnmap@1=CUDA_ERROR_UNKNOWN",
    "cuMemAllocAsync@2=CUDA_ERROR_OUT_OF_MEMORY; cuMemFreeAsync@2=CUDA_ERROR_UNKNOWN",
    "cuArrayCreate_v2@2=CUDA_ERROR_OUT_OF_MEMORY; cuArrayDestroy@1=CUDA_ERROR_UNKNOWN",
    "cuMemExportToShareableHandle@2=CUDA_ERROR_UNKNOWN; cuMemImportFromShareableHandle@1=CUDA_ERROR_UNKNOWN",
];

/// What else steps name: pools, contexts, descriptors, what another process lent, graphs and their memory.
const OTHER_NAMES: [&str; 11] = [
    "p0",
    "p1",
    "c0",
    "c1",
    "f0",
    "f1",
    "lent",
    "g0",
    "g1",
    "g0.memory",
    "g1.memory",
];

/// One step of a program: who does what.
#[derive(Clone)]
enum Step {
    /// `from` lends `name` to `to`, which opens and closes it.
    Lend {
        from: usize,
        to: usize,
        name: u8,
    },
    Call {
        who: usize,
        words: String,
    },
    Kill {
        who: usize,
    },
    Quit {
        who: usize,
    },
    Cap {
        tenant: usize,
        mib: u64,
    },
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lend { from, to, name } => {
                write!(f, "process {from} lends v{name} to process {to}")
            }
            Self::Call { who, words } => write!(f, "process {who}: {words}"),
            Self::Kill { who } => write!(f, "process {who} is killed"),
            Self::Quit { who } => write!(f, "process {who} ends"),
            Self::Cap { tenant, mib } => {
                write!(f, "the cap of {} becomes {mib} MiB", TENANTS[*tenant].0)
            }
        }
    }
}

fn name() -> impl Strategy<Value = u8> {
    0..NAMES
}

fn kib() -> impl Strategy<Value = u64> {
    prop_oneof![1..64u64, 1..4096u64, 1..100_000u64]
}

fn device() -> impl Strategy<Value = usize> {
    0..DEVICES
}

/// Takes memory, of one family or another.
fn takes() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (name(), kib()).prop_map(|(v, kib)| format!("alloc v{v} {kib}KiB")),
        1 => (name(), kib()).prop_map(|(v, kib)| format!("alloc-v1 v{v} {kib}KiB")),
        2 => (name(), 1..5000u64, 1..8000u64).prop_map(|(v, w, h)| format!("pitch v{v} {w} {h} 4")),
        2 => (name(), kib()).prop_map(|(v, kib)| format!("managed v{v} {kib}KiB")),
        3 => (name(), kib()).prop_map(|(v, kib)| format!("pool-alloc v{v} {kib}KiB")),
        3 => (name(), kib(), 0..2u8).prop_map(|(v, kib, p)| format!("pool-alloc v{v} {kib}KiB p{p}")),
        4 => (name(), 1..24u64, device())
            .prop_map(|(v, chunks, d)| format!("create v{v} {}MiB device {d}", 2 * chunks)),
        1 => (name(), 1..24u64)
            .prop_map(|(v, chunks)| format!("create v{v} {}MiB host 0", 2 * chunks)),
        3 => arrays(),
        4 => graphs(),
        2 => (name(), 1..12u64)
            .prop_map(|(v, chunks)| format!("share-create v{v} {}MiB", 2 * chunks)),
    ]
}

/// Graphs with memory of their own: made, launched, trimmed.
fn graphs() -> impl Strategy<Value = String> {
    let graph = || 0..2u8;
    let ends = proptest::sample::select(&["free", "keep", "auto"][..]);
    prop_oneof![
        3 => (graph(), device(), 1..40u64, ends)
            .prop_map(|(g, d, mib, ends)| format!("graph-make g{g} {d} {}KiB {ends}", mib * 700)),
        5 => graph().prop_map(|g| format!("graph-launch g{g}")),
        1 => graph().prop_map(|g| format!("graph-upload g{g}")),
        2 => graph().prop_map(|g| format!("graph-free g{g}")),
        1 => graph().prop_map(|g| format!("graph-destroy g{g}")),
        1 => device().prop_map(|d| format!("graph-trim {d}")),
    ]
}

/// Arrays of all kinds, among them impossible ones and those without memory of their own.
fn arrays() -> impl Strategy<Value = String> {
    let side = || 0..2000u64;
    prop_oneof![
        3 => (name(), side(), side()).prop_map(|(v, w, h)| format!("array v{v} {w} {h}")),
        1 => (name(), side(), side()).prop_map(|(v, w, h)| format!("array-v1 v{v} {w} {h}")),
        2 => (name(), side(), 0..200u64, 0..20u64)
            .prop_map(|(v, w, h, d)| format!("array-3d v{v} {w} {h} {d} 0")),
        1 => (name(), side(), side()).prop_map(|(v, w, h)| format!("array-3d v{v} {w} {h} 0 128")),
        2 => (name(), side(), side(), 0..6u64)
            .prop_map(|(v, w, h, levels)| format!("array-mipmapped v{v} {w} {h} {levels}")),
    ]
}

/// Descriptors of physical memory: made, closed, made into handles again.
fn descriptors() -> impl Strategy<Value = String> {
    let file = || 0..2u8;
    prop_oneof![
        3 => (file(), name()).prop_map(|(f, v)| format!("share-export f{f} v{v}")),
        2 => (file(), name()).prop_map(|(f, v)| format!("share-import v{v} f{f}")),
        3 => file().prop_map(|f| format!("share-close f{f}")),
    ]
}

/// Gives memory back, whatever the value is; or moves it.
fn gives() -> impl Strategy<Value = String> {
    let at = |v: u8| u64::from(v) * ROOM * MIB;
    prop_oneof![
        12 => name().prop_map(|v| format!("give-back v{v}")),
        2 => name().prop_map(|v| format!("free v{v}")),
        1 => name().prop_map(|v| format!("free-v1 v{v}")),
        2 => name().prop_map(|v| format!("pool-free v{v}")),
        1 => name().prop_map(|v| format!("release v{v}")),
        1 => (name(), 1..24u64)
            .prop_map(move |(v, chunks)| format!("map range {} v{v} {}MiB", at(v), 2 * chunks)),
        4 => name().prop_map(move |v| format!("map range {} v{v} whole", at(v))),
        4 => name().prop_map(move |v| format!("unmap range {} whole", at(v))),
        2 => (name(), name()).prop_map(move |(v, m)| format!("retain-at v{v} range {}", at(m))),
        1 => name().prop_map(|v| format!("array-destroy v{v}")),
        1 => name().prop_map(|v| format!("array-mipmapped-destroy v{v}")),
        3 => descriptors(),
        1 => (0..2u8).prop_map(|p| format!("pool-destroy p{p}")),
        1 => (0..2u8, 0..40u64).prop_map(|(p, mib)| format!("pool-trim p{p} {mib}MiB")),
    ]
}

/// Changes what later calls mean.
fn moves() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => device().prop_map(|d| format!("context {d}")),
        1 => device().prop_map(|d| format!("context-release {d}")),
        1 => device().prop_map(|d| format!("context-reset {d}")),
        1 => (0..2u8, device()).prop_map(|(c, d)| format!("context-create c{c} {d}")),
        1 => (0..2u8).prop_map(|c| format!("context-destroy c{c}")),
        1 => Just("context-none".to_owned()),
        1 => Just("context-attach".to_owned()),
        1 => (0..2u8).prop_map(|c| format!("context-detach c{c}")),
        2 => (0..2u8, device()).prop_map(|(p, d)| format!("pool-create p{p} {d}")),
        1 => (0..2u8, device()).prop_map(|(p, d)| format!("pool-current p{p} {d}")),
        1 => (0..2u8).prop_map(|p| format!("pool-keep-all p{p}")),
        1 => Just("fork exit".to_owned()),
        1 => Just("fork _exit".to_owned()),
        1 => Just("fork crash".to_owned()),
        1 => name().prop_map(|v| format!("fork free v{v}")),
        1 => (name(), kib()).prop_map(|(v, kib)| format!("fork alloc v{v} {kib}KiB")),
        1 => (name(), kib()).prop_map(|(v, kib)| format!("thread alloc v{v} {kib}KiB")),
        1 => name().prop_map(|v| format!("together free v{v}")),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let who = || 0..PROCESSES.len();
    let call = |(who, words)| Step::Call { who, words };
    prop_oneof![
        12 => (who(), takes()).prop_map(call),
        10 => (who(), gives()).prop_map(call),
        4 => (who(), moves()).prop_map(call),
        3 => (who(), who(), name()).prop_map(|(from, to, name)| Step::Lend { from, to, name }),
        1 => who().prop_map(|who| Step::Kill { who }),
        1 => who().prop_map(|who| Step::Quit { who }),
        1 => (0..TENANTS.len(), 8..256u64).prop_map(|(tenant, mib)| Step::Cap { tenant, mib }),
    ]
}

/// Memory that in the end only a descriptor holds, and then nothing.
fn lingering() -> impl Strategy<Value = Vec<Step>> {
    (0..PROCESSES.len(), name(), 0..2u8, 1..12u64).prop_map(|(who, v, f, chunks)| {
        let words = [
            format!("share-create v{v} {}MiB", 2 * chunks),
            format!("share-export f{f} v{v}"),
            format!("release v{v}"),
            format!("share-close f{f}"),
        ];
        words.map(|words| Step::Call { who, words }).into()
    })
}

/// A graph that is made, and launched some times before something else happens.
fn launched() -> impl Strategy<Value = Vec<Step>> {
    let ends = proptest::sample::select(&["free", "keep", "auto"][..]);
    (
        0..PROCESSES.len(),
        0..2u8,
        0..DEVICES,
        1..24_000u64,
        ends,
        1..4usize,
    )
        .prop_map(|(who, g, device, kib, ends, times)| {
            let mut words = vec![
                format!("context {device}"),
                format!("graph-make g{g} {device} {kib}KiB {ends}"),
            ];
            words.extend(vec![format!("graph-launch g{g}"); times]);
            let call = |words| Step::Call { who, words };
            words.into_iter().map(call).collect()
        })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let some =
        prop_oneof![30 => step().prop_map(|step| vec![step]), 1 => lingering(), 1 => launched()];
    proptest::collection::vec(some, 1..48).prop_map(|steps| steps.concat())
}

/// What happened so far, to see that programs do not miss what they are for.
#[derive(Debug, Default)]
struct Seen {
    steps: u64,
    granted: u64,
    refused: u64,
    wrong: u64,
    deaths: u64,
    arrays: u64,
    shared: u64,
    lent: u64,
    graphs: u64,
}

/// A process, and the sizes that its later steps need.
struct Process {
    stepper: Stepper,
    /// What gives a value back, where it was good.
    verbs: BTreeMap<String, &'static str>,
    handles: BTreeMap<String, u64>,
    mapped: BTreeMap<String, u64>,
    /// Descriptors that are open, by name.
    files: BTreeMap<String, i64>,
}

impl Process {
    fn start(tenant: &Tenant, faults: &str) -> Self {
        let mut command = tenant.command(Program::Stepper.path());
        let mut stepper = Stepper::start(command.env("SLUICE_SIM_FAULTS", faults));
        let mut steps = vec![
            "init".to_owned(),
            "context 0".to_owned(),
            format!("reserve range {}MiB", u64::from(NAMES) * ROOM),
        ];
        let names = (0..NAMES).map(|v| format!("v{v}"));
        let names = names.chain(OTHER_NAMES.map(str::to_owned));
        steps.extend(names.map(|name| format!("name {name} 0xdead0000")));
        for step in &steps {
            stepper.begin(step);
        }
        for step in &steps {
            let answer = stepper.answer(step, PATIENCE);
            assert_eq!(number(&answer, "rc"), 0, "\"{step}\": {answer}");
        }
        Self {
            stepper,
            verbs: BTreeMap::new(),
            handles: BTreeMap::new(),
            mapped: BTreeMap::new(),
            files: BTreeMap::new(),
        }
    }

    /// Does a step and waits for all work; the step's answer.
    fn call(&mut self, words: &str) -> Value {
        let words = self.whole(words);
        // A number that is closed twice may be another file's by then.
        if let Some(name) = words.strip_prefix("share-close ")
            && self.files.remove(name).is_none()
        {
            return serde_json::json!({ "rc": -1 });
        }
        self.stepper.begin(&words);
        self.stepper.begin("synchronize");
        let answer = self.stepper.answer(&words, PATIENCE);
        self.stepper.answer("synchronize", PATIENCE);
        // That a descriptor was closed is seen when somebody asks.
        if words.starts_with("share-close") && self.stepper.code("info") != 0 {
            self.stepper.ok("context 0");
            self.stepper.ok("info");
        }
        if answer["rc"] == 0 {
            self.remember(&words);
            if let Some(name) = words.strip_prefix("share-export ") {
                let name = name.split(' ').next().unwrap_or_default();
                self.files.insert(name.to_owned(), number(&answer, "file"));
            }
        }
        answer
    }

    /// Puts sizes in the place of "whole", and the right verb in that of "give-back".
    fn whole(&self, words: &str) -> String {
        let parts: Vec<&str> = words.split(' ').collect();
        let size = match parts[..] {
            ["map", _, _, name, "whole"] => self.handles.get(name),
            ["unmap", _, at, "whole"] => self.mapped.get(at),
            ["give-back", name] => {
                let verb = self.verbs.get(name).copied().unwrap_or("free");
                return format!("{verb} {name}");
            }
            _ => return words.to_owned(),
        };
        words.replace("whole", &size.unwrap_or(&(2 * MIB)).to_string())
    }

    fn remember(&mut self, words: &str) {
        let parts: Vec<&str> = words.split(' ').collect();
        let bytes = |text: &str| match text.strip_suffix("MiB") {
            Some(mib) => mib.parse::<u64>().map(|mib| mib * MIB),
            None => text.parse(),
        };
        if let [took, name, ..] = parts[..] {
            let verb = match took {
                "alloc" | "alloc-v1" | "pitch" | "managed" => "free",
                "pool-alloc" => "pool-free",
                "create" | "retain-at" | "share-create" | "share-import" => "release",
                "array" | "array-v1" | "array-3d" => "array-destroy",
                "array-mipmapped" => "array-mipmapped-destroy",
                _ => "",
            };
            if !verb.is_empty() {
                self.verbs.insert(name.to_owned(), verb);
            }
        }
        match parts[..] {
            ["create" | "share-create", name, size, ..] => {
                let size = bytes(size).expect("a size of ours");
                self.handles.insert(name.to_owned(), size);
            }
            ["map", _, at, _, size] => {
                let size = bytes(size).expect("a size of ours");
                self.mapped.insert(at.to_owned(), size);
            }
            _ => {}
        }
    }
}

/// Lends linear memory by an IPC handle, and physical memory by a descriptor, whichever `name` is; what the
/// opening answered, if it came to that. Whoever opens it closes it again, and never pays.
fn lend(processes: &mut [Process], from: usize, to: usize, name: u8) -> Option<i64> {
    let lender = &mut processes[from].stepper;
    let handle = lender.step(&format!("share-ipc v{name}"));
    if handle["rc"] == 0 {
        let digits = handle["handle"].as_str().unwrap_or_default();
        let taker = &mut processes[to].stepper;
        let code = taker.code(&format!("share-ipc-open lent {digits}"));
        if code == 0 {
            taker.ok("share-ipc-close lent");
        }
        return Some(code);
    }
    let file = *processes[from].files.get(&format!("f{}", name % 2))?;
    let pid = processes[from].stepper.pid();
    let taker = &mut processes[to].stepper;
    taker.ok(&format!("share-fetch lent {pid} {file}"));
    let code = taker.code("share-import handle lent");
    taker.ok("share-close lent");
    if code == 0 {
        taker.step("release handle");
    }
    Some(code)
}

/// What everything stands on, for all programs.
struct Stage {
    node: Node,
    gpu: Gpu,
    tenants: Vec<Tenant>,
    seen: RefCell<Seen>,
}

impl Stage {
    fn new() -> Self {
        let node = Node::with(&Setup {
            devices: DEVICES as u32,
            memory: DEVICE,
            overcommit: 2.0,
            ..Setup::default()
        });
        let tenants = TENANTS.map(|(name, mib)| node.tenant(name, &format!("{mib}MiB")));
        Self {
            gpu: Gpu::connect_to(&node.hardware.socket()).expect("the hardware is there"),
            tenants: tenants.into(),
            node,
            seen: RefCell::default(),
        }
    }

    /// Runs a program from its beginning to its end.
    fn run(&self, faults: &str, program: &[Step]) -> Result<(), TestCaseError> {
        for (tenant, (_, mib)) in TENANTS.iter().enumerate() {
            self.set_cap(tenant, *mib);
        }
        let start = |who: usize| Process::start(&self.tenants[PROCESSES[who]], faults);
        let mut processes: Vec<Process> = (0..PROCESSES.len()).map(start).collect();
        let mut before = self.accounts();
        for step in program {
            let code = match step {
                Step::Call { who, words } => processes[*who].call(words)["rc"].as_i64(),
                Step::Lend { from, to, name } => lend(&mut processes, *from, *to, *name),
                Step::Kill { who } | Step::Quit { who } => {
                    let gone = std::mem::replace(&mut processes[*who], start(*who));
                    let pid = gone.stepper.pid();
                    match step {
                        Step::Kill { .. } => gone.stepper.kill(),
                        _ => gone.stepper.quit(),
                    }
                    self.wait_for_end(pid)?;
                    None
                }
                Step::Cap { tenant, mib } => {
                    self.set_cap(*tenant, *mib);
                    None
                }
            };
            self.count(step, code);
            let now = self.agreed_soon().map_err(|difference| {
                TestCaseError::fail(format!("after \"{step:?}\" ({code:?}): {difference}"))
            })?;
            // What the driver made too large and then does not take back is held, and seen.
            let keeps = faults.contains("cuMemFree");
            for ((name, device), (used, cap)) in now.tenants.iter().filter(|_| !keeps) {
                let former = before.tenants.get(&(name.clone(), *device));
                let most = (*cap).max(former.map_or(0, |(used, _)| *used));
                prop_assert!(
                    *used <= most,
                    "after \"{:?}\": {} holds {} on device {}, under a cap of {}",
                    step,
                    name,
                    used,
                    device,
                    cap
                );
            }
            before = now;
        }
        for process in processes {
            let pid = process.stepper.pid();
            process.stepper.quit();
            self.wait_for_end(pid)?;
        }
        let left = self.agreed_soon().map_err(TestCaseError::fail)?;
        prop_assert!(
            left.tenants.values().all(|(used, _)| *used == 0),
            "{left:?}"
        );
        Ok(())
    }

    /// Waits until neither the daemon nor the hardware knows of a process that has ended.
    fn wait_for_end(&self, pid: u32) -> Result<(), TestCaseError> {
        let begin = Instant::now();
        let is_known = || {
            let holds = |device| holdings(&self.gpu, device).iter().any(|(id, _)| *id == pid);
            self.accounts().processes.contains_key(&pid) || (0..DEVICES).any(holds)
        };
        while is_known() {
            prop_assert!(
                begin.elapsed() < GIVEN_BACK,
                "process {} is still known",
                pid
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn count(&self, step: &Step, code: Option<i64>) {
        let mut seen = self.seen.borrow_mut();
        seen.steps += 1;
        match (step, code) {
            (Step::Lend { .. }, Some(0)) => seen.lent += 1,
            (Step::Call { words, .. }, Some(0)) if words.starts_with("array") => seen.arrays += 1,
            (Step::Call { words, .. }, Some(0)) if words.starts_with("share") => seen.shared += 1,
            (Step::Call { words, .. }, Some(0)) if words.starts_with("graph-launch") => {
                seen.graphs += 1;
            }
            _ => {}
        }
        match (step, code) {
            (Step::Kill { .. } | Step::Quit { .. }, _) => seen.deaths += 1,
            (_, Some(0)) => seen.granted += 1,
            (_, Some(OUT_OF_MEMORY)) => seen.refused += 1,
            (_, Some(_)) => seen.wrong += 1,
            _ => {}
        }
    }

    fn set_cap(&self, tenant: usize, mib: u64) {
        self.node
            .patch_memory(TENANTS[tenant].0, &format!("{mib}MiB"));
    }

    fn accounts(&self) -> Accounts {
        Accounts::of(&self.node.status())
    }

    /// The accounts, which must be the hardware's at once, or as soon as it has seen a descriptor close.
    fn agreed_soon(&self) -> Result<Accounts, String> {
        let begin = Instant::now();
        loop {
            match self.agreed() {
                Err(_) if begin.elapsed() < GIVEN_BACK => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                result => return result,
            }
        }
    }

    /// The accounts, if they are the hardware's.
    fn agreed(&self) -> Result<Accounts, String> {
        let accounts = self.accounts();
        match accounts.difference(&self.gpu) {
            None => Ok(accounts),
            Some(difference) => Err(difference),
        }
    }
}

/// What the daemon says at one instant.
#[derive(Debug)]
struct Accounts {
    /// Used bytes and cap, by tenant and device.
    tenants: BTreeMap<(String, usize), (u64, u64)>,
    /// Used bytes by process, on all devices together.
    processes: BTreeMap<u32, u64>,
}

impl Accounts {
    fn of(status: &Value) -> Self {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let (mut tenants, mut processes) = (BTreeMap::new(), BTreeMap::new());
        for tenant in list(&status["tenants"]) {
            let name = tenant["name"].as_str().unwrap_or_default();
            for (device, figures) in list(&tenant["devices"]).iter().enumerate() {
                let figure = |key| number(figures, key) as u64;
                let (used, cap) = (figure("memory_used_bytes"), figure("memory_limit_bytes"));
                tenants.insert((name.to_owned(), device), (used, cap));
            }
            for process in list(&tenant["processes"]) {
                let used = number(&process, "memory_used_bytes") as u64;
                processes.insert(number(&process, "pid") as u32, used);
            }
        }
        Self { tenants, processes }
    }

    /// Where this is not what the hardware holds.
    fn difference(&self, gpu: &Gpu) -> Option<String> {
        let mut held: BTreeMap<u32, u64> = BTreeMap::new();
        for device in 0..DEVICES {
            let on_device = self.tenants.iter().filter(|((_, on), _)| *on == device);
            let used: u64 = on_device.map(|(_, (used, _))| used).sum();
            let memory = gpu.memory(device);
            let truth = memory.used;
            // Managed memory counts in full, wherever its pages lie; those that have given way are not here.
            if used.min(memory.total) != truth {
                return Some(format!(
                    "on device {device} {used} bytes are accounted and {truth} are held"
                ));
            }
            for (pid, bytes) in holdings(gpu, device) {
                *held.entry(pid).or_default() += bytes;
            }
        }
        let differs = |(pid, used): (&u32, &u64)| {
            let truth = held.get(pid).copied().unwrap_or(0);
            (*used != truth).then(|| {
                format!("to a process {used} bytes are accounted, and it holds {truth}: {self:?}")
            })
        };
        self.processes.iter().find_map(differs)
    }
}

/// What each process holds on a device, with a context there or without.
fn holdings(gpu: &Gpu, device: usize) -> Vec<(u32, u64)> {
    gpu.board().read(|board| {
        let slots = board.client_slots.load(Ordering::Relaxed) as usize;
        let clients = board.client.iter().take(slots);
        let rows = clients.filter_map(|client| {
            let pid = client.pid.load(Ordering::Relaxed);
            let used = client
                .holdings
                .get(device)?
                .used_bytes
                .load(Ordering::Relaxed);
            Some((u32::try_from(pid).ok()?, used))
        });
        rows.collect()
    })
}

#[test]
fn whatever_programs_do_the_accounts_are_what_the_hardware_holds() {
    let programs = std::env::var("SLUICE_EXACT_PROGRAMS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(PROGRAMS);
    let stage = Stage::new();
    let config = Config {
        cases: programs,
        max_shrink_iters: 2000,
        failure_persistence: None,
        ..Config::default()
    };
    let begin = Instant::now();
    let faults = prop_oneof![1 => Just(""), 1 => proptest::sample::select(&FAULTS[..])];
    let result = TestRunner::new(config).run(&(faults, steps()), |(faults, program)| {
        stage.run(faults, &program)
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let seen = stage.seen.borrow();
    eprintln!("{programs} programs in {:?}: {seen:?}", begin.elapsed());
    let each = u64::from(programs);
    assert!(seen.granted > each && seen.deaths > each / 4, "{seen:?}");
    assert!(seen.arrays > each / 4 && seen.shared > each / 4, "{seen:?}");
    assert!(seen.lent > each / 40, "{seen:?}");
    assert!(seen.graphs > each / 20, "{seen:?}");
    assert!(seen.refused > each / 4 && seen.wrong > each / 4, "{seen:?}");
}
