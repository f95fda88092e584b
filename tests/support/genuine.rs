//! NVIDIA's own user-space libraries and `nvidia-smi`, for tests that hold us to the real thing.
//!
//! None of it is in this repository, and none of it needs a GPU: the files come from the
//! `non-free` part of the Debian archive that this machine's own apt sources already name, once,
//! into `target/genuine/`. Nothing is installed and no root is needed: apt works on private lists
//! and the packages are only unpacked.
//!
//! Any number of test programs may ask at one time; the first to come fetches, the others wait for
//! it. What this does not do: go on without the files. A machine that cannot have them gets a
//! failed test whose sentence says what is missing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Everything lies here; removing the folder fetches again.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/genuine");

/// Suites that are looked through for a driver branch. Each carries another branch, and which one
/// changes with the years: all are asked, the version decides.
const SUITES: [&str; 4] = ["bookworm", "trixie", "sid", "experimental"];

/// What is unpacked of each driver: about 4 MB to fetch.
const PACKAGES: [&str; 3] = ["libcuda1", "libnvidia-ml1", "nvidia-smi"];

/// Signs every suite; ships with every Debian system. Where it is missing, apt's own trusted keys
/// have to do.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// One driver's user-space part, unpacked.
#[derive(Clone, Debug)]
pub struct Genuine {
    /// Full version, e.g. `550.163.01`.
    pub version: String,
    /// Holds both libraries under their usual names: fit for `LD_LIBRARY_PATH`.
    pub folder: PathBuf,
    /// The driver library, `libcuda.so.1`.
    pub libcuda: PathBuf,
    /// The management library, `libnvidia-ml.so.1`.
    pub libnvml: PathBuf,
    /// The command-line tool of the same version.
    pub nvidia_smi: PathBuf,
}

/// The newest driver of a branch (`"535"`, `"550"`, `"555"`), fetched if it is not there yet.
///
/// # Panics
/// When it is not there and cannot be had, with a sentence that says why.
pub fn driver(branch: &str) -> Genuine {
    let found = locate(branch).map_or_else(|| fetch_once(branch), Ok);
    found.unwrap_or_else(|why| {
        panic!(
            "the genuine driver {branch} is needed and is not in {FOLDER}: {why}. It comes from \
             the component non-free of the Debian archive, by apt-get and dpkg, from the \
             addresses in this machine's apt sources."
        )
    })
}

/// What an earlier call left behind. A folder with the final name is complete: it was renamed.
fn locate(branch: &str) -> Option<Genuine> {
    let root = Path::new(FOLDER).join(branch);
    let version = fs::read_to_string(root.join("version")).ok()?;
    let nvidia_smi = root.join("usr/lib/nvidia/current/nvidia-smi");
    // The folder below `lib` is named for the architecture.
    let folder = fs::read_dir(root.join("usr/lib"))
        .ok()?
        .flatten()
        .map(|entry| entry.path().join("nvidia/current"))
        .find(|folder| folder.join("libcuda.so.1").exists())?;
    let libcuda = folder.join("libcuda.so.1");
    let libnvml = folder.join("libnvidia-ml.so.1");
    (libnvml.exists() && nvidia_smi.exists()).then_some(Genuine {
        version,
        folder,
        libcuda,
        libnvml,
        nvidia_smi,
    })
}

/// Fetches under a lock, unless somebody else did so while this call waited for it.
fn fetch_once(branch: &str) -> Result<Genuine, String> {
    let _held = fs::create_dir_all(FOLDER)
        .and_then(|()| File::create(Path::new(FOLDER).join("lock")))
        .and_then(|lock| lock.lock().map(|()| lock))
        .map_err(|error| format!("{FOLDER} cannot be locked: {error}"))?;
    if let Some(genuine) = locate(branch) {
        return Ok(genuine);
    }
    fetch(branch)?;
    locate(branch).ok_or_else(|| {
        "the packages no longer hold libcuda.so.1, libnvidia-ml.so.1 and nvidia-smi where they did"
            .to_owned()
    })
}

/// Lists, downloads and unpacks into a folder aside, which gets its name when it is complete.
fn fetch(branch: &str) -> Result<(), String> {
    eprintln!("fetching the genuine driver {branch} into {FOLDER} (once)");
    let apt = Apt::prepare()?;
    let version = apt.newest(branch)?;
    let aside = Path::new(FOLDER).join(format!("{branch}.partial"));
    let _ = fs::remove_dir_all(&aside);
    fs::create_dir_all(&aside).map_err(|error| format!("{}: {error}", aside.display()))?;
    apt.download(&version, &aside)?;
    for package in packages_in(&aside)? {
        let mut unpack = Command::new("dpkg");
        done(unpack.arg("-x").arg(&package).arg(&aside))?;
        fs::remove_file(&package).map_err(|error| format!("{}: {error}", package.display()))?;
    }
    // Debian adds its own revision behind a hyphen.
    let upstream = version.split('-').next().unwrap_or(&version);
    let place = Path::new(FOLDER).join(branch);
    let _ = fs::remove_dir_all(&place);
    fs::write(aside.join("version"), upstream)
        .and_then(|()| fs::rename(&aside, &place))
        .map_err(|error| format!("{}: {error}", place.display()))
}

/// The `.deb` files that lie directly in `folder`.
fn packages_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths
        .filter(|path| path.extension().is_some_and(|end| end == "deb"))
        .collect())
}

/// apt with lists, caches and sources of its own.
struct Apt {
    options: Vec<String>,
    /// What the update complained about; only told if a version is missing afterwards.
    complaints: String,
}

impl Apt {
    /// Writes the private sources and brings the lists up to date (about 0.3 MB).
    fn prepare() -> Result<Apt, String> {
        let state = Path::new(FOLDER).join("apt");
        for folder in ["lists/partial", "cache/archives/partial"] {
            let folder = state.join(folder);
            fs::create_dir_all(&folder)
                .map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let archive = archive()?;
        let signed = match Path::new(KEYRING).exists() {
            true => format!("[signed-by={KEYRING}] "),
            false => String::new(),
        };
        let sources = SUITES.map(|suite| format!("deb {signed}{archive} {suite} non-free\n"));
        let list = state.join("sources.list");
        fs::write(&list, sources.concat())
            .map_err(|error| format!("{}: {error}", list.display()))?;
        let options = [
            format!("Dir::Etc::SourceList={}", list.display()),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            "Dir::Etc::Preferences=/dev/null".to_owned(),
            "Dir::Etc::PreferencesParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={}", state.join("lists").display()),
            "Dir::State::Status=/dev/null".to_owned(),
            format!("Dir::Cache={}", state.join("cache").display()),
            // Root would otherwise hand the download to a user who cannot write below `target`.
            "APT::Sandbox::User=".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ]
        .to_vec();
        let mut apt = Apt {
            options,
            complaints: String::new(),
        };
        // A suite that has gone away must not stop the others: what counts is what is listed then.
        apt.complaints = done(apt.command("apt-get").arg("update"))
            .err()
            .unwrap_or_default();
        Ok(apt)
    }

    /// The highest version of the branch that has all packages, e.g. `550.163.01-2`.
    fn newest(&self, branch: &str) -> Result<String, String> {
        let mut listing = self.command("apt-cache");
        let listing = done(listing.arg("madison").args(PACKAGES))?;
        let prefix = format!("{branch}.");
        let row = |line: &str| {
            let mut cells = line.split('|').map(|cell| cell.trim().to_owned());
            Some((cells.next()?, cells.next()?))
        };
        let rows: Vec<(String, String)> = listing.lines().filter_map(row).collect();
        let is_complete = |version: &String| {
            PACKAGES
                .iter()
                .all(|package| rows.contains(&((*package).to_owned(), version.clone())))
        };
        // `madison` lists the newest first.
        let versions = rows.iter().map(|(_, version)| version);
        versions
            .filter(|version| version.starts_with(&prefix))
            .find(|version| is_complete(version))
            .cloned()
            .ok_or_else(|| match self.complaints.as_str() {
                "" => format!("no suite of {SUITES:?} carries a version {branch} any more"),
                complaints => format!("the archive could not be listed: {complaints}"),
            })
    }

    /// Downloads the packages of one version into `folder`; apt checks size and hash.
    fn download(&self, version: &str, folder: &Path) -> Result<(), String> {
        let wanted = PACKAGES.map(|package| format!("{package}={version}"));
        let mut download = self.command("apt-get");
        done(download.current_dir(folder).arg("download").args(wanted)).map(drop)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.args(self.options.iter().flat_map(|option| ["-o", option]));
        command
    }
}

/// The Debian archive that this machine's own apt sources name.
fn archive() -> Result<String, String> {
    let mut targets = Command::new("apt-get");
    // Without release information: a fresh container image has no lists yet.
    targets.args([
        "indextargets",
        "--no-release-info",
        "--format",
        "$(REPO_URI)",
    ]);
    let targets = done(targets.arg("Created-By: Packages"))?;
    let mut addresses = targets
        .lines()
        .map(|line| line.trim().trim_end_matches('/'));
    addresses
        .find(|address| address.ends_with("/debian"))
        .map(str::to_owned)
        .ok_or_else(|| "this machine's apt sources name no Debian archive".to_owned())
}

/// Standard output of a command that succeeded; otherwise what it was and what it said.
fn done(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    // An interrupted name lookup or a translated word would change what is parsed here.
    let ran = command.env("LC_ALL", "C").env_remove("LD_PRELOAD").output();
    let Output {
        status,
        stdout,
        stderr,
    } = ran.map_err(|error| format!("{program} cannot be run: {error}"))?;
    let said = String::from_utf8_lossy(&stderr);
    let failed = !status.success() || said.contains("Failed to fetch");
    match failed {
        false => Ok(String::from_utf8_lossy(&stdout).into_owned()),
        true => Err(format!(
            "{program} ended with {status}: {}",
            said.trim().replace('\n', "; ")
        )),
    }
}
