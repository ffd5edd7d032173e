//! How a worker sleeps: one epoll set with the port, the guest's kicks and control's wake-up.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use epoll::{ControlOptions, Event, Events};
use vmm_sys_util::event::EventConsumer;

use crate::shared::Shared;

/// The descriptors that end a worker's sleep.
#[derive(Debug)]
pub(super) struct Sleeper {
    epoll: RawFd,
    /// Kicks of the rings in use now.
    kicks: Vec<Kick>,
}

struct Kick(EventConsumer);

impl std::fmt::Debug for Kick {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kick({})", self.0.as_raw_fd())
    }
}

impl Sleeper {
    pub(super) fn new(shared: &Shared, port: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let sleeper = Self { epoll: epoll::create(true)?, kicks: Vec::new() };
        sleeper.add(shared.wake().as_raw_fd(), Events::EPOLLIN, WAKE)?;
        if let Some(port) = port {
            sleeper.add(port.as_raw_fd(), Events::EPOLLIN, PORT)?;
        }
        Ok(sleeper)
    }

    /// The rings are new: their kicks replace those of the old ones.
    pub(super) fn set_kicks(&mut self, kicks: Vec<EventConsumer>) {
        for kick in self.kicks.drain(..) {
            // Closing a duplicate does not take it out of the set while the front end has its own.
            let event = Event::new(Events::empty(), KICK);
            let removed =
                epoll::ctl(self.epoll, ControlOptions::EPOLL_CTL_DEL, kick.0.as_raw_fd(), event);
            if let Err(error) = removed {
                log::debug!("kick not removed: {error}");
            }
        }
        for kick in kicks {
            // Edge triggered: each kick ends one sleep, and nobody has to read the counter.
            match self.add(kick.as_raw_fd(), Events::EPOLLIN | Events::EPOLLET, KICK) {
                Ok(()) => self.kicks.push(Kick(kick)),
                // A descriptor that can't be waited for (a regular file): the ring is polled.
                Err(error) => log::warn!("kick descriptor is no eventfd: {error}"),
            }
        }
    }

    /// Sleeps until something happens or the time is up.
    pub(super) fn sleep(&self, shared: &Shared, limit: Duration) -> io::Result<()> {
        // Whole milliseconds, not less than asked for: too long is bounded by the caller's limit.
        let limit = i32::try_from(limit.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let mut events = [Event::new(Events::empty(), 0); 8];
        let count = match epoll::wait(self.epoll, limit, &mut events) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
            other => other?,
        };
        if events[..count].iter().any(|event| event.data == WAKE) {
            // Another wake-up that came meanwhile is served by the same look at the plane.
            let _ = shared.wake().read();
        }
        Ok(())
    }

    fn add(&self, fd: RawFd, events: Events, data: u64) -> io::Result<()> {
        let event = Event::new(events, data);
        epoll::ctl(self.epoll, ControlOptions::EPOLL_CTL_ADD, fd, event)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        // Nothing can be done about a close that fails.
        let _ = epoll::close(self.epoll);
    }
}

const WAKE: u64 = 0;
const PORT: u64 = 1;
const KICK: u64 = 2;
