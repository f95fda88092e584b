//! What changes something: a tenant is registered, its terms change, it is paused.

use super::Context;
use super::describe::{describe, name_commands};
use super::problem::{Peer, Problem, internal, may_change, may_own, no_process, parse};
use crate::api::{ChangeRequest, ContainerInfo, RegisterRequest, Registered, TenantInfo};
use crate::process;
use crate::quota::Request;
use crate::runtime::attach_socket;
use crate::state::RegisterError;
use crate::tenants::{Container, NewTenant, Refusal};
use axum::body::Bytes;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Path, State as Extracted};
use axum::http::StatusCode;
use axum::response::Json;
use std::time::{Duration, Instant};

pub(super) async fn register(
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
        is_overcommitted: request.memory_overcommit,
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
    context.native.settle().await;
    let devices = {
        let state = context.shared.state();
        describe(&tenant, state.pages.get(&tenant.id)).devices
    };
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

pub(super) async fn change(
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
    context.native.settle().await;
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

pub(super) async fn pause(
    context: Extracted<Context>,
    peer: ConnectInfo<Peer>,
    name: Path<String>,
) -> Result<Json<TenantInfo>, Problem> {
    set_paused(context, peer, name, true)
}

pub(super) async fn resume(
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
