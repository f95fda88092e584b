//! Limits of a context, and the device memory that some of them take.
//!
//! What the limits take at first is part of a context's overhead. Beyond that, the heap and the buffer of
//! `printf` take their size, and stacks theirs for each thread that the device can hold.

use ffi::driver::{CUlimit, CUlimit_enum, CUresult};
use sim::client::Device;

use crate::guard::Answer;
use crate::state::Driver;

/// How many limits there are.
const COUNT: usize = 11;

/// What limits are at first, in the header's order; sizes in bytes.
const DEFAULTS: [usize; COUNT] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0, 0, 0, 0, 0];

/// The limits of one context.
pub(crate) struct Limits {
    values: [usize; COUNT],
    /// What each holds of the device: name of the block. They go with the context.
    blocks: [Option<u64>; COUNT],
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            values: DEFAULTS,
            blocks: [None; COUNT],
        }
    }
}

impl Limits {
    /// A limit's value.
    pub(crate) fn value(&self, limit: CUlimit) -> Answer<usize> {
        Ok(self.values[index(limit)?])
    }

    /// Changes a limit of the context with this number on a device, and what it holds there.
    ///
    /// # Errors
    /// Out of memory: the limit is as it was.
    pub(crate) fn set(
        &mut self,
        driver: &Driver,
        device: &Device,
        context: u64,
        limit: CUlimit,
        value: usize,
    ) -> Answer {
        let index = index(limit)?;
        if limit == CUlimit_enum::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH {
            // Gone since compute capability 9.0.
            return Err(CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT);
        }
        let more = value.saturating_sub(DEFAULTS[index]) as u64;
        let bytes = more.saturating_mul(times(device, limit));
        let wanted = match bytes {
            0 => None,
            _ => Some(driver.link.allocate(device.index, bytes, context)?.id),
        };
        if let Some(former) = std::mem::replace(&mut self.blocks[index], wanted) {
            driver.link.release(device.index, former)?;
        }
        self.values[index] = value;
        Ok(())
    }
}

/// How often a device holds what a limit says; 0 for those that take no memory.
fn times(device: &Device, limit: CUlimit) -> u64 {
    match limit {
        CUlimit_enum::CU_LIMIT_STACK_SIZE => {
            let profile = device.profile;
            u64::from(profile.multiprocessors) * u64::from(profile.threads_per_multiprocessor)
        }
        CUlimit_enum::CU_LIMIT_PRINTF_FIFO_SIZE | CUlimit_enum::CU_LIMIT_MALLOC_HEAP_SIZE => 1,
        _ => 0,
    }
}

fn index(limit: CUlimit) -> Answer<usize> {
    match usize::try_from(limit.0) {
        Ok(index) if index < COUNT => Ok(index),
        _ => Err(CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT),
    }
}
