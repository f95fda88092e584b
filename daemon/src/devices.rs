//! The devices, as NVML knows them. NVML may hang (a GPU that fell off the bus does that), so one
//! expendable thread asks it, and everybody else waits for that thread only so long.

use crate::Settings;
use crate::tenants::Device;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tokio::sync::oneshot;

/// How long NVML may take to begin: several seconds on a node with many GPUs and no persistence mode.
const BEGIN_PATIENCE: Duration = Duration::from_secs(30);

/// How long a status waits for fresh numbers before it shows the last ones.
const SAMPLE_PATIENCE: Duration = Duration::from_millis(200);

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
    /// Processes with a context on it, by the daemon's process numbers, and bytes that each holds.
    pub(crate) processes: BTreeMap<u32, u64>,
}

/// What NVML sees, by UUID.
pub(crate) type Sample = BTreeMap<String, Seen>;

type Discovery = Result<Vec<Device>, String>;

/// The thread that asks NVML, from outside.
#[derive(Debug)]
pub(crate) struct Watch {
    given: Option<Vec<Device>>,
    library: PathBuf,
    discovered: Mutex<Option<Receiver<Discovery>>>,
    asks: Sender<oneshot::Sender<Sample>>,
    /// The last numbers; nothing before the first.
    last: Mutex<Sample>,
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
        let (asks, asked) = channel();
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
            last: Mutex::new(Sample::new()),
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

    /// What is in use on each device, and by whom; the last numbers where NVML is slow, none where it is
    /// silent.
    pub(crate) async fn sample(&self) -> Sample {
        let (answer, answered) = oneshot::channel();
        if self.given.is_none()
            && self.asks.send(answer).is_ok()
            && let Ok(Ok(sample)) = tokio::time::timeout(SAMPLE_PATIENCE, answered).await
        {
            *self.last.lock() = sample;
        }
        self.last.lock().clone()
    }
}

/// The expendable thread: opens NVML once, then answers until nobody is left to ask.
fn serve(library: &Path, discovery: &Sender<Discovery>, asked: &Receiver<oneshot::Sender<Sample>>) {
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
    while let Ok(answer) = asked.recv() {
        // Who asked before NVML hung has long gone; one look answers all who wait.
        let _ = answer.send(sample(&nvml));
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

/// Processes that compute, and those that draw; one that does both is listed twice with the same number.
fn processes(device: &nvml_wrapper::Device<'_>) -> BTreeMap<u32, u64> {
    let lists = [
        device.running_compute_processes(),
        device.running_graphics_processes(),
    ];
    lists
        .into_iter()
        .flat_map(Result::unwrap_or_default)
        .map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => (process.pid, bytes),
            UsedGpuMemory::Unavailable => (process.pid, 0),
        })
        .collect()
}
