//! Steps of graphs that allocate memory, on a stream of their own.

use crate::answer::Answer;
use crate::memory::call;
use crate::native::Library;
use crate::steps::{Stepper, number};

/// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
const RESERVED_CURRENT: u64 = 2;
/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE: u64 = 1;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`. 120 bytes.
#[repr(C)]
#[derive(Debug, Default)]
struct AllocParams {
    kind: u32,
    handle_types: u32,
    location_kind: u32,
    location_id: i32,
    rest: [u64; 9],
    access: u64,
    access_count: u64,
    bytes: u64,
    address: u64,
}

/// `CU_GRAPH_NODE_TYPE_GRAPH`.
const GRAPH: u32 = 4;
/// `CU_GRAPH_NODE_TYPE_MEM_ALLOC`.
const MEM_ALLOC: u32 = 10;

/// `CUgraphNodeParams`, with the largest member that is used here. 256 bytes.
#[repr(C)]
#[derive(Debug)]
struct AnyParams {
    kind: u32,
    reserved: [u32; 3],
    first: AllocParams,
    rest: [u64; 14],
    last: u64,
}

impl AnyParams {
    fn new(kind: u32, first: AllocParams) -> Self {
        Self {
            kind,
            reserved: [0; 3],
            first,
            rest: [0; 14],
            last: 0,
        }
    }
}

/// Does one step of this family.
pub(crate) fn step(stepper: &mut Stepper, words: &[&str]) -> Result<Answer, String> {
    match words {
        // A graph of one allocation on a device, which frees it itself, leaves it to the program, or has it
        // freed by its next launch: `free`, `keep` or `auto`; or one that holds such a graph, which frees it:
        // `nested`. `NAME.memory` is its address.
        ["graph-make", name, device, bytes, ends] => {
            make(stepper, name, number(device)?, number(bytes)?, ends)
        }
        // What may be done beside a capture, with so much that fits and so much that does not.
        ["graph-beside", fits, too_much] => {
            capture_beside(stepper, number(fits)?, number(too_much)?)
        }
        // The same as a stream does it: captured, and instantiated by this symbol.
        ["graph-capture", name, bytes, symbol] => capture(stepper, name, number(bytes)?, symbol),
        ["graph-launch", name] => on_stream(stepper, "cuGraphLaunch", name),
        ["graph-upload", name] => on_stream(stepper, "cuGraphUpload", name),
        ["graph-destroy", name] => call(stepper, "cuGraphExecDestroy", name, &[]),
        ["graph-free", name] => {
            let driver = stepper.driver()?;
            let stream = stream(stepper, &driver);
            let address = stepper.value(&format!("{name}.memory"))?;
            Ok(Answer::code(
                driver.call("cuMemFreeAsync", &[address, stream]),
            ))
        }
        ["graph-wait"] => {
            let driver = stepper.driver()?;
            let stream = stream(stepper, &driver);
            Ok(Answer::code(driver.call("cuStreamSynchronize", &[stream])))
        }
        ["graph-trim", device] => {
            let driver = stepper.driver()?;
            Ok(Answer::code(
                driver.call("cuDeviceGraphMemTrim", &[number(device)?]),
            ))
        }
        ["graph-reserved", device] => {
            let driver = stepper.driver()?;
            let mut bytes = 0u64;
            let words = [number(device)?, RESERVED_CURRENT, &raw mut bytes as u64];
            let code = driver.call("cuDeviceGetGraphMemAttribute", &words);
            Ok(Answer::code(code).number("bytes", bytes))
        }
        _ => Err("no such step".into()),
    }
}

/// The stream that graphs run on; the default one where there can be none.
fn stream(stepper: &mut Stepper, driver: &Library) -> u64 {
    if let Ok(stream) = stepper.value("graph-stream") {
        return stream;
    }
    let mut stream = 0u64;
    if driver.call("cuStreamCreate", &[&raw mut stream as u64, 1]) == Some(0) {
        stepper.values.insert("graph-stream".to_owned(), stream);
    }
    stream
}

fn on_stream(stepper: &mut Stepper, symbol: &str, name: &str) -> Result<Answer, String> {
    let driver = stepper.driver()?;
    let stream = stream(stepper, &driver);
    call(stepper, symbol, name, &[stream])
}

fn make(
    stepper: &mut Stepper,
    name: &str,
    device: u64,
    bytes: u64,
    ends: &str,
) -> Result<Answer, String> {
    let driver = stepper.driver()?;
    let (mut graph, mut node, mut freed, mut exec) = (0u64, 0u64, 0u64, crate::steps::POISON);
    driver.call("cuGraphCreate", &[&raw mut graph as u64, 0]);
    let mut params = AllocParams {
        kind: 1,
        location_kind: 1,
        location_id: device as i32,
        bytes,
        ..AllocParams::default()
    };
    let code = if ends == "nested" {
        let mut any = AnyParams::new(MEM_ALLOC, params);
        let words = [&raw mut node as u64, graph, 0, 0, &raw mut any as u64];
        let code = driver.call("cuGraphAddNode", &words);
        params = any.first;
        code
    } else {
        let words = [&raw mut node as u64, graph, 0, 0, &raw mut params as u64];
        driver.call("cuGraphAddMemAllocNode", &words)
    };
    if code != Some(0) {
        driver.call("cuGraphDestroy", &[graph]);
        return Ok(Answer::code(code));
    }
    if ends == "free" || ends == "nested" {
        let words = [
            &raw mut freed as u64,
            graph,
            &raw const node as u64,
            1,
            params.address,
        ];
        let code = driver.call("cuGraphAddMemFreeNode", &words);
        if code != Some(0) {
            driver.call("cuGraphDestroy", &[graph]);
            return Ok(Answer::code(code));
        }
    }
    if ends == "nested" {
        // Its place is where the graph and its ownership are: moved, not copied.
        let held = AllocParams {
            kind: graph as u32,
            handle_types: (graph >> 32) as u32,
            location_kind: 1,
            ..AllocParams::default()
        };
        let mut any = AnyParams::new(GRAPH, held);
        let mut outer = 0u64;
        driver.call("cuGraphCreate", &[&raw mut outer as u64, 0]);
        let words = [&raw mut node as u64, outer, 0, 0, &raw mut any as u64];
        let code = driver.call("cuGraphAddNode", &words);
        if code != Some(0) {
            return Ok(Answer::code(code));
        }
        graph = outer;
    }
    let flags = if ends == "auto" { AUTO_FREE } else { 0 };
    let words = [&raw mut exec as u64, graph, flags];
    let code = driver.call("cuGraphInstantiateWithFlags", &words);
    driver.call("cuGraphDestroy", &[graph]);
    stepper.values.insert(name.to_owned(), exec);
    stepper
        .values
        .insert(format!("{name}.memory"), params.address);
    Ok(Answer::code(code).flag("untouched", exec == crate::steps::POISON))
}

/// What a capture in relaxed mode may do beside its stream: allocate, ask, and be refused.
fn capture_beside(stepper: &mut Stepper, fits: u64, too_much: u64) -> Result<Answer, String> {
    const RELAXED: u64 = 2;
    let driver = stepper.driver()?;
    let stream = stream(stepper, &driver);
    let (mut graph, mut exec) = (0u64, 0u64);
    let (mut plain, mut captured, mut refused) = (0u64, 0u64, crate::steps::POISON);
    let (mut free, mut total) = (0u64, 0u64);
    let begun = driver.call("cuStreamBeginCapture_v2", &[stream, RELAXED]);
    let allocated = driver.call("cuMemAlloc_v2", &[&raw mut plain as u64, fits]);
    let words = [&raw mut captured as u64, fits, stream];
    let node = driver.call("cuMemAllocAsync", &words);
    let words = [&raw mut free as u64, &raw mut total as u64];
    let asked = driver.call("cuMemGetInfo_v2", &words);
    let over = driver.call("cuMemAlloc_v2", &[&raw mut refused as u64, too_much]);
    let freed = driver.call("cuMemFreeAsync", &[captured, stream]);
    let ended = driver.call("cuStreamEndCapture", &[stream, &raw mut graph as u64]);
    let words = [&raw mut exec as u64, graph, 0];
    let made = driver.call("cuGraphInstantiateWithFlags", &words);
    let launched = driver.call("cuGraphLaunch", &[exec, stream]);
    driver.call("cuStreamSynchronize", &[stream]);
    driver.call("cuMemFree_v2", &[plain]);
    let well = [begun, allocated, node, asked, freed, ended, made, launched];
    if well != [Some(0); 8] {
        return Err(format!("{well:?}"));
    }
    Ok(Answer::code(over).flag("untouched", refused == crate::steps::POISON))
}

fn capture(stepper: &mut Stepper, name: &str, bytes: u64, symbol: &str) -> Result<Answer, String> {
    let driver = stepper.driver()?;
    let stream = stream(stepper, &driver);
    let (mut graph, mut address, mut exec) = (0u64, 0u64, 0u64);
    driver.call("cuStreamBeginCapture_v2", &[stream, 1]);
    let allocated = driver.call("cuMemAllocAsync", &[&raw mut address as u64, bytes, stream]);
    let freed = driver.call("cuMemFreeAsync", &[address, stream]);
    driver.call("cuStreamEndCapture", &[stream, &raw mut graph as u64]);
    if (allocated, freed) != (Some(0), Some(0)) {
        return Err(format!("in the capture: {allocated:?} {freed:?}"));
    }
    // `CUDA_GRAPH_INSTANTIATE_PARAMS`: flags (2: uploads), stream of the upload, node, result.
    let mut params = [2u64, stream, 0, 0];
    let words = match symbol {
        "cuGraphInstantiateWithFlags" => vec![0],
        "cuGraphInstantiateWithParams" | "cuGraphInstantiateWithParams_ptsz" => {
            vec![params.as_mut_ptr() as u64]
        }
        _ => vec![0, 0, 0],
    };
    let words = [&[&raw mut exec as u64, graph][..], &words].concat();
    let code = driver.call(symbol, &words);
    driver.call("cuGraphDestroy", &[graph]);
    stepper.values.insert(name.to_owned(), exec);
    Ok(Answer::code(code))
}
