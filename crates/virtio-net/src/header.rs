//! The header in front of each packet in a virtqueue (virtio 5.1.6.1), as values.
//!
//! Little-endian; for a legacy driver it is the guest's own order, which is the same on all machines
//! that this back end serves.

/// `flags`: the checksum from `csum_start` on is still to be computed.
pub const NEEDS_CSUM: u8 = 1;
/// `flags`: the outermost checksum was verified.
pub const DATA_VALID: u8 = 2;

/// `gso_type`: not segmented.
pub const GSO_NONE: u8 = 0;
/// `gso_type`: TCP over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// `gso_type`: TCP over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// `gso_type`: UDP datagrams of equal size.
pub const GSO_UDP_L4: u8 = 5;
/// `gso_type`, added to a TCP type: CWR on the first segment.
pub const GSO_ECN: u8 = 0x80;

/// The longest header that can be negotiated here.
pub const MAX_LEN: usize = 12;

/// A packet header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NetHeader {
    /// [`NEEDS_CSUM`], [`DATA_VALID`].
    pub flags: u8,
    /// One of the `GSO_` constants.
    pub gso_type: u8,
    /// Length of all protocol headers: a hint.
    pub hdr_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Where the checksum starts, in bytes from the start of the frame.
    pub csum_start: u16,
    /// Where the checksum goes, in bytes from `csum_start`.
    pub csum_offset: u16,
    /// How many buffers the packet takes; absent from the 10-byte header.
    pub num_buffers: u16,
}

impl NetHeader {
    /// The header as bytes; the 10-byte form is what comes first.
    #[inline]
    pub const fn to_bytes(self) -> [u8; MAX_LEN] {
        let [h0, h1] = self.hdr_len.to_le_bytes();
        let [g0, g1] = self.gso_size.to_le_bytes();
        let [s0, s1] = self.csum_start.to_le_bytes();
        let [o0, o1] = self.csum_offset.to_le_bytes();
        let [n0, n1] = self.num_buffers.to_le_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1, n0, n1]
    }

    /// The header in these bytes; bytes that the 10-byte form lacks are given as zeros.
    #[inline]
    pub const fn from_bytes(bytes: [u8; MAX_LEN]) -> Self {
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1, n0, n1] = bytes;
        Self {
            flags,
            gso_type,
            hdr_len: u16::from_le_bytes([h0, h1]),
            gso_size: u16::from_le_bytes([g0, g1]),
            csum_start: u16::from_le_bytes([s0, s1]),
            csum_offset: u16::from_le_bytes([o0, o1]),
            num_buffers: u16::from_le_bytes([n0, n1]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_specification_has_them() {
        let header = NetHeader {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV4 | GSO_ECN,
            hdr_len: 0x0102,
            gso_size: 0x0304,
            csum_start: 0x0506,
            csum_offset: 0x0708,
            num_buffers: 0x090a,
        };
        let bytes = [1, 0x81, 2, 1, 4, 3, 6, 5, 8, 7, 0x0a, 9];
        assert_eq!(header.to_bytes(), bytes);
        assert_eq!(NetHeader::from_bytes(bytes), header);
    }
}
