//! The receive queue of a packet socket: slots become frames.
//!
//! A slot is looked at, its frame copied, and given back. When the pool is empty the slot stays, and
//! the kernel drops what no longer fits the ring (counted as missed). What the kernel lost is asked for
//! when a slot says that something was lost, and before sleeping.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use packet::{Burst, Frame, Pool, VlanTag};

use super::ring::{FIRST_BYTE, Ring, Slot};
use crate::interface::Interface;
use crate::pieces::{self, Reader, Received, SHORTEST};
use crate::vnet::{self, Header};
use crate::{Armed, End, RxCounters, RxQueue, sys};

#[derive(Debug)]
pub(super) struct PacketRx {
    interface: Arc<Interface>,
    socket: File,
    ring: Ring,
    reader: Reader,
    vnet: bool,
    counters: RxCounters,
    idle_polls: u32,
    end: Option<End>,
}

/// What became of the frame in a slot.
enum Taken {
    Frame(Frame),
    /// It can't be taken now: the slot stays.
    NoBuffer,
    /// It is none that arrived.
    Ours,
    Malformed,
    TooLong,
    /// The kernel had no room for all of it.
    Missed,
}

impl PacketRx {
    pub(super) fn new(interface: Arc<Interface>, socket: OwnedFd, ring: Ring, vnet: bool) -> Self {
        Self {
            interface,
            socket: socket.into(),
            ring,
            reader: Reader::new(),
            vnet,
            counters: RxCounters::default(),
            idle_polls: 0,
            end: None,
        }
    }

    #[inline]
    fn take(&mut self, slot: Slot, pool: &mut Pool) -> Taken {
        if slot.captured < slot.len {
            return self.take_long(slot, pool);
        }
        let header_len = if self.vnet { Header::LEN } else { 0 };
        let end = slot.offset.checked_add(slot.captured);
        let fits = end.is_some_and(|end| end <= self.ring.slot_size());
        if slot.captured > slot.len || slot.offset < FIRST_BYTE + header_len || !fits {
            return Taken::Malformed;
        }
        let ring = &self.ring;
        let frame = pieces::frame(slot.len, pool, |offset, to| ring.copy(slot.offset + offset, to));
        let Some(frame) = frame else {
            // A pool that could never hold it must not stop the ring.
            let possible = pieces::buffers(slot.len, pool) <= pool.total();
            return if possible { Taken::NoBuffer } else { Taken::TooLong };
        };
        let mut header = [0; Header::LEN];
        if self.vnet {
            ring.copy(slot.offset - Header::LEN, &mut header);
        }
        self.finish(frame, header, slot, pool)
    }

    /// A frame that does not fit its slot: it waits whole in the socket's queue, in the same order.
    #[cold]
    fn take_long(&mut self, slot: Slot, pool: &mut Pool) -> Taken {
        if slot.status & libc::TP_STATUS_COPY == 0 {
            // The socket's queue was full: the rest of the frame is lost.
            return Taken::Missed;
        }
        let needed = pieces::buffers(slot.len.min(pieces::LONGEST), pool);
        if pool.available() < needed && needed <= pool.total() || pool.available() == 0 {
            return Taken::NoBuffer;
        }
        let mut header = [0; Header::LEN];
        let used = if self.vnet { Header::LEN } else { 0 };
        let mut received = self.reader.read(&self.socket, &mut header[..used], pool);
        if matches!(received, Received::Failed(_)) {
            // An error that the socket had to tell about its interface; it is told once.
            received = self.reader.read(&self.socket, &mut header[..used], pool);
        }
        match received {
            Received::Frame(frame) if frame.len() == slot.len => {
                self.finish(frame, header, slot, pool)
            }
            Received::Frame(frame) => {
                pool.recycle(frame);
                Taken::Malformed
            }
            Received::NoBuffer | Received::TooLong => Taken::TooLong,
            Received::Nothing | Received::Short | Received::Failed(_) => Taken::Malformed,
        }
    }

    /// What is known about the frame beside its bytes.
    #[inline]
    fn finish(&self, mut frame: Frame, header: [u8; 10], slot: Slot, pool: &mut Pool) -> Taken {
        let described = if slot.kind == libc::PACKET_OUTGOING {
            pool.recycle(frame);
            return Taken::Ours;
        } else if frame.len() < SHORTEST {
            Err(vnet::Mismatch)
        } else if self.vnet {
            Header::from_bytes(header).describe(&mut frame)
        } else if slot.status & libc::TP_STATUS_CSUMNOTREADY != 0 {
            vnet::describe_unfinished(&mut frame)
        } else {
            Ok(())
        };
        if described.is_err() {
            pool.recycle(frame);
            return Taken::Malformed;
        }
        if slot.status & libc::TP_STATUS_VLAN_VALID != 0 {
            let known = slot.status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            let tpid = if known { slot.vlan_tpid } else { 0x8100 };
            frame.meta.vlan = Some(VlanTag { tpid, tci: slot.vlan_tci });
        }
        Taken::Frame(frame)
    }

    /// Asks what the kernel has lost; that sets its count back.
    #[cold]
    fn ask_missed(&mut self) {
        let statistics =
            sys::option::<2>(self.socket.as_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS);
        if let Ok([_packets, drops]) = statistics {
            self.counters.missed += u64::from(drops);
        }
    }

    /// What is looked at now and then: losses, and whether the interface is still there.
    #[cold]
    fn chores(&mut self) {
        self.idle_polls = 0;
        self.ask_missed();
        // An error that stays unread (the interface went down) would keep the descriptor readable.
        let _ = sys::option::<1>(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR);
        if self.end.is_none() && !self.interface.exists() {
            let reason = format!("interface '{}' is gone", self.interface.name());
            self.end = Some(End::Failed(reason));
        }
    }
}

impl RxQueue for PacketRx {
    fn rx_burst(&mut self, burst: &mut Burst, pool: &mut Pool) -> usize {
        let before = burst.len();
        let (mut room, mut losing) = (burst.room(), false);
        // Frames that are dropped take no room: one round of the ring is enough for one call.
        for _ in 0..self.ring.slots() {
            if room == 0 {
                break;
            }
            let Some(slot) = self.ring.peek() else { break };
            losing |= slot.status & libc::TP_STATUS_LOSING != 0;
            match self.take(slot, pool) {
                Taken::Frame(frame) => {
                    burst.push(frame);
                    room -= 1;
                }
                Taken::NoBuffer => break,
                Taken::Ours => {}
                Taken::Malformed => self.counters.malformed += 1,
                Taken::TooLong => self.counters.too_long += 1,
                Taken::Missed => self.counters.missed += 1,
            }
            self.ring.release();
        }
        let added = &burst.frames()[before..];
        self.counters.count(added);
        let added = added.len();
        if losing {
            self.ask_missed();
        }
        if added > 0 {
            self.idle_polls = 0;
        } else {
            self.idle_polls += 1;
            if self.idle_polls >= POLLS_BETWEEN_CHORES {
                self.chores();
            }
        }
        added
    }

    fn arm(&mut self) -> Armed {
        self.chores();
        if self.ring.peek().is_some() {
            Armed::Pending
        } else if self.end.is_some() {
            Armed::Unsupported
        } else {
            // The descriptor is readable whenever a filled slot is left: nothing can be missed.
            Armed::Sleep
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn counters(&self) -> RxCounters {
        self.counters
    }

    fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }
}

/// Polls without a frame after which a queue that never sleeps does its chores: some milliseconds.
const POLLS_BETWEEN_CHORES: u32 = 1 << 14;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use packet::Checksum;
    use proptest::prelude::*;

    use super::*;

    /// A queue over a ring that the test fills, and the far end of its "socket".
    fn queue(vnet: bool) -> (PacketRx, UnixDatagram) {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let lo = Arc::new(Interface::find("lo").unwrap());
        (PacketRx::new(lo, ours.into(), Ring::fake(2048, 8), vnet), theirs)
    }

    fn slot(len: usize) -> Slot {
        Slot { len, captured: len, offset: 90, ..Slot::default() }
    }

    fn burst(rx: &mut PacketRx, pool: &mut Pool) -> Vec<Frame> {
        let mut burst = Burst::new(16);
        rx.rx_burst(&mut burst, pool);
        burst.drain().collect()
    }

    #[test]
    fn slots_become_frames() {
        let (mut rx, _theirs) = queue(true);
        let mut pool = Pool::new(8, 64);
        rx.ring.fill(0, Slot { status: libc::TP_STATUS_VLAN_VALID, vlan_tci: 7, ..slot(60) });
        rx.ring.write(0, 90, &[5; 60]);
        rx.ring.write(0, 80, &[2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        rx.ring.fill(1, slot(100));
        rx.ring.write(1, 90, &[6; 100]);
        let frames = burst(&mut rx, &mut pool);
        assert_eq!((frames[0].to_vec(), frames[1].to_vec()), (vec![5; 60], vec![6; 100]));
        assert_eq!(frames[0].meta.vlan, Some(VlanTag { tpid: 0x8100, tci: 7 }));
        assert_eq!(frames[0].meta.checksum, Checksum::Verified { levels: 1 });
        assert_eq!(frames[1].meta.checksum, Checksum::Unknown);
        assert_eq!(frames[1].piece_count(), 2);
        assert_eq!((rx.counters.frames, rx.counters.bytes), (2, 160));
    }

    #[test]
    fn slots_that_make_no_sense_are_counted() {
        let (mut rx, _theirs) = queue(true);
        let mut pool = Pool::new(8, 2048);
        let odd = [
            Slot { offset: 50, ..slot(60) },
            Slot { offset: 2000, ..slot(60) },
            Slot { captured: 70, ..slot(60) },
            slot(13),
            Slot { len: usize::try_from(u32::MAX).unwrap(), captured: 0, ..slot(0) },
            Slot { kind: libc::PACKET_OUTGOING, ..slot(60) },
        ];
        for (ahead, slot) in odd.into_iter().enumerate() {
            rx.ring.fill(ahead, slot);
        }
        assert_eq!(burst(&mut rx, &mut pool).len(), 0);
        assert_eq!((rx.counters.malformed, rx.counters.missed), (4, 1));
        assert_eq!((rx.ring.peek(), pool.available()), (None, 8));
    }

    #[test]
    fn frames_wait_for_buffers_but_not_for_ever() {
        let (mut rx, _theirs) = queue(true);
        let mut pool = Pool::new(2, 64);
        rx.ring.fill(0, slot(129));
        rx.ring.fill(1, slot(128));
        rx.ring.fill(2, slot(60));
        let mut frames = burst(&mut rx, &mut pool);
        assert_eq!((frames.len(), rx.counters.too_long), (1, 1));
        assert_eq!(burst(&mut rx, &mut pool).len(), 0);
        pool.recycle(frames.remove(0));
        assert_eq!(burst(&mut rx, &mut pool).len(), 1);
        assert_eq!(rx.counters.no_buffer, 0);
    }

    #[test]
    fn a_long_frame_comes_from_the_queue_beside_the_ring() {
        let (mut rx, theirs) = queue(true);
        let mut pool = Pool::new(16, 2048);
        let long = Slot { status: libc::TP_STATUS_COPY, captured: 1900, ..slot(9000) };
        let message: Vec<u8> = [vec![0; 10], vec![9; 9000]].concat();
        theirs.send(&message).unwrap();
        rx.ring.fill(0, long);
        // The same without a message, with one of another length, and with a lost rest.
        rx.ring.fill(1, long);
        assert_eq!(burst(&mut rx, &mut pool)[0].to_vec(), vec![9; 9000]);
        theirs.send(&message[1..]).unwrap();
        rx.ring.fill(0, long);
        rx.ring.fill(1, Slot { status: 0, ..long });
        assert_eq!(burst(&mut rx, &mut pool).len(), 0);
        assert_eq!((rx.counters.malformed, rx.counters.missed), (2, 1));
        assert_eq!(pool.available(), 16 - 5);
        // Without buffers it waits.
        let held: Vec<_> = std::iter::from_fn(|| pool.take()).skip(4).collect();
        theirs.send(&message).unwrap();
        rx.ring.fill(0, long);
        assert_eq!(burst(&mut rx, &mut pool).len(), 0);
        held.into_iter().for_each(|buffer| pool.give(buffer));
        assert_eq!(rx.arm(), Armed::Pending);
    }

    #[test]
    fn without_a_header_an_unfinished_checksum_is_found() {
        let (mut rx, _theirs) = queue(false);
        let mut pool = Pool::new(8, 2048);
        rx.ring.fill(0, Slot { status: libc::TP_STATUS_CSUMNOTREADY, ..slot(60) });
        rx.ring.write(0, 102, &[0x08, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17]);
        rx.ring.fill(1, Slot { status: libc::TP_STATUS_CSUMNOTREADY, ..slot(60) });
        rx.ring.fill(2, slot(60));
        let frames = burst(&mut rx, &mut pool);
        assert_eq!(frames[0].meta.checksum, Checksum::Partial { start: 34, offset: 6 });
        assert_eq!(frames[1].meta.checksum, Checksum::Unknown);
        assert_eq!((frames.len(), rx.counters.malformed), (2, 1));
    }

    #[test]
    fn arming_looks_at_the_ring() {
        let (mut rx, _theirs) = queue(true);
        assert_eq!(rx.arm(), Armed::Sleep);
        rx.ring.fill(0, slot(60));
        assert_eq!(rx.arm(), Armed::Pending);
    }

    proptest! {
        #[test]
        fn whatever_a_slot_says_every_buffer_is_accounted_for(
            slots in prop::collection::vec(
                (any::<u32>(), 0..3000usize, 0..3000usize, any::<u16>(), any::<u8>(), any::<[u8; 10]>()),
                1..8,
            ),
            vnet in any::<bool>(),
        ) {
            let (mut rx, theirs) = queue(vnet);
            theirs.send(&[1; 100]).unwrap();
            let mut pool = Pool::new(16, 256);
            let count = slots.len() as u64;
            for (ahead, (status, len, captured, offset, kind, header)) in slots.into_iter().enumerate() {
                let near = usize::from(offset) % 2100;
                rx.ring.fill(ahead, Slot { status, len, captured, offset: near, kind, ..Slot::default() });
                if (10..=2048).contains(&near) {
                    rx.ring.write(ahead, near - 10, &header);
                }
            }
            let mut total = 0;
            for _ in 0..8 {
                let frames = burst(&mut rx, &mut pool);
                total += frames.len() as u64;
                frames.into_iter().for_each(|frame| pool.recycle(frame));
            }
            prop_assert_eq!(rx.ring.peek(), None);
            prop_assert_eq!(pool.available(), 16);
            let RxCounters { malformed, too_long, missed, .. } = rx.counters;
            prop_assert!(total + malformed + too_long + missed <= count);
            prop_assert_eq!(total, rx.counters.frames);
        }
    }
}
