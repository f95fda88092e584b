//! Promise C4 and the speed of calls: what is called often makes no system call of ours.
//!
//! How long calls take is for the benchmarks to say (`docs/benchmarks.md`); what they do is for this.

mod support;

use support::{Node, Program, Stepper};

// C76
#[test]
fn calls_of_who_is_alone_make_no_system_call() {
    // Calls end within the process, so what is left is ours.
    const NULL: [(&str, &str); 1] = [("SLUICE_SIM_NULL", "1")];
    let mut node = Node::start();
    node.kill_daemon();
    node.start_daemon_with(&NULL);
    let mut command = node.run("web", "1GiB");
    let mut program = Stepper::start(command.arg(Program::Stepper.path()).envs(NULL));
    program.ok("init");
    program.ok("context 0");
    for call in ["launch", "attribute", "alloc"] {
        let answer = program.ok(&format!("bare {call} 100000"));
        assert_eq!(answer["is_bare"], true, "{call}");
    }
    // That this would be noticed: the stand-in's own recording of an event makes one.
    assert_eq!(program.ok("bare record 1")["is_bare"], false);
}
