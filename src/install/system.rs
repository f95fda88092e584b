//! What a node needs beside the program and its libraries.

use super::Layout;
use super::item::Item;
use crate::client::Client;
use crate::lending::Node;
use anyhow::{Result, bail};
use containers::lease;
use daemon::config::Config;
use std::fs;
use std::path::{Path, PathBuf};

/// What every text of ours says, and no other does.
const MARK: &str = "Written by `sluice install`";

const CONFIG: &str = "/etc/sluice/sluice.toml";
const DEVICES: &str = "/etc/cdi/sluice.json";
const RUNTIME_FOLDER: &str = "/run/sluice";

/// Everything, in the order in which it is made.
pub(super) fn items(layout: &Layout) -> Result<Vec<Item>> {
    let config = Item::Sample {
        at: layout.at(CONFIG),
        content: include_str!("../../docs/sluice.toml").to_owned(),
    };
    let mut items = fixed(layout);
    items.push(config);
    items.push(Item::Text {
        at: layout.at(DEVICES),
        content: devices(layout)?,
        mark: containers::cdi::KIND,
    });
    Ok(items)
}

/// What does not depend on the configuration.
fn fixed(layout: &Layout) -> Vec<Item> {
    let prefix = &layout.prefix;
    vec![
        Item::Link {
            at: layout.at(prefix.join("bin/sluice-runtime")),
            target: PathBuf::from("sluice"),
        },
        Item::Text {
            at: layout.at(prefix.join("lib/systemd/system/sluice.service")),
            content: unit(prefix),
            mark: MARK,
        },
        Item::Text {
            at: layout.at(prefix.join("lib/tmpfiles.d/sluice.conf")),
            content: tmpfiles(),
            mark: MARK,
        },
    ]
}

/// What an installation may have left, the last first.
pub(super) fn removable(layout: &Layout, purges: bool) -> Result<Vec<Item>> {
    let text = |at: PathBuf, mark| Item::Text {
        at,
        content: String::new(),
        mark,
    };
    let mut items = vec![text(layout.at(DEVICES), containers::cdi::KIND)];
    let leases = layout.at(lease::FOLDER);
    let entries = fs::read_dir(&leases).into_iter().flatten().flatten();
    items.extend(
        entries
            .map(|entry| entry.path())
            .filter(|path| lease::name(path).is_some())
            .map(|path| text(path, containers::cdi::KIND)),
    );
    if purges {
        // Whatever it says: its owner has said that it is to go.
        items.push(text(layout.at(CONFIG), ""));
    }
    items.extend(fixed(layout).into_iter().rev());
    Ok(items)
}

/// The unit of the daemon.
///
/// Not socket-activated: programs that start before the daemon wait for it anyway (ten seconds), and a socket that
/// systemd holds would make them wait as long for a daemon that cannot start.
fn unit(prefix: &Path) -> String {
    let program = prefix.join("bin/sluice");
    format!(
        "# {MARK}; changes belong into a drop-in: systemctl edit sluice\n\
         [Unit]\n\
         Description=Sluice: shares the GPUs of this node between containers\n\
         Documentation=file://{CONFIG}\n\
         # Containers that start with the machine find their daemon.\n\
         After=systemd-tmpfiles-setup.service nvidia-persistenced.service\n\
         Before=docker.service containerd.service crio.service kubelet.service podman-restart.service\n\
         \n\
         [Service]\n\
         Type=exec\n\
         ExecStart={} daemon\n\
         # Programs run on while it is away, and the next one takes them over.\n\
         Restart=always\n\
         RestartSec=200ms\n\
         KillMode=process\n\
         OOMScoreAdjust=-900\n\
         LimitNOFILE=65536\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target\n",
        program.display()
    )
}

/// The folders that containers mount, from the first moment after boot: an engine that finds none would make
/// one of its own, or not start the container.
fn tmpfiles() -> String {
    format!(
        "# {MARK}; see tmpfiles.d(5)\n\
         d {RUNTIME_FOLDER} 0755 root root -\n\
         d {RUNTIME_FOLDER}/{} 0755 root root -\n",
        ffi::wire::SOCKET_FOLDER
    )
}

/// The devices for engines, as the configuration of the installed system says.
fn devices(layout: &Layout) -> Result<String> {
    let file = layout.at(CONFIG);
    let config = if file.exists() {
        Config::load(Some(&file))?
    } else {
        Config::default()
    };
    let configured = Some(config.runtime.dir.clone()).filter(|dir| !dir.as_os_str().is_empty());
    let node = Node {
        runtime_dir: Some(configured.unwrap_or_else(|| PathBuf::from(RUNTIME_FOLDER))),
        config: None,
    };
    let lease = node.lease_of(
        &config,
        &layout.prefix.join("lib/sluice"),
        &layout.prefix.join("bin/sluice"),
        &[],
    )?;
    let specification = crate::cdi::specification_with(&lease, &config)?;
    Ok(format!("{specification:#}\n"))
}

/// Refuses while the daemon of the system runs.
pub(super) fn refuse_running(layout: &Layout) -> Result<()> {
    if !layout.root.as_os_str().is_empty() {
        return Ok(());
    }
    let socket = Path::new(RUNTIME_FOLDER).join(daemon::runtime::STATUS_SOCKET);
    let Ok(status) = Client::new(socket).and_then(|client| client.status()) else {
        return Ok(());
    };
    bail!(
        "the daemon runs (process {}) and has {} tenants; stop it first: systemctl disable --now sluice",
        status.daemon.pid,
        status.tenants.len()
    );
}

/// What is left to do, which is the administrator's decision.
pub(super) fn say_next(layout: &Layout) {
    if !layout.root.as_os_str().is_empty() {
        return;
    }
    println!(
        "next: systemd-tmpfiles --create sluice.conf; systemctl daemon-reload; systemctl enable --now sluice"
    );
}
