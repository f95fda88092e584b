//! `sluice run`: a program under a memory cap, with a share of GPU time.
//!
//! The program takes this process's place (`execve`), as under `env` or `nice`: its exit code, its
//! signals and its parent are its own, and the tenant lives as long as it does.

use crate::client::Client;
use crate::compute;
use crate::exit::Exit;
use crate::inherited;
use crate::libraries::Libraries;
use crate::place;
use anyhow::{Context, Result};
use daemon::api::{DriverInfo, DriverKind, GpuName, RegisterRequest, Registered};
use daemon::quota;
use ffi::wire;
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a program under a cap on GPU memory, with a share of GPU time
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The program sees its cap as the size of the GPU, and gets the driver's own out-of-memory error
beyond it. Children of the program share the cap. Exit code and signals are the program's own.

Examples:
  sluice run --memory 2GiB -- python train.py
  sluice run --memory 25% --name web --gpu 0 -- ./server
  sluice run --memory 0:8GiB,1:4GiB -- ./two-gpus
  sluice run --memory 4GiB --compute 30% --class latency -- ./server")]
pub(crate) struct Arguments {
    /// The cap on each GPU: 2GiB, 1536MiB, 2G (decimal), 25% of the device, or max
    #[arg(long, value_name = "SIZE", value_parser = memory, allow_hyphen_values = true)]
    memory: String,
    /// Let its memory lie in the host's where the GPU is full: cuMemAlloc gives managed memory then, and
    /// tenants whose memory does not fit together take long turns
    #[arg(long)]
    memory_overcommit: bool,
    /// What to call it [default: the program's name and process id]
    #[arg(long)]
    name: Option<String>,
    /// A GPU that it may use, by index or UUID; may be given several times [default: all]
    #[arg(long, value_name = "GPU")]
    gpu: Vec<String>,
    #[command(flatten)]
    compute: compute::ShareArguments,
    /// Folder of the daemon's sockets [default: this user's, else /run/sluice]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Letters of the program's file name that go into the default name.
const NAME_FROM_PROGRAM: usize = 40;

/// Registers a tenant and becomes the program.
///
/// # Errors
/// No daemon, or it refuses; the libraries are missing. A program that cannot be started is no error
/// here but an exit code.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    let libraries = Libraries::find()?;
    let preload = preload(&libraries)?;
    let (program, rest) = arguments
        .command
        .split_first()
        .context("there is no program to run")?;
    // The client's event loop must be gone before the program takes over.
    let (driver, tenant) = {
        let client =
            Client::new(place::of_daemon(arguments.runtime_dir.as_deref())?.status_socket())?;
        let driver = client.status()?.driver;
        let tenant = client.register(&RegisterRequest {
            name: Some(name(arguments, program)),
            memory: arguments.memory.clone(),
            memory_overcommit: arguments.memory_overcommit,
            gpus: gpus(&arguments.gpu),
            owner_pid: std::process::id(),
            container: None,
            compute: arguments.compute.request(),
        })?;
        (driver, tenant)
    };
    let mut command = Command::new(program);
    command.args(rest).env("LD_PRELOAD", preload);
    command.envs(variables(&driver, &tenant));
    if !arguments.gpu.is_empty() && env::var_os("CUDA_VISIBLE_DEVICES").is_none() {
        let uuids: Vec<&str> = tenant.devices.iter().map(|device| &*device.uuid).collect();
        command.env("CUDA_VISIBLE_DEVICES", uuids.join(","));
    }
    let error = inherited::pass_on(&mut command).exec();
    eprintln!("sluice: cannot run {}: {error}", program.display());
    Ok(Exit::of_failed_start(&error))
}

/// Checks a cap before anybody is asked, for `clap`.
pub(crate) fn memory(text: &str) -> Result<String, quota::QuotaError> {
    quota::Request::parse(text).map(|_| text.to_owned())
}

pub(crate) fn preload(libraries: &Libraries) -> Result<String> {
    let present = env::var("LD_PRELOAD");
    if let Err(env::VarError::NotUnicode(text)) = &present {
        anyhow::bail!("LD_PRELOAD is set to {text:?}, which is not text; unset it");
    }
    libraries.preload(present.ok().as_deref())
}

/// The name that was asked for, else one that is unique and tells the program: `python3-4711`.
fn name(arguments: &Arguments, program: &OsString) -> String {
    arguments.name.clone().unwrap_or_else(|| {
        let file = Path::new(program).file_name().unwrap_or(program);
        let word: String = file
            .to_string_lossy()
            .chars()
            .map(|c| {
                if c.is_ascii_alphanumeric() || "._-".contains(c) {
                    c
                } else {
                    '-'
                }
            })
            .take(NAME_FROM_PROGRAM)
            .collect();
        format!("{word}-{}", std::process::id())
    })
}

pub(crate) fn gpus(names: &[String]) -> Option<Vec<GpuName>> {
    (!names.is_empty()).then(|| names.iter().map(|name| GpuName::from(&**name)).collect())
}

/// What tells the shim who it is and where its driver lies.
pub(crate) fn variables(driver: &DriverInfo, tenant: &Registered) -> Vec<(&'static str, String)> {
    let mut variables = vec![
        (wire::ENV_SOCKET, tenant.attach_socket.clone()),
        (wire::ENV_TOKEN, tenant.token.clone()),
    ];
    let hardware = driver
        .gpu_socket
        .as_ref()
        .filter(|_| driver.kind == DriverKind::StandIn);
    for (name, value) in [
        (wire::ENV_LIBCUDA, driver.libcuda.as_ref()),
        (wire::ENV_LIBNVML, driver.libnvml.as_ref()),
        (crate::gpu::ENV_SOCKET, hardware),
    ] {
        variables.extend(value.map(|value| (name, value.clone())));
    }
    variables
}
