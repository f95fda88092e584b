//! Attributes of streams: kept, answered and copied; they change nothing.
//!
//! A stream's priority can be asked for, not set: the device has it from when the stream was made.

use std::collections::BTreeMap;
use std::ffi::c_uint;

use ffi::driver::{
    CUlaunchAttributeID_enum as Id, CUstream, CUstreamAttrID, CUstreamAttrValue,
    CUsynchronizationPolicy_enum,
};
use parking_lot::Mutex;

use crate::guard::{Answer, INVALID_VALUE, Out, take};
use crate::stream::{self, Flavour, PerThread, Plain, Stream};

/// A value as it lies in memory.
type Bytes = [u8; size_of::<CUstreamAttrValue>()];

/// By attribute, what the host has set.
#[derive(Default)]
pub(crate) struct Attributes(Mutex<BTreeMap<c_uint, Bytes>>);

/// Highest number of a memory synchronisation domain; the device has one.
const DOMAINS: u8 = 1;

/// What can be set of a stream.
fn is_settable(id: CUstreamAttrID) -> bool {
    matches!(
        id,
        Id::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
            | Id::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
            | Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
            | Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
    )
}

fn bytes_of(value: CUstreamAttrValue) -> Bytes {
    // SAFETY: every member begins at the same place, and bytes are one of them.
    unsafe { value.pad }.map(|byte| byte as u8)
}

fn value_of(bytes: Bytes) -> CUstreamAttrValue {
    CUstreamAttrValue {
        pad: bytes.map(|byte| byte as _),
    }
}

/// What an attribute is that nobody has set.
fn default_of(stream: &Stream, id: CUstreamAttrID) -> CUstreamAttrValue {
    let mut value = value_of([0; size_of::<CUstreamAttrValue>()]);
    match id {
        Id::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY => {
            value.syncPolicy = CUsynchronizationPolicy_enum::CU_SYNC_POLICY_AUTO;
        }
        Id::CU_LAUNCH_ATTRIBUTE_PRIORITY => value.priority = stream.priority(),
        _ => {}
    }
    value
}

fn get<F: Flavour>(given: CUstream, id: CUstreamAttrID, out: *mut CUstreamAttrValue) -> Answer {
    let out = Out::claim(out)?;
    let stream = stream::find::<F>(given)?;
    if !is_settable(id) && id != Id::CU_LAUNCH_ATTRIBUTE_PRIORITY {
        return Err(INVALID_VALUE);
    }
    let set = stream.attributes.0.lock().get(&id.0).copied();
    out.write(set.map_or_else(|| default_of(&stream, id), value_of));
    Ok(())
}

fn set<F: Flavour>(given: CUstream, id: CUstreamAttrID, value: *const CUstreamAttrValue) -> Answer {
    let value = take(value)?;
    let stream = stream::find::<F>(given)?;
    if !is_settable(id) {
        return Err(INVALID_VALUE);
    }
    let is_possible = match id {
        Id::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW => {
            // SAFETY: the attribute says that it is this member; all its parts are numbers.
            let window = unsafe { value.accessPolicyWindow };
            (0.0..=1.0).contains(&window.hitRatio)
        }
        Id::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY => {
            // SAFETY: as above.
            let policy = unsafe { value.syncPolicy };
            (1..=4).contains(&policy.0)
        }
        Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP => {
            // SAFETY: as above.
            let map = unsafe { value.memSyncDomainMap };
            map.default_ < DOMAINS && map.remote < DOMAINS
        }
        _ => {
            // SAFETY: as above.
            let domain = unsafe { value.memSyncDomain };
            domain.0 <= 1
        }
    };
    if !is_possible {
        return Err(INVALID_VALUE);
    }
    stream.attributes.0.lock().insert(id.0, bytes_of(value));
    Ok(())
}

fn copy<F: Flavour>(to: CUstream, from: CUstream) -> Answer {
    let (to, from) = (stream::find::<F>(to)?, stream::find::<F>(from)?);
    if to.context_id != from.context_id {
        return Err(INVALID_VALUE);
    }
    let all = from.attributes.0.lock().clone();
    *to.attributes.0.lock() = all;
    Ok(())
}

driver! {
    cuStreamGetAttribute(h_stream: CUstream, attr: CUstreamAttrID, value_out: *mut CUstreamAttrValue) => get::<Plain>;
    cuStreamGetAttribute_ptsz(h_stream: CUstream, attr: CUstreamAttrID, value_out: *mut CUstreamAttrValue) => get::<PerThread>;
    cuStreamSetAttribute(h_stream: CUstream, attr: CUstreamAttrID, value: *const CUstreamAttrValue) => set::<Plain>;
    cuStreamSetAttribute_ptsz(h_stream: CUstream, attr: CUstreamAttrID, value: *const CUstreamAttrValue) => set::<PerThread>;
    cuStreamCopyAttributes(dst: CUstream, src: CUstream) => copy::<Plain>;
    cuStreamCopyAttributes_ptsz(dst: CUstream, src: CUstream) => copy::<PerThread>;
}
