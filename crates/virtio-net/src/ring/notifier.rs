//! The call: how the guest is told about used buffers.

use std::io;
use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd};

use rustix::fs::OFlags;
use vmm_sys_util::event::EventNotifier;
use vmm_sys_util::eventfd::EventFd;

/// The write end of a call: an eventfd, or a pipe (User Mode Linux).
///
/// Notifying never waits: the descriptor is set to non-blocking. For an eventfd that goes for the front
/// end's reads as well, since both share one description; but a front end that hands over a blocking one
/// with a full counter must not stop the worker.
#[derive(Debug)]
pub struct Notifier(OwnedFd);

impl Notifier {
    /// Notifies the guest's side. A pipe that is full says enough: that counts as done.
    ///
    /// # Errors
    ///
    /// When the other end is gone.
    #[inline]
    pub fn notify(&self) -> io::Result<()> {
        match rustix::io::write(&self.0, &1u64.to_ne_bytes()) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl From<OwnedFd> for Notifier {
    fn from(fd: OwnedFd) -> Self {
        if let Ok(flags) = rustix::fs::fcntl_getfl(&fd) {
            // A descriptor that refuses is written to all the same.
            let _ = rustix::fs::fcntl_setfl(fd.as_fd(), flags | OFlags::NONBLOCK);
        }
        Self(fd)
    }
}

impl From<EventNotifier> for Notifier {
    fn from(notifier: EventNotifier) -> Self {
        // SAFETY: the descriptor is open and the notifier has just given it up.
        Self::from(unsafe { OwnedFd::from_raw_fd(notifier.into_raw_fd()) })
    }
}

impl From<EventFd> for Notifier {
    fn from(eventfd: EventFd) -> Self {
        // SAFETY: the descriptor is open and the eventfd has just given it up.
        Self::from(unsafe { OwnedFd::from_raw_fd(eventfd.into_raw_fd()) })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn an_eventfd_counts() {
        let eventfd = EventFd::new(0).unwrap();
        let notifier = Notifier::from(eventfd.try_clone().unwrap());
        notifier.notify().unwrap();
        notifier.notify().unwrap();
        assert_eq!(eventfd.read().unwrap(), 2);
    }

    #[test]
    fn a_full_eventfd_does_not_block() {
        let eventfd = EventFd::new(0).unwrap();
        eventfd.write(u64::MAX - 1).unwrap();
        let notifier = Notifier::from(eventfd.try_clone().unwrap());
        notifier.notify().unwrap();
        assert_eq!(eventfd.read().unwrap(), u64::MAX - 1);
    }

    #[test]
    fn a_full_pipe_does_not_block() {
        let (mut reader, writer) = io::pipe().unwrap();
        let notifier = Notifier::from(OwnedFd::from(writer));
        for _ in 0..10_000 {
            notifier.notify().unwrap();
        }
        let mut value = [0; 8];
        reader.read_exact(&mut value).unwrap();
        assert_eq!(u64::from_ne_bytes(value), 1);
        drop(reader);
        assert!(notifier.notify().is_err(), "nobody is at the other end");
    }
}
