//! What fails in the driver fails for the program as it would without us, and the account stays exact.

mod support;

use std::time::{Duration, Instant};
use support::stepper::number;
use support::{GIB, MIB, Node, Program, Stepper};

/// A program of its own tenant on a driver with these faults, with a context on device 0.
fn faulty(node: &Node, faults: &str) -> Stepper {
    let mut command = node.run("web", "1GiB");
    command.arg(Program::Stepper.path());
    command.env("SLUICE_SIM_FAULTS", faults);
    let mut program = Stepper::start(&mut command);
    program.ok("init");
    program.ok("context 0");
    program
}

// C42
#[test]
fn a_driver_that_refuses_is_heard_and_nothing_is_charged() {
    let node = Node::start();
    let mut program = faulty(
        &node,
        "cuMemAlloc_v2@2=CUDA_ERROR_OUT_OF_MEMORY; cuMemCreate=719",
    );
    program.ok("alloc a 64MiB");
    program.refused("alloc b 64MiB");
    assert_eq!(program.code("create h 2MiB device 0"), 719);
    assert_eq!(node.used("web", 0), 64 * MIB);
    assert_eq!(
        node.figure("web", 0, "oom_refusals"),
        0,
        "it was not the cap"
    );
    program.ok("alloc c 64MiB");
    assert_eq!(node.used("web", 0), node.hardware.truth(0));
}

// C20
#[test]
fn a_free_that_fails_leaves_the_charge_and_can_be_made_again() {
    let node = Node::start();
    let mut program = faulty(&node, "cuMemFree_v2@1=700");
    program.ok("alloc a 64MiB");
    assert_eq!(program.code("free a"), 700);
    assert_eq!(node.used("web", 0), 64 * MIB);
    program.ok("free a");
    assert_eq!(node.used("web", 0), 0);
}

// C19
#[test]
fn an_allocation_is_counted_though_the_driver_cannot_say_what_its_pool_has() {
    let node = Node::start();
    let mut program = faulty(&node, "cuMemPoolGetAttribute=999");
    program.ok("pool-alloc a 64MiB");
    assert!(node.used("web", 0) >= 64 * MIB);
    program.refused("alloc b 1GiB");
}

// C62, C64
#[test]
fn a_ceiling_holds_though_nvml_says_nothing_or_nonsense() {
    let _alone = support::alone();
    let mut node = Node::start();
    for (name, faults) in [
        (
            "first",
            "nvmlDeviceGetProcessUtilization=NVML_ERROR_NOT_FOUND; nvmlDeviceGetUtilizationRates=999; \
         nvmlDeviceGetComputeRunningProcesses_v3=NVML_ERROR_UNKNOWN",
        ),
        ("second", "nvmlDeviceGetComputeRunningProcesses_v3+forever"),
    ] {
        node.kill_daemon();
        node.start_daemon_with(&[("SLUICE_SIM_FAULTS", faults)]);
        let mut program = node.stepper_with(name, &["--compute-max", "30%"]);
        program.begin("work-for 3500 1000000 10");
        std::thread::sleep(Duration::from_secs(1));
        let (begin, before) = (Instant::now(), node.busy(program.pid()));
        std::thread::sleep(Duration::from_secs(2));
        let share =
            (node.busy(program.pid()) - before).as_secs_f64() / begin.elapsed().as_secs_f64();
        assert_eq!(
            number(&program.answer("work-for", Duration::from_secs(30)), "rc"),
            0
        );
        assert!((share - 0.3).abs() <= 0.12, "{faults}: {share}");
    }
}

// C43
#[test]
fn a_slow_driver_that_lacks_much_only_takes_its_own_time() {
    let node = Node::start();
    let faults = "cuInit+2s; cuMemAllocAsync!absent; cuMemAllocFromPoolAsync!absent; cuMemPoolCreate!absent; \
                  cuMemPoolGetAttribute!absent; cuMemPoolTrimTo!absent; cuGraphMemAllocNodeGetParams!absent; \
                  cuDeviceGetGraphMemAttribute!absent; cuDeviceGraphMemTrim!absent; cuLaunchKernelEx!absent; \
                  cuGreenCtxCreate!absent; cuLibraryLoadData!absent; cuKernelGetFunction!absent; \
                  cuMulticastCreate!absent; cuMemBatchDecompressAsync!absent; cuCheckpointProcessLock!absent; \
                  cuGraphAddNode_v2!absent; cuDeviceGetUuid_v2!absent; cuArrayGetMemoryRequirements!absent; \
                  cuStreamGetCtx_v2!absent; cuStreamBatchMemOp_v2!absent";
    let begin = Instant::now();
    let mut program = faulty(&node, faults);
    assert!(begin.elapsed() >= Duration::from_secs(2));
    program.ok("alloc a 600MiB");
    program.refused("alloc b 600MiB");
    program.ok("array c 4096 1024");
    program.ok("work-launch cuLaunchKernel 1000 10");
    program.ok("work-wait");
}

#[test]
fn a_kill_in_the_middle_of_a_call_gives_everything_back() {
    let node = Node::start();
    let mut holder = node.ready_stepper("other", "1GiB");
    holder.ok("alloc a 16MiB");
    let mut program = faulty(&node, "cuMemAlloc_v2@3!kill");
    program.ok("alloc a 256MiB");
    program.ok("alloc b 256MiB");
    program.begin("alloc c 256MiB");
    drop(program);
    support::eventually("the memory is back", Duration::from_secs(2), || {
        (node.hardware.truth(0) == 16 * MIB).then_some(())
    });
}

#[test]
fn management_that_hangs_holds_up_neither_the_daemon_nor_programs() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    let mut command = node.run("monitor", "1GiB");
    command.arg(Program::Stepper.path());
    command.env("SLUICE_SIM_FAULTS", "nvmlDeviceGetMemoryInfo+forever");
    let mut monitor = Stepper::start(&mut command);
    monitor.ok("nvml-init");
    monitor.begin("nvml-memory 0");
    let begin = Instant::now();
    program.ok("alloc a 64MiB");
    assert_eq!(node.used("web", 0), 64 * MIB);
    assert!(begin.elapsed() < Duration::from_secs(5));
    monitor.kill();
}

#[test]
fn a_function_that_the_driver_lacks_is_not_found_by_its_name() {
    let node = Node::start();
    let mut command = node.hardware.command(Program::Stepper.path());
    command.env(
        "SLUICE_SIM_FAULTS",
        "cuMemAllocAsync!absent; cuMemAllocAsync_ptsz!absent",
    );
    let mut program = Stepper::start(&mut command);
    program.ok("init");
    program.ok("context 0");
    let answer = program.step("lookup cuMemAllocAsync 12000 0");
    assert_eq!(number(&answer, "status"), 1, "{answer}");
    assert_eq!(program.code("pool-alloc a 1MiB"), 500);
    assert_eq!(program.info().1, 8 * GIB);
}

#[test]
fn padded_rows_that_do_not_fit_and_are_not_taken_back_stay_charged() {
    let node = Node::start();
    let mut program = faulty(&node, "cuMemFree_v2@1=CUDA_ERROR_UNKNOWN");
    program.ok("alloc a 1023MiB");
    // Some kilobytes of texels; with their padding 2.7 MiB, which the driver has to tell first.
    program.refused("pitch rows 1 5595 4");
    let used = node.used("web", 0);
    assert_eq!(used, node.hardware.truth(0));
    assert_eq!(used, 1023 * MIB + 5595 * 512);
    program.ok("free a");
    program.ok("pitch rows 1 5595 4");
    assert_eq!(node.used("web", 0), 2 * 5595 * 512);
    assert_eq!(node.used("web", 0), node.hardware.truth(0));
}
