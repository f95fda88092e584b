//! Arrays are charged what the driver makes of them, not what their texels add up to.

mod support;

use support::{MIB, Node};

/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`.
const WITHOUT_BACKING: [u32; 2] = [0x40, 0x80];

// C01 and C05 for arrays.
#[test]
fn an_array_is_charged_what_the_driver_makes_of_it() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "64MiB");
    for create in [
        "array a 1001 1001",
        "array-v1 a 1001 1001",
        "array-3d a 1001 1001 1 0",
    ] {
        program.ok(create);
        let used = node.used("web", 0);
        assert!(used > 1001 * 1001 * 16, "{create}: padding counts");
        assert_eq!(used, node.hardware.truth(0), "{create}");
        program.ok("array-destroy a");
        assert_eq!(node.used("web", 0), 0, "{create}");
        assert_eq!(node.hardware.truth(0), 0, "{create}");
    }
    program.ok("array a 1024 1024");
    program.ok("array b 1024 2048");
    program.refused("array c 1024 2048");
    assert_eq!(node.used("web", 0), 48 * MIB);
    program.ok("array c 1024 1024");
    assert_eq!(node.used("web", 0), 64 * MIB);
    program.refused("alloc d 1");
    program.ok("array-destroy b");
    assert_ne!(program.code("array-destroy b"), 0, "destroyed already");
    assert_eq!(node.used("web", 0), 32 * MIB);
    assert_eq!(node.hardware.truth(0), 32 * MIB);
}

#[test]
fn a_mipmapped_array_is_charged_with_all_its_levels() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "64MiB");
    program.ok("array-mipmapped m 1024 1024 11");
    let used = node.used("web", 0);
    assert!(used > 21 * MIB, "{used}");
    assert_eq!(used, node.hardware.truth(0));
    program.refused("array-mipmapped n 2048 1024 12");
    assert_eq!(node.used("web", 0), used);
    program.ok("array-mipmapped-destroy m");
    assert_eq!(node.used("web", 0), 0);
    assert_eq!(node.hardware.truth(0), 0);
}

#[test]
fn an_array_without_backing_is_charged_nothing() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1MiB");
    for flags in WITHOUT_BACKING {
        program.ok(&format!("array-3d a 4096 4096 0 {flags}"));
        assert_eq!(node.used("web", 0), 0, "flags {flags:#x}");
        assert_eq!(node.hardware.truth(0), 0, "flags {flags:#x}");
        program.ok("array-destroy a");
    }
    assert_eq!(node.figure("web", 0, "oom_refusals"), 0);
}

#[test]
fn an_array_that_defers_its_mapping_holds_what_is_mapped_into_it() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "8MiB");
    for end in ["array-unmap a", "array-destroy a", "context-reset 0"] {
        program.ok("context 0");
        program.ok("array-3d a 256 256 0 0x80");
        program.ok("create h 2MiB device 0");
        program.ok("array-map a h");
        program.ok("release h");
        assert_eq!(node.used("web", 0), 2 * MIB, "{end}");
        assert_eq!(node.hardware.truth(0), 2 * MIB, "{end}");
        program.ok(end);
        assert_eq!(node.used("web", 0), 0, "{end}");
        assert_eq!(node.hardware.truth(0), 0, "{end}");
    }
}

// C18
#[test]
fn the_end_of_a_context_gives_its_arrays_back() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "64MiB");
    program.ok("array kept 256 256");
    program.ok("context-create own 0");
    program.ok("array a 1024 1024");
    program.ok("array-mipmapped m 256 256 1");
    assert_eq!(node.used("web", 0), 18 * MIB);
    program.ok("context-destroy own");
    assert_eq!(node.used("web", 0), MIB);
    assert_eq!(node.hardware.truth(0), MIB);
    program.ok("array-destroy kept");
    assert_eq!(node.used("web", 0), 0);
}

#[test]
fn a_shape_that_cannot_be_gets_the_drivers_own_answer() {
    let node = Node::start();
    let mut with = node.ready_stepper("web", "64KiB");
    let mut without = node.hardware.stepper();
    without.ok("init");
    without.ok("context 0");
    for step in [
        "array a 0 16",
        "array-3d a 16 0 16 0",
        "array-3d a 16 8 6 4",
        "array-3d a 16 16 0 0x100000",
        "array-destroy 0x1234",
    ] {
        assert_eq!(with.code(step), without.code(step), "\"{step}\"");
        assert_eq!(node.used("web", 0), 0, "\"{step}\"");
    }
    with.ok("array a 16 16");
    assert_eq!(node.used("web", 0), MIB / 16);
}
