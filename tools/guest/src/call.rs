//! How the device notifies the guest: an eventfd, or, as for User Mode Linux, the write end of a pipe
//! into which each notification is eight bytes.

use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsRawFd, RawFd};

use rustix::io::ioctl_fionbio;
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use crate::config::Call;

/// The guest's end of a ring's notifications, and the device's.
#[derive(Debug)]
pub(crate) enum CallFd {
    Event(EventFd),
    Pipe { ours: PipeReader, theirs: PipeWriter },
}

impl CallFd {
    pub(crate) fn new(kind: Call) -> io::Result<Self> {
        match kind {
            Call::Event => Ok(Self::Event(event()?)),
            Call::Pipe => {
                let (ours, theirs) = io::pipe()?;
                ioctl_fionbio(&ours, true)?;
                Ok(Self::Pipe { ours, theirs })
            }
        }
    }

    /// The descriptor to sleep on.
    pub(crate) fn ours(&self) -> RawFd {
        match self {
            Self::Event(event) => event.as_raw_fd(),
            Self::Pipe { ours, .. } => ours.as_raw_fd(),
        }
    }

    /// How often the device has called since last asked.
    pub(crate) fn take(&self) -> u64 {
        match self {
            // Nothing there reads as "would block".
            Self::Event(event) => event.read().unwrap_or(0),
            Self::Pipe { ours, .. } => {
                let (mut ours, mut bytes, mut total) = (ours, [0; 512], 0);
                while let Ok(count @ 1..) = ours.read(&mut bytes) {
                    total += count as u64;
                }
                total / 8
            }
        }
    }
}

/// A descriptor to kick or be called by.
pub(crate) fn event() -> io::Result<EventFd> {
    EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn notifications_are_counted_once() {
        let call = CallFd::new(Call::Event).unwrap();
        assert_eq!(call.take(), 0);
        let CallFd::Event(event) = &call else { panic!("an eventfd was asked for") };
        event.write(1).unwrap();
        event.write(1).unwrap();
        assert_eq!((call.take(), call.take()), (2, 0));

        let call = CallFd::new(Call::Pipe).unwrap();
        assert_eq!(call.take(), 0);
        let CallFd::Pipe { theirs, .. } = &call else { panic!("a pipe was asked for") };
        for _ in 0..100 {
            (&*theirs).write_all(&1u64.to_ne_bytes()).unwrap();
        }
        assert_eq!((call.take(), call.take()), (100, 0));
    }
}
