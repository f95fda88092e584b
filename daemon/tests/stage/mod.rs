//! What the tests of the daemon stand on: a daemon in a process of its own, and clients that speak the
//! attach protocol for real.
//!
//! Both are this very test program, started again with a role in its environment.
#![allow(dead_code, reason = "each test file uses a part of the stage")]

use daemon::api::{DriverInfo, DriverKind, Registered, Status, TenantInfo};
use daemon::tenants::Device;
use daemon::{Settings, runtime};
use ffi::sync::Ordering;
use ffi::wire::{
    ATTACH_BYTES, AttachReply, AttachRequest, ControlPage, LAYOUT, MESSAGE_MAGIC, Token, UsagePage,
    attach_flags, attach_status,
};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    connect, recvmsg, sendmsg, socket,
};
use serde_json::Value;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Size of each of the stage's two devices.
pub(crate) const DEVICE_BYTES: u64 = 8 << 30;

/// Longest wait for anything that is promised within a second.
pub(crate) const SECOND: Duration = Duration::from_secs(1);

const ROLE: &str = "SLUICE_STAGE_ROLE";
const FOLDER: &str = "SLUICE_STAGE_FOLDER";
const TOKEN: &str = "SLUICE_STAGE_TOKEN";

/// What the stage's daemon says on standard error; `debug` helps when a test fails.
const LOG: &str = "SLUICE_STAGE_LOG";

/// The part of a child: every test file has a test that calls this, and does nothing else.
pub(crate) fn play_role() {
    let folder = std::env::var(FOLDER).map(PathBuf::from);
    match (std::env::var(ROLE).as_deref(), folder) {
        (Ok("daemon"), Ok(folder)) => {
            tracing_subscriber::fmt()
                .with_env_filter(tracing_subscriber::EnvFilter::from_env(LOG))
                .with_writer(std::io::stderr)
                .init();
            if let Err(error) = daemon::run(settings(&folder)) {
                println!("@failed: {error}");
            }
        }
        (Ok("client"), Ok(folder)) => client(&folder),
        _ => {}
    }
}

/// Settings of a daemon in `folder`, with two devices that need no NVML.
pub(crate) fn settings(folder: &Path) -> Settings {
    Settings {
        runtime_dir: folder.to_owned(),
        driver: DriverInfo {
            kind: DriverKind::StandIn,
            libcuda: None,
            libnvml: None,
            gpu_socket: None,
        },
        overcommit_ratio: 1.0,
        host_budget_bytes: 0,
        oversubscribed_turn: Duration::from_secs(10),
        overhead_reserve_bytes: 0,
        gates_copies: false,
        native_limits: true,
        status_group: "sluice".to_owned(),
        devices: Some(
            (0..2)
                .map(|index| Device {
                    index,
                    uuid: format!("GPU-{index:08x}-1111-2222-3333-444444444444"),
                    name: "stage device".to_owned(),
                    memory_bytes: DEVICE_BYTES,
                })
                .collect(),
        ),
    }
}

fn again(role: &str, folder: &Path) -> Command {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command
        .args([
            "--ignored",
            "--exact",
            "plays_the_role_of_a_child",
            "--nocapture",
        ])
        .env(ROLE, role)
        .env(FOLDER, folder);
    command
}

/// A folder, and the daemon in it.
#[derive(Debug)]
pub(crate) struct Stage {
    folder: tempfile::TempDir,
    daemon: Option<Child>,
}

impl Stage {
    /// Starts a daemon and waits until it takes registrations.
    pub(crate) fn new() -> Self {
        let mut stage = Self {
            folder: tempfile::tempdir().expect("a folder"),
            daemon: None,
        };
        stage.start();
        stage
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts the next daemon; says how long it took until it was ready.
    pub(crate) fn start(&mut self) -> Duration {
        let since = Instant::now();
        let mut command = again("daemon", self.folder());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.daemon = Some(command.spawn().expect("a daemon"));
        wait_until("the daemon is ready", || {
            let health = self.try_http("GET", "/v1/health", None);
            health.is_ok_and(|(_, body)| body["is_ready"] == true)
        });
        since.elapsed()
    }

    pub(crate) fn daemon_pid(&self) -> u32 {
        self.daemon.as_ref().expect("a daemon").id()
    }

    /// `kill -9`.
    pub(crate) fn kill_daemon(&mut self) {
        let mut daemon = self.daemon.take().expect("a daemon");
        daemon.kill().expect("killed");
        daemon.wait().expect("reaped");
    }

    /// `SIGTERM`, and its end.
    pub(crate) fn stop_daemon(&mut self) {
        let mut daemon = self.daemon.take().expect("a daemon");
        let pid = nix::unistd::Pid::from_raw(daemon.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM).expect("told");
        assert!(daemon.wait().expect("ended").success());
    }

    pub(crate) fn http(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        self.try_http(method, path, body).expect("an answer")
    }

    pub(crate) fn try_http(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> std::io::Result<(u16, Value)> {
        let mut stream = UnixStream::connect(runtime::status_socket(self.folder()))?;
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: sluice\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let broken = || std::io::Error::other(format!("no answer: {answer:?}"));
        let code = answer.get(9..12).and_then(|code| code.parse().ok());
        let (_, body) = answer.split_once("\r\n\r\n").ok_or_else(broken)?;
        let body = serde_json::from_str(body).map_err(std::io::Error::other)?;
        Ok((code.ok_or_else(broken)?, body))
    }

    pub(crate) fn status(&self) -> Status {
        let (code, body) = self.http("GET", "/v1/status", None);
        assert_eq!(code, 200, "{body}");
        serde_json::from_value(body).expect("a status")
    }

    pub(crate) fn tenant(&self, name: &str) -> Option<TenantInfo> {
        let tenants = self.status().tenants;
        tenants.into_iter().find(|tenant| tenant.name == name)
    }

    /// What a tenant holds on device 0.
    pub(crate) fn used_bytes(&self, name: &str) -> u64 {
        let tenant = self.tenant(name).expect("a tenant");
        tenant.devices[0].memory_used_bytes
    }

    /// Registers a tenant on device 0, owned by `owner`.
    pub(crate) fn register(&self, name: &str, memory: &str, owner: u32) -> Registered {
        let body = serde_json::json!({
            "name": name, "memory": memory, "gpus": [0], "owner_pid": owner
        });
        let (code, body) = self.http("POST", "/v1/tenants", Some(body));
        assert_eq!(code, 201, "{body}");
        serde_json::from_value(body).expect("registered")
    }

    /// Starts a client of the tenant with `token`, and lets it attach.
    pub(crate) fn client(&self, registered: &Registered) -> Client {
        let mut client = self.idle_client(registered);
        assert_eq!(client.ask("attach"), "0", "status");
        client
    }

    /// Starts a client and lets it wait.
    pub(crate) fn idle_client(&self, registered: &Registered) -> Client {
        let mut command = again("client", self.folder());
        command.env(TOKEN, &registered.token);
        Client::start(command)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(daemon) = &mut self.daemon {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Asks again and again, for at most a second.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + SECOND;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within a second: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A client process that does what it is told.
#[derive(Debug)]
pub(crate) struct Client {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Client {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a client");
        Self {
            orders: child.stdin.take().expect("piped"),
            answers: BufReader::new(child.stdout.take().expect("piped")),
            child,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order and returns the answer.
    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        let mut line = String::new();
        loop {
            line.clear();
            let length = self.answers.read_line(&mut line).expect("readable");
            assert!(length > 0, "the client ended at \"{order}\"");
            // The harness says things of its own, and not always with a line's end.
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim_end().to_owned();
            }
        }
    }

    /// Gives an order that has no answer.
    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("told");
    }

    /// `kill -9`, and no `wait`: it stays a zombie until this is dropped.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a client has after an attach.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) reply: AttachReply,
    pub(crate) socket: OwnedFd,
    pub(crate) control: &'static ControlPage,
    pub(crate) usage: &'static UsagePage,
    pub(crate) usage_fd: OwnedFd,
}

/// A request with this token.
pub(crate) fn request(token: Token, flags: u32) -> AttachRequest {
    AttachRequest {
        magic: MESSAGE_MAGIC,
        layout: LAYOUT,
        flags,
        slot: 0,
        slot_generation: 0,
        reserved: [0; 7],
        token,
    }
}

pub(crate) fn token(digits: &str) -> Token {
    let mut token = Token::default();
    for (place, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[2 * place..2 * place + 2], 16).expect("hexadecimal");
    }
    token
}

/// Sends bytes to the attach socket in `folder`, with a descriptor; the answer, its descriptors, and
/// the connection.
pub(crate) fn exchange(
    folder: &Path,
    bytes: &[u8],
    descriptor: Option<RawFd>,
) -> nix::Result<(AttachReply, Vec<OwnedFd>, OwnedFd)> {
    let address = UnixAddr::new(&runtime::attach_socket(folder))?;
    let kind = SockType::SeqPacket;
    let socket = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)?;
    connect(socket.as_raw_fd(), &address)?;
    let numbers: Vec<RawFd> = descriptor.into_iter().collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let controls = if numbers.is_empty() { &[][..] } else { &rights };
    let parts = [IoSlice::new(bytes)];
    sendmsg::<()>(
        socket.as_raw_fd(),
        &parts,
        controls,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    let mut answer = [0u8; ATTACH_BYTES];
    let mut space = nix::cmsg_space!([RawFd; 3]);
    let mut parts = [IoSliceMut::new(&mut answer)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    if received.bytes != ATTACH_BYTES {
        return Err(nix::Error::ECONNRESET);
    }
    let descriptors = received
        .cmsgs()?
        .flat_map(|control| match control {
            ControlMessageOwned::ScmRights(numbers) => numbers,
            _ => Vec::new(),
        })
        // SAFETY: the kernel has just made it for us.
        .map(|number| unsafe { OwnedFd::from_raw_fd(number) })
        .collect();
    // SAFETY: plain integers, of which every bit pattern is one.
    let reply = unsafe { std::mem::transmute::<[u8; ATTACH_BYTES], AttachReply>(answer) };
    Ok((reply, descriptors, socket))
}

pub(crate) fn request_bytes(request: AttachRequest) -> [u8; ATTACH_BYTES] {
    // SAFETY: plain integers without padding, as asserted where it is defined.
    unsafe { std::mem::transmute::<AttachRequest, [u8; ATTACH_BYTES]>(request) }
}

/// Attaches; or the status of the refusal.
pub(crate) fn attach(
    folder: &Path,
    request: AttachRequest,
    descriptor: Option<RawFd>,
) -> nix::Result<Result<Attached, u32>> {
    let (reply, descriptors, socket) = exchange(folder, &request_bytes(request), descriptor)?;
    if reply.status != attach_status::OK {
        return Ok(Err(reply.status));
    }
    let mut descriptors = descriptors.into_iter();
    let (control, usage) = (descriptors.next(), descriptors.next());
    let (control, usage) = (control.expect("control page"), usage.expect("usage page"));
    Ok(Ok(Attached {
        reply,
        socket,
        control: map(&control, ProtFlags::PROT_READ),
        usage: map(&usage, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE),
        usage_fd: usage,
    }))
}

fn map<T>(fd: &OwnedFd, access: ProtFlags) -> &'static T {
    let bytes = NonZeroUsize::new(size_of::<T>()).expect("a page");
    // SAFETY: a new mapping at a place of the kernel's choice.
    let place = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, fd, 0) }.expect("mapped");
    // SAFETY: large enough, sealed against shrinking, and never unmapped.
    unsafe { place.cast::<T>().as_ref() }
}

/// The client's side: one order a line, one answer each, with `@` in front.
fn client(folder: &Path) {
    let token = token(&std::env::var(TOKEN).expect("a token"));
    let mut attached: Option<Attached> = None;
    for order in std::io::stdin().lines().map_while(Result::ok) {
        let (order, bytes) = order.split_once(' ').unwrap_or((&order, "0"));
        let asked_bytes = bytes.parse().expect("a number");
        let units = ledger::units(asked_bytes);
        match order {
            "attach" => match attach(folder, request(token, 0), None) {
                Ok(Ok(done)) => {
                    println!("@{}", done.reply.status);
                    attached = Some(done);
                }
                Ok(Err(status)) => println!("@{status}"),
                Err(error) => println!("@{error}"),
            },
            "rejoin" => {
                let former = attached.as_ref().expect("attached");
                let request = AttachRequest {
                    slot: former.reply.slot,
                    slot_generation: former.reply.slot_generation,
                    ..request(token, attach_flags::REJOIN)
                };
                let descriptor = Some(former.usage_fd.as_raw_fd());
                match attach(folder, request, descriptor) {
                    Ok(Ok(done)) => {
                        println!("@{}", done.reply.status);
                        attached = Some(done);
                    }
                    Ok(Err(status)) => println!("@{status}"),
                    Err(error) => println!("@{error}"),
                }
            }
            "reserve" | "release" => {
                let done = attached.as_ref().expect("attached");
                let limit = done.control.devices[0]
                    .memory_limit_bytes
                    .load(Ordering::Acquire);
                let books = ledger::Books::of(done.usage, 0).expect("device 0");
                let slot = done.reply.slot;
                let outcome = if order == "reserve" {
                    let reserved = books.reserve(slot, units, ledger::cap_units(limit));
                    let counted = reserved.inspect_err(|_| {
                        books.count_refusal_of(ffi::wire::Refusable::MemAlloc, asked_bytes)
                    });
                    counted.is_ok()
                } else {
                    books.release(slot, units);
                    true
                };
                println!("@{}", if outcome { "done" } else { "refused" });
            }
            "slot" => println!("@{}", attached.as_ref().expect("attached").reply.slot),
            "limit" => {
                let control = attached.as_ref().expect("attached").control;
                let limit = control.devices[0]
                    .memory_limit_bytes
                    .load(Ordering::Acquire);
                println!("@{limit}");
            }
            "beat" => {
                let control = attached.as_ref().expect("attached").control;
                println!("@{}", control.heartbeat_ns.load(Ordering::Acquire));
            }
            // The connection goes, the mapping stays.
            "close" => {
                attached = None;
                println!("@done");
            }
            "exec" => {
                let error = Command::new("sleep").arg("60").exec();
                println!("@{error}");
            }
            // Another process gets a copy of the connection, and lives on when this one is killed.
            "share" => {
                let socket = &attached.as_ref().expect("attached").socket;
                let copy = socket.try_clone().expect("a copy");
                let mut child = Command::new("sleep");
                child.arg("2").stdin(copy).stdout(Stdio::null());
                println!("@{}", child.spawn().expect("a child").id());
            }
            _ => println!("@{order} is no order"),
        }
    }
}
