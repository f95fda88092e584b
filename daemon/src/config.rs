//! The configuration file: TOML, every key optional, every unknown key an error with its line.
//!
//! `docs/sluice.toml` shows every key with its default; a test keeps the two equal.

use crate::quota::Request;
use crate::terms::Wanted;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not TOML, has an unknown key, or a value that makes no sense.
    #[error("the configuration {path} makes no sense: {message}", path = path.display())]
    Nonsense {
        /// The file.
        path: PathBuf,
        /// What and where, with the line.
        message: String,
    },
}

/// Everything that the file can say.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `[runtime]`.
    pub runtime: Runtime,
    /// `[driver]`.
    pub driver: Driver,
    /// `[memory]`.
    pub memory: Memory,
    /// `[compute]`.
    pub compute: Compute,
    /// `[containers]`.
    pub containers: Containers,
    /// `[log]`.
    pub log: Log,
    /// `[status]`.
    pub status: Status,
}

/// `[runtime]`: where the daemon keeps its sockets and its ledger.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Runtime {
    /// The runtime folder; empty: the one for this user, see [`crate::runtime::default_folder`].
    pub dir: PathBuf,
}

/// `[driver]`: which driver tenants get.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Driver {
    /// Which of the two.
    pub kind: Kind,
    /// Absolute path of `libcuda.so.1`; empty: looked for.
    pub libcuda: PathBuf,
    /// Absolute path of `libnvidia-ml.so.1`; empty: looked for.
    pub libnvml: PathBuf,
}

/// Which driver to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The machine's own: NVIDIA's, or an error that names the stand-in. Never the stand-in by itself: a
    /// node that lost its driver must not go on with one.
    #[default]
    Auto,
    /// NVIDIA's own, or an error.
    Real,
    /// The one that needs no hardware.
    StandIn,
}

/// `[memory]`: how much may be promised.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Memory {
    /// Sum of all caps on a device, as a multiple of its size. 1.0: nothing is promised twice.
    pub overcommit_ratio: f64,
    /// What caps of overcommitted tenants may be more than devices have, all devices together, in MiB; their
    /// memory may then lie in the host's. 0: nobody is overcommitted.
    pub host_budget_mib: u64,
    /// How long a turn is while a device's tenants hold more than it has, in milliseconds.
    pub oversubscribed_turn_ms: u64,
    /// What is set aside of each tenant's cap at least, in MiB, for contexts and code. More is, where NVML
    /// shows more.
    pub overhead_reserve_mib: u64,
    /// Whether a driver that can (615 and later) is to hold the caps of containers itself.
    pub native_limits: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            overcommit_ratio: 1.0,
            host_budget_mib: 0,
            oversubscribed_turn_ms: 10_000,
            overhead_reserve_mib: 0,
            native_limits: true,
        }
    }
}

/// `[compute]`: how GPU time is shared.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Compute {
    /// Whether copies and fills wait for their turn, and are charged, as launches are.
    pub gate_copies: bool,
}

/// `[containers]`: how containers get in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Containers {
    /// What becomes of a container while no daemon answers.
    pub without_daemon: WithoutDaemon,
    /// The OCI runtime behind `sluice runtime`: a name in `PATH`, or a path.
    pub runtime: String,
    /// Hours after which a lease that no container uses is removed.
    pub lease_hours: u32,
    /// The quotas that have a name, `sluice.dev/gpu=NAME`.
    pub classes: BTreeMap<String, Class>,
}

impl Default for Containers {
    fn default() -> Self {
        let class = |part: &str| Class {
            memory: part.to_owned(),
            compute: Some(part.to_owned()),
            ..Class::default()
        };
        Self {
            without_daemon: WithoutDaemon::default(),
            runtime: "runc".to_owned(),
            lease_hours: 24,
            classes: [("half", class("50%")), ("quarter", class("25%"))]
                .map(|(name, class)| (name.to_owned(), class))
                .into(),
        }
    }
}

/// What becomes of a container while no daemon answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WithoutDaemon {
    /// It does not start.
    #[default]
    Refuse,
    /// It starts; CUDA is not ready in it, for as long as it runs.
    Start,
}

/// A quota with a name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// Cap on memory.
    pub memory: String,
    /// Guaranteed share of GPU time.
    pub compute: Option<String>,
    /// Ceiling of the share.
    pub compute_max: Option<String>,
    /// How what is left is divided.
    pub weight: Option<u32>,
    /// `latency`, `standard` or `batch`.
    pub class: Option<String>,
    /// Whether its memory may lie in the host's where the device is full.
    #[serde(default)]
    pub memory_overcommit: bool,
}

impl Class {
    fn check(&self) -> Result<(), String> {
        Request::parse(&self.memory).map_err(|error| error.to_string())?;
        Wanted::parse(
            self.compute.as_deref(),
            self.compute_max.as_deref(),
            self.weight,
            self.class.as_deref(),
        )
        .map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// `[log]`: what the daemon says on standard error.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: "info".to_owned(),
        }
    }
}

/// `[status]`: who may read the status socket.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Status {
    /// Group that may read it, where it exists.
    pub group: String,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            group: "sluice".to_owned(),
        }
    }
}

/// Largest reserve: more than any device has.
const MOST_RESERVE_MIB: u64 = 1 << 20;

/// Largest budget: more than any host has.
const MOST_BUDGET_MIB: u64 = 1 << 30;

/// Turns that make sense: shorter ones move memory more than they work, longer ones look like a hang.
const OVERSUBSCRIBED_TURNS_MS: std::ops::RangeInclusive<u64> = 100..=60_000;

/// Where the file is when nobody says: `/etc/sluice/sluice.toml` for root, else
/// `$XDG_CONFIG_HOME/sluice/sluice.toml`, else `~/.config/sluice/sluice.toml`.
pub fn default_file() -> Option<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Some(PathBuf::from("/etc/sluice/sluice.toml"));
    }
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    absolute("XDG_CONFIG_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".config")))
        .map(|folder| folder.join("sluice/sluice.toml"))
}

impl Config {
    /// Reads `file`, which must exist; without one, [`default_file`], which need not.
    ///
    /// # Errors
    /// The file cannot be read or makes no sense; the message names the line.
    pub fn load(file: Option<&Path>) -> Result<Self, ConfigError> {
        let (path, is_asked_for) = match (file, default_file()) {
            (Some(path), _) => (path.to_owned(), true),
            (None, Some(path)) => (path, false),
            (None, None) => return Ok(Self::default()),
        };
        match fs::read_to_string(&path) {
            Ok(text) => {
                Self::parse(&text).map_err(|message| ConfigError::Nonsense { path, message })
            }
            Err(source) if source.kind() == io::ErrorKind::NotFound && !is_asked_for => {
                Ok(Self::default())
            }
            Err(source) => Err(ConfigError::Unreadable { path, source }),
        }
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// What makes no sense, with its line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        let ratio = config.memory.overcommit_ratio;
        if !(ratio.is_finite() && ratio > 0.0) {
            return Err(format!(
                "memory.overcommit_ratio is {ratio}; accepted is any number above 0, such as 1.0"
            ));
        }
        let reserve = config.memory.overhead_reserve_mib;
        if reserve > MOST_RESERVE_MIB {
            return Err(format!(
                "memory.overhead_reserve_mib is {reserve}; accepted is up to {MOST_RESERVE_MIB}"
            ));
        }
        let budget = config.memory.host_budget_mib;
        if budget > MOST_BUDGET_MIB {
            return Err(format!(
                "memory.host_budget_mib is {budget}; accepted is up to {MOST_BUDGET_MIB}"
            ));
        }
        let turn = config.memory.oversubscribed_turn_ms;
        if !OVERSUBSCRIBED_TURNS_MS.contains(&turn) {
            return Err(format!(
                "memory.oversubscribed_turn_ms is {turn}; accepted is from {} to {}",
                OVERSUBSCRIBED_TURNS_MS.start(),
                OVERSUBSCRIBED_TURNS_MS.end()
            ));
        }
        for (name, class) in &config.containers.classes {
            class
                .check()
                .map_err(|error| format!("containers.classes.{name}: {error}"))?;
        }
        let level = config.log.level.as_str();
        if !["error", "warn", "info", "debug", "trace"].contains(&level) {
            return Err(format!(
                "log.level is \"{level}\"; accepted are error, warn, info, debug and trace"
            ));
        }
        for (key, path) in [
            ("runtime.dir", &config.runtime.dir),
            ("driver.libcuda", &config.driver.libcuda),
            ("driver.libnvml", &config.driver.libnvml),
        ] {
            if !path.as_os_str().is_empty() && path.is_relative() {
                return Err(format!(
                    "{key} is \"{}\"; accepted is an absolute path",
                    path.display()
                ));
            }
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../../docs/sluice.toml");

    #[test]
    fn the_sample_says_nothing_but_the_defaults_commented_or_not() {
        assert_eq!(Config::parse(SAMPLE), Ok(Config::default()));
        // A key is commented as `#key`, prose as `# Prose`.
        let uncommented: String = SAMPLE
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(key) if !key.starts_with([' ', '#']) => format!("{key}\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        assert_ne!(uncommented, SAMPLE);
        assert_eq!(Config::parse(&uncommented), Ok(Config::default()));
        let keys = uncommented
            .lines()
            .filter(|line| line.contains(" = ") && !line.starts_with('#'));
        assert_eq!(keys.count(), 17, "a key is missing from the sample");
    }

    #[test]
    fn an_unknown_key_is_an_error_with_its_line() {
        let error = Config::parse("[memory]\n\novercommit = 2\n").expect_err("unknown key");
        assert!(
            error.contains("line 3") && error.contains("overcommit"),
            "{error}"
        );
        let error = Config::parse("[quota]\n").expect_err("unknown table");
        assert!(
            error.contains("line 1") && error.contains("quota"),
            "{error}"
        );
    }

    #[test]
    fn a_value_out_of_range_is_named_with_what_is_accepted() {
        for text in [
            "[memory]\novercommit_ratio = 0.0",
            "[memory]\novercommit_ratio = nan",
            "[memory]\novercommit_ratio = -1.0",
            "[log]\nlevel = \"loud\"",
            "[driver]\nkind = \"fake\"",
            "[driver]\nlibcuda = \"libcuda.so.1\"",
            "[runtime]\ndir = \"run\"",
            "[containers]\nwithout_daemon = \"maybe\"",
            "[containers.classes.big]\nmemory = \"lots\"",
            "[containers.classes.big]\nmemory = \"1GiB\"\ncompute = \"130%\"",
        ] {
            let error = Config::parse(text).expect_err(text);
            assert!(
                error.contains("accepted") || error.contains("expected"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_file_that_was_asked_for_must_be_there() {
        let missing = Path::new("/nonexistent/sluice.toml");
        assert!(matches!(
            Config::load(Some(missing)),
            Err(ConfigError::Unreadable { .. })
        ));
    }
}
