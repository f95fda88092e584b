//! `sluice cdi`: devices for engines that know the Container Device Interface.

use crate::client::Client;
use crate::compute::ShareArguments;
use crate::exit::Exit;
use crate::lending::Node;
use anyhow::{Context, Result, bail};
use containers::cdi::{self, KIND};
use containers::{Edits, Quota, Source, edits, lease};
use daemon::config::{Class, Config};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Makes the devices by which containers get a quota: --device sluice.dev/gpu=NAME
#[derive(Debug, clap::Args)]
#[command(after_help = "\
For podman 4.1, docker 25, containerd 1.7, CRI-O and what builds on them; `sluice runtime` is for older ones.

Examples:
  sluice cdi generate --output /etc/cdi/sluice.json
  podman run --device nvidia.com/gpu=0 --device sluice.dev/gpu=half IMAGE
  podman run --device sluice.dev/gpu=managed -e SLUICE_MEMORY=8GiB -e SLUICE_COMPUTE=30% IMAGE
  podman run $(sluice cdi lease --memory 8GiB --compute 30% --print) IMAGE")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Writes the specification of the classes in the configuration, and of `managed`
    Generate(Generate),
    /// Makes a device for one quota, and prints how to use it
    Lease(Lease),
    /// Removes leases that no container has used for long
    Prune(Prune),
}

#[derive(Debug, clap::Args)]
struct Generate {
    #[command(flatten)]
    node: Node,
    /// The file to write, such as /etc/cdi/sluice.json [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct Lease {
    #[command(flatten)]
    node: Node,
    /// The cap on each GPU, as for `sluice run`
    #[arg(long, value_name = "SIZE", value_parser = crate::run::memory, allow_hyphen_values = true)]
    memory: String,
    /// Let its memory lie in the host's where the GPU is full, as for `sluice run`
    #[arg(long)]
    memory_overcommit: bool,
    #[command(flatten)]
    compute: ShareArguments,
    /// Prints the flag alone, for $(...)
    #[arg(long)]
    print: bool,
    /// Folder that the engine reads
    #[arg(long, value_name = "DIR", default_value = lease::FOLDER)]
    folder: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Prune {
    #[command(flatten)]
    node: Node,
    /// Folder of the leases
    #[arg(long, value_name = "DIR", default_value = lease::FOLDER)]
    folder: PathBuf,
}

/// The device whose quota the container's own variables say.
const MANAGED: &str = "managed";

/// Makes, or removes, devices.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    match &arguments.command {
        Command::Generate(arguments) => generate(arguments),
        Command::Lease(arguments) => mint(arguments),
        Command::Prune(arguments) => {
            for name in tidy(&arguments.node, &arguments.folder)? {
                println!("removed {KIND}={name}");
            }
            Ok(Exit::Success)
        }
    }
}

/// The specification that `sluice cdi generate` writes.
pub(crate) fn specification(node: &Node, config: &Config) -> Result<serde_json::Value> {
    specification_with(&node.lease(&[])?, config)
}

/// The same with what containers are lent.
pub(crate) fn specification_with(
    lent: &containers::Lease,
    config: &Config,
) -> Result<serde_json::Value> {
    let mut devices: Vec<(&str, Edits)> = Vec::new();
    for (name, class) in &config.containers.classes {
        if !cdi::is_name(name) || name == MANAGED || name.starts_with(lease::PREFIX) {
            bail!(
                "containers.classes.{name} cannot be a device; accepted are two or more letters, digits, \
                 dots, dashes and underscores, beginning and ending with a letter or digit, but for \
                 {MANAGED} and {}*",
                lease::PREFIX
            );
        }
        devices.push((name, edits(&Source::Device(quota(class)), lent)?));
    }
    devices.push((MANAGED, edits(&Source::Environment, lent)?));
    Ok(cdi::specification(
        devices.iter().map(|(name, edits)| (*name, edits)),
    ))
}

fn quota(class: &Class) -> Quota {
    Quota {
        memory: Some(class.memory.clone()),
        memory_overcommit: class.memory_overcommit,
        compute: class.compute.clone(),
        compute_max: class.compute_max.clone(),
        weight: class.weight,
        class: class.class.clone(),
        name: None,
    }
}

fn generate(arguments: &Generate) -> Result<Exit> {
    let config = arguments.node.config()?;
    let specification = specification(&arguments.node, &config)?;
    let Some(output) = &arguments.output else {
        println!("{specification:#}");
        return Ok(Exit::Success);
    };
    write(output, &specification)?;
    let mut names: Vec<&str> = config.containers.classes.keys().map(|it| &**it).collect();
    names.push(MANAGED);
    println!("wrote {}", output.display());
    for name in names {
        println!("  --device {KIND}={name}");
    }
    Ok(Exit::Success)
}

fn mint(arguments: &Lease) -> Result<Exit> {
    let name = format!("{}{}", lease::PREFIX, random()?);
    let compute = arguments.compute.request();
    let quota = Quota {
        memory: Some(arguments.memory.clone()),
        memory_overcommit: arguments.memory_overcommit,
        compute: compute.compute,
        compute_max: compute.compute_max,
        weight: compute.weight,
        class: compute.class,
        name: None,
    };
    let lent = arguments
        .node
        .lease(&["--lease".to_owned(), name.clone()])?;
    let edits = edits(&Source::Device(quota), &lent)?;
    let path = lease::file(&arguments.folder, &name);
    write(&path, &cdi::specification([(&*name, &edits)]))?;
    if arguments.print {
        println!("--device {KIND}={name}");
    } else {
        println!("wrote {}", path.display());
        println!("  --device {KIND}={name}");
    }
    // Whoever makes leases often also tidies often; a failure is for `prune` to show.
    let _ = tidy(&arguments.node, &arguments.folder);
    Ok(Exit::Success)
}

fn write(path: &Path, specification: &serde_json::Value) -> Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    cdi::write(path, specification).with_context(|| format!("cannot write {}", path.display()))
}

/// Removes the leases that no container uses and that are old; their names.
pub(crate) fn tidy(node: &Node, folder: &Path) -> Result<Vec<String>> {
    let config = node.config()?;
    let place = node.place(&config)?;
    let status = Client::new(place.status_socket())?
        .status()
        .context("cannot tell which leases are in use")?;
    let used: BTreeSet<String> = status
        .tenants
        .into_iter()
        .filter_map(|tenant| tenant.container?.lease)
        .collect();
    let age = Duration::from_secs(u64::from(config.containers.lease_hours) * 3600);
    lease::prune(folder, &used, age)
        .with_context(|| format!("cannot tidy the leases in {}", folder.display()))
}

fn random() -> Result<String> {
    let mut bytes = [0; 4];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .context("cannot make a random name")?;
    Ok(bytes.map(|byte| format!("{byte:02x}")).concat())
}
