//! Processes attach, hold memory, and end in every way there is.

mod stage;

use ffi::wire::{ATTACH_BYTES, AttachRequest, attach_flags, attach_status};
use stage::{
    DEVICE_BYTES, SECOND, Stage, attach, exchange, request, request_bytes, token, wait_until,
};
use std::time::Instant;

const GIB: u64 = 1 << 30;

#[test]
#[ignore = "the other tests start it as their child"]
fn plays_the_role_of_a_child() {
    stage::play_role();
}

#[test]
fn a_killed_process_gives_its_memory_back_within_a_second_though_a_zombie() {
    let stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    for _ in 0..20 {
        let mut first = stage.client(&web);
        assert_eq!(first.ask("reserve 943718400"), "done");
        assert_eq!(stage.used_bytes("web"), 943718400);
        first.kill();
        wait_until("memory is back", || stage.used_bytes("web") == 0);
        let tenant = stage.tenant("web").expect("there");
        assert_eq!(tenant.processes, []);
        assert_eq!(tenant.devices[0].memory_peak_bytes, 943718400);
    }
}

#[test]
fn a_sweep_gives_back_before_it_answers() {
    let stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let mut first = stage.client(&web);
    let mut second = stage.client(&web);
    assert_eq!(first.ask("reserve 1000000000"), "done");
    for _ in 0..20 {
        let mut third = stage.client(&web);
        assert_eq!(third.ask("reserve 70000000"), "done");
        assert_eq!(second.ask("reserve 70000000"), "refused");
        third.kill();
        let sweep = request_bytes(request(token(&web.token), attach_flags::SWEEP));
        // Killed a moment ago, and perhaps still being taken apart: the answer waits for that.
        let (reply, descriptors, _) = exchange(stage.folder(), &sweep, None).expect("answered");
        assert_eq!(reply.status, attach_status::OK);
        assert!(descriptors.is_empty());
        assert_eq!(second.ask("reserve 70000000"), "done");
        assert_eq!(second.ask("release 70000000"), "done");
    }
}

#[test]
fn a_sweep_without_dead_or_dying_is_answered_at_once() {
    let stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let _clients: Vec<_> = (0..5).map(|_| stage.client(&web)).collect();
    let sweep = request_bytes(request(token(&web.token), attach_flags::SWEEP));
    let mut took: Vec<_> = (0..21)
        .map(|_| {
            let since = Instant::now();
            exchange(stage.folder(), &sweep, None).expect("answered");
            since.elapsed()
        })
        .collect();
    took.sort_unstable();
    assert!(took[10] < SECOND / 100, "{took:?}");
    eprintln!("a sweep: {:?}", took[10]);
}

#[test]
fn a_process_that_closes_its_connection_keeps_its_charge_until_it_ends() {
    let stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let mut client = stage.client(&web);
    assert_eq!(client.ask("reserve 1000000"), "done");
    assert_eq!(client.ask("close"), "done");
    std::thread::sleep(SECOND / 4);
    assert_eq!(
        stage.used_bytes("web"),
        ledger::bytes(ledger::units(1000000))
    );
    client.kill();
    wait_until("memory is back", || stage.used_bytes("web") == 0);
}

#[test]
fn a_process_that_becomes_another_program_gives_its_memory_back() {
    let stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let mut client = stage.client(&web);
    assert_eq!(client.ask("reserve 1000000"), "done");
    client.tell("exec");
    wait_until("memory is back", || stage.used_bytes("web") == 0);
}

#[test]
fn a_child_that_keeps_the_connection_open_keeps_nothing_charged() {
    let stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let mut client = stage.client(&web);
    assert_eq!(client.ask("reserve 1000000"), "done");
    client.ask("share");
    client.kill();
    wait_until("memory is back", || stage.used_bytes("web") == 0);
}

#[test]
fn slots_are_used_again_and_two_live_processes_never_share_one() {
    let stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let mut first = stage.client(&web);
    let mut second = stage.client(&web);
    assert_ne!(first.ask("slot"), second.ask("slot"));
    let freed = first.ask("slot");
    first.kill();
    wait_until("the slot is free", || {
        stage.tenant("web").expect("there").processes.len() == 1
    });
    let mut third = stage.client(&web);
    assert_eq!(third.ask("slot"), freed);
}

#[test]
fn a_tenant_lives_as_long_as_its_owner_or_any_process() {
    let stage = Stage::new();
    let mut owner = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .expect("an owner");
    let web = stage.register("web", "1GiB", owner.id());
    let mut client = stage.client(&web);
    assert_eq!(client.ask("reserve 1000000"), "done");
    owner.kill().expect("killed");
    owner.wait().expect("ended");
    std::thread::sleep(SECOND / 4);
    assert!(stage.tenant("web").is_some(), "a process is left");
    assert!(stage.used_bytes("web") > 0);
    client.kill();
    wait_until("the tenant is gone", || stage.tenant("web").is_none());
    // Its name and its promise are free again.
    stage.register("web", "max", std::process::id());
}

#[test]
fn an_observer_sees_the_pages_and_takes_no_slot() {
    let stage = Stage::new();
    let web = stage.register("web", "3GiB", std::process::id());
    let mut client = stage.client(&web);
    assert_eq!(client.ask("reserve 1048576"), "done");
    let look = request(token(&web.token), attach_flags::OBSERVER);
    let observer = attach(stage.folder(), look, None)
        .expect("answered")
        .expect("attached");
    let device = &observer.control.devices[0];
    let load = |word: &ffi::sync::AtomicU64| word.load(ffi::sync::Ordering::Acquire);
    assert_eq!(load(&device.memory_limit_bytes), 3 * GIB);
    assert_eq!(load(&device.physical_bytes), DEVICE_BYTES);
    let books = ledger::Books::of(observer.usage, 0).expect("device 0");
    assert_eq!(ledger::bytes(books.held_units()), 1048576);
    assert_eq!(stage.tenant("web").expect("there").processes.len(), 1);
}

#[test]
fn whoever_has_no_token_or_makes_no_sense_gets_the_documented_refusal() {
    let stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let right = request(token(&web.token), 0);
    let stranger = AttachRequest {
        token: [0; 16],
        ..right
    };
    let older = AttachRequest { layout: 0, ..right };
    let mut garbled = right;
    garbled.magic = 0;
    let not_mine = AttachRequest {
        flags: attach_flags::REJOIN,
        ..right
    };
    for (request, status) in [
        (stranger, attach_status::STRANGER),
        (older, attach_status::LAYOUT),
        (garbled, attach_status::MALFORMED),
        (not_mine, attach_status::MALFORMED),
    ] {
        let refused = attach(stage.folder(), request, None).expect("answered");
        assert_eq!(refused.map(|_| ()), Err(status), "{request:?}");
    }
    for length in [1, ATTACH_BYTES - 1, ATTACH_BYTES + 1, 4096] {
        let (reply, descriptors, _) =
            exchange(stage.folder(), &vec![0; length], None).expect("answered");
        assert_eq!(reply.status, attach_status::MALFORMED);
        assert!(descriptors.is_empty());
    }
    stage.client(&web);
}

#[test]
fn connections_that_say_nothing_hold_up_nobody() {
    let stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let path = daemon::runtime::attach_socket(stage.folder());
    let silent: Vec<_> = (0..1500)
        .map(|_| {
            use nix::sys::socket::*;
            use std::os::fd::AsRawFd;
            let kind = SockType::SeqPacket;
            let socket = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)?;
            connect(socket.as_raw_fd(), &UnixAddr::new(&path)?)?;
            nix::Result::Ok(socket)
        })
        .collect::<Result<_, _>>()
        .expect("connected");
    let mut client = stage.client(&web);
    assert_eq!(client.ask("reserve 1"), "done");
    drop(silent);
    assert_eq!(stage.tenant("web").expect("there").processes.len(), 1);
}

#[test]
fn two_hundred_attaches_at_once_take_less_than_two_seconds() {
    let stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let barrier = std::sync::Barrier::new(201);
    let right = request(token(&web.token), 0);
    let elapsed = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..200)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    attach(stage.folder(), right, None)
                        .expect("answered")
                        .expect("attached")
                })
            })
            .collect();
        barrier.wait();
        let since = Instant::now();
        let attached: Vec<_> = clients
            .into_iter()
            .map(|it| it.join().expect("attached"))
            .collect();
        let elapsed = since.elapsed();
        let mut slots: Vec<u32> = attached.iter().map(|it| it.reply.slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, (0..200).collect::<Vec<u32>>());
        elapsed
    });
    assert!(elapsed.as_secs() < 2, "{elapsed:?}");
    eprintln!("200 attaches: {elapsed:?}");
}

#[test]
fn a_tenant_that_hammers_its_page_holds_up_nobody_else() {
    use ffi::sync::Ordering;
    use std::sync::atomic::AtomicBool;
    let stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let other = stage.register("other", "1GiB", std::process::id());
    let vandal = attach(stage.folder(), request(token(&web.token), 0), None);
    let vandal = vandal.expect("answered").expect("attached");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 1..=3u64 {
            let (vandal, is_over) = (&vandal, &is_over);
            scope.spawn(move || {
                let mut word = seed;
                while !is_over.load(Ordering::Relaxed) {
                    word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(seed);
                    vandal.usage.totals[0].word.store(word, Ordering::Relaxed);
                    // Whoever gets this slot seems to hold something, which has to be given back.
                    for entry in &vandal.usage.slots[1].devices[0].entries {
                        entry.base_units.store(word, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut slowest = SECOND - SECOND;
        for _ in 0..10 {
            let mut victim = stage.client(&web);
            victim.kill();
            let mut client = stage.client(&other);
            assert_eq!(client.ask("reserve 1048576"), "done");
            client.kill();
            let since = Instant::now();
            wait_until("memory is back", || stage.used_bytes("other") == 0);
            slowest = slowest.max(since.elapsed());
        }
        is_over.store(true, Ordering::Relaxed);
        eprintln!("slowest: {slowest:?}");
    });
}
