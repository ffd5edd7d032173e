//! Another model, back to back: a frame is a datagram.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Wire;
use super::kind::none_if_would_block;

/// Own socket, and where the other one is.
pub(super) struct Peer {
    socket: UnixDatagram,
    own: PathBuf,
    other: PathBuf,
    /// Frames under way: the kernel holds ten.
    pending: VecDeque<Vec<u8>>,
}

/// Frames that may be under way; more are lost.
const MOST: usize = 1024;

impl Peer {
    pub(super) fn open(own: &Path, other: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::bind(own)?;
        socket.set_nonblocking(true)?;
        let pending = VecDeque::new();
        Ok(Self { socket, own: own.to_owned(), other: other.to_owned(), pending })
    }
}

impl Peer {
    /// Sends what is under way, as far as the other end takes it.
    fn flush(&mut self) -> io::Result<()> {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        while let Some(frame) = self.pending.front() {
            match self.socket.send_to(frame, &self.other) {
                // Nobody is plugged in there yet, or any more: lost.
                Err(error) if matches!(error.kind(), NotFound | ConnectionRefused) => {}
                result => {
                    if none_if_would_block(result)?.is_none() {
                        return Ok(());
                    }
                }
            }
            self.pending.pop_front();
        }
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.own) {
            log::warn!("{}: {error}", self.own.display());
        }
    }
}

impl Wire for Peer {
    fn receive(&mut self, _now: Duration, frame: &mut [u8]) -> io::Result<Option<usize>> {
        self.flush()?;
        none_if_would_block(self.socket.recv(frame))
    }

    fn send(&mut self, _now: Duration, frame: &[u8]) -> io::Result<()> {
        if self.pending.len() < MOST {
            self.pending.push_back(frame.to_vec());
        }
        self.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_go_both_ways() {
        let dir = tempfile::tempdir().expect("a directory");
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        let mut left = Peer::open(&a, &b).expect("a socket");
        let now = Duration::ZERO;
        left.send(now, b"lost: nobody is there").expect("a loss is no error");
        let mut right = Peer::open(&b, &a).expect("a socket");
        let mut frame = [0; 32];
        assert_eq!(right.receive(now, &mut frame).ok(), Some(None));
        left.send(now, b"over").expect("sent");
        assert_eq!(right.receive(now, &mut frame).ok(), Some(Some(4)));
        right.send(now, b"back").expect("sent");
        assert_eq!(left.receive(now, &mut frame).ok(), Some(Some(4)));
        assert_eq!(&frame[..4], b"back");
        for _ in 0..40 {
            left.send(now, b"many").expect("sent, or under way");
        }
        for _ in 0..40 {
            assert_eq!(right.receive(now, &mut frame).ok(), Some(Some(4)));
            left.receive(now, &mut [0; 32]).expect("nothing");
        }
        drop((left, right));
        assert!(!a.exists() && !b.exists(), "sockets are removed");
    }
}
