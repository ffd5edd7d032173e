//! The counters of the port, and their upload (4.10).

use std::time::Duration;

use crate::bits::{number, size};

/// Indices of counters.
pub(crate) mod index {
    pub(crate) const TX_PACKETS: usize = 1;
    pub(crate) const TX_UNICAST: usize = 4;
    pub(crate) const TX_MULTICAST: usize = 5;
    pub(crate) const TX_BROADCAST: usize = 6;
    pub(crate) const TX_BYTES: usize = 7;
    pub(crate) const TX_64: usize = 10;
    pub(crate) const RX_PACKETS: usize = 28;
    pub(crate) const RX_GOOD: usize = 30;
    pub(crate) const RX_UNICAST: usize = 32;
    pub(crate) const RX_MULTICAST: usize = 33;
    pub(crate) const RX_BROADCAST: usize = 34;
    pub(crate) const RX_BYTES: usize = 35;
    pub(crate) const RX_BAD_BYTES: usize = 36;
    pub(crate) const RX_64: usize = 37;
    pub(crate) const RX_BAD_FCS: usize = 46;
    pub(crate) const RX_OVERFLOW: usize = 47;
    pub(crate) const RX_JABBER: usize = 53;
    pub(crate) const RX_NODESC_DROPS: usize = 54;
    pub(crate) const RXDP_QUEUE_DISABLED: usize = 67;
    pub(crate) const RXDP_DISPATCHER_DROPPED: usize = 69;
    pub(crate) const VADAPTOR_RX: usize = 76;
    pub(crate) const VADAPTOR_TX: usize = 87;
    pub(crate) const RXDP_TRUNCATED: usize = 121;
}

/// Periodic uploads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Periodic {
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) period: Duration,
    pub(crate) clear: bool,
    pub(crate) event: bool,
    pub(crate) next: Duration,
}

/// All counters.
#[derive(Debug)]
pub(crate) struct Counters {
    values: [u64; 125],
    pub(crate) generation: u64,
    pub(crate) periodic: Option<Periodic>,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self { values: [0; 125], generation: 0, periodic: None }
    }

    pub(crate) fn clear(&mut self) {
        self.values.fill(0);
    }

    pub(crate) fn add(&mut self, index: usize, count: u64) {
        self.values[index] += count;
    }

    pub(crate) fn get(&self, index: usize) -> u64 {
        self.values[index]
    }

    /// Counts a frame of the wire by kind of address, and by size; `len` without checksum.
    pub(crate) fn frame(&mut self, frame: &[u8], sent: bool) {
        let len = number(frame.len()) + 4;
        let kind = match frame[..6] {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => 2,
            [first, ..] if first & 1 == 1 => 1,
            _ => 0,
        };
        let bin = match len {
            0..=64 => 0,
            65..=127 => 1,
            128..=255 => 2,
            256..=511 => 3,
            512..=1023 => 4,
            1024..=1518 => 5,
            _ => 6,
        };
        let (packets, kinds, bytes, bins, vadaptor) = if sent {
            (
                index::TX_PACKETS,
                index::TX_UNICAST,
                index::TX_BYTES,
                index::TX_64,
                index::VADAPTOR_TX,
            )
        } else {
            (
                index::RX_PACKETS,
                index::RX_UNICAST,
                index::RX_BYTES,
                index::RX_64,
                index::VADAPTOR_RX,
            )
        };
        for at in [packets, kinds + kind, bins + bin, vadaptor + 2 * kind] {
            self.add(at, 1);
        }
        self.add(bytes, len);
        self.add(vadaptor + 2 * kind + 1, len);
    }

    /// The buffer that is uploaded, from the first counter to the last before the end generation.
    pub(crate) fn image(&self, len: u64) -> Vec<u8> {
        let count = size(len / 8);
        self.values.iter().take(count - 1).skip(1).flat_map(|value| value.to_le_bytes()).collect()
    }
}

/// An index of [`index`] and [`index::TX_BROADCAST`] and friends follow each other.
const _: () = assert!(
    index::TX_MULTICAST == index::TX_UNICAST + 1
        && index::TX_BROADCAST == index::TX_UNICAST + 2
        && index::RX_MULTICAST == index::RX_UNICAST + 1
        && index::RX_BROADCAST == index::RX_UNICAST + 2
);
