//! Steps that allocate, map, free and ask about memory.

use crate::answer::Answer;
use crate::native::Library;
use crate::steps::{POISON, Stepper, number};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

/// `CU_MEM_LOCATION_TYPE_DEVICE`, `_HOST` and `_HOST_NUMA`.
const LOCATIONS: [(&str, u32); 3] = [("device", 1), ("host", 2), ("host-numa", 3)];

/// `CUmemAllocationProp`: what a VMM handle is made of.
#[repr(C)]
#[derive(Debug, Default)]
struct AllocationProp {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location_id: i32,
    win32: u64,
    flags: u64,
}

/// `CUmemAccessDesc`: who may reach a mapping.
#[repr(C)]
#[derive(Debug)]
struct AccessDesc {
    location_kind: u32,
    location_id: i32,
    flags: u32,
}

/// Does one step of this family.
pub(crate) fn step(stepper: &mut Stepper, words: &[&str]) -> Result<Answer, String> {
    let driver = stepper.driver()?;
    match words {
        ["alloc", name, bytes] => alloc(stepper, "cuMemAlloc_v2", name, &[number(bytes)?]),
        ["alloc-v1", name, bytes] => alloc(stepper, "cuMemAlloc", name, &[number(bytes)?]),
        ["managed", name, bytes] => alloc(stepper, "cuMemAllocManaged", name, &[number(bytes)?, 1]),
        ["host-alloc", name, bytes] => alloc(stepper, "cuMemHostAlloc", name, &[number(bytes)?, 0]),
        ["alloc-host", name, bytes] => alloc(stepper, "cuMemAllocHost_v2", name, &[number(bytes)?]),
        ["host-register", bytes] => Ok(register(&driver, number(bytes)?)),
        ["host-free", name] => call(stepper, "cuMemFreeHost", name, &[]),
        ["pitch", name, width, height, element] => {
            let sizes = [number(width)?, number(height)?, number(element)?];
            Ok(pitch(stepper, &driver, name, sizes))
        }
        ["free", name] => call(stepper, "cuMemFree_v2", name, &[]),
        ["free-v1", name] => call(stepper, "cuMemFree", name, &[]),
        ["together", verb, name] => {
            let value = stepper.value(name)?;
            let symbol = match *verb {
                "free" => "cuMemFree_v2",
                "pool-free" => "cuMemFreeAsync",
                "release" => "cuMemRelease",
                other => return Err(format!("cannot be done together: {other}")),
            };
            Ok(together(stepper, &driver, symbol, value))
        }
        ["create", name, bytes, place, id] => create(stepper, &driver, name, bytes, place, id),
        ["retain-at", name, range, offset] => {
            let address = stepper.value(range)? + number(offset)?;
            alloc(stepper, "cuMemRetainAllocationHandle", name, &[address])
        }
        ["release", name] => call(stepper, "cuMemRelease", name, &[]),
        ["reserve", name, bytes] => alloc(
            stepper,
            "cuMemAddressReserve",
            name,
            &[number(bytes)?, 0, 0, 0],
        ),
        ["unreserve", name, bytes] => call(stepper, "cuMemAddressFree", name, &[number(bytes)?]),
        ["map", range, offset, handle, bytes] => {
            let address = stepper.value(range)? + number(offset)?;
            let words = [address, number(bytes)?, 0, stepper.value(handle)?, 0];
            Ok(Answer::code(driver.call("cuMemMap", &words)).number("address", address))
        }
        ["unmap", range, offset, bytes] => {
            let address = stepper.value(range)? + number(offset)?;
            Ok(Answer::code(
                driver.call("cuMemUnmap", &[address, number(bytes)?]),
            ))
        }
        ["access", range, offset, bytes, device] => {
            let desc = AccessDesc {
                location_kind: 1,
                location_id: number(device)? as i32,
                flags: 3,
            };
            let address = stepper.value(range)? + number(offset)?;
            let words = [address, number(bytes)?, &raw const desc as u64, 1];
            Ok(Answer::code(driver.call("cuMemSetAccess", &words)))
        }
        _ => ask(stepper, &driver, words),
    }
}

fn ask(stepper: &mut Stepper, driver: &Library, words: &[&str]) -> Result<Answer, String> {
    match words {
        ["info"] => Ok(info(driver)),
        ["info-v1"] => Ok(info_v1(driver)),
        ["info-partly"] => Ok(info_partly(driver)),
        ["total", device] => {
            let mut total = POISON;
            let words = [&raw mut total as u64, number(device)?];
            let code = driver.call("cuDeviceTotalMem_v2", &words);
            Ok(Answer::code(code).number("total", total))
        }
        ["total-v1", device] => {
            let mut total = POISON as u32;
            let words = [&raw mut total as u64, number(device)?];
            let code = driver.call("cuDeviceTotalMem", &words);
            Ok(Answer::code(code).number("total", total))
        }
        ["range", name] => {
            let mut bytes = POISON;
            let words = [0, &raw mut bytes as u64, stepper.value(name)?];
            let code = driver.call("cuMemGetAddressRange_v2", &words);
            Ok(Answer::code(code).number("bytes", bytes))
        }
        ["attributes", name] => Ok(attributes(driver, stepper.value(name)?)),
        ["fill", name, byte, bytes] => {
            let words = [stepper.value(name)?, number(byte)?, number(bytes)?];
            Ok(Answer::code(driver.call("cuMemsetD8_v2", &words)))
        }
        ["read", name] => {
            let mut byte = 0u8;
            let words = [&raw mut byte as u64, stepper.value(name)?, 1];
            let code = driver.call("cuMemcpyDtoH_v2", &words);
            Ok(Answer::code(code).number("byte", byte))
        }
        ["uuid", device] => {
            let mut uuid = [0u8; 16];
            let words = [&raw mut uuid as u64, number(device)?];
            let code = driver.call("cuDeviceGetUuid_v2", &words);
            let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
            Ok(Answer::code(code).text("uuid", &digits))
        }
        _ => Err("no such step".into()),
    }
}

pub(crate) fn alloc(
    stepper: &mut Stepper,
    symbol: &str,
    name: &str,
    more: &[u64],
) -> Result<Answer, String> {
    let mut out = POISON;
    let mut words = vec![&raw mut out as u64];
    words.extend_from_slice(more);
    let code = stepper.driver()?.call(symbol, &words);
    let untouched = out == POISON;
    if code == Some(0) {
        // The functions of the oldest interface write 32 bits only.
        if out >> 32 == POISON >> 32 {
            out &= 0xffff_ffff;
        }
        stepper.values.insert(name.to_owned(), out);
    }
    Ok(Answer::code(code)
        .number("value", out)
        .flag("untouched", untouched))
}

pub(crate) fn call(
    stepper: &mut Stepper,
    symbol: &str,
    name: &str,
    more: &[u64],
) -> Result<Answer, String> {
    let mut words = vec![stepper.value(name)?];
    words.extend_from_slice(more);
    Ok(Answer::code(stepper.driver()?.call(symbol, &words)))
}

fn pitch(stepper: &mut Stepper, driver: &Library, name: &str, sizes: [u64; 3]) -> Answer {
    let (mut out, mut pitch) = (POISON, POISON);
    let [width, height, element] = sizes;
    let words = [
        &raw mut out as u64,
        &raw mut pitch as u64,
        width,
        height,
        element,
    ];
    let code = driver.call("cuMemAllocPitch_v2", &words);
    if code == Some(0) {
        stepper.values.insert(name.to_owned(), out);
    }
    Answer::code(code)
        .number("value", out)
        .number("pitch", pitch)
        .flag("untouched", out == POISON && pitch == POISON)
}

fn create(
    stepper: &mut Stepper,
    driver: &Library,
    name: &str,
    bytes: &str,
    place: &str,
    id: &str,
) -> Result<Answer, String> {
    let location_kind = LOCATIONS
        .iter()
        .find_map(|(known, kind)| (*known == place).then_some(*kind))
        .ok_or(format!("unknown location: {place}"))?;
    let prop = AllocationProp {
        kind: 1,
        location_kind,
        location_id: number(id)? as i32,
        ..AllocationProp::default()
    };
    let mut out = POISON;
    let words = [
        &raw mut out as u64,
        number(bytes)?,
        &raw const prop as u64,
        0,
    ];
    let code = driver.call("cuMemCreate", &words);
    if code == Some(0) {
        stepper.values.insert(name.to_owned(), out);
    }
    Ok(Answer::code(code).flag("untouched", out == POISON))
}

fn info(driver: &Library) -> Answer {
    let (mut free, mut total) = (POISON, POISON);
    let words = [&raw mut free as u64, &raw mut total as u64];
    let code = driver.call("cuMemGetInfo_v2", &words);
    Answer::code(code)
        .number("free", free)
        .number("total", total)
}

fn info_v1(driver: &Library) -> Answer {
    let (mut free, mut total) = (POISON as u32, POISON as u32);
    let words = [&raw mut free as u64, &raw mut total as u64];
    let code = driver.call("cuMemGetInfo", &words);
    Answer::code(code)
        .number("free", free)
        .number("total", total)
}

/// Asks for the total alone, for the free alone, and for neither.
fn info_partly(driver: &Library) -> Answer {
    let (mut free, mut total) = (POISON, POISON);
    let total_alone = driver.call("cuMemGetInfo_v2", &[0, &raw mut total as u64]);
    let free_alone = driver.call("cuMemGetInfo_v2", &[&raw mut free as u64, 0]);
    let neither = driver.call("cuMemGetInfo_v2", &[0, 0]);
    Answer::code(total_alone)
        .number("total", total)
        .number("free_rc", free_alone.unwrap_or(-1))
        .number("free", free)
        .number("neither_rc", neither.unwrap_or(-1))
}

/// `CU_POINTER_ATTRIBUTE_IS_MANAGED` by the call for one attribute and by the call for many.
fn attributes(driver: &Library, pointer: u64) -> Answer {
    const IS_MANAGED: u32 = 8;
    let (mut one, mut many) = (POISON as u32, POISON as u32);
    let words = [&raw mut one as u64, u64::from(IS_MANAGED), pointer];
    let one_code = driver.call("cuPointerGetAttribute", &words);
    let kinds = [IS_MANAGED];
    let mut places = [&raw mut many as u64];
    let words = [
        1,
        kinds.as_ptr() as u64,
        places.as_mut_ptr() as u64,
        pointer,
    ];
    let many_code = driver.call("cuPointerGetAttributes", &words);
    Answer::code(one_code)
        .number("managed", one & 0xff)
        .number("many_rc", many_code.unwrap_or(-1))
        .number("many_managed", many & 0xff)
}

fn register(driver: &Library, bytes: u64) -> Answer {
    // SAFETY: a fresh anonymous mapping, untouched and so without pages.
    let room = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if room == libc::MAP_FAILED {
        return Answer::failure("no address space");
    }
    let register = driver.call("cuMemHostRegister_v2", &[room as u64, bytes, 0]);
    let unregister = driver.call("cuMemHostUnregister", &[room as u64]);
    // SAFETY: the mapping made above; the driver was told to let go of it.
    unsafe { libc::munmap(room.cast::<c_void>(), bytes as usize) };
    Answer::code(register).number("unregister_rc", unregister.unwrap_or(-1))
}

/// Two threads give the same value back at the same time.
fn together(stepper: &Stepper, driver: &Library, symbol: &str, value: u64) -> Answer {
    // Spinning, and not a barrier that sleeps: the second must not begin when the first is done.
    let ready = AtomicU32::new(0);
    let give_back = || {
        driver.call("cuCtxSetCurrent", &[stepper.context]);
        ready.fetch_add(1, Ordering::SeqCst);
        while ready.load(Ordering::SeqCst) < 2 {
            std::hint::spin_loop();
        }
        driver.call(symbol, &[value, 0])
    };
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(give_back);
        (give_back(), other.join().ok().flatten())
    });
    Answer::code(one).number("other_rc", other.unwrap_or(-1))
}
