//! The status socket: HTTP and JSON on a UNIX socket, `curl --unix-socket` included.
//!
//! Whoever can connect may read. Only root and the daemon's own user may change anything; the kernel
//! says who that is. See `docs/status-api.md`.

use crate::api::{
    AuditInfo, ChangeRequest, ComputeInfo, ContainerInfo, DaemonInfo, DeviceInfo, DriverInfo,
    Failure, Health, LeaseState, ProcessInfo, RegisterRequest, Registered, Status, StrangerInfo,
    TenantDeviceInfo, TenantInfo,
};
use crate::devices::{Sample, Watch, held_by};
use crate::quota::Request;
use crate::runtime::attach_socket;
use crate::state::{Pages, RegisterError, Shared, monotonic_ns};
use crate::tenants::{Container, NewTenant, Refusal, Share, Tenant};
use crate::{Settings, descriptors, process};
use axum::Router;
use axum::body::Bytes;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Path, State as Extracted};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use ffi::sync::{AtomicU64, Ordering};
use ffi::wire::{TenantTotal, UsagePage, lease_state};
use nix::unistd::geteuid;
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixListener;

/// Everything that the status thread has.
#[derive(Debug)]
pub(crate) struct Server {
    context: Context,
    listener: std::os::unix::net::UnixListener,
    runtime: tokio::runtime::Runtime,
}

#[derive(Debug, Clone)]
struct Context {
    shared: Arc<Shared>,
    devices: Arc<Watch>,
    driver: Arc<DriverInfo>,
    runtime_dir: Arc<PathBuf>,
}

/// Who sent a request, by the kernel's word.
#[derive(Debug, Clone, Copy)]
struct Peer {
    user: Option<u32>,
    pid: Option<u32>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let credentials = stream.io().peer_cred().ok();
        Self {
            user: credentials.map(|it| it.uid()),
            pid: credentials
                .and_then(|it| it.pid())
                .and_then(|pid| u32::try_from(pid).ok()),
        }
    }
}

/// An answer that is not a success: its code, and one sentence.
#[derive(Debug)]
struct Problem(StatusCode, String);

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.0, Json(Failure { error: self.1 })).into_response()
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::NameTaken { .. }
            | Refusal::ContainerTaken { .. }
            | Refusal::NoRoom { .. }
            | Refusal::NoTime { .. } => StatusCode::CONFLICT,
            Refusal::NoSuchTenant { .. } => StatusCode::NOT_FOUND,
            _ => StatusCode::BAD_REQUEST,
        };
        Self(code, refusal.to_string())
    }
}

impl Server {
    /// A server on `listener`.
    pub(crate) fn new(
        shared: Arc<Shared>,
        devices: Arc<Watch>,
        settings: &Settings,
        listener: OwnedFd,
    ) -> io::Result<Self> {
        Ok(Self {
            context: Context {
                shared,
                devices,
                driver: Arc::new(settings.driver.clone()),
                runtime_dir: Arc::new(settings.runtime_dir.clone()),
            },
            listener: listener.into(),
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?,
        })
    }

    /// Runs until the daemon stops.
    pub(crate) fn run(self) {
        let shared = Arc::clone(&self.context.shared);
        let app = routes(self.context).into_make_service_with_connect_info::<Peer>();
        self.runtime.block_on(async {
            let served = async {
                let listener = UnixListener::from_std(self.listener)?;
                axum::serve(listener, app).await
            };
            tokio::select! {
                ended = served => if let Err(error) = ended {
                    tracing::error!(%error, "the status socket has ended");
                },
                () = shared.stopped() => {}
            }
        });
    }
}

fn routes(context: Context) -> Router {
    Router::new()
        .route("/v1/health", get(health))
        .route("/v1/status", get(status))
        .route("/v1/tenants", post(register))
        .route("/v1/tenants/{name}", get(tenant).patch(change))
        .route("/v1/tenants/{name}/pause", post(pause))
        .route("/v1/tenants/{name}/resume", post(resume))
        .fallback(|| async {
            let known = "there are /v1/health, /v1/status, /v1/tenants, /v1/tenants/NAME, and below that \
                         pause and resume";
            Problem(StatusCode::NOT_FOUND, format!("no such path; {known}"))
        })
        .method_not_allowed_fallback(|| async {
            let error = "this path has no such method".to_owned();
            Problem(StatusCode::METHOD_NOT_ALLOWED, error)
        })
        .with_state(context)
}

async fn health(Extracted(context): Extracted<Context>) -> Json<Health> {
    Json(Health {
        is_ready: context.shared.state().is_ready,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    })
}

async fn status(Extracted(context): Extracted<Context>) -> Json<Status> {
    let word = context.devices.sample().await;
    let sample = &word.sample;
    let (mut devices, tenants) = {
        let state = context.shared.state();
        let tenants: Vec<TenantInfo> = state
            .registry
            .tenants()
            .map(|tenant| describe(tenant, state.pages.get(&tenant.id)))
            .map(|tenant| compare(tenant, sample))
            .collect();
        let devices: Vec<DeviceInfo> = state
            .registry
            .devices()
            .iter()
            .map(|device| DeviceInfo {
                index: device.index,
                uuid: device.uuid.clone(),
                name: device.name.clone(),
                memory_bytes: device.memory_bytes,
                memory_promised_bytes: state.registry.promised_bytes(&device.uuid),
                memory_used_bytes: used_bytes(sample, &tenants, &device.uuid),
                strangers: Vec::new(),
            })
            .collect();
        (devices, tenants)
    };
    // Names of processes are in files, which are not to be read under the lock.
    for device in &mut devices {
        device.strangers = strangers(sample, &tenants, &device.uuid);
    }
    Json(Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        daemon: DaemonInfo {
            pid: std::process::id(),
            uptime_seconds: context.shared.started.elapsed().as_secs(),
            runtime_dir: context.runtime_dir.display().to_string(),
        },
        driver: (*context.driver).clone(),
        audit: AuditInfo {
            age_ms: word.age.map(|age| age.as_millis() as u64),
            is_stale: word.is_stale(),
        },
        devices,
        tenants: tenants
            .into_iter()
            .map(|tenant| name_commands(context.stand(tenant)))
            .collect(),
    })
}

async fn tenant(
    Extracted(context): Extracted<Context>,
    Path(name): Path<String>,
) -> Result<Json<TenantInfo>, Problem> {
    let word = context.devices.sample().await;
    let info = {
        let state = context.shared.state();
        let tenant = state.registry.named(&name)?;
        compare(describe(tenant, state.pages.get(&tenant.id)), &word.sample)
    };
    Ok(Json(name_commands(context.stand(info))))
}

async fn register(
    Extracted(context): Extracted<Context>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Bytes,
) -> Result<(StatusCode, Json<Registered>), Problem> {
    may_change(peer)?;
    let request: RegisterRequest = parse(&body)?;
    may_own(peer, request.owner_pid)?;
    if !context.shared.state().is_ready {
        return Err(Problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "the daemon has just started and still looks for its devices; ask again in a moment"
                .to_owned(),
        ));
    }
    let memory = Request::parse(&request.memory).map_err(Refusal::from)?;
    let owner =
        process::identify(request.owner_pid).ok_or_else(|| no_process(request.owner_pid))?;
    let container = request
        .container
        .map(|info| container(info, request.owner_pid));
    let random = || process::random().map_err(|error| internal(&error));
    let new = NewTenant {
        name: request.name,
        memory,
        compute: request.compute.parse().map_err(Refusal::from)?,
        gpus: request.gpus,
        container: container.transpose()?,
        owner,
        token: random()?,
        nonce: random()?,
    };
    let tenant = context.shared.register(new).map_err(|error| match error {
        RegisterError::Refused(refusal) => refusal.into(),
        RegisterError::System(error) => internal(&error),
    })?;
    let devices = describe(&tenant, None).devices;
    let registered = Registered {
        token: tenant.token.map(|byte| format!("{byte:02x}")).concat(),
        attach_socket: attach_socket(&context.runtime_dir).display().to_string(),
        name: tenant.name,
        id: tenant.id,
        devices,
    };
    Ok((StatusCode::CREATED, Json(registered)))
}

/// How long a change waits for processes that have not come back after the daemon's restart. One that is
/// stopped comes back later, and finds the change then.
const COMING_BACK: Duration = Duration::from_secs(1);

async fn change(
    Extracted(context): Extracted<Context>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<TenantInfo>, Problem> {
    may_change(peer)?;
    let request: ChangeRequest = parse(&body)?;
    let memory = request.memory.as_deref().map(Request::parse).transpose();
    let memory = memory.map_err(Refusal::from)?;
    let compute = request.compute.parse().map_err(Refusal::from)?;
    if memory.is_none() && compute.is_empty() {
        let error = "the request changes nothing; it may have memory, compute, compute_max, weight and class";
        return Err(Problem(StatusCode::BAD_REQUEST, error.to_owned()));
    }
    let (id, info) = {
        let mut state = context.shared.state();
        let tenant = state
            .registry
            .change(&name, memory.as_ref(), compute, request.gpu.as_ref())?
            .clone();
        let pages = state.pages.get(&tenant.id);
        if let Some(pages) = pages {
            pages.control.set_limits(&tenant.shares);
        }
        tracing::info!(tenant = tenant.name, ?memory, ?compute, "changed");
        (tenant.id, describe(&tenant, pages))
    };
    context.shared.save();
    context.shared.bells.ring();
    // Right after a restart some processes may still read the former daemon's page; the change is made
    // when they have come back, which takes them some milliseconds.
    let deadline = Instant::now() + COMING_BACK;
    while !context.shared.are_all_back(id) && Instant::now() < deadline {
        // Also after the last one: it has its page then, and needs a moment to map it.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let info = context.stand(info);
    Ok(Json(name_commands(info)))
}

async fn pause(
    context: Extracted<Context>,
    peer: ConnectInfo<Peer>,
    name: Path<String>,
) -> Result<Json<TenantInfo>, Problem> {
    set_paused(context, peer, name, true)
}

async fn resume(
    context: Extracted<Context>,
    peer: ConnectInfo<Peer>,
    name: Path<String>,
) -> Result<Json<TenantInfo>, Problem> {
    set_paused(context, peer, name, false)
}

fn set_paused(
    Extracted(context): Extracted<Context>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path(name): Path<String>,
    is_paused: bool,
) -> Result<Json<TenantInfo>, Problem> {
    may_change(peer)?;
    let info = {
        let mut state = context.shared.state();
        let tenant = state.registry.pause(&name, is_paused)?.clone();
        describe(&tenant, state.pages.get(&tenant.id))
    };
    tracing::info!(tenant = name, is_paused, "changed");
    context.shared.save();
    context.shared.look_at_turns();
    // The thread plans anew from what stands now.
    context.shared.bells.ring();
    Ok(Json(name_commands(context.stand(info))))
}

/// Reads a body.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        let error = format!("the request's body makes no sense: {error}");
        Problem(StatusCode::BAD_REQUEST, error)
    })
}

fn may_change(peer: Peer) -> Result<(), Problem> {
    match peer.user {
        Some(user) if user == 0 || user == geteuid().as_raw() => Ok(()),
        _ => Err(Problem(
            StatusCode::FORBIDDEN,
            "only root and the daemon's own user may change anything here".to_owned(),
        )),
    }
}

/// A process may own a tenant itself; root may name any, the daemon's user any of its own.
fn may_own(peer: Peer, owner: u32) -> Result<(), Problem> {
    if peer.user == Some(0) || peer.pid == Some(owner) {
        return Ok(());
    }
    match process::user(owner) {
        None => Err(no_process(owner)),
        Some(user) if Some(user) == peer.user => Ok(()),
        Some(_) if peer.user.is_some() && descriptors::namespace_owner(owner) == peer.user => {
            Ok(())
        }
        Some(_) => Err(Problem(
            StatusCode::FORBIDDEN,
            format!("process {owner} is another user's and cannot own a tenant of yours"),
        )),
    }
}

fn no_process(pid: u32) -> Problem {
    Problem(
        StatusCode::BAD_REQUEST,
        format!("there is no process {pid} that could own a tenant"),
    )
}

fn internal(error: &io::Error) -> Problem {
    Problem(
        StatusCode::INTERNAL_SERVER_ERROR,
        format!("the system refused what a tenant needs: {error}"),
    )
}

/// A tenant as clients see it, but for its processes' commands, which are not to be had under the lock.
///
/// The usage page is the tenant's claim: nothing of it is shown beyond the size of its device.
fn describe(tenant: &Tenant, pages: Option<&Pages>) -> TenantInfo {
    let page = pages
        .and_then(|pages| pages.usage.as_ref())
        .map(|usage| usage.page());
    let books = |place| page.and_then(|page| ledger::Books::of(page, place));
    let devices = tenant.shares.iter().enumerate().map(|(place, share)| {
        let most = share.device.memory_bytes;
        let bytes = |units: u64| ledger::bytes(units).min(most);
        let books = books(place);
        let total = page.and_then(|page| page.totals.get(place));
        let count = |word: fn(&TenantTotal) -> &AtomicU64| {
            total.map_or(0, |total| word(total).load(Ordering::Relaxed))
        };
        TenantDeviceInfo {
            index: share.device.index,
            uuid: share.device.uuid.clone(),
            memory_limit_bytes: share.limit_bytes,
            memory_used_bytes: books.map_or(0, |books| bytes(books.held_units())),
            memory_peak_bytes: books.map_or(0, |books| bytes(books.peak_units())),
            oom_refusals: count(|total| &total.refusals),
            last_refused_bytes: count(|total| &total.last_refused_bytes),
            memory_truth_bytes: None,
            memory_overhead_bytes: None,
            memory_set_aside_bytes: pages.map_or(0, |pages| pages.control.is_set_aside(place)),
            compute: describe_compute(tenant, page, place, share),
        }
    });
    let processes = tenant.slots.iter().map(|(slot, holder)| {
        let held = tenant.shares.iter().enumerate().map(|(place, share)| {
            let units = books(place).map_or(0, |books| books.slot_units(*slot));
            ledger::bytes(units).min(share.device.memory_bytes)
        });
        ProcessInfo {
            pid: holder.process.pid,
            command: String::new(),
            memory_used_bytes: held.fold(0, u64::saturating_add),
        }
    });
    TenantInfo {
        name: tenant.name.clone(),
        id: tenant.id,
        owner_pid: tenant.owner.pid,
        devices: devices.collect(),
        processes: processes.collect(),
        container: tenant.container.as_ref().map(|it| it.info.clone()),
        is_paused: tenant.is_paused,
    }
}

/// Finds out by what a container's processes will be known; `pid` is its first one.
fn container(info: ContainerInfo, pid: u32) -> Result<Container, Problem> {
    let own = std::process::id();
    let control_group = process::control_group(pid)
        .filter(|path| process::control_group(own).as_ref() != Some(path));
    let pid_namespace =
        process::pid_namespace(pid).filter(|inode| process::pid_namespace(own) != Some(*inode));
    if control_group.is_none() && pid_namespace.is_none() {
        let error = format!(
            "container {} shares the control group and the PID namespace of the daemon: its processes \
             cannot be told from others",
            info.id
        );
        return Err(Problem(StatusCode::BAD_REQUEST, error));
    }
    Ok(Container {
        info,
        control_group,
        pid_namespace,
    })
}

/// What a tenant was promised of a device's time, and what its processes say; the lease and what was
/// charged are the arbiter's to add, see [`Context::stand`].
fn describe_compute(
    tenant: &Tenant,
    page: Option<&UsagePage>,
    place: usize,
    share: &Share,
) -> ComputeInfo {
    let terms = share.terms();
    let mut info = ComputeInfo {
        guarantee_permille: terms.guarantee_permille,
        ceiling_permille: terms.ceiling_permille,
        weight: terms.weight,
        class: terms.class,
        ..ComputeInfo::default()
    };
    let works = tenant
        .slots
        .keys()
        .filter_map(|slot| page?.slots.get(*slot as usize)?.work.get(place));
    for work in works {
        let waiting = work.waiting.load(Ordering::Relaxed);
        info.waiting = info.waiting.saturating_add(waiting);
        let launches = work.launches.load(Ordering::Relaxed);
        info.launches = info.launches.saturating_add(launches);
        info.held = info.held.saturating_add(work.held.load(Ordering::Relaxed));
        info.longest_ns = info.longest_ns.max(work.longest_ns.load(Ordering::Relaxed));
    }
    info
}

impl Context {
    /// Adds what the arbiter knows of a tenant.
    fn stand(&self, mut tenant: TenantInfo) -> TenantInfo {
        for device in &mut tenant.devices {
            let turns = &self.shared.turns;
            let standing = turns.standing(tenant.id, &device.uuid, monotonic_ns());
            device.compute.used_ns = standing.used_ns;
            device.compute.share_permille = standing.share_permille;
            device.compute.lease = match standing.state {
                None => LeaseState::Unshared,
                Some(lease_state::LEASED) => LeaseState::Leased,
                Some(lease_state::HOLD) => LeaseState::Held,
                Some(lease_state::EXEMPT) => LeaseState::Exempt,
                Some(lease_state::PAUSED) => LeaseState::Paused,
                Some(_) => LeaseState::Open,
            };
        }
        tenant
    }
}

/// Puts NVML's account beside the tenant's own.
fn compare(mut tenant: TenantInfo, sample: &Sample) -> TenantInfo {
    for device in &mut tenant.devices {
        let seen = sample.get(&device.uuid);
        let Some(listed) = seen.and_then(|seen| seen.processes.as_ref()) else {
            continue;
        };
        let pids = tenant.processes.iter().map(|process| process.pid);
        let truth = held_by(listed, pids);
        device.memory_truth_bytes = truth;
        device.memory_overhead_bytes =
            truth.map(|truth| truth.saturating_sub(device.memory_used_bytes));
    }
    tenant
}

/// Processes on a device that are no tenant's.
fn strangers(sample: &Sample, tenants: &[TenantInfo], uuid: &str) -> Vec<StrangerInfo> {
    let is_known = |pid: u32| {
        let mut processes = tenants.iter().flat_map(|tenant| &tenant.processes);
        processes.any(|process| process.pid == pid)
    };
    let seen = sample.get(uuid);
    seen.and_then(|seen| seen.processes.as_ref())
        .into_iter()
        .flatten()
        .filter(|(pid, _)| !is_known(**pid))
        .map(|(pid, bytes)| StrangerInfo {
            pid: *pid,
            command: process::command(*pid),
            memory_used_bytes: *bytes,
        })
        .collect()
}

fn name_commands(mut tenant: TenantInfo) -> TenantInfo {
    for process in &mut tenant.processes {
        process.command = process::command(process.pid);
    }
    tenant
}

/// NVML's number for a device, else the sum of the tenants' own.
fn used_bytes(sample: &Sample, tenants: &[TenantInfo], uuid: &str) -> u64 {
    let seen = sample.get(uuid).map(|seen| seen.used_bytes);
    seen.unwrap_or_else(|| {
        let devices = tenants.iter().flat_map(|tenant| &tenant.devices);
        devices
            .filter(|device| device.uuid == uuid)
            .fold(0, |sum, device| {
                sum.saturating_add(device.memory_used_bytes)
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::{Processes, Seen};

    #[test]
    fn what_a_stranger_holds_is_unknown_where_nvml_does_not_say() {
        let seen = Seen {
            used_bytes: 9,
            processes: Some(Processes::from([(u32::MAX, None), (u32::MAX - 1, Some(7))])),
        };
        let sample = Sample::from([("GPU-1".to_owned(), seen)]);
        let held: Vec<_> = strangers(&sample, &[], "GPU-1")
            .into_iter()
            .map(|stranger| (stranger.pid, stranger.memory_used_bytes))
            .collect();
        assert_eq!(held, [(u32::MAX - 1, Some(7)), (u32::MAX, None)]);
        assert!(strangers(&sample, &[], "GPU-2").is_empty());
    }
}
