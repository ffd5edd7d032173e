//! Two ends of a cable in one process.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::Wire;

/// An end.
#[derive(Debug)]
pub struct Pair {
    sender: Sender<Vec<u8>>,
    receiver: Receiver<Vec<u8>>,
}

impl Pair {
    /// Both ends.
    pub fn new() -> (Self, Self) {
        let ((to_right, from_left), (to_left, from_right)) = (channel(), channel());
        let left = Self { sender: to_right, receiver: from_right };
        let right = Self { sender: to_left, receiver: from_left };
        (left, right)
    }
}

impl Wire for Pair {
    fn receive(&mut self, _now: Duration, frame: &mut [u8]) -> io::Result<Option<usize>> {
        let Ok(bytes) = self.receiver.try_recv() else { return Ok(None) };
        let len = bytes.len().min(frame.len());
        frame[..len].copy_from_slice(&bytes[..len]);
        Ok(Some(len))
    }

    fn send(&mut self, _now: Duration, frame: &[u8]) -> io::Result<()> {
        // The other end may be gone: its frames are lost.
        let _ = self.sender.send(frame.to_vec());
        Ok(())
    }
}
