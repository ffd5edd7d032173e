//! Making the connection: the guest goes to the back end, or the back end comes to it.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::config::Connect;
use crate::error::{Error, Result};

/// Where connections come from. It lives as long as the guest, so that a back end can come back.
#[derive(Debug)]
pub(crate) struct Door {
    way: Way,
    attempts: u32,
}

#[derive(Debug)]
enum Way {
    Path(PathBuf),
    Listener(PathBuf, UnixListener),
    Stream(Option<UnixStream>),
}

impl Door {
    /// For a guest that listens, makes the socket.
    pub(crate) fn new(connect: Connect, attempts: u32) -> Result<Self> {
        let way = match connect {
            Connect::Path(path) => Way::Path(path),
            Connect::Listen(path) => match UnixListener::bind(&path) {
                Ok(listener) => Way::Listener(path, listener),
                Err(source) => return Err(Error::Listen { path, source }),
            },
            Connect::Stream(stream) => Way::Stream(Some(stream)),
        };
        Ok(Self { way, attempts })
    }

    /// The next connection. Tries every ten milliseconds; waits as long where the back end comes.
    pub(crate) fn open(&mut self) -> Result<UnixStream> {
        let failed = |path: &Path, source| Error::Connect { path: path.to_owned(), source };
        match &mut self.way {
            Way::Path(path) => go(path, self.attempts).map_err(|error| failed(path, error)),
            Way::Listener(path, listener) => {
                wait(listener, self.attempts).map_err(|error| failed(path, error))
            }
            Way::Stream(stream) => stream.take().ok_or(Error::NoWayBack),
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if let Way::Listener(path, _) = &self.way {
            // Gone already is as good.
            std::fs::remove_file(path).ok();
        }
    }
}

fn go(path: &Path, attempts: u32) -> io::Result<UnixStream> {
    let mut last = io::Error::from(io::ErrorKind::InvalidInput);
    for attempt in 0..attempts.max(1) {
        if attempt > 0 {
            sleep(PAUSE);
        }
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => last = error,
                _ => return Err(error),
            },
        }
    }
    Err(last)
}

fn wait(listener: &UnixListener, attempts: u32) -> io::Result<UnixStream> {
    let time = PAUSE * attempts.max(1);
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    if poll(&mut fds, Some(&time))? == 0 {
        return Err(io::Error::from(io::ErrorKind::TimedOut));
    }
    Ok(listener.accept()?.0)
}

const PAUSE: Duration = Duration::from_millis(10);
