//! Transmit: the guest's packets into frames.
//!
//! Life of a chain: its buffers are checked; the packet header is copied out once and judged by
//! `request`, against the features and against the packet's own headers; the bytes are copied into
//! buffers of the pool, all protocol headers in the first; the frame goes into the burst, and its chain
//! back to the guest. At the end of a drain the used index is published once and the guest called at
//! most once.
//!
//! ```text
//!   chain ──▶ header ──judge──▶ copy ──▶ port can do it ────────────────▶ burst
//!     │          └─ lies: dropped ┐      └ can't: complete, or cut ─▶ waiting ─▶ burst (as it has room)
//!     └────── given back ◀────────┘
//! ```
//!
//! What the port can't do is done here in software. Segments that do not fit the burst wait, and come
//! first the next time; while they wait nothing more is taken from the ring, so there is never more
//! than one packet's worth. A packet for which the pool has no buffers stays in the ring.

mod request;

use std::collections::VecDeque;
use std::fmt;

use packet::{Buffer, Burst, Checksum, Frame, GsoKind, Piece, Pool, SegmentError};

use crate::counters::{TxDrainCounters, TxDrop};
use crate::feature::{Features, HostOffloads};
use crate::header::{MAX_LEN, NetHeader};
use crate::ring::{Access, ChainError, Fault, RingError, SplitRing};
use request::Request;

/// Drains one transmit ring.
pub struct TxDrain {
    ring: SplitRing,
    features: Features,
    allow: HostOffloads,
    header_len: usize,
    /// Segments that the burst had no room for, oldest first.
    waiting: VecDeque<Frame>,
    counters: TxDrainCounters,
}

/// What the port does for the frames it transmits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TxOffloads {
    /// It completes partial checksums.
    pub csum: bool,
    /// It cuts TCP super-packets over IPv4.
    pub tso4: bool,
    /// It cuts TCP super-packets over IPv6.
    pub tso6: bool,
    /// It cuts UDP super-packets.
    pub uso: bool,
}

/// What came of a chain.
enum Taken {
    /// It was given back; the packet is in the burst, waits, or was dropped. Bytes that were copied.
    Done(usize),
    /// It stays in the ring.
    Stays,
}

impl TxDrain {
    /// A drainer for a ring, by the features that the guest acknowledged.
    pub fn new(ring: SplitRing, features: Features) -> Self {
        Self {
            ring,
            features,
            allow: features.allow(),
            header_len: features.header_len(),
            waiting: VecDeque::with_capacity(64),
            counters: TxDrainCounters::default(),
        }
    }

    /// Moves packets from the ring into the burst as far as it has room, the pool has buffers and a
    /// budget of chains and bytes lasts; answers how many chains it took. Frames in the burst ask the
    /// port for nothing that it can't do.
    #[inline]
    pub fn drain(&mut self, burst: &mut Burst, pool: &mut Pool, can: TxOffloads) -> usize {
        while burst.room() > 0
            && let Some(frame) = self.waiting.pop_front()
        {
            burst.push(frame);
        }
        let Ok(available) = self.ring.available() else { return 0 };
        let (mut chains, mut bytes) = (0, 0);
        let budget = usize::from(available).min(MOST_CHAINS);
        while chains < budget && bytes < MOST_BYTES && burst.room() > 0 && self.waiting.is_empty() {
            match self.take(burst, pool, can) {
                Taken::Done(count) => bytes += count,
                Taken::Stays => break,
            }
            chains += 1;
        }
        self.publish();
        chains
    }

    /// Gives all chains back unread: what a started but disabled ring has to do with them. Answers how
    /// many.
    pub fn discard(&mut self) -> usize {
        let Ok(available) = self.ring.available() else { return 0 };
        let mut count = 0;
        for _ in 0..available {
            let Ok(head) = self.ring.head(0) else { break };
            self.ring.give_back(head, 0);
            count += 1;
        }
        self.counters.chains += count;
        self.counters.discarded += count;
        self.publish();
        usize::from(available)
    }

    /// Says whether the guest shall kick when it has something to send. Switching kicks on answers
    /// whether there is something already, for which no kick may come.
    pub fn kick(&mut self, on: bool) -> bool {
        if on {
            self.ring.enable_notification() || !self.waiting.is_empty()
        } else {
            self.ring.disable_notification();
            false
        }
    }

    /// Gives the buffers of segments that still wait to the pool: they are not sent.
    pub fn recycle_pending(&mut self, pool: &mut Pool) {
        for frame in self.waiting.drain(..) {
            pool.recycle(frame);
        }
    }

    /// The features it was made with.
    pub fn features(&self) -> Features {
        self.features
    }

    /// What was counted so far.
    #[inline]
    pub fn counters(&self) -> &TxDrainCounters {
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

    /// The ring, to go on with it in another way. Segments that still wait lose their buffers: give
    /// them back first, by [`recycle_pending`](Self::recycle_pending).
    pub fn into_ring(self) -> SplitRing {
        self.ring
    }

    /// Takes the next chain.
    #[inline]
    fn take(&mut self, burst: &mut Burst, pool: &mut Pool, can: TxOffloads) -> Taken {
        self.ring.forget_buffers();
        let chain = match self.ring.chain(0, Access::Read) {
            Ok(chain) => chain,
            Err(Fault::Chain { head, reason }) => return self.bad_chain(head, reason),
            Err(Fault::Ring(_)) => return Taken::Stays,
        };
        let Some(header) = self.header() else {
            return self.bad_chain(chain.head, ChainError::TooShort);
        };
        let len = usize::try_from(chain.len).unwrap_or(usize::MAX).saturating_sub(self.header_len);
        if len < SHORTEST {
            return self.lie(chain.head, TxDrop::TooShort);
        }
        if len > LONGEST || len.div_ceil(pool.buffer_size()) > pool.total() {
            return self.lie(chain.head, TxDrop::TooLong);
        }
        let Some(mut frame) = self.copy(len, pool) else { return self.no_buffers() };
        match request::judge(&frame, header, self.allow) {
            Ok(Request { checksum, gso, layout }) => {
                frame.meta.checksum = checksum;
                frame.meta.gso = gso;
                frame.meta.layout = layout;
            }
            Err(reason) => {
                pool.recycle(frame);
                return self.lie(chain.head, reason);
            }
        }
        self.hand_on(chain.head, frame, burst, pool, can)
    }

    /// The packet header, copied out once.
    #[inline]
    fn header(&mut self) -> Option<NetHeader> {
        if self.header_len == MAX_LEN {
            return self.ring.read_array().map(NetHeader::from_bytes);
        }
        let short: [u8; 10] = self.ring.read_array()?;
        let mut bytes = [0; MAX_LEN];
        bytes[..10].copy_from_slice(&short);
        Some(NetHeader::from_bytes(bytes))
    }

    /// The packet's bytes in buffers of our own; `None` when the pool has too few.
    #[inline]
    fn copy(&mut self, len: usize, pool: &mut Pool) -> Option<Frame> {
        let buffers = len.div_ceil(pool.buffer_size());
        if buffers > pool.available() {
            return None;
        }
        let (first, count) = self.copy_part(len, pool)?;
        let mut frame = Frame::new(first, 0, count);
        for _ in 1..buffers {
            let Some((buffer, count)) = self.copy_part(len - frame.len(), pool) else {
                pool.recycle(frame);
                return None;
            };
            frame.push_piece(Piece::new(buffer, 0, count), pool);
        }
        Some(frame)
    }

    /// As many of `rest` bytes as one buffer takes.
    #[inline]
    fn copy_part(&mut self, rest: usize, pool: &mut Pool) -> Option<(Buffer, u16)> {
        let mut buffer = pool.take()?;
        let count = rest.min(buffer.capacity());
        self.ring.read(&mut buffer.bytes_mut()[..count]);
        let count = u16::try_from(count).expect("a buffer has at most 65535 bytes");
        Some((buffer, count))
    }

    /// Gives the frame the form that the port takes, and its chain back.
    #[inline]
    fn hand_on(
        &mut self,
        head: u16,
        mut frame: Frame,
        burst: &mut Burst,
        pool: &mut Pool,
        can: TxOffloads,
    ) -> Taken {
        let len = frame.len();
        let cuts = match frame.meta.gso.map(|gso| gso.kind) {
            None => {
                let partial = matches!(frame.meta.checksum, Checksum::Partial { .. });
                if partial && !can.csum {
                    if packet::complete_checksum(&mut frame).is_err() {
                        pool.recycle(frame);
                        return self.lie(head, TxDrop::Checksum);
                    }
                    self.counters.completed += 1;
                }
                true
            }
            Some(GsoKind::TcpV4) => can.csum && can.tso4,
            Some(GsoKind::TcpV6) => can.csum && can.tso6,
            Some(GsoKind::UdpV4 | GsoKind::UdpV6) => can.csum && can.uso,
        };
        let super_packet = frame.meta.gso.is_some();
        if cuts {
            burst.push(frame);
        } else if let Err(taken) = self.cut(head, frame, burst, pool) {
            return taken;
        }
        self.ring.give_back(head, 0);
        self.counters.chains += 1;
        self.counters.packets += 1;
        self.counters.supers += u64::from(super_packet);
        self.counters.bytes += len as u64;
        Taken::Done(len)
    }

    /// Cuts a super-packet by the guest's segment size; what does not fit the burst waits.
    #[cold]
    fn cut(
        &mut self,
        head: u16,
        frame: Frame,
        burst: &mut Burst,
        pool: &mut Pool,
    ) -> Result<(), Taken> {
        let waiting = &mut self.waiting;
        let each = |segment| {
            if burst.room() > 0 { burst.push(segment) } else { waiting.push_back(segment) }
        };
        let (frame, error) = match packet::segment(frame, pool, each) {
            Ok(count) => {
                self.counters.cut += 1;
                self.counters.segments += count as u64;
                return Ok(());
            }
            Err(failed) => failed,
        };
        let held = frame.piece_count();
        pool.recycle(frame);
        Err(match error {
            SegmentError::NoBuffers { needed, .. } if held + needed <= pool.total() => {
                self.no_buffers()
            }
            SegmentError::NoBuffers { .. } => self.lie(head, TxDrop::TooLong),
            _ => self.lie(head, TxDrop::Headers),
        })
    }

    /// The pool has too few buffers now: the chain stays where it is.
    #[cold]
    fn no_buffers(&mut self) -> Taken {
        self.counters.no_buffers += 1;
        Taken::Stays
    }

    /// The packet header claims what is not so: the packet is dropped.
    #[cold]
    fn lie(&mut self, head: u16, reason: TxDrop) -> Taken {
        self.counters.dropped_for(reason);
        self.counters.chains += 1;
        self.ring.give_back(head, 0);
        Taken::Done(0)
    }

    #[cold]
    fn bad_chain(&mut self, head: u16, reason: ChainError) -> Taken {
        self.counters.bad_chain(reason);
        self.counters.chains += 1;
        self.ring.give_back(head, 0);
        Taken::Done(0)
    }

    #[inline]
    fn publish(&mut self) {
        if self.ring.publish() > 0 {
            let notified = self.ring.notify();
            self.counters.published(notified);
        }
    }
}

impl fmt::Debug for TxDrain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxDrain")
            .field("ring", &self.ring)
            .field("features", &self.features)
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

/// An Ethernet header.
const SHORTEST: usize = 14;
/// The largest IP packet behind an Ethernet header with one VLAN tag.
const LONGEST: usize = 65535 + 18;
/// Chains in one drain, however many there are.
const MOST_CHAINS: usize = 256;
/// Bytes in one drain: the packet that goes beyond is the last.
const MOST_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests;
