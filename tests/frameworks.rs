//! What frameworks do at the driver, step by step, works under a cap as it works on a smaller GPU.
//!
//! Each test is a replica of one allocator or engine: the calls that it makes, in their order and with
//! its sizes. The frameworks themselves need a GPU; what they ask of a driver does not.

mod support;

use std::time::{Duration, Instant};
use support::stepper::number;
use support::{GIB, MIB, Node, Setup, Stepper};

/// A large block of PyTorch's caching allocator.
const SEGMENT: u64 = 20 * MIB;
/// A chunk of its expandable segments.
const CHUNK: u64 = 2 * MIB;

#[track_caller]
fn assert_exact(node: &Node, name: &str) -> u64 {
    let used = node.used(name, 0);
    assert_eq!(used, node.hardware.truth(0));
    used
}

/// A stretch of addresses that grows and shrinks by chunks, as expandable segments and memory pools
/// made of physical handles do.
struct Stretch {
    name: &'static str,
    chunks: u64,
}

impl Stretch {
    fn reserve(program: &mut Stepper, name: &'static str, bytes: u64) -> Self {
        program.ok(&format!("reserve {name} {bytes}"));
        Self { name, chunks: 0 }
    }

    /// Takes `count` chunks, all or none; the handles are let go of once they are mapped.
    fn grow(&mut self, program: &mut Stepper, count: u64) -> bool {
        for taken in 0..count {
            if program.code(&format!("create {}{taken} {CHUNK} device 0", self.name)) != 0 {
                for handle in 0..taken {
                    program.ok(&format!("release {}{handle}", self.name));
                }
                return false;
            }
        }
        for taken in 0..count {
            let at = (self.chunks + taken) * CHUNK;
            let (name, handle) = (self.name, format!("{}{taken}", self.name));
            program.ok(&format!("map {name} {at} {handle} {CHUNK}"));
            program.ok(&format!("release {handle}"));
        }
        let (name, at) = (self.name, self.chunks * CHUNK);
        program.ok(&format!("access {name} {at} {} 0", count * CHUNK));
        self.chunks += count;
        true
    }

    fn shrink(&mut self, program: &mut Stepper, count: u64) {
        for _ in 0..count {
            self.chunks -= 1;
            let at = self.chunks * CHUNK;
            program.ok(&format!("unmap {} {at} {CHUNK}", self.name));
        }
    }
}

#[test]
fn the_caching_allocator_of_pytorch_frees_its_cache_and_gets_what_it_wanted() {
    let node = Node::start();
    let mut program = node.ready_stepper("torch", "1GiB");
    // Forty cached segments, all of them free in the framework's own books.
    for segment in 0..40 {
        program.ok(&format!("alloc cached{segment} {SEGMENT}"));
    }
    let wanted = 900 * MIB;
    program.refused(&format!("alloc wanted {wanted}"));
    // What its error message is made of.
    let (free, total) = program.info();
    assert_eq!((total, free), (GIB, GIB - 40 * SEGMENT));
    for segment in 0..40 {
        program.ok(&format!("free cached{segment}"));
    }
    program.ok(&format!("alloc wanted {wanted}"));
    program.ok("launch 1000");
    program.ok("synchronize");
    assert_eq!(assert_exact(&node, "torch"), wanted);
}

#[test]
fn expandable_segments_of_pytorch_give_up_a_growth_that_does_not_fit_and_go_on() {
    let node = Node::start();
    let mut program = node.ready_stepper("torch", "1GiB");
    // Addresses for an eighth more than the device has.
    let mut small = Stretch::reserve(&mut program, "small", GIB + GIB / 8);
    let mut large = Stretch::reserve(&mut program, "large", GIB + GIB / 8);
    assert_eq!(assert_exact(&node, "torch"), 0);
    assert!(small.grow(&mut program, 10));
    assert!(large.grow(&mut program, 400));
    assert_eq!(assert_exact(&node, "torch"), 410 * CHUNK);
    // Half of it would fit; none of it stays.
    assert!(!large.grow(&mut program, 204));
    assert_eq!(assert_exact(&node, "torch"), 410 * CHUNK);
    large.shrink(&mut program, 200);
    assert!(small.grow(&mut program, 204));
    assert_eq!(assert_exact(&node, "torch"), 414 * CHUNK);
    program.ok("fill small 7 4096");
    assert_eq!(number(&program.ok("read small"), "byte"), 7);
    let (all_small, all_large) = (small.chunks, large.chunks);
    small.shrink(&mut program, all_small);
    large.shrink(&mut program, all_large);
    assert_eq!(assert_exact(&node, "torch"), 0);
}

#[test]
fn the_asynchronous_allocator_of_pytorch_keeps_all_and_still_gets_what_fits() {
    let node = Node::start();
    let mut program = node.ready_stepper("torch", "1GiB");
    program.ok("pool-current pool 0");
    program.ok("pool-keep-all pool");
    for block in 0..3 {
        program.ok(&format!("pool-alloc block{block} 200MiB"));
    }
    program.ok("pool-free block0");
    program.ok("pool-free block2");
    program.ok("synchronize");
    assert!(
        assert_exact(&node, "torch") >= 600 * MIB,
        "the pool keeps what it had"
    );
    // Fits only without what the pool keeps. Where it is refused, the framework waits, empties its
    // cache and asks again.
    if program.code("pool-alloc wanted 600MiB") != 0 {
        program.ok("synchronize");
        program.ok("pool-trim pool 0");
        program.ok("pool-alloc wanted 600MiB");
    }
    let used = assert_exact(&node, "torch");
    assert!((800 * MIB..=GIB).contains(&used), "{used}");
    program.refused("pool-alloc more 600MiB");
    program.ok("synchronize");
    assert!(assert_exact(&node, "torch") <= GIB);
    for block in ["block1", "wanted"] {
        program.ok(&format!("pool-free {block}"));
    }
    program.ok("synchronize");
    program.ok("pool-trim pool 0");
    assert_eq!(assert_exact(&node, "torch"), 0);
}

#[test]
fn vllm_profiles_its_own_cap_and_not_what_a_neighbour_does() {
    let node = Node::start();
    let mut engine = node.ready_stepper("engine", "4GiB");
    let mut neighbour = node.ready_stepper("neighbour", "2GiB");
    let (free_at_start, total) = engine.info();
    assert_eq!((free_at_start, total), (4 * GIB, 4 * GIB));
    engine.ok("alloc weights 1GiB");
    let (before, _) = engine.info();
    // The profiling run: activations at their peak, while the neighbour comes and goes.
    engine.ok("alloc activations 512MiB");
    neighbour.ok("alloc a 2GiB");
    let (at_peak, _) = engine.info();
    engine.ok("free activations");
    neighbour.ok("free a");
    let (after, _) = engine.info();
    assert_eq!(before - at_peak, 512 * MIB);
    assert_eq!(after, before);
    // Nine tenths of the total, less the peak, become the cache: one block, to the last byte.
    let peak = free_at_start - at_peak;
    let cache = (total / 10 * 9 - peak).next_multiple_of(2 * MIB) - 2 * MIB;
    engine.ok(&format!("alloc cache {cache}"));
    engine.ok("alloc activations 512MiB");
    assert!(engine.info().0 > 0);
    assert_eq!(
        node.used("engine", 0) + node.used("neighbour", 0),
        node.hardware.truth(0)
    );
}

#[test]
fn vllm_sleeps_without_memory_and_wakes_with_its_weights_at_the_same_addresses() {
    let node = Node::with(&Setup {
        memory: "1GiB",
        overcommit: 2.0,
        ..Setup::default()
    });
    let mut engine = node.ready_stepper("engine", "768MiB");
    let mut other = node.ready_stepper("other", "768MiB");
    // Every allocation is a stretch of its own, with a handle that is kept.
    let blocks = [("weights", 256), ("cache", 384), ("rest", 64)];
    let map = |engine: &mut Stepper, name: &str, mib: u64| {
        engine.ok(&format!("create h-{name} {mib}MiB device 0"));
        let answer = engine.ok(&format!("map {name} 0 h-{name} {mib}MiB"));
        engine.ok(&format!("access {name} 0 {mib}MiB 0"));
        number(&answer, "address")
    };
    let mut addresses = Vec::new();
    for (name, mib) in blocks {
        engine.ok(&format!("reserve {name} {mib}MiB"));
        addresses.push(map(&mut engine, name, mib));
    }
    engine.ok("fill weights 42 4096");
    assert_eq!(node.used("engine", 0), 704 * MIB);
    other.refused("alloc a 512MiB");
    for (name, mib) in blocks {
        engine.ok(&format!("unmap {name} 0 {mib}MiB"));
        engine.ok(&format!("release h-{name}"));
    }
    assert_eq!(node.used("engine", 0), 0);
    other.ok("alloc a 512MiB");
    // Awake too early: out of memory, as the driver says it, and nothing is half awake.
    engine.ok("create h-weights 256MiB device 0");
    engine.refused("create h-cache 384MiB device 0");
    engine.ok("release h-weights");
    assert_eq!(node.used("engine", 0), 0);
    other.ok("free a");
    for ((name, mib), before) in blocks.into_iter().zip(addresses) {
        assert_eq!(map(&mut engine, name, mib), before, "{name}");
    }
    engine.ok("fill weights 42 4096");
    assert_eq!(number(&engine.ok("read weights"), "byte"), 42);
    assert_eq!(assert_exact(&node, "engine"), 704 * MIB);
}

#[test]
fn jax_takes_three_quarters_of_its_own_total_whoever_starts_first() {
    for order in [["large", "small"], ["small", "large"]] {
        let node = Node::start();
        let mut programs: Vec<Stepper> = Vec::new();
        for name in order {
            let cap = if name == "large" { 4 * GIB } else { 2 * GIB };
            let mut program = node.ready_stepper(name, &cap.to_string());
            let (free, total) = program.info();
            assert_eq!((free, total), (cap, cap), "{order:?}");
            program.ok(&format!("alloc arena {}", total / 4 * 3));
            programs.push(program);
        }
        assert_eq!(node.used("large", 0), 3 * GIB);
        assert_eq!(node.used("small", 0), 3 * GIB / 2);
    }
}

#[test]
fn an_arena_that_does_not_fit_backs_off_until_it_does() {
    let node = Node::start();
    let tenant = node.tenant("web", "4GiB");
    let mut first = tenant.ready_stepper();
    first.ok("alloc a 2GiB");
    // The second process of the container asks for three quarters of the total, and for a tenth less
    // each time that it is refused.
    let mut second = tenant.ready_stepper();
    let mut wanted = second.info().1 / 4 * 3;
    let mut refusals = 0;
    while second.code(&format!("alloc arena {wanted}")) != 0 {
        wanted = wanted / 10 * 9 / 256 * 256;
        refusals += 1;
        assert!(refusals < 20, "{wanted}");
    }
    assert_eq!(refusals, 4, "0.9^4 of three quarters is less than a half");
    let used = assert_exact(&node, "web");
    assert_eq!(used, 2 * GIB + wanted.next_multiple_of(512));
    assert_eq!(node.figure("web", 0, "oom_refusals"), 4);
}

#[test]
fn the_memory_pool_of_llama_cpp_reserves_far_more_than_the_cap_and_grows_to_it() {
    let node = Node::start();
    let mut program = node.ready_stepper("llama", "256MiB");
    let mut pool = Stretch::reserve(&mut program, "pool", 32 * GIB);
    assert_eq!(assert_exact(&node, "llama"), 0);
    program.ok("alloc weights 100MiB");
    // It grows by what is missing, rounded up to the granularity, and never shrinks.
    let mut grown = 0;
    for wanted in [1, 3, 3, 8, 40] {
        assert!(pool.grow(&mut program, wanted));
        grown += wanted;
        assert_eq!(
            assert_exact(&node, "llama"),
            100 * MIB + grown * CHUNK,
            "after {wanted} chunks"
        );
    }
    assert!(!pool.grow(&mut program, 24));
    assert_eq!(assert_exact(&node, "llama"), 100 * MIB + grown * CHUNK);
    assert!(pool.grow(&mut program, 23));
    program.ok("launch 1000");
    program.ok("synchronize");
    pool.shrink(&mut program, grown + 23);
    program.ok(&format!("unreserve pool {}", 32 * GIB));
    assert_eq!(assert_exact(&node, "llama"), 100 * MIB);
}

#[test]
fn four_ranks_set_up_their_buffers_as_nccl_does_and_in_no_time() {
    let node = Node::start();
    let tenant = node.tenant("ranks", "1GiB");
    let mut ranks: Vec<Stepper> = (0..4).map(|_| tenant.ready_stepper()).collect();
    let begin = Instant::now();
    for (rank, program) in ranks.iter_mut().enumerate() {
        // Proxy memory on the host, buffers on the device: mapped, readable, and the handle asked for
        // once more through the mapping before it is let go of.
        for (name, mib, place) in [("host", 2, "host-numa 0"), ("buffer", 32, "device 0")] {
            let created = program.code(&format!("create h-{name} {mib}MiB {place}"));
            if name == "host" {
                // Memory of the host is the driver's affair, whatever it says.
                continue;
            }
            assert_eq!(created, 0, "rank {rank}");
            program.ok(&format!("reserve {name} {mib}MiB"));
            program.ok(&format!("map {name} 0 h-{name} {mib}MiB"));
            program.ok(&format!("access {name} 0 {mib}MiB 0"));
            program.ok(&format!("retain-at again {name} 0"));
            program.ok("release again");
        }
        // A user's buffer, registered by its address.
        program.ok("alloc user 16MiB");
        program.ok("range user");
    }
    assert!(begin.elapsed() < Duration::from_secs(2));
    assert_eq!(assert_exact(&node, "ranks"), 4 * 48 * MIB);
    for program in &mut ranks {
        program.ok("unmap buffer 0 32MiB");
        program.ok("release h-buffer");
        program.ok("free user");
    }
    assert_eq!(assert_exact(&node, "ranks"), 0);
}

// C108
#[test]
fn a_model_server_s_cache_is_its_own_and_what_it_unloads_is_a_sibling_s_at_once() {
    let node = Node::start();
    let tenant = node.tenant("web", "2GiB");
    let mut server = tenant.ready_stepper();
    let mut sibling = tenant.ready_stepper();
    let held = |pid: u32| {
        let status = node.tenant_status("web").expect("a tenant");
        let processes = status["processes"].as_array().expect("a list");
        let process = processes.iter().find(|process| process["pid"] == pid);
        number(process.expect("it is attached"), "memory_used_bytes") as u64
    };
    // Each model's cache is two blocks. A block that goes back to the cache is no call of the driver's.
    for block in ["one-a", "one-b", "two-a", "two-b"] {
        server.ok(&format!("alloc {block} 450MiB"));
    }
    assert_eq!(held(server.pid()), 1800 * MIB);
    sibling.refused("alloc a 600MiB");
    assert_eq!((held(server.pid()), held(sibling.pid())), (1800 * MIB, 0));

    server.ok("free one-b");
    assert_eq!(held(server.pid()), 1350 * MIB);
    sibling.ok("alloc a 600MiB");
    assert_eq!(held(sibling.pid()), 600 * MIB);
    server.refused("alloc one-b 450MiB");
    server.ok("free two-b");
    server.ok("alloc one-b 450MiB");
    let both = (held(server.pid()), held(sibling.pid()));
    assert_eq!(both, (1350 * MIB, 600 * MIB));
    assert_eq!(node.hardware.truth(0), 1950 * MIB);
}
