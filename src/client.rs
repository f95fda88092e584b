//! Speaks to a daemon: HTTP and JSON over its status socket, one connection for each request.

use anyhow::{Context, Result, anyhow, bail};
use daemon::api;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// Longest wait for an answer. A daemon answers from memory, so this much means that it hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A way to one daemon; holds no connection.
#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
    patience: Duration,
}

impl Client {
    /// For the daemon whose status socket is `socket`; does not connect yet.
    ///
    /// # Errors
    /// The machine is out of descriptors or memory.
    pub(crate) fn new(socket: impl Into<PathBuf>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot make an event loop")?;
        Ok(Self {
            socket: socket.into(),
            runtime,
            patience: ANSWER_WITHIN,
        })
    }

    /// The same with another longest wait for an answer.
    pub(crate) fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Whether it answers, has found its devices and takes registrations.
    pub(crate) fn is_ready(&self) -> bool {
        self.request(Method::GET, "/v1/health", Bytes::new())
            .and_then(|text| parse::<api::Health>(&text))
            .is_ok_and(|health| health.is_ready)
    }

    /// Everything that the daemon knows.
    pub(crate) fn status(&self) -> Result<api::Status> {
        parse(&self.status_text()?)
    }

    /// [`Self::status`], as the daemon spells it.
    pub(crate) fn status_text(&self) -> Result<String> {
        self.request(Method::GET, "/v1/status", Bytes::new())
    }

    /// Makes a tenant.
    pub(crate) fn register(&self, tenant: &api::RegisterRequest) -> Result<api::Registered> {
        self.send(Method::POST, "/v1/tenants", tenant)
    }

    /// Changes the tenant `name`.
    pub(crate) fn change(
        &self,
        name: &str,
        change: &api::ChangeRequest,
    ) -> Result<api::TenantInfo> {
        let path = format!("/v1/tenants/{}", escaped(name));
        self.send(Method::PATCH, &path, change)
    }

    /// Holds all launches of the tenant `name`, or lets them go.
    pub(crate) fn set_paused(&self, name: &str, is_paused: bool) -> Result<api::TenantInfo> {
        let verb = if is_paused { "pause" } else { "resume" };
        let path = format!("/v1/tenants/{}/{verb}", escaped(name));
        parse(&self.request(Method::POST, &path, Bytes::new())?)
    }

    fn send<Answer: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
    ) -> Result<Answer> {
        let body = serde_json::to_vec(body).context("cannot spell the request")?;
        parse(&self.request(method, path, body.into())?)
    }

    fn request(&self, method: Method, path: &str, body: Bytes) -> Result<String> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "sluice")
            .header("content-type", "application/json")
            .body(Full::new(body))
            .context("cannot make the request")?;
        self.runtime.block_on(async {
            tokio::time::timeout(self.patience, exchange(&self.socket, request))
                .await
                .unwrap_or_else(|_| {
                    Err(anyhow!(
                        "the daemon at {} does not answer; waited {} s",
                        self.socket.display(),
                        self.patience.as_secs()
                    ))
                })
        })
    }
}

async fn exchange(socket: &Path, request: Request<Full<Bytes>>) -> Result<String> {
    let stream = UnixStream::connect(socket).await.map_err(|error| {
        let asks_for_rights = error.kind() == std::io::ErrorKind::PermissionDenied;
        let remedy = if asks_for_rights {
            "it belongs to somebody else"
        } else {
            "start one with `sluice daemon` (with `--device stand-in` where there is no GPU), or \
             name its folder with `--runtime-dir`"
        };
        anyhow!(
            "no daemon answers at {}: {error}; {remedy}",
            socket.display()
        )
    })?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // Drives the connection while the answer is read; ends with it.
    let driver = tokio::spawn(connection);
    let broke = || format!("the daemon at {} broke off", socket.display());
    let answer = sender.send_request(request).await.with_context(broke)?;
    let status = answer.status();
    let body = answer.into_body().collect().await.with_context(broke)?;
    driver.abort();
    let text =
        String::from_utf8(body.to_bytes().into()).context("the daemon's answer is not text")?;
    if status.is_success() {
        return Ok(text);
    }
    match serde_json::from_str::<api::Failure>(&text) {
        Ok(failure) => bail!("{}", failure.error),
        Err(_) => bail!("the daemon answers {}: {text}", shown(status)),
    }
}

fn shown(status: StatusCode) -> String {
    let reason = status.canonical_reason().unwrap_or("no reason");
    format!("{} ({reason})", status.as_u16())
}

fn parse<Answer: DeserializeOwned>(text: &str) -> Result<Answer> {
    serde_json::from_str(text).context("the daemon's answer is not what this version understands")
}

/// A name as one segment of a path: everything but letters, digits and `-._~` as `%XX`.
///
/// Source: RFC 3986, section 2.3.
fn escaped(name: &str) -> String {
    name.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_one_segment_of_the_path() {
        assert_eq!(escaped("web-1.a_b~"), "web-1.a_b~");
        assert_eq!(escaped("a/b c?é"), "a%2Fb%20c%3F%C3%A9");
    }

    #[test]
    fn without_a_daemon_the_error_says_how_to_start_one() {
        let client = Client::new("/nonexistent/status.sock").expect("an event loop");
        let error = format!("{:#}", client.status().expect_err("nobody is there"));
        assert!(error.contains("/nonexistent/status.sock"), "{error}");
        assert!(error.contains("sluice daemon"), "{error}");
    }
}
