//! What the two queues count. Plain integers of the worker that owns the queue.

use crate::ring::{ChainError, Notified};

/// Counters of a receive filler.
///
/// Every frame that comes in is delivered or dropped: counting a super-packet as the segments that it
/// stands for, what came in is `segments` plus [`dropped`](Self::dropped).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RxFillCounters {
    /// Packets delivered; a super-packet is one.
    pub frames: u64,
    /// Super-packets among them.
    pub supers: u64,
    /// Segments delivered: a super-packet counts as all of its segments.
    pub segments: u64,
    /// Bytes of packets delivered, without packet headers.
    pub bytes: u64,
    /// Guest buffers (chains) filled.
    pub buffers: u64,
    /// Super-packets that were cut, because the guest does not take them or had no room for the whole.
    pub cut: u64,
    /// Checksums completed in software.
    pub completed: u64,
    /// Bursts.
    pub deliveries: u64,
    /// Times that the used index was published.
    pub publishes: u64,
    /// Calls.
    pub notified: u64,
    /// Calls that the guest did not want.
    pub suppressed: u64,
    /// Segments dropped, by [`RxDrop`].
    pub drops: [u64; RxDrop::COUNT],
    /// Chains given back unused, by [`ChainError`].
    pub bad_chains: [u64; ChainError::COUNT],
}

/// Why a frame was not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RxDrop {
    /// The guest has posted too few buffers.
    NoRoom,
    /// The packet is larger than what one chain, or as many buffers as a packet may have, can hold.
    TooLong,
    /// Shorter than an Ethernet header.
    TooShort,
    /// What is said about the frame does not fit its bytes.
    Malformed,
    /// It had to be cut, and the pool had no buffers for the segments.
    NoBuffers,
    /// The ring is broken.
    Broken,
}

impl RxDrop {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::NoRoom,
        Self::TooLong,
        Self::TooShort,
        Self::Malformed,
        Self::NoBuffers,
        Self::Broken,
    ];

    /// How many reasons there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The reason's name in counters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoRoom => "no_room",
            Self::TooLong => "too_long",
            Self::TooShort => "too_short",
            Self::Malformed => "malformed",
            Self::NoBuffers => "no_buffers",
            Self::Broken => "broken",
        }
    }
}

impl RxFillCounters {
    /// All segments dropped.
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// All chains given back unused.
    pub fn bad_chains(&self) -> u64 {
        self.bad_chains.iter().sum()
    }

    /// Segments dropped for one reason.
    pub fn drops(&self, reason: RxDrop) -> u64 {
        self.drops[reason as usize]
    }

    /// Adds another queue's counters.
    pub fn add(&mut self, other: &Self) {
        self.frames += other.frames;
        self.supers += other.supers;
        self.segments += other.segments;
        self.bytes += other.bytes;
        self.buffers += other.buffers;
        self.cut += other.cut;
        self.completed += other.completed;
        self.deliveries += other.deliveries;
        self.publishes += other.publishes;
        self.notified += other.notified;
        self.suppressed += other.suppressed;
        add_all(&mut self.drops, &other.drops);
        add_all(&mut self.bad_chains, &other.bad_chains);
    }

    #[inline]
    pub(crate) fn dropped_for(&mut self, reason: RxDrop, segments: u64) {
        self.drops[reason as usize] += segments;
    }

    #[cold]
    pub(crate) fn bad_chain(&mut self, reason: ChainError) {
        self.bad_chains[reason as usize] += 1;
    }

    #[inline]
    pub(crate) fn published(&mut self, notified: Notified) {
        self.publishes += 1;
        match notified {
            Notified::Called => self.notified += 1,
            Notified::Suppressed => self.suppressed += 1,
            Notified::Unreachable => (),
        }
    }
}

/// Counters of a transmit drainer.
///
/// Every chain that was taken is a packet handed on, a packet dropped, a bad chain or one discarded:
/// `chains` is the sum of `packets`, [`dropped`](Self::dropped), [`bad_chains`](Self::bad_chains) and
/// `discarded`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TxDrainCounters {
    /// Chains taken from the guest and given back.
    pub chains: u64,
    /// Packets of the guest that were handed on; a super-packet is one.
    pub packets: u64,
    /// Super-packets among them.
    pub supers: u64,
    /// Bytes of these packets, without packet headers.
    pub bytes: u64,
    /// Super-packets that were cut in software.
    pub cut: u64,
    /// Segments that they were cut into.
    pub segments: u64,
    /// Checksums completed in software.
    pub completed: u64,
    /// Chains of a disabled ring, given back unread.
    pub discarded: u64,
    /// Times that packets stayed in the ring because the pool had no buffers.
    pub no_buffers: u64,
    /// Times that the used index was published.
    pub publishes: u64,
    /// Calls.
    pub notified: u64,
    /// Calls that the guest did not want.
    pub suppressed: u64,
    /// Packets dropped, by [`TxDrop`].
    pub drops: [u64; TxDrop::COUNT],
    /// Chains given back unread, by [`ChainError`].
    pub bad_chains: [u64; ChainError::COUNT],
}

/// Why a packet of the guest was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TxDrop {
    /// Shorter than an Ethernet header.
    TooShort,
    /// Longer than the largest packet, or than the pool could ever hold.
    TooLong,
    /// A checksum or segmentation request that was not negotiated, or a type that does not exist.
    NotNegotiated,
    /// The checksum lies outside the packet or its headers.
    Checksum,
    /// Segmentation without a size, without a checksum request, or into absurdly many segments.
    Segmentation,
    /// Segmentation of a packet whose headers are not of the kind that was claimed.
    Headers,
}

impl TxDrop {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::TooShort,
        Self::TooLong,
        Self::NotNegotiated,
        Self::Checksum,
        Self::Segmentation,
        Self::Headers,
    ];

    /// How many reasons there are.
    pub const COUNT: usize = Self::ALL.len();

    /// The reason's name in counters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TooShort => "too_short",
            Self::TooLong => "too_long",
            Self::NotNegotiated => "not_negotiated",
            Self::Checksum => "checksum",
            Self::Segmentation => "segmentation",
            Self::Headers => "headers",
        }
    }
}

impl TxDrainCounters {
    /// All packets dropped.
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// All chains given back unread because something is wrong with them.
    pub fn bad_chains(&self) -> u64 {
        self.bad_chains.iter().sum()
    }

    /// Packets dropped for one reason.
    pub fn drops(&self, reason: TxDrop) -> u64 {
        self.drops[reason as usize]
    }

    /// Adds another queue's counters.
    pub fn add(&mut self, other: &Self) {
        self.chains += other.chains;
        self.packets += other.packets;
        self.supers += other.supers;
        self.bytes += other.bytes;
        self.cut += other.cut;
        self.segments += other.segments;
        self.completed += other.completed;
        self.discarded += other.discarded;
        self.no_buffers += other.no_buffers;
        self.publishes += other.publishes;
        self.notified += other.notified;
        self.suppressed += other.suppressed;
        add_all(&mut self.drops, &other.drops);
        add_all(&mut self.bad_chains, &other.bad_chains);
    }

    #[cold]
    pub(crate) fn dropped_for(&mut self, reason: TxDrop) {
        self.drops[reason as usize] += 1;
    }

    #[cold]
    pub(crate) fn bad_chain(&mut self, reason: ChainError) {
        self.bad_chains[reason as usize] += 1;
    }

    #[inline]
    pub(crate) fn published(&mut self, notified: Notified) {
        self.publishes += 1;
        match notified {
            Notified::Called => self.notified += 1,
            Notified::Suppressed => self.suppressed += 1,
            Notified::Unreachable => (),
        }
    }
}

fn add_all<const N: usize>(to: &mut [u64; N], from: &[u64; N]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_numbered_in_order() {
        assert!(RxDrop::ALL.iter().enumerate().all(|(at, reason)| *reason as usize == at));
        assert!(TxDrop::ALL.iter().enumerate().all(|(at, reason)| *reason as usize == at));
        assert!(ChainError::ALL.iter().enumerate().all(|(at, reason)| *reason as usize == at));
    }

    #[test]
    fn counters_add_up() {
        let mut rx = RxFillCounters { frames: 1, ..RxFillCounters::default() };
        rx.dropped_for(RxDrop::NoRoom, 3);
        rx.bad_chain(ChainError::Loop);
        let mut sum = rx.clone();
        sum.add(&rx);
        assert_eq!((sum.frames, sum.dropped(), sum.bad_chains()), (2, 6, 2));
        assert_eq!((sum.drops(RxDrop::NoRoom), sum.drops(RxDrop::TooLong)), (6, 0));
        let mut tx = TxDrainCounters::default();
        tx.dropped_for(TxDrop::Checksum);
        tx.bad_chain(ChainError::Outside);
        let mut sum = tx.clone();
        sum.add(&tx);
        assert_eq!((sum.dropped(), sum.drops(TxDrop::Checksum), sum.bad_chains()), (2, 2, 2));
    }
}
