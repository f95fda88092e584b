//! What containers are lent by this machine: the libraries, the daemon's socket, and the hook.

use crate::client::Client;
use crate::libraries::Libraries;
use crate::place::Place;
use anyhow::{Context, Result, bail};
use containers::{Hook, Lease};
use daemon::api::DriverKind;
use daemon::config::{Config, Kind};
use std::path::{Path, PathBuf};

/// Which daemon containers are for, and how it is configured.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Node {
    /// Folder of the daemon's sockets [default: this user's, else /run/sluice]
    #[arg(long, value_name = "DIR")]
    pub(crate) runtime_dir: Option<PathBuf>,
    /// Configuration file [default: /etc/sluice/sluice.toml for root, else ~/.config/sluice/sluice.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

impl Node {
    /// The configuration.
    pub(crate) fn config(&self) -> Result<Config> {
        Ok(Config::load(self.config.as_deref())?)
    }

    /// The daemon's folder: the one that was named, else the configuration's, else the usual one.
    pub(crate) fn place(&self, config: &Config) -> Result<Place> {
        let named = self.runtime_dir.as_deref();
        let configured =
            Some(config.runtime.dir.as_path()).filter(|dir| !dir.as_os_str().is_empty());
        let place = crate::place::of_daemon(named.or(configured))?;
        Ok(Place::new(std::path::absolute(place.folder())?))
    }

    /// What a container is lent; `extra` are further arguments of the hook.
    pub(crate) fn lease(&self, extra: &[String]) -> Result<Lease> {
        let libraries = Libraries::find()?;
        let program = std::env::current_exe().context("cannot tell where this program lies")?;
        self.lease_of(&self.config()?, libraries.folder(), &program, extra)
    }

    /// The same of the libraries and the program in these places, under this configuration.
    pub(crate) fn lease_of(
        &self,
        config: &Config,
        libraries: &Path,
        program: &Path,
        extra: &[String],
    ) -> Result<Lease> {
        let place = self.place(config)?;
        let mut args = vec![
            "sluice".to_owned(),
            "hook".to_owned(),
            "--runtime-dir".to_owned(),
            text(place.folder())?,
        ];
        if let Some(file) = &self.config {
            let file = std::path::absolute(file)?;
            args.extend(["--config".to_owned(), text(&file)?]);
        }
        args.extend_from_slice(extra);
        Ok(Lease {
            preload: libraries.join("ld.so.preload"),
            libraries: libraries.to_owned(),
            socket: place.folder().join(ffi::wire::SOCKET_FOLDER),
            stand_in: stand_in(&place, config)?,
            hook: Hook {
                path: program.to_owned(),
                args,
            },
        })
    }
}

/// The stand-in's socket, if that is the driver: as the daemon says, else as it is configured.
fn stand_in(place: &Place, config: &Config) -> Result<Option<PathBuf>> {
    let socket = match Client::new(place.status_socket())?.status() {
        Ok(status) => {
            (status.driver.kind == DriverKind::StandIn).then_some(status.driver.gpu_socket)
        }
        Err(_) => (config.driver.kind == Kind::StandIn).then_some(None),
    };
    Ok(socket.map(|socket| socket.map_or_else(|| place.gpu_socket(), PathBuf::from)))
}

fn text(path: &Path) -> Result<String> {
    let Some(text) = path.to_str() else {
        bail!("the path {} is not text", path.display());
    };
    Ok(text.to_owned())
}
