//! What graphs hold of the program's: an object goes with its last reference.
//!
//! References are the program's or a graph's. A copy of a graph, a node that holds one, and what is made of
//! one for launches hold as many. The destructor runs on a thread of the library's, and may call nothing.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use ffi::driver::{CUgraph, CUhostFn, CUresult, CUuserObject};
use parking_lot::Mutex;

use crate::deferred::{HostCall, start_thread};
use crate::event::Event;
use crate::graph;
use crate::guard::{Answer, INVALID_VALUE, Out};
use crate::registry::handle_of;
use crate::state::{Driver, driver};

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`, which has to be said.
const NO_DESTRUCTOR_SYNC: c_uint = 1;

/// `CU_GRAPH_USER_OBJECT_MOVE`: the references are the caller's no more.
const MOVE: c_uint = 1;

/// References that one call may name.
const MOST: c_uint = i32::MAX as c_uint;

/// An object of the program's.
pub(crate) struct UserObject {
    destructor: HostCall,
    references: Mutex<u64>,
}

/// References that a graph holds; a copy of it holds as many again.
pub(crate) struct Reference {
    object: Arc<UserObject>,
    count: u64,
}

impl Clone for Reference {
    fn clone(&self) -> Self {
        *self.object.references.lock() += self.count;
        Self {
            object: Arc::clone(&self.object),
            count: self.count,
        }
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        if self.count > 0
            && let Ok(driver) = driver()
        {
            // It has as many: they are counted in it.
            let _ = self.object.release(driver, self.count);
        }
    }
}

impl UserObject {
    /// Takes references away; with the last one the object goes.
    fn release(self: &Arc<Self>, driver: &Driver, count: u64) -> Answer {
        let mut references = self.references.lock();
        *references = references.checked_sub(count).ok_or(INVALID_VALUE)?;
        if *references == 0 {
            driver.user_objects.remove::<c_void>(handle_of(self));
            let call = self.destructor;
            let run = move || {
                let HostCall { function, argument } = { call };
                // SAFETY: the program gave both for this call, which is the only one.
                unsafe { function(argument) }
            };
            start_thread("sluice-sim-object", run)
                .map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        }
        Ok(())
    }
}

/// Lets go of what an executable graph held once its last launch is over.
pub(crate) fn release_after(
    driver: &'static Driver,
    held: Vec<Reference>,
    last: &Arc<Event>,
) -> Answer {
    if held.is_empty() {
        return Ok(());
    }
    let last = Arc::clone(last);
    let wait = move || {
        // A `gpu` process that has gone away has ended every launch.
        let _ = last.wait_until_reached(driver);
        drop(held);
    };
    start_thread("sluice-sim-object", wait).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
}

fn find(handle: CUuserObject) -> Answer<Arc<UserObject>> {
    driver()?.user_objects.find(handle).ok_or(INVALID_VALUE)
}

/// A number of references that a call may name.
fn counted(count: c_uint) -> Answer<u64> {
    match count {
        1..=MOST => Ok(u64::from(count)),
        _ => Err(INVALID_VALUE),
    }
}

fn create(
    out: *mut CUuserObject,
    pointer: *mut c_void,
    destroy: CUhostFn,
    count: c_uint,
    flags: c_uint,
) -> Answer {
    let out = Out::claim(out)?;
    let references = counted(count)?;
    if flags != NO_DESTRUCTOR_SYNC {
        return Err(INVALID_VALUE);
    }
    let object = UserObject {
        destructor: HostCall {
            function: destroy.ok_or(INVALID_VALUE)?,
            argument: pointer,
        },
        references: Mutex::new(references),
    };
    out.write(driver()?.user_objects.add(Arc::new(object)));
    Ok(())
}

fn retain(object: CUuserObject, count: c_uint) -> Answer {
    let count = counted(count)?;
    *find(object)?.references.lock() += count;
    Ok(())
}

fn release(object: CUuserObject, count: c_uint) -> Answer {
    let count = counted(count)?;
    find(object)?.release(driver()?, count)
}

fn retain_for(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) -> Answer {
    let (graph, object, count) = (graph::find(graph)?, find(object)?, counted(count)?);
    match flags {
        0 => *object.references.lock() += count,
        MOVE => {}
        _ => return Err(INVALID_VALUE),
    }
    let mut held = graph.objects.lock();
    let known = held.iter_mut().find(|it| Arc::ptr_eq(&it.object, &object));
    match known {
        Some(known) => known.count += count,
        None => held.push(Reference { object, count }),
    }
    Ok(())
}

fn release_of(graph: CUgraph, object: CUuserObject, count: c_uint) -> Answer {
    let (graph, object, count) = (graph::find(graph)?, find(object)?, counted(count)?);
    let mut held = graph.objects.lock();
    let known = held.iter_mut().find(|it| Arc::ptr_eq(&it.object, &object));
    let known = known.ok_or(INVALID_VALUE)?;
    known.count = known.count.checked_sub(count).ok_or(INVALID_VALUE)?;
    held.retain(|it| it.count > 0);
    drop(held);
    object.release(driver()?, count)
}

driver! {
    cuUserObjectCreate(object_out: *mut CUuserObject, ptr: *mut c_void, destroy: CUhostFn, initial_refcount: c_uint, flags: c_uint) => create;
    cuUserObjectRetain(object: CUuserObject, count: c_uint) => retain;
    cuUserObjectRelease(object: CUuserObject, count: c_uint) => release;
    cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) => retain_for;
    cuGraphReleaseUserObject(graph: CUgraph, object: CUuserObject, count: c_uint) => release_of;
}
