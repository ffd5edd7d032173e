//! A frame: the bytes of one packet, or of several merged into one, and what is known about them.
//!
//! ```text
//!            head piece                       tail pieces (a super-packet, a scattered frame)
//!   ┌────────┬───────────────────┬───┐   ┌────┬──────────────┬──┐   ┌────┬────────┬────────┐
//!   │ offset │ headers │ payload │   │   │    │ payload      │  │   │    │ payload│        │
//!   └────────┴───────────────────┴───┘   └────┴──────────────┴──┘   └────┴────────┴────────┘
//!            └────── len ──────┘              └──── len ─────┘
//! ```
//!
//! Merging appends the payload of a frame as one more piece and never copies it. All headers of a
//! frame lie in its head piece.

use std::fmt;
use std::num::NonZeroU32;

use crate::buffer::{Buffer, Pool};

/// The part of a buffer that belongs to a frame.
pub struct Piece {
    buffer: Buffer,
    offset: u16,
    len: u16,
}

impl Piece {
    /// `len` bytes of the buffer, from `offset`.
    ///
    /// # Panics
    ///
    /// When the buffer is shorter than that.
    #[inline]
    pub fn new(buffer: Buffer, offset: u16, len: u16) -> Self {
        assert!(
            usize::from(offset) + usize::from(len) <= buffer.capacity(),
            "a piece lies inside its buffer"
        );
        Self { buffer, offset, len }
    }

    /// The piece's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[usize::from(self.offset)..][..usize::from(self.len)]
    }

    /// The piece's bytes, for writing.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.bytes_mut()[usize::from(self.offset)..][..usize::from(self.len)]
    }

    /// How many bytes.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether it has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The buffer behind the piece.
    #[inline]
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl fmt::Debug for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({}+{} of {:?})", self.offset, self.len, self.buffer)
    }
}

/// The pieces behind the head. Kept and used again, so that growing a frame allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    pieces: Vec<Piece>,
    bytes: usize,
}

impl Tail {
    pub(crate) fn drain(&mut self) -> std::vec::Drain<'_, Piece> {
        self.bytes = 0;
        self.pieces.drain(..)
    }
}

/// One packet, from the first byte of its Ethernet header to its last byte (no frame check sequence).
#[derive(Debug)]
pub struct Frame {
    head: Piece,
    tail: Option<Box<Tail>>,
    /// What is known about the frame beside its bytes.
    pub meta: Meta,
}

impl Frame {
    /// A frame of one piece: `len` bytes of the buffer, from `offset`. Nothing is known about it yet.
    ///
    /// # Panics
    ///
    /// When the buffer is shorter than that.
    #[inline]
    pub fn new(buffer: Buffer, offset: u16, len: u16) -> Self {
        Self { head: Piece::new(buffer, offset, len), tail: None, meta: Meta::default() }
    }

    /// A frame of one piece with a copy of these bytes; `None` when the pool has no buffer left or its
    /// buffers are too small. For tests, set-up and replay, not for the hot path.
    pub fn copied_from(bytes: &[u8], pool: &mut Pool) -> Option<Self> {
        if bytes.len() > pool.buffer_size() {
            return None;
        }
        let mut buffer = pool.take()?;
        buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let len = u16::try_from(bytes.len()).expect("a buffer has at most 65535 bytes");
        Some(Self::new(buffer, 0, len))
    }

    /// The bytes of the head piece: all headers, and the first part of the payload.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.head.bytes()
    }

    /// The bytes of the head piece, for writing.
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        self.head.bytes_mut()
    }

    /// The pieces behind the head.
    #[inline]
    pub fn tail(&self) -> &[Piece] {
        self.tail.as_ref().map_or(&[], |tail| &tail.pieces)
    }

    /// All pieces in order, the head first.
    #[inline]
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.head.bytes()).chain(self.tail().iter().map(Piece::bytes))
    }

    /// The whole frame's length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.tail.as_ref().map_or(0, |tail| tail.bytes)
    }

    /// Whether it has no bytes at all.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many pieces it has.
    #[inline]
    pub fn piece_count(&self) -> usize {
        1 + self.tail().len()
    }

    /// Whether it has, or had, more than one piece.
    #[inline]
    pub fn is_scattered(&self) -> bool {
        self.tail.is_some()
    }

    /// Cuts the frame to its first `len` bytes. Only a frame of one piece can be cut.
    ///
    /// # Panics
    ///
    /// When the frame has several pieces, or is shorter than `len`.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        assert!(self.tail.is_none() && len <= self.head.len(), "cut a frame of one piece to less");
        self.head.len = u16::try_from(len).expect("checked: not above the head's length");
    }

    /// Appends all of another frame's bytes from `skip` on: what merging does with a payload. The
    /// other frame's metadata is forgotten.
    ///
    /// # Panics
    ///
    /// When the other frame's head piece is shorter than `skip`.
    #[inline]
    pub fn push(&mut self, other: Self, skip: usize, pool: &mut Pool) {
        let mut piece = other.head;
        let skip = u16::try_from(skip).expect("a piece has at most 65535 bytes");
        piece.len = piece.len.checked_sub(skip).expect("headers lie in the head piece");
        piece.offset += skip;
        self.push_piece(piece, pool);
        if let Some(mut rest) = other.tail {
            for piece in rest.drain() {
                self.push_piece(piece, pool);
            }
            pool.recycle_tail(rest);
        }
    }

    /// Appends one piece.
    #[inline]
    pub fn push_piece(&mut self, piece: Piece, pool: &mut Pool) {
        let tail = self.tail.get_or_insert_with(|| pool.take_tail());
        tail.bytes += piece.len();
        tail.pieces.push(piece);
    }

    /// Copies the bytes from `offset` on into `to`, across pieces, as far as there are any; answers how
    /// many were copied.
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) -> usize {
        let (mut skip, mut done) = (offset, 0);
        for piece in self.pieces() {
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            let count = (piece.len() - skip).min(to.len() - done);
            to[done..done + count].copy_from_slice(&piece[skip..skip + count]);
            done += count;
            skip = 0;
            if done == to.len() {
                break;
            }
        }
        done
    }

    /// All bytes in one vector, for tests and tools.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        self.copy_out(0, &mut bytes);
        bytes
    }

    pub(crate) fn into_parts(self) -> (Piece, Option<Box<Tail>>) {
        (self.head, self.tail)
    }
}

/// What is known about a frame beside its bytes. Travels with it through steering.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Meta {
    /// What is known about the checksums.
    pub checksum: Checksum,
    /// The receive hash that the port reported, if it did. Zero counts as none.
    pub hash: Option<NonZeroU32>,
    /// A VLAN tag that the port took out of the frame.
    pub vlan: Option<VlanTag>,
    /// Set when the frame stands for several segments.
    pub gso: Option<Gso>,
    /// Where the headers are; meaningful when `gso` is set or the checksum is partial.
    pub layout: Layout,
}

/// What is known about a frame's checksums (`spec/gro.md` 3.1, the kernel's words in brackets).
///
/// "First checksum" counts TCP, UDP and GRE checksums from the outermost inwards; the IPv4 header
/// checksum is not among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Nothing is known (NONE): software has to verify. A port that says "bad" says this.
    #[default]
    Unknown,
    /// The first `levels` checksums are right (UNNECESSARY); at least 1.
    Verified {
        /// How many, outermost first.
        levels: u8,
    },
    /// The ones' complement sum of all bytes behind the 14-byte Ethernet header (COMPLETE), folded,
    /// not complemented.
    Sum(u16),
    /// The transport checksum was never computed (PARTIAL): the field at `start + offset` holds the
    /// folded pseudo-header sum, and the checksum has to cover everything from `start` to the end.
    Partial {
        /// Where the checksummed part starts, in bytes from the start of the frame.
        start: u16,
        /// Where the field is, in bytes from `start`.
        offset: u16,
    },
}

/// A VLAN tag outside the frame's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanTag {
    /// Tag protocol identifier: 0x8100 or 0x88a8.
    pub tpid: u16,
    /// Tag control information: priority, drop eligible, identifier.
    pub tci: u16,
}

/// How a frame that stands for several segments is cut again (`spec/gro.md` 6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gso {
    /// Transport protocol and IP version of the innermost header.
    pub kind: GsoKind,
    /// Payload bytes of each segment but the last.
    pub size: u16,
    /// How many segments.
    pub segments: u16,
    /// The IPv4 id is the same in all segments instead of counting up.
    pub fixed_id: bool,
    /// TCP: CWR belongs on the first segment only (RFC 3168), the virtio header's ECN bit.
    pub ecn: bool,
    /// Whether the values come from a source whose headers were checked: our own engine or the kernel.
    pub trusted: bool,
}

/// What is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP datagrams over IPv4 (UDP_L4, "USO").
    UdpV4,
    /// UDP datagrams over IPv6 (UDP_L4, "USO").
    UdpV6,
}

impl GsoKind {
    /// TCP or not (then UDP).
    #[inline]
    pub fn is_tcp(self) -> bool {
        matches!(self, Self::TcpV4 | Self::TcpV6)
    }

    /// IPv6 or not (then IPv4).
    #[inline]
    pub fn is_v6(self) -> bool {
        matches!(self, Self::TcpV6 | Self::UdpV6)
    }
}

/// Where the innermost headers of a frame are, in bytes from its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layout {
    /// The IP header.
    pub network: u16,
    /// The TCP or UDP header.
    pub transport: u16,
    /// The first payload byte: the length of all headers.
    pub payload: u16,
}

// A frame is moved several times on its way; one cache line keeps that cheap.
const _: () = assert!(size_of::<Frame>() <= 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_bytes_in_order() {
        let mut pool = Pool::new(3, 16);
        let mut frame = Frame::copied_from(b"head", &mut pool).unwrap();
        let second = Frame::copied_from(b"--tail", &mut pool).unwrap();
        frame.push(second, 2, &mut pool);
        frame.push(Frame::copied_from(b"end", &mut pool).unwrap(), 0, &mut pool);
        assert_eq!((frame.len(), frame.piece_count()), (11, 3));
        assert_eq!(frame.to_vec(), b"headtailend");
        let mut part = [0; 6];
        assert_eq!(frame.copy_out(3, &mut part), 6);
        assert_eq!(&part, b"dtaile");
        assert_eq!(frame.copy_out(9, &mut part), 2);
        pool.recycle(frame);
        assert_eq!(pool.available(), 3);
    }

    #[test]
    fn a_frame_of_one_piece_can_be_cut() {
        let mut pool = Pool::new(1, 16);
        let mut frame = Frame::copied_from(b"padded....", &mut pool).unwrap();
        frame.truncate(6);
        assert_eq!(frame.to_vec(), b"padded");
    }

    #[test]
    #[should_panic(expected = "inside its buffer")]
    fn a_piece_does_not_leave_its_buffer() {
        let mut pool = Pool::new(1, 16);
        let _ = Frame::new(pool.take().unwrap(), 10, 7);
    }
}
