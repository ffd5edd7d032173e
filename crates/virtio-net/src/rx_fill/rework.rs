//! Frames that the guest can't take as they are: checksums completed, super-packets cut, chains refused.

use packet::{Frame, Pool};

use super::{Full, RxFill};
use crate::counters::RxDrop;
use crate::header::{DATA_VALID, NetHeader};
use crate::ring::{Access, ChainError};

impl RxFill {
    /// Completes the checksum of a frame and hands it over.
    #[cold]
    pub(super) fn complete(&mut self, mut frame: Frame, pool: &mut Pool) {
        if packet::complete_checksum(&mut frame).is_err() {
            return self.drop(frame, RxDrop::Malformed, pool);
        }
        self.counters.completed += 1;
        self.hand(frame, pool);
    }

    /// Cuts a super-packet and hands over as many of its segments as there is room for.
    #[cold]
    pub(super) fn cut(&mut self, frame: Frame, pool: &mut Pool) {
        let mut segments = std::mem::take(&mut self.segments);
        match packet::segment(frame, pool, |segment| segments.push(segment)) {
            Ok(_) => self.counters.cut += 1,
            Err((frame, packet::SegmentError::NoBuffers { .. })) => {
                self.drop(frame, RxDrop::NoBuffers, pool);
            }
            Err((frame, _)) => self.drop(frame, RxDrop::Malformed, pool),
        }
        for segment in segments.drain(..) {
            self.hand(segment, pool);
        }
        self.segments = segments;
    }

    /// Hands over a frame with complete checksums.
    fn hand(&mut self, frame: Frame, pool: &mut Pool) {
        let flags = if self.accept.csum { DATA_VALID } else { 0 };
        match self.put(&frame, NetHeader { flags, ..NetHeader::default() }) {
            Ok(()) => pool.recycle(frame),
            Err(full) => self.no_place(frame, full, pool),
        }
    }

    /// A frame did not fit: a super-packet is cut, of which a part may fit; the rest is dropped.
    #[cold]
    pub(super) fn no_place(&mut self, frame: Frame, full: Full, pool: &mut Pool) {
        match (full, frame.meta.gso) {
            (Full::Room | Full::Size, Some(_)) if self.ring.seen() > 0 => self.cut(frame, pool),
            (Full::Room, _) => self.drop(frame, RxDrop::NoRoom, pool),
            (Full::Size, _) => self.drop(frame, RxDrop::TooLong, pool),
            (Full::Broken, _) => self.drop(frame, RxDrop::Broken, pool),
        }
    }

    pub(super) fn drop(&mut self, frame: Frame, reason: RxDrop, pool: &mut Pool) {
        let segments = frame.meta.gso.map_or(1, |gso| u64::from(gso.segments.max(1)));
        self.counters.dropped_for(reason, segments);
        pool.recycle(frame);
    }

    /// Looks again whether the guest has made more than `count` chains available.
    #[cold]
    pub(super) fn more(&mut self, count: u16) -> Result<bool, Full> {
        let available = self.ring.available().map_err(|_broken| Full::Broken)?;
        Ok(available > count)
    }

    /// Gives back the `good` chains that were gathered and the bad one behind them, nothing written.
    #[cold]
    pub(super) fn refuse(&mut self, good: u16, head: u16, reason: ChainError) {
        for chain in &self.chains[..usize::from(good)] {
            self.ring.give_back(chain.head, 0);
        }
        self.ring.give_back(head, 0);
        self.counters.bad_chain(reason);
    }

    /// Learns the size of the guest's buffers from the first that is posted; it stays where it is.
    #[cold]
    pub(super) fn look_at_first(&mut self) {
        self.ring.forget_buffers();
        if let Ok(chain) = self.ring.chain(0, Access::Write) {
            self.buffer_len = chain.len;
        }
        self.ring.forget_buffers();
    }
}
