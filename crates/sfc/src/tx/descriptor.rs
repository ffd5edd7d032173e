//! Transmit descriptors (`spec/ef10.md` 7.1 to 7.4).

/// The largest byte count of a descriptor: 14 bits. Longer pieces take several.
pub const MAX_BYTES: u16 = (1 << 14) - 1;

/// A descriptor for `bytes` bytes at a DMA address; `more` when the packet goes on in the next one.
///
/// # Panics
///
/// In debug builds, when the address has more than 48 bits or `bytes` is not 1 to [`MAX_BYTES`].
#[inline]
pub fn data(address: u64, bytes: u16, more: bool) -> u64 {
    debug_assert!(address >> 48 == 0, "DMA addresses are 48 bits wide");
    debug_assert!((1..=MAX_BYTES).contains(&bytes), "a byte count has 14 bits");
    address | u64::from(bytes) << 48 | u64::from(more) << 62
}

/// What the card puts in the packets that follow: stays in force until changed (7.3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChecksumOption {
    /// Insert the IPv4 header checksum.
    pub ip: bool,
    /// Insert the TCP or UDP checksum.
    pub transport: bool,
}

impl ChecksumOption {
    /// The option descriptor. It may only stand between packets.
    #[inline]
    pub fn encode(self) -> u64 {
        OPTION | u64::from(self.ip) | u64::from(self.transport) << 1
    }
}

/// A packet that the card is to cut into segments (TSO version 2): two option descriptors, then one
/// with exactly the headers, then the payload (7.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tso {
    /// The IPv4 identification of the first segment; 0 for IPv6.
    pub ip_id: u16,
    /// The TCP sequence number of the first segment.
    pub sequence: u32,
    /// Payload bytes of each segment but the last; at least [`Tso::MIN_MSS`].
    pub mss: u16,
}

impl Tso {
    /// The smallest segment payload.
    pub const MIN_MSS: u16 = 4;
    /// The most segments of one packet.
    pub const MAX_SEGMENTS: u16 = 32_767;
    /// The furthest offset of the TCP header in the packet.
    pub const MAX_TCP_OFFSET: u16 = 208;
    /// What the header's IPv4 total length or IPv6 payload length is set to: at least the length of a
    /// segment, and small enough for the card to add to.
    pub const HEADER_LENGTH: u16 = 0xff30;

    /// The two option descriptors, in ring order.
    #[inline]
    pub fn encode(self) -> [u64; 2] {
        let option = |kind: u64| OPTION | 7 << 60 | kind << 56;
        [
            option(2) | u64::from(self.ip_id) << 32 | u64::from(self.sequence),
            option(3) | u64::from(self.mss) << 32,
        ]
    }
}

const OPTION: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_descriptors() {
        assert_eq!(data(0x1234_5678_9abc, 60, false), 0x003c_1234_5678_9abc);
        assert_eq!(data(0, 60, true), 0x403c_0000_0000_0000);
        assert_eq!(data((1 << 48) - 1, MAX_BYTES, true), 0x7fff_ffff_ffff_ffff);
    }

    #[test]
    fn checksum_options() {
        let option = |ip, transport| ChecksumOption { ip, transport }.encode();
        assert_eq!(option(false, false), 0x8000_0000_0000_0000);
        assert_eq!(option(true, false), 0x8000_0000_0000_0001);
        assert_eq!(option(false, true), 0x8000_0000_0000_0002);
    }

    #[test]
    fn tso_is_two_options() {
        let tso = Tso { ip_id: 0x1234, sequence: 0x89ab_cdef, mss: 1448 };
        assert_eq!(tso.encode(), [0xf200_1234_89ab_cdef, 0xf300_05a8_0000_0000]);
    }
}
