//! Receive: frames into the guest's buffers.
//!
//! Life of a burst: read how far the guest's available index is; for each frame choose the header that
//! the guest has negotiated, gather as many buffers as the packet needs, copy header and bytes, write the
//! used elements of all its buffers; at the end publish the used index, once, and call the guest, at most
//! once. Every buffer of the burst's frames goes back to the pool.
//!
//! ```text
//!   frame   ┌ head ────────────┐┌ piece ────────┐┌ piece ────────┐
//!           ▼                  ▼▼               ▼▼               ▼
//!   ┌────┬──────────────────────┐┌───────────────────────────┐┌──────────────┬┄┄┄┄┄┐
//!   │ hdr│ 1st buffer, full     ││ 2nd buffer, full          ││ 3rd, the rest│     │
//!   └────┴──────────────────────┘└───────────────────────────┘└──────────────┴┄┄┄┄┄┘
//!   num_buffers = 3 (MRG_RXBUF); without it one chain has to hold everything
//! ```
//!
//! A frame that the guest can't take as it is (a super-packet of a kind that was not negotiated, or
//! larger than what is posted) goes through the sibling module `rework`. The ring never waits for the
//! guest: what finds no room is dropped and counted.

mod header;
mod rework;

use std::fmt;

use packet::{Frame, Pool, VlanTag};

use crate::counters::RxFillCounters;
use crate::feature::{Features, GuestOffloads, VIRTIO_NET_F_MRG_RXBUF};
use crate::header::NetHeader;
use crate::ring::{Access, Chain, ChainError, Fault, Notified, RingError, SplitRing};
use header::Plan;

/// Fills one receive ring.
pub struct RxFill {
    ring: SplitRing,
    features: Features,
    accept: GuestOffloads,
    header_len: u32,
    mergeable: bool,
    /// Size of the buffer that was used last; 0 when none was seen yet.
    buffer_len: u32,
    /// The buffers of the packet at hand.
    chains: [Chain; MOST_BUFFERS],
    /// Bad chains that this delivery may still give back: a guest that makes them as fast as they are
    /// refused must not keep the worker.
    refusals: u16,
    /// Segments of a super-packet that was cut; empty between frames.
    segments: Vec<Frame>,
    counters: RxFillCounters,
}

/// What became of a burst.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delivered {
    /// Packets that the guest has now.
    pub packets: u64,
    /// Segments that were dropped.
    pub dropped: u64,
    /// The guest was called.
    pub called: bool,
}

/// What the guest has room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Buffers posted and not used.
    pub buffers: u16,
    /// The largest super-packet that may be built now, in bytes of its IP packet; 0 when none.
    pub super_limit: u32,
}

/// Why a packet finds no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Full {
    /// Too few buffers are posted.
    Room,
    /// It would take more buffers than a packet may have.
    Size,
    /// The ring is broken.
    Broken,
}

impl RxFill {
    /// A filler for a ring, by the features that the guest acknowledged. Asks the guest for no kicks: new
    /// buffers are noticed when they are needed.
    pub fn new(mut ring: SplitRing, features: Features) -> Self {
        ring.disable_notification();
        let header_len = if features.header_len() == 10 { 10 } else { 12 };
        Self {
            ring,
            features,
            accept: features.accept(),
            header_len,
            mergeable: features.has(VIRTIO_NET_F_MRG_RXBUF),
            buffer_len: 0,
            chains: [Chain { head: 0, len: 0 }; MOST_BUFFERS],
            refusals: MOST_REFUSALS,
            segments: Vec::with_capacity(64),
            counters: RxFillCounters::default(),
        }
    }

    /// Hands all frames to the guest as far as it has room, and all their buffers to the pool. The used
    /// index is published once and the guest called at most once, at the end.
    #[inline]
    pub fn deliver(&mut self, frames: &mut Vec<Frame>, pool: &mut Pool) -> Delivered {
        let (packets, dropped) = (self.counters.frames, self.counters.dropped());
        self.counters.deliveries += 1;
        self.refusals = MOST_REFUSALS;
        // An error is kept by the ring: each frame finds it there and is counted.
        let _ = self.ring.available();
        for frame in frames.drain(..) {
            self.frame(frame, pool);
        }
        let called = self.publish();
        Delivered {
            packets: self.counters.frames - packets,
            dropped: self.counters.dropped() - dropped,
            called,
        }
    }

    /// What the guest has room for now, judged by the size of the buffer that was used last. With
    /// MRG_RXBUF a super-packet should take no more than 17 buffers, because some drivers keep arrays of
    /// that size (64 KiB in pages and one more), and no more than half of those posted.
    #[inline]
    pub fn room(&mut self) -> Room {
        let Ok(buffers) = self.ring.available() else { return Room::default() };
        if self.buffer_len == 0 && buffers > 0 {
            self.look_at_first();
        }
        let count = if self.mergeable { (buffers / 2).min(SUPER_BUFFERS) } else { buffers.min(1) };
        let bytes = u32::from(count).saturating_mul(self.buffer_len);
        let super_limit = bytes.saturating_sub(self.header_len + LINK_HEADERS).min(LARGEST_IP);
        Room { buffers, super_limit }
    }

    /// The features it was made with.
    #[inline]
    pub fn features(&self) -> Features {
        self.features
    }

    /// What was counted so far.
    #[inline]
    pub fn counters(&self) -> &RxFillCounters {
        &self.counters
    }

    /// Why the ring no longer works.
    #[inline]
    pub fn broken(&self) -> Option<&RingError> {
        self.ring.broken()
    }

    /// Index of the next chain to take.
    pub fn next_avail(&self) -> u16 {
        self.ring.next_avail()
    }

    /// Index of the next used element to write.
    pub fn next_used(&self) -> u16 {
        self.ring.next_used()
    }

    /// The ring, to go on with it in another way.
    pub fn into_ring(self) -> SplitRing {
        self.ring
    }

    #[inline]
    fn frame(&mut self, frame: Frame, pool: &mut Pool) {
        match header::plan(&frame, self.accept) {
            Plan::Hand(header) => match self.put(&frame, header) {
                Ok(()) => pool.recycle(frame),
                Err(full) => self.no_place(frame, full, pool),
            },
            Plan::Complete => self.complete(frame, pool),
            Plan::Cut => self.cut(frame, pool),
            Plan::Drop(reason) => self.drop(frame, reason, pool),
        }
    }

    /// Writes one packet into the guest's buffers.
    #[inline]
    fn put(&mut self, frame: &Frame, header: NetHeader) -> Result<(), Full> {
        let bytes = frame.len() + frame.meta.vlan.map_or(0, |_| TAG_LEN);
        let Ok(bytes) = u32::try_from(bytes) else { return Err(Full::Size) };
        let most = if self.mergeable { MOST_BUFFERS } else { 1 };
        let count = self.gather(self.header_len.saturating_add(bytes), most)?;
        self.copy(frame, NetHeader { num_buffers: count, ..header });

        let (last, full) = self.chains[..usize::from(count)].split_last().expect("one at least");
        let mut rest = self.header_len + bytes;
        for chain in full {
            self.ring.give_back(chain.head, chain.len);
            rest -= chain.len;
        }
        self.ring.give_back(last.head, rest);
        self.buffer_len = last.len;

        let counters = &mut self.counters;
        counters.frames += 1;
        counters.bytes += u64::from(bytes);
        counters.buffers += u64::from(count);
        match frame.meta.gso {
            Some(gso) if header.gso_type != 0 => {
                counters.supers += 1;
                counters.segments += u64::from(gso.segments);
            }
            _ => counters.segments += 1,
        }
        Ok(())
    }

    /// Checks chains from the next on until they hold `total` bytes; answers how many these are, in
    /// `self.chains`. Nothing is taken yet, except bad chains: they are given back, and the good ones
    /// before them as well, so that used buffers stay in order and those of a packet side by side.
    #[inline]
    fn gather(&mut self, total: u32, most: usize) -> Result<u16, Full> {
        'again: loop {
            self.ring.forget_buffers();
            let (mut have, mut count) = (0u32, 0u16);
            while have < total {
                if usize::from(count) == most {
                    return Err(Full::Size);
                }
                if count == self.ring.seen() && !self.more(count)? {
                    return Err(Full::Room);
                }
                let (head, reason) = match self.ring.chain(count, Access::Write) {
                    Ok(chain) if chain.len >= self.header_len => {
                        self.chains[usize::from(count)] = chain;
                        have = have.saturating_add(chain.len);
                        count += 1;
                        continue;
                    }
                    Ok(chain) => (chain.head, ChainError::TooShort),
                    Err(Fault::Chain { head, reason }) => (head, reason),
                    Err(Fault::Ring(_)) => return Err(Full::Broken),
                };
                if self.refusals == 0 {
                    return Err(Full::Room);
                }
                self.refusals -= 1;
                self.refuse(count, head, reason);
                continue 'again;
            }
            return Ok(count);
        }
    }

    /// Copies header and bytes into the buffers that were gathered.
    #[inline]
    fn copy(&mut self, frame: &Frame, header: NetHeader) {
        let bytes = header.to_bytes();
        if self.header_len == 12 {
            self.ring.write_array(bytes);
        } else {
            self.ring.write(&bytes[..10]);
        }
        let head = frame.head();
        if let Some(tag) = frame.meta.vlan {
            self.copy_tagged(head, tag);
        } else {
            self.ring.write(head);
        }
        for piece in frame.tail() {
            self.ring.write(piece.bytes());
        }
    }

    /// The tag goes where it was on the wire: behind the two addresses.
    fn copy_tagged(&mut self, head: &[u8], tag: VlanTag) {
        let (addresses, rest) = head.split_at(ADDRESSES);
        let ([p0, p1], [c0, c1]) = (tag.tpid.to_be_bytes(), tag.tci.to_be_bytes());
        self.ring.write(addresses);
        self.ring.write_array([p0, p1, c0, c1]);
        self.ring.write(rest);
    }

    #[inline]
    fn publish(&mut self) -> bool {
        if self.ring.publish() == 0 {
            return false;
        }
        let notified = self.ring.notify();
        self.counters.published(notified);
        notified == Notified::Called
    }
}

impl fmt::Debug for RxFill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RxFill")
            .field("ring", &self.ring)
            .field("features", &self.features)
            .field("buffer_len", &self.buffer_len)
            .finish_non_exhaustive()
    }
}

/// Buffers of a packet at most. One of 64 KiB in buffers for an MTU of 1500 takes 44, and every device
/// in use hands those over; cutting them would also keep the guest's buffers as small as they are.
const MOST_BUFFERS: usize = 64;
/// Buffers of a super-packet at most, where it is ours to choose how large it gets.
const SUPER_BUFFERS: u16 = 17;
/// Bad chains that are given back in one delivery; the next goes on.
const MOST_REFUSALS: u16 = 256;
/// The Ethernet header and one VLAN tag.
const LINK_HEADERS: u32 = 14 + 4;
const LARGEST_IP: u32 = 65535;
const TAG_LEN: usize = 4;
/// Destination and source address of an Ethernet header.
const ADDRESSES: usize = 12;

#[cfg(test)]
mod tests;
