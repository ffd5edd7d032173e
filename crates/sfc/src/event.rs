//! Events: what the card writes into an event queue (`spec/ef10.md` section 5).
//!
//! An event is 64 bits. It is read once from the ring into a local, tested with [`is_present`], then
//! decoded by [`Event::decode`] into one of its kinds. The kinds are thin: the 64 bits and accessors for
//! their fields, so that decoding costs a shift and a compare. Codes are open: what is not known is
//! representable, and counted by whoever polls.

use packet::Checksum;

use crate::device::Generation;

/// An entry that holds no event: the host fills the ring with it and writes it back over each entry
/// that it has consumed (there is no phase bit, section 5.1).
pub const EMPTY: u64 = u64::MAX;

/// Whether a ring entry holds an event. The strict test: both halves differ from all-ones, so that a
/// half-visible write does not count.
#[inline]
pub fn is_present(raw: u64) -> bool {
    const HALF: u64 = 0xffff_ffff;
    raw & HALF != HALF && raw >> 32 != HALF
}

/// One event (section 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Descriptors of a receive queue are complete.
    Rx(RxEvent),
    /// Descriptors of a transmit queue are complete.
    Tx(TxEvent),
    /// The event queue itself: woken, started, timer.
    Driver(DriverEvent),
    /// Injected by the host with `DRIVER_EVENT`; the host's own 60 bits.
    Software(u64),
    /// From the management controller.
    Mc(McEvent),
    /// A code that is in no table.
    Unknown {
        /// The code, 4 bits.
        code: u8,
    },
}

impl Event {
    /// Tells the kinds apart by the code in bits 60 to 63.
    #[inline]
    pub fn decode(raw: u64) -> Self {
        match field(raw, 60, 4) {
            0 => Self::Rx(RxEvent(raw)),
            2 => Self::Tx(TxEvent(raw)),
            5 => Self::Driver(DriverEvent::decode(raw)),
            7 => Self::Software(raw & ((1 << 60) - 1)),
            0xc => Self::Mc(McEvent::decode(raw)),
            code => Self::Unknown { code: narrow_u8(code) },
        }
    }
}

/// A receive completion (section 5.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RxEvent(u64);

impl RxEvent {
    /// Wraps an event whose code is 0.
    #[inline]
    pub fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// Bytes written for this completion, with the prefix in a packet's first descriptor. Means
    /// nothing when several packets are merged.
    #[inline]
    pub fn bytes(self) -> u16 {
        narrow_u16(field(self.0, 0, 14))
    }

    /// The packet continues in the next descriptor; with scatter off: it was cut.
    #[inline]
    pub fn continues(self) -> bool {
        self.bit(14)
    }

    /// The label that the queue was created with.
    #[inline]
    pub fn label(self) -> u8 {
        narrow_u8(field(self.0, 16, 5))
    }

    /// The low 4 bits of the count of descriptors that the card has used: the index of the *next* one.
    #[inline]
    pub fn next_descriptor(self) -> u8 {
        narrow_u8(field(self.0, 48, 4))
    }

    /// Whether the frame is damaged: a bad frame check sequence or other CRC, an ECC error, a cut
    /// frame, an aborted scatter.
    #[inline]
    pub fn is_damaged(self) -> bool {
        // ECRC_ERR, CRC0_ERR, CRC1_ERR, ECC_ERR/TRUNC_ERR, ABORT.
        const DAMAGE: u64 = 1 << 24 | 0b1111 << 27;
        self.0 & DAMAGE != 0
    }

    /// Whether the frame check sequence is wrong.
    #[inline]
    pub fn is_bad_fcs(self) -> bool {
        self.bit(24)
    }

    /// Internal to the card; drivers ignore such an event.
    #[inline]
    pub fn is_internal(self) -> bool {
        self.bit(58)
    }

    /// What the network header is (the inner one for tunnels).
    #[inline]
    pub fn l3(self) -> L3 {
        match field(self.0, 42, 3) {
            1 => L3::Ipv4,
            2 => L3::Ipv6,
            4 => L3::Ipv4Fragment,
            6 => L3::Ipv6Fragment,
            _ => L3::Other,
        }
    }

    /// Whether the prefix of this completion's packets holds a hash, when the queue belongs to an RSS
    /// context: for IPv4 and IPv6, fragments too.
    #[inline]
    pub fn is_hashed(self) -> bool {
        !self.bit(15) && self.l3() != L3::Other
    }

    #[inline]
    fn bit(self, at: u32) -> bool {
        self.0 >> at & 1 != 0
    }
}

/// Network header classes of a receive completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum L3 {
    /// IPv4, whole.
    Ipv4,
    /// IPv6, whole.
    Ipv6,
    /// A fragment of IPv4.
    Ipv4Fragment,
    /// A fragment of IPv6.
    Ipv6Fragment,
    /// ARP, FCoE, unknown, codes in no table.
    Other,
}

/// How to read checksum bits: the layout differs between generations and with the firmware's tunnel
/// parsing.
#[derive(Debug, Clone, Copy)]
pub struct ChecksumRules {
    l4_width: u32,
    tunnels: bool,
}

impl ChecksumRules {
    /// Rules for a generation; `tunnels` is the capability `VXLAN_NVGRE`.
    pub fn new(generation: Generation, tunnels: bool) -> Self {
        // Bit 47 belongs to the class on older chips and means something else on Medford2.
        let l4_width = if generation == Generation::Medford2 { 2 } else { 3 };
        Self { l4_width, tunnels }
    }

    /// The card's verdict on the packet's checksums, as a hint for GRO. Whatever the card does not
    /// vouch for is [`Checksum::Unknown`], so that software has the last word: a wrong checksum is never
    /// a reason to drop here.
    ///
    /// A plain TCP or UDP packet that is good has one level. In a VXLAN or Geneve packet the plain
    /// error bits are the outer header's, the classes and the inner error bits the inner frame's: one
    /// level for the outer UDP checksum, one more when the inner is good. Of a GRE packet the card
    /// does not say whether there is a GRE checksum and whether it is right, and that would be the
    /// first level: unknown.
    #[inline]
    pub fn verdict(self, event: RxEvent) -> Checksum {
        const VXLAN: u64 = 1;
        // PARSE_INCOMPLETE, IPCKSUM_ERR, TCPUDP_CKSUM_ERR.
        const OUTER: u64 = 1 << 15 | 1 << 25 | 1 << 26;
        // IP_INNER_CHKSUM_ERR, TCP_UDP_INNER_CHKSUM_ERR.
        const INNER: u64 = 1 << 56 | 1 << 57;
        let raw = event.0;
        if raw & OUTER != 0 {
            return Checksum::Unknown;
        }
        let transport = matches!(field(raw, 45, self.l4_width), 1 | 2)
            && matches!(event.l3(), L3::Ipv4 | L3::Ipv6);
        match if self.tunnels { field(raw, 32, 2) } else { 0 } {
            0 if transport => Checksum::Verified { levels: 1 },
            VXLAN if transport && raw & INNER == 0 => Checksum::Verified { levels: 2 },
            VXLAN => Checksum::Verified { levels: 1 },
            _ => Checksum::Unknown,
        }
    }
}

/// A transmit completion (section 5.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxEvent(u64);

impl TxEvent {
    /// Wraps an event whose code is 2.
    #[inline]
    pub fn new(raw: u64) -> Self {
        Self(raw)
    }

    /// Ring index of the last completed descriptor; all before it are complete too.
    #[inline]
    pub fn descriptor(self) -> u16 {
        narrow_u16(field(self.0, 0, 16))
    }

    /// The label that the queue was created with.
    #[inline]
    pub fn label(self) -> u8 {
        narrow_u8(field(self.0, 16, 5))
    }

    /// Internal to the card; drivers ignore such an event.
    #[inline]
    pub fn is_internal(self) -> bool {
        self.0 >> 58 & 1 != 0
    }
}

/// About the event queue itself (section 5.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriverEvent {
    /// A queue without an interrupt of its own has events.
    WakeUp {
        /// That queue.
        evq: u16,
    },
    /// The queue is initialised: its first event.
    StartUp {
        /// The queue.
        evq: u16,
    },
    /// The queue's timer.
    Timer {
        /// The queue.
        evq: u16,
    },
    /// A sub-code in no table.
    Unknown {
        /// The sub-code, 4 bits.
        sub_code: u8,
    },
}

impl DriverEvent {
    fn decode(raw: u64) -> Self {
        let evq = narrow_u16(field(raw, 0, 14));
        match field(raw, 56, 4) {
            1 => Self::WakeUp { evq },
            2 => Self::StartUp { evq },
            3 => Self::Timer { evq },
            sub_code => Self::Unknown { sub_code: narrow_u8(sub_code) },
        }
    }
}

/// From the management controller (section 5.6). Only what the driver acts on has its own variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McEvent {
    /// The controller hit an assertion or its watchdog.
    Assertion,
    /// The controller has restarted: all that was allocated is gone.
    Reboot,
    /// Another function put the controller into its self test; a restart follows.
    SelfTest,
    /// A request is complete.
    CommandDone {
        /// The request's sequence number.
        seq: u8,
    },
    /// The link changed.
    LinkChange(LinkChange),
    /// The card has written its statistics.
    Statistics,
    /// A transmit queue met a bad descriptor and is being destroyed.
    TxError {
        /// The queue, function relative.
        queue: u16,
        /// What was wrong: see the table in section 5.6.
        kind: u8,
    },
    /// A receive queue met an error and is being destroyed.
    RxError {
        /// The queue, function relative.
        queue: u16,
        /// What was wrong.
        kind: u8,
    },
    /// A transmit queue is gone.
    TxFlushed {
        /// The queue, function relative.
        queue: u16,
        /// The second copy on event queue 0, to be ignored: completions may still be on their way in
        /// the queue's own event queue.
        copy: bool,
    },
    /// A receive queue is gone.
    RxFlushed {
        /// The queue, function relative.
        queue: u16,
        /// As in [`McEvent::TxFlushed`].
        copy: bool,
    },
    /// Any other code.
    Other {
        /// The code, 8 bits.
        code: u8,
    },
}

impl McEvent {
    fn decode(raw: u64) -> Self {
        let queue = narrow_u16(field(raw, 0, 12));
        let (kind, copy) = (narrow_u8(field(raw, 12, 4)), raw >> 12 & 1 != 0);
        match field(raw, 44, 8) {
            0x1 => Self::Assertion,
            0x3 => Self::CommandDone { seq: narrow_u8(field(raw, 0, 8)) },
            0x4 => Self::LinkChange(LinkChange {
                up: raw >> 24 & 1 != 0,
                speed: LinkChange::speed(field(raw, 16, 4)),
            }),
            0x7 | 0x15 => Self::Reboot,
            0x8 => Self::Statistics,
            0xb => Self::TxError { queue, kind },
            0xc => Self::TxFlushed { queue, copy },
            0x10 => Self::RxFlushed { queue, copy },
            0x11 => Self::RxError { queue, kind },
            0x19 => Self::SelfTest,
            0x20 => Self::LinkChange(LinkChange {
                up: raw >> 28 & 1 != 0,
                speed: LinkChange::speed(field(raw, 24, 4)),
            }),
            code => Self::Other { code: narrow_u8(code) },
        }
    }
}

/// The link's new state. The event carries a summary; `GET_LINK` has the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkChange {
    /// Up or not.
    pub up: bool,
    /// In Mbit/s, when the code is known.
    pub speed: Option<u32>,
}

impl LinkChange {
    fn speed(code: u64) -> Option<u32> {
        Some(match code {
            1 => 100,
            2 => 1_000,
            3 => 10_000,
            4 => 40_000,
            5 => 25_000,
            6 => 50_000,
            7 => 100_000,
            _ => return None,
        })
    }
}

#[inline]
fn field(raw: u64, at: u32, width: u32) -> u64 {
    raw >> at & ((1 << width) - 1)
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "callers pass fields of at most 8 bits")]
fn narrow_u8(value: u64) -> u8 {
    value as u8
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "callers pass fields of at most 16 bits")]
fn narrow_u16(value: u64) -> u16 {
    value as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_entry_counts_only_when_both_halves_are_written() {
        assert!(!is_present(EMPTY));
        assert!(!is_present(0x0000_0000_ffff_ffff));
        assert!(!is_present(0xffff_ffff_0000_0000));
        assert!(is_present(0));
        assert!(is_present(0xffff_fffe_ffff_fffe));
    }

    #[test]
    fn codes() {
        let code = |code: u64| code << 60;
        assert_eq!(Event::decode(code(0)), Event::Rx(RxEvent(0)));
        assert_eq!(Event::decode(code(2) | 7), Event::Tx(TxEvent(code(2) | 7)));
        assert_eq!(Event::decode(code(7) | 2), Event::Software(2));
        assert_eq!(Event::decode(code(9)), Event::Unknown { code: 9 });
        assert_eq!(
            Event::decode(code(5) | 2 << 56 | 0x123),
            Event::Driver(DriverEvent::StartUp { evq: 0x123 })
        );
        assert_eq!(
            Event::decode(code(5) | 9 << 56),
            Event::Driver(DriverEvent::Unknown { sub_code: 9 })
        );
    }

    #[test]
    fn fields_of_a_receive_completion() {
        // One packet of 60 bytes behind the prefix, label 3, next descriptor 9, continued.
        let event = RxEvent::new(74 | 1 << 14 | 3 << 16 | 9 << 48);
        assert_eq!((event.bytes(), event.label(), event.next_descriptor()), (74, 3, 9));
        assert!(event.continues() && !event.is_damaged() && !event.is_hashed());
        let all = RxEvent::new(0x0fff_ffff_ffff_ffff);
        assert_eq!((all.bytes(), all.label(), all.next_descriptor()), (0x3fff, 31, 15));
    }

    #[test]
    fn every_damage_bit_counts() {
        for bit in [24, 27, 28, 29, 30] {
            assert!(RxEvent::new(1 << bit).is_damaged(), "bit {bit}");
        }
        for bit in [15, 25, 26, 56, 57] {
            assert!(!RxEvent::new(1 << bit).is_damaged(), "bit {bit}: a verdict, no damage");
        }
    }

    #[test]
    fn verdicts() {
        const NONE: Checksum = Checksum::Unknown;
        const ONE: Checksum = Checksum::Verified { levels: 1 };
        const TWO: Checksum = Checksum::Verified { levels: 2 };
        let l3 = |class: u64| class << 42;
        let l4 = |class: u64| class << 45;
        let error = |bit: u32| 1u64 << bit;
        let encap = |kind: u64| kind << 32;
        let (tcp4, tcp6, udp4) = (l3(1) | l4(1), l3(2) | l4(1), l3(1) | l4(2));
        let table = [
            ("TCP over IPv4", tcp4, ONE),
            ("TCP over IPv6", tcp6, ONE),
            ("UDP", udp4, ONE),
            ("neither", l3(1), NONE),
            ("no network header", l4(1), NONE),
            ("ARP", l3(5), NONE),
            ("fragment, IPv4", l3(4) | l4(2), NONE),
            ("fragment, IPv6", l3(6) | l4(2), NONE),
            ("wrong header checksum", tcp4 | error(25), NONE),
            ("wrong transport checksum", tcp4 | error(26), NONE),
            ("not parsed", tcp4 | error(15), NONE),
            ("VXLAN, TCP inside", tcp4 | encap(1), TWO),
            ("VXLAN, wrong outer checksum", tcp4 | encap(1) | error(26), NONE),
            ("VXLAN, wrong inner checksum", tcp4 | encap(1) | error(57), ONE),
            ("VXLAN, wrong inner header checksum", tcp4 | encap(1) | error(56), ONE),
            ("VXLAN, ARP inside", l3(5) | encap(1), ONE),
            ("GRE", tcp4 | encap(2), NONE),
            ("an encapsulation in no table", tcp4 | encap(3), NONE),
        ];
        for generation in [Generation::Medford, Generation::Medford2] {
            let rules = ChecksumRules::new(generation, true);
            for (name, raw, expected) in table {
                assert_eq!(rules.verdict(RxEvent::new(raw)), expected, "{name}");
            }
        }
    }

    #[test]
    fn the_transport_class_is_narrower_on_medford2() {
        let event = RxEvent::new(1 << 42 | 1 << 45 | 1 << 47);
        let verdict = |generation| ChecksumRules::new(generation, false).verdict(event);
        assert_eq!(verdict(Generation::Medford), Checksum::Unknown);
        assert_eq!(verdict(Generation::Medford2), Checksum::Verified { levels: 1 });
    }

    #[test]
    fn controller_events() {
        let mc = |code: u64, data: u64| Event::decode(0xc << 60 | code << 44 | data);
        let table = [
            (mc(1, 0), McEvent::Assertion),
            (mc(3, 0x5), McEvent::CommandDone { seq: 5 }),
            (
                mc(4, 1 << 24 | 3 << 16),
                McEvent::LinkChange(LinkChange { up: true, speed: Some(10_000) }),
            ),
            (mc(4, 9 << 16), McEvent::LinkChange(LinkChange { up: false, speed: None })),
            (
                mc(0x20, 1 << 28 | 5 << 24),
                McEvent::LinkChange(LinkChange { up: true, speed: Some(25_000) }),
            ),
            (mc(7, 0), McEvent::Reboot),
            (mc(0x15, 4), McEvent::Reboot),
            (mc(8, 0), McEvent::Statistics),
            (mc(0xb, 0x5003), McEvent::TxError { queue: 3, kind: 5 }),
            (mc(0xc, 0x3), McEvent::TxFlushed { queue: 3, copy: false }),
            (mc(0x10, 0x1003), McEvent::RxFlushed { queue: 3, copy: true }),
            (mc(0x11, 0x2001), McEvent::RxError { queue: 1, kind: 2 }),
            (mc(0x19, 0), McEvent::SelfTest),
            (mc(0xee, 0), McEvent::Other { code: 0xee }),
        ];
        for (event, expected) in table {
            assert_eq!(event, Event::Mc(expected));
        }
    }

    proptest! {
        #[test]
        fn any_64_bits_decode(raw: u64) {
            let event = Event::decode(raw);
            if let Event::Rx(rx) = event {
                prop_assert!(rx.bytes() < 1 << 14 && rx.label() < 32 && rx.next_descriptor() < 16);
                let rules = ChecksumRules::new(Generation::Huntington, true);
                if let Checksum::Verified { levels } = rules.verdict(rx) {
                    prop_assert!((1..=2).contains(&levels));
                }
            }
        }
    }
}
