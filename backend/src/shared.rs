//! What the control side and the worker tell each other.
//!
//! Control (the vhost-user connection, signals) changes the [`Plane`] and moves the generation on; the
//! worker looks at the generation once per poll, without a lock, and takes the plane over when it has
//! moved. When control has to know that the worker no longer touches a ring or a piece of memory, it
//! waits until the worker has passed the generation: a bounded wait, with no lock of a ring held.
//!
//! The worker's statistics go the other way, from time to time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vhost_user_backend::VringRwLock;
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::stats::Stats;

/// Guest memory as the protocol library hands it over.
pub type Memory = GuestMemoryAtomic<GuestMemoryMmap>;

/// The state that a worker takes over when the generation has moved.
#[derive(Default)]
pub struct Plane {
    /// The front end that is connected, if one is.
    pub connection: Option<Connection>,
    /// Addresses to announce on the network, once each.
    pub announce: Vec<[u8; 6]>,
    /// The worker has to end.
    pub stop: bool,
}

impl std::fmt::Debug for Plane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plane")
            .field("connected", &self.connection.is_some())
            .field("stop", &self.stop)
            .finish_non_exhaustive()
    }
}

/// One front end: its rings, its memory, and what was negotiated with it.
#[derive(Clone)]
pub struct Connection {
    /// Ring `2 n` is the receive ring of pair `n`, ring `2 n + 1` its transmit ring.
    pub vrings: Vec<VringRwLock>,
    /// The guest's memory.
    pub memory: Memory,
    /// Virtio features that the driver acknowledged.
    pub features: u64,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("rings", &self.vrings.len())
            .field("features", &self.features)
            .finish_non_exhaustive()
    }
}

/// The meeting place of control and worker.
#[derive(Debug)]
pub struct Shared {
    generation: AtomicU64,
    plane: Mutex<Plane>,
    passed: Mutex<Passed>,
    moved: Condvar,
    wake: EventFd,
    stats: Mutex<Stats>,
}

#[derive(Debug)]
struct Passed {
    generation: u64,
    /// Nobody is there who could pass anything.
    ended: bool,
}

impl Shared {
    /// No front end, no worker yet.
    ///
    /// # Errors
    ///
    /// When no eventfd can be made.
    pub fn new() -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            generation: AtomicU64::new(1),
            plane: Mutex::default(),
            passed: Mutex::new(Passed { generation: 0, ended: true }),
            moved: Condvar::new(),
            wake: EventFd::new(EFD_NONBLOCK)?,
            stats: Mutex::default(),
        }))
    }

    /// The generation now. One relaxed load: what it guards is read under the plane's lock.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Changes the plane and lets the worker know; does not wait for it.
    pub fn change<T>(&self, change: impl FnOnce(&mut Plane) -> T) -> T {
        let result = change(&mut self.plane());
        self.moved();
        result
    }

    /// Something that the plane refers to has changed.
    pub fn moved(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        // A full counter means that the worker has a wake-up to come anyway.
        let _ = self.wake.write(1);
    }

    /// Moves the generation on and waits until the worker has taken everything over: whatever control
    /// took away before, the worker no longer touches.
    pub fn sync(&self) {
        self.moved();
        let generation = self.generation();
        let passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let (passed, wait) = self
            .moved
            .wait_timeout_while(passed, SYNC_LIMIT, |p| !p.ended && p.generation < generation)
            .unwrap_or_else(PoisonError::into_inner);
        if wait.timed_out() {
            log::error!(
                "the worker has not taken over a change within {SYNC_LIMIT:?} (at {} of {generation})",
                passed.generation
            );
        }
    }

    /// The plane, for the worker to take over.
    pub fn plane(&self) -> MutexGuard<'_, Plane> {
        self.plane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker has taken over everything up to a generation.
    pub fn pass(&self, generation: u64) {
        self.set_passed(Passed { generation, ended: false });
    }

    /// The worker has ended; nobody needs to wait for it any more.
    pub fn end(&self) {
        self.set_passed(Passed { generation: u64::MAX, ended: true });
    }

    fn set_passed(&self, passed: Passed) {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = passed;
        self.moved.notify_all();
    }

    /// Readable when control wants the worker's attention.
    pub fn wake(&self) -> &EventFd {
        &self.wake
    }

    /// The worker's statistics as of a short while ago.
    pub fn stats(&self) -> Stats {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Publishes statistics; leaves it for next time when somebody is reading them right now.
    pub fn publish(&self, stats: &Stats) {
        if let Ok(mut published) = self.stats.try_lock() {
            published.clone_from(stats);
        }
    }
}

/// A poll takes microseconds; a worker that needs this long is stuck or descheduled.
const SYNC_LIMIT: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sync_waits_for_the_worker_to_pass() {
        let shared = Shared::new().unwrap();
        shared.pass(shared.generation());
        let worker = {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                let seen = shared.generation();
                while shared.generation() == seen {
                    std::hint::spin_loop();
                }
                shared.publish(&Stats { polls: 7, ..Stats::default() });
                shared.pass(shared.generation());
            })
        };
        std::thread::sleep(Duration::from_millis(5));
        shared.sync();
        assert_eq!(shared.stats().polls, 7);
        worker.join().unwrap();
    }

    #[test]
    fn sync_does_not_wait_for_a_worker_that_is_not_there() {
        let shared = Shared::new().unwrap();
        shared.sync();
        shared.pass(3);
        shared.end();
        shared.sync();
        assert!(shared.wake().read().is_ok());
    }
}
