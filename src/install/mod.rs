//! `sluice install` and `sluice uninstall`: lays the program and its libraries down for use without the source
//! tree, and with `--system` what a node needs so that its containers can use them.
//!
//! * [`item`]: the files, each of which knows whether it is there, how it gets there and how it goes.
//! * [`versions`]: the libraries, of which a node may have several versions at once.
//! * [`system`]: what a node needs beside program and libraries.
//! * [`users`]: who uses a version.
//!
//! Everything is written aside and renamed, so at no instant is a file half there, and what is mapped or mounted
//! stays as it is until its last user ends.

mod item;
mod system;
mod users;
mod versions;

use crate::exit::Exit;
use crate::libraries::Libraries;
use anyhow::{Context, Result, bail};
use item::{Item, State};
use std::path::{Path, PathBuf};

/// Lays the program and its libraries down under a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Makes DIR/bin/sluice and DIR/lib/sluice. May be repeated, also over an older version that is in
use: running programs and containers keep the libraries that they started with.

With --system it also makes what containers and the daemon need: DIR/bin/sluice-runtime, units of systemd and
tmpfiles, /etc/sluice/sluice.toml (if there is none) and /etc/cdi/sluice.json.

Examples:
  sluice install ~/.local
  sudo sluice install --system
  sluice install --system --root ./image /usr      for whoever builds an image
  sudo sluice install --system --dry-run           what would be done")]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: PlaceArguments,
    /// Take the libraries from this folder [default: this program's own]
    #[arg(long, value_name = "FOLDER")]
    from: Option<PathBuf>,
}

/// Removes what `sluice install` has laid down, and nothing else
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Takes the arguments of the installation. While programs or containers use the libraries it refuses and names them.
The configuration stays unless --purge is given.

Examples:
  sluice uninstall ~/.local
  sudo sluice uninstall --system --purge")]
pub(crate) struct UninstallArguments {
    #[command(flatten)]
    place: PlaceArguments,
    /// Remove the configuration as well
    #[arg(long, requires = "system")]
    purge: bool,
    /// Remove what is not in use and leave the libraries that are
    #[arg(long)]
    force: bool,
}

/// Where.
#[derive(Debug, clap::Args)]
struct PlaceArguments {
    /// The folder, made where it is missing [default with --system: /usr/local]
    #[arg(value_name = "DIR", required_unless_present = "system")]
    folder: Option<PathBuf>,
    /// Also what the daemon and containers need
    #[arg(long)]
    system: bool,
    /// Put everything below this folder, for the system that it will be
    #[arg(long, value_name = "ROOT", requires = "system")]
    root: Option<PathBuf>,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// Where a system-wide installation is, unless told.
const SYSTEM_FOLDER: &str = "/usr/local";

/// What an installation is made of.
struct Layout {
    /// What lies before every path; empty: nothing.
    root: PathBuf,
    /// The folder, as the installed system sees it.
    prefix: PathBuf,
    is_system: bool,
}

impl Layout {
    fn new(place: &PlaceArguments) -> Result<Self> {
        let prefix = place
            .folder
            .clone()
            .unwrap_or_else(|| PathBuf::from(SYSTEM_FOLDER));
        let prefix = std::path::absolute(&prefix)
            .with_context(|| format!("{} lies nowhere", prefix.display()))?;
        let root = match &place.root {
            None => PathBuf::new(),
            Some(root) if root.is_dir() => std::path::absolute(root)?,
            Some(root) => bail!("the root {} is no folder", root.display()),
        };
        Ok(Self {
            root,
            prefix,
            is_system: place.system,
        })
    }

    /// Where `path` of the installed system is now.
    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        if self.root.as_os_str().is_empty() {
            return path.to_owned();
        }
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Everything, in the order in which it is made: what needs something comes after it.
    fn items(&self, libraries: &Libraries) -> Result<Vec<Item>> {
        let lib = self.prefix.join("lib");
        let mut items = vec![
            Item::Libraries(versions::Versions::new(libraries, self.at(&lib))?),
            Item::Program(self.at(self.prefix.join("bin/sluice"))),
        ];
        if self.is_system {
            items.extend(system::items(self)?);
        }
        Ok(items)
    }
}

/// Installs and says what it did.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    let layout = Layout::new(&arguments.place)?;
    let libraries = match &arguments.from {
        Some(folder) => Libraries::at(folder.clone())?,
        None => Libraries::find()?,
    };
    users::refuse_noexec(&layout.at(&layout.prefix))?;
    let items = layout.items(&libraries)?;
    // Whatever cannot be done is found before anything is.
    let states: Vec<State> = items.iter().map(Item::state).collect::<Result<_>>()?;
    for (item, state) in items.iter().zip(states) {
        let path = item.path().display();
        let (would, did) = match state {
            State::Missing => ("would make", "made"),
            State::Other => ("would replace", "replaced"),
            State::UpToDate => {
                println!("is up to date: {path}");
                continue;
            }
            State::Theirs => {
                println!("is left as it is: {path}");
                continue;
            }
        };
        if arguments.place.dry_run {
            println!("{would} {path}");
            continue;
        }
        item.lay_down()?;
        println!("{did} {path}");
    }
    if arguments.place.dry_run {
        return Ok(Exit::Success);
    }
    for (folder, who) in versions::tidy(&layout.at(layout.prefix.join("lib")))? {
        println!("is kept for {who}: {}", folder.display());
    }
    if layout.is_system {
        system::say_next(&layout);
    }
    Ok(Exit::Success)
}

/// Removes and says what it did.
pub(crate) fn uninstall(arguments: &UninstallArguments) -> Result<Exit> {
    let layout = Layout::new(&arguments.place)?;
    let lib = layout.at(layout.prefix.join("lib"));
    let used = versions::used(&lib)?;
    if !used.is_empty() && !arguments.force {
        let who: Vec<&str> = used.iter().map(|(_, who)| &**who).collect();
        bail!(
            "the libraries in {} are used by {}; stop what uses them first, or leave them there with --force",
            lib.display(),
            who.join(", ")
        );
    }
    if layout.is_system {
        system::refuse_running(&layout)?;
    }
    let mut items = vec![
        Item::Program(layout.at(layout.prefix.join("bin/sluice"))),
        Item::Libraries(versions::Versions::present(lib.clone())),
    ];
    if layout.is_system {
        items.splice(0..0, system::removable(&layout, arguments.purge)?);
    }
    for item in items {
        let path = item.path().to_owned();
        if matches!(item.state_now()?, State::Missing) {
            continue;
        }
        if matches!(item.state_now()?, State::Theirs) {
            println!("is left as it is: {}", path.display());
            continue;
        }
        if arguments.place.dry_run {
            println!("would remove {}", path.display());
            continue;
        }
        item.remove()?;
        println!("removed {}", path.display());
    }
    if arguments.place.dry_run {
        return Ok(Exit::Success);
    }
    for (folder, who) in versions::tidy(&lib)? {
        println!("is kept for {who}: {}", folder.display());
    }
    Ok(Exit::Success)
}
