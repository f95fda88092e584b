//! Linking of device code: images go in, one image comes out.
//!
//! Nothing is compiled, so what is linked are the names: what comes out is PTX text that declares every
//! kernel and variable of what went in, with the parameters' places. Symbols that nobody defines are not
//! missed; one that is defined twice is refused.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_uint, c_void};
use std::fmt::Write as _;
use std::sync::Arc;

use ffi::driver::{
    CUjit_option, CUjitInputType, CUjitInputType_enum as Input, CUlinkState, CUresult,
};
use parking_lot::Mutex;

use crate::guard::{Answer, INVALID_VALUE, Out, text};
use crate::image::{self, Entry, Image, Variable};
use crate::state::{self, driver};

/// A link that is going on.
#[derive(Default)]
pub(crate) struct Linker(Mutex<State>);

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    variables: Vec<Variable>,
    /// What came out; it lives as long as the state.
    done: Option<CString>,
}

impl State {
    /// Adds what an image contains: all of it, or nothing.
    fn add(&mut self, image: Image) -> Answer {
        // A part that could not be read cannot be written either.
        if image.is_opaque || self.done.is_some() {
            return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
        }
        let entries = self.entries.iter().map(|it| it.name.as_str());
        let variables = self.variables.iter().map(|it| it.name.as_str());
        let known: BTreeSet<&str> = entries.chain(variables).collect();
        let new_entries = image.entries.iter().map(|it| it.name.as_str());
        let new_variables = image.variables.iter().map(|it| it.name.as_str());
        if new_entries
            .chain(new_variables)
            .any(|name| known.contains(name))
        {
            return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
        }
        self.entries.extend(image.entries);
        self.variables.extend(image.variables);
        Ok(())
    }

    fn to_text(&self) -> String {
        let mut text = String::from(".version 6.4\n.target sm_52\n.address_size 64\n");
        for variable in &self.variables {
            let (name, bytes) = (&variable.name, variable.bytes);
            let _ = writeln!(text, ".visible .global .align 8 .b8 {name}[{bytes}];");
        }
        for entry in &self.entries {
            let _ = write!(text, ".visible .entry {}(", entry.name);
            for (index, (offset, bytes)) in entry.parameters.iter().enumerate() {
                let comma = if index == 0 { "" } else { ", " };
                // The largest that keeps it in its place: what is in front ends at or before it.
                let align = match offset.trailing_zeros().min(4) {
                    _ if *offset == 0 => 8,
                    zeros => 1 << zeros,
                };
                let _ = match bytes {
                    1 | 2 | 4 | 8 if align >= *bytes => {
                        write!(text, "{comma}.param .b{} p{index}", bytes * 8)
                    }
                    _ => write!(text, "{comma}.param .align {align} .b8 p{index}[{bytes}]"),
                };
            }
            text.push_str(")\n{\n    ret;\n}\n");
        }
        text
    }
}

fn find(handle: CUlinkState) -> Answer<Arc<Linker>> {
    let found = driver()?.linkers.find(handle);
    found.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// Options are the compiler's: they are taken and change nothing.
fn check_options(
    count: c_uint,
    options: *const CUjit_option,
    values: *const *mut c_void,
) -> Answer {
    if count > 0 && (options.is_null() || values.is_null()) {
        return Err(INVALID_VALUE);
    }
    Ok(())
}

fn create(
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
    out: *mut CUlinkState,
) -> Answer {
    let out = Out::claim(out)?;
    check_options(count, options, values)?;
    state::current()?;
    out.write(driver()?.linkers.add(Arc::new(Linker::default())));
    Ok(())
}

fn add(handle: CUlinkState, kind: CUjitInputType, bytes: &[u8]) -> Answer {
    let linker = find(handle)?;
    let refused = match kind {
        Input::CU_JIT_INPUT_PTX => CUresult::CUDA_ERROR_INVALID_PTX,
        Input::CU_JIT_INPUT_CUBIN | Input::CU_JIT_INPUT_FATBINARY => {
            CUresult::CUDA_ERROR_INVALID_IMAGE
        }
        // Host objects, libraries of them, and code of a compiler's own.
        Input::CU_JIT_INPUT_OBJECT | Input::CU_JIT_INPUT_LIBRARY | Input::CU_JIT_INPUT_NVVM => {
            return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
        }
        _ => return Err(INVALID_VALUE),
    };
    let image = image::read(bytes).ok_or(refused)?;
    linker.0.lock().add(image)
}

#[allow(
    clippy::too_many_arguments,
    reason = "the arguments are the driver API's"
)]
fn add_data(
    handle: CUlinkState,
    kind: CUjitInputType,
    data: *mut c_void,
    size: usize,
    _name: *const c_char,
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> Answer {
    check_options(count, options, values)?;
    if data.is_null() || size == 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null; that so many bytes lie there is the caller's duty by the CUDA contract.
    let bytes = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) };
    add(handle, kind, bytes)
}

fn add_file(
    handle: CUlinkState,
    kind: CUjitInputType,
    path: *const c_char,
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> Answer {
    check_options(count, options, values)?;
    let bytes = std::fs::read(text(path)?).map_err(|_| CUresult::CUDA_ERROR_FILE_NOT_FOUND)?;
    add(handle, kind, &bytes)
}

fn complete(handle: CUlinkState, out: *mut *mut c_void, size: *mut usize) -> Answer {
    let (out, size) = (Out::claim(out)?, Out::claim_optional(size)?);
    let linker = find(handle)?;
    let mut state = linker.0.lock();
    if state.done.is_none() {
        let text = CString::new(state.to_text()).map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
        state.done = Some(text);
    }
    let done = state.done.as_ref().ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
    out.write(done.as_ptr().cast_mut().cast());
    if let Some(size) = size {
        size.write(done.as_bytes_with_nul().len());
    }
    Ok(())
}

fn destroy(handle: CUlinkState) -> Answer {
    let gone = driver()?.linkers.remove(handle);
    gone.map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

driver! {
    cuLinkCreate(num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void, state_out: *mut CUlinkState) => create;
    cuLinkCreate_v2(num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void, state_out: *mut CUlinkState) => create;
    cuLinkAddData(state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char, num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void) => add_data;
    cuLinkAddData_v2(state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char, num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void) => add_data;
    cuLinkAddFile(state: CUlinkState, kind: CUjitInputType, path: *const c_char, num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void) => add_file;
    cuLinkAddFile_v2(state: CUlinkState, kind: CUjitInputType, path: *const c_char, num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void) => add_file;
    cuLinkComplete(state: CUlinkState, cubin_out: *mut *mut c_void, size_out: *mut usize) => complete;
    cuLinkDestroy(state: CUlinkState) => destroy;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_out_reads_as_what_went_in() {
        let texts = [
            sim::kernels::SPIN_PTX.to_owned(),
            ".version 6.4
             .visible .global .align 4 .u32 counters[10];
             .visible .entry mixed(.param .u8 a, .param .u16 b, .param .align 16 .b8 c[48], .param .u32 d,
                .param .u64 e) { ret; }"
                .to_owned(),
        ];
        let mut state = State::default();
        for text in &texts {
            state.add(image::read(text.as_bytes()).unwrap()).unwrap();
        }
        let out = image::read(state.to_text().as_bytes()).unwrap();
        assert_eq!(out.entries, state.entries);
        assert_eq!(out.variables, state.variables);
        assert_eq!(out.entries.len(), 2);
        let again = image::read(texts[1].as_bytes()).unwrap();
        assert!(state.add(again).is_err(), "defined twice");
        assert_eq!(state.entries.len(), 2);
    }
}
