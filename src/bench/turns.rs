//! Two ways of doing the same, timed in turns in one process, so that whatever else the machine does
//! reaches both.

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Calls of one way, before the other way's turn. Some 100 µs: short beside whatever disturbs.
const BATCH: u32 = 400;

/// What a call costs one way and the other, in nanoseconds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Pair {
    pub(crate) plain_ns: f64,
    pub(crate) sluice_ns: f64,
    /// Median of the differences between neighbouring turns, and its quartiles.
    pub(crate) added_ns: f64,
    pub(crate) added_quartiles_ns: [f64; 2],
    /// What 99 of 100 batches keep.
    pub(crate) plain_p99_ns: f64,
    pub(crate) sluice_p99_ns: f64,
}

/// Times both ways in turns, `rounds` times a batch of each.
pub(crate) fn measure(
    rounds: usize,
    plain: impl FnMut() -> Result<()>,
    sluice: impl FnMut() -> Result<()>,
) -> Result<Pair> {
    measure_between(rounds, plain, sluice, |_| Ok(()))
}

/// As [`measure`], with something done before each batch, which is not timed; it is told whether the batch
/// is of the plain way.
pub(crate) fn measure_between(
    rounds: usize,
    mut plain: impl FnMut() -> Result<()>,
    mut sluice: impl FnMut() -> Result<()>,
    mut before: impl FnMut(bool) -> Result<()>,
) -> Result<Pair> {
    let (mut without, mut with, mut added) = (Vec::new(), Vec::new(), Vec::new());
    // The first tenth only warms up.
    for round in 0..rounds + rounds / 10 {
        before(true)?;
        let one = batch(&mut plain)?;
        before(false)?;
        let other = batch(&mut sluice)?;
        if round >= rounds / 10 {
            without.push(one);
            with.push(other);
            added.push(other - one);
        }
    }
    Ok(Pair {
        plain_ns: quantile(&mut without, 0.5),
        sluice_ns: quantile(&mut with, 0.5),
        added_ns: quantile(&mut added, 0.5),
        added_quartiles_ns: [quantile(&mut added, 0.25), quantile(&mut added, 0.75)],
        plain_p99_ns: quantile(&mut without, 0.99),
        sluice_p99_ns: quantile(&mut with, 0.99),
    })
}

fn batch(once: &mut impl FnMut() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    for _ in 0..BATCH {
        once()?;
    }
    Ok(begin.elapsed().as_nanos() as f64 / f64::from(BATCH))
}

/// The value below which `share` of the values lie, to a tenth; 0 where there are none.
pub(crate) fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len().saturating_sub(1) as f64 * share).round() as usize;
    values
        .get(at)
        .map_or(0.0, |value| (value * 10.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let mut values = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(quantile(&mut values, 0.5), 3.0);
        assert_eq!(quantile(&mut values, 0.25), 2.0);
        assert_eq!(quantile(&mut values, 1.0), 5.0);
        assert_eq!(quantile(&mut [], 0.5), 0.0);
    }
}
