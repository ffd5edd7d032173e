//! Moves messages between the front end's socket and the protocol library's, through the [`Shim`].
//!
//! One thread per connection waits for both sockets. The library is reached over a Unix socket of
//! this process that has no name any more: see [`Inlet`].

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use vhost::vhost_user::Listener;

use super::message::{self, Message};
use super::shim::{Action, Notice, Shim};

/// How a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Bytes that can't be a message, or a socket that failed.
    #[error(transparent)]
    Message(#[from] message::Error),
    /// A request that can't be served.
    #[error(transparent)]
    Shim(#[from] super::shim::Error),
    /// The protocol library gave up; it has logged why.
    #[error("a request of the front end was refused")]
    Refused,
}

/// A listening socket for connections inside this process.
///
/// The library only takes connections from a listener. This one lives in a directory of its own for
/// the moment of its creation and is reached through its descriptor afterwards, so that nobody else
/// can connect to it.
#[derive(Debug)]
pub(super) struct Inlet {
    listener: UnixListener,
    inode: OwnedFd,
}

impl Inlet {
    /// Makes the listener.
    ///
    /// # Errors
    ///
    /// When no temporary directory can be written to.
    pub(super) fn new() -> io::Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("inlet");
        let listener = UnixListener::bind(&path)?;
        let inode = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { listener, inode })
    }

    /// A new connection: our end of it, and the listener from which the library takes the other.
    ///
    /// # Errors
    ///
    /// When descriptors run out.
    pub(super) fn connect(&self) -> io::Result<(UnixStream, Listener)> {
        let stream = UnixStream::connect(format!("/proc/self/fd/{}", self.inode.as_raw_fd()))?;
        Ok((stream, Listener::from(self.listener.try_clone()?)))
    }
}

/// Relays until one side closes. Returns when the front end has left (`Ok`) or the connection can't go
/// on; both sockets are shut down then.
///
/// # Errors
///
/// See [`Error`].
pub(super) fn run(
    front: &UnixStream,
    library: &UnixStream,
    mut shim: Shim,
    mut tell: impl FnMut(Notice),
) -> Result<(), Error> {
    let result = relay(front, library, &mut shim, &mut tell);
    // Whoever still waits for a message gets an end of file; an error means that it is closed already.
    let _ = library.shutdown(std::net::Shutdown::Both);
    let _ = front.shutdown(std::net::Shutdown::Both);
    result
}

fn relay(
    front: &UnixStream,
    library: &UnixStream,
    shim: &mut Shim,
    tell: &mut impl FnMut(Notice),
) -> Result<(), Error> {
    // Requests that the library has yet to answer: our own answers must not overtake its answers.
    let mut unanswered = 0_usize;
    loop {
        let [from_front, from_library] = readable(front, library, None)?;
        if from_library {
            let Some(answer) = message::receive(library)? else { return Err(Error::Refused) };
            unanswered = unanswered.saturating_sub(1);
            message::send(front, &shim.answer(answer))?;
            continue;
        }
        if !from_front {
            continue;
        }
        let Some(request) = message::receive(front)? else { return Ok(()) };
        log::debug!(
            "front end: request {} flags {:#x} body {:02x?} fds {}",
            request.request,
            request.flags,
            request.body,
            request.fds.len()
        );
        for action in shim.request(request)? {
            match action {
                Action::Forward(request) => {
                    unanswered += usize::from(shim.expects_answer(&request));
                    message::send(library, &request)?;
                }
                Action::Answer(answer) => {
                    drain_answers(front, library, shim, &mut unanswered)?;
                    message::send(front, &answer)?;
                }
                Action::Tell(notice) => tell(notice),
            }
        }
    }
}

/// Passes on what the library still has to answer.
fn drain_answers(
    front: &UnixStream,
    library: &UnixStream,
    shim: &mut Shim,
    unanswered: &mut usize,
) -> Result<(), Error> {
    while *unanswered > 0 {
        if !readable(library, library, Some(ANSWER_LIMIT))?[0] {
            log::warn!("{unanswered} request(s) of the front end got no answer");
            *unanswered = 0;
            break;
        }
        let Some(answer) = message::receive(library)? else { return Err(Error::Refused) };
        *unanswered -= 1;
        let answer: Message = shim.answer(answer);
        message::send(front, &answer)?;
    }
    Ok(())
}

/// Waits until one of two sockets can be read or is closed; which.
fn readable(a: &UnixStream, b: &UnixStream, limit: Option<Duration>) -> Result<[bool; 2], Error> {
    let mut fds = [
        PollFd::from_borrowed_fd(a.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(b.as_fd(), PollFlags::IN),
    ];
    let limit = limit
        .map(|limit| rustix::event::Timespec::try_from(limit).expect("the limit is a few seconds"));
    rustix::io::retry_on_intr(|| poll(&mut fds, limit.as_ref()))
        .map_err(|error| message::Error::Socket(error.into()))?;
    Ok([!fds[0].revents().is_empty(), !fds[1].revents().is_empty()])
}

/// How long the library may take for an answer that it owes.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::super::request as req;
    use super::*;

    #[test]
    fn an_inlet_connects_though_its_name_is_gone() {
        let inlet = Inlet::new().unwrap();
        for _ in 0..3 {
            let (ours, listener) = inlet.connect().unwrap();
            let theirs = listener.accept().unwrap().unwrap();
            message::send(&ours, &Message::answer(1, 5)).unwrap();
            assert_eq!(message::receive(&theirs).unwrap().unwrap().u64_at(0), Some(5));
        }
    }

    #[test]
    fn our_answers_do_not_overtake_the_library() {
        let (front, front_end) = UnixStream::pair().unwrap();
        let (library, library_end) = UnixStream::pair().unwrap();
        let relay = std::thread::spawn(move || {
            run(&front, &library, Shim::new(1, None), |_| ()).map_err(|error| error.to_string())
        });
        // Two requests at once, the first for the library, the second for the shim.
        message::send(&front_end, &Message::request(1, vec![])).unwrap();
        message::send(&front_end, &Message::request(req::GET_QUEUE_NUM, vec![])).unwrap();
        let request = message::receive(&library_end).unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        message::send(&library_end, &Message::answer(request.request, 77)).unwrap();
        let next = || message::receive(&front_end).unwrap().unwrap();
        assert_eq!(
            [next(), next()].map(|answer| (answer.request, answer.u64_at(0))),
            [(1, Some(77)), (req::GET_QUEUE_NUM, Some(2)),]
        );
        drop(front_end);
        assert_eq!(relay.join().unwrap(), Ok(()));
    }

    #[test]
    fn a_library_that_gives_up_ends_the_connection() {
        let (front, front_end) = UnixStream::pair().unwrap();
        let (library, library_end) = UnixStream::pair().unwrap();
        drop(library_end);
        let result = run(&front, &library, Shim::new(1, None), |_| ());
        assert!(matches!(result, Err(Error::Refused)));
        assert!(message::receive(&front_end).unwrap().is_none());
    }
}
