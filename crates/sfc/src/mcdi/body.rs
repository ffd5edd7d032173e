//! Payloads: little-endian fields at fixed offsets, written and read with their bounds checked.

use std::fmt;

use super::header::MAX_PAYLOAD;

/// A request's payload as it is put together: zero where nothing is written.
#[derive(Clone)]
pub struct Request {
    bytes: [u8; MAX_PAYLOAD],
    len: usize,
}

impl Request {
    /// `len` zero bytes.
    ///
    /// # Panics
    ///
    /// When that is more than a payload can be: request lengths are constants of this crate.
    pub fn zeroed(len: usize) -> Self {
        assert!(len < MAX_PAYLOAD, "a request of {len} bytes");
        Self { bytes: [0; MAX_PAYLOAD], len }
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// All bytes and the zeros behind them up to whole words: what goes into the buffer.
    pub fn words(&self) -> &[u8] {
        &self.bytes[..self.len.next_multiple_of(4)]
    }

    /// Writes bytes as they are.
    ///
    /// # Panics
    ///
    /// When the field does not lie in the request; the same for the methods below.
    pub fn put(&mut self, offset: usize, bytes: &[u8]) -> &mut Self {
        self.bytes[..self.len][offset..][..bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Writes a 16-bit field.
    pub fn u16(&mut self, offset: usize, value: u16) -> &mut Self {
        self.put(offset, &value.to_le_bytes())
    }

    /// Writes a 32-bit field.
    pub fn u32(&mut self, offset: usize, value: u32) -> &mut Self {
        self.put(offset, &value.to_le_bytes())
    }

    /// Writes a 64-bit field.
    pub fn u64(&mut self, offset: usize, value: u64) -> &mut Self {
        self.put(offset, &value.to_le_bytes())
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Request({:02x?})", self.bytes())
    }
}

/// A reply's payload, in memory that only we can write. Firmware of different age answers at different
/// length, so every field may be missing.
#[derive(Debug, Clone, Copy)]
pub struct Reply<'a>(pub &'a [u8]);

/// A reply that is too short for a field that has to be there, or says what cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl Reply<'_> {
    /// Bytes as they are.
    ///
    /// # Errors
    ///
    /// [`Malformed`] when the reply is too short for the field; the same for the methods below.
    pub fn array<const N: usize>(self, offset: usize) -> Result<[u8; N], Malformed> {
        self.0.get(offset..).and_then(<[u8]>::first_chunk).copied().ok_or(Malformed)
    }

    /// An 8-bit field.
    pub fn u8(self, offset: usize) -> Result<u8, Malformed> {
        self.array(offset).map(u8::from_le_bytes)
    }

    /// A 16-bit field.
    pub fn u16(self, offset: usize) -> Result<u16, Malformed> {
        self.array(offset).map(u16::from_le_bytes)
    }

    /// A 32-bit field.
    pub fn u32(self, offset: usize) -> Result<u32, Malformed> {
        self.array(offset).map(u32::from_le_bytes)
    }

    /// A 64-bit field.
    pub fn u64(self, offset: usize) -> Result<u64, Malformed> {
        self.array(offset).map(u64::from_le_bytes)
    }

    /// How many bytes there are.
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_little_endian_at_their_offset() {
        let mut request = Request::zeroed(12);
        request.u32(0, 0x0403_0201).u16(6, 0x0605).u32(8, 1);
        assert_eq!(request.bytes(), [1, 2, 3, 4, 0, 0, 5, 6, 1, 0, 0, 0]);
        assert_eq!(Request::zeroed(30).words().len(), 32);
        let reply = Reply(request.bytes());
        assert_eq!(reply.u64(0), Ok(0x0605_0000_0403_0201));
        assert_eq!((reply.u16(6), reply.u8(7)), (Ok(0x0605), Ok(6)));
    }

    #[test]
    fn short_replies_are_told() {
        let reply = Reply(&[1, 2, 3, 4, 5]);
        assert_eq!(reply.u32(0), Ok(0x0403_0201));
        assert_eq!(reply.u32(2), Err(Malformed));
        assert_eq!(reply.u32(usize::MAX), Err(Malformed));
        assert_eq!(reply.u8(5), Err(Malformed));
    }
}
