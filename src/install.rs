//! `sluice install`: lays the program and its libraries down for use without the source tree.
//!
//! A half-written library would kill every process that preloads it, and a file that is overwritten
//! in place crashes whoever has it mapped. So the libraries are written into a folder aside, which
//! takes the old one's place in one step; what is mapped stays whole until its process ends.

use crate::exit::Exit;
use crate::libraries::{FILES, LINKS, Libraries};
use anyhow::{Context, Result, bail};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Lays the program and its libraries down under a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Makes DIR/bin/sluice and DIR/lib/sluice. May be repeated, also over an older version that is in
use: running programs keep the libraries that they started with.

Examples:
  sluice install ~/.local
  sudo sluice install /usr/local")]
pub(crate) struct Arguments {
    /// The folder, made where it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// What one step found and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Made,
    Replaced,
    WasThere,
}

/// Installs and says what it did.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    let libraries = Libraries::find()?;
    let prefix = &arguments.folder;
    let library_folder = prefix.join("lib/sluice");
    let program = prefix.join("bin/sluice");
    for folder in [prefix.join("lib"), prefix.join("bin")] {
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    // The libraries first: a program without its libraries would be of no use.
    say(
        lay_down_libraries(&libraries, &library_folder)?,
        &library_folder,
    );
    say(lay_down_program(&program)?, &program);
    Ok(Exit::Success)
}

fn say(step: Step, path: &Path) {
    let done = match step {
        Step::Made => "made",
        Step::Replaced => "replaced",
        Step::WasThere => "is up to date:",
    };
    println!("{done} {}", path.display());
}

/// Makes `to` a copy of the library folder, in one step.
fn lay_down_libraries(libraries: &Libraries, to: &Path) -> Result<Step> {
    if to.exists() && !is_ours(to)? {
        bail!(
            "{} is there and holds something else; move it away or install into another folder",
            to.display()
        );
    }
    if FILES
        .iter()
        .all(|file| is_same(&libraries.folder().join(file), &to.join(file)))
        && LINKS
            .iter()
            .all(|(link, target)| is_link(&to.join(link), target))
    {
        return Ok(Step::WasThere);
    }
    let aside = aside(to);
    let cannot = || format!("cannot write {}", aside.display());
    remove_folder(&aside).with_context(cannot)?;
    fs::create_dir_all(aside.join("stand-in")).with_context(cannot)?;
    for file in FILES {
        write_whole(&libraries.folder().join(file), &aside.join(file), 0o644)?;
    }
    for (link, target) in LINKS {
        symlink(target, aside.join(link)).with_context(cannot)?;
    }
    sync(&aside.join("stand-in"))?;
    sync(&aside)?;
    let step = take_place(&aside, to)
        .with_context(|| format!("cannot put {} into place", to.display()))?;
    sync(parent(to)?)?;
    remove_folder(&aside).with_context(|| format!("cannot remove {}", aside.display()))?;
    Ok(step)
}

/// Lets `aside` become `to`; what was `to` becomes `aside`. At no instant is there no `to`.
fn take_place(aside: &Path, to: &Path) -> io::Result<Step> {
    if !to.exists() {
        fs::rename(aside, to)?;
        return Ok(Step::Made);
    }
    match renameat2(AT_FDCWD, aside, AT_FDCWD, to, RenameFlags::RENAME_EXCHANGE) {
        Ok(()) => Ok(Step::Replaced),
        // A file system that cannot exchange (NFS, some overlays): the old folder steps aside for an
        // instant. renameat2(2): EINVAL, or ENOSYS before Linux 3.15.
        Err(nix::Error::EINVAL | nix::Error::ENOSYS) => {
            let old = to.with_extension("old");
            remove_folder(&old)?;
            fs::rename(to, &old)?;
            fs::rename(aside, to)?;
            remove_folder(&old)?;
            Ok(Step::Replaced)
        }
        Err(error) => Err(error.into()),
    }
}

/// Makes `to` a copy of this program, by rename.
fn lay_down_program(to: &Path) -> Result<Step> {
    // By way of the link, not of its target's name: the file may have been replaced meanwhile.
    let this = Path::new("/proc/self/exe");
    let is_replaced = to.exists();
    if is_same(this, to) && fs::metadata(to)?.permissions().mode() & 0o111 == 0o111 {
        return Ok(Step::WasThere);
    }
    if to.is_dir() {
        bail!(
            "{} is a folder; the program cannot take its place",
            to.display()
        );
    }
    let aside = aside(to);
    write_whole(this, &aside, 0o755)?;
    fs::rename(&aside, to).with_context(|| format!("cannot put {} into place", to.display()))?;
    sync(parent(to)?)?;
    Ok(if is_replaced {
        Step::Replaced
    } else {
        Step::Made
    })
}

/// Copies a file and waits until it is on the disk.
fn write_whole(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    let cannot = || format!("cannot write {}", to.display());
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(to)
        .with_context(cannot)?;
    file.write_all(&content).with_context(cannot)?;
    // Whatever the umask: the libraries are for everybody's programs.
    file.set_permissions(fs::Permissions::from_mode(mode))
        .with_context(cannot)?;
    file.sync_all().with_context(cannot)
}

/// Whether a folder is an earlier installation, or empty.
fn is_ours(folder: &Path) -> Result<bool> {
    let mut entries =
        fs::read_dir(folder).with_context(|| format!("cannot look into {}", folder.display()))?;
    Ok(folder.join(FILES[0]).is_file() || entries.next().is_none())
}

fn is_same(one: &Path, other: &Path) -> bool {
    match (fs::read(one), fs::read(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

fn is_link(link: &Path, target: &str) -> bool {
    fs::read_link(link).is_ok_and(|present| present == Path::new(target))
}

fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes the names in a folder last.
fn sync(folder: &Path) -> Result<()> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .with_context(|| format!("cannot write {}", folder.display()))
}

fn parent(path: &Path) -> Result<&Path> {
    path.parent()
        .with_context(|| format!("{} lies nowhere", path.display()))
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}
