//! The header in front of each packet of a virtio-net queue (virtio 1.3, 5.1.6).

use crate::features::{HASH_REPORT, MRG_RXBUF, VERSION_1};

/// A virtio-net header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetHeader {
    /// [`NEEDS_CSUM`], [`DATA_VALID`], [`RSC_INFO`].
    pub flags: u8,
    /// One of the `GSO_` constants, perhaps with [`GSO_ECN`].
    pub gso_type: u8,
    /// Bytes up to the end of the transport header: a hint.
    pub hdr_len: u16,
    /// Payload bytes of each segment.
    pub gso_size: u16,
    /// Where the checksummed bytes start, from the start of the frame.
    pub csum_start: u16,
    /// Where the checksum lies, from `csum_start`.
    pub csum_offset: u16,
    /// Buffers that the packet takes, the one with the header included.
    pub num_buffers: u16,
    /// The hash, with HASH_REPORT.
    pub hash_value: u32,
    /// What was hashed, with HASH_REPORT.
    pub hash_report: u16,
    /// Zero.
    pub padding: u16,
}

/// The checksum is partial: the pseudo-header's sum.
pub const NEEDS_CSUM: u8 = 1;
/// The device has verified the checksum.
pub const DATA_VALID: u8 = 2;
/// `csum_start` and `csum_offset` hold segment counts.
pub const RSC_INFO: u8 = 4;
/// One segment.
pub const GSO_NONE: u8 = 0;
/// TCP over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// UDP to be fragmented.
pub const GSO_UDP: u8 = 3;
/// TCP over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// UDP to be segmented.
pub const GSO_UDP_L4: u8 = 5;
/// The first segment carries CWR.
pub const GSO_ECN: u8 = 0x80;

/// The longest header this driver knows.
pub(crate) const LONGEST: usize = 20;

impl NetHeader {
    /// The bytes that the header takes under these features.
    pub fn len(features: u64) -> usize {
        if features & HASH_REPORT != 0 {
            20
        } else if features & (VERSION_1 | MRG_RXBUF) != 0 {
            12
        } else {
            10
        }
    }

    /// Reads a header of 10, 12 or 20 bytes; fields beyond are zero.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Self {
        let half = |at: usize| {
            bytes.get(at..at + 2).map_or(0, |half| u16::from_le_bytes([half[0], half[1]]))
        };
        Self {
            flags: bytes.first().copied().unwrap_or(0),
            gso_type: bytes.get(1).copied().unwrap_or(0),
            hdr_len: half(2),
            gso_size: half(4),
            csum_start: half(6),
            csum_offset: half(8),
            num_buffers: half(10),
            hash_value: u32::from(half(12)) | u32::from(half(14)) << 16,
            hash_report: half(16),
            padding: half(18),
        }
    }

    /// The header as bytes, of which the first 10, 12 or 20 count.
    #[inline]
    pub fn encode(&self) -> [u8; 20] {
        let mut bytes = [0; LONGEST];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        let halves =
            [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset, self.num_buffers];
        for (to, half) in bytes[2..12].chunks_exact_mut(2).zip(halves) {
            to.copy_from_slice(&half.to_le_bytes());
        }
        bytes[12..16].copy_from_slice(&self.hash_value.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.hash_report.to_le_bytes());
        bytes[18..20].copy_from_slice(&self.padding.to_le_bytes());
        bytes
    }

    /// How many segments a frame of this length stands for, by the header's own word.
    #[inline]
    pub fn segments(&self, frame_len: usize) -> u64 {
        if self.gso_size == 0 {
            return 1;
        }
        let payload = frame_len.saturating_sub(usize::from(self.hdr_len));
        payload.div_ceil(usize::from(self.gso_size)).max(1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features::DEFAULT;

    #[test]
    fn the_size_follows_the_features() {
        assert_eq!(NetHeader::len(0), 10);
        assert_eq!(NetHeader::len(MRG_RXBUF), 12);
        assert_eq!(NetHeader::len(VERSION_1), 12);
        assert_eq!(NetHeader::len(DEFAULT | HASH_REPORT), 20);
    }

    #[test]
    fn bytes_and_back() {
        let header = NetHeader {
            flags: 1,
            gso_type: 0x84,
            hdr_len: 66,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16,
            num_buffers: 3,
            hash_value: 0x1234_5678,
            hash_report: 2,
            padding: 0,
        };
        let bytes = header.encode();
        assert_eq!(bytes[..12], [1, 0x84, 66, 0, 0xa8, 5, 34, 0, 16, 0, 3, 0]);
        assert_eq!(NetHeader::parse(&bytes), header);
        let short = NetHeader::parse(&bytes[..10]);
        assert_eq!((short.num_buffers, short.hash_value, short.csum_offset), (0, 0, 16));
    }

    #[test]
    fn segments_are_counted_by_size() {
        let header = NetHeader { gso_size: 100, hdr_len: 54, ..Default::default() };
        assert_eq!(header.segments(54 + 200), 2);
        assert_eq!(header.segments(54 + 201), 3);
        assert_eq!(header.segments(10), 1);
        assert_eq!(NetHeader::default().segments(1500), 1);
    }
}
