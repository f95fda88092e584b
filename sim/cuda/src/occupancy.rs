//! How many blocks of a kernel a multiprocessor holds, from the device's limits and what every
//! kernel of the stand-in needs.

use std::ffi::{c_int, c_uint};

use ffi::driver::{CUfunction, CUlaunchConfig, CUoccupancyB2DSize};
use sim::profile::Profile;

use crate::device::{MAX_BLOCK_THREADS, REGISTERS, blocks_per_multiprocessor};
use crate::guard::{Answer, INVALID_VALUE, Out, put, take};
use crate::module::{REGISTERS_PER_THREAD, find_function};
use crate::state::{self, driver};

/// Blocks of `threads` threads and `shared` bytes that a multiprocessor holds at once.
fn resident(profile: &Profile, threads: u32, shared: u64) -> u32 {
    let threads = threads.next_multiple_of(32).max(32);
    let by_threads = profile.threads_per_multiprocessor / threads;
    let by_registers = REGISTERS / (threads * REGISTERS_PER_THREAD as u32);
    let by_shared = u64::from(profile.shared_bytes)
        .checked_div(shared)
        .and_then(|blocks| u32::try_from(blocks).ok())
        .unwrap_or(u32::MAX);
    by_threads
        .min(by_registers)
        .min(by_shared)
        .min(blocks_per_multiprocessor(profile))
}

fn profile() -> Answer<&'static Profile> {
    Ok(driver()?.devices[state::current()?.device].info.profile)
}

fn max_active_blocks(
    out: *mut c_int,
    function: CUfunction,
    threads: c_int,
    shared: usize,
) -> Answer {
    let out = Out::claim(out)?;
    find_function(driver()?, function)?;
    let threads = u32::try_from(threads).map_err(|_| INVALID_VALUE)?;
    if !(1..=MAX_BLOCK_THREADS).contains(&threads) {
        return Err(INVALID_VALUE);
    }
    out.write(resident(profile()?, threads, shared as u64) as c_int);
    Ok(())
}

/// The largest block that keeps the multiprocessor full.
fn potential_block_size(
    min_grid: *mut c_int,
    block: *mut c_int,
    function: CUfunction,
    shared_of: CUoccupancyB2DSize,
    shared: usize,
    limit: c_int,
) -> Answer {
    let (min_grid, block) = (Out::claim(min_grid)?, Out::claim(block)?);
    find_function(driver()?, function)?;
    let profile = profile()?;
    let limit = match u32::try_from(limit) {
        Ok(limit) if limit > 0 => limit.min(MAX_BLOCK_THREADS),
        _ => MAX_BLOCK_THREADS,
    };
    let mut best = (0, 32, 0);
    for threads in (32..=limit.max(32)).step_by(32) {
        let shared = match shared_of {
            // SAFETY: the host gave the function to be asked for any number of threads.
            Some(shared_of) => unsafe { shared_of(threads as c_int) },
            None => shared,
        };
        let blocks = resident(profile, threads, shared as u64);
        if blocks * threads >= best.0 {
            best = (blocks * threads, threads, blocks);
        }
    }
    min_grid.write((best.2 * profile.multiprocessors) as c_int);
    block.write(best.1 as c_int);
    Ok(())
}

fn available_shared(
    out: *mut usize,
    function: CUfunction,
    blocks: c_int,
    _threads: c_int,
) -> Answer {
    find_function(driver()?, function)?;
    let blocks = usize::try_from(blocks).unwrap_or(0);
    let shared = profile()?.shared_bytes as usize;
    put(out, shared.checked_div(blocks).ok_or(INVALID_VALUE)?)
}

fn potential_cluster(
    out: *mut c_int,
    function: CUfunction,
    _config: *const CUlaunchConfig,
) -> Answer {
    find_function(driver()?, function)?;
    put(out, if profile()?.major >= 9 { 8 } else { 1 })
}

fn active_clusters(out: *mut c_int, function: CUfunction, config: *const CUlaunchConfig) -> Answer {
    find_function(driver()?, function)?;
    let config = take(config)?;
    let threads = config.blockDimX * config.blockDimY * config.blockDimZ;
    let profile = profile()?;
    let blocks = resident(profile, threads, u64::from(config.sharedMemBytes));
    put(out, (blocks * profile.multiprocessors) as c_int)
}

/// Flags choose between caching and sharing, which the stand-in does not tell apart.
fn check_flags(flags: c_uint) -> Answer {
    if flags > 1 {
        Err(INVALID_VALUE)
    } else {
        Ok(())
    }
}

driver! {
    cuOccupancyMaxActiveBlocksPerMultiprocessor(num_blocks: *mut c_int, func: CUfunction, block_size: c_int, dynamic_s_mem_size: usize) => max_active_blocks;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(num_blocks: *mut c_int, func: CUfunction, block_size: c_int, dynamic_s_mem_size: usize, flags: c_uint) => |out, function, threads, shared, flags| {
        check_flags(flags)?;
        max_active_blocks(out, function, threads, shared)
    };
    cuOccupancyMaxPotentialBlockSize(min_grid_size: *mut c_int, block_size: *mut c_int, func: CUfunction, block_size_to_dynamic_s_mem_size: CUoccupancyB2DSize, dynamic_s_mem_size: usize, block_size_limit: c_int) => potential_block_size;
    cuOccupancyMaxPotentialBlockSizeWithFlags(min_grid_size: *mut c_int, block_size: *mut c_int, func: CUfunction, block_size_to_dynamic_s_mem_size: CUoccupancyB2DSize, dynamic_s_mem_size: usize, block_size_limit: c_int, flags: c_uint) => |grid, block, function, shared_of, shared, limit, flags| {
        check_flags(flags)?;
        potential_block_size(grid, block, function, shared_of, shared, limit)
    };
    cuOccupancyAvailableDynamicSMemPerBlock(dynamic_smem_size: *mut usize, func: CUfunction, num_blocks: c_int, block_size: c_int) => available_shared;
    cuOccupancyMaxPotentialClusterSize(cluster_size: *mut c_int, func: CUfunction, config: *const CUlaunchConfig) => potential_cluster;
    cuOccupancyMaxActiveClusters(num_clusters: *mut c_int, func: CUfunction, config: *const CUlaunchConfig) => active_clusters;
}
