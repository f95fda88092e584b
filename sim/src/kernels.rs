//! How long a kernel runs on the stand-in, and the kernels whose running time their caller chooses.

/// Entries whose name begins so take the nanoseconds that they run from their first parameter, a
/// `u64`.
pub const SPIN_PREFIX: &str = "spin_ns";

/// PTX of `spin_ns(u64 nanoseconds)`: right on a real GPU, and known by name to the stand-in.
///
/// Each thread reads the global timer until the time is over; the grid's size does not matter as
/// long as it is resident at once. The timer advances in steps of up to about a microsecond.
/// Source: PTX ISA, special registers, `%globaltimer`.
pub const SPIN_PTX: &str = "\
.version 6.4
.target sm_52
.address_size 64

.visible .entry spin_ns(
    .param .u64 spin_ns_param_0
)
{
    .reg .pred %p<2>;
    .reg .b64 %rd<5>;

    ld.param.u64 %rd1, [spin_ns_param_0];
    mov.u64 %rd2, %globaltimer;
$again:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra $again;
    ret;
}
";

/// Entries whose name begins so run until a word in memory has a value: address, a `u64`, and value, a
/// `u32`.
pub const UNTIL_PREFIX: &str = "spin_until";

/// PTX of `spin_until(u64 address, u32 value)`: right on a real GPU, and known by name to the stand-in.
///
/// Each thread reads the word until it is at least the value, in the cyclic sense of a stream's wait
/// (`CU_STREAM_WAIT_VALUE_GEQ`). Who sets it is somebody else: another stream, the host, another process.
/// A volatile load is never cached and sees the host's stores. Source: PTX ISA, `ld.volatile`.
pub const UNTIL_PTX: &str = "\
.version 6.4
.target sm_52
.address_size 64

.visible .entry spin_until(
    .param .u64 spin_until_param_0,
    .param .u32 spin_until_param_1
)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;

    ld.param.u64 %rd1, [spin_until_param_0];
    ld.param.u32 %r1, [spin_until_param_1];
    cvta.to.global.u64 %rd2, %rd1;
$again:
    ld.volatile.global.u32 %r2, [%rd2];
    sub.s32 %r3, %r2, %r1;
    setp.lt.s32 %p1, %r3, 0;
    @%p1 bra $again;
    ret;
}
";

/// What a kernel costs before its first block runs.
///
/// 2 µs: the order of an empty kernel's running time on data-centre GPUs.
pub const KERNEL_BASE_NS: u64 = 2_000;

/// What one wave of blocks (as many as the device holds at once) costs.
///
/// 5 µs: long enough that a large grid is seen to be longer, short enough that tests stay quick.
pub const KERNEL_WAVE_NS: u64 = 5_000;

/// Threads in a warp, on every device that there has been.
pub const WARP_THREADS: u64 = 32;

/// Warps that `blocks` blocks of `threads` threads occupy.
pub fn warps(blocks: u64, threads: u64) -> u64 {
    blocks.saturating_mul(threads.div_ceil(WARP_THREADS))
}

/// Running time, in nanoseconds, of a kernel that is not a spin kernel: a base plus a step for each
/// wave of `capacity` warps that its `warps` need.
pub fn cost_ns(warps: u64, capacity: u64) -> u64 {
    let waves = warps.div_ceil(capacity.max(1));
    KERNEL_BASE_NS.saturating_add(waves.saturating_mul(KERNEL_WAVE_NS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_grid_never_takes_less_time() {
        let mut last = 0;
        for blocks in [1, 8, 64, 512, 4096, 1 << 20, u64::MAX] {
            let cost = cost_ns(warps(blocks, 256), 512);
            assert!(cost >= last);
            last = cost;
        }
    }
}
