//! System V on x86-64: integer arguments in rdi, rsi, rdx, rcx, r8, r9, floating ones in xmm0-7, the
//! count of the latter in al for variadic functions; r10 and r11 are free at a call.

/// Loads the slot of symbol `$index` and jumps to it; an empty one goes to `$resolver` with the
/// symbol's ordinal in r11.
macro_rules! jump_to_slot {
    ($library:expr, $index:literal, $resolver:path) => {
        core::arch::naked_asm!(
            "mov r11, qword ptr [rip + {table} + {offset}]",
            "test r11, r11",
            "jz 2f",
            "jmp r11",
            "2:",
            "mov r11d, {ordinal}",
            "jmp {resolver}",
            table = sym crate::real::TABLE,
            offset = const (8 * crate::real::ordinal($library, $index)) as i32,
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
            "mov r11, qword ptr [rip + {control}]",
            "test r11, r11",
            "jz 2f",
            "cmp dword ptr [r11 + {gated}], 0",
            "jne 2f",
            "mov r11, qword ptr [rip + {table} + {offset}]",
            "test r11, r11",
            "jz 2f",
            "jmp r11",
            "2:",
            "jmp {hook}",
            control = sym crate::session::CONTROL,
            gated = const core::mem::offset_of!(ffi::wire::ControlPage, gated),
            table = sym crate::real::TABLE,
            offset = const (8 * $ordinal) as i32,
            hook = sym $hook,
        )
    };
}

/// Calls `$resolve` with the ordinal from r11 and jumps to what it returns, with the argument registers
/// as they were.
macro_rules! jump_through_resolver {
    ($resolve:path) => {
        core::arch::naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            "and rsp, -16",
            "sub rsp, 192",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "mov [rsp + 48], rax",
            "movaps [rsp + 64], xmm0",
            "movaps [rsp + 80], xmm1",
            "movaps [rsp + 96], xmm2",
            "movaps [rsp + 112], xmm3",
            "movaps [rsp + 128], xmm4",
            "movaps [rsp + 144], xmm5",
            "movaps [rsp + 160], xmm6",
            "movaps [rsp + 176], xmm7",
            "mov edi, r11d",
            "call {resolve}",
            "mov r11, rax",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "mov rax, [rsp + 48]",
            "movaps xmm0, [rsp + 64]",
            "movaps xmm1, [rsp + 80]",
            "movaps xmm2, [rsp + 96]",
            "movaps xmm3, [rsp + 112]",
            "movaps xmm4, [rsp + 128]",
            "movaps xmm5, [rsp + 144]",
            "movaps xmm6, [rsp + 160]",
            "movaps xmm7, [rsp + 176]",
            "leave",
            "jmp r11",
            resolve = sym $resolve,
        )
    };
}

pub(crate) use jump_unless_gated;
pub(super) use {jump_through_resolver, jump_to_slot};
