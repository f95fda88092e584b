//! However a program finds its driver, it finds us; and who never looks for one never notices us.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::stepper::{POISON, number, program};
use support::{
    GIB, MIB, Node, PATIENCE, Program, Setup, Stepper, Tenant, elf, finish, libraries, python,
    shim, sluice, stand_in, succeed,
};

/// `NVML_ERROR_LIBRARY_NOT_FOUND`.
const LIBRARY_NOT_FOUND: i64 = 12;

/// Compiles a C source of `tests/clients` into `folder`.
fn compile(folder: &Path, source: &str, output: &str, options: &[&str]) -> PathBuf {
    let output = folder.join(output);
    let mut cc = Command::new("cc");
    cc.arg("-O1").arg("-o").arg(&output);
    cc.arg(python::script(source)).args(options);
    succeed(&mut cc, PATIENCE * 3);
    output
}

/// A stepper of `tenant` with `options`.
fn stepper_with(tenant: &Tenant, options: &[&str]) -> Stepper {
    Stepper::start(tenant.command(Program::Stepper.path()).args(options))
}

/// Asserts that a program sees the cap, is held to it, and can use what it has.
#[track_caller]
fn assert_capped(mut program: Stepper, cap: u64, how: &str) {
    program.ok("init");
    program.ok("context 0");
    assert_eq!(program.info(), (cap, cap), "{how}");
    program.refused(&format!("alloc a {}", cap + 1));
    program.ok(&format!("alloc a {cap}"));
    program.ok("launch 1000");
    program.ok("synchronize");
    program.ok("nvml-init");
    let seen = program.ok("nvml-memory 0");
    assert_eq!(number(&seen, "total") as u64, cap, "{how}");
}

// C32, C39
#[test]
fn every_name_and_every_look_up_leads_to_the_cap() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    for options in [
        &["--driver", "libcuda.so.1"][..],
        &["--driver", "libcuda.so", "--nvml", "libnvidia-ml.so"],
        &["--deepbind"],
        &["--driver", "libcuda.so", "--deepbind"],
        &["--via", "proc-address"],
        &["--via", "default"],
        &["--global"],
    ] {
        assert_capped(stepper_with(&tenant, options), GIB, &format!("{options:?}"));
        node.wait_for_used("web", 0, PATIENCE);
    }
}

// C33, C43
#[test]
fn whatever_version_the_driver_is_the_cap_holds() {
    for version in ["535", "550", "555", "570", "580", "615"] {
        let node = Node::with(&Setup {
            gpu: vec!["--driver-version", version],
            ..Setup::default()
        });
        let tenant = node.tenant("web", "1GiB");
        let (mut with, mut without) = (tenant.stepper(), node.hardware.stepper());
        assert_eq!(with.ok("version"), without.ok("version"), "{version}");
        assert_capped(with, GIB, version);
        assert_capped(
            stepper_with(&tenant, &["--via", "proc-address"]),
            GIB,
            version,
        );
    }
}

#[test]
fn a_library_path_that_names_the_true_driver_leads_to_the_cap() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    for options in [&["--driver", "libcuda.so.1"], &["--driver", "libcuda.so"]] {
        let mut command = tenant.command(Program::Stepper.path());
        command.args(options).env("LD_LIBRARY_PATH", stand_in());
        assert_capped(Stepper::start(&mut command), GIB, &format!("{options:?}"));
        node.wait_for_used("web", 0, PATIENCE);
    }
}

// C39
#[test]
fn a_program_linked_to_the_driver_binds_to_us() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let libcuda = stand_in().join("libcuda.so.1");
    let libcuda = libcuda.to_str().expect("a path that is text");
    for binding in ["-Wl,-z,lazy", "-Wl,-z,now"] {
        let options = [libcuda, binding];
        let linked = compile(node.folder(), "needs_libcuda.c", "linked", &options);
        assert!(elf::needed(&linked).contains(&"libcuda.so.1".to_owned()));
        let mut with = tenant.command(&linked);
        // As without us, the loader must find the file that the program was linked to.
        with.env("LD_LIBRARY_PATH", stand_in());
        assert_eq!(succeed(&mut with, PATIENCE).trim(), format!("{GIB} 2"));
        let without = succeed(&mut node.hardware.command(&linked), PATIENCE);
        assert_eq!(without.trim(), format!("{} 2", 8 * GIB));
    }
}

// C38
#[test]
fn python_without_any_package_finds_us_too() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    for name in ["libcuda.so.1", "libcuda.so"] {
        let mut command = tenant.command("python3");
        command.arg(python::script("ctypes_driver.py")).arg(name);
        let printed = succeed(&mut command, PATIENCE);
        assert_eq!(printed.trim(), format!("{GIB} 2"), "{name}");
    }
}

// C37
#[test]
fn a_library_opened_locally_that_opens_the_driver_itself_completes_and_is_counted() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let options = ["-shared", "-fPIC", "-ldl"];
    compile(node.folder(), "opens_driver.c", "libopens.so", &options);
    let mut command = tenant.command("python3");
    command
        .arg(python::script("ctypes_local.py"))
        .arg(node.folder().join("libopens.so"));
    let begin = Instant::now();
    let printed = succeed(&mut command, PATIENCE);
    assert!(begin.elapsed() < PATIENCE / 2);
    assert_eq!(printed.trim(), format!("{} 2", 64 * MIB));
}

// C34
#[test]
fn threads_that_initialise_together_all_succeed() {
    let node = Node::start();
    let mut program = node.stepper("web", "1GiB");
    let answer = program.ok("init-together 8");
    assert!(number(&answer, "ms") < 2000, "{answer}");
    let status = node.tenant_status("web").expect("it runs");
    assert_eq!(
        status["processes"].as_array().map(Vec::len),
        Some(1),
        "one process attaches once: {status}"
    );
}

// C35
// C34
#[test]
fn a_constructor_may_initialise_before_the_program_begins() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let options = ["-shared", "-fPIC", "-ldl"];
    let early = compile(node.folder(), "early_init.c", "libearly.so", &options);
    let ours = tenant.variable("LD_PRELOAD");
    for preload in [
        format!("{ours}:{}", early.display()),
        format!("{}:{ours}", early.display()),
    ] {
        let mut command = tenant.command(Program::Stepper.path());
        let program = Stepper::start(command.env("LD_PRELOAD", preload));
        assert_capped(program, GIB, "early");
        node.wait_for_used("web", 0, PATIENCE);
    }
}

#[test]
fn names_that_only_look_like_the_drivers_are_not_ours() {
    let node = Node::start();
    let mut program = node.stepper("web", "1GiB");
    for name in [
        "cublasCreate_v2",
        "cudnnCreate",
        "cufftPlan1d",
        "cudaMalloc",
        "cuNoSuchFunction",
    ] {
        let answer = program.step(&format!("where {name}"));
        assert_eq!(number(&answer, "address"), 0, "{answer}");
    }
}

// C41
#[test]
fn names_newer_than_any_driver_get_the_drivers_own_answer() {
    let node = Node::start();
    let mut with = node.stepper("web", "1GiB");
    let mut without = node.hardware.stepper();
    for look_up in [
        "lookup cuFutureThing 13000 0",
        "lookup cuMemAllocFuture 99000 2",
        "lookup - 0 0",
        "lookup cuMemAlloc 2000 0",
        "lookup cuMemAlloc 99999 0",
        "lookup cuMemAlloc 1 0",
        "lookup cuMemAlloc 3020 4",
        "lookup cuCtxCreate 2000 0",
        "lookup cuCtxCreate 3020 0",
        "lookup cuCtxCreate 11040 0",
        "lookup cuCtxCreate 13000 0",
        "lookup cuStreamGetCaptureInfo 10000 0",
        "lookup cuStreamGetCaptureInfo 12030 2",
        "lookup cuEventElapsedTime 2000 0",
        "lookup cuEventElapsedTime 12080 0",
    ] {
        let (ours, theirs) = (with.step(look_up), without.step(look_up));
        for key in ["rc", "status", "untouched"] {
            assert_eq!(ours[key], theirs[key], "{look_up}: {ours}, {theirs}");
        }
        let nothing = [0, POISON];
        let gone = |answer: &serde_json::Value| nothing.contains(&number_u64(answer, "address"));
        assert_eq!(gone(&ours), gone(&theirs), "{look_up}: {ours}, {theirs}");
        if !gone(&theirs) {
            assert_eq!(ours["name"], theirs["name"], "{look_up}: the same form");
        }
    }
}

fn number_u64(answer: &serde_json::Value, key: &str) -> u64 {
    answer[key].as_u64().expect("a number")
}

// C35
#[test]
fn an_installed_copy_in_an_odd_place_works_as_the_built_one_does() {
    let node = Node::start();
    let place = node.folder().join("an odd place");
    succeed(Command::new(sluice()).arg("install").arg(&place), PATIENCE);
    let mut run = Command::new(place.join("bin/sluice"));
    run.args(["run", "--runtime-dir"])
        .arg(node.folder())
        .args(["--name", "web", "--memory", "1GiB", "--"])
        .arg(Program::Stepper.path());
    // A preload list cannot hold a path with a space in it. Such a place must either work or be
    // refused with a sentence; never run unlimited.
    let probe = finish(
        Command::new(place.join("bin/sluice"))
            .args(["run", "--runtime-dir"])
            .arg(node.folder())
            .args(["--memory", "1GiB", "--", "true"]),
        PATIENCE,
    );
    if probe.status.success() {
        assert_capped(Stepper::start(&mut run), GIB, "from an odd place");
    } else {
        let sentence = String::from_utf8_lossy(&probe.stderr);
        assert_eq!(probe.status.code(), Some(125), "{sentence}");
        assert!(sentence.contains("an odd place"), "{sentence}");
    }
    let plain = node.folder().join("plain");
    succeed(Command::new(sluice()).arg("install").arg(&plain), PATIENCE);
    let mut run = Command::new(plain.join("bin/sluice"));
    run.args(["run", "--runtime-dir"])
        .arg(node.folder())
        .args(["--name", "plain", "--memory", "1GiB", "--"])
        .arg(Program::Stepper.path());
    let mut program = Stepper::start(&mut run);
    let answer = program.step("where cuMemAlloc_v2");
    let file = answer["file"].as_str().expect("a path");
    assert!(Path::new(file).starts_with(&plain), "{file}");
    assert_capped(program, GIB, "installed");
}

// C54
#[test]
fn a_new_version_laid_down_under_a_running_program_does_not_disturb_it() {
    let node = Node::start();
    let place = node.folder().join("place");
    let install = || succeed(Command::new(sluice()).arg("install").arg(&place), PATIENCE);
    install();
    let mut run = Command::new(place.join("bin/sluice"));
    run.args(["run", "--runtime-dir"])
        .arg(node.folder())
        .args(["--name", "web", "--memory", "1GiB", "--"])
        .arg(Program::Stepper.path());
    let mut program = Stepper::start(&mut run);
    program.ok("init");
    program.ok("context 0");
    program.ok("hammer 2 1MiB");
    for _ in 0..5 {
        install();
    }
    let answer = program.ok("hammer stop");
    assert_eq!(number(&answer, "other"), 0, "{answer}");
    program.refused("alloc a 2GiB");
    program.ok("alloc a 1GiB");
}

// C36
#[test]
fn the_libraries_ask_for_no_private_and_no_driver_symbol() {
    for name in [
        "libsluice.so",
        "stand-in/libcuda.so.1",
        "stand-in/libnvidia-ml.so.1",
    ] {
        let library = libraries().join(name);
        let wanted: Vec<elf::Symbol> = elf::symbols(&library)
            .into_iter()
            .filter(|symbol| !symbol.defined)
            .collect();
        let newest = wanted
            .iter()
            .filter_map(|symbol| symbol.version.strip_prefix("GLIBC_"))
            .filter_map(|version| {
                let (major, minor) = version.split_once('.')?;
                let minor = minor.split('.').next()?;
                Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
            })
            .max();
        eprintln!("{name}: newest glibc version wanted {newest:?}");
        for symbol in wanted {
            assert!(!symbol.version.contains("PRIVATE"), "{name}: {symbol:?}");
            assert!(
                !symbol.name.starts_with("cu") && !symbol.name.starts_with("nvml"),
                "{name}: {symbol:?}"
            );
        }
        for needed in elf::needed(&library) {
            assert!(
                !needed.contains("nvidia") && !needed.contains("libcuda.so"),
                "{needed}"
            );
        }
    }
}

/// A program that looks at everything of its process that a preload could have touched.
const LOOK_AROUND: &str = "umask; trap; ulimit -a; echo fds; ls /proc/self/fd; echo tasks; \
    ls /proc/$$/task | wc -l; grep -E '^(Sig|Threads|Seccomp|NoNewPrivs)' /proc/$$/status; \
    env | grep -v -E '^(LD_PRELOAD|_|SLUICE_)' | sort; pwd; echo to-stderr >&2; exit 7";

#[test]
fn a_program_that_never_touches_cuda_behaves_as_if_we_were_not_there() {
    let look = |preload: bool| {
        let mut command = Command::new("bash");
        command.args(["--norc", "-c", LOOK_AROUND]);
        if preload {
            command.env("LD_PRELOAD", shim());
        }
        finish(&mut command, PATIENCE)
    };
    let (with, without) = (look(true), look(false));
    assert_eq!(
        String::from_utf8_lossy(&with.stdout),
        String::from_utf8_lossy(&without.stdout)
    );
    assert_eq!(
        String::from_utf8_lossy(&with.stderr),
        String::from_utf8_lossy(&without.stderr)
    );
    assert_eq!(with.status.code(), Some(7));
    assert_eq!(without.status.code(), Some(7));
}

#[test]
fn a_program_that_never_touches_cuda_reaches_no_daemon() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let mut program = tenant.stepper();
    program.step("open libcuda.so.1");
    program.step("where cuMemAlloc_v2");
    let status = node.tenant_status("web").expect("it runs");
    assert_eq!(status["processes"].as_array().map(Vec::len), Some(0));
}

#[test]
fn a_program_that_never_touches_cuda_starts_as_fast() {
    let start = |preload: bool| {
        let mut command = Command::new("/bin/true");
        if preload {
            command.env("LD_PRELOAD", shim());
        }
        let begin = Instant::now();
        assert!(command.status().expect("it is there").success());
        begin.elapsed()
    };
    // Pairs, so that whatever else the machine does strikes both; the median of the differences.
    let mut more: Vec<i128> = (0..150)
        .map(|_| {
            let with = start(true).as_nanos() as i128;
            with - start(false).as_nanos() as i128
        })
        .collect();
    more.sort_unstable();
    let median = more[more.len() / 2];
    eprintln!("the preload adds {median} ns to the start of a program");
    assert!(
        median < Duration::from_millis(2).as_nanos() as i128,
        "{median} ns"
    );
}

#[test]
fn on_a_machine_without_a_driver_the_first_call_says_so_and_nothing_crashes() {
    let real = ["libcuda.so.1", "libnvidia-ml.so.1"];
    if real.iter().any(|name| finds(name)) {
        eprintln!("NOT RUN: this machine has a driver, so it cannot be without one");
        return;
    }
    let mut command = program();
    command.env("LD_PRELOAD", shim());
    for variable in ["SLUICE_LIBCUDA", "SLUICE_LIBNVML", "SLUICE_SOCKET"] {
        command.env_remove(variable);
    }
    let mut bare = Stepper::start(&mut command);
    let begin = Instant::now();
    assert_eq!(bare.code("init"), 100, "CUDA_ERROR_NO_DEVICE");
    assert!(begin.elapsed() < PATIENCE / 4, "it waits for nobody");
    assert_eq!(bare.code("init"), 100);
    assert_eq!(bare.code("nvml-init"), LIBRARY_NOT_FOUND);
    for step in ["device-count", "info", "total 0", "alloc a 1MiB", "free 1"] {
        assert_ne!(bare.code(step), 0, "{step}");
    }
    // A runtime that looks `cuInit` up must be able to ask it.
    let answer = bare.step("lookup cuInit 2000 0");
    assert_eq!(number(&answer, "rc"), 0, "{answer}");
    assert_ne!(number_u64(&answer, "address"), 0, "{answer}");
}

/// Whether the loader finds `name` without us.
fn finds(name: &str) -> bool {
    let mut plain = program();
    plain.env_remove("LD_PRELOAD").env_remove("LD_LIBRARY_PATH");
    let mut plain = Stepper::start(&mut plain);
    number(&plain.step(&format!("open {name}")), "rc") == 0
}
