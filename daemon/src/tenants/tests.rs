//! The registry's promises.

use super::*;
use crate::quota::QuotaError;
use crate::terms::Wanted;
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn registry(devices: u32, overcommit_ratio: f64) -> Registry {
    let mut registry = Registry::new(overcommit_ratio, 0);
    registry.set_devices(
        (0..devices)
            .map(|index| Device {
                index,
                uuid: format!("GPU-{index:08x}-0000-0000-0000-000000000000"),
                name: "test device".to_owned(),
                memory_bytes: 8 * GIB,
            })
            .collect(),
    );
    registry
}

fn tenant(name: &str, memory: &str) -> NewTenant {
    NewTenant {
        name: Some(name.to_owned()),
        memory: Request::parse(memory).expect("a cap"),
        is_overcommitted: false,
        compute: Wanted::default(),
        gpus: None,
        owner: process(1),
        container: None,
        token: [7; 16],
        nonce: [9; 16],
    }
}

fn process(pid: u32) -> ProcessId {
    ProcessId {
        pid,
        start_ticks: 100,
    }
}

fn limits(tenant: &Tenant) -> Vec<(u32, u64)> {
    let shares = tenant.shares.iter();
    shares
        .map(|share| (share.device.index, share.limit_bytes))
        .collect()
}

#[test]
fn a_tenant_without_devices_named_gets_its_cap_on_each() {
    let mut registry = registry(2, 1.0);
    let web = registry.register(tenant("web", "25%")).expect("fits");
    assert_eq!(limits(web), [(0, 2 * GIB), (1, 2 * GIB)]);
}

#[test]
fn devices_are_named_by_index_and_by_uuid_also_cut_short() {
    let mut registry = registry(3, 1.0);
    let gpus = [
        "2",
        "GPU-00000000-0000-0000-0000-000000000000",
        "gpu-00000001",
    ];
    let new = NewTenant {
        gpus: Some(gpus.map(GpuName::from).to_vec()),
        ..tenant("web", "1GiB")
    };
    let web = registry.register(new).expect("fits");
    assert_eq!(limits(web), [(2, GIB), (0, GIB), (1, GIB)]);
    for unknown in ["3", "GPU-0", "GPU-", "", "GPU-77"] {
        let new = NewTenant {
            gpus: Some(vec![GpuName::from(unknown)]),
            ..tenant("other", "1GiB")
        };
        let refused = registry.register(new).expect_err(unknown);
        assert!(
            matches!(refused, Refusal::UnknownDevice { .. }),
            "{refused}"
        );
    }
}

#[test]
fn a_list_of_caps_chooses_its_devices_and_must_match_those_asked_for() {
    let mut registry = registry(3, 1.0);
    let web = registry
        .register(tenant("web", "2:3GiB,0:1GiB"))
        .expect("fits");
    assert_eq!(limits(web), [(2, 3 * GIB), (0, GIB)]);
    for gpus in [
        vec![GpuName::Index(2)],
        vec![GpuName::Index(2), GpuName::Index(1)],
        vec![],
    ] {
        let new = NewTenant {
            gpus: Some(gpus),
            ..tenant("other", "2:1GiB,0:1GiB")
        };
        let refused = registry.register(new).expect_err("does not match");
        assert!(matches!(refused, Refusal::BadDevices(_)), "{refused}");
    }
}

#[test]
fn a_refused_promise_says_what_is_free_and_who_holds_the_rest() {
    let mut registry = registry(1, 1.0);
    registry.register(tenant("web", "5GiB")).expect("fits");
    let refused = registry
        .register(tenant("train", "4GiB"))
        .expect_err("too much");
    assert_eq!(
        refused.to_string(),
        "device 0 cannot promise another 4GiB (4294967296 bytes): 3GiB (3221225472 bytes) of 8GiB are \
         free; held by web: 5GiB"
    );
    registry
        .register(tenant("train", "3GiB"))
        .expect("what is free fits");
    assert!(registry.register(tenant("late", "max")).is_err());
}

#[test]
fn overcommitment_promises_more_than_there_is_but_no_cap_beyond_the_device() {
    let mut registry = registry(1, 2.0);
    registry.register(tenant("one", "max")).expect("fits");
    registry.register(tenant("two", "max")).expect("fits twice");
    assert!(registry.register(tenant("three", "1")).is_err());
    assert!(matches!(
        registry.register(tenant("four", "9GiB")),
        Err(Refusal::Quota(QuotaError::BeyondDevice { .. }))
    ));
}

#[test]
fn a_live_name_is_refused_and_a_freed_one_is_not() {
    let mut registry = registry(1, 1.0);
    let id = registry.register(tenant("web", "max")).expect("fits").id;
    assert!(matches!(
        registry.register(tenant("web", "1GiB")),
        Err(Refusal::NameTaken { owner: 1, .. })
    ));
    registry.remove(id);
    let again = registry.register(tenant("web", "max")).expect("free again");
    assert!(again.id > id, "a number is never used again");
}

#[test]
fn odd_names_are_refused() {
    let mut registry = registry(1, 1.0);
    for name in ["", "-x", "a b", "a/b", "ä", &"x".repeat(64)] {
        let refused = registry.register(tenant(name, "1GiB")).expect_err(name);
        assert!(matches!(refused, Refusal::BadName { .. }), "{refused}");
    }
}

#[test]
fn a_cap_can_be_lowered_at_any_time_and_raised_into_what_is_free() {
    let mut registry = registry(2, 1.0);
    registry.register(tenant("web", "4GiB")).expect("fits");
    registry.register(tenant("train", "4GiB")).expect("fits");
    let change = |registry: &mut Registry, name: &str, memory: &str, gpu: Option<&str>| {
        let memory = Request::parse(memory).expect("a cap");
        let gpu = gpu.map(GpuName::from);
        registry
            .change(name, Some(&memory), Wanted::default(), gpu.as_ref())
            .map(limits)
    };
    assert!(change(&mut registry, "web", "5GiB", None).is_err());
    assert_eq!(
        change(&mut registry, "train", "1GiB", Some("1")),
        Ok(vec![(0, 4 * GIB), (1, GIB)])
    );
    assert_eq!(
        change(&mut registry, "web", "1:7GiB", None),
        Ok(vec![(0, 4 * GIB), (1, 7 * GIB)])
    );
    assert!(matches!(
        change(&mut registry, "nobody", "1GiB", None),
        Err(Refusal::NoSuchTenant { .. })
    ));
    // Device 0 could give it back, device 1 cannot: nothing changes.
    assert!(change(&mut registry, "train", "0:1GiB,1:2GiB", None).is_err());
    assert_eq!(
        limits(registry.named("train").expect("there")),
        [(0, 4 * GIB), (1, GIB)]
    );
}

#[test]
fn every_slot_is_given_out_and_then_none() {
    let mut registry = registry(1, 1.0);
    let id = registry.register(tenant("web", "max")).expect("fits").id;
    let web = registry.tenant_mut(id).expect("there");
    let mut generations = std::collections::BTreeSet::new();
    for expected in 0..MAX_SLOTS as u32 {
        let (slot, holder) = web.take_slot(process(expected)).expect("free");
        assert_eq!(slot, expected);
        assert!(generations.insert(holder.generation));
    }
    assert_eq!(web.take_slot(process(9)), None);
    web.slots.remove(&500);
    let (slot, holder) = web.take_slot(process(9)).expect("one is free");
    assert_eq!(slot, 500);
    assert!(generations.insert(holder.generation));
}

#[test]
fn a_tenant_is_over_when_owner_processes_and_observers_are_gone() {
    let mut registry = registry(1, 1.0);
    let id = registry.register(tenant("web", "max")).expect("fits").id;
    let web = registry.tenant_mut(id).expect("there");
    let (slot, _) = web.take_slot(process(2)).expect("free");
    web.is_owner_alive = false;
    assert!(!web.is_over());
    web.observers = 1;
    web.slots.remove(&slot);
    assert!(!web.is_over());
    web.observers = 0;
    assert!(web.is_over());
}

#[test]
fn a_token_finds_its_tenant_and_no_other_does() {
    let mut registry = registry(1, 1.0);
    registry.register(tenant("web", "1GiB")).expect("fits");
    assert_eq!(registry.by_token(&[7; 16]).map(|web| web.id), Some(1));
    assert!(registry.by_token(&[0; 16]).is_none());
}

proptest! {
    #[test]
    fn what_is_promised_never_exceeds_what_may_be(
        ratio in 0.1f64..3.0,
        steps in prop::collection::vec((0u8..3, 0u8..6, 1u64..9 * GIB), 1..60),
    ) {
        let mut registry = registry(2, ratio);
        for (what, who, bytes) in steps {
            let name = format!("t{who}");
            match what {
                0 => drop(registry.register(tenant(&name, &bytes.to_string()))),
                1 => drop(registry.change(&name, Some(&Request::Every(Memory::Bytes(bytes))), Wanted::default(), None)),
                _ => {
                    let id = registry.named(&name).map(|tenant| tenant.id);
                    if let Ok(id) = id {
                        registry.remove(id);
                    }
                }
            }
            for device in registry.devices() {
                let promised = registry.promised_bytes(&device.uuid);
                prop_assert!(promised as f64 <= device.memory_bytes as f64 * ratio);
                for tenant in registry.tenants() {
                    prop_assert!(tenant.shares.iter().all(|share| share.limit_bytes <= 8 * GIB));
                }
            }
        }
    }

    #[test]
    fn no_two_processes_ever_share_a_slot(frees in prop::collection::vec(0u32..40, 1..200)) {
        let mut registry = registry(1, 1.0);
        let id = registry.register(tenant("web", "max")).expect("fits").id;
        let web = registry.tenant_mut(id).expect("there");
        for (pid, free) in frees.into_iter().enumerate() {
            let before = web.slots.len();
            web.take_slot(process(pid as u32)).expect("free");
            prop_assert_eq!(web.slots.len(), before + 1);
            web.slots.remove(&free);
        }
    }
}

#[test]
fn a_container_has_what_is_in_its_control_group_or_its_pid_namespace() {
    let container = Container {
        info: ContainerInfo {
            id: "1f".to_owned(),
            lease: None,
        },
        control_group: Some("/machine/1f".to_owned()),
        pid_namespace: Some(7),
    };
    for (group, namespace, is_inside) in [
        (Some("/machine/1f"), None, true),
        (Some("/machine/1f/worker"), None, true),
        (Some("/machine/1f2"), None, false),
        (Some("/machine"), None, false),
        (None, Some(7), true),
        (Some("/elsewhere"), Some(8), false),
        (None, None, false),
    ] {
        assert_eq!(
            container.has(group, namespace),
            is_inside,
            "{group:?} {namespace:?}"
        );
    }
    let hostless = Container {
        control_group: None,
        pid_namespace: None,
        ..container
    };
    assert!(!hostless.has(None, None));
}
