//! The driver library in real processes on a real `gpu` process.
//!
//! The library's state is the process's, so each test plays a *scene* in a process of its own: an
//! ignored test of the same name in [`scenes`], started with the `gpu` process's socket.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sim::client::Gpu;
use sim::gpu::{Options, RunError, run};

mod scenes;

/// A `gpu` process in a thread; taking its socket away ends it.
struct Hardware {
    folder: PathBuf,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

impl Hardware {
    fn start(name: &str) -> Self {
        Self::start_with(name, |_| {})
    }

    fn start_with(name: &str, change: impl FnOnce(&mut Options)) -> Self {
        let folder = format!("sluice-sim-cuda-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        let mut options = Options {
            socket: folder.join("gpu.sock"),
            ..Options::default()
        };
        change(&mut options);
        let thread = std::thread::spawn(move || run(options));
        let hardware = Self {
            folder,
            thread: Some(thread),
        };
        eventually(|| Gpu::connect_to(&hardware.socket()).is_ok());
        hardware
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("gpu.sock")
    }

    fn gpu(&self) -> Gpu {
        Gpu::connect_to(&self.socket()).unwrap()
    }

    fn scene(&self, name: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                &format!("scenes::{name}"),
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env(sim::proto::ENV_SOCKET, self.socket())
            .env_remove(sim::proto::ENV_NULL)
            .env_remove("CUDA_VISIBLE_DEVICES")
            .stdin(Stdio::piped());
        command
    }

    /// Plays a scene to its end.
    fn play(&self, name: &str) {
        check(self.scene(name).output().unwrap());
    }

    /// Starts a scene and waits until it has printed `ready`.
    fn begin(&self, name: &str) -> Child {
        let mut child = self.scene(name).stdout(Stdio::piped()).spawn().unwrap();
        let lines = std::io::BufReader::new(child.stdout.as_mut().unwrap());
        let is_ready = std::io::BufRead::lines(lines).any(|line| line.unwrap().contains("ready"));
        assert!(is_ready, "the scene ended before it was ready");
        child
    }
}

impl Drop for Hardware {
    fn drop(&mut self) {
        // A scene of the test may have taken the folder away already.
        let _ = std::fs::remove_dir_all(&self.folder);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(Ok(())))));
    }
}

fn check(output: Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("1 passed"), "no such scene: {text}");
}

fn eventually(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "it did not come true in 10 s");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The shared library that was built beside this test.
fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap();
    let folder = folder.parent().unwrap();
    let beside = folder.join("libsim_cuda.so");
    if beside.exists() {
        return beside;
    }
    folder.parent().unwrap().join("libsim_cuda.so")
}

/// A folder in which clients find the library under its usual names.
fn library_folder(hardware: &Hardware) -> PathBuf {
    let folder = hardware.folder.join("libraries");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::os::unix::fs::symlink(library(), folder.join(name)).unwrap();
    }
    folder
}

/// Scenes that need nothing but a `gpu` process.
macro_rules! plays {
    ($($name:ident)*) => { $(
        #[test]
        fn $name() {
            Hardware::start(stringify!($name)).play(stringify!($name));
        }
    )* };
}

plays! {
    a_device_says_what_it_is
    contexts_stack_up_and_primary_ones_are_counted
    memory_is_counted_by_512_bytes_and_over_it_nothing_changes
    a_context_frees_its_memory_but_no_physical_handle
    the_first_interface_has_addresses_of_32_bits
    bytes_arrive_wherever_they_are_sent
    fills_write_their_pattern_and_nothing_beside_it
    an_asynchronous_copy_happens_in_its_stream_s_turn
    pageable_memory_may_be_changed_once_the_call_is_back
    physical_memory_lives_until_its_last_handle_and_mapping
    a_mapping_without_access_is_not_touched
    a_pool_reserves_in_steps_and_gives_back_what_it_may
    queued_kernels_take_exactly_their_time
    streams_wait_for_events_and_for_the_legacy_stream
    a_host_function_runs_in_its_turn_and_holds_its_stream
    the_launch_call_blocks_when_a_thousand_wait
    a_launch_that_cannot_be_is_refused
    kernels_of_libraries_launch_like_functions
    arrays_take_their_padded_size_and_move_bytes
    an_array_without_backing_takes_nothing_until_it_is_mapped
    a_mipmapped_array_has_its_levels_until_its_context_ends
    a_descriptor_holds_physical_memory_until_it_is_closed
    external_memory_is_mapped_and_freed_without_ending_it
    a_pointer_says_what_it_is
    made_up_and_stale_handles_are_errors
    a_forked_child_is_not_initialised
    managed_memory_is_the_host_s_as_well
    no_private_table_is_handed_out
    signals_stay_with_the_program
    eight_threads_do_not_disturb_each_other
}

/// The same, of the scenes in one of their files.
macro_rules! plays_of {
    ($file:ident: $($name:ident)*) => { $(
        #[test]
        fn $name() {
            let scene = concat!(stringify!($file), "::", stringify!($name));
            Hardware::start(stringify!($name)).play(scene);
        }
    )* };
}

plays_of! {
    graphs:
    what_is_captured_is_done_at_each_launch_and_not_before
    a_kernel_s_parameters_are_taken_when_it_is_captured
    streams_join_a_capture_by_events_and_must_be_joined_back
    what_a_capture_forbids_makes_it_invalid_and_its_end_says_so
    a_capture_forbids_unsafe_calls_to_whom_its_mode_says
    the_legacy_stream_and_a_capture_exclude_each_other
    a_graph_built_by_hand_runs_in_the_order_of_its_edges
    an_executable_graph_is_updated_if_the_form_is_the_same
    a_graph_s_memory_is_held_from_its_launch_until_it_is_trimmed
    a_graph_s_memory_that_no_node_frees_stays_and_hinders_the_next_launch
}

plays_of! {
    values:
    a_stream_writes_values_in_its_turn
    a_stream_waits_until_a_value_is_there
    streams_wait_for_each_other_by_memory_alone
    a_batch_is_done_in_order_or_not_at_all
    memory_operations_refuse_what_they_cannot_do
    memory_operations_become_nodes_of_a_graph
    a_host_function_may_wait_for_what_a_stream_writes
    a_kernel_spins_until_another_stream_sets_its_flag
    a_context_that_ends_takes_its_waits_along
}

plays_of! {
    green:
    multiprocessors_are_divided_in_the_steps_of_the_device
    a_green_context_has_its_part_and_streams_of_its_own
}

plays_of! {
    edits:
    parameters_of_nodes_are_changed_in_a_graph_and_in_what_was_made_of_it
    edges_and_nodes_are_taken_away
    launches_of_one_executable_graph_come_after_one_another
}

plays_of! {
    batches:
    a_batch_of_copies_is_done_in_its_turn_or_not_at_all
    a_batch_copies_boxes_between_memory_and_arrays
    textures_and_surfaces_are_described_and_checked
    what_is_linked_is_loaded_with_all_its_kernels
    there_are_no_multicast_objects
}

plays_of! {
    managed:
    advice_is_kept_for_every_byte_of_managed_memory
    a_prefetch_takes_its_turn_and_the_time_of_a_transfer
    managed_memory_is_attached_whole_or_not_at_all
    a_stream_keeps_its_attributes_and_hands_them_on
}

plays_of! {
    nodes:
    nodes_of_every_kind_are_added_through_one_interface
    a_copy_knows_what_it_is_of_and_a_node_s_graph_is_its_own
    a_graph_is_moved_into_another_with_its_memory
    edges_are_plain_and_say_so
    an_object_goes_with_its_last_reference
    a_capture_adds_to_a_graph_that_is_there
}

plays_of! {
    checkpoints:
    a_process_leaves_the_device_and_comes_back_by_itself
}

/// A scene that does something about another process.
fn about(hardware: &Hardware, name: &str, target: &Child) -> Command {
    let mut scene = hardware.scene(&format!("checkpoints::{name}"));
    scene.env("SIM_TARGET", target.id().to_string());
    scene.env("SIM_NOTES", hardware.folder.join("notes"));
    scene
}

#[test]
fn a_process_is_taken_off_the_device_and_goes_on_where_it_was() {
    let hardware = Hardware::start("checkpoint");
    let target = begin_with_notes(&hardware, "checkpoints::works_until_its_input_ends");
    let name = "takes_another_process_off_the_device_and_brings_it_back";
    check(about(&hardware, name, &target).output().unwrap());
    // Its output's beginning has been read; that it has passed is in its status.
    let ended = target.wait_with_output().unwrap();
    assert!(ended.status.success());
}

#[test]
fn a_process_that_is_killed_off_the_device_leaves_nothing() {
    let hardware = Hardware::start("checkpoint-killed");
    let mut target = begin_with_notes(&hardware, "checkpoints::works_until_its_input_ends");
    let gpu = hardware.gpu();
    assert_eq!(gpu.processes(0).len(), 1);
    let name = "takes_another_process_off_the_device_for_good";
    check(about(&hardware, name, &target).output().unwrap());
    assert_eq!(gpu.processes(0), []);
    assert_eq!(gpu.memory(0).used, 0);
    target.kill().unwrap();
    target.wait().unwrap();
    eventually(|| {
        let rows = gpu.board().client.iter();
        let pid = target.id() as i32;
        rows.map(|row| row.pid.load(std::sync::atomic::Ordering::Relaxed))
            .all(|there| there != pid)
    });
    assert_eq!(gpu.memory(0).used, 0);
    hardware.play("memory_is_counted_by_512_bytes_and_over_it_nothing_changes");
}

#[test]
fn who_dies_while_it_waits_for_a_lock_holds_nobody() {
    let hardware = Hardware::start("checkpoint-waits");
    let mut target = begin_with_notes(&hardware, "checkpoints::works_without_an_end");
    let notes = hardware.folder.join("notes");
    let rounds = || std::fs::read_to_string(&notes).unwrap();
    let mut scene = about(&hardware, "waits_in_vain_for_another_process", &target);
    let mut waits = scene.stdout(Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufReader::new(waits.stdout.as_mut().unwrap());
    assert!(std::io::BufRead::lines(lines).any(|line| line.unwrap().contains("ready")));
    eventually(|| {
        let before = rounds();
        std::thread::sleep(Duration::from_millis(50));
        before == rounds()
    });
    waits.kill().unwrap();
    waits.wait().unwrap();
    let before = rounds();
    eventually(|| before != rounds());
    target.kill().unwrap();
    target.wait().unwrap();
}

#[test]
fn access_between_devices_is_given_once_and_taken_back() {
    let hardware = Hardware::start_with("peers", |options| options.devices = 2);
    hardware.play("peers::access_between_devices_is_given_once_and_taken_back");
}

/// Starts a scene that takes notes, and waits until it is ready.
fn begin_with_notes(hardware: &Hardware, name: &str) -> Child {
    let mut command = hardware.scene(name);
    command.env("SIM_NOTES", hardware.folder.join("notes"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufReader::new(child.stdout.as_mut().unwrap());
    assert!(std::io::BufRead::lines(lines).any(|line| line.unwrap().contains("ready")));
    child
}

#[test]
fn processes_wait_for_each_other_s_events() {
    let hardware = Hardware::start("events");
    let recorder = begin_with_notes(&hardware, "peers::records_an_event_for_another_process");
    let mut waiter = hardware.scene("peers::waits_for_an_event_of_another_process");
    waiter.env("SIM_NOTES", hardware.folder.join("notes"));
    check(waiter.output().unwrap());
    check_end(recorder);
}

#[test]
fn nobody_waits_for_an_event_of_a_process_that_is_killed() {
    let hardware = Hardware::start("recorder");
    let waiter = begin_with_notes(&hardware, "peers::waits_for_one_who_is_killed");
    let mut recorder = begin_with_notes(&hardware, "peers::records_another_s_event_and_is_killed");
    std::thread::sleep(Duration::from_millis(20));
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    check_end(waiter);
}

#[test]
fn a_kernel_spins_until_another_process_sets_its_flag() {
    let hardware = Hardware::start("flag");
    let notes = hardware.folder.join("notes");
    let scene = |name: &str| {
        let mut command = hardware.scene(&format!("values::{name}"));
        command.env("SIM_NOTES", &notes).stdout(Stdio::piped());
        command
    };
    let mut spinner = scene("spins_until_somebody_sets_its_flag").spawn().unwrap();
    let lines = std::io::BufReader::new(spinner.stdout.as_mut().unwrap());
    assert!(std::io::BufRead::lines(lines).any(|line| line.unwrap().contains("ready")));
    check(scene("sets_the_flag_of_another").output().unwrap());
    check_end(spinner);
}

#[test]
fn a_killed_process_s_spinning_kernel_is_gone_with_it() {
    let hardware = Hardware::start("spinner");
    let mut child = hardware.begin("values::spins_for_ever");
    let gpu = hardware.gpu();
    let busy = gpu.busy_ns(0);
    eventually(|| gpu.busy_ns(0) > busy);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually(|| gpu.processes(0).is_empty());
    let busy = gpu.busy_ns(0);
    hardware.play("memory_is_counted_by_512_bytes_and_over_it_nothing_changes");
    // What has come since has run no kernel, and nobody's went on.
    assert_eq!(gpu.busy_ns(0), busy);
}

#[test]
fn a_device_that_falls_off_the_bus_fails_every_call_and_holds_nobody() {
    let hardware = Hardware::start_with("lost", |options| options.devices = 2);
    let mut other = hardware.begin("waits_until_its_device_is_lost");
    let mut scene = hardware.scene("its_device_falls_off_the_bus");
    scene.env("SLUICE_SIM_FAULTS", "cuLaunchKernel@3!lost");
    let output = scene.output().unwrap();
    other.stdin = None;
    check_end(other);
    check(output);
    assert_eq!(hardware.gpu().lost_xid(0), Some(79));
    hardware.play("finds_its_device_lost");
    eventually(|| hardware.gpu().memory(0).used == 0);
}

#[test]
fn under_mps_processes_run_side_by_side_in_full_speed() {
    let hardware = Hardware::start_with("mps", |options| options.is_shared = true);
    let mut other = hardware.begin("values::spins_for_ever");
    hardware.play("values::takes_its_time_beside_another");
    let board = hardware.gpu();
    let row = &board.board().device[0];
    assert_eq!(row.switch_ns.load(std::sync::atomic::Ordering::Relaxed), 0);
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn a_process_that_is_killed_gives_everything_back_at_once() {
    let hardware = Hardware::start("killed");
    let mut child = hardware.begin("holds_three_gibibytes_and_computes");
    let gpu = hardware.gpu();
    assert_eq!(gpu.memory(0).used, 3 << 30);
    let seen = gpu.processes(0);
    assert_eq!(seen[0].pid, child.id() as i32);
    child.kill().unwrap();
    let killed = Instant::now();
    child.wait().unwrap();
    eventually(|| gpu.memory(0).used == 0 && gpu.processes(0).is_empty());
    assert!(killed.elapsed() < Duration::from_secs(1));
}

#[test]
fn wherever_a_process_is_killed_nothing_of_it_is_left() {
    let hardware = Hardware::start("wherever");
    let gpu = hardware.gpu();
    for round in 0..30 {
        let mut children =
            [(); 2].map(|()| hardware.begin("does_this_and_that_until_it_is_killed"));
        std::thread::sleep(Duration::from_millis(round * 7 % 40));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        eventually(|| gpu.memory(0).used == 0 && gpu.processes(0).is_empty());
    }
    hardware.play("memory_is_counted_by_512_bytes_and_over_it_nothing_changes");
}

#[test]
fn a_child_that_outlives_its_parent_keeps_nothing_of_it() {
    let hardware = Hardware::start("orphan");
    let mut child = hardware.begin("forks_a_child_that_outlives_it");
    child.kill().unwrap();
    child.wait().unwrap();
    let gpu = hardware.gpu();
    eventually(|| gpu.memory(0).used == 0);
}

#[test]
fn memory_that_one_process_holds_is_missing_for_the_other() {
    let hardware = Hardware::start("missing");
    let mut child = hardware.begin("holds_three_gibibytes_and_computes");
    hardware.play("finds_five_gibibytes_free");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn memory_that_processes_share_lives_as_long_as_one_of_them_holds_it() {
    let hardware = Hardware::start("shared");
    let gpu = hardware.gpu();
    let notes = hardware.folder.join("notes");
    let maker = |name: &str| {
        let mut command = hardware.scene(name);
        command.env("SIM_NOTES", &notes);
        command
    };
    let mut child = maker("shares_what_it_has")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(child.stdout.as_mut().unwrap());
    assert!(std::io::BufRead::lines(lines).any(|line| line.unwrap().contains("ready")));
    let made = gpu.memory(0).used;
    let output = maker("takes_what_is_shared").output().unwrap();
    check(output);
    assert_eq!(gpu.memory(0).used, made, "the maker holds it still");
    let mut holder = maker("holds_what_is_shared")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(holder.stdout.as_mut().unwrap());
    assert!(std::io::BufRead::lines(lines).any(|line| line.unwrap().contains("ready")));
    child.kill().unwrap();
    child.wait().unwrap();
    eventually(|| gpu.processes(0).len() == 1);
    assert_eq!(gpu.memory(0).used, 4 << 20, "what the other holds stays");
    holder.kill().unwrap();
    holder.wait().unwrap();
    eventually(|| gpu.memory(0).used == 0);
}

#[test]
fn without_the_gpu_process_calls_fail_and_none_hangs() {
    let hardware = Hardware::start("gone");
    let child = hardware.begin("meets_the_end_of_the_gpu_process");
    drop(hardware);
    check_end(child);
}

fn check_end(child: Child) {
    let (sender, ended) = std::sync::mpsc::channel();
    let pid = child.id();
    std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
    let Ok(output) = ended.recv_timeout(Duration::from_secs(20)) else {
        panic!("process {pid} hangs");
    };
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn without_any_gpu_process_there_is_no_device() {
    let hardware = Hardware::start("none");
    let mut scene = hardware.scene("finds_no_device");
    scene.env(sim::proto::ENV_SOCKET, "/nonexistent/gpu.sock");
    check(scene.output().unwrap());
    let mut scene = hardware.scene("finds_no_device");
    scene.env_remove(sim::proto::ENV_SOCKET);
    check(scene.output().unwrap());
}

#[test]
fn a_context_s_own_memory_is_counted_once_for_each() {
    let hardware = Hardware::start_with("overhead", |options| {
        options.context_overhead_bytes = 300 << 20;
    });
    hardware.play("pays_300_mebibytes_for_each_context");
}

#[test]
fn a_process_sees_the_devices_that_it_is_to_see() {
    let hardware = Hardware::start_with("visible", |options| options.devices = 2);
    let uuid = hardware.gpu().devices()[1].uuid_text();
    for list in ["1", "1,9,0", &uuid, &uuid[..40]] {
        let mut scene = hardware.scene("sees_the_second_device_only");
        check(scene.env("CUDA_VISIBLE_DEVICES", list).output().unwrap());
    }
    let mut scene = hardware.scene("finds_no_device");
    check(scene.env("CUDA_VISIBLE_DEVICES", "").output().unwrap());
}

#[test]
fn an_older_driver_does_not_know_what_came_later() {
    let hardware = Hardware::start_with("older", |options| {
        options.driver = sim::profile::DriverVersion::named("535").unwrap();
    });
    hardware.play("finds_nothing_newer_than_12_2");
}

#[test]
fn cudarc_runs_as_it_is() {
    let hardware = Hardware::start("cudarc");
    let mut scene = hardware.scene("cudarc_computes");
    scene.env("LD_LIBRARY_PATH", library_folder(&hardware));
    check(scene.output().unwrap());
}

#[test]
fn every_symbol_is_exported_and_found_where_the_loader_finds_it() {
    let hardware = Hardware::start("symbols");
    let mut scene = hardware.scene("look_ups_agree_with_the_loader");
    scene.env("SIM_CUDA_LIBRARY", library());
    check(scene.output().unwrap());
}

#[test]
fn null_mode_needs_no_gpu_process_and_costs_next_to_nothing() {
    let hardware = Hardware::start("null");
    let mut scene = hardware.scene("null_mode_is_quick");
    scene
        .env(sim::proto::ENV_NULL, "1")
        .env(sim::proto::ENV_SOCKET, Path::new("/nonexistent"));
    let output = scene.output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    check(output);
}
