//! Genuine `nvidia-smi` of three drivers, unmodified: what it shows on the stand-in, and what it
//! shows in a capped container.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use support::genuine::{self, Genuine};
use support::stepper::number;
use support::{MIB, Node, PATIENCE, Setup, StandIn, elf, finish, stand_in, succeed};

/// The driver branches whose tool and library are looked at.
const BRANCHES: [&str; 3] = ["535", "550", "555"];

/// Asks for name, total and used memory, in MiB and without words.
const QUERY: [&str; 2] = [
    "--query-gpu=name,memory.total,memory.used",
    "--format=csv,noheader,nounits",
];

/// Hardware that reports the version of the tool that will ask.
fn hardware_of(branch: &'static str) -> StandIn {
    StandIn::start(&Setup {
        gpu: vec!["--driver-version", branch],
        ..Setup::default()
    })
}

/// Name, total and used of every device, as the tool prints them.
#[track_caller]
fn query(mut command: Command) -> Vec<(String, u64, u64)> {
    let printed = succeed(command.args(QUERY), PATIENCE);
    let row = |line: &str| {
        let mut cells = line.split(", ");
        let name = cells.next()?.to_owned();
        let total = cells.next()?.parse().ok()?;
        Some((name, total, cells.next()?.parse().ok()?))
    };
    let rows = printed
        .lines()
        .map(|line| row(line).unwrap_or_else(|| panic!("{printed}")));
    rows.collect()
}

/// The one line of the table that shows used and total memory.
#[track_caller]
fn memory_cell(table: &str) -> String {
    let cells = table.lines().flat_map(|line| line.split('|'));
    let mut memory = cells.filter(|cell| cell.matches("MiB").count() == 2 && cell.contains('/'));
    let cell = memory
        .next()
        .unwrap_or_else(|| panic!("no memory in {table}"));
    cell.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn every_version_shows_the_stand_in_as_it_shows_a_gpu() {
    for branch in BRANCHES {
        let driver = genuine::driver(branch);
        let hardware = hardware_of(branch);
        let mut program = hardware.stepper();
        program.ok("init");
        program.ok("context 0");
        program.ok("alloc a 1000MiB");

        let table = succeed(&mut hardware.command(&driver.nvidia_smi), PATIENCE);
        assert!(
            table.contains(&format!("Driver Version: {}", driver.version)),
            "{table}"
        );
        assert!(table.contains("Sluice stand-in"), "{table}");
        assert_eq!(memory_cell(&table), "1000MiB / 8192MiB", "{table}");

        let rows = query(hardware.command(&driver.nvidia_smi));
        assert_eq!(rows.len(), 1);
        assert!(rows[0].0.contains("stand-in"), "{rows:?}");
        assert_eq!((rows[0].1, rows[0].2), (8192, 1000), "{rows:?}");

        let list = succeed(hardware.command(&driver.nvidia_smi).arg("-L"), PATIENCE);
        assert!(
            list.contains("GPU 0: ") && list.contains("UUID: GPU-"),
            "{list}"
        );
    }
}

#[test]
fn the_long_report_is_complete_and_its_memory_adds_up() {
    for branch in BRANCHES {
        let driver = genuine::driver(branch);
        let hardware = hardware_of(branch);
        let report = succeed(hardware.command(&driver.nvidia_smi).arg("-q"), PATIENCE);
        let section: Vec<&str> = report
            .lines()
            .skip_while(|line| !line.contains("FB Memory Usage"))
            .take(5)
            .collect();
        let figure = |name: &str| {
            let line = section.iter().find(|line| line.trim().starts_with(name));
            let words = line.and_then(|line| line.split_whitespace().rev().nth(1));
            words
                .and_then(|word| word.parse::<u64>().ok())
                .unwrap_or_else(|| panic!("{section:?}"))
        };
        assert_eq!(figure("Total"), 8192);
        assert_eq!(figure("Reserved") + figure("Used") + figure("Free"), 8192);
        // What a monitor shows of any GPU is there, and not "N/A"; the first of several counts.
        for known in [
            "Product Architecture",
            "GPU UUID",
            "Performance State",
            "Power Draw",
            "GPU Current Temp",
            "Graphics",
            "Gpu",
        ] {
            let line = report
                .lines()
                .find(|line| line.contains(&format!("{known}  ")));
            let line = line.unwrap_or_else(|| panic!("no {known} in {report}"));
            assert!(!line.contains("N/A"), "{branch}: {line}");
        }
    }
}

#[test]
fn what_needs_the_private_table_is_said_not_to_be_supported_and_ends() {
    for branch in BRANCHES {
        let driver = genuine::driver(branch);
        let hardware = hardware_of(branch);
        for mode in ["pmon", "dmon"] {
            let mut command = hardware.command(&driver.nvidia_smi);
            let output = finish(command.args([mode, "-c", "1"]), PATIENCE);
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(
                said.contains("Not supported on the device(s)"),
                "{branch} {mode}: {said}"
            );
        }
    }
}

#[test]
fn without_hardware_it_says_that_there_is_no_driver() {
    let driver = genuine::driver("550");
    let mut command = Command::new(&driver.nvidia_smi);
    command
        .env("LD_LIBRARY_PATH", stand_in())
        .env_remove("LD_PRELOAD");
    let output = finish(command.env_remove("SLUICE_SIM_SOCKET"), PATIENCE);
    // NVML_ERROR_DRIVER_NOT_LOADED is what the tool ends with.
    assert_eq!(output.status.code(), Some(9), "{output:?}");
}

#[test]
fn in_a_container_every_version_shows_the_cap_as_the_size_of_the_gpu() {
    for branch in BRANCHES {
        let driver = genuine::driver(branch);
        let node = node_of(branch);
        let neighbour = node.tenant("batch", "4GiB");
        let mut taken = neighbour.ready_stepper();
        taken.ok("alloc a 1536MiB");
        let tenant = node.tenant("web", "2GiB");

        let rows = query(tenant.command(&driver.nvidia_smi));
        assert_eq!(
            (rows.len(), rows[0].1, rows[0].2),
            (1, 2048, 0),
            "{branch}: {rows:?}"
        );

        let mut program = tenant.ready_stepper();
        program.ok("alloc a 300MiB");
        let table = succeed(&mut tenant.command(&driver.nvidia_smi), PATIENCE);
        assert_eq!(memory_cell(&table), "300MiB / 2048MiB", "{table}");
        let rows = query(neighbour.command(&driver.nvidia_smi));
        assert_eq!((rows[0].1, rows[0].2), (4096, 1536), "{branch}: {rows:?}");

        // The node itself, outside of any container, still shows the whole device.
        let rows = query(node.hardware.command(&driver.nvidia_smi));
        assert_eq!((rows[0].1, rows[0].2), (8192, 1836), "{branch}: {rows:?}");
    }
}

#[test]
fn a_cap_that_changes_is_what_the_next_look_shows() {
    let driver = genuine::driver("550");
    let node = node_of("550");
    let tenant = node.tenant("web", "2GiB");
    assert_eq!(query(tenant.command(&driver.nvidia_smi))[0].1, 2048);
    node.set_memory("web", "3GiB");
    assert_eq!(query(tenant.command(&driver.nvidia_smi))[0].1, 3072);
}

#[test]
fn the_stand_in_exports_every_function_that_a_genuine_library_exports() {
    let library = stand_in().join("libnvidia-ml.so.1");
    let ours: BTreeSet<String> = elf::exports(&library, "nvml").into_iter().collect();
    for branch in BRANCHES {
        let theirs = elf::exports(&genuine::driver(branch).libnvml, "nvml");
        assert!(theirs.len() > 300, "{branch} exports {}", theirs.len());
        let missing: Vec<_> = theirs.iter().filter(|name| !ours.contains(*name)).collect();
        assert!(missing.is_empty(), "{branch}: {missing:?}");
    }
    assert_eq!(soname(&library), "libnvidia-ml.so.1");
}

#[test]
fn memory_beyond_a_mib_is_not_lost_between_the_tool_and_the_hardware() {
    let driver: Genuine = genuine::driver("555");
    let hardware = hardware_of("555");
    let mut program = hardware.stepper();
    program.ok("init");
    program.ok("context 0");
    for step in 1..=3 {
        program.ok(&format!("alloc block{step} 512MiB"));
        let shown = query(hardware.command(&driver.nvidia_smi))[0].2;
        let (free, total) = program.info();
        assert_eq!(shown, 512 * step);
        assert_eq!(shown * MIB, total - free);
        program.ok("nvml-init");
        let answer = program.ok("nvml-memory 0");
        assert_eq!(number(&answer, "used") as u64, shown * MIB);
    }
}

/// A node whose hardware reports the version of the tool that will ask.
fn node_of(branch: &'static str) -> Node {
    Node::with(&Setup {
        gpu: vec!["--driver-version", branch],
        ..Setup::default()
    })
}

fn soname(library: &Path) -> String {
    let mut readelf = Command::new("readelf");
    let printed = succeed(readelf.arg("-dW").arg(library), PATIENCE);
    let line = printed
        .lines()
        .find(|line| line.contains("(SONAME)"))
        .unwrap_or_default();
    let name = line
        .split_once('[')
        .map(|(_, name)| name.trim_end_matches(']'));
    name.unwrap_or_default().to_owned()
}
