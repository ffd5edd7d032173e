//! Bytes from outside become frames: in one buffer, or in several when they are long.
//!
//! The head piece is filled first and as far as it goes, so all headers lie in it.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSliceMut, Read};

use packet::{Buffer, Frame, Piece, Pool};

/// A frame of `len` bytes in as many buffers as it takes, or `None` when the pool has too few.
/// `copy` writes the bytes from an offset on into each of them.
#[inline]
pub(crate) fn frame(
    len: usize,
    pool: &mut Pool,
    mut copy: impl FnMut(usize, &mut [u8]),
) -> Option<Frame> {
    if pool.available() < buffers(len, pool) {
        return None;
    }
    let mut head = pool.take()?;
    let count = len.min(head.capacity());
    copy(0, &mut head.bytes_mut()[..count]);
    let mut frame = Frame::new(head, 0, length(count));
    if count < len {
        grow(&mut frame, len, pool, copy);
    }
    Some(frame)
}

/// How many buffers a frame of `len` bytes takes; at least 1.
#[inline]
pub(crate) fn buffers(len: usize, pool: &Pool) -> usize {
    len.div_ceil(pool.buffer_size()).max(1)
}

/// Lengthens a frame to `len` bytes. The pool has the buffers.
fn grow(frame: &mut Frame, len: usize, pool: &mut Pool, mut copy: impl FnMut(usize, &mut [u8])) {
    let mut done = frame.len();
    while done < len {
        let mut buffer = pool.take().expect("the pool was asked before");
        let count = (len - done).min(buffer.capacity());
        copy(done, &mut buffer.bytes_mut()[..count]);
        frame.push_piece(Piece::new(buffer, 0, length(count)), pool);
        done += count;
    }
}

/// The length of a piece.
#[inline]
fn length(count: usize) -> u16 {
    u16::try_from(count).expect("a buffer has at most 65535 bytes")
}

/// Reads one frame at a time, with the header in front of it, from a descriptor that gives one
/// message per read.
///
/// Short frames are read straight into a pool buffer; what a long one has beyond its first buffer
/// lands in an area of its own and is copied.
pub(crate) struct Reader {
    overflow: Box<[u8]>,
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

/// What a read gave.
#[derive(Debug)]
pub(crate) enum Received {
    /// A frame.
    Frame(Frame),
    /// No frame is waiting, or no buffer is free.
    Nothing,
    /// A frame was read and lost: too few buffers for all of it.
    NoBuffer,
    /// A frame was read and lost: longer than any frame may be.
    TooLong,
    /// A frame was read and lost: it ends inside the header in front of it.
    Short,
    /// The descriptor gives no frames.
    Failed(io::Error),
}

impl Reader {
    pub(crate) fn new() -> Self {
        // One byte more than a frame may have, so that a longer one shows.
        Self { overflow: vec![0; LONGEST + 1].into() }
    }

    /// Reads a header that fills `header`, and the frame behind it.
    pub(crate) fn read(&mut self, file: &File, header: &mut [u8], pool: &mut Pool) -> Received {
        let Some(mut head) = pool.take() else { return Received::Nothing };
        let before = header.len();
        let mut slices = [
            IoSliceMut::new(header),
            IoSliceMut::new(head.bytes_mut()),
            IoSliceMut::new(&mut self.overflow),
        ];
        let result = loop {
            match (&mut &*file).read_vectored(&mut slices) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        match result {
            Ok(count) if count > before => self.assemble(head, count - before, pool),
            Ok(_) => give_back(head, pool, Received::Short),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                give_back(head, pool, Received::Nothing)
            }
            Err(error) => give_back(head, pool, Received::Failed(error)),
        }
    }

    fn assemble(&self, head: Buffer, len: usize, pool: &mut Pool) -> Received {
        if len > LONGEST {
            return give_back(head, pool, Received::TooLong);
        }
        let first = len.min(head.capacity());
        let rest = len - first;
        if rest > 0 && pool.available() < buffers(rest, pool) {
            return give_back(head, pool, Received::NoBuffer);
        }
        let mut frame = Frame::new(head, 0, length(first));
        grow(&mut frame, len, pool, |offset, to| {
            to.copy_from_slice(&self.overflow[offset - first..][..to.len()]);
        });
        Received::Frame(frame)
    }
}

fn give_back(buffer: Buffer, pool: &mut Pool, received: Received) -> Received {
    pool.give(buffer);
    received
}

/// The longest frame that any port takes in: an IP packet of 65,535 bytes behind an Ethernet header
/// with two VLAN tags.
pub(crate) const LONGEST: usize = 65_535 + 14 + 8;

/// The shortest frame: an Ethernet header.
pub(crate) const SHORTEST: usize = 14;

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect()
    }

    /// What is read when these bytes were sent as one message.
    fn read(sent: &[u8], pool: &mut Pool) -> (Received, [u8; 2]) {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.send(sent).unwrap();
        let mut header = [0; 2];
        let received = Reader::new().read(&File::from(OwnedFd::from(ours)), &mut header, pool);
        (received, header)
    }

    #[test]
    fn every_length_is_cut_into_pieces() {
        let all = bytes(200);
        let mut pool = Pool::new(8, 32);
        for len in 0..=200 {
            let frame = frame(len, &mut pool, |offset, to| {
                to.copy_from_slice(&all[offset..offset + to.len()]);
            })
            .unwrap();
            assert_eq!(frame.to_vec(), &all[..len]);
            assert_eq!(frame.piece_count(), len.div_ceil(32).max(1));
            pool.recycle(frame);
        }
        assert!(frame(257, &mut pool, |_, _| panic!("nothing to copy")).is_none());
        assert_eq!(pool.available(), 8);
    }

    #[test]
    fn a_short_and_a_long_frame_are_read() {
        let mut pool = Pool::new(40, 64);
        for len in [1, 63, 64, 65, 1000, 2000] {
            let (received, header) = read(&bytes(len + 2), &mut pool);
            let Received::Frame(frame) = received else { panic!("{received:?}") };
            assert_eq!((frame.to_vec(), header), (bytes(len + 2)[2..].to_vec(), [0, 1]));
            pool.recycle(frame);
        }
        assert_eq!(pool.available(), 40);
    }

    #[test]
    fn what_does_not_fit_the_pool_is_said() {
        let mut pool = Pool::new(3, 64);
        assert!(matches!(read(&bytes(195), &mut pool).0, Received::NoBuffer));
        assert!(matches!(read(&bytes(2), &mut pool).0, Received::Short));
        let mut large = Pool::new(2000, 64);
        assert!(matches!(read(&bytes(LONGEST + 3), &mut large).0, Received::TooLong));
        assert_eq!(large.available(), 2000);
        assert_eq!(pool.available(), 3);
        while pool.take().is_some() {}
        assert!(matches!(read(&bytes(20), &mut pool).0, Received::Nothing));
    }
}
