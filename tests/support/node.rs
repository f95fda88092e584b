//! A node: the stand-in's `gpu` process, a daemon, and tenants.

use super::stepper::{Stepper, number};
use super::{PATIENCE, Program, eventually, kill, libraries, sluice, stand_in};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;
use tempfile::TempDir;

/// What a node is made of.
#[derive(Debug, Clone)]
pub struct Setup {
    /// How many devices.
    pub devices: u32,
    /// Size of each, as `sluice sim gpu --memory` reads it.
    pub memory: &'static str,
    /// `[memory] overcommit_ratio` of the daemon.
    pub overcommit: f64,
    /// Further arguments for the `gpu` process.
    pub gpu: Vec<&'static str>,
    /// More of the daemon's configuration.
    pub config: &'static str,
    /// Which driver the daemon takes, as `sluice daemon --device` reads it.
    pub driver: &'static str,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            devices: 1,
            memory: "8GiB",
            overcommit: 1.0,
            gpu: Vec::new(),
            config: "",
            driver: "stand-in",
        }
    }
}

/// A `gpu` process: the hardware, without any Sluice.
#[derive(Debug)]
pub struct StandIn {
    folder: TempDir,
    gpu: Child,
    truth: Mutex<Option<Stepper>>,
}

impl StandIn {
    /// Switches the hardware on.
    pub fn start(setup: &Setup) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("sluice-test-")
            .tempdir()
            .expect("a temporary folder");
        let socket = folder.path().join("gpu.sock");
        let mut command = Command::new(sluice());
        command
            .args(["sim", "gpu", "--socket"])
            .arg(&socket)
            .args(["--devices", &setup.devices.to_string()])
            .args(["--memory", setup.memory])
            .args(&setup.gpu)
            .stdin(Stdio::null());
        let gpu = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stand_in = Self {
            folder,
            gpu,
            truth: Mutex::default(),
        };
        // The file is there a moment before anybody listens.
        eventually("the gpu process listens", PATIENCE, || {
            sim::client::Gpu::connect_to(&socket).ok().map(drop)
        });
        stand_in
    }

    /// The socket of the `gpu` process.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("gpu.sock")
    }

    /// Process id of the hardware.
    pub fn pid(&self) -> u32 {
        self.gpu.id()
    }

    /// A private folder that lives as long as this.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A program on the hardware, without Sluice.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", stand_in())
            .env("SLUICE_SIM_SOCKET", self.socket())
            .env_remove("LD_PRELOAD");
        command
    }

    /// A stepper on the hardware, without Sluice.
    pub fn stepper(&self) -> Stepper {
        Stepper::start(&mut self.command(Program::Stepper.path()))
    }

    /// What is truly in use on a device, as the hardware says.
    #[track_caller]
    pub fn truth(&self, device: u32) -> u64 {
        let mut truth = self.truth.lock().expect("no test thread panicked in here");
        let stepper = truth.get_or_insert_with(|| {
            let mut stepper = self.stepper();
            stepper.ok("nvml-init");
            stepper
        });
        number(&stepper.ok(&format!("nvml-memory {device}")), "used") as u64
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        _ = self.gpu.kill();
        _ = self.gpu.wait();
    }
}

/// A node with a daemon.
#[derive(Debug)]
pub struct Node {
    /// The hardware.
    pub hardware: StandIn,
    driver: &'static str,
    daemon: Option<Child>,
    variables: Vec<(String, String)>,
}

impl Node {
    /// A node with one device of 8 GiB.
    pub fn start() -> Self {
        Self::with(&Setup::default())
    }

    /// A node as `setup` says.
    pub fn with(setup: &Setup) -> Self {
        let hardware = StandIn::start(setup);
        let (ratio, more) = (setup.overcommit, setup.config);
        let config = format!("[memory]\novercommit_ratio = {ratio:?}\n{more}\n");
        std::fs::write(hardware.folder().join("sluice.toml"), config).expect("a writable folder");
        let mut node = Self {
            hardware,
            driver: setup.driver,
            daemon: None,
            variables: Vec::new(),
        };
        node.start_daemon();
        node
    }

    /// Starts a daemon in the node's runtime folder and waits until it takes registrations.
    #[track_caller]
    pub fn start_daemon(&mut self) {
        self.start_daemon_unready();
        eventually("the daemon is ready", PATIENCE, || {
            self.alive();
            let (code, health) = self.try_get("/v1/health")?;
            (code == 200 && health["is_ready"] == true).then_some(())
        });
    }

    /// [`Self::start_daemon`], with these variables in its environment.
    #[track_caller]
    pub fn start_daemon_with(&mut self, variables: &[(&str, &str)]) {
        self.variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        self.start_daemon();
    }

    /// Starts a daemon without waiting for it.
    #[track_caller]
    pub fn start_daemon_unready(&mut self) {
        assert!(self.daemon.is_none(), "one daemon at a time");
        let mut command = Command::new(sluice());
        command
            .args(["daemon", "--device", self.driver, "--config"])
            .arg(self.hardware.folder().join("sluice.toml"))
            .arg("--runtime-dir")
            .arg(self.folder())
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if std::env::var_os("SLUICE_TEST_LOG").is_none() {
            command.stderr(Stdio::null());
        }
        let daemon = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        self.daemon = Some(daemon);
    }

    /// The daemon's process id.
    #[track_caller]
    pub fn daemon_pid(&self) -> u32 {
        self.daemon.as_ref().expect("a daemon runs").id()
    }

    /// `kill -9` for the daemon, and waits until it is dead.
    #[track_caller]
    pub fn kill_daemon(&mut self) {
        let mut daemon = self.daemon.take().expect("a daemon runs");
        daemon.kill().expect("our own child");
        daemon.wait().expect("our own child");
    }

    /// The runtime folder.
    pub fn folder(&self) -> &Path {
        self.hardware.folder()
    }

    /// The socket that processes attach to.
    pub fn attach_socket(&self) -> PathBuf {
        self.folder().join("socket/attach.sock")
    }

    /// `sluice run` on this node, up to and without the program.
    pub fn run(&self, name: &str, memory: &str) -> Command {
        let mut command = Command::new(sluice());
        command
            .args(["run", "--runtime-dir"])
            .arg(self.folder())
            .args(["--name", name, "--memory", memory, "--"]);
        command
    }

    /// A stepper of its own tenant with these further options of `sluice run`, with a context on device 0.
    #[track_caller]
    pub fn stepper_with(&self, name: &str, options: &[&str]) -> Stepper {
        let mut command = Command::new(sluice());
        command
            .args(["run", "--runtime-dir"])
            .arg(self.folder())
            .args(["--name", name, "--memory", "1GiB"])
            .args(options)
            .arg("--")
            .arg(Program::Stepper.path());
        ready(Stepper::start(&mut command))
    }

    /// Runs `sluice` with these arguments on this node; says whether it succeeded, and what it wrote.
    #[track_caller]
    pub fn sluice(&self, arguments: &[&str]) -> (bool, String) {
        let (subcommand, rest) = arguments.split_first().expect("a subcommand");
        let output = Command::new(sluice())
            .arg(subcommand)
            .arg("--runtime-dir")
            .arg(self.folder())
            .args(rest)
            .output()
            .expect("sluice starts");
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    /// [`Self::sluice`] for a subcommand of several words.
    #[track_caller]
    pub fn sluice_of(&self, subcommand: &[&str], arguments: &[&str]) -> (bool, String) {
        let output = Command::new(sluice())
            .args(subcommand)
            .arg("--runtime-dir")
            .arg(self.folder())
            .args(arguments)
            .output()
            .expect("sluice starts");
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    }

    /// What the daemon says of a tenant's share of GPU time on its first device.
    #[track_caller]
    pub fn compute(&self, name: &str) -> Value {
        let tenant = self
            .tenant_status(name)
            .unwrap_or_else(|| panic!("no tenant {name}"));
        tenant["devices"][0]["compute"].clone()
    }

    /// How long kernels of this process have run on device 0, by the hardware's own account.
    #[track_caller]
    pub fn busy(&self, pid: u32) -> Duration {
        let gpu = sim::client::Gpu::connect_to(&self.hardware.socket()).expect("the hardware");
        let processes = gpu.processes(0);
        let found = processes.iter().find(|process| process.pid as u32 == pid);
        Duration::from_nanos(found.map_or(0, |process| process.busy_ns))
    }

    /// A stepper as the one program of a tenant of its own.
    #[track_caller]
    pub fn stepper(&self, name: &str, memory: &str) -> Stepper {
        Stepper::start(self.run(name, memory).arg(Program::Stepper.path()))
    }

    /// A stepper of its own tenant, with a context on device 0.
    #[track_caller]
    pub fn ready_stepper(&self, name: &str, memory: &str) -> Stepper {
        ready(self.stepper(name, memory))
    }

    /// A tenant in which any number of programs can be started.
    #[track_caller]
    pub fn tenant(&self, name: &str, memory: &str) -> Tenant {
        Tenant::start(self.run(name, memory))
    }

    /// The daemon's status.
    #[track_caller]
    pub fn status(&self) -> Value {
        self.get("/v1/status")
    }

    /// One tenant, `None` if the daemon knows no such tenant.
    #[track_caller]
    pub fn tenant_status(&self, name: &str) -> Option<Value> {
        let status = self.status();
        let tenants = status["tenants"].as_array().expect("a list of tenants");
        tenants
            .iter()
            .find(|tenant| tenant["name"] == name)
            .cloned()
    }

    /// What the daemon accounts to a tenant on one of its devices.
    #[track_caller]
    pub fn used(&self, name: &str, device: usize) -> u64 {
        self.figure(name, device, "memory_used_bytes")
    }

    /// A number that the daemon shows for a tenant on one of its devices.
    #[track_caller]
    pub fn figure(&self, name: &str, device: usize, key: &str) -> u64 {
        let tenant = self
            .tenant_status(name)
            .unwrap_or_else(|| panic!("no tenant {name}"));
        number(&tenant["devices"][device], key) as u64
    }

    /// Waits until the daemon accounts `bytes` to a tenant on its first device.
    #[track_caller]
    pub fn wait_for_used(&self, name: &str, bytes: u64, bound: Duration) {
        let mut last = 0;
        let begin = std::time::Instant::now();
        while begin.elapsed() < bound {
            last = self.used(name, 0);
            if last == bytes {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("{name} uses {last} bytes and not {bytes}, {bound:?} later");
    }

    /// Changes a tenant's cap, as `sluice set` does.
    #[track_caller]
    pub fn set_memory(&self, name: &str, memory: &str) {
        super::succeed(
            Command::new(sluice())
                .args(["set", "--runtime-dir"])
                .arg(self.folder())
                .args([name, "--memory", memory]),
            PATIENCE,
        );
    }

    /// Changes a tenant's cap on all its devices, without a process that asks for it.
    #[track_caller]
    pub fn patch_memory(&self, name: &str, memory: &str) {
        let body = format!("{{\"memory\":\"{memory}\"}}");
        let path = format!("/v1/tenants/{name}");
        let (code, answer) = self
            .exchange("PATCH", &path, &body)
            .expect("the daemon answers");
        assert_eq!(code, 200, "{answer}");
    }

    /// Registers the container whose first process `pid` is, as the hook of an engine does.
    #[track_caller]
    pub fn register_container(&self, name: &str, memory: &str, pid: u32) -> Value {
        let body = serde_json::json!({
            "name": name,
            "memory": memory,
            "owner_pid": pid,
            "container": { "id": name },
        });
        let answer = self.exchange("POST", "/v1/tenants", &body.to_string());
        let (code, answer) = answer.expect("the daemon answers");
        assert_eq!(code, 201, "{answer}");
        answer
    }

    #[track_caller]
    fn get(&self, path: &str) -> Value {
        let (code, body) = self.try_get(path).expect("the daemon answers");
        assert_eq!(code, 200, "{body}");
        body
    }

    fn try_get(&self, path: &str) -> Option<(u16, Value)> {
        self.exchange("GET", path, "")
    }

    fn exchange(&self, method: &str, path: &str, body: &str) -> Option<(u16, Value)> {
        let mut socket = UnixStream::connect(self.folder().join("status.sock")).ok()?;
        socket.set_read_timeout(Some(PATIENCE)).ok()?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: sluice\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        socket.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let code = head.split_whitespace().nth(1)?.parse().ok()?;
        Some((code, serde_json::from_str(body).ok()?))
    }

    #[track_caller]
    fn alive(&mut self) {
        if let Some(daemon) = &mut self.daemon
            && let Some(status) = daemon.try_wait().expect("our own child")
        {
            panic!("the daemon ended with {status}; SLUICE_TEST_LOG=1 shows what it says");
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            _ = daemon.kill();
            _ = daemon.wait();
        }
    }
}

/// A tenant with room for any number of programs: `sluice run` runs a shell that only waits.
#[derive(Debug)]
pub struct Tenant {
    owner: Child,
    environment: Vec<(OsString, OsString)>,
}

impl Tenant {
    #[track_caller]
    fn start(mut run: Command) -> Self {
        let mut owner = run
            .args(["sh", "-c", "env -0; echo; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{run:?}: {error}"));
        let mut listing = Vec::new();
        let output = owner.stdout.as_mut().expect("was asked for above");
        BufReader::new(output)
            .read_until(b'\n', &mut listing)
            .expect("a pipe");
        let environment = listing
            .split(|byte| *byte == 0)
            .filter_map(|entry| {
                let equals = entry.iter().position(|byte| *byte == b'=')?;
                let (name, value) = entry.split_at(equals);
                Some((
                    OsString::from_vec(name.to_vec()),
                    OsString::from_vec(value[1..].to_vec()),
                ))
            })
            .collect::<Vec<_>>();
        assert!(
            environment.iter().any(|(name, _)| name == "SLUICE_TOKEN"),
            "{run:?} gives no token: {}",
            String::from_utf8_lossy(&listing)
        );
        Self { owner, environment }
    }

    /// A program in this tenant.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().envs(self.environment.iter().cloned());
        command
    }

    /// A stepper in this tenant.
    pub fn stepper(&self) -> Stepper {
        Stepper::start(&mut self.command(Program::Stepper.path()))
    }

    /// A stepper in this tenant, with a context on device 0.
    #[track_caller]
    pub fn ready_stepper(&self) -> Stepper {
        ready(self.stepper())
    }

    /// A variable that programs of this tenant have.
    #[track_caller]
    pub fn variable(&self, name: &str) -> String {
        let found = self.environment.iter().find(|(it, _)| it == name);
        let (_, value) = found.unwrap_or_else(|| panic!("no variable {name}"));
        value.to_str().expect("text").to_owned()
    }

    /// The process that the tenant was registered for.
    pub fn owner_pid(&self) -> u32 {
        self.owner.id()
    }

    /// Ends the owner; the tenant then lives as long as its other processes.
    pub fn kill_owner(&mut self) {
        _ = self.owner.kill();
        _ = self.owner.wait();
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        self.kill_owner();
    }
}

#[track_caller]
fn ready(mut stepper: Stepper) -> Stepper {
    stepper.ok("init");
    stepper.ok("context 0");
    stepper
}
