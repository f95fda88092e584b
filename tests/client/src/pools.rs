//! Steps of stream-ordered allocation, all on the default stream.

use crate::answer::Answer;
use crate::memory::{alloc, call};
use crate::steps::{Stepper, number};

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
const RELEASE_THRESHOLD: u64 = 4;
/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED_CURRENT: u64 = 5;

/// `CUmemPoolProps`: what a pool is made of. 88 bytes.
#[repr(C)]
#[derive(Debug, Default)]
struct PoolProps {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location_id: i32,
    rest: [u64; 9],
}

/// Does one step of this family.
pub(crate) fn step(stepper: &mut Stepper, words: &[&str]) -> Result<Answer, String> {
    match words {
        ["pool-create", name, device] => {
            let props = PoolProps {
                kind: 1,
                location_kind: 1,
                location_id: number(device)? as i32,
                ..PoolProps::default()
            };
            alloc(stepper, "cuMemPoolCreate", name, &[&raw const props as u64])
        }
        ["pool-current", name, device] => {
            alloc(stepper, "cuDeviceGetMemPool", name, &[number(device)?])
        }
        ["pool-destroy", name] => call(stepper, "cuMemPoolDestroy", name, &[]),
        ["pool-trim", name, keep] => call(stepper, "cuMemPoolTrimTo", name, &[number(keep)?]),
        ["pool-keep-all", name] => {
            let all = u64::MAX;
            let words = [RELEASE_THRESHOLD, &raw const all as u64];
            call(stepper, "cuMemPoolSetAttribute", name, &words)
        }
        ["pool-reserved", name] => {
            let mut bytes = 0u64;
            let words = [RESERVED_CURRENT, &raw mut bytes as u64];
            let answer = call(stepper, "cuMemPoolGetAttribute", name, &words)?;
            Ok(answer.number("bytes", bytes))
        }
        ["pool-alloc", name, bytes] => {
            alloc(stepper, "cuMemAllocAsync", name, &[number(bytes)?, 0])
        }
        ["pool-alloc", name, bytes, pool] => {
            let pool = stepper.value(pool)?;
            let words = [number(bytes)?, pool, 0];
            alloc(stepper, "cuMemAllocFromPoolAsync", name, &words)
        }
        ["pool-free", name] => call(stepper, "cuMemFreeAsync", name, &[0]),
        // So many rounds of allocation and free, synchronised every sixteenth time.
        ["pool-churn", rounds, sizes @ ..] => churn(stepper, number(rounds)?, sizes),
        _ => Err("no such step".into()),
    }
}

fn churn(stepper: &mut Stepper, rounds: u64, sizes: &[&str]) -> Result<Answer, String> {
    let mut refused = 0u64;
    for (round, size) in (0..rounds).zip(sizes.iter().cycle()) {
        stepper.values.remove("churned");
        alloc(stepper, "cuMemAllocAsync", "churned", &[number(size)?, 0])?;
        if stepper.values.contains_key("churned") {
            call(stepper, "cuMemFreeAsync", "churned", &[0])?;
        } else {
            refused += 1;
        }
        if round % 16 == 15 {
            stepper.driver()?.call("cuStreamSynchronize", &[0]);
        }
    }
    stepper.driver()?.call("cuStreamSynchronize", &[0]);
    Ok(Answer::code(Some(0)).number("refused", refused))
}
