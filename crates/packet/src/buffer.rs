//! Packet memory: fixed-size buffers and the pool they come from.
//!
//! Life of a buffer: the pool's memory is set aside once, at start-up, for the life of the process; a
//! port takes a buffer, fills it and wraps it in a [`Frame`]; whoever is last to read the frame gives
//! it back with [`Pool::recycle`]. A buffer has one owner at a time and is never shared. A worker owns
//! its pool, so nothing here locks.

use std::fmt;

use crate::frame::{Frame, Tail};

/// An owned, fixed-size stretch of packet memory.
///
/// The memory itself lives as long as the process, so a buffer may be moved between threads and
/// outlive the pool that first handed it out. Dropping a buffer loses its memory: give it back.
pub struct Buffer(&'static mut [u8]);

impl Buffer {
    /// Wraps memory that lives as long as the process.
    ///
    /// # Panics
    ///
    /// When the memory is larger than 65,535 bytes: offsets inside a buffer are 16 bits.
    pub fn new(memory: &'static mut [u8]) -> Self {
        assert!(memory.len() <= usize::from(u16::MAX), "a buffer has 16-bit offsets");
        Self(memory)
    }

    /// All of the buffer's bytes, whatever was written to them last.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.0
    }

    /// All of the buffer's bytes, for writing.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0
    }

    /// The memory behind the buffer, to be wrapped again later: for lending it to a device.
    #[inline]
    pub fn into_memory(self) -> &'static mut [u8] {
        self.0
    }

    /// The buffer's size in bytes.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:p})", self.0.len(), self.0.as_ptr())
    }
}

/// Free buffers, all of one size, and the spare parts of frames with several pieces.
///
/// Taking and giving back is a push or a pop; nothing allocates after construction, except the first
/// time that a frame grows to several pieces and no spare list of pieces is at hand.
pub struct Pool {
    free: Vec<Buffer>,
    #[expect(
        clippy::vec_box,
        reason = "a frame has room for a pointer, and the box is used again"
    )]
    tails: Vec<Box<Tail>>,
    buffer_size: usize,
    total: usize,
}

impl Pool {
    /// Sets aside `count` buffers of `size` bytes on the heap, for the life of the process.
    ///
    /// # Panics
    ///
    /// When `size` is 0 or above 65,535.
    pub fn new(count: usize, size: usize) -> Self {
        assert!(size > 0 && size <= usize::from(u16::MAX), "a buffer has 1 to 65535 bytes");
        let memory: &'static mut [u8] = Vec::leak(vec![0; count * size]);
        Self::from_memory(memory, size)
    }

    /// Cuts memory that lives as long as the process (huge pages, DMA memory) into buffers of `size`
    /// bytes; a rest that fills no buffer stays unused.
    ///
    /// # Panics
    ///
    /// When `size` is 0 or above 65,535.
    pub fn from_memory(memory: &'static mut [u8], size: usize) -> Self {
        let mut free: Vec<_> = memory.chunks_exact_mut(size).map(Buffer::new).collect();
        // The first buffer of the memory is the first one taken.
        free.reverse();
        let total = free.len();
        Self { free, tails: Vec::new(), buffer_size: size, total }
    }

    /// The size of each buffer in bytes.
    #[inline]
    pub fn buffer_size(&self) -> usize {
        self.buffer_size
    }

    /// How many buffers can be taken now.
    #[inline]
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// How many buffers the pool was made with.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Takes a buffer; `None` when all are in use. Its bytes are whatever was written to it last.
    #[inline]
    pub fn take(&mut self) -> Option<Buffer> {
        self.free.pop()
    }

    /// Gives a buffer back.
    #[inline]
    pub fn give(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    /// Gives all of a frame's buffers back.
    #[inline]
    pub fn recycle(&mut self, frame: Frame) {
        let (head, tail) = frame.into_parts();
        self.free.push(head.into_buffer());
        if let Some(tail) = tail {
            self.recycle_tail(tail);
        }
    }

    /// Takes what a frame of several pieces needs beside its buffers, if some is at hand: for a pool
    /// whose frames are given back elsewhere.
    #[inline]
    pub fn take_spare(&mut self) -> Option<Spare> {
        self.tails.pop().map(Spare)
    }

    /// Gives a spare part back, or that of another pool.
    #[inline]
    pub fn give_spare(&mut self, spare: Spare) {
        self.tails.push(spare.0);
    }

    /// A spare list of pieces, for a frame that is about to grow.
    #[inline]
    pub(crate) fn take_tail(&mut self) -> Box<Tail> {
        self.tails.pop().unwrap_or_default()
    }

    pub(crate) fn recycle_tail(&mut self, mut tail: Box<Tail>) {
        self.free.extend(tail.drain().map(crate::Piece::into_buffer));
        self.tails.push(tail);
    }
}

/// What a frame of several pieces needs beside its buffers, empty. Frames that go from one worker to
/// another take theirs along; it goes back like the buffers.
#[derive(Debug)]
pub struct Spare(Box<Tail>);

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("buffer_size", &self.buffer_size)
            .field("total", &self.total)
            .field("available", &self.free.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back() {
        let mut pool = Pool::new(3, 64);
        let first = pool.take().unwrap();
        assert_eq!((first.capacity(), pool.available(), pool.total()), (64, 2, 3));
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        assert!(pool.take().is_none());
        let mut frame = Frame::new(a, 0, 10);
        frame.push(Frame::new(b, 4, 10), 2, &mut pool);
        pool.recycle(frame);
        pool.give(first);
        assert_eq!(pool.available(), 3);
    }

    #[test]
    fn spare_parts_move_between_pools() {
        let (mut from, mut to) = (Pool::new(2, 64), Pool::new(2, 64));
        let mut frame = Frame::new(from.take().unwrap(), 0, 10);
        frame.push(Frame::new(from.take().unwrap(), 0, 10), 0, &mut from);
        assert!(frame.is_scattered() && from.take_spare().is_none());
        to.recycle(frame);
        assert_eq!((from.available(), to.available()), (0, 4));
        from.give_spare(to.take_spare().unwrap());
        assert!(from.take_spare().is_some() && to.take_spare().is_none());
    }

    #[test]
    fn memory_is_cut_into_whole_buffers() {
        let pool = Pool::from_memory(Vec::leak(vec![0; 1000]), 300);
        assert_eq!(pool.total(), 3);
    }
}
