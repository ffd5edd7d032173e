//! The rings of a connection, as the protocol library keeps them, with the worker kept informed.
//!
//! The library creates its rings itself, without a word to the device. [`collect`] catches them as
//! they are made: it runs the library's constructor on this thread, and every [`Vring`] made meanwhile
//! is noted. A [`Vring`] is the library's own, and tells [`Shared`] of each change; where the ring is
//! taken away from the worker, it waits until the worker has let go.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::sync::Arc;

use vhost_user_backend::{VringRwLock, VringStateGuard, VringStateMutGuard, VringT};
use virtio_queue::Error as QueueError;

use crate::shared::{Memory, Shared};

/// One ring.
#[derive(Clone)]
pub struct Vring {
    ring: VringRwLock,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Vring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vring").finish_non_exhaustive()
    }
}

struct Collecting {
    shared: Arc<Shared>,
    rings: Vec<VringRwLock>,
}

thread_local! {
    static COLLECTING: RefCell<Option<Collecting>> = const { RefCell::new(None) };
}

/// Runs `build` and answers what it answered, with the rings that were made meanwhile, in order.
pub(super) fn collect<T>(shared: &Arc<Shared>, build: impl FnOnce() -> T) -> (T, Vec<VringRwLock>) {
    let collecting = Collecting { shared: Arc::clone(shared), rings: Vec::new() };
    COLLECTING.set(Some(collecting));
    let result = build();
    let rings = COLLECTING.take().map_or_else(Vec::new, |collecting| collecting.rings);
    (result, rings)
}

impl<'a> VringStateGuard<'a, Memory> for Vring {
    type G = <VringRwLock as VringStateGuard<'a, Memory>>::G;
}

impl<'a> VringStateMutGuard<'a, Memory> for Vring {
    type G = <VringRwLock as VringStateMutGuard<'a, Memory>>::G;
}

impl VringT<Memory> for Vring {
    fn new(memory: Memory, max_queue_size: u16) -> Result<Self, QueueError> {
        let ring = VringRwLock::new(memory, max_queue_size)?;
        COLLECTING.with_borrow_mut(|collecting| {
            // Without a collector the ring would be one that no worker ever sees.
            let collecting = collecting.as_mut().ok_or(QueueError::QueueNotReady)?;
            collecting.rings.push(ring.clone());
            Ok(Self { ring, shared: Arc::clone(&collecting.shared) })
        })
    }

    fn get_ref(&self) -> <Self as VringStateGuard<'_, Memory>>::G {
        self.ring.get_ref()
    }

    fn get_mut(&self) -> <Self as VringStateMutGuard<'_, Memory>>::G {
        self.ring.get_mut()
    }

    fn add_used(&self, index: u16, len: u32) -> Result<(), QueueError> {
        self.ring.add_used(index, len)
    }

    fn signal_used_queue(&self) -> io::Result<()> {
        self.ring.signal_used_queue()
    }

    fn enable_notification(&self) -> Result<bool, QueueError> {
        self.ring.enable_notification()
    }

    fn disable_notification(&self) -> Result<(), QueueError> {
        self.ring.disable_notification()
    }

    fn needs_notification(&self) -> Result<bool, QueueError> {
        self.ring.needs_notification()
    }

    fn set_enabled(&self, enabled: bool) {
        self.ring.set_enabled(enabled);
        if enabled { self.shared.moved() } else { self.shared.sync() }
    }

    fn set_queue_info(&self, desc: u64, avail: u64, used: u64) -> Result<(), QueueError> {
        self.ring.set_queue_info(desc, avail, used)?;
        self.shared.moved();
        Ok(())
    }

    fn queue_next_avail(&self) -> u16 {
        self.ring.queue_next_avail()
    }

    fn set_queue_next_avail(&self, base: u16) {
        self.ring.set_queue_next_avail(base);
    }

    fn set_queue_next_used(&self, index: u16) {
        self.ring.set_queue_next_used(index);
    }

    fn queue_used_idx(&self) -> Result<u16, QueueError> {
        self.ring.queue_used_idx()
    }

    fn set_queue_size(&self, size: u16) {
        self.ring.set_queue_size(size);
    }

    fn set_queue_event_idx(&self, enabled: bool) {
        self.ring.set_queue_event_idx(enabled);
    }

    fn set_queue_ready(&self, ready: bool) {
        self.ring.set_queue_ready(ready);
        if ready { self.shared.moved() } else { self.shared.sync() }
    }

    fn set_kick(&self, file: Option<File>) {
        self.ring.set_kick(file);
        self.shared.moved();
    }

    fn read_kick(&self) -> io::Result<bool> {
        self.ring.read_kick()
    }

    fn set_call(&self, file: Option<File>) {
        self.ring.set_call(file);
        self.shared.moved();
    }

    fn set_err(&self, file: Option<File>) {
        self.ring.set_err(file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_collected_in_the_order_they_are_made() {
        let shared = Shared::new().unwrap();
        let memory = Memory::new(vm_memory::GuestMemoryMmap::new());
        assert!(Vring::new(memory.clone(), 256).is_err());
        let (made, collected) = collect(&shared, || {
            [128, 256].map(|size| {
                let ring = Vring::new(memory.clone(), 256).unwrap();
                ring.set_queue_size(size);
                ring
            })
        });
        assert_eq!((made.len(), collected.len()), (2, 2));
        for (made, collected) in made.iter().zip(&collected) {
            use virtio_queue::QueueT;
            assert_eq!(made.get_ref().get_queue().size(), collected.get_ref().get_queue().size());
        }
        let before = shared.generation();
        made[0].set_enabled(true);
        assert!(shared.generation() > before);
        assert!(collected[0].get_ref().is_enabled());
    }
}
