//! The arbiter's promises, in worlds on made-up time: shares, idle time, latency, and nobody forgotten.

mod world;

use daemon::arbiter::{Arbiter, Class, ClientId, Lease, Nanos, Settings, Terms};
use proptest::prelude::*;
use world::{Load, MS, S, US, World};

fn weight(weight: u32) -> Terms {
    Terms {
        weight,
        ..Terms::default()
    }
}

/// Largest distance of a share from its target, in percentage points.
fn error_pp(served: &[Nanos], targets: &[f64]) -> f64 {
    let sum: Nanos = served.iter().sum();
    let whole: f64 = targets.iter().sum();
    served
        .iter()
        .zip(targets)
        .map(|(served, target)| (*served as f64 / sum as f64 - target / whole).abs() * 100.0)
        .fold(0.0, f64::max)
}

/// Runs endless clients for ten seconds; gives the error of the whole and of the worst second.
fn shares(clients: &[(u32, Nanos)]) -> (f64, f64, f64) {
    let mut world = World::new(Settings::default());
    for (share, unit) in clients {
        world.add(weight(share * 100), Load::Endless { unit: *unit }, 2 * MS);
    }
    let targets: Vec<f64> = clients.iter().map(|(share, _)| f64::from(*share)).collect();
    let mut worst = 0.0f64;
    let begin = world.served();
    let mut last = begin.clone();
    for _ in 0..10 {
        world.run(S);
        let now = world.served();
        let second: Vec<Nanos> = now
            .iter()
            .zip(&last)
            .map(|(now, last)| now - last)
            .collect();
        worst = worst.max(error_pp(&second, &targets));
        last = now;
    }
    let busy = world.busy as f64 / world.now as f64;
    (error_pp(&last, &targets), worst, busy)
}

#[test]
fn shares_hold_whatever_the_length_of_kernels() {
    for clients in [
        &[(6, 100 * US), (3, MS), (1, 10 * MS)][..],
        &[(6, 10 * MS), (3, MS), (1, 100 * US)],
        &[(9, MS), (1, MS)],
        &[(9, 100 * US), (1, 10 * MS)],
        &[(1, 100 * US), (1, 20 * MS)],
    ] {
        let (whole, second, busy) = shares(clients);
        println!("{clients:?}: {whole:.2} pp, worst second {second:.2} pp, busy {busy:.3}");
        assert!(whole <= 1.0, "{clients:?}: {whole:.2} pp over ten seconds");
        assert!(second <= 2.0, "{clients:?}: {second:.2} pp in a second");
        // The hardware's own alternation uses 2 ms of each 2.1 ms: 0.952.
        let least = if clients.len() == 3 && clients[0].1 == 100 * US {
            0.97
        } else {
            0.953
        };
        assert!(busy >= least, "{clients:?}: {busy:.3} of the time used");
    }
}

#[test]
fn turns_on_an_oversubscribed_device_are_long_and_still_as_promised() {
    let mut world = World::new(Settings::default().oversubscribed(10 * S));
    for share in [300, 100] {
        world.add(weight(share), Load::Endless { unit: MS }, 2 * MS);
    }
    world.run(400 * S);
    let error = error_pp(&world.served(), &[3.0, 1.0]);
    assert!(error <= 5.0, "{error:.2} pp over 400 seconds");
}

#[test]
fn a_turn_on_an_oversubscribed_device_ends_by_its_length_or_a_long_gap_alone() {
    let (one, other) = (ClientId(1), ClientId(2));
    let mut arbiter = Arbiter::new(Settings::default().oversubscribed(10 * S), 0);
    for id in [one, other] {
        arbiter.set_terms(id, weight(100), 0);
        arbiter.set_waiting(id, true, 0);
    }
    arbiter.advance(0);
    let holds = |arbiter: &Arbiter, id| matches!(arbiter.lease(id), Lease::Until(_));
    let (first, second) = if holds(&arbiter, one) {
        (one, other)
    } else {
        (other, one)
    };
    assert_eq!(arbiter.lease(first), Lease::Until(10 * S));
    assert_eq!(arbiter.lease(second), Lease::Hold);
    arbiter.set_busy(first, true, MS);
    arbiter.set_waiting(first, false, MS);
    // A gap of 50 ms is none, though ten turns of the usual length would have passed.
    arbiter.set_busy(first, false, 200 * MS);
    arbiter.advance(250 * MS);
    assert!(holds(&arbiter, first));
    arbiter.set_busy(first, true, 250 * MS);
    arbiter.advance(9 * S);
    assert!(holds(&arbiter, first));
    arbiter.advance(10 * S);
    assert!(holds(&arbiter, second));
    // With enough memory again turns are short at once.
    arbiter.set_busy(second, true, 10 * S);
    arbiter.set_waiting(first, true, 11 * S);
    arbiter.set_settings(Settings::default(), 11 * S);
    assert_eq!(arbiter.lease(second), Lease::Until(11 * S + 10 * MS));
}

#[test]
fn an_idle_neighbour_costs_nothing() {
    let mut world = World::new(Settings::default());
    world.add(weight(100), Load::Endless { unit: MS }, 2 * MS);
    world.add(weight(900), Load::Idle, 2 * MS);
    world.run(2 * S);
    assert_eq!(world.busy + world.switching, world.now);
    assert!(world.switching <= 100 * US);
}

#[test]
fn a_ceiling_holds_also_for_one_who_is_alone() {
    let mut world = World::new(Settings::default());
    let terms = Terms {
        ceiling_permille: 500,
        ..Terms::default()
    };
    world.add(terms, Load::Endless { unit: MS }, 2 * MS);
    world.run(10 * S);
    let share = world.busy as f64 / world.now as f64;
    assert!((share - 0.5).abs() <= 0.015, "{share:.3}");
}

#[test]
fn a_guarantee_is_kept_against_a_heavier_neighbour() {
    let mut world = World::new(Settings::default());
    let guaranteed = Terms {
        guarantee_permille: 400,
        weight: 1,
        ..Terms::default()
    };
    world.add(guaranteed, Load::Endless { unit: MS }, 2 * MS);
    world.add(weight(1000), Load::Endless { unit: 5 * MS }, 2 * MS);
    world.run(10 * S);
    let served = world.served();
    let share = served[0] as f64 / (served[0] + served[1]) as f64;
    // The hardware's alternation with what the neighbour leaves running is charged, but serves nobody.
    assert!((share - 0.4).abs() <= 0.0125, "{share:.3}");
}

/// The 99th percentile of requests of 4 ms beside endless units, as a multiple of what it is alone.
fn latency_beside(unit: Nanos) -> f64 {
    let p99 = |neighbour: Option<Nanos>| {
        let mut world = World::new(Settings::default());
        let prompt = Terms {
            guarantee_permille: 500,
            class: Class::Latency,
            ..Terms::default()
        };
        let load = Load::Requests {
            period: 20 * MS,
            unit: 500 * US,
            work: 4 * MS,
        };
        let client = world.add(prompt, load, 8 * MS);
        if let Some(unit) = neighbour {
            let terms = Terms {
                class: Class::Batch,
                ..Terms::default()
            };
            world.add(terms, Load::Endless { unit }, MS);
        }
        world.run(10 * S);
        world.p99(client)
    };
    p99(Some(unit)) as f64 / p99(None) as f64
}

#[test]
fn requests_keep_their_latency_beside_endless_neighbours() {
    for (unit, bound) in [(250 * US, 1.35), (MS, 1.55), (20 * MS, 2.5)] {
        let times = latency_beside(unit);
        println!("beside units of {} us: {times:.2} times", unit / US);
        assert!(times <= bound, "{unit}: {times:.2}");
    }
}

#[test]
fn a_hundred_and_twenty_eight_clients_get_equal_shares_and_get_round() {
    let mut world = World::new(Settings::default());
    for index in 0..128 {
        let unit = 200 * US * (1 + index % 5);
        world.add(weight(100), Load::Endless { unit }, 2 * MS);
    }
    // Who was there before the crowd has had more, and makes up for it.
    world.run(2 * S);
    world.forget_waits();
    world.run(3 * S);
    let error = error_pp(&world.served(), &[1.0; 128]);
    let longest = (0..128).map(|index| world.longest_wait(index)).max();
    let used = world.busy as f64 / world.now as f64;
    println!("{error:.3} pp, longest wait {longest:?} ns, busy {used:.3}");
    // A share is 0.78 points.
    assert!(error <= 0.2, "{error:.2} pp");
    assert!(
        longest < Some(3 * S / 2),
        "{longest:?} ns without any of the device"
    );
    assert!(used >= 0.96, "{used:.3} of the time used");
}

#[test]
fn long_kernels_of_some_of_a_hundred_and_twenty_eight_clients_hold_up_nobody_for_long() {
    let mut world = World::new(Settings::default());
    let is_long = |index: usize| index.is_multiple_of(8);
    for index in 0..128 {
        let unit = if is_long(index) { 20 * MS } else { MS };
        world.add(weight(100), Load::Endless { unit }, 2 * MS);
    }
    world.run(2 * S);
    world.forget_waits();
    world.run(8 * S);
    let error = error_pp(&world.served(), &[1.0; 128]);
    let short = (0..128).filter(|index| !is_long(*index));
    let longest = short.map(|index| world.longest_wait(index)).max();
    println!("{error:.3} pp, longest wait of short ones {longest:?} ns");
    assert!(error <= 0.3, "{error:.2} pp");
    // No launch waits for longer than two seconds: it would go through without a turn.
    assert!(
        longest < Some(2 * S),
        "{longest:?} ns without any of the device"
    );
}

#[test]
fn idling_earns_at_most_one_slice() {
    let mut world = World::new(Settings::default());
    let sleeper = world.add(
        weight(100),
        Load::Bursts {
            unit: MS,
            on: S,
            off: 3 * S,
        },
        2 * MS,
    );
    let steady = world.add(weight(100), Load::Endless { unit: MS }, 2 * MS);
    world.run(4 * S);
    let before = world.served();
    // The sleeper comes back after three seconds of nothing.
    world.run(S / 2);
    let after = world.served();
    let (slept, ran) = (
        after[sleeper] - before[sleeper],
        after[steady] - before[steady],
    );
    assert!(slept.saturating_sub(ran) <= 25 * MS, "{slept} to {ran}");
    assert!(world.longest_wait(steady) <= 40 * MS);
}

/// A client's weight, unit and way of working.
fn client() -> impl Strategy<Value = (u32, Load)> {
    let unit = prop_oneof![
        Just(50 * US),
        Just(300 * US),
        Just(MS),
        Just(7 * MS),
        Just(20 * MS)
    ];
    (1u32..=20, unit, 0..3u32, 1..400u64, 1..400u64).prop_map(|(weight, unit, kind, on, off)| {
        let load = match kind {
            0 | 1 => Load::Endless { unit },
            _ => Load::Bursts {
                unit,
                on: on * MS,
                off: off * MS,
            },
        };
        (weight * 50, load)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn in_any_world_nobody_starves_and_no_time_is_kept_back(
        clients in proptest::collection::vec(client(), 2..7),
    ) {
        let mut world = World::new(Settings::default());
        for (share, load) in &clients {
            world.add(weight(*share), *load, 2 * MS);
        }
        world.run(S);
        let has_endless = clients
            .iter()
            .any(|(_, load)| matches!(load, Load::Endless { .. }));
        if has_endless {
            let used = (world.busy + world.switching) as f64 / world.now as f64;
            prop_assert!(used >= 0.96, "only {:.3} used{}", used, world.timeline());
        }
        // Each of the others may have a slice and its longest unit for each part of the weight.
        let least = clients.iter().map(|(weight, _)| *weight).min().unwrap_or(1);
        let all: u32 = clients.iter().map(|(weight, _)| *weight).sum();
        let bound = u64::from(all / least + 1) * 2 * (10 * MS + 40 * MS);
        for index in 0..clients.len() {
            prop_assert!(world.longest_wait(index) <= bound, "client {} waited {} ms of at most {}{}",
                index, world.longest_wait(index) / MS, bound / MS, world.timeline());
        }
        // The hardware's time is somebody's, and nobody's twice; a rest that is settled after its turn leaves
        // a little over.
        let charged: Nanos = (0..clients.len()).map(|index| world.charged(index)).sum();
        prop_assert!(charged <= world.now + 10 * MS, "{} ns charged in {}", charged, world.now);
        prop_assert!(charged + world.now / 20 >= world.busy, "{} charged of {}", charged, world.busy);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn in_any_world_of_endless_work_the_shares_are_the_weights(
        clients in proptest::collection::vec((1u32..=10, 0..5usize), 2..6),
    ) {
        let units = [50 * US, 300 * US, MS, 7 * MS, 20 * MS];
        let mut world = World::new(Settings::default());
        for (share, unit) in &clients {
            world.add(weight(share * 100), Load::Endless { unit: units[*unit] }, 2 * MS);
        }
        world.run(10 * S);
        let targets: Vec<f64> = clients.iter().map(|(share, _)| f64::from(*share)).collect();
        let error = error_pp(&world.served(), &targets);
        // Rests of 20 ms units are charged as equal parts, which leaves up to two points.
        prop_assert!(error <= 3.0, "{:.2} pp{}", error, world.timeline());
    }
}
