//! The status socket: HTTP and JSON on a UNIX socket, `curl --unix-socket` included.
//!
//! Whoever can connect may read. Only root and the daemon's own user may change anything; the kernel
//! says who that is. See `docs/status-api.md`.

mod change;
mod describe;
mod problem;

use self::change::{change, pause, register, resume};
use self::describe::{compare, describe, name_commands, strangers, used_bytes};
use self::problem::{Peer, Problem};
use crate::Settings;
use crate::api::{
    AuditInfo, DaemonInfo, DeviceInfo, DriverInfo, Health, LeaseState, Status, TenantInfo,
};
use crate::devices::Watch;
use crate::native::Native;
use crate::state::{Shared, monotonic_ns};
use axum::Router;
use axum::extract::{Path, State as Extracted};
use axum::http::StatusCode;
use axum::response::Json;
use axum::routing::{get, post};
use ffi::wire::lease_state;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
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
    native: Arc<Native>,
    driver: Arc<DriverInfo>,
    runtime_dir: Arc<PathBuf>,
}

impl Server {
    /// A server on `listener`.
    pub(crate) fn new(
        shared: Arc<Shared>,
        devices: Arc<Watch>,
        native: Arc<Native>,
        settings: &Settings,
        listener: OwnedFd,
    ) -> io::Result<Self> {
        Ok(Self {
            context: Context {
                shared,
                devices,
                native,
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
