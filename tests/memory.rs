//! A container never holds more device memory than its cap, and being refused changes nothing.
//!
//! Linear, pitched and managed memory; what is asked by one process, by many
//! at once, and by others. Physical handles are in `physical.rs`, pools in `pools.rs`.

mod support;

use std::time::Duration;
use support::stepper::{POISON, number};
use support::{GIB, MIB, Node, Setup, Stepper, eventually};

/// How soon memory of a dead process must be back.
const GIVEN_BACK: Duration = Duration::from_secs(1);

#[test]
fn an_allocation_beyond_the_quota_is_refused_and_reserves_nothing() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("alloc a 600MiB");
    program.refused("alloc b 600MiB");
    assert_eq!(node.used("web", 0), 600 * MIB);
    assert_eq!(node.hardware.truth(0), 600 * MIB);
    program.ok("alloc c 424MiB");
    assert_eq!(program.info(), (0, GIB));
    program.refused("alloc d 1");
    program.ok("free a");
    program.ok("free c");
    assert_eq!(program.used(), 0);
    assert_eq!(node.used("web", 0), 0);
    assert_eq!(node.hardware.truth(0), 0);
    assert_eq!(node.figure("web", 0, "memory_peak_bytes"), GIB);
    assert_eq!(node.figure("web", 0, "oom_refusals"), 2);
    assert_eq!(node.figure("web", 0, "last_refused_bytes"), 1);
}

// C22, C30
#[test]
fn every_way_to_allocate_is_refused_with_out_of_memory_and_leaves_its_outputs_alone() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "64MiB");
    program.ok("pool-create own 0");
    let asked = [
        ("alloc a 65MiB", "cuMemAlloc", 65 * MIB),
        ("alloc-v1 a 66MiB", "cuMemAlloc", 66 * MIB),
        ("managed a 67MiB", "cuMemAllocManaged", 67 * MIB),
        ("pitch a 512 200000 4", "cuMemAllocPitch", 512 * 200_000),
        ("create a 68MiB device 0", "cuMemCreate", 68 * MIB),
        ("pool-alloc a 70MiB", "cuMemAllocAsync", 70 * MIB),
        ("pool-alloc a 4GiB own", "cuMemAllocFromPoolAsync", 4 * GIB),
        ("array a 4096 2048", "cuArrayCreate", 128 * MIB),
        ("array-v1 a 4096 2048", "cuArrayCreate", 128 * MIB),
        ("array-3d a 4096 2048 1 0", "cuArray3DCreate", 128 * MIB),
    ];
    for (count, (step, function, bytes)) in (1..).zip(asked) {
        program.refused(step);
        assert_eq!(program.used(), 0, "after \"{step}\"");
        let figure = |name| node.figure("web", 0, name);
        assert_eq!(figure("oom_refusals"), count, "after \"{step}\"");
        assert_eq!(figure("last_refused_bytes"), bytes, "after \"{step}\"");
        let last = serde_json::json!({"function": function, "bytes": bytes});
        assert_eq!(refusals(&node)["last"], last, "after \"{step}\"");
    }
    let counted = serde_json::json!({
        "cuMemAlloc": 2,
        "cuMemAllocManaged": 1,
        "cuMemAllocPitch": 1,
        "cuMemCreate": 1,
        "cuMemAllocAsync": 1,
        "cuMemAllocFromPoolAsync": 1,
        "cuArrayCreate": 2,
        "cuArray3DCreate": 1,
    });
    assert_eq!(refusals(&node)["by_function"], counted);
    let sizes = serde_json::json!([
        {"up_to_bytes": 512 * MIB, "count": 9},
        {"up_to_bytes": 4 * GIB, "count": 1},
    ]);
    assert_eq!(refusals(&node)["by_size"], sizes);
    let error = program.ok("error 2");
    assert_eq!(error["name"], "CUDA_ERROR_OUT_OF_MEMORY");
    assert_ne!(error["sentence"], "");
    assert_eq!(node.hardware.truth(0), 0);
}

/// What the status says of refusals to `web` on its first device.
fn refusals(node: &Node) -> serde_json::Value {
    let tenant = node.tenant_status("web").expect("a tenant");
    tenant["devices"][0]["refusals"].clone()
}

#[test]
fn the_oldest_interface_is_counted_as_the_newest_is() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "64MiB");
    // Its pointers have 32 bits. A driver whose memory lies higher refuses it; then nothing may
    // stay charged.
    match program.code("alloc-v1 a 48MiB") {
        0 => {
            assert_eq!(program.used(), 48 * MIB);
            program.refused("alloc-v1 b 48MiB");
            program.refused("alloc c 48MiB");
            program.ok("free-v1 a");
        }
        code => eprintln!("the driver itself answers {code} to cuMemAlloc of CUDA 2"),
    }
    assert_eq!(program.used(), 0);
    assert_eq!(node.used("web", 0), node.hardware.truth(0));
}

// C08
#[test]
fn a_pointer_that_nobody_handed_out_gets_the_drivers_own_answer() {
    let node = Node::start();
    let mut with = node.ready_stepper("web", "256MiB");
    let mut without = node.hardware.stepper();
    without.ok("init");
    without.ok("context 0");
    with.ok("alloc a 64MiB");
    for step in ["free 0xdead000", "release 0xdead000", "free 0"] {
        assert_eq!(with.code(step), without.code(step), "\"{step}\"");
        assert_eq!(with.used(), 64 * MIB, "after \"{step}\"");
    }
    assert_eq!(node.used("web", 0), 64 * MIB);
}

// C11
#[test]
fn padded_rows_are_charged_as_they_lie_in_memory() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "64MiB");
    let rows = 100_000;
    let answer = program.ok(&format!("pitch a 4 {rows} 4"));
    let pitch = number(&answer, "pitch") as u64;
    assert!(pitch >= 4);
    let charged = node.used("web", 0);
    assert!(charged >= pitch * rows, "{charged} for {pitch} x {rows}");
    assert_eq!(charged, node.hardware.truth(0));
    program.refused(&format!("pitch b 4 {rows} 4"));
    assert_eq!(
        node.hardware.truth(0),
        charged,
        "what did not fit was given back"
    );
    program.ok("free a");
    assert_eq!(program.used(), 0);
    program.ok(&format!("pitch b 4 {rows} 4"));
}

// C12
#[test]
fn memory_is_freed_on_the_device_that_it_lies_on() {
    let node = Node::with(&Setup {
        devices: 2,
        ..Setup::default()
    });
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("alloc on0 512MiB");
    program.ok("context 1");
    program.ok("alloc on1 512MiB");
    assert_eq!(
        (node.used("web", 0), node.used("web", 1)),
        (512 * MIB, 512 * MIB)
    );
    program.ok("free on0");
    assert_eq!((node.used("web", 0), node.used("web", 1)), (0, 512 * MIB));
    program.ok("context-none");
    let code = program.code("free on1");
    assert_eq!(node.used("web", 1), if code == 0 { 0 } else { 512 * MIB });
    program.ok("context 1");
    if code != 0 {
        program.ok("free on1");
    }
    assert_eq!((node.used("web", 0), node.used("web", 1)), (0, 0));
    assert_eq!((node.hardware.truth(0), node.hardware.truth(1)), (0, 0));
}

// C13
#[test]
fn of_many_who_race_for_the_last_bytes_never_two_win() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    for kind in ["linear", "physical", "mapped", "ordered"] {
        let race = format!("race 4 150 600MiB 200 {kind}");
        let mut programs: Vec<Stepper> = (0..4).map(|_| tenant.ready_stepper()).collect();
        for program in &mut programs {
            program.begin(&race);
        }
        let (mut granted, mut refused) = (0, 0);
        for program in &mut programs {
            // Both the account and the hardware are looked at while the others still race.
            assert!(node.used("web", 0) <= GIB);
            assert!(node.hardware.truth(0) <= GIB);
            let answer = program.answer(&race, Duration::from_secs(120));
            assert_eq!(number(&answer, "other"), 0, "{answer}");
            assert!(number(&answer, "most_holders") <= 1, "{answer}");
            granted += number(&answer, "granted");
            refused += number(&answer, "refused");
        }
        assert_eq!(granted + refused, 4 * 4 * 150);
        assert!(granted > 0 && refused > 0, "{granted} and {refused}");
        assert_eq!(node.hardware.truth(0), 0);
        assert_eq!(programs[0].used(), 0);
        programs[0].ok("alloc all 1GiB");
    }
    assert!(node.figure("web", 0, "memory_peak_bytes") <= GIB);
}

#[test]
fn of_requests_that_do_not_all_fit_as_many_succeed_as_fit() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    // Eight threads hold 200 MiB each for long: five fit, always.
    let answer = program.step_within("race 8 10 200MiB 300000 linear", Duration::from_secs(60));
    assert_eq!(number(&answer, "granted"), 50, "{answer}");
    assert_eq!(number(&answer, "refused"), 30, "{answer}");
    assert_eq!(number(&answer, "most_holders"), 5, "{answer}");
}

// C14
#[test]
fn the_cap_belongs_to_the_container_and_not_to_each_process() {
    let node = Node::start();
    let mut first = node.ready_stepper("web", "1GiB");
    first.step("child second");
    for step in ["init", "context 0", "alloc a 400MiB"] {
        assert_eq!(number(&first.tell("second", step), "rc"), 0);
    }
    // The third is a grandchild.
    first.tell("second", "child third");
    for step in ["init", "context 0", "alloc a 400MiB"] {
        let answer = first.tell("second", &format!("tell third {step}"));
        assert_eq!(number(&answer["child"], "rc"), 0);
    }
    first.refused("alloc a 400MiB");
    let free = GIB - 800 * MIB;
    assert_eq!(first.info(), (free, GIB));
    let second = first.tell("second", "info");
    let third = first.tell("second", "tell third info");
    assert_eq!(number(&second, "free") as u64, free);
    assert_eq!(number(&third["child"], "free") as u64, free);
    let tenant = node.tenant_status("web").expect("it runs");
    assert_eq!(tenant["processes"].as_array().map(Vec::len), Some(3));
}

// C15
#[test]
fn page_locked_host_memory_is_not_device_memory() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "256MiB");
    program.ok("host-alloc a 2GiB");
    program.ok("alloc-host b 1GiB");
    let registered = program.ok("host-register 1GiB");
    assert_eq!(number(&registered, "unregister_rc"), 0);
    program.ok("alloc c 200MiB");
    assert_eq!(program.used(), 200 * MIB);
    program.ok("host-free a");
    program.ok("host-free b");
    assert_eq!(program.used(), 200 * MIB);
}

// C16
#[test]
fn managed_memory_counts_in_full_and_is_still_seen_as_managed() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "512MiB");
    program.ok("managed m 400MiB");
    program.refused("managed n 200MiB");
    program.ok("alloc p 64MiB");
    for (name, is_managed) in [("m", 1), ("p", 0)] {
        let answer = program.ok(&format!("attributes {name}"));
        assert_eq!(number(&answer, "managed"), is_managed, "{name}: {answer}");
        assert_eq!(number(&answer, "many_rc"), 0, "{name}: {answer}");
        assert_eq!(number(&answer, "many_managed"), is_managed, "{name}");
    }
    program.ok("free m");
    assert_eq!(program.used(), 64 * MIB);
    program.ok("managed n 200MiB");
}

// C20
#[test]
fn freeing_twice_gives_nothing_back_twice() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "256MiB");
    program.ok("alloc a 64MiB");
    program.ok("alloc b 64MiB");
    program.ok("free a");
    assert_ne!(program.code("free a"), 0);
    assert_eq!(program.used(), 64 * MIB);
    for (take, give_back) in [
        ("alloc c 32MiB", "free"),
        ("create c 32MiB device 0", "release"),
        ("pool-alloc c 32MiB", "pool-free"),
    ] {
        for round in 0..300 {
            program.ok(take);
            let answer = program.step(&format!("together {give_back} c"));
            let codes = [number(&answer, "rc"), number(&answer, "other_rc")];
            let done = codes.iter().filter(|code| **code == 0).count();
            assert_eq!(done, 1, "{give_back}, round {round}: {answer}");
            program.ok("synchronize");
            assert_eq!(program.used(), 64 * MIB, "{give_back}, round {round}");
        }
    }
    assert_eq!(node.hardware.truth(0), 64 * MIB);
}

// C20
#[test]
fn hours_of_allocating_and_freeing_leave_an_exact_account() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let churn = |seed: u64| format!("churn {seed} 20000 256MiB");
    let mut programs: Vec<Stepper> = (0..3).map(|_| tenant.ready_stepper()).collect();
    for (seed, program) in programs.iter_mut().enumerate() {
        program.begin(&churn(seed as u64 + 11));
    }
    for (seed, program) in programs.iter_mut().enumerate() {
        let answer = program.answer(&churn(seed as u64 + 11), Duration::from_secs(120));
        assert_eq!(number(&answer, "other"), 0, "{answer}");
        assert_eq!(
            number(&answer, "refused"),
            0,
            "three times 256 MiB fit: {answer}"
        );
    }
    assert_eq!(programs[0].info(), (GIB, GIB));
    assert_eq!(node.used("web", 0), 0);
    assert_eq!(node.hardware.truth(0), 0);
}

// C96
#[test]
fn a_cap_that_is_lowered_below_what_is_used_shows_nothing_free() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("nvml-init");
    program.ok("alloc a 600MiB");
    node.set_memory("web", "256MiB");
    assert_eq!(program.info(), (0, 256 * MIB));
    for step in ["nvml-memory 0", "nvml-memory-v2 0"] {
        let seen = program.ok(step);
        assert_eq!(number(&seen, "total") as u64, 256 * MIB, "{step}: {seen}");
        assert_eq!(number(&seen, "free"), 0, "{step}: {seen}");
        assert!(number(&seen, "used") as u64 <= 256 * MIB, "{step}: {seen}");
    }
    program.refused("alloc b 1MiB");
    assert_eq!(node.used("web", 0), 600 * MIB, "what is held stays");
    program.ok("free a");
    program.ok("alloc b 256MiB");
    node.set_memory("web", "2GiB");
    assert_eq!(program.info(), (2 * GIB - 256 * MIB, 2 * GIB));
    program.ok("alloc c 1GiB");
}

// C24
#[test]
fn a_cap_is_never_more_than_the_device() {
    let node = Node::with(&Setup {
        overcommit: 4.0,
        ..Setup::default()
    });
    let refusal = support::finish(node.run("big", "10GiB").arg("true"), support::PATIENCE);
    let sentence = String::from_utf8_lossy(&refusal.stderr);
    assert!(!refusal.status.success());
    assert!(sentence.contains("10GiB"), "{sentence}");
    let mut program = node.ready_stepper("all", "max");
    assert_eq!(program.info(), (8 * GIB, 8 * GIB));
    assert_eq!(number(&program.ok("total 0"), "total") as u64, 8 * GIB);
}

// C25
#[test]
fn outputs_that_nobody_asked_for_may_be_null() {
    let node = Node::start();
    let mut with = node.ready_stepper("web", "1GiB");
    let mut without = node.hardware.stepper();
    without.ok("init");
    without.ok("context 0");
    let (ours, theirs) = (with.step("info-partly"), without.step("info-partly"));
    for key in ["rc", "free_rc", "neither_rc"] {
        assert_eq!(ours[key], theirs[key], "{key}");
    }
    assert_eq!(number(&ours, "total") as u64, GIB);
    assert_eq!(number(&ours, "free") as u64, GIB);
    with.ok("alloc a 8MiB");
    assert_eq!(number(&with.ok("range a"), "bytes") as u64, 8 * MIB);
    for (name, is_known) in [("cuMemAlloc", true), ("cuNoSuchFunction", false)] {
        let step = format!("lookup-briefly {name}");
        let (ours, theirs) = (with.step(&step), without.step(&step));
        assert_eq!(ours["rc"], theirs["rc"], "{step}");
        assert_eq!(number_is_set(&ours), is_known, "{step}: {ours}");
        assert_eq!(number_is_set(&theirs), is_known, "{step}: {theirs}");
    }
}

/// Whether a look-up found something.
fn number_is_set(answer: &serde_json::Value) -> bool {
    !matches!(answer["address"].as_u64(), None | Some(0 | POISON))
}

// C23
#[test]
fn a_cap_smaller_than_a_context_is_shown_as_it_is() {
    let node = Node::with(&Setup {
        gpu: vec!["--context-overhead", "345MiB"],
        ..Setup::default()
    });
    let mut program = node.ready_stepper("web", "300MiB");
    program.ok("nvml-init");
    for step in ["info", "nvml-memory 0", "nvml-memory-v2 0"] {
        let seen = program.ok(step);
        let (free, total) = (number(&seen, "free"), number(&seen, "total"));
        assert_eq!(total as u64, 300 * MIB, "{step}: {seen}");
        assert!((0..=total).contains(&free), "{step}: {seen}");
    }
    program.refused("alloc a 301MiB");
}

// C27
#[test]
fn after_a_refusal_freeing_and_asking_again_works() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("alloc cached 500MiB");
    program.refused("alloc wanted 800MiB");
    program.ok("free cached");
    program.ok("alloc wanted 800MiB");
    program.ok("launch 100000");
    program.ok("synchronize");
    program.ok("free wanted");
    assert_eq!(program.used(), 0);
    assert_eq!(
        node.hardware.truth(0),
        0,
        "a refused request never reached the driver"
    );
}

// C28
#[test]
fn what_is_shown_as_free_can_be_had_in_one_piece_and_not_a_byte_more() {
    let node = Node::with(&Setup {
        overcommit: 2.0,
        ..Setup::default()
    });
    for (name, cap) in [("more", GIB + MIB), ("less", GIB - 1), ("even", GIB)] {
        let mut program = node.ready_stepper(name, &cap.to_string());
        let (free, total) = program.info();
        assert!(
            total <= cap && cap - total < 512,
            "{name}: {total} of {cap}"
        );
        program.ok(&format!("alloc a {free}"));
        assert_eq!(program.info().0, 0);
        program.ok("free a");
        program.refused(&format!("alloc a {}", free + 1));
        let mut chunks = 0;
        while program.code("create h 2MiB device 0") == 0 {
            chunks += 1;
        }
        assert_eq!(chunks, cap / (2 * MIB), "{name}");
        assert_eq!(node.used(name, 0), chunks * 2 * MIB);
        program.quit();
    }
}

// C29
#[test]
fn fractions_of_the_total_do_not_depend_on_who_starts_first() {
    for order in [["large", "small"], ["small", "large"]] {
        let node = Node::start();
        let caps = |name: &str| if name == "large" { 4 * GIB } else { 2 * GIB };
        let mut programs: Vec<(&str, Stepper)> = order
            .iter()
            .map(|name| {
                let mut program = node.ready_stepper(name, &caps(name).to_string());
                let (free, total) = program.info();
                assert_eq!((free, total), (caps(name), caps(name)));
                program.ok(&format!("alloc a {}", total / 4 * 3));
                (*name, program)
            })
            .collect();
        for (name, program) in &mut programs {
            assert_eq!(program.used(), caps(name) / 4 * 3);
        }
    }
}

// C31
#[test]
fn memory_of_a_child_that_has_ended_is_soon_seen_as_free_without_asking_for_any() {
    let node = Node::start();
    let tenant = node.tenant("web", "2GiB");
    let mut watcher = tenant.ready_stepper();
    for ending in ["by itself", "by kill -9"] {
        let mut child = tenant.ready_stepper();
        child.ok("alloc a 1GiB");
        assert_eq!(watcher.used(), GIB);
        match ending {
            "by itself" => child.quit(),
            _ => child.kill(),
        }
        eventually(
            &format!("memory is back, ended {ending}"),
            GIVEN_BACK,
            || (watcher.used() == 0).then_some(()),
        );
        eventually("and in truth", GIVEN_BACK, || {
            (node.hardware.truth(0) == 0).then_some(())
        });
    }
}

// C12
#[test]
fn a_free_counts_where_the_memory_lies_whatever_device_is_current() {
    let node = Node::with(&Setup {
        devices: 2,
        ..Setup::default()
    });
    let mut program = node.ready_stepper("web", "0:1GiB,1:1GiB");
    program.ok("alloc first 512MiB");
    program.ok("context 1");
    program.ok("alloc second 256MiB");
    let used = || (node.used("web", 0), node.used("web", 1));
    assert_eq!(used(), (512 * MIB, 256 * MIB));
    program.ok("free first");
    assert_eq!(used(), (0, 256 * MIB));
    program.ok("context 0");
    program.ok("free second");
    assert_eq!(used(), (0, 0));
    assert_eq!((node.hardware.truth(0), node.hardware.truth(1)), (0, 0));
    // The room is where it was: all of each cap, and no more.
    for device in ["0", "1"] {
        program.ok(&format!("context {device}"));
        program.ok(&format!("alloc all{device} 1GiB"));
        program.refused(&format!("alloc more{device} 1"));
    }
}
