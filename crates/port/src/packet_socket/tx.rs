//! The transmit queue of a packet socket: one system call per burst.
//!
//! The kernel copies what it is given, so buffers come back at once and there is nothing to reap.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use packet::{Burst, Pool};

use super::batch::Batch;
use crate::{TxCounters, TxQueue};

#[derive(Debug)]
pub(super) struct PacketTx {
    socket: OwnedFd,
    vnet: bool,
    batch: Batch,
    counters: TxCounters,
    /// How often in a row nothing was taken.
    stuck: u32,
}

impl PacketTx {
    pub(super) fn new(socket: OwnedFd, vnet: bool) -> Self {
        Self { socket, vnet, batch: Batch::new(), counters: TxCounters::default(), stuck: 0 }
    }

    /// Whether the frame at the front has to stay with the caller after this error.
    #[cold]
    fn is_full(&mut self, error: &io::Error) -> bool {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                self.counters.full += 1;
                self.stuck = self.stuck.saturating_add(1);
                // A port that is full for good (nobody behind it takes anything) must not hold its
                // caller for ever: until it takes a frame again it is a wire that loses them.
                self.stuck < STUCK_FOR_GOOD
            }
            // Down, gone, or a frame that the kernel does not take: a wire loses it too.
            _ => false,
        }
    }
}

impl TxQueue for PacketTx {
    fn tx_burst(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize {
        let mut left = 0;
        while !burst.is_empty() {
            let taken = match self.batch.send(self.socket.as_fd(), burst.frames(), self.vnet) {
                Ok(sent) => {
                    self.counters.count(&burst.frames()[..sent]);
                    self.stuck = 0;
                    sent
                }
                Err(error) if self.is_full(&error) => break,
                Err(_) => {
                    self.counters.refused += 1;
                    1
                }
            };
            for frame in burst.drain_front(taken) {
                pool.recycle(frame);
            }
            left += taken;
        }
        left
    }

    fn reap(&mut self, _pool: &mut Pool) {}

    fn counters(&self) -> TxCounters {
        self.counters
    }
}

/// Attempts in a row after which frames are given up. Callers pause between attempts.
const STUCK_FOR_GOOD: u32 = 2000;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use packet::{Checksum, Frame, VlanTag};

    use super::*;
    use crate::pieces;

    fn queue(vnet: bool) -> (PacketTx, UnixDatagram) {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        (PacketTx::new(ours.into(), vnet), theirs)
    }

    fn frame(bytes: &[u8], pool: &mut Pool) -> Frame {
        pieces::frame(bytes.len(), pool, |offset, to| {
            to.copy_from_slice(&bytes[offset..][..to.len()]);
        })
        .unwrap()
    }

    fn received(socket: &UnixDatagram) -> Vec<u8> {
        let mut bytes = vec![0; 70_000];
        let count = socket.recv(&mut bytes).unwrap();
        bytes.truncate(count);
        bytes
    }

    #[test]
    fn a_burst_leaves_in_order_with_headers_and_tags() {
        let (mut tx, theirs) = queue(true);
        let (mut pool, mut burst) = (Pool::new(64, 64), Burst::new(8));
        let bytes: Vec<u8> = (0..150).collect();
        let mut tagged = frame(&bytes, &mut pool);
        tagged.meta.vlan = Some(VlanTag { tpid: 0x88a8, tci: 0x1234 });
        tagged.meta.checksum = Checksum::Partial { start: 34, offset: 6 };
        burst.push(frame(&bytes[..60], &mut pool));
        burst.push(tagged);
        assert_eq!(tx.tx_burst(&mut burst, &mut pool), 2);
        assert_eq!(received(&theirs), [&[0; 10], &bytes[..60]].concat());
        let mut header = [0; 10];
        header[0] = 1;
        header[6..8].copy_from_slice(&38u16.to_ne_bytes());
        header[8..10].copy_from_slice(&6u16.to_ne_bytes());
        let tag = [0x88, 0xa8, 0x12, 0x34];
        assert_eq!(received(&theirs), [&header, &bytes[..12], &tag, &bytes[12..]].concat());
        assert_eq!(tx.counters(), TxCounters { frames: 2, bytes: 210, ..TxCounters::default() });
        assert_eq!(pool.available(), 64);
    }

    #[test]
    fn without_a_header_only_the_frame_leaves() {
        let (mut tx, theirs) = queue(false);
        let (mut pool, mut burst) = (Pool::new(4, 64), Burst::new(8));
        burst.push(frame(&[3; 60], &mut pool));
        assert_eq!(tx.tx_burst(&mut burst, &mut pool), 1);
        assert_eq!(received(&theirs), [3; 60]);
    }

    #[test]
    fn a_frame_that_is_none_is_refused_and_the_others_leave() {
        let (mut tx, theirs) = queue(true);
        let (mut pool, mut burst) = (Pool::new(64, 64), Burst::new(80));
        for len in [60, 13, 61, 62, 0] {
            burst.push(frame(&vec![1; len], &mut pool));
        }
        let mut far = frame(&[1; 60], &mut pool);
        far.meta.checksum = Checksum::Partial { start: u16::MAX, offset: 0 };
        far.meta.vlan = Some(VlanTag { tpid: 0x8100, tci: 0 });
        burst.push(far);
        assert_eq!(tx.tx_burst(&mut burst, &mut pool), 6);
        assert_eq!((tx.counters().frames, tx.counters().refused), (3, 3));
        for len in [60, 61, 62] {
            assert_eq!(received(&theirs).len(), 10 + len);
        }
        assert_eq!(pool.available(), 64);
    }

    #[test]
    fn a_full_socket_leaves_frames_with_the_caller_but_not_for_ever() {
        let (mut tx, theirs) = queue(true);
        let (mut pool, mut burst) = (Pool::new(2000, 64), Burst::new(1000));
        for _ in 0..1000 {
            burst.push(frame(&[1; 60], &mut pool));
        }
        let left = tx.tx_burst(&mut burst, &mut pool);
        assert!(left < 1000 && tx.counters().full == 1);
        assert_eq!((burst.len(), pool.available()), (1000 - left, 1000 + left));
        for _ in 0..left {
            received(&theirs);
        }
        // Taken again up to the same point, which is the first of the attempts in a row.
        assert_eq!(tx.tx_burst(&mut burst, &mut pool), left);
        for _ in 2..STUCK_FOR_GOOD {
            assert_eq!(tx.tx_burst(&mut burst, &mut pool), 0);
        }
        assert_eq!(tx.counters().refused, 0);
        let lost = burst.len();
        assert_eq!(tx.tx_burst(&mut burst, &mut pool), lost);
        assert_eq!((tx.counters().refused, pool.available()), (lost as u64, 2000));
        // And all is well again as soon as one is taken.
        received(&theirs);
        burst.push(frame(&[1; 60], &mut pool));
        assert_eq!(tx.tx_burst(&mut burst, &mut pool), 1);
        assert_eq!((tx.counters().frames, tx.stuck), (2 * left as u64 + 1, 0));
    }

    #[test]
    fn more_pieces_than_a_call_takes() {
        let (mut tx, theirs) = queue(true);
        let (mut pool, mut burst) = (Pool::new(4000, 16), Burst::new(8));
        // Three frames that only fit three calls, one that fits none, and an ordinary one.
        for len in [9000, 9001, 9002, 20_000, 60] {
            burst.push(frame(&vec![1; len], &mut pool));
        }
        assert_eq!(tx.tx_burst(&mut burst, &mut pool), 5);
        assert_eq!((tx.counters().frames, tx.counters().refused), (4, 1));
        for len in [9000, 9001, 9002, 60] {
            assert_eq!(received(&theirs).len(), 10 + len);
        }
    }
}
