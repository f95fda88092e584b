//! Steps that share memory between processes.

use crate::answer::Answer;
use crate::memory::{alloc, call};
use crate::steps::{POISON, Stepper, number};
use ffi::driver::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUdeviceptr,
    CUexternalMemoryHandleType_enum, CUipcMemHandle, CUresult,
};
use std::ffi::{c_char, c_uint};
use std::os::fd::IntoRawFd;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const POSIX_FILE: u64 = 1;

/// `cuIpcOpenMemHandle`: the only function that takes a structure by value.
type Open = unsafe extern "C" fn(*mut CUdeviceptr, CUipcMemHandle, c_uint) -> CUresult;

/// Does one step of this family.
pub(crate) fn step(stepper: &mut Stepper, words: &[&str]) -> Result<Answer, String> {
    match words {
        // `CUmemAllocationProp`: pinned, for descriptors, on device 0.
        ["share-create", name, bytes] => {
            let prop = [1 | POSIX_FILE << 32, 1u64, 0, 0];
            let words = [number(bytes)?, prop.as_ptr() as u64, 0];
            alloc(stepper, "cuMemCreate", name, &words)
        }
        ["share-export", name, handle] => {
            let mut file = -1i32;
            let words = [&raw mut file as u64, stepper.value(handle)?, POSIX_FILE, 0];
            let code = stepper
                .driver()?
                .call("cuMemExportToShareableHandle", &words);
            stepper.values.insert((*name).to_owned(), file as u64);
            Ok(Answer::code(code).number("file", file))
        }
        ["share-import", name, file] => {
            let words = [stepper.value(file)?, POSIX_FILE];
            alloc(stepper, "cuMemImportFromShareableHandle", name, &words)
        }
        // What graphics programs do: maps a descriptor of so many bytes as external memory.
        ["share-external", name, file, bytes] => {
            let driver = stepper.driver()?;
            let bytes = number(bytes)?;
            // SAFETY: plain data.
            let mut asked: CUDA_EXTERNAL_MEMORY_HANDLE_DESC = unsafe { std::mem::zeroed() };
            asked.type_ = CUexternalMemoryHandleType_enum::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
            asked.handle.fd = stepper.value(file)? as i32;
            asked.size = bytes;
            // SAFETY: as above.
            let mut buffer: CUDA_EXTERNAL_MEMORY_BUFFER_DESC = unsafe { std::mem::zeroed() };
            buffer.size = bytes;
            let (mut memory, mut pointer) = (0u64, 0u64);
            let words = [&raw mut memory as u64, &raw const asked as u64];
            let code = driver.call("cuImportExternalMemory", &words);
            if code != Some(0) {
                return Ok(Answer::code(code));
            }
            let words = [&raw mut pointer as u64, memory, &raw const buffer as u64];
            let code = driver.call("cuExternalMemoryGetMappedBuffer", &words);
            stepper.values.insert((*name).to_owned(), pointer);
            stepper.values.insert(format!("{name}.memory"), memory);
            Ok(Answer::code(code))
        }
        ["share-external-end", name] => {
            let memory = stepper.value(&format!("{name}.memory"))?;
            let driver = stepper.driver()?;
            Ok(Answer::code(
                driver.call("cuDestroyExternalMemory", &[memory]),
            ))
        }
        // Gets a descriptor that another process has.
        ["share-fetch", name, pid, file] => {
            let path = format!("/proc/{pid}/fd/{file}");
            let opened = std::fs::OpenOptions::new().write(true).open(&path);
            let file = opened.map_err(|error| format!("{path}: {error}"))?;
            let number = file.into_raw_fd() as u64;
            stepper.values.insert((*name).to_owned(), number);
            Ok(Answer::code(Some(0)))
        }
        ["share-close", file] => {
            let number = stepper.value(file)? as i32;
            // SAFETY: a descriptor that an earlier step was given, and nobody else uses.
            let code = unsafe { libc::close(number) };
            Ok(Answer::code(Some(code)))
        }
        ["share-ipc", name] => {
            let mut handle = [0u8; 64];
            let words = [&raw mut handle as u64, stepper.value(name)?];
            let code = stepper.driver()?.call("cuIpcGetMemHandle", &words);
            let digits: String = handle.iter().map(|byte| format!("{byte:02x}")).collect();
            Ok(Answer::code(code).text("handle", &digits))
        }
        ["share-ipc-open", name, digits] => open(stepper, name, digits),
        ["share-ipc-close", name] => call(stepper, "cuIpcCloseMemHandle", name, &[]),
        _ => Err("no such step".into()),
    }
}

fn open(stepper: &mut Stepper, name: &str, digits: &str) -> Result<Answer, String> {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    for (index, byte) in handle.reserved.iter_mut().enumerate() {
        let digits = digits.get(2 * index..2 * index + 2);
        let digits = digits.ok_or("a handle has 128 digits")?;
        let parsed = u8::from_str_radix(digits, 16).map_err(|error| error.to_string())?;
        *byte = parsed as c_char;
    }
    let address = stepper.driver()?.address("cuIpcOpenMemHandle_v2");
    if address == 0 {
        return Ok(Answer::code(None));
    }
    // SAFETY: the driver's function of this name, which has this type.
    let function = unsafe { std::mem::transmute::<usize, Open>(address) };
    let mut out = POISON;
    // SAFETY: a place for one address; the handle is plain bytes.
    let code = unsafe { function(&mut out, handle, 1) };
    let is_untouched = out == POISON;
    stepper.values.insert(name.to_owned(), out);
    Ok(Answer::code(Some(code.0 as i32)).flag("untouched", is_untouched))
}
