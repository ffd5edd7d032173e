//! Looking after the port while it runs, on a thread of its own where the port needs that: what the
//! device reports has to be read, and its recovery may take seconds.

use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::Duration;

use port::Port;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::failure::Failure;

/// The control half of a port, until it is closed.
#[derive(Debug)]
pub(crate) enum Tending {
    /// Nothing to be done for it.
    Idle(Box<dyn Port>),
    /// On a thread, which ends when the other end of this pipe is closed.
    Thread(std::io::PipeWriter, JoinHandle<()>),
}

impl Tending {
    /// Begins to tend the port, if it needs that.
    pub(crate) fn start(port: Box<dyn Port>) -> Result<Self, Failure> {
        if port.tend_every().is_none() {
            return Ok(Self::Idle(port));
        }
        let (end, keep) = std::io::pipe().map_err(|error| Failure::running(&error))?;
        let thread = std::thread::Builder::new()
            .name("port".to_owned())
            .spawn(move || run(port, &end))
            .map_err(|error| Failure::running(&error))?;
        Ok(Self::Thread(keep, thread))
    }

    /// Closes the port.
    pub(crate) fn stop(self) {
        match self {
            Self::Idle(port) => drop(port),
            Self::Thread(keep, thread) => {
                drop(keep);
                if thread.join().is_err() {
                    log::error!("the thread that tends the port panicked");
                }
            }
        }
    }
}

fn run(mut port: Box<dyn Port>, end: &std::io::PipeReader) {
    loop {
        port.tend();
        let limit = port.tend_every().unwrap_or(Duration::from_secs(1));
        match wait(end, &*port, limit) {
            Ok(false) => {}
            Ok(true) => return,
            Err(error) => {
                log::error!("{}: wait: {error}", port.name());
                std::thread::sleep(limit);
            }
        }
    }
}

/// Waits until the port has something to say or the time is up; answers whether this is the end.
fn wait(end: &std::io::PipeReader, port: &dyn Port, limit: Duration) -> Result<bool, Errno> {
    let mut entries = vec![PollFd::new(end, PollFlags::IN)];
    let reports = port.tend_fd();
    entries.extend(reports.as_ref().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)));
    let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
    match poll(&mut entries, Some(&limit)) {
        Ok(_) => Ok(!entries[0].revents().is_empty()),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    }
}
