//! A burst: the frames that go from one stage to the next in one step.

use std::vec::Drain;

use crate::frame::Frame;

/// Frames in arrival order, with a bound on how many.
///
/// The bound is the reader's budget: a producer fills the room that is left and no more.
#[derive(Debug)]
pub struct Burst {
    frames: Vec<Frame>,
    limit: usize,
}

impl Burst {
    /// An empty burst with room for `limit` frames; the only place where it allocates.
    pub fn new(limit: usize) -> Self {
        Self { frames: Vec::with_capacity(limit), limit }
    }

    /// How many more frames fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.frames.len())
    }

    /// How many frames are in it.
    #[inline]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether no frame is in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Adds a frame behind the others.
    ///
    /// # Panics
    ///
    /// In debug builds, when there is no room.
    #[inline]
    pub fn push(&mut self, frame: Frame) {
        debug_assert!(self.room() > 0, "the burst is full");
        self.frames.push(frame);
    }

    /// The frames, oldest first.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The frames, oldest first, to change in place.
    #[inline]
    pub fn frames_mut(&mut self) -> &mut [Frame] {
        &mut self.frames
    }

    /// Takes all frames out, oldest first.
    #[inline]
    pub fn drain(&mut self) -> Drain<'_, Frame> {
        self.frames.drain(..)
    }

    /// Takes the `count` oldest frames out; the rest moves to the front.
    ///
    /// # Panics
    ///
    /// When fewer than `count` frames are in it.
    #[inline]
    pub fn drain_front(&mut self, count: usize) -> Drain<'_, Frame> {
        self.frames.drain(..count)
    }
}
