//! The devices, as NVML knows them. NVML may hang (a GPU that fell off the bus does that), so one
//! expendable thread asks it, and everybody else waits for that thread only so long.

use crate::Settings;
use crate::group_limits::{Functions, Limit, Outcome};
use crate::native::Place;
use crate::tenants::Device;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long NVML may take to begin: several seconds on a node with many GPUs and no persistence mode.
const BEGIN_PATIENCE: Duration = Duration::from_secs(30);

/// How long a status waits for fresh numbers before it shows the last ones.
const SAMPLE_PATIENCE: Duration = Duration::from_millis(200);

/// How long a limit waits for NVML: several looks at a node full of GPUs.
const LIMIT_PATIENCE: Duration = Duration::from_secs(1);

/// Numbers older than this say nothing any more.
const STALE: Duration = Duration::from_secs(2);

/// Questions that may wait for NVML at one time.
const MOST_ASKS: usize = 8;

/// Name of NVML's library where no path is configured.
const DEFAULT_LIBRARY: &str = "libnvidia-ml.so.1";

/// Why there are no devices.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// NVML said no, or is not there.
    #[error("cannot ask {library} for the devices: {message}")]
    Nvml {
        /// The library.
        library: String,
        /// What NVML said.
        message: String,
    },
    /// NVML did not answer.
    #[error("{library} has not named the devices within {} s", BEGIN_PATIENCE.as_secs())]
    Hangs {
        /// The library.
        library: String,
    },
    /// NVML knows none.
    #[error("{library} knows no device")]
    None {
        /// The library.
        library: String,
    },
}

/// What NVML sees on one device.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// Bytes in use.
    pub(crate) used_bytes: u64,
    /// Processes with a context on it, by the daemon's process numbers, and bytes that each holds where NVML
    /// says; `None`: NVML does not list them.
    pub(crate) processes: Option<Processes>,
}

/// Bytes by process number; `None`: there is such a process, and NVML does not say what it holds.
pub(crate) type Processes = BTreeMap<u32, Option<u64>>;

/// What NVML sees, by UUID.
pub(crate) type Sample = BTreeMap<String, Seen>;

/// What processes hold together; unknown where it is of one of them.
pub(crate) fn held_by(listed: &Processes, pids: impl Iterator<Item = u32>) -> Option<u64> {
    pids.filter_map(|pid| listed.get(&pid))
        .try_fold(0u64, |sum, bytes| Some(sum.saturating_add((*bytes)?)))
}

/// The last word from NVML.
#[derive(Debug, Clone, Default)]
pub(crate) struct Word {
    /// What it saw; nothing where that is too old to say anything.
    pub(crate) sample: Sample,
    /// How old it is; `None`: it has never answered, or is not asked.
    pub(crate) age: Option<Duration>,
}

impl Word {
    /// Whether NVML answered once, and has not for long.
    pub(crate) fn is_stale(&self) -> bool {
        self.age.is_some_and(|age| age > STALE)
    }
}

/// What the thread is asked.
#[derive(Debug)]
enum Ask {
    Sample(oneshot::Sender<Sample>),
    Limit(Limit),
}

type Discovery = Result<Vec<Device>, String>;

/// The thread that asks NVML, from outside.
#[derive(Debug)]
pub(crate) struct Watch {
    given: Option<Vec<Device>>,
    library: PathBuf,
    discovered: Mutex<Option<Receiver<Discovery>>>,
    asks: SyncSender<Ask>,
    /// The last numbers, and when they came.
    last: Mutex<Option<(Instant, Sample)>>,
}

impl Watch {
    /// Starts the thread, unless the settings name the devices.
    pub(crate) fn new(settings: &Settings) -> io::Result<Self> {
        let library = settings
            .driver
            .libnvml
            .as_deref()
            .unwrap_or(DEFAULT_LIBRARY);
        let library = PathBuf::from(library);
        let (asks, asked) = sync_channel(MOST_ASKS);
        let (discovery, discovered) = channel();
        if settings.devices.is_none() {
            let library = library.clone();
            // Never joined: it may hang for ever.
            std::thread::Builder::new()
                .name("nvml".to_owned())
                .spawn(move || serve(&library, &discovery, &asked))?;
        }
        Ok(Self {
            given: settings.devices.clone(),
            library,
            discovered: Mutex::new(Some(discovered)),
            asks,
            last: Mutex::new(None),
        })
    }

    /// The devices, by index. Waits for NVML, but not for ever.
    pub(crate) fn discover(&self) -> Result<Vec<Device>, DeviceError> {
        if let Some(devices) = &self.given {
            return Ok(devices.clone());
        }
        let library = self.library.display().to_string();
        let answer = match self.discovered.lock().take() {
            Some(discovered) => discovered.recv_timeout(BEGIN_PATIENCE),
            None => Err(RecvTimeoutError::Disconnected),
        };
        match answer {
            Ok(Ok(devices)) if devices.is_empty() => Err(DeviceError::None { library }),
            Ok(Ok(devices)) => Ok(devices),
            Ok(Err(message)) => Err(DeviceError::Nvml { library, message }),
            Err(RecvTimeoutError::Timeout) => Err(DeviceError::Hangs { library }),
            Err(RecvTimeoutError::Disconnected) => Err(DeviceError::Nvml {
                library,
                message: "its thread has ended".to_owned(),
            }),
        }
    }

    /// What is in use on each device, and by whom: the last numbers where NVML is slow, none where it has been
    /// silent for long.
    pub(crate) async fn sample(&self) -> Word {
        let (answer, answered) = oneshot::channel();
        // While NVML hangs, nobody waits behind those who wait already.
        if self.given.is_none()
            && self.asks.try_send(Ask::Sample(answer)).is_ok()
            && let Ok(Ok(sample)) = tokio::time::timeout(SAMPLE_PATIENCE, answered).await
        {
            *self.last.lock() = Some((Instant::now(), sample));
        }
        let last = self.last.lock();
        let Some((at, sample)) = last.as_ref() else {
            return Word::default();
        };
        let mut word = Word {
            sample: Sample::new(),
            age: Some(at.elapsed()),
        };
        if !word.is_stale() {
            word.sample = sample.clone();
        }
        word
    }
}

impl Watch {
    /// Has the driver limit what a control group holds; `None` takes the limit away.
    pub(crate) async fn limit(&self, place: &Place, bytes: Option<u64>) -> Outcome {
        let (answer, answered) = oneshot::channel();
        let limit = Limit {
            uuid: place.uuid.clone(),
            directory: place.directory.clone(),
            bytes,
            answer,
        };
        if self.given.is_some() || self.asks.try_send(Ask::Limit(limit)).is_err() {
            return Outcome::Silent;
        }
        let answered = tokio::time::timeout(LIMIT_PATIENCE, answered).await;
        answered
            .ok()
            .and_then(Result::ok)
            .unwrap_or(Outcome::Silent)
    }
}

/// The expendable thread: opens NVML once, then answers until nobody is left to ask.
fn serve(library: &Path, discovery: &Sender<Discovery>, asked: &Receiver<Ask>) {
    let opened = Nvml::builder().lib_path(library.as_os_str()).init();
    let found = opened
        .as_ref()
        .map_err(ToString::to_string)
        .and_then(|nvml| devices(nvml).map_err(|error| error.to_string()));
    let is_found = found.is_ok();
    // Nobody listens any more: the daemon has stopped meanwhile.
    let _ = discovery.send(found);
    let (Ok(nvml), true) = (opened, is_found) else {
        return;
    };
    let functions = Functions::find(library.as_os_str());
    while let Ok(ask) = asked.recv() {
        // Who asked before NVML hung has long gone.
        let _ = match ask {
            Ask::Sample(answer) => answer.send(sample(&nvml)).is_ok(),
            Ask::Limit(limit) => {
                let outcome = apply(&nvml, functions.as_ref(), &limit);
                limit.answer.send(outcome).is_ok()
            }
        };
    }
}

fn apply(nvml: &Nvml, functions: Option<&Functions>, limit: &Limit) -> Outcome {
    let Some(functions) = functions else {
        return Outcome::Never("NVML has no such function".to_owned());
    };
    match nvml.device_by_uuid(limit.uuid.as_str()) {
        Ok(device) => functions.apply(&device, &limit.directory, limit.bytes),
        Err(error) => Outcome::Refused(error.to_string()),
    }
}

/// A device that does not answer (one that fell off the bus) is left out and said so, unless none does.
fn devices(nvml: &Nvml) -> Result<Vec<Device>, NvmlError> {
    let mut devices = Vec::new();
    let mut failure = None;
    for index in 0..nvml.device_count()? {
        match device(nvml, index) {
            Ok(device) => devices.push(device),
            Err(error) => {
                tracing::warn!(index, %error, "a device does not answer and is left out");
                failure.get_or_insert(error);
            }
        }
    }
    match failure {
        Some(error) if devices.is_empty() => Err(error),
        _ => Ok(devices),
    }
}

fn device(nvml: &Nvml, index: u32) -> Result<Device, NvmlError> {
    let device = nvml.device_by_index(index)?;
    Ok(Device {
        index,
        uuid: device.uuid()?,
        name: device.name()?,
        memory_bytes: device.memory_info()?.total,
    })
}

/// A device that does not answer is left out.
fn sample(nvml: &Nvml) -> Sample {
    let count = nvml.device_count().unwrap_or(0);
    (0..count)
        .filter_map(|index| {
            let device = nvml.device_by_index(index).ok()?;
            let seen = Seen {
                used_bytes: device.memory_info().ok()?.used,
                processes: processes(&device),
            };
            Some((device.uuid().ok()?, seen))
        })
        .collect()
}

/// Processes that compute, and those that draw; one that does both is in both lists with the same number.
/// In one list a process may stand several times, once for each part of a device.
fn processes(device: &nvml_wrapper::Device<'_>) -> Option<Processes> {
    let compute = device.running_compute_processes().ok()?;
    let graphics = match device.running_graphics_processes() {
        Ok(graphics) => graphics,
        Err(NvmlError::NotSupported) => Vec::new(),
        Err(_) => return None,
    };
    let used = |process: ProcessInfo| match process.used_gpu_memory {
        UsedGpuMemory::Used(bytes) => (process.pid, Some(bytes)),
        UsedGpuMemory::Unavailable => (process.pid, None),
    };
    let mut all = sums(compute.into_iter().map(used));
    for (pid, bytes) in sums(graphics.into_iter().map(used)) {
        let known = all.entry(pid).or_insert(bytes);
        *known = (*known).max(bytes);
    }
    Some(all)
}

/// Adds up what is listed for each process; unknown where any of it is.
fn sums(entries: impl Iterator<Item = (u32, Option<u64>)>) -> Processes {
    let mut all = Processes::new();
    for (pid, bytes) in entries {
        all.entry(pid)
            .and_modify(|sum| *sum = sum.zip(bytes).map(|(sum, more)| sum.saturating_add(more)))
            .or_insert(bytes);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_device_add_up_and_unknown_stays_unknown() {
        let listed = [(7, Some(100)), (8, Some(1)), (7, Some(20)), (8, None)];
        let all = sums(listed.into_iter());
        assert_eq!(all, Processes::from([(7, Some(120)), (8, None)]));
    }

    #[test]
    fn an_old_word_is_stale_and_none_is_not() {
        let word = |age| Word {
            age,
            ..Word::default()
        };
        assert!(!word(None).is_stale());
        assert!(!word(Some(STALE)).is_stale());
        assert!(word(Some(STALE + Duration::from_millis(1))).is_stale());
    }
}
