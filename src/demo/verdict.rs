//! What was promised, and whether it held: a pure function of what was seen.

use super::observed::{Observed, Tenant};
use super::shares::{Part, Shares};
use crate::text::{milliseconds, size};
use serde::Serialize;
use serde_json::{Value, json};

/// One promise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Promise {
    /// Its number in the project's list.
    pub(crate) id: &'static str,
    /// Whether it held.
    pub(crate) held: bool,
    /// The figures that say so.
    pub(crate) measured: Value,
    /// The same for people.
    pub(crate) sentence: String,
}

/// Longest time that a dead process's memory, and a daemon's succession, may take.
pub(crate) const WITHIN_MS: u64 = 1000;

/// Judges what was seen.
pub(crate) fn judge(seen: &Observed) -> Vec<Promise> {
    vec![
        never_above_the_cap(seen),
        refused_as_the_driver_refuses(seen),
        given_back(seen),
        every_view_agrees(seen),
        outlives_its_daemon(seen),
        shares_hold(&seen.shares),
        no_time_is_kept_back(&seen.shares),
        requests_stay_prompt(&seen.shares),
        alone_nothing_is_paid(&seen.shares),
    ]
}

/// Largest distance of a saturating tenant's share from its weight, in percentage points, over ten seconds;
/// over less, a turn more or less counts for more.
const SHARE_ERROR_PP: f64 = 1.0;

/// Part of the time in which kernels run, at least, while somebody always has work.
const LEAST_BUSY: f64 = 0.9;

/// A `latency` tenant's p99 beside neighbours with kernels of any length, as a multiple of what it is alone.
const MOST_TIMES_ALONE: f64 = 2.5;

fn shares_hold(seen: &Shares) -> Promise {
    // What the service leaves is divided by weight, which is the guarantee where nobody asked.
    let saturating: Vec<&Part> = seen
        .tenants
        .iter()
        .filter(|part| part.is_saturating())
        .collect();
    let sum = |of: fn(&Part) -> f64| saturating.iter().map(|part| of(part)).sum::<f64>();
    let (promised, measured) = (sum(|part| part.guarantee), sum(|part| part.measured));
    let error_pp = saturating
        .iter()
        .map(|part| (part.measured / measured - part.guarantee / promised).abs() * 100.0)
        .fold(0.0, f64::max);
    // Who has no processor to launch on gets no GPU time either.
    let bound_pp = SHARE_ERROR_PP * (10.0 / seen.seconds.max(0.1)).max(1.0) + seen.unserved * 100.0;
    let each: Vec<String> = saturating
        .iter()
        .map(|part| {
            let (got, owed) = (part.measured / measured, part.guarantee / promised);
            format!("{} {:.1}% of {:.1}%", part.name, got * 100.0, owed * 100.0)
        })
        .collect();
    Promise {
        id: "C1",
        held: saturating.len() > 1 && measured > 0.0 && error_pp <= bound_pp,
        measured: json!({
            "max_error_pp": error_pp,
            "bound_pp": bound_pp,
            "seconds": seen.seconds,
            "without_processor": seen.unserved,
        }),
        sentence: format!(
            "of what the saturating tenants got together: {}; {error_pp:.1} points off (bound for \
             {:.1} s{}: {bound_pp:.1})",
            each.join(", "),
            seen.seconds,
            allowance(seen)
        ),
    }
}

/// Says how much of the time somebody who took part had no processor, where that is worth saying.
fn allowance(seen: &Shares) -> String {
    if seen.unserved < 0.01 {
        return String::new();
    }
    let part = seen.unserved * 100.0;
    format!(", of which {part:.0}% went by waiting for a processor")
}

fn no_time_is_kept_back(seen: &Shares) -> Promise {
    let sum = seen.tenants.iter().map(|part| part.measured).sum::<f64>();
    let busy = seen.busy.unwrap_or(sum);
    let least = (LEAST_BUSY - seen.unserved).max(0.0);
    Promise {
        id: "C2",
        held: busy > 0.0 && busy >= least,
        measured: json!({ "busy": busy, "bound": least, "without_processor": seen.unserved }),
        sentence: format!(
            "kernels ran {:.1}% of the time{} (bound: {:.0}%)",
            busy * 100.0,
            allowance(seen),
            least * 100.0
        ),
    }
}

fn requests_stay_prompt(seen: &Shares) -> Promise {
    let service = seen.tenants.iter().find(|part| !part.is_saturating());
    let both = service.and_then(|part| part.p99_ms_alone.zip(part.p99_ms_shared));
    let (alone, shared) = both.unwrap_or((0.0, 0.0));
    let served = service.and_then(|part| part.served_p99_ms);
    let (served_alone, served_shared) = served.unwrap_or((alone, shared));
    let times = served_shared / served_alone;
    Promise {
        id: "C3",
        held: served_alone > 0.0 && times <= MOST_TIMES_ALONE,
        measured: json!({
            "p99_ms_alone": alone,
            "p99_ms_shared": shared,
            "served_p99_ms_alone": served_alone,
            "served_p99_ms_shared": served_shared,
            "bound_times": MOST_TIMES_ALONE,
        }),
        sentence: format!(
            "99 of 100 requests were answered within {shared:.1} ms beside both, {alone:.1} ms alone: \
             {times:.2} times without what they waited for a processor (bound: {MOST_TIMES_ALONE})"
        ),
    }
}

fn alone_nothing_is_paid(seen: &Shares) -> Promise {
    Promise {
        id: "C4",
        held: seen.tracked_alone == 0 && !seen.tenants.is_empty(),
        measured: json!({ "tracked_launches_alone": seen.tracked_alone }),
        sentence: format!(
            "{} of the service's launches were tracked while it was alone",
            seen.tracked_alone
        ),
    }
}

fn never_above_the_cap(seen: &Observed) -> Promise {
    let is_within = |tenant: &Tenant| {
        tenant
            .peak_bytes
            .max(tenant.hardware_peak_bytes.unwrap_or(0))
            <= tenant.cap_bytes
    };
    let has_used =
        !seen.tenants.is_empty() && seen.tenants.iter().all(|tenant| tenant.peak_bytes > 0);
    let peaks: Vec<String> = seen
        .tenants
        .iter()
        .map(|tenant| {
            let (peak, cap) = (size(tenant.peak_bytes), size(tenant.cap_bytes));
            format!("{} {peak} of {cap}", tenant.name)
        })
        .collect();
    Promise {
        id: "M1",
        held: has_used && seen.tenants.iter().all(is_within),
        measured: by_tenant(seen, |tenant| {
            json!({
                "memory_limit_bytes": tenant.cap_bytes,
                "memory_peak_bytes": tenant.peak_bytes,
                "hardware_peak_bytes": tenant.hardware_peak_bytes,
            })
        }),
        sentence: format!("most that each tenant ever held: {}", peaks.join(", ")),
    }
}

fn refused_as_the_driver_refuses(seen: &Observed) -> Promise {
    let sum = |of: fn(&Tenant) -> u64| seen.tenants.iter().map(of).sum::<u64>();
    let refusals = sum(|tenant| tenant.refusals);
    let unclean = sum(|tenant| tenant.unclean_refusals);
    let retries = sum(|tenant| tenant.retries);
    let undisturbed = sum(|tenant| {
        if tenant.refusals == 0 {
            tenant.rounds
        } else {
            0
        }
    });
    let troubles: Vec<&String> = seen
        .tenants
        .iter()
        .flat_map(|tenant| &tenant.troubles)
        .collect();
    let mut sentence = format!(
        "{refusals} requests over the cap got the driver's own out-of-memory error, {retries} retries \
         after a free went through, {undisturbed} rounds of the neighbours went on undisturbed"
    );
    if unclean > 0 {
        sentence += &format!("; {unclean} refusals changed something or had another code");
    }
    if let Some(trouble) = troubles.first() {
        sentence += &format!(
            "; {} calls went wrong, the first: {trouble}",
            troubles.len()
        );
    }
    Promise {
        id: "M2",
        // The last refusal's retry may not have been heard of.
        held: refusals > 0
            && retries + 1 >= refusals
            && unclean == 0
            && undisturbed > 0
            && troubles.is_empty(),
        measured: json!({
            "refusals": refusals,
            "unclean_refusals": unclean,
            "retries": retries,
            "neighbour_rounds": undisturbed,
            "troubles": troubles,
        }),
        sentence,
    }
}

fn given_back(seen: &Observed) -> Promise {
    let deaths: Vec<(u64, u64)> = seen
        .tenants
        .iter()
        .flat_map(|tenant| tenant.gave_back.iter().copied())
        .collect();
    let slowest = deaths.iter().map(|(_, us)| *us).max();
    let bytes = deaths.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
    let is_clear = seen.left_bytes.unwrap_or(0) == 0;
    let mut sentence = match slowest {
        Some(us) => format!(
            "{} processes were killed while they held {}; it was usable again within {} ms (bound: \
             {WITHIN_MS} ms)",
            deaths.len(),
            size(bytes),
            milliseconds(us)
        ),
        None => "no killed process's memory came back".to_owned(),
    };
    if !is_clear {
        let left = size(seen.left_bytes.unwrap_or(0));
        sentence += &format!("; at the end {left} were left on the device");
    }
    Promise {
        id: "M3",
        held: slowest.is_some_and(|us| us <= WITHIN_MS * 1000) && is_clear,
        measured: json!({
            "kills": deaths.len(),
            "bytes": bytes,
            "slowest_us": slowest,
            "bound_ms": WITHIN_MS,
            "left_bytes": seen.left_bytes,
        }),
        sentence,
    }
}

fn every_view_agrees(seen: &Observed) -> Promise {
    let sees_its_cap = |tenant: &Tenant| {
        !tenant.saw_otherwise && tenant.view.is_some_and(|view| view.is(tenant.cap_bytes))
    };
    let wrong: Vec<&str> = seen
        .tenants
        .iter()
        .filter(|tenant| !sees_its_cap(tenant))
        .map(|tenant| tenant.name)
        .collect();
    let sentence = if wrong.is_empty() {
        "cuMemGetInfo, cuDeviceTotalMem and NVML showed each tenant its cap as the size of the GPU, in \
         every round"
            .to_owned()
    } else {
        format!("not every interface showed the cap to {}", wrong.join(", "))
    };
    Promise {
        id: "M4",
        held: wrong.is_empty() && !seen.tenants.is_empty(),
        measured: by_tenant(seen, |tenant| {
            json!({
                "memory_limit_bytes": tenant.cap_bytes,
                "seen": tenant.view,
                "saw_otherwise": tenant.saw_otherwise,
            })
        }),
        sentence,
    }
}

fn outlives_its_daemon(seen: &Observed) -> Promise {
    let restart = seen.restart;
    let over = match restart.taken_over_ms {
        Some(ms) => format!(
            "the next one had taken over every tenant after {ms} ms (bound: {WITHIN_MS} ms)"
        ),
        None if restart.happened => "the next one did not take over every tenant".to_owned(),
        None => "it was not replaced".to_owned(),
    };
    Promise {
        id: "R1",
        held: restart.rounds_without > 0
            && restart.refusals_without > 0
            && restart.taken_over_ms.is_some_and(|ms| ms <= WITHIN_MS),
        measured: json!({
            "rounds_without_daemon": restart.rounds_without,
            "refusals_without_daemon": restart.refusals_without,
            "taken_over_ms": restart.taken_over_ms,
            "bound_ms": WITHIN_MS,
        }),
        sentence: format!(
            "the daemon was killed; without it the tenants went on for {} rounds and {} requests over \
             a cap were refused; {over}",
            restart.rounds_without, restart.refusals_without
        ),
    }
}

fn by_tenant(seen: &Observed, of: impl Fn(&Tenant) -> Value) -> Value {
    seen.tenants
        .iter()
        .map(|tenant| (tenant.name.to_owned(), of(tenant)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::event::View;
    use super::super::observed::Restart;
    use super::*;

    const CAP: u64 = 1 << 30;

    fn view(bytes: u64) -> Option<View> {
        Some(View {
            device_total_bytes: bytes,
            info_total_bytes: bytes,
            nvml_total_bytes: bytes,
        })
    }

    fn good() -> Observed {
        let tenant = Tenant {
            peak_bytes: CAP,
            view: view(CAP),
            rounds: 10,
            ..Tenant::new("calm", CAP)
        };
        let greedy = Tenant {
            refusals: 3,
            retries: 3,
            gave_back: vec![(CAP / 2, 12_000)],
            ..Tenant {
                name: "greedy",
                ..tenant.clone()
            }
        };
        Observed {
            tenants: vec![tenant, greedy],
            restart: Restart {
                happened: true,
                taken_over_ms: Some(80),
                rounds_without: 4,
                refusals_without: 1,
            },
            left_bytes: Some(0),
            shares: Shares {
                tenants: vec![
                    Part {
                        guarantee: 0.3,
                        measured: 0.1,
                        wanted: Some(0.1),
                        p99_ms_alone: Some(5.0),
                        p99_ms_shared: Some(6.0),
                        ..Part::default()
                    },
                    Part {
                        guarantee: 0.4,
                        measured: 0.56,
                        ..Part::default()
                    },
                    Part {
                        guarantee: 0.2,
                        measured: 0.28,
                        ..Part::default()
                    },
                ],
                busy: Some(0.94),
                seconds: 10.0,
                unserved: 0.0,
                tracked_alone: 0,
            },
        }
    }

    fn broken(spoil: impl FnOnce(&mut Observed)) -> Vec<&'static str> {
        let mut seen = good();
        spoil(&mut seen);
        let promises = judge(&seen);
        promises
            .iter()
            .filter(|promise| !promise.held)
            .map(|promise| promise.id)
            .collect()
    }

    #[test]
    fn a_good_run_breaks_no_promise() {
        assert_eq!(broken(|_| ()), [""; 0]);
    }

    #[test]
    fn each_promise_is_broken_by_what_breaks_it_and_by_nothing_else() {
        assert_eq!(broken(|seen| seen.tenants[0].peak_bytes = CAP + 1), ["M1"]);
        assert_eq!(
            broken(|seen| seen.tenants[0].hardware_peak_bytes = Some(CAP + 1)),
            ["M1"]
        );
        assert_eq!(broken(|seen| seen.tenants[0].peak_bytes = 0), ["M1"]);
        assert_eq!(broken(|seen| seen.tenants[1].unclean_refusals = 1), ["M2"]);
        assert_eq!(broken(|seen| seen.tenants[1].retries = 1), ["M2"]);
        assert_eq!(
            broken(|seen| seen.tenants[0].troubles.push("a".to_owned())),
            ["M2"]
        );
        assert_eq!(broken(|seen| seen.tenants[0].rounds = 0), ["M2"]);
        assert_eq!(
            broken(|seen| seen.tenants[1].gave_back[0].1 = 1_000_001),
            ["M3"]
        );
        assert_eq!(broken(|seen| seen.tenants[1].gave_back.clear()), ["M3"]);
        assert_eq!(broken(|seen| seen.left_bytes = Some(1)), ["M3"]);
        assert_eq!(broken(|seen| seen.tenants[1].view = view(CAP - 1)), ["M4"]);
        assert_eq!(broken(|seen| seen.tenants[1].view = None), ["M4"]);
        assert_eq!(broken(|seen| seen.tenants[1].saw_otherwise = true), ["M4"]);
        assert_eq!(broken(|seen| seen.restart.taken_over_ms = None), ["R1"]);
        assert_eq!(broken(|seen| seen.restart.refusals_without = 0), ["R1"]);
        assert_eq!(
            broken(|seen| seen.shares.tenants[2].measured = 0.31),
            ["C1"]
        );
        assert_eq!(broken(|seen| seen.shares.busy = Some(0.8)), ["C2"]);
        assert_eq!(
            broken(|seen| seen.shares.tenants[0].p99_ms_shared = Some(13.0)),
            ["C3"]
        );
        assert_eq!(broken(|seen| seen.shares.tracked_alone = 1), ["C4"]);
    }

    #[test]
    fn what_a_busy_machine_kept_from_everybody_is_no_broken_promise() {
        let busy = |seen: &mut Observed| {
            seen.shares.unserved = 0.2;
            seen.shares.busy = Some(0.75);
            seen.shares.tenants[2].measured = 0.4;
            seen.shares.tenants[0].p99_ms_shared = Some(40.0);
            seen.shares.tenants[0].served_p99_ms = Some((4.8, 7.0));
        };
        assert_eq!(broken(busy), [""; 0]);
        let beyond = |seen: &mut Observed| {
            busy(seen);
            seen.shares.busy = Some(0.65);
            seen.shares.tenants[2].measured = 0.9;
            seen.shares.tenants[0].served_p99_ms = Some((4.8, 13.0));
        };
        assert_eq!(broken(beyond), ["C1", "C2", "C3"]);
    }

    #[test]
    fn nothing_seen_is_nothing_kept() {
        assert!(
            judge(&Observed::default())
                .iter()
                .all(|promise| !promise.held)
        );
    }
}
