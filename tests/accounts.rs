//! Whatever a program does, right or wrong, its account is the hardware's.
//!
//! Random sequences of every kind of memory call, also with values of the wrong kind, twice, or
//! never made. After each step the cap's account and the hardware must say the same.

mod support;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;
use support::stepper::number;
use support::{MIB, Node, OUT_OF_MEMORY};

/// What one program may hold; little, so that refusals are common.
const CAP: u64 = 64 * MIB;

/// Values that a sequence plays with.
const NAMES: u8 = 5;

/// Room of each name in the reserved range.
const ROOM: u64 = 64 * MIB;

/// One call. Names are numbers below [`NAMES`].
#[derive(Debug, Clone)]
enum Call {
    Linear { name: u8, kib: u64 },
    Pitch { name: u8, width: u64, height: u64 },
    Managed { name: u8, kib: u64 },
    Ordered { name: u8, kib: u64 },
    Physical { name: u8, chunks: u64 },
    Free { name: u8 },
    FreeOrdered { name: u8 },
    Release { name: u8 },
    Map { name: u8 },
    Unmap { name: u8 },
    Retain { name: u8, mapped: u8 },
    Reset,
}

fn call() -> impl Strategy<Value = Call> {
    let name = || 0..NAMES;
    let kib = || prop_oneof![1..64u64, 1..40_000u64];
    prop_oneof![
        4 => (name(), kib()).prop_map(|(name, kib)| Call::Linear { name, kib }),
        2 => (name(), 1..5000u64, 1..4000u64)
            .prop_map(|(name, width, height)| Call::Pitch { name, width, height }),
        1 => (name(), kib()).prop_map(|(name, kib)| Call::Managed { name, kib }),
        2 => (name(), kib()).prop_map(|(name, kib)| Call::Ordered { name, kib }),
        4 => (name(), 1..20u64).prop_map(|(name, chunks)| Call::Physical { name, chunks }),
        5 => name().prop_map(|name| Call::Free { name }),
        2 => name().prop_map(|name| Call::FreeOrdered { name }),
        4 => name().prop_map(|name| Call::Release { name }),
        4 => name().prop_map(|name| Call::Map { name }),
        4 => name().prop_map(|name| Call::Unmap { name }),
        1 => (name(), name()).prop_map(|(name, mapped)| Call::Retain { name, mapped }),
        1 => Just(Call::Reset),
    ]
}

/// What the steps need to remember: sizes, by name, of handles and of mappings.
#[derive(Debug, Default)]
struct Sizes {
    handles: [u64; NAMES as usize],
    mapped: [u64; NAMES as usize],
}

impl Call {
    /// The step of the stepper that makes this call.
    fn step(&self, sizes: &mut Sizes) -> String {
        let at = |name: &u8| u64::from(*name) * ROOM;
        match self {
            Self::Linear { name, kib } => format!("alloc v{name} {kib}KiB"),
            Self::Pitch {
                name,
                width,
                height,
            } => format!("pitch v{name} {width} {height} 4"),
            Self::Managed { name, kib } => format!("managed v{name} {kib}KiB"),
            Self::Ordered { name, kib } => format!("pool-alloc v{name} {kib}KiB"),
            Self::Physical { name, chunks } => {
                let bytes = chunks * 2 * MIB;
                sizes.handles[usize::from(*name)] = bytes;
                format!("create v{name} {bytes} device 0")
            }
            Self::Free { name } => format!("free v{name}"),
            Self::FreeOrdered { name } => format!("pool-free v{name}"),
            Self::Release { name } => format!("release v{name}"),
            Self::Map { name } => {
                let bytes = sizes.handles[usize::from(*name)].max(2 * MIB);
                sizes.mapped[usize::from(*name)] = bytes;
                format!("map range {} v{name} {bytes}", at(name))
            }
            Self::Unmap { name } => {
                let bytes = sizes.mapped[usize::from(*name)].max(2 * MIB);
                format!("unmap range {} {bytes}", at(name))
            }
            Self::Retain { name, mapped } => format!("retain-at v{name} range {}", at(mapped)),
            Self::Reset => "context-reset 0".to_owned(),
        }
    }
}

#[test]
fn whatever_a_program_does_its_account_is_the_hardwares() {
    let node = Node::start();
    let tenant = node.tenant("web", &CAP.to_string());
    let config = Config {
        cases: 100,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..Config::default()
    };
    let calls = proptest::collection::vec(call(), 1..80);
    let mut runner = TestRunner::new(config);
    let (granted, refused, wrong) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let result = runner.run(&calls, |calls| {
        let mut program = tenant.ready_stepper();
        program.ok(&format!("reserve range {}", u64::from(NAMES) * ROOM));
        for name in 0..NAMES {
            program.step(&format!("name v{name} 0xdead0000"));
        }
        let mut sizes = Sizes::default();
        for call in &calls {
            let step = call.step(&mut sizes);
            let code = number(&program.step(&step), "rc");
            prop_assert!(code >= 0, "\"{}\" answers {}", step, code);
            let count = match code {
                0 => &granted,
                OUT_OF_MEMORY => &refused,
                _ => &wrong,
            };
            count.set(count.get() + 1);
            if matches!(call, Call::Reset) {
                program.ok("context 0");
            }
            // What was freed in stream order comes back at a synchronisation.
            program.ok("synchronize");
            let (used, truth) = (program.used(), node.hardware.truth(0));
            prop_assert_eq!(used, truth, "after \"{}\", which answers {}", step, code);
            prop_assert!(used <= CAP, "{} after \"{}\"", used, step);
        }
        program.quit();
        node.wait_for_used("web", 0, std::time::Duration::from_secs(1));
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let counts = [&granted, &refused, &wrong].map(Cell::get);
    eprintln!("calls that were granted, refused, and wrong: {counts:?}");
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
}
