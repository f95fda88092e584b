//! Where the driver itself limits what a control group holds (615 and later), the daemon has it do so.

mod support;

use serde_json::Value;
use std::process::Command;
use std::process::{Child, Stdio};
use support::{ControlGroup, GIB, MIB, Node, PATIENCE, Program, Setup, StandIn, Stepper};

// Codes of NVML.
const INVALID: i64 = 2;
const DENIED: i64 = 4;
const NOT_FOUND: i64 = 6;
const NO_FUNCTION: i64 = 13;

/// Hardware whose driver is of this branch, and takes 300 MiB for each context.
fn hardware(branch: &'static str) -> StandIn {
    StandIn::start(&Setup {
        gpu: vec!["--driver-version", branch, "--context-overhead", "300MiB"],
        ..Setup::default()
    })
}

/// What NVML says of a group's limits: soft, hard, used.
fn limits(looker: &mut Stepper, group: &ControlGroup) -> [u64; 3] {
    let answer = looker.ok(&format!("nvml-limits 0 {}", group.folder().display()));
    let figure = |key: &str| answer[key].as_u64().unwrap_or_else(|| panic!("{answer}"));
    ["soft", "hard", "used"].map(figure)
}

fn limit(looker: &mut Stepper, group: &ControlGroup, soft: &str, hard: &str) -> i64 {
    looker.code(&format!(
        "nvml-limit 0 {} {soft} {hard}",
        group.folder().display()
    ))
}

/// A stepper on the bare hardware, inside `group`.
fn inside(hardware: &StandIn, group: &ControlGroup) -> Stepper {
    let template = hardware.command("true");
    let mut command = group.command(Program::Stepper.path());
    for (name, value) in template.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Stepper::start(&mut command)
}

fn looker(hardware: &StandIn) -> Stepper {
    let mut looker = hardware.stepper();
    looker.ok("nvml-init");
    looker
}

#[test]
fn a_group_holds_no_more_than_its_limit_contexts_and_all() {
    let Some(group) = ControlGroup::make() else {
        return;
    };
    let hardware = hardware("615");
    let mut looker = looker(&hardware);
    assert_eq!(limits(&mut looker, &group), [0, u64::MAX, 0]);
    assert_eq!(limit(&mut looker, &group, "0", "1GiB"), 0);
    let mut first = inside(&hardware, &group);
    first.ok("init");
    first.ok("context 0");
    assert_eq!(limits(&mut looker, &group), [0, GIB, 300 * MIB]);
    assert_eq!(first.info(), (724 * MIB, GIB));
    first.refused("alloc a 725MiB");
    first.ok("alloc a 424MiB");
    // The second process's context counts, and its code.
    let mut second = inside(&hardware, &group);
    second.ok("init");
    second.ok("context 0");
    second.refused("alloc a 512");
    let mut third = inside(&hardware, &group);
    third.ok("init");
    assert_eq!(third.code("context 0"), support::OUT_OF_MEMORY);
    // Managed memory does not count.
    second.ok("managed m 512MiB");
    assert_eq!(limits(&mut looker, &group), [0, GIB, GIB]);
    // Who stands elsewhere has the whole device, also by the first version of the question.
    let mut stranger = hardware.stepper();
    stranger.ok("init");
    stranger.ok("context 0");
    stranger.ok("alloc a 2GiB");
    assert_eq!(stranger.info().1, 8 * GIB);
    first.ok("nvml-init");
    assert_eq!(first.ok("nvml-memory-v2 0")["total"], GIB);
    assert_eq!(first.ok("nvml-memory 0")["total"], 8 * GIB);
    // A death gives back; a limit that is lifted is gone.
    second.kill();
    support::eventually("the second's context is gone", PATIENCE, || {
        (limits(&mut looker, &group)[2] == 724 * MIB).then_some(())
    });
    first.ok("alloc b 300MiB");
    assert_eq!(limit(&mut looker, &group, "0", "max"), 0);
    first.ok("alloc c 2GiB");
    assert_eq!(first.info().1, 8 * GIB);
}

#[test]
fn limits_are_root_s_to_set_and_of_control_groups_alone() {
    let Some(group) = ControlGroup::make() else {
        return;
    };
    let hardware = hardware("615");
    let mut root = looker(&hardware);
    assert_eq!(limit(&mut root, &group, "2GiB", "1GiB"), INVALID);
    for folder in ["/nowhere/at/all", "/tmp"] {
        assert_eq!(
            root.code(&format!("nvml-limit 0 {folder} 0 1GiB")),
            NOT_FOUND
        );
        assert_eq!(root.code(&format!("nvml-limits 0 {folder}")), NOT_FOUND);
    }
    let template = hardware.command("true");
    let mut nobody = Command::new("setpriv");
    nobody
        .args(["--reuid", "65534", "--clear-groups", "--regid", "65534"])
        .arg(Program::Stepper.path());
    for (name, value) in template.get_envs() {
        if let Some(value) = value {
            nobody.env(name, value);
        }
    }
    // The folder of the socket is the test's own.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(hardware.folder(), open).expect("our own folder");
    if !Program::Stepper
        .path()
        .metadata()
        .is_ok_and(|found| found.is_file())
    {
        return;
    }
    let mut nobody = Stepper::start(&mut nobody);
    nobody.ok("nvml-init");
    assert_eq!(limit(&mut nobody, &group, "0", "1GiB"), DENIED);
    assert_eq!(limits(&mut nobody, &group), [0, u64::MAX, 0]);
    // A group that is made anew has no limit.
    assert_eq!(limit(&mut root, &group, "1MiB", "1GiB"), 0);
    assert_eq!(limits(&mut root, &group), [MIB, GIB, 0]);
    group.remove();
    std::fs::create_dir(group.folder()).expect("it was ours");
    assert_eq!(limits(&mut root, &group), [0, u64::MAX, 0]);
}

#[test]
fn a_driver_before_615_has_no_such_functions() {
    let Some(group) = ControlGroup::make() else {
        return;
    };
    let hardware = hardware("580");
    let mut looker = looker(&hardware);
    assert_eq!(limit(&mut looker, &group, "0", "1GiB"), NO_FUNCTION);
    let answer: Value = looker.step(&format!("nvml-limits 0 {}", group.folder().display()));
    assert_eq!(answer["rc"], NO_FUNCTION);
}

/// A container: a control group with a first process, registered with the daemon.
struct Container {
    group: ControlGroup,
    first: Child,
}

impl Container {
    fn start(node: &Node, name: &str, memory: &str) -> Option<Self> {
        let group = ControlGroup::make()?;
        let mut command = group.command("cat");
        let first = command.stdin(Stdio::piped()).stdout(Stdio::null());
        let first = first.spawn().expect("sh starts");
        // It has entered when it is a `cat`.
        support::eventually(
            "the container's first process is in its group",
            PATIENCE,
            || {
                let comm = std::fs::read_to_string(format!("/proc/{}/comm", first.id()));
                (comm.ok()?.trim() == "cat").then_some(())
            },
        );
        let answer = node.register_container(name, memory, first.id());
        assert_eq!(answer["name"], name);
        Some(Self { group, first })
    }

    /// A stepper in it, with the library in front, and with a context.
    fn stepper(&self, node: &Node) -> Stepper {
        let mut command = self.group.command(Program::Stepper.path());
        let libraries = [
            ("SLUICE_LIBCUDA", "libcuda.so.1"),
            ("SLUICE_LIBNVML", "libnvidia-ml.so.1"),
        ];
        for (variable, file) in libraries {
            command.env(variable, support::stand_in().join(file));
        }
        command
            .env("LD_PRELOAD", support::shim())
            .env("SLUICE_SOCKET", node.attach_socket())
            .env("SLUICE_SIM_SOCKET", node.hardware.socket());
        let mut stepper = Stepper::start(&mut command);
        stepper.ok("init");
        stepper.ok("context 0");
        stepper
    }

    fn end(&mut self) {
        _ = self.first.kill();
        _ = self.first.wait();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.end();
    }
}

fn node(branch: &'static str) -> Node {
    Node::with(&Setup {
        gpu: vec!["--driver-version", branch, "--context-overhead", "300MiB"],
        ..Setup::default()
    })
}

fn enforcer(node: &Node, name: &str) -> String {
    let tenant = node.tenant_status(name).expect("a tenant");
    let word = tenant["devices"][0]["enforced_by"].as_str();
    word.expect("a word").to_owned()
}

// M1: also what no library of ours sees.
#[test]
fn the_driver_gets_a_container_s_cap_and_holds_who_avoids_the_library() {
    let mut node = node("615");
    let Some(mut container) = Container::start(&node, "box", "1GiB") else {
        return;
    };
    assert_eq!(enforcer(&node, "box"), "driver");
    let (_, table) = node.sluice(&["status"]);
    assert!(
        table.contains("HELD BY") && table.contains("driver"),
        "{table}"
    );
    let mut looker = looker(&node.hardware);
    assert_eq!(limits(&mut looker, &container.group), [0, GIB, 0]);

    let mut program = container.stepper(&node);
    assert_eq!(program.info(), (724 * MIB, GIB));
    program.ok("alloc a 700MiB");
    // The driver counts the context at once, and says no itself.
    program.refused("alloc b 25MiB");
    let mut bypass = inside(&node.hardware, &container.group);
    bypass.ok("init");
    assert_eq!(bypass.code("context 0"), support::OUT_OF_MEMORY);
    program.ok("free a");
    bypass.ok("context 0");
    bypass.refused("alloc a 425MiB");
    program.ok("alloc a 424MiB");
    assert_eq!(limits(&mut looker, &container.group)[2], GIB);
    program.ok("free a");
    bypass.quit();
    // The driver does not count managed memory: our own account does.
    program.ok("managed m 900MiB");
    program.refused("alloc b 125MiB");
    program.ok("free m");

    // A cap that changes is the driver's too when the answer comes.
    node.set_memory("box", "2GiB");
    assert_eq!(limits(&mut looker, &container.group)[1], 2 * GIB);
    program.ok("alloc a 1700MiB");
    node.set_memory("box", "1GiB");
    assert_eq!(limits(&mut looker, &container.group)[1], GIB);
    program.refused("alloc b 512");
    program.ok("free a");

    // Nobody holds anything while no daemon runs, but the driver does.
    node.kill_daemon();
    assert_eq!(limits(&mut looker, &container.group)[1], GIB);
    node.start_daemon();
    support::eventually("the next daemon says so too", PATIENCE, || {
        (enforcer(&node, "box") == "driver").then_some(())
    });
    // A tenant that is gone has no limit, also if it went while no daemon ran.
    node.kill_daemon();
    program.quit();
    container.end();
    node.start_daemon();
    support::eventually("the limit is gone", PATIENCE, || {
        (limits(&mut looker, &container.group)[1] == u64::MAX).then_some(())
    });
    assert!(node.tenant_status("box").is_none());
}

#[test]
fn a_driver_before_615_leaves_the_cap_to_the_library() {
    let node = node("580");
    let Some(container) = Container::start(&node, "box", "1GiB") else {
        return;
    };
    assert_eq!(enforcer(&node, "box"), "shim");
    let mut program = container.stepper(&node);
    support::eventually("the context is set aside", PATIENCE, || {
        (program.info() == (724 * MIB, GIB)).then_some(())
    });
    program.refused("alloc a 725MiB");
    program.ok("alloc a 724MiB");
}

#[test]
fn a_tenant_without_a_control_group_of_its_own_is_held_by_the_library_alone() {
    let node = node("615");
    let mut program = node.ready_stepper("web", "1GiB");
    assert_eq!(enforcer(&node, "web"), "shim");
    program.refused("alloc a 1025MiB");
}

#[test]
fn a_driver_that_says_no_leaves_the_cap_to_the_library() {
    let mut node = node("615");
    node.kill_daemon();
    // `NVML_ERROR_UNKNOWN`, once: this cap is not asked for again before it changes.
    node.start_daemon_with(&[("SLUICE_SIM_FAULTS", "nvmlDeviceSetMemoryLimits_v1@1=999")]);
    let Some(container) = Container::start(&node, "box", "1GiB") else {
        return;
    };
    assert_eq!(enforcer(&node, "box"), "shim");
    let mut program = container.stepper(&node);
    program.refused("alloc a 1025MiB");
    node.set_memory("box", "2GiB");
    assert_eq!(enforcer(&node, "box"), "driver");
}
