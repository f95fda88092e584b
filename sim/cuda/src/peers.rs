//! Devices that reach each other's memory.
//!
//! Every device of one `gpu` process reaches every other. Kernels of the stand-in touch no memory, so that
//! access is enabled is kept and answered, and changes nothing; copies between devices need none.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use ffi::driver::{
    CUcontext, CUdevice, CUdevice_P2PAttribute, CUdevice_P2PAttribute_enum as P, CUresult,
};
use parking_lot::Mutex;

use crate::context::{self, Context};
use crate::guard::{Answer, INVALID_VALUE, Out, put};
use crate::state::{self, driver};

/// Peers that one context has access to, at most: what drivers allow without a switch between devices.
const MAX_PEERS: usize = 8;

/// Numbers of the contexts whose memory a context has been given access to.
#[derive(Default)]
pub(crate) struct Peers(Mutex<Vec<u64>>);

fn reaches(device: CUdevice, peer: CUdevice) -> Answer<bool> {
    let driver = driver()?;
    driver.device(device)?;
    driver.device(peer)?;
    Ok(device != peer)
}

fn can_access(out: *mut c_int, device: CUdevice, peer: CUdevice) -> Answer {
    let out = Out::claim(out)?;
    out.write(c_int::from(reaches(device, peer)?));
    Ok(())
}

fn attribute(
    out: *mut c_int,
    attribute: CUdevice_P2PAttribute,
    device: CUdevice,
    peer: CUdevice,
) -> Answer {
    if !reaches(device, peer)? {
        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
    let value = match attribute {
        P::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED => 1,
        // One rank, and neither atomics nor arrays across devices.
        P::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK
        | P::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
        | P::CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED => 0,
        _ => return Err(INVALID_VALUE),
    };
    put(out, value)
}

/// The current context, and the peer that the host names.
fn pair(peer: CUcontext) -> Answer<(Arc<Context>, Arc<Context>)> {
    let own = state::current()?;
    let peer = context::find(peer)?;
    if Arc::ptr_eq(&own, &peer) {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    Ok((own, peer))
}

fn enable(peer: CUcontext, flags: c_uint) -> Answer {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    let (own, peer) = pair(peer)?;
    if own.device == peer.device {
        return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    }
    let mut peers = own.peers.0.lock();
    if peers.contains(&peer.id) {
        return Err(CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    }
    let all = driver()?.contexts.all();
    peers.retain(|id| all.iter().any(|context| context.id == *id));
    if peers.len() >= MAX_PEERS {
        return Err(CUresult::CUDA_ERROR_TOO_MANY_PEERS);
    }
    peers.push(peer.id);
    Ok(())
}

fn disable(peer: CUcontext) -> Answer {
    let (own, peer) = pair(peer)?;
    let mut peers = own.peers.0.lock();
    let at = peers.iter().position(|id| *id == peer.id);
    let at = at.ok_or(CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED)?;
    peers.swap_remove(at);
    Ok(())
}

driver! {
    cuDeviceCanAccessPeer(out: *mut c_int, dev: CUdevice, peer_dev: CUdevice) => can_access;
    cuDeviceGetP2PAttribute(value: *mut c_int, attrib: CUdevice_P2PAttribute, src_device: CUdevice, dst_device: CUdevice) => attribute;
    cuCtxEnablePeerAccess(peer_context: CUcontext, flags: c_uint) => enable;
    cuCtxDisablePeerAccess(peer_context: CUcontext) => disable;
}
