//! Handles that the host holds, and the objects behind them.
//!
//! A handle is the address of its object, and is looked up before it is believed: a stale or made-up
//! one is an error, never a crash. An address is used again only after its object is gone.

use std::sync::Arc;

use parking_lot::RwLock;
use sim::hardware::NumberMap;

/// All living objects of one kind.
pub(crate) struct Registry<T>(RwLock<NumberMap<usize, Arc<T>>>);

impl<T> Registry<T> {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self(RwLock::new(NumberMap::default()))
    }

    /// Adds an object and yields its handle.
    pub(crate) fn add<H>(&self, object: Arc<T>) -> *mut H {
        let address = Arc::as_ptr(&object) as usize;
        self.0.write().insert(address, object);
        address as *mut H
    }

    /// The object behind a handle.
    pub(crate) fn find<H>(&self, handle: *mut H) -> Option<Arc<T>> {
        self.0.read().get(&(handle as usize)).cloned()
    }

    /// Every object.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.0.read().values().cloned().collect()
    }

    /// Any object that `fits`.
    pub(crate) fn find_where(&self, fits: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let objects = self.0.read();
        objects.values().find(|object| fits(object)).cloned()
    }

    /// Takes an object away.
    pub(crate) fn remove<H>(&self, handle: *mut H) -> Option<Arc<T>> {
        self.0.write().remove(&(handle as usize))
    }

    /// Takes away and yields what does not satisfy `stays`.
    pub(crate) fn sweep(&self, stays: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut gone = Vec::new();
        self.0.write().retain(|_, object| {
            let stays = stays(object);
            if !stays {
                gone.push(Arc::clone(object));
            }
            stays
        });
        gone
    }
}

/// The handle of an object.
pub(crate) fn handle_of<T, H>(object: &Arc<T>) -> *mut H {
    Arc::as_ptr(object) as usize as *mut H
}
