//! Where the driver itself limits what a control group holds (615 and later), the daemon has it do so.

mod support;

use serde_json::Value;
use std::process::Command;
use support::{ControlGroup, GIB, MIB, Program, Setup, StandIn, Stepper};

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
    support::eventually("the second's context is gone", support::PATIENCE, || {
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
