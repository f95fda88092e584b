//! How a device is: modes, power, temperature, clocks, link, errors.
//!
//! A stand-in is always well: constants of [`figures`], and zeros where a device
//! counts what goes wrong. What an actively cooled board alone has (fans) is not supported.

use ffi::nvml::*;

use crate::figures::{self, Figures};
use crate::guard::{Answer, Out, check_version, version_word, write_list};
use crate::library::Handle;
use crate::utilisation::now_us;

const INVALID: nvmlReturn_t = nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT;

/// Answers 0 for any device.
pub(crate) fn zero(device: Handle, number: Out<u32>) -> Answer {
    device.resolve()?;
    number.write(0)
}

/// Answers 0 twice.
pub(crate) fn two_zeros(device: Handle, first: Out<u32>, second: Out<u32>) -> Answer {
    device.resolve()?;
    let places = [first.claim()?, second.claim()?];
    places.iter().for_each(|place| place.write(0));
    Ok(())
}

/// Answers 0 three times.
pub(crate) fn three_zeros(
    device: Handle,
    first: Out<u32>,
    second: Out<u32>,
    third: Out<u32>,
) -> Answer {
    device.resolve()?;
    let places = [first.claim()?, second.claim()?, third.claim()?];
    places.iter().for_each(|place| place.write(0));
    Ok(())
}

/// Answers 0 four times.
pub(crate) fn four_zeros(
    device: Handle,
    first: Out<u32>,
    second: Out<u32>,
    third: Out<u32>,
    fourth: Out<u32>,
) -> Answer {
    device.resolve()?;
    let places = [
        first.claim()?,
        second.claim()?,
        third.claim()?,
        fourth.claim()?,
    ];
    places.iter().for_each(|place| place.write(0));
    Ok(())
}

/// Answers that a feature is on.
pub(crate) fn enabled(device: Handle, mode: Out<nvmlEnableState_t>) -> Answer {
    device.resolve()?;
    mode.write(nvmlEnableState_t::NVML_FEATURE_ENABLED)
}

/// Answers that a feature is off.
pub(crate) fn disabled(device: Handle, mode: Out<nvmlEnableState_t>) -> Answer {
    device.resolve()?;
    mode.write(nvmlEnableState_t::NVML_FEATURE_DISABLED)
}

/// Any number of processes may compute.
pub(crate) fn compute_mode(device: Handle, mode: Out<nvmlComputeMode_t>) -> Answer {
    device.resolve()?;
    mode.write(nvmlComputeMode_t::NVML_COMPUTEMODE_DEFAULT)
}

/// ECC is on and stays on.
pub(crate) fn ecc_mode(
    device: Handle,
    current: Out<nvmlEnableState_t>,
    pending: Out<nvmlEnableState_t>,
) -> Answer {
    device.resolve()?;
    let places = [current.claim()?, pending.claim()?];
    places
        .iter()
        .for_each(|place| place.write(nvmlEnableState_t::NVML_FEATURE_ENABLED));
    Ok(())
}

/// No memory error of any kind was ever counted.
pub(crate) fn total_errors(device: Handle, error: u32, counter: u32, errors: Out<u64>) -> Answer {
    device.resolve()?;
    check_error_counter(error, counter)?;
    errors.write(0)
}

/// No memory error of any kind was ever counted, wherever one looks.
pub(crate) fn memory_errors(
    device: Handle,
    error: u32,
    counter: u32,
    _location: u32,
    errors: Out<u64>,
) -> Answer {
    total_errors(device, error, counter, errors)
}

/// No memory error of any kind was ever counted, place by place.
pub(crate) fn detailed_errors(
    device: Handle,
    error: u32,
    counter: u32,
    errors: Out<nvmlEccErrorCounts_t>,
) -> Answer {
    device.resolve()?;
    check_error_counter(error, counter)?;
    errors.write(nvmlEccErrorCounts_t {
        l1Cache: 0,
        l2Cache: 0,
        deviceMemory: 0,
        registerFile: 0,
    })
}

/// Corrected and uncorrected errors, since boot and since ever: each 0 or 1.
fn check_error_counter(error: u32, counter: u32) -> Answer {
    match (error, counter) {
        (0 | 1, 0 | 1) => Ok(()),
        _ => Err(INVALID),
    }
}

/// No page was ever retired, whatever the cause (each is 0 or 1).
pub(crate) fn no_retired_pages(
    device: Handle,
    cause: u32,
    count: Out<u32>,
    pages: Out<u64>,
) -> Answer {
    device.resolve()?;
    match cause {
        0 | 1 => write_list(count, pages, &[]),
        _ => Err(INVALID),
    }
}

/// No page was ever retired, so there is no time of it either.
pub(crate) fn no_retired_pages_v2(
    device: Handle,
    cause: u32,
    count: Out<u32>,
    pages: Out<u64>,
    _times: Out<u64>,
) -> Answer {
    no_retired_pages(device, cause, count, pages)
}

/// Nobody captures frames.
pub(crate) fn capture_stats(device: Handle, stats: Out<nvmlFBCStats_t>) -> Answer {
    device.resolve()?;
    stats.write(nvmlFBCStats_t {
        sessionsCount: 0,
        averageFPS: 0,
        averageLatency: 0,
    })
}

/// Always ready to run at full speed.
pub(crate) fn performance_state(device: Handle, state: Out<nvmlPstates_t>) -> Answer {
    device.resolve()?;
    state.write(nvmlPstates_t::NVML_PSTATE_0)
}

/// The same draw at any time.
pub(crate) fn power_usage(device: Handle, milliwatts: Out<u32>) -> Answer {
    milliwatts.write(figures_of(device)?.power_usage_mw())
}

/// Default, set and enforced limit are one.
pub(crate) fn power_limit(device: Handle, milliwatts: Out<u32>) -> Answer {
    milliwatts.write(figures_of(device)?.power_limit_mw())
}

/// The limit cannot be moved: both ends are the same.
pub(crate) fn power_range(device: Handle, least: Out<u32>, most: Out<u32>) -> Answer {
    let figures = figures_of(device)?;
    let places = [least.claim()?, most.claim()?];
    places
        .iter()
        .for_each(|place| place.write(figures.power_limit_mw()));
    Ok(())
}

/// One sensor, and it reads the same at any time.
pub(crate) fn temperature(device: Handle, sensor: u32, degrees: Out<u32>) -> Answer {
    device.resolve()?;
    check_sensor(sensor)?;
    degrees.write(figures::TEMPERATURE_CELSIUS)
}

/// [`temperature`] in a versioned structure.
pub(crate) fn temperature_versioned(device: Handle, reading: Out<nvmlTemperature_v1_t>) -> Answer {
    device.resolve()?;
    let reading = reading.claim()?;
    let mut value = reading.read();
    check_version(value.version, version_word::<nvmlTemperature_v1_t>(1))?;
    check_sensor(value.sensorType.0)?;
    value.temperature = figures::TEMPERATURE_CELSIUS as i32;
    reading.write(value);
    Ok(())
}

/// Sensor 0 is the GPU's own; there is no other.
fn check_sensor(sensor: u32) -> Answer {
    match sensor {
        0 => Ok(()),
        _ => Err(INVALID),
    }
}

/// Shutdown (0), slowdown (1), most for memory (2) and GPU (3); fans' thresholds it has not.
pub(crate) fn temperature_threshold(device: Handle, threshold: u32, degrees: Out<u32>) -> Answer {
    device.resolve()?;
    match threshold {
        0 => degrees.write(figures::SHUTDOWN_CELSIUS),
        1..=3 => degrees.write(figures::SLOWDOWN_CELSIUS),
        4..=7 => Err(nvmlReturn_t::NVML_ERROR_NOT_SUPPORTED),
        _ => Err(INVALID),
    }
}

/// Clocks do not move: current, highest, set and default are one.
///
/// Graphics (0), multiprocessors (1), memory (2), video (3).
pub(crate) fn clock(device: Handle, kind: u32, megahertz: Out<u32>) -> Answer {
    let figures = figures_of(device)?;
    match kind {
        0 | 1 | 3 => megahertz.write(figures.sm_clock_mhz()),
        2 => megahertz.write(figures.memory_clock_mhz()),
        _ => Err(INVALID),
    }
}

/// [`clock`]; current, target, default and highest (0 to 3) are one.
pub(crate) fn clock_by_id(device: Handle, kind: u32, which: u32, megahertz: Out<u32>) -> Answer {
    match which {
        0..=3 => clock(device, kind, megahertz),
        _ => Err(INVALID),
    }
}

/// The one clock that memory runs at.
pub(crate) fn memory_clocks(device: Handle, count: Out<u32>, megahertz: Out<u32>) -> Answer {
    write_list(count, megahertz, &[figures_of(device)?.memory_clock_mhz()])
}

/// The one clock that goes with the one clock of memory.
pub(crate) fn graphics_clocks(
    device: Handle,
    memory_megahertz: u32,
    count: Out<u32>,
    megahertz: Out<u32>,
) -> Answer {
    let figures = figures_of(device)?;
    match memory_megahertz == figures.memory_clock_mhz() {
        true => write_list(count, megahertz, &[figures.sm_clock_mhz()]),
        false => Err(nvmlReturn_t::NVML_ERROR_NOT_FOUND),
    }
}

/// Nothing ever slows it down.
pub(crate) fn throttle_reasons(device: Handle, reasons: Out<u64>) -> Answer {
    device.resolve()?;
    reasons.write(0)
}

/// The link's generation; current and highest are one.
pub(crate) fn link_generation(device: Handle, generation: Out<u32>) -> Answer {
    generation.write(figures_of(device)?.link_generation())
}

/// The link's lanes; current and most are one.
pub(crate) fn link_width(device: Handle, lanes: Out<u32>) -> Answer {
    device.resolve()?;
    lanes.write(figures::LINK_WIDTH)
}

/// Nothing crosses the link: sent (0) and received (1) alike.
pub(crate) fn link_throughput(device: Handle, counter: u32, kilobytes: Out<u32>) -> Answer {
    match counter {
        0 | 1 => zero(device, kilobytes),
        _ => Err(INVALID),
    }
}

/// It never ran below what was asked of it.
pub(crate) fn no_violation(device: Handle, _policy: u32, time: Out<nvmlViolationTime_t>) -> Answer {
    device.resolve()?;
    time.write(nvmlViolationTime_t {
        referenceTime: 0,
        violationTime: 0,
    })
}

/// Answers each field by itself, the call as a whole succeeds: power, errors and ECC mode are known,
/// every other field is not supported.
pub(crate) fn field_values(device: Handle, count: i32, values: Out<nvmlFieldValue_t>) -> Answer {
    let figures = figures_of(device)?;
    let values = values.claim()?;
    let count = usize::try_from(count).map_err(|_| INVALID)?;
    for at in 0..count {
        let place = values.nth(at);
        let asked = place.read();
        let known = field(&figures, asked.fieldId, asked.scopeId);
        place.write(nvmlFieldValue_t {
            timestamp: now_us() as i64,
            latencyUsec: 0,
            valueType: nvmlValueType_t::NVML_VALUE_TYPE_UNSIGNED_INT,
            nvmlReturn: match known {
                Some(_) => nvmlReturn_t::NVML_SUCCESS,
                None => nvmlReturn_t::NVML_ERROR_NOT_SUPPORTED,
            },
            value: nvmlValue_t {
                ullVal: u64::from(known.unwrap_or_default()),
            },
            ..asked
        });
    }
    Ok(())
}

/// A field's value, if the stand-in knows it; power is that of the GPU (scope 0) alone.
fn field(figures: &Figures, field: u32, scope: u32) -> Option<u32> {
    match (field, scope) {
        (NVML_FI_DEV_POWER_AVERAGE | NVML_FI_DEV_POWER_INSTANT, 0) => {
            Some(figures.power_usage_mw())
        }
        (
            NVML_FI_DEV_POWER_MIN_LIMIT
            | NVML_FI_DEV_POWER_MAX_LIMIT
            | NVML_FI_DEV_POWER_DEFAULT_LIMIT
            | NVML_FI_DEV_POWER_CURRENT_LIMIT
            | NVML_FI_DEV_POWER_REQUESTED_LIMIT,
            0,
        ) => Some(figures.power_limit_mw()),
        (NVML_FI_DEV_ECC_CURRENT | NVML_FI_DEV_ECC_PENDING, _) => Some(1),
        (
            NVML_FI_DEV_ECC_SBE_VOL_TOTAL
            | NVML_FI_DEV_ECC_DBE_VOL_TOTAL
            | NVML_FI_DEV_ECC_SBE_AGG_TOTAL
            | NVML_FI_DEV_ECC_DBE_AGG_TOTAL
            | NVML_FI_DEV_RETIRED_SBE
            | NVML_FI_DEV_RETIRED_DBE
            | NVML_FI_DEV_RETIRED_PENDING
            | NVML_FI_DEV_PCIE_REPLAY_COUNTER
            | NVML_FI_DEV_REMAPPED_COR
            | NVML_FI_DEV_REMAPPED_UNC
            | NVML_FI_DEV_REMAPPED_PENDING
            | NVML_FI_DEV_REMAPPED_FAILURE,
            _,
        ) => Some(0),
        _ => None,
    }
}

fn figures_of(device: Handle) -> Result<Figures, nvmlReturn_t> {
    Ok(Figures::of(device.resolve()?.description()))
}
