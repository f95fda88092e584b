//! `sluice env` and `sluice cdi`, as a shell and an administrator use them.

mod support;

use serde_json::Value;
use std::process::Command;
use support::{GIB, MIB, Node, PATIENCE, Program, Stepper, eventually, finish, sluice, succeed};

/// A shell that reads the variables of `sluice env` with these options and becomes `program`.
fn shell(node: &Node, options: &str, program: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!(
            "set -e; words=$(\"$SLUICE\" env --runtime-dir \"$FOLDER\" {options}); eval \"$words\"; exec {program}"
        ))
        .env("SLUICE", sluice())
        .env("FOLDER", node.folder())
        .env("STEPPER", Program::Stepper.path());
    command
}

#[test]
fn what_a_shell_starts_is_held_and_the_tenant_ends_with_it() {
    let node = Node::start();
    let mut stepper = Stepper::start(&mut shell(
        &node,
        "--memory 1GiB --compute 30% --name job",
        "\"$STEPPER\"",
    ));
    stepper.ok("init");
    stepper.ok("context 0");
    assert_eq!(stepper.info(), (GIB, GIB));
    stepper.refused(&format!("alloc a {}", 1100 * MIB));
    let job = node
        .tenant_status("job")
        .expect("it has the name that was asked for");
    assert_eq!(
        job["owner_pid"],
        u64::from(stepper.pid()),
        "the shell itself"
    );
    assert_eq!(job["devices"][0]["compute"]["guarantee_permille"], 300);
    stepper.kill();
    eventually("the tenant is gone", PATIENCE, || {
        node.tenant_status("job").is_none().then_some(())
    });
}

#[test]
fn apptainer_gets_what_its_containers_need() {
    let node = Node::start();
    let mut env = shell(&node, "--memory 1GiB", "env");
    let said = succeed(env.env("APPTAINER_BIND", "/data"), PATIENCE);
    let value = |name: &str| {
        let line = said
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("no {name} in {said}"))
            .to_owned()
    };
    let preload = value("LD_PRELOAD");
    assert_eq!(value("APPTAINERENV_LD_PRELOAD"), preload);
    let binds = value("APPTAINER_BIND");
    let binds: Vec<&str> = binds.split(',').collect();
    assert_eq!(binds[0], "/data", "its own stay");
    for file in [preload, value("SLUICE_SOCKET"), value("SLUICE_SIM_SOCKET")] {
        assert!(
            binds.iter().any(|bind| file.starts_with(bind)),
            "{file}: {binds:?}"
        );
    }
}

#[test]
fn a_refusal_leaves_the_shell_without_variables() {
    let node = Node::start();
    let output = finish(&mut shell(&node, "--memory 9GiB", "env"), PATIENCE);
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("9GiB"),
        "{output:?}"
    );
}

// C90: a specification is read by every engine of the node, so a wrong one is not written.
#[test]
fn devices_are_written_whole_or_not_at_all() {
    let node = Node::start();
    let file = node.folder().join("cdi/sluice.json");
    let config = node.folder().join("classes.toml");
    let generate = |classes: &str| {
        std::fs::write(&config, classes).expect("our own folder");
        let mut command = Command::new(sluice());
        command
            .args(["cdi", "generate", "--runtime-dir"])
            .arg(node.folder())
            .arg("--config")
            .arg(&config)
            .arg("--output")
            .arg(&file);
        finish(&mut command, PATIENCE)
    };
    let made = generate("[containers]\nclasses.tiny = { memory = \"10%\", class = \"batch\" }\n");
    assert!(made.status.success(), "{made:?}");
    let text = std::fs::read_to_string(&file).expect("it is there");
    let written: Value = serde_json::from_str(&text).expect("JSON");
    let names: Vec<&Value> = written["devices"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|device| &device["name"])
        .collect();
    assert_eq!(names, ["tiny", "managed"]);
    let hook = &written["devices"][0]["containerEdits"]["hooks"][0];
    let words: Vec<&str> = hook["args"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(
        words.ends_with(&["--memory", "10%", "--class", "batch"]),
        "{words:?}"
    );
    for (classes, word) in [
        ("classes.a = { memory = \"10%\" }", "two or more letters"),
        ("classes.managed = { memory = \"10%\" }", "managed"),
        ("classes.big = { memory = \"lots\" }", "lots"),
        (
            "classes.big = { memory = \"1GiB\", compute = \"200%\" }",
            "100%",
        ),
        ("classes.big = { memory = \"1GiB\", cpu = 3 }", "cpu"),
    ] {
        let refused = generate(&format!("[containers]\n{classes}\n"));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success(), "{classes}");
        assert!(said.contains(word), "{classes}: {said}");
        let now = std::fs::read_to_string(&file).expect("it is there");
        assert_eq!(now, text, "{classes}");
    }
}
