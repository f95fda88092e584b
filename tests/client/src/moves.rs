//! Steps that copy and fill memory, by any of the driver's functions for it.

use crate::answer::Answer;
use crate::native::Library;
use crate::steps::Stepper;

/// What each moves.
const BYTES: u64 = 4096;

/// The same as rows.
const WIDTH: u64 = 1024;
const HEIGHT: u64 = 4;

/// `CU_MEMORYTYPE_DEVICE`.
const ON_DEVICE: u64 = 2;

/// Does one: `move SYMBOL` moves 4096 bytes, `move-captured` captures that.
pub(crate) fn step(stepper: &mut Stepper, words: &[&str]) -> Result<Answer, String> {
    match words {
        ["move", symbol] => move_by(stepper, symbol),
        ["move-captured"] => capture(stepper),
        _ => Err("no such step".to_owned()),
    }
}

/// Captures a copy and a fill, and forgets the graph.
fn capture(stepper: &mut Stepper) -> Result<Answer, String> {
    let driver = stepper.driver()?;
    let (mut memory, mut stream, mut graph) = (0u64, 0u64, 0u64);
    driver.call("cuMemAlloc_v2", &[&raw mut memory as u64, 2 * BYTES]);
    driver.call("cuStreamCreate", &[&raw mut stream as u64, 1]);
    let codes = [
        driver.call("cuStreamBeginCapture_v2", &[stream, 0]),
        driver.call("cuMemcpyAsync", &[memory, memory + BYTES, BYTES, stream]),
        driver.call("cuMemsetD8Async", &[memory, 1, BYTES, stream]),
        driver.call("cuStreamEndCapture", &[stream, &raw mut graph as u64]),
    ];
    driver.call("cuGraphDestroy", &[graph]);
    driver.call("cuStreamDestroy_v2", &[stream]);
    driver.call("cuMemFree_v2", &[memory]);
    let failed = codes.into_iter().find(|code| *code != Some(0));
    Ok(Answer::code(failed.unwrap_or(Some(0))))
}

fn move_by(stepper: &mut Stepper, symbol: &str) -> Result<Answer, String> {
    let driver = stepper.driver()?;
    let context = stepper.context;
    let host = vec![0u8; BYTES as usize];
    let host = host.as_ptr() as u64;
    let (mut memory, mut stream) = (0u64, 0u64);
    driver.call("cuMemAlloc_v2", &[&raw mut memory as u64, 2 * BYTES]);
    driver.call("cuStreamCreate", &[&raw mut stream as u64, 1]);
    let (to, from) = (memory, memory + BYTES);
    let arrays = [array(&driver), array(&driver)];
    let base = ffi::symbols::DRIVER
        .iter()
        .find(|row| row.name == symbol)
        .ok_or("no such function")?
        .base;
    let is_first = |name: &str| name == symbol || format!("{name}_ptsz") == symbol;
    // Places, offsets and memory types of one side, and how its rows lie.
    let flat = |memory| [0, 0, ON_DEVICE, 0, memory, 0, WIDTH];
    let deep = |memory| [0, 0, 0, 0, ON_DEVICE, 0, memory, 0, 0, WIDTH, HEIGHT];
    let peer = |memory| [0, 0, 0, 0, ON_DEVICE, 0, memory, 0, context, WIDTH, HEIGHT];
    let shape = |sides: [&[u64]; 2], extent: &[u64]| [sides[0], sides[1], extent].concat();
    let plane = shape([&flat(from), &flat(to)], &[WIDTH, HEIGHT]);
    let block = shape([&deep(from), &deep(to)], &[WIDTH, HEIGHT, 1]);
    let across = shape([&peer(from), &peer(to)], &[WIDTH, HEIGHT, 1]);
    // A pointer on device 0, rows and layers without gaps; in the order of the stream.
    let operand = |memory| [1, memory, 0, 0, 1];
    let mut one = shape([&operand(from), &operand(to)], &[WIDTH, HEIGHT, 1, 1]);
    let (mut all_to, mut all_from, mut sizes, mut index) = (to, from, BYTES, 0u64);
    let mut attributes = [1u32, 0, 0, 0, 0, 0];
    let mut failed = 0u64;
    let (one, attributes) = (one.as_mut_ptr() as u64, attributes.as_mut_ptr() as u64);
    let batch = [
        &raw mut all_to as u64,
        &raw mut all_from as u64,
        &raw mut sizes as u64,
        1,
        attributes,
        &raw mut index as u64,
        1,
    ];
    let failed = &raw mut failed as u64;
    let fabric = [1, from, 0, 1, to, 0, BYTES, 0];
    let packed = [BYTES, BYTES, 0, from, to, 1, 0, 0];
    let mut arguments: Vec<u64> = match base.strip_suffix("Async").unwrap_or(base) {
        "cuMemcpy" | "cuMemcpyDtoD" => vec![to, from, BYTES],
        "cuMemcpyHtoD" => vec![to, host, BYTES],
        "cuMemcpyDtoH" => vec![host, from, BYTES],
        "cuMemcpyDtoA" => vec![arrays[0], 0, from, BYTES],
        "cuMemcpyAtoD" => vec![to, arrays[0], 0, BYTES],
        "cuMemcpyHtoA" => vec![arrays[0], 0, host, BYTES],
        "cuMemcpyAtoH" => vec![host, arrays[0], 0, BYTES],
        "cuMemcpyAtoA" => vec![arrays[0], 0, arrays[1], 0, BYTES],
        "cuMemcpyPeer" => vec![to, context, from, context, BYTES],
        "cuMemcpy2D" | "cuMemcpy2DUnaligned" => vec![plane.as_ptr() as u64],
        "cuMemcpy3D" => vec![block.as_ptr() as u64],
        "cuMemcpy3DPeer" => vec![across.as_ptr() as u64],
        "cuMemcpyBatch" if is_first("cuMemcpyBatchAsync") => [&batch[..], &[failed]].concat(),
        "cuMemcpyBatch" => batch.to_vec(),
        "cuMemcpy3DBatch" if is_first("cuMemcpy3DBatchAsync") => vec![1, one, failed, 0],
        "cuMemcpy3DBatch" => vec![1, one, 0],
        "cuMemcpyWithAttributes" => vec![to, from, BYTES, attributes],
        "cuMemcpy3DWithAttributes" => vec![one, 0],
        "cuFabricCpyBatch" => vec![1, fabric.as_ptr() as u64, 0],
        "cuMemBatchDecompress" => vec![packed.as_ptr() as u64, 1, 0, failed],
        "cuMemsetD8" => vec![to, 1, BYTES],
        "cuMemsetD16" => vec![to, 1, BYTES / 2],
        "cuMemsetD32" => vec![to, 1, BYTES / 4],
        "cuMemsetD2D8" => vec![to, WIDTH, 1, WIDTH, HEIGHT],
        "cuMemsetD2D16" => vec![to, WIDTH, 1, WIDTH / 2, HEIGHT],
        "cuMemsetD2D32" => vec![to, WIDTH, 1, WIDTH / 4, HEIGHT],
        other => return Err(format!("no way to move by {other}")),
    };
    if base.ends_with("Async") {
        arguments.push(stream);
    }
    let code = driver.call(symbol, &arguments);
    driver.call("cuStreamSynchronize", &[stream]);
    driver.call("cuStreamDestroy_v2", &[stream]);
    driver.call("cuMemFree_v2", &[memory]);
    for array in arrays {
        driver.call("cuArrayDestroy", &[array]);
    }
    Ok(Answer::code(code))
}

/// A row of bytes.
fn array(driver: &Library) -> u64 {
    // Width and height, unsigned bytes, one channel.
    let wanted = [BYTES, 0, 1 | 1 << 32];
    let mut array = 0u64;
    let words = [&raw mut array as u64, wanted.as_ptr() as u64];
    driver.call("cuArrayCreate_v2", &words);
    array
}
