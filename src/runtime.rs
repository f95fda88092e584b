//! `sluice runtime`: an OCI runtime that lets containers with a quota in, and is another one otherwise.
//!
//! For engines that know no CDI: docker before 25, containerd before 1.7, Kubernetes' RuntimeClass. They know
//! a runtime by its path, so a link `sluice-runtime` to the program is one. It changes the bundle's
//! `config.json` at `create` and `run`, if the container's variables ask for a quota; then, and in every other
//! case, the real runtime takes this process's place.

use crate::exit::Exit;
use crate::lending;
use anyhow::{Context, Result, anyhow};
use containers::{Quota, SHIM, Source, edits, oci};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Is an OCI runtime that lets containers with a quota in
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    disable_version_flag = true,
    after_help = "\
Engines know a runtime by its path: make a link `sluice-runtime` to this program, and name that.
A container whose variables ask for a quota (SLUICE_MEMORY=8GiB, SLUICE_COMPUTE=30%, ...; also the names that
HAMi and vgpu-manager use) is held to it. Every other one, and every command but `create` and `run`, goes to
the runtime behind it unchanged: `[containers] runtime` in the configuration, runc by default.

Examples:
  ln -s $(command -v sluice) /usr/local/bin/sluice-runtime
  docker run --runtime sluice -e SLUICE_MEMORY=8GiB IMAGE      with the runtime named in daemon.json
  ctr run --runc-binary /usr/local/bin/sluice-runtime --env SLUICE_MEMORY=8GiB IMAGE NAME"
)]
pub(crate) struct Arguments {
    /// What the engine says to the runtime
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    arguments: Vec<OsString>,
}

/// By which name the program is a runtime without being told.
const NAME: &str = "sluice-runtime";

/// Options before the command that have a value; source: runc(8), crun(1).
const GLOBAL_OPTIONS: [&str; 6] = [
    "--root",
    "--log",
    "--log-format",
    "--log-level",
    "--criu",
    "--rootless",
];

impl Arguments {
    /// The arguments, if the program was called by the runtime's name.
    pub(crate) fn by_name(mut all: impl Iterator<Item = OsString>) -> Option<Self> {
        let name = all.next()?;
        (Path::new(&name).file_name() == Some(OsStr::new(NAME))).then(|| Self {
            arguments: all.collect(),
        })
    }
}

/// Changes the configuration where it has to be, and becomes the runtime.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    // Variables, since an engine's arguments are all the runtime's.
    let node = lending::Node {
        runtime_dir: std::env::var_os("SLUICE_RUNTIME_DIR").map(PathBuf::from),
        config: std::env::var_os("SLUICE_CONFIG").map(PathBuf::from),
    };
    let words = &arguments.arguments;
    if let Some(bundle) = bundle(words)
        && let Err(error) = let_in(&node, &bundle)
    {
        log(words, &format!("sluice: {error:#}"));
        return Err(error);
    }
    let runtime = node.config()?.containers.runtime;
    let error = Command::new(&runtime).args(words).exec();
    eprintln!("sluice: cannot run the runtime {runtime}: {error}");
    Ok(Exit::of_failed_start(&error))
}

/// The folder of the container that is to be made, if one is.
fn bundle(words: &[OsString]) -> Option<PathBuf> {
    let mut words = words.iter();
    loop {
        let word = words.next()?;
        if GLOBAL_OPTIONS.iter().any(|option| word == option) {
            words.next()?;
        } else if word == "create" || word == "run" {
            break;
        } else if !word.as_encoded_bytes().starts_with(b"-") {
            return None;
        }
    }
    let mut named = None;
    while let Some(word) = words.next() {
        if word == "--bundle" || word == "-b" {
            named = words.next().map(PathBuf::from);
        } else if let Some(rest) = word
            .to_str()
            .and_then(|word| word.strip_prefix("--bundle="))
        {
            named = Some(PathBuf::from(rest));
        }
    }
    Some(named.unwrap_or_else(|| PathBuf::from(".")))
}

/// Changes the configuration in `bundle`, if the container asks for a quota.
fn let_in(node: &lending::Node, bundle: &Path) -> Result<()> {
    let path = bundle.join("config.json");
    let at = |error| anyhow!("{}: {error}", path.display());
    let Ok(config) = oci::read(&path) else {
        // What is wrong with it is the runtime's to say.
        return Ok(());
    };
    if oci::is_edited(&config) {
        return Ok(());
    }
    let variables = oci::environment(&config).map_err(at)?;
    let words = variables
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    if Quota::of_environment(words)?.is_empty() {
        return Ok(());
    }
    let mut lease = node.lease(&[])?;
    if let Some(own) = oci::root(&config).and_then(|root| preloaded(&bundle.join(root))) {
        lease.preload = bundle.join("sluice-ld.so.preload");
        fs::write(&lease.preload, format!("{SHIM}\n{own}"))
            .with_context(|| format!("cannot write {}", lease.preload.display()))?;
        lease.preload = std::path::absolute(&lease.preload)?;
    }
    oci::edit_file(&path, &edits(&Source::Environment, &lease)?).map_err(at)
}

/// Longest preload file of an image that is kept.
const MOST_PRELOAD_BYTES: u64 = 64 << 10;

/// What the image itself has preloaded.
///
/// Its links are the image's, which could lead anywhere on the host: the kernel resolves them inside the root.
fn preloaded(root: &Path) -> Option<String> {
    use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
    use std::io::Read;
    let folder = fs::File::open(root).ok()?;
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = openat2(&folder, "etc/ld.so.preload", how).ok()?;
    let file = fs::File::from(file);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    file.take(MOST_PRELOAD_BYTES)
        .read_to_string(&mut text)
        .ok()?;
    (!text.trim().is_empty()).then_some(text)
}

/// Says it where the engine looks for its runtime's reasons, if it has named a place.
fn log(words: &[OsString], message: &str) {
    let value = |option: &str| {
        let place = words.iter().position(|word| word == option)?;
        words.get(place + 1)
    };
    let Some(path) = value("--log") else {
        return;
    };
    let line = if value("--log-format").is_some_and(|format| format == "json") {
        serde_json::json!({ "level": "error", "msg": message }).to_string()
    } else {
        format!("level=error msg={message:?}")
    };
    // The engine made the file; if it did not, standard error has to do.
    if let Ok(mut file) = fs::OpenOptions::new().append(true).create(true).open(path) {
        let _ = writeln!(file, "{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn a_container_that_is_made_has_a_bundle_and_nothing_else_has() {
        for (line, expected) in [
            ("create --bundle /b --pid-file /p id", Some("/b")),
            (
                "--root /r --log /l --log-format json create -b /b id",
                Some("/b"),
            ),
            ("--systemd-cgroup run --bundle=/b id", Some("/b")),
            ("run id", Some(".")),
            ("--root create delete id", None),
            ("exec id run", None),
            ("features", None),
            ("--version", None),
            ("", None),
        ] {
            let found = bundle(&words(line));
            assert_eq!(found.as_deref(), expected.map(Path::new), "{line}");
        }
    }

    #[test]
    fn the_program_is_a_runtime_by_its_name() {
        let called = |line: &str| Arguments::by_name(words(line).into_iter());
        let runtime = called("/usr/local/bin/sluice-runtime create id").expect("by its name");
        assert_eq!(runtime.arguments, words("create id"));
        assert!(called("/usr/bin/sluice runtime").is_none());
    }

    #[test]
    fn an_image_s_links_lead_nowhere_on_the_host() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("etc")).expect("a folder");
        fs::write(folder.path().join("secret"), "host").expect("a file");
        let file = root.join("etc/ld.so.preload");
        std::os::unix::fs::symlink("../../secret", &file).expect("a link");
        assert_eq!(preloaded(&root), None);
        fs::remove_file(&file).expect("our own");
        fs::write(&file, "/lib/x.so\n").expect("a file");
        assert_eq!(preloaded(&root).as_deref(), Some("/lib/x.so\n"));
    }
}
