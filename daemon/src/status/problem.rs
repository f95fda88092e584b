//! Who asks, what he may, and how he is refused.

use crate::api::Failure;
use crate::tenants::Refusal;
use crate::{descriptors, process};
use axum::extract::connect_info::Connected;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use axum::serve::IncomingStream;
use nix::unistd::geteuid;
use serde::de::DeserializeOwned;
use std::io;
use tokio::net::UnixListener;

/// Who sent a request, by the kernel's word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer {
    pub(super) user: Option<u32>,
    pub(super) pid: Option<u32>,
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
pub(super) struct Problem(pub(super) StatusCode, pub(super) String);

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

/// Reads a body.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        let error = format!("the request's body makes no sense: {error}");
        Problem(StatusCode::BAD_REQUEST, error)
    })
}

pub(super) fn may_change(peer: Peer) -> Result<(), Problem> {
    match peer.user {
        Some(user) if user == 0 || user == geteuid().as_raw() => Ok(()),
        _ => Err(Problem(
            StatusCode::FORBIDDEN,
            "only root and the daemon's own user may change anything here".to_owned(),
        )),
    }
}

/// A process may own a tenant itself; root may name any, the daemon's user any of its own.
pub(super) fn may_own(peer: Peer, owner: u32) -> Result<(), Problem> {
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

pub(super) fn no_process(pid: u32) -> Problem {
    Problem(
        StatusCode::BAD_REQUEST,
        format!("there is no process {pid} that could own a tenant"),
    )
}

pub(super) fn internal(error: &io::Error) -> Problem {
    Problem(
        StatusCode::INTERNAL_SERVER_ERROR,
        format!("the system refused what a tenant needs: {error}"),
    )
}
