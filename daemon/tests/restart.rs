//! Daemons die, and the next one goes on with the same account.

mod stage;

use stage::{SECOND, Stage, wait_until};

const MIB: u64 = 1 << 20;

#[test]
#[ignore = "the other tests start it as their child"]
fn plays_the_role_of_a_child() {
    stage::play_role();
}

#[test]
fn a_killed_daemon_leaves_clients_capped_and_the_next_takes_them_over_within_a_second() {
    let mut stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let mut one = stage.client(&web);
    let mut two = stage.client(&web);
    assert_eq!(one.ask("reserve 104857600"), "done");
    assert_eq!(two.ask("reserve 209715200"), "done");
    stage.kill_daemon();
    // Capped without a daemon, and working.
    assert_eq!(one.ask("reserve 943718400"), "refused");
    assert_eq!(one.ask("reserve 104857600"), "done");
    let took = stage.start();
    assert!(took < SECOND, "{took:?}");
    // All of it is known before anybody has come back.
    assert_eq!(stage.used_bytes("web"), 400 * MIB);
    assert_eq!(stage.tenant("web").expect("there").processes.len(), 2);
    assert_eq!(one.ask("rejoin"), "0");
    assert_eq!(two.ask("rejoin"), "0");
    assert_eq!(one.ask("reserve 104857600"), "done");
    assert_eq!(stage.used_bytes("web"), 500 * MIB);
    // The next daemon's word counts, and it notices an end as the first did.
    let body = serde_json::json!({"memory": "512MiB"});
    assert_eq!(stage.http("PATCH", "/v1/tenants/web", Some(body)).0, 200);
    assert_eq!(one.ask("limit"), (512 * MIB).to_string());
    one.kill();
    wait_until("memory is back", || stage.used_bytes("web") == 200 * MIB);
    assert_eq!(two.ask("reserve 1000"), "done");
}

#[test]
fn who_dies_without_a_daemon_is_given_back_by_the_next() {
    let mut stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let mut one = stage.client(&web);
    let mut two = stage.client(&web);
    assert_eq!(one.ask("reserve 104857600"), "done");
    assert_eq!(two.ask("reserve 209715200"), "done");
    stage.kill_daemon();
    one.kill();
    stage.start();
    assert_eq!(stage.used_bytes("web"), 200 * MIB);
    assert_eq!(stage.tenant("web").expect("there").processes.len(), 1);
    // One that never comes back is noticed all the same.
    two.kill();
    wait_until("memory is back", || stage.used_bytes("web") == 0);
}

#[test]
fn processes_attach_to_the_next_daemon_as_they_did_to_the_last() {
    let mut stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let mut one = stage.client(&web);
    assert_eq!(one.ask("reserve 1048576"), "done");
    for _ in 0..3 {
        stage.kill_daemon();
        stage.start();
        let mut another = stage.client(&web);
        assert_eq!(another.ask("reserve 1048576"), "done");
        assert_ne!(one.ask("slot"), another.ask("slot"));
        assert_eq!(one.ask("rejoin"), "0");
        assert_eq!(stage.used_bytes("web"), 2 * MIB);
        another.kill();
        wait_until("memory is back", || stage.used_bytes("web") == MIB);
    }
}

#[test]
fn a_process_that_attached_in_the_last_instant_is_not_forgotten() {
    let mut stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let mut one = stage.client(&web);
    // The file is written at once for the first process only.
    let mut two = stage.client(&web);
    stage.kill_daemon();
    assert_eq!(one.ask("reserve 1048576"), "done");
    assert_eq!(two.ask("reserve 2097152"), "done");
    stage.start();
    assert_eq!(stage.used_bytes("web"), 3 * MIB);
    assert_eq!(stage.tenant("web").expect("there").processes.len(), 2);
    assert_eq!(two.ask("rejoin"), "0");
}

#[test]
fn a_clean_stop_leaves_everything_to_the_next_daemon_too() {
    let mut stage = Stage::new();
    let web = stage.register("web", "1GiB", std::process::id());
    let mut one = stage.client(&web);
    assert_eq!(one.ask("reserve 1048576"), "done");
    let beat: u64 = one.ask("beat").parse().expect("a number");
    stage.stop_daemon();
    stage.start();
    assert_eq!(one.ask("rejoin"), "0");
    let later: u64 = one.ask("beat").parse().expect("a number");
    assert!(later > beat);
    assert_eq!(stage.used_bytes("web"), MIB);
    assert_eq!(stage.tenant("web").expect("there").id, web.id);
}

#[test]
fn tenants_with_nobody_left_are_dropped_and_the_others_keep_their_promise() {
    let mut stage = Stage::new();
    let mut owner = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .expect("an owner");
    let gone = stage.register("gone", "2GiB", owner.id());
    let mut process = stage.client(&gone);
    stage.register("here", "5GiB", std::process::id());
    stage.kill_daemon();
    owner.kill().expect("killed");
    owner.wait().expect("ended");
    process.kill();
    stage.start();
    std::thread::sleep(2 * SECOND + SECOND / 4);
    assert!(stage.tenant("gone").is_none());
    assert_eq!(stage.status().devices[0].memory_promised_bytes, 5 << 30);
    let body =
        serde_json::json!({"name": "new", "memory": "4GiB", "owner_pid": std::process::id()});
    let (code, body) = stage.http("POST", "/v1/tenants", Some(body));
    assert_eq!(code, 409, "{body}");
}

#[test]
fn a_corrupt_ledger_is_set_aside_and_the_daemon_goes_on() {
    let mut stage = Stage::new();
    stage.register("web", "1GiB", std::process::id());
    stage.kill_daemon();
    let file = stage.folder().join(daemon::runtime::LEDGER_FILE);
    std::fs::write(&file, "{\"version\":1,").expect("written");
    stage.start();
    assert_eq!(stage.status().tenants, []);
    assert!(file.with_extension("corrupt").exists());
    stage.register("web", "1GiB", std::process::id());
}
