//! AAPCS64: integer arguments in x0-x7, the indirect result in x8, floating ones in v0-v7; x16 and x17
//! are free at a call.

/// Loads the slot of symbol `$index` and jumps to it; an empty one goes to `$resolver` with the
/// symbol's ordinal in x17.
macro_rules! jump_to_slot {
    ($library:expr, $index:literal, $resolver:path) => {
        core::arch::naked_asm!(
            "adrp x16, {table}",
            "add x16, x16, :lo12:{table}",
            "mov x17, #{ordinal}",
            "ldr x16, [x16, x17, lsl #3]",
            "cbz x16, 2f",
            "br x16",
            "2:",
            "b {resolver}",
            table = sym crate::real::TABLE,
            ordinal = const crate::real::ordinal($library, $index) as i32,
            resolver = sym $resolver,
        )
    };
}

/// Jumps to the real function of `$ordinal` where nothing is shared, else to `$hook`, which also knows what to do
/// before anything is known.
///
/// Arguments stay where they are, also those on the stack.
macro_rules! jump_unless_gated {
    ($ordinal:expr, $hook:path) => {
        core::arch::naked_asm!(
            "adrp x16, {control}",
            "add x16, x16, :lo12:{control}",
            "ldar x16, [x16]",
            "cbz x16, 2f",
            "ldr w16, [x16, #{gated}]",
            "cbnz w16, 2f",
            "adrp x16, {table}",
            "add x16, x16, :lo12:{table}",
            "mov x17, #{ordinal}",
            "ldr x16, [x16, x17, lsl #3]",
            "cbz x16, 2f",
            "br x16",
            "2:",
            "b {hook}",
            control = sym crate::session::CONTROL,
            gated = const core::mem::offset_of!(ffi::wire::ControlPage, gated),
            table = sym crate::real::TABLE,
            ordinal = const $ordinal as i32,
            hook = sym $hook,
        )
    };
}

/// Calls `$resolve` with the ordinal from x17 and jumps to what it returns, with the argument registers
/// as they were.
macro_rules! jump_through_resolver {
    ($resolve:path) => {
        core::arch::naked_asm!(
            "stp x29, x30, [sp, #-224]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "str x8, [sp, #80]",
            "stp q0, q1, [sp, #96]",
            "stp q2, q3, [sp, #128]",
            "stp q4, q5, [sp, #160]",
            "stp q6, q7, [sp, #192]",
            "mov x0, x17",
            "bl {resolve}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldr x8, [sp, #80]",
            "ldp q0, q1, [sp, #96]",
            "ldp q2, q3, [sp, #128]",
            "ldp q4, q5, [sp, #160]",
            "ldp q6, q7, [sp, #192]",
            "ldp x29, x30, [sp], #224",
            "br x16",
            resolve = sym $resolve,
        )
    };
}

pub(crate) use jump_unless_gated;
pub(super) use {jump_through_resolver, jump_to_slot};
