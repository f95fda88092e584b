//! `runc` with an OCI bundle, behind `sluice runtime`.

use crate::bundle::{Bundle, ready};
use crate::support::{GIB, MIB, Node, PATIENCE, Stepper, eventually, finish};
use crate::{Test, missing_program, no_root};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Output;
use std::time::Duration;

/// The tests, by promise.
pub(crate) const TESTS: &[Test] = &[
    ("caps_hold_and_neighbours_keep_theirs", caps_hold),
    ("identity_is_right", identity_is_right),
    ("what_exec_starts_is_held_too", exec_is_held),
    ("a_killed_container_leaves_nothing", killed),
    ("a_restarted_daemon_knows_its_containers", restarted),
    ("a_bad_quota_stops_the_container_with_a_sentence", bad_quota),
    ("without_a_daemon_nothing_starts", without_daemon),
    (
        "without_a_daemon_it_may_start_without_cuda",
        start_without_daemon,
    ),
    ("a_daemon_that_hangs_delays_nobody_for_long", hanging_daemon),
    ("who_asks_for_no_quota_is_let_alone", let_alone),
    ("no_variable_leads_to_another_daemon", no_other_daemon),
    ("a_scrubbed_environment_changes_nothing", scrubbed),
    ("the_image_s_own_preloads_stay", own_preload),
    ("the_image_s_links_lead_nowhere", hostile_links),
    ("users_and_rights_of_all_kinds", users_and_rights),
    ("setuid_programs_are_unharmed", setuid),
    ("static_and_musl_programs_are_unharmed", static_and_musl),
    ("who_goes_past_the_library_is_a_stranger", stranger),
    ("missing_libraries_stop_the_container", missing_libraries),
    ("containers_of_one_name_are_told_apart", one_name),
    ("an_id_is_used_again_at_once", id_again),
    ("shares_hold_between_containers", shares),
    ("peers_names_count", peers_names),
];

/// Why they cannot run here.
pub(crate) fn missing() -> Option<String> {
    no_root().or_else(|| missing_program(&["runc"]))
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// The tenant that the container of `bundle` is.
fn tenant_of(node: &Node, bundle: &Bundle) -> Option<Value> {
    let status = node.status();
    let tenants = status["tenants"].as_array().expect("a list");
    tenants
        .iter()
        .find(|tenant| tenant["container"]["id"] == *bundle.id)
        .cloned()
}

fn nobody_is_left(node: &Node) {
    eventually("no tenant is left", PATIENCE, || {
        let status = node.status();
        (status["tenants"] == json!([])).then_some(())
    });
    assert_eq!(node.hardware.truth(0), 0, "nothing is left behind");
}

fn caps_hold() {
    let node = Node::start();
    let one = Bundle::new(&["SLUICE_MEMORY=1GiB"]);
    let two = Bundle::new(&["SLUICE_MEMORY=3GiB"]);
    let mut small = one.ready_stepper(&node);
    let mut large = two.ready_stepper(&node);
    assert_eq!(small.info(), (GIB, GIB));
    assert_eq!(large.info(), (3 * GIB, 3 * GIB));
    small.ok(&format!("alloc a {}", 800 * MIB));
    small.refused(&format!("alloc b {}", 300 * MIB));
    large.ok(&format!("alloc a {}", 2500 * MIB));
    large.refused(&format!("alloc b {}", 600 * MIB));
    assert_eq!(node.hardware.truth(0), 3300 * MIB);
    small.ok("nvml-init");
    assert_eq!(small.ok("nvml-memory 0")["total"], GIB);
    drop((small, large));
    one.kill(&node);
    two.kill(&node);
    nobody_is_left(&node);
}

type Change = fn(&mut Value);

// C87: whoever the first process is.
fn users_and_rights() {
    let node = Node::start();
    let kinds: [(&str, Change); 5] = [
        ("read-only root", |config| {
            config["root"]["readonly"] = json!(true)
        }),
        ("a user", |config| {
            config["process"]["user"] = json!({"uid": 1000, "gid": 1000, "umask": 0o77});
        }),
        ("no capabilities", |config| {
            config["process"]["capabilities"] = json!({});
            config["process"]["noNewPrivileges"] = json!(true);
        }),
        ("a noexec /tmp and /run", |config| {
            let mounts = config["mounts"].as_array_mut().expect("a list");
            for place in ["/tmp", "/run"] {
                mounts.push(json!({
                    "destination": place, "type": "tmpfs", "source": "tmpfs",
                    "options": ["nosuid", "nodev", "noexec"],
                }));
            }
        }),
        ("a user namespace", |config| {
            let linux = &mut config["linux"];
            linux["namespaces"]
                .as_array_mut()
                .expect("a list")
                .push(json!({"type": "user"}));
            linux["uidMappings"] = json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]);
            linux["gidMappings"] = json!([{"containerID": 0, "hostID": 100_000, "size": 65536}]);
            config["process"]["user"] = json!({"uid": 1000, "gid": 1000});
        }),
    ];
    for (kind, change) in kinds {
        let bundle = Bundle::new(&["SLUICE_MEMORY=1GiB"]);
        // The places of mounts, which a read-only root cannot get any more, are the engine's to make.
        bundle.change(change);
        if kind == "a user namespace" {
            // An engine shifts what it mounts; here the owner is changed.
            let mut chown = std::process::Command::new("chown");
            chown.args(["-R", "100000:100000"]).arg(bundle.root());
            crate::support::succeed(&mut chown, PATIENCE);
        }
        let mut stepper = bundle.ready_stepper(&node);
        assert_eq!(stepper.info(), (GIB, GIB), "{kind}");
        stepper.ok(&format!("alloc a {}", 900 * MIB));
        stepper.refused(&format!("alloc b {}", 200 * MIB));
        drop(stepper);
        bundle.kill(&node);
    }
    nobody_is_left(&node);
}

fn identity_is_right() {
    let node = Node::start();
    let bundle = Bundle::new(&["SLUICE_MEMORY=1GiB", "SLUICE_NAME=web"]);
    let mut stepper = bundle.ready_stepper(&node);
    let inside = stepper.step("pid")["pid"].as_u64().expect("a number");
    assert_eq!(inside, 1, "it has a PID namespace of its own");
    let tenant = tenant_of(&node, &bundle).expect("it is a tenant");
    assert_eq!(tenant["name"], "web");
    let process = &tenant["processes"][0];
    assert_eq!(process["command"], "stepper");
    assert_eq!(process["pid"], tenant["owner_pid"]);
    let pid = process["pid"].as_u64().expect("a number");
    let namespaces = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    assert!(
        namespaces.contains(&format!("NSpid:\t{pid}\t1")),
        "{namespaces}"
    );
    let shown = node.sluice(&["status"]).1;
    assert!(shown.contains("web"), "{shown}");
}

// C94: and it has none of the container's variables.
fn exec_is_held() {
    let node = Node::start();
    let bundle = Bundle::new(&["SLUICE_MEMORY=1GiB"]);
    let mut first = bundle.ready_stepper(&node);
    first.ok(&format!("alloc a {}", 700 * MIB));
    let mut second = ready(Stepper::start(
        &mut bundle.exec(&node, &["/bin/env", "-i", "/bin/stepper"]),
    ));
    assert_eq!(second.info(), (GIB - 700 * MIB, GIB));
    second.refused(&format!("alloc a {}", 400 * MIB));
    second.ok(&format!("alloc a {}", 200 * MIB));
    let tenant = tenant_of(&node, &bundle).expect("it is a tenant");
    assert_eq!(tenant["processes"].as_array().map(Vec::len), Some(2));
    assert_eq!(tenant["devices"][0]["memory_used_bytes"], 900 * MIB);
}

// C94.
fn scrubbed() {
    let node = Node::start();
    let bundle = Bundle::new(&["SLUICE_MEMORY=1GiB"]);
    bundle.change(|config| {
        config["process"]["args"] = json!([
            "/bin/sh",
            "-c",
            "(env -i LD_PRELOAD= SLUICE_MEMORY=9TiB /bin/stepper)"
        ]);
    });
    let mut stepper = bundle.ready_stepper(&node);
    assert_eq!(stepper.info(), (GIB, GIB));
}

fn killed() {
    let node = Node::start();
    let bundle = Bundle::new(&["SLUICE_MEMORY=2GiB"]);
    let mut stepper = bundle.ready_stepper(&node);
    stepper.ok(&format!("alloc a {GIB}"));
    let mut other = ready(Stepper::start(&mut bundle.exec(&node, &["/bin/stepper"])));
    other.ok(&format!("alloc a {}", 512 * MIB));
    bundle.kill(&node);
    nobody_is_left(&node);
}

fn restarted() {
    let mut node = Node::start();
    let bundle = Bundle::new(&["SLUICE_MEMORY=1GiB"]);
    let mut stepper = bundle.ready_stepper(&node);
    stepper.ok(&format!("alloc a {}", 600 * MIB));
    node.kill_daemon();
    stepper.ok(&format!("alloc b {}", 100 * MIB));
    node.start_daemon();
    let mut second = ready(Stepper::start(&mut bundle.exec(&node, &["/bin/stepper"])));
    eventually("the former process is back", PATIENCE, || {
        (second.used() == 700 * MIB).then_some(())
    });
    second.refused(&format!("alloc a {}", 400 * MIB));
    let tenant = tenant_of(&node, &bundle).expect("the next daemon knows it");
    assert_eq!(tenant["processes"].as_array().map(Vec::len), Some(2));
    drop((stepper, second));
    bundle.kill(&node);
    nobody_is_left(&node);
}

// C91, C92: a value that makes no sense never means "no limit".
fn bad_quota() {
    let node = Node::start();
    for (variable, value, accepted) in [
        ("SLUICE_MEMORY", "lots", "GiB"),
        ("SLUICE_MEMORY", "0", "nothing to allocate"),
        ("SLUICE_MEMORY", "-1", "GiB"),
        ("SLUICE_COMPUTE", "101%", "100%"),
        ("CUDA_DEVICE_MEMORY_LIMIT", "4GG", "accepted"),
    ] {
        let bundle = Bundle::new(&[&format!("{variable}={value}")]);
        let output = bundle.output(&node, &["/bin/true"]);
        let said = text(&output);
        assert!(!output.status.success(), "{variable}={value}: {said}");
        for word in [variable, value, accepted] {
            assert!(said.contains(word), "{word} is not in: {said}");
        }
        assert!(tenant_of(&node, &bundle).is_none());
    }
    // A share without a cap is no quota either.
    let bundle = Bundle::new(&["SLUICE_COMPUTE=30%"]);
    let said = text(&bundle.output(&node, &["/bin/true"]));
    assert!(said.contains("SLUICE_MEMORY"), "{said}");
    // More than there is.
    let bundle = Bundle::new(&["SLUICE_MEMORY=9GiB"]);
    let output = bundle.output(&node, &["/bin/true"]);
    assert!(!output.status.success(), "{output:?}");
    assert!(text(&output).contains("9GiB"), "{}", text(&output));
}

fn without_daemon() {
    let mut node = Node::start();
    node.kill_daemon();
    let bundle = Bundle::new(&["SLUICE_MEMORY=1GiB"]);
    let output = bundle.output(&node, &["/bin/true"]);
    let said = text(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("no daemon answers"), "{said}");
    assert!(said.contains("sluice daemon"), "{said}");
}

fn start_without_daemon() {
    let mut node = Node::start();
    node.kill_daemon();
    let file = node.folder().join("sluice.toml");
    let config = "[driver]\nkind = \"stand-in\"\n[containers]\nwithout_daemon = \"start\"\n";
    fs::write(file, config).expect("our own file");
    let bundle = Bundle::new(&["SLUICE_MEMORY=1GiB"]);
    let mut stepper = bundle.stepper(&node);
    // CUDA_ERROR_SYSTEM_NOT_READY, after the shim's own patience.
    assert_eq!(
        stepper.step_within("init", Duration::from_secs(40))["rc"],
        802
    );
}

fn hanging_daemon() {
    let node = Node::start();
    let bundle = Bundle::new(&["SLUICE_MEMORY=1GiB"]);
    let stopped = Stopped::new(node.daemon_pid());
    let output = bundle.output(&node, &["/bin/true"]);
    drop(stopped);
    let said = text(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("no daemon answers"), "{said}");
}

/// A process that is stopped for as long as this lives.
struct Stopped(i32);

impl Stopped {
    fn new(pid: u32) -> Self {
        let pid = i32::try_from(pid).expect("a process id");
        // SAFETY: a signal to a child of this program.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
    }
}

// C88: a neighbour in the pod that asks for nothing is not touched.
fn let_alone() {
    let node = Node::start();
    let bundle = Bundle::new(&["SLUICE_NAME=web"]);
    let before = bundle.config();
    let output = bundle.output(
        &node,
        &[
            "/bin/sh",
            "-c",
            "cat /etc/ld.so.preload; cat /proc/self/maps",
        ],
    );
    assert!(!text(&output).contains("sluice"), "{}", text(&output));
    let after = bundle.config();
    assert_eq!(before["mounts"], after["mounts"]);
    assert_eq!(before["hooks"], after["hooks"]);
}

// C95: whose word counts is not the tenant's choice.
fn no_other_daemon() {
    let node = Node::start();
    let hostile = Node::start();
    let mut bundle = Bundle::new(&["SLUICE_MEMORY=1GiB", "SLUICE_SOCKET=/hostile/attach.sock"]);
    let token = hostile.tenant("big", "max");
    let folder = hostile.folder().join("socket");
    bundle.change(|config| {
        let env = config["process"]["env"].as_array_mut().expect("a list");
        env.push(json!(format!(
            "SLUICE_TOKEN={}",
            token.variable("SLUICE_TOKEN")
        )));
        let mounts = config["mounts"].as_array_mut().expect("a list");
        mounts.push(json!({
            "destination": "/hostile", "type": "bind", "source": folder, "options": ["rbind", "rw"],
        }));
    });
    let mut stepper = bundle.ready_stepper(&node);
    assert_eq!(stepper.info(), (GIB, GIB));
    drop(stepper);
    // Nor while its own is away.
    bundle.kill(&node);
    bundle.id += "-again";
    let mut node = node;
    let mut stepper = bundle.stepper(&node);
    stepper.step("pid");
    node.kill_daemon();
    assert_eq!(
        stepper.step_within("init", Duration::from_secs(40))["rc"],
        802
    );
}

// C86.
fn own_preload() {
    let node = Node::start();
    let bundle = Bundle::new(&["SLUICE_MEMORY=1GiB", "LD_PRELOAD=/lib/own-too.so"]);
    fs::create_dir_all(bundle.root().join("lib")).expect("our own folder");
    for file in ["lib/own.so", "lib/own-too.so"] {
        fs::copy("/lib/x86_64-linux-gnu/libm.so.6", bundle.root().join(file)).expect("a copy");
    }
    fs::write(bundle.root().join("etc/ld.so.preload"), "/lib/own.so\n").expect("a file");
    let said = text(&bundle.output(
        &node,
        &["/bin/cat", "/etc/ld.so.preload", "/proc/self/maps"],
    ));
    assert!(
        said.starts_with("/opt/sluice/lib/libsluice.so\n/lib/own.so\n"),
        "{said}"
    );
    for library in [
        "/opt/sluice/lib/libsluice.so",
        "/lib/own.so",
        "/lib/own-too.so",
    ] {
        assert!(said.contains(&format!(" {library}\n")), "{library}: {said}");
    }
}

fn hostile_links() {
    let node = Node::start();
    let host = tempfile::tempdir().expect("a folder");
    let victim = host.path().join("victim");
    fs::write(&victim, "mine\n").expect("a file");
    for link in ["etc/ld.so.preload", "run/sluice", "opt", "usr/local/nvidia"] {
        let bundle = Bundle::new(&["SLUICE_MEMORY=1GiB"]);
        let place = bundle.root().join(link);
        fs::create_dir_all(place.parent().expect("a folder")).expect("our own folder");
        let up = "../../../../../../../../../..";
        let target = if link.ends_with("preload") {
            &*victim
        } else {
            host.path()
        };
        symlink(format!("{up}{}", target.display()), &place).expect("a link");
        let output = bundle.output(&node, &["/bin/cat", "/etc/ld.so.preload"]);
        let said = text(&output);
        // It may work, inside the root, or be refused; the host is as it was.
        if output.status.success() {
            assert_eq!(said, "/opt/sluice/lib/libsluice.so\n", "{link}");
        }
        assert_eq!(fs::read_to_string(&victim).expect("our own file"), "mine\n");
        assert_eq!(
            fs::read_dir(host.path()).expect("our own").count(),
            1,
            "{link}"
        );
    }
}

fn setuid() {
    let node = Node::start();
    let bundle = Bundle::new(&["SLUICE_MEMORY=1GiB"]);
    let program = bundle.root().join("bin/id");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("our own file");
    bundle.change(|config| {
        config["process"]["user"] = json!({"uid": 1000, "gid": 1000});
        let caps = json!(["CAP_SETUID", "CAP_SETGID"]);
        config["process"]["capabilities"] = json!({"bounding": caps});
        config["process"]["noNewPrivileges"] = json!(false);
    });
    let output = bundle.output(&node, &["/bin/id"]);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("uid=1000") && said.contains("euid=0"),
        "{said}"
    );
    assert!(output.stderr.is_empty(), "{said}");
}

// C85, C90.
fn static_and_musl() {
    let node = Node::start();
    let bundle = Bundle::new(&["SLUICE_MEMORY=1GiB"]);
    let source = bundle.path().join("hello.c");
    let hello = "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n";
    fs::write(&source, hello).expect("our own folder");
    let mut programs = vec!["static"];
    let to = |name: &str| bundle.root().join("bin").join(name);
    let mut cc = std::process::Command::new("cc");
    cc.arg("-static").arg("-o").arg(to("static")).arg(&source);
    let built = finish(&mut cc, PATIENCE);
    assert!(built.status.success(), "{}", text(&built));
    if let Some(musl) = crate::image::find("musl-gcc") {
        let mut cc = std::process::Command::new(musl);
        cc.arg("-o").arg(to("musl")).arg(&source);
        let built = finish(&mut cc, PATIENCE);
        assert!(built.status.success(), "{}", text(&built));
        programs.push("musl");
    } else {
        eprintln!(
            "NOT RUN: a program of musl: there is no musl-gcc; `apt-get install musl-tools` has it"
        );
    }
    for program in programs {
        let mut bundle = Bundle::new(&["SLUICE_MEMORY=1GiB"]);
        fs::copy(to(program), bundle.root().join("bin/hello")).expect("our own file");
        if program == "musl" {
            fs::create_dir_all(bundle.root().join("lib")).expect("our own folder");
            fs::copy(
                "/lib/ld-musl-x86_64.so.1",
                bundle.root().join("lib/ld-musl-x86_64.so.1"),
            )
            .expect("musl's loader");
        }
        bundle.id += program;
        let output = bundle.output(&node, &["/bin/hello"]);
        assert!(output.status.success(), "{program}: {}", text(&output));
        assert_eq!(text(&output), "hello\n", "{program}");
    }
}

// C89: and it is said whose it is not.
fn stranger() {
    let node = Node::start();
    let bundle = Bundle::new(&["SLUICE_MEMORY=1GiB"]);
    // A copy of the driver under another name, which no preload stands before.
    let copy = bundle.root().join("bin/driver.so");
    fs::copy(crate::support::stand_in().join("libcuda.so.1"), &copy).expect("a copy");
    bundle.change(|config| {
        config["process"]["args"] = json!(["/bin/stepper", "--driver", "/bin/driver.so"]);
    });
    let mut stepper = bundle.ready_stepper(&node);
    let (_, total) = stepper.info();
    assert_eq!(total, 8 * GIB, "it goes past the library");
    stepper.ok(&format!("alloc a {}", 64 * MIB));
    eventually("it is shown as a stranger", PATIENCE, || {
        let status = node.status();
        let strangers = status["devices"][0]["strangers"].as_array()?;
        strangers
            .iter()
            .any(|stranger| {
                stranger["command"] == "stepper" && stranger["memory_used_bytes"] == 64 * MIB
            })
            .then_some(())
    });
}

// C90.
fn missing_libraries() {
    let node = Node::start();
    let bundle = Bundle::new(&["SLUICE_MEMORY=1GiB"]);
    let mut stepper = bundle.stepper(&node);
    stepper.step("pid");
    drop(stepper);
    bundle.kill(&node);
    // The configuration is changed by now; somebody removes the libraries before the next start.
    bundle.change(|config| {
        for mount in config["mounts"].as_array_mut().expect("a list") {
            if mount["destination"] == "/opt/sluice/lib" {
                mount["source"] = json!("/nowhere/sluice");
            }
        }
    });
    let mut bundle = bundle;
    bundle.id += "-again";
    let output = bundle.output(&node, &["/bin/true"]);
    assert!(!output.status.success());
    assert!(
        text(&output).contains("/nowhere/sluice"),
        "{}",
        text(&output)
    );
    assert!(tenant_of(&node, &bundle).is_none());
}

fn one_name() {
    let node = Node::start();
    let variables = ["SLUICE_MEMORY=1GiB", "SLUICE_NAME=web"];
    let bundles = [Bundle::new(&variables), Bundle::new(&variables)];
    let steppers: Vec<Stepper> = bundles.iter().map(|it| it.ready_stepper(&node)).collect();
    let names = bundles.each_ref().map(|bundle| {
        let tenant = tenant_of(&node, bundle).expect("it is a tenant");
        tenant["name"].as_str().expect("a name").to_owned()
    });
    assert_eq!(names[0], "web");
    assert!(names[1].starts_with("web-"), "{names:?}");
    drop(steppers);
}

// C88, C110: an engine restarts a container faster than anybody hears of its end.
fn id_again() {
    let node = Node::start();
    let bundle = Bundle::new(&["SLUICE_MEMORY=6GiB"]);
    for _ in 0..3 {
        let mut stepper = bundle.ready_stepper(&node);
        stepper.ok(&format!("alloc a {}", 5 * GIB));
        bundle.kill(&node);
        let deleted = finish(
            bundle
                .runtime_command(&node)
                .args(["delete", "--force", &bundle.id]),
            PATIENCE,
        );
        assert!(deleted.status.success(), "{}", text(&deleted));
    }
    nobody_is_left(&node);
}

fn shares() {
    let node = Node::start();
    let one = Bundle::new(&["SLUICE_MEMORY=1GiB", "SLUICE_COMPUTE=75%"]);
    let two = Bundle::new(&["SLUICE_MEMORY=1GiB", "SLUICE_COMPUTE=25%"]);
    let mut steppers = [one.ready_stepper(&node), two.ready_stepper(&node)];
    for stepper in &mut steppers {
        stepper.begin("work-for 4000 500000 4");
    }
    for stepper in &mut steppers {
        stepper.answer("work-for", Duration::from_secs(40));
    }
    let busy = [&one, &two].map(|bundle| {
        let tenant = tenant_of(&node, bundle).expect("it is a tenant");
        let pid = tenant["owner_pid"].as_u64().expect("a number");
        node.busy(u32::try_from(pid).expect("a process id"))
            .as_secs_f64()
    });
    let part = busy[0] / (busy[0] + busy[1]);
    // Both end at the same moment only roughly; what is exact is the arbiter's to show.
    assert!((0.6..0.9).contains(&part), "{busy:?}");
}

fn peers_names() {
    let node = Node::start();
    let bundle = Bundle::new(&[
        "CUDA_DEVICE_MEMORY_LIMIT_0=2g",
        "CUDA_DEVICE_SM_LIMIT=40",
        "CUDA_TASK_PRIORITY=1",
    ]);
    let mut stepper = bundle.ready_stepper(&node);
    assert_eq!(stepper.info(), (2 * GIB, 2 * GIB));
    let tenant = tenant_of(&node, &bundle).expect("it is a tenant");
    let compute = &tenant["devices"][0]["compute"];
    assert_eq!(compute["ceiling_permille"], 400, "{compute}");
    assert_eq!(compute["class"], "batch", "{compute}");
}
