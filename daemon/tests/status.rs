//! The status socket: what is asked, and what is answered.

mod stage;

use serde_json::json;
use stage::{DEVICE_BYTES, Stage};

const GIB: u64 = 1 << 30;

#[test]
#[ignore = "the other tests start it as their child"]
fn plays_the_role_of_a_child() {
    stage::play_role();
}

#[test]
fn a_status_names_devices_tenants_and_processes() {
    let stage = Stage::new();
    let web = stage.register("web", "25%", std::process::id());
    let mut client = stage.client(&web);
    assert_eq!(client.ask("reserve 1073741824"), "done");
    assert_eq!(client.ask("reserve 1073741825"), "refused");
    let (_, status) = stage.http("GET", "/v1/status", None);
    assert_eq!(status["daemon"]["pid"], stage.daemon_pid());
    assert_eq!(
        status["daemon"]["runtime_dir"],
        stage.folder().display().to_string()
    );
    assert_eq!(status["driver"]["kind"], "stand-in");
    assert_eq!(
        status["devices"][0],
        json!({
            "index": 0,
            "uuid": "GPU-00000000-1111-2222-3333-444444444444",
            "name": "stage device",
            "memory_bytes": DEVICE_BYTES,
            "memory_promised_bytes": 2 * GIB,
            "memory_used_bytes": GIB,
            "strangers": [],
        })
    );
    assert_eq!(status["devices"][1]["memory_promised_bytes"], 0);
    let command = status["tenants"][0]["processes"][0]["command"].clone();
    assert!(command.as_str().is_some_and(|command| !command.is_empty()));
    assert_eq!(
        status["tenants"][0],
        json!({
            "name": "web",
            "id": 1,
            "owner_pid": std::process::id(),
            "devices": [{
                "index": 0,
                "uuid": "GPU-00000000-1111-2222-3333-444444444444",
                "memory_limit_bytes": 2 * GIB,
                "memory_used_bytes": GIB,
                "is_over_limit": false,
                "memory_peak_bytes": GIB,
                "oom_refusals": 1,
                "last_refused_bytes": GIB + 1,
                "refusals": {
                    "by_function": {"cuMemAlloc": 1},
                    "by_size": [{"up_to_bytes": 4 * GIB, "count": 1}],
                    "last": {"function": "cuMemAlloc", "bytes": GIB + 1},
                },
                // The stage has devices without NVML.
                "memory_truth_bytes": null,
                "memory_overhead_bytes": null,
                "enforced_by": "shim",
                "memory_set_aside_bytes": 0,
                "compute": {
                    "guarantee_permille": 0,
                    "ceiling_permille": 1000,
                    "weight": 100,
                    "class": "standard",
                    "used_ns": 0,
                    "share_permille": 0,
                    "lease": "unshared",
                    "waiting": 0,
                    "launches": 0,
                    "held": 0,
                    "longest_ns": 0,
                    "copies": 0,
                    "copied_bytes": 0,
                    "fills": 0,
                    "filled_bytes": 0,
                },
            }],
            "processes": [{
                "pid": client.pid(),
                "command": command,
                "memory_used_bytes": GIB,
            }],
            "container": null,
            "is_paused": false,
            "is_overcommitted": false,
        })
    );
    let (code, tenant) = stage.http("GET", "/v1/tenants/web", None);
    assert_eq!((code, &tenant), (200, &status["tenants"][0]));
}

#[test]
fn a_registration_answers_with_all_that_a_process_needs() {
    let stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    assert_eq!(web.token.len(), 32);
    assert_eq!(
        web.attach_socket,
        daemon::runtime::attach_socket(stage.folder())
            .display()
            .to_string()
    );
    assert_eq!(web.devices.len(), 1);
    assert_eq!(web.devices[0].memory_limit_bytes, GIB);
    let body = json!({"memory": "1GiB", "owner_pid": std::process::id()});
    let (code, body) = stage.http("POST", "/v1/tenants", Some(body));
    assert_eq!((code, body["name"].as_str()), (201, Some("tenant-2")));
    assert_eq!(body["devices"].as_array().map(Vec::len), Some(2));
    assert_ne!(body["token"], web.token);
}

#[test]
fn every_refusal_is_one_sentence_with_its_code() {
    let stage = Stage::new();
    let owner_pid = std::process::id();
    stage.register("web", "6GiB", owner_pid);
    let register = |body| stage.http("POST", "/v1/tenants", Some(body));
    for (body, code, says) in [
        (
            json!({"name": "web", "memory": "1GiB", "owner_pid": owner_pid}),
            409,
            "web",
        ),
        (
            json!({"name": "b", "memory": "3GiB", "owner_pid": owner_pid}),
            409,
            "web: 6GiB",
        ),
        (
            json!({"name": "b", "memory": "0", "owner_pid": owner_pid}),
            400,
            "\"0\"",
        ),
        (
            json!({"name": "b", "memory": "-1", "owner_pid": owner_pid}),
            400,
            "\"-1\"",
        ),
        (
            json!({"name": "b", "memory": "lots", "owner_pid": owner_pid}),
            400,
            "accepted",
        ),
        (
            json!({"name": "b", "memory": "9GiB", "owner_pid": owner_pid}),
            400,
            "9GiB",
        ),
        (
            json!({"name": "b", "memory": "1GiB", "gpus": [7], "owner_pid": owner_pid}),
            400,
            "\"7\"",
        ),
        (
            json!({"name": "b c", "memory": "1GiB", "owner_pid": owner_pid}),
            400,
            "b c",
        ),
        (
            json!({"name": "b", "memory": "1GiB", "owner_pid": u32::MAX}),
            400,
            "process",
        ),
        (
            json!({"name": "b", "memory": "1GiB", "owner_pid": owner_pid, "x": 1}),
            400,
            "`x`",
        ),
        (json!({"name": "b"}), 400, "memory"),
        (json!([]), 400, "body"),
    ] {
        let (got, answer) = register(body.clone());
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(
            got == code && error.contains(says),
            "{body}: {got} {answer}"
        );
    }
    for (method, path, code) in [
        ("GET", "/v1/tenants/nobody", 404),
        ("PATCH", "/v1/tenants/nobody", 404),
        ("GET", "/v2", 404),
        ("GET", "/v1/tenants", 405),
        ("DELETE", "/v1/status", 405),
    ] {
        let (got, answer) = stage.http(method, path, Some(json!({"memory": "1GiB"})));
        assert!(
            got == code && answer["error"].is_string(),
            "{path}: {got} {answer}"
        );
    }
    assert_eq!(stage.status().tenants.len(), 1);
}

#[test]
fn a_changed_cap_is_seen_by_running_processes_at_once_also_below_what_they_hold() {
    let stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let mut one = stage.client(&web);
    let mut two = stage.client(&web);
    assert_eq!(one.ask("reserve 838860800"), "done");
    let set = |memory: &str| {
        let body = Some(json!({"memory": memory}));
        let (code, tenant) = stage.http("PATCH", "/v1/tenants/web", body);
        assert_eq!(code, 200, "{tenant}");
    };
    set("512MiB");
    assert_eq!(two.ask("limit"), (512u64 << 20).to_string());
    assert_eq!(two.ask("reserve 1048576"), "refused");
    assert_eq!(one.ask("release 419430400"), "done");
    assert_eq!(two.ask("reserve 104857600"), "done");
    set("2GiB");
    assert_eq!(one.ask("reserve 1073741824"), "done");
    let body = Some(json!({"memory": "1GiB", "gpu": "1"}));
    assert_eq!(
        stage.http("PATCH", "/v1/tenants/web", body).0,
        400,
        "not its device"
    );
}

#[test]
fn what_a_tenant_scribbles_on_its_page_is_shown_within_bounds_and_hurts_nobody() {
    use ffi::sync::Ordering;
    use stage::{attach, request, token};
    let stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let vandal = attach(stage.folder(), request(token(&web.token), 0), None);
    let vandal = vandal.expect("answered").expect("attached");
    let mut word = 0x9e37_79b9_7f4a_7c15u64;
    for round in 0..50 {
        for total in &vandal.usage.totals {
            total.word.store(word, Ordering::Relaxed);
            total.peak_units.store(!word, Ordering::Relaxed);
        }
        for slot in &vandal.usage.slots {
            slot.header.pid.store(word as u32, Ordering::Relaxed);
            slot.header
                .state
                .store((word >> 32) as u32, Ordering::Relaxed);
            for account in &slot.devices {
                account.open.store(word, Ordering::Relaxed);
                account.entries[0].base_units.store(word, Ordering::Relaxed);
                account.entries[1]
                    .delta_units
                    .store(!word, Ordering::Relaxed);
                account.acknowledged.store(word, Ordering::Relaxed);
                word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(round);
            }
        }
        drop(attach(stage.folder(), request(token(&web.token), 0), None));
        let shown = stage.tenant("web").expect("there");
        assert!(shown.devices[0].memory_used_bytes <= DEVICE_BYTES);
        assert!(shown.devices[0].memory_peak_bytes <= DEVICE_BYTES);
        assert!(
            shown
                .processes
                .iter()
                .all(|it| it.memory_used_bytes <= DEVICE_BYTES)
        );
    }
    drop(vandal);
    let other = stage.register("other", "1GiB", std::process::id());
    let mut client = stage.client(&other);
    assert_eq!(client.ask("reserve 1000"), "done");
}
