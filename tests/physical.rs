//! Physical memory is charged by its handle, for as long as anything refers to it.

mod support;

use support::stepper::number;
use support::{GIB, MIB, Node, Setup, Stepper};

// C01
#[test]
fn a_handle_is_charged_until_its_last_reference_and_its_last_mapping_are_gone() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("create h1 512MiB device 0");
    program.ok("create h2 512MiB device 0");
    program.refused("create h3 2MiB device 0");
    program.ok("reserve va1 512MiB");
    program.ok("reserve va2 512MiB");
    program.ok("map va1 0 h1 512MiB");
    program.ok("map va2 0 h1 512MiB");
    assert_eq!(program.used(), GIB, "mapping costs nothing");
    program.ok("release h1");
    assert_eq!(program.used(), GIB, "still mapped twice");
    program.ok("unmap va1 0 512MiB");
    assert_eq!(program.used(), GIB, "still mapped once");
    assert_eq!(node.hardware.truth(0), GIB);
    program.ok("unmap va2 0 512MiB");
    assert_eq!(program.used(), 512 * MIB);
    assert_eq!(node.hardware.truth(0), 512 * MIB);
    program.ok("create h3 512MiB device 0");
}

#[test]
fn a_handle_that_is_unmapped_first_is_charged_until_its_release() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("create h 512MiB device 0");
    program.ok("reserve va 512MiB");
    program.ok("map va 0 h 512MiB");
    program.ok("access va 0 512MiB 0");
    program.ok("fill va 90 4096");
    assert_eq!(number(&program.ok("read va"), "byte"), 90);
    program.ok("unmap va 0 512MiB");
    assert_eq!(program.used(), 512 * MIB);
    program.ok("release h");
    assert_eq!(program.used(), 0);
    assert_ne!(program.code("release h"), 0, "a second release is an error");
    assert_eq!(program.used(), 0);
    assert_eq!(node.hardware.truth(0), 0);
}

// C02
#[test]
fn physical_memory_of_the_host_is_not_charged() {
    let node = Node::start();
    let mut with = node.ready_stepper("web", "256MiB");
    let mut without = node.hardware.stepper();
    without.ok("init");
    for step in ["create a 1GiB host-numa 0", "create b 1GiB host 0"] {
        assert_eq!(with.code(step), without.code(step), "\"{step}\"");
    }
    with.ok("create c 128MiB device 0");
    assert_eq!(with.used(), 128 * MIB);
    with.refused("create d 130MiB device 0");
}

// C03
#[test]
fn a_thread_without_a_context_is_charged_on_the_device_that_it_names() {
    let node = Node::with(&Setup {
        devices: 2,
        ..Setup::default()
    });
    let mut program = node.ready_stepper("web", "0:1GiB,1:256MiB");
    program.refused("thread create a 512MiB device 1");
    program.ok("thread create b 128MiB device 1");
    let code = program.code("thread alloc c 1MiB");
    assert_eq!(code, 201, "CUDA_ERROR_INVALID_CONTEXT");
    assert_eq!(node.used("web", 0), 0);
    assert_eq!(node.used("web", 1), 128 * MIB);
    assert_eq!(node.hardware.truth(0), 0);
    assert_eq!(node.hardware.truth(1), 128 * MIB);
}

// C04
#[test]
fn address_space_is_not_memory() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("reserve va 32GiB");
    assert_eq!(program.used(), 0);
    for chunk in 0..16 {
        program.ok("create h 2MiB device 0");
        program.ok(&format!("map va {} h 2MiB", chunk * 2 * MIB));
        program.ok("release h");
    }
    assert_eq!(program.used(), 32 * MIB);
    for chunk in 0..16 {
        program.ok(&format!("unmap va {} 2MiB", chunk * 2 * MIB));
    }
    program.ok("unreserve va 32GiB");
    assert_eq!(program.used(), 0);
}

// C05
#[test]
fn segments_that_grow_and_shrink_by_chunks_are_charged_chunk_by_chunk() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("reserve va 4GiB");
    let grow = |program: &mut Stepper, chunk: u64| {
        program.ok("create h 2MiB device 0");
        program.ok(&format!("map va {} h 2MiB", chunk * 2 * MIB));
        program.ok("release h");
    };
    for chunk in 0..400 {
        grow(&mut program, chunk);
        if chunk % 50 == 0 {
            assert_eq!(program.used(), (chunk + 1) * 2 * MIB);
        }
    }
    assert_eq!(program.used(), 800 * MIB);
    for chunk in (300..400).rev() {
        program.ok(&format!("unmap va {} 2MiB", chunk * 2 * MIB));
    }
    assert_eq!(program.used(), 600 * MIB);
    for chunk in 300..512 {
        grow(&mut program, chunk);
    }
    assert_eq!(program.used(), GIB);
    program.refused("create h 2MiB device 0");
    program.ok(&format!("access va 0 {GIB} 0"));
    program.ok("fill va 7 4096");
    assert_eq!(number(&program.ok("read va"), "byte"), 7);
}

// C06
#[test]
fn an_engine_that_sleeps_lends_its_memory_and_wakes_at_the_same_addresses() {
    let node = Node::with(&Setup {
        memory: "4GiB",
        overcommit: 2.0,
        ..Setup::default()
    });
    let mut sleeper = node.ready_stepper("sleeper", "3GiB");
    let mut other = node.ready_stepper("other", "3GiB");
    sleeper.ok("reserve va 3GiB");
    let wake = |sleeper: &mut Stepper| {
        sleeper.ok("create h 3GiB device 0");
        let mapped = sleeper.ok("map va 0 h 3GiB");
        number(&mapped, "address")
    };
    let before = wake(&mut sleeper);
    other.refused("alloc a 3GiB");
    sleeper.ok("unmap va 0 3GiB");
    sleeper.ok("release h");
    assert_eq!(node.used("sleeper", 0), 0);
    other.ok("alloc a 3GiB");
    other.ok("free a");
    assert_eq!(wake(&mut sleeper), before);
    assert_eq!(node.used("sleeper", 0), 3 * GIB);
}

#[test]
fn a_handle_that_is_retained_through_its_mapping_is_charged_once_and_until_both_are_released() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("create h 512MiB device 0");
    program.ok("reserve va 512MiB");
    program.ok("map va 0 h 512MiB");
    program.ok("retain-at again va 0");
    assert_eq!(program.used(), 512 * MIB);
    program.ok("release h");
    program.ok("unmap va 0 512MiB");
    assert_eq!(program.used(), 512 * MIB, "still retained");
    assert_eq!(node.hardware.truth(0), 512 * MIB);
    program.ok("release again");
    assert_eq!(program.used(), 0);
    assert_eq!(node.hardware.truth(0), 0);
}

// C18
#[test]
fn physical_memory_outlives_the_context_and_linear_memory_does_not() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    for _ in 0..3 {
        program.ok("alloc a 900MiB");
        program.ok("create h 64MiB device 0");
        program.ok("context-reset 0");
        assert_eq!(node.used("web", 0), 64 * MIB);
        assert_eq!(node.hardware.truth(0), 64 * MIB);
        program.ok("context 0");
        program.ok("alloc a 900MiB");
        program.ok("release h");
        program.ok("free a");
    }
    for _ in 0..3 {
        program.ok("context-create c 0");
        program.ok("alloc a 900MiB");
        program.ok("create h 64MiB device 0");
        program.ok("context-destroy c");
        assert_eq!(node.used("web", 0), 64 * MIB);
        assert_eq!(node.hardware.truth(0), 64 * MIB);
        program.ok("release h");
    }
    assert_eq!(node.used("web", 0), 0);
    assert_ne!(program.code("context-destroy c"), 0);
    assert_eq!(node.used("web", 0), 0);
}

// C17
#[test]
fn a_context_that_is_retained_often_frees_its_memory_with_its_last_release() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("context 0");
    program.ok("context 0");
    program.ok("alloc a 512MiB");
    for _ in 0..2 {
        program.ok("context-release 0");
        assert_eq!(node.used("web", 0), 512 * MIB);
        assert_eq!(node.hardware.truth(0), 512 * MIB);
    }
    program.ok("context-release 0");
    assert_eq!(node.used("web", 0), 0);
    assert_eq!(node.hardware.truth(0), 0);
    assert_ne!(program.code("context-release 0"), 0, "once too often");
    assert_eq!(node.used("web", 0), 0);
}

#[test]
fn a_context_that_was_attached_to_ends_with_its_last_detachment() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("context-create own 0");
    program.ok("alloc a 64MiB");
    program.ok("context-attach");
    program.ok("context-detach own");
    assert_eq!(node.used("web", 0), 64 * MIB);
    assert_eq!(node.hardware.truth(0), 64 * MIB);
    program.ok("context-detach own");
    assert_eq!(node.used("web", 0), 0);
    assert_eq!(node.hardware.truth(0), 0);
}
