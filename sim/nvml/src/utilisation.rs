//! How busy a device was, as a whole and for each process.
//!
//! The `gpu` process counts busy time; a rate is the difference between two readings of that count.
//! A [`Meter`] keeps the last readings and the samples made of them, so that a tool that asks often
//! sees a period of about [`PERIOD`], and one that asks once waits for a short one.
//!
//! What it does not know: how busy memory was. That is always 0.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ffi::nvml::*;
use parking_lot::Mutex;

use crate::guard::{Answer, Out, check_version, version_word, write_list};
use crate::hardware::Hardware;
use crate::library::{Handle, Target};

/// A newer sample is made when the last reading is at least this old.
///
/// 100 ms: inside the range that the header names for sampling periods, 1/6 s to 1 s, on the quick
/// side, so that a test need not wait.
const PERIOD: Duration = Duration::from_millis(100);

/// No sample covers less. A time slice of the device is 2 ms: ten of them.
const SHORTEST: Duration = Duration::from_millis(20);

/// No sample covers more: what was long ago is not what is asked for.
const LONGEST: Duration = Duration::from_secs(1);

/// Samples that are kept: about what a driver's buffer holds.
const KEPT: usize = 100;

/// What a device did over time.
pub(crate) struct Meter(Mutex<Track>);

#[derive(Default)]
struct Track {
    last: Option<Reading>,
    samples: VecDeque<Sample>,
}

/// Counts at one time.
struct Reading {
    at: Instant,
    busy_ns: u64,
    /// Process and its share of the count.
    processes: Vec<(u32, u64)>,
}

/// Rates between two readings.
#[derive(Clone, Debug, PartialEq)]
struct Sample {
    /// End of the time that it covers, in µs since 1970.
    at_us: u64,
    percent: u32,
    processes: Vec<(u32, u32)>,
}

impl Meter {
    /// Nothing is known yet.
    pub(crate) fn new() -> Meter {
        Meter(Mutex::default())
    }

    /// Takes the first reading, so that the first question need not wait; a device that does not
    /// answer will say so then.
    pub(crate) fn begin(&self, hardware: &Hardware, index: usize) {
        self.0.lock().last = Reading::take(hardware, index).ok();
    }

    /// Makes a new sample if the last one is old, and hands out those after `since_us`, oldest
    /// first.
    ///
    /// Sleeps up to [`SHORTEST`] where there is no reading to compare with.
    fn samples(&self, target: &Target, since_us: u64) -> Result<Vec<Sample>, nvmlReturn_t> {
        let mut track = self.0.lock();
        let take = || Reading::take(target.hardware(), target.index);
        let age = track.last.as_ref().map(|last| last.at.elapsed());
        let is_recent = age.is_some_and(|age| age < PERIOD) && !track.samples.is_empty();
        if !is_recent {
            let first = match track.last.take() {
                Some(last) if last.at.elapsed() <= LONGEST => last,
                _ => take()?,
            };
            thread::sleep(SHORTEST.saturating_sub(first.at.elapsed()));
            let second = take()?;
            track
                .samples
                .push_back(Sample::between(&first, &second, now_us()));
            if track.samples.len() > KEPT {
                track.samples.pop_front();
            }
            track.last = Some(second);
        }
        Ok(track
            .samples
            .iter()
            .filter(|sample| sample.at_us > since_us)
            .cloned()
            .collect())
    }
}

impl Reading {
    fn take(hardware: &Hardware, index: usize) -> Result<Reading, nvmlReturn_t> {
        let busy_ns = hardware.busy_ns(index)?;
        let processes = hardware.processes(index)?;
        let processes = processes
            .iter()
            .map(|process| (process.pid as u32, process.busy_ns))
            .collect();
        Ok(Reading {
            at: Instant::now(),
            busy_ns,
            processes,
        })
    }
}

impl Sample {
    /// Busy time over elapsed time, in whole per cent, rounded to the nearest. Pure.
    ///
    /// A process that the first reading lacks began in between: its whole count lies inside.
    fn between(first: &Reading, second: &Reading, at_us: u64) -> Sample {
        let elapsed_ns = second.at.duration_since(first.at).as_nanos().max(1);
        let percent = |before: u64, after: u64| {
            let busy_ns = u128::from(after.saturating_sub(before));
            ((busy_ns * 100 + elapsed_ns / 2) / elapsed_ns).min(100) as u32
        };
        let before = |pid: u32| {
            let known = first.processes.iter().find(|(known, _)| *known == pid);
            known.map_or(0, |(_, busy_ns)| *busy_ns)
        };
        let processes = second.processes.iter();
        Sample {
            at_us,
            percent: percent(first.busy_ns, second.busy_ns),
            processes: processes
                .map(|&(pid, after)| (pid, percent(before(pid), after)))
                .collect(),
        }
    }
}

/// Per cent of the last period in which the device worked.
pub(crate) fn rates(device: Handle, rates: Out<nvmlUtilization_t>) -> Answer {
    let target = device.resolve()?;
    let rates = rates.claim()?;
    let samples = target.meter().samples(&target, 0)?;
    let gpu = samples.last().map_or(0, |sample| sample.percent);
    rates.write(nvmlUtilization_t { gpu, memory: 0 });
    Ok(())
}

/// Samples after a time, of the device (1) or of an engine that never works (2, 3, 4).
///
/// With null for the samples only their number is told.
pub(crate) fn samples(
    device: Handle,
    kind: nvmlSamplingType_t,
    since_us: u64,
    value_kind: Out<nvmlValueType_t>,
    count: Out<u32>,
    samples: Out<nvmlSample_t>,
) -> Answer {
    let target = device.resolve()?;
    let is_device = match kind {
        nvmlSamplingType_t::NVML_GPU_UTILIZATION_SAMPLES => true,
        nvmlSamplingType_t::NVML_MEMORY_UTILIZATION_SAMPLES
        | nvmlSamplingType_t::NVML_ENC_UTILIZATION_SAMPLES
        | nvmlSamplingType_t::NVML_DEC_UTILIZATION_SAMPLES => false,
        _ => return Err(nvmlReturn_t::NVML_ERROR_NOT_SUPPORTED),
    };
    let (value_kind, places) = (value_kind.claim()?, count.claim()?);
    let taken = target.meter().samples(&target, since_us)?;
    if taken.is_empty() {
        return Err(nvmlReturn_t::NVML_ERROR_NOT_FOUND);
    }
    value_kind.write(nvmlValueType_t::NVML_VALUE_TYPE_UNSIGNED_INT);
    if samples.is_null() {
        places.write(taken.len() as u32);
        return Ok(());
    }
    // As many as fit, the newest of them: a caller with few places wants what is now.
    let skipped = taken.len().saturating_sub(places.read() as usize);
    let entry = |sample: &Sample| nvmlSample_t {
        timeStamp: sample.at_us,
        sampleValue: nvmlValue_t {
            ullVal: u64::from(if is_device { sample.percent } else { 0 }),
        },
    };
    let entries: Vec<_> = taken[skipped..].iter().map(entry).collect();
    samples.claim()?.write_all(&entries);
    places.write(entries.len() as u32);
    Ok(())
}

/// The newest rates of each process after a time.
///
/// With null for the samples, or too few places, only their number is told and the answer is
/// `NVML_ERROR_INSUFFICIENT_SIZE`; with nothing to tell it is `NVML_ERROR_NOT_FOUND`.
pub(crate) fn of_processes(
    device: Handle,
    samples: Out<nvmlProcessUtilizationSample_t>,
    count: Out<u32>,
    since_us: u64,
) -> Answer {
    let target = device.resolve()?;
    let entry = |(at_us, pid, percent)| nvmlProcessUtilizationSample_t {
        pid,
        timeStamp: at_us,
        smUtil: percent,
        memUtil: 0,
        encUtil: 0,
        decUtil: 0,
    };
    let newest = newest_of_processes(&target, since_us)?;
    let entries: Vec<_> = newest.into_iter().map(entry).collect();
    if samples.is_null() {
        count.write(entries.len() as u32)?;
        return Err(nvmlReturn_t::NVML_ERROR_INSUFFICIENT_SIZE);
    }
    write_list(count, samples, &entries)
}

/// [`of_processes`] in a versioned list.
pub(crate) fn of_processes_info(
    device: Handle,
    info: Out<nvmlProcessesUtilizationInfo_v1_t>,
) -> Answer {
    let target = device.resolve()?;
    let info = info.claim()?;
    let mut head = info.read();
    check_version(
        head.version,
        version_word::<nvmlProcessesUtilizationInfo_v1_t>(1),
    )?;
    let entry = |(at_us, pid, percent)| nvmlProcessUtilizationInfo_v1_t {
        timeStamp: at_us,
        pid,
        smUtil: percent,
        memUtil: 0,
        encUtil: 0,
        decUtil: 0,
        jpgUtil: 0,
        ofaUtil: 0,
    };
    let newest = newest_of_processes(&target, head.lastSeenTimeStamp)?;
    let entries: Vec<_> = newest.into_iter().map(entry).collect();
    let places = Out::named(head.procUtilArray);
    let mut count = if places.is_null() {
        0
    } else {
        head.processSamplesCount
    };
    let answer = write_list(Out::named(&raw mut count), places, &entries);
    head.processSamplesCount = count;
    info.write(head);
    answer
}

/// An engine that never works, and over how long it did not.
pub(crate) fn idle_engine(device: Handle, percent: Out<u32>, period_us: Out<u32>) -> Answer {
    device.resolve()?;
    let (percent, period_us) = (percent.claim()?, period_us.claim()?);
    percent.write(0);
    period_us.write(PERIOD.as_micros() as u32);
    Ok(())
}

/// Time, process and per cent: the newest of each process after a time.
fn newest_of_processes(
    target: &Target,
    since_us: u64,
) -> Result<Vec<(u64, u32, u32)>, nvmlReturn_t> {
    let mut newest: Vec<(u64, u32, u32)> = Vec::new();
    for sample in target.meter().samples(target, since_us)? {
        for (pid, percent) in sample.processes {
            newest.retain(|(_, known, _)| *known != pid);
            newest.push((sample.at_us, pid, percent));
        }
    }
    match newest.is_empty() {
        true => Err(nvmlReturn_t::NVML_ERROR_NOT_FOUND),
        false => Ok(newest),
    }
}

/// The time that samples bear, in µs since 1970.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_busy_time_over_elapsed_time_and_never_more_than_all_of_it() {
        let start = Instant::now();
        let at = |ms: u64, busy_ms: u64, processes: &[(u32, u64)]| Reading {
            at: start + Duration::from_millis(ms),
            busy_ns: busy_ms * 1_000_000,
            processes: processes
                .iter()
                .map(|&(pid, ms)| (pid, ms * 1_000_000))
                .collect(),
        };
        let first = at(0, 10, &[(7, 10)]);
        let second = at(100, 85, &[(7, 35), (8, 50)]);
        let sample = Sample::between(&first, &second, 1);
        assert_eq!(sample.percent, 75);
        assert_eq!(sample.processes, [(7, 25), (8, 50)]);
        assert_eq!(Sample::between(&first, &at(100, 500, &[]), 1).percent, 100);
        assert_eq!(Sample::between(&second, &at(200, 0, &[]), 1).percent, 0);
    }
}
