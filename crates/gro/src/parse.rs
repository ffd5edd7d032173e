//! From bytes to a key and the fields that merging looks at (`spec/gro.md` 2).
//!
//! One step per layer, each in a module of its own: the EtherType here, then [`vlan`], [`ipv4`] or
//! [`ipv6`], then [`tcp`]. What can't be merged leaves as soon as that is known, as a [`Stray`] that
//! says why and how much of the key was found; what is known to belong to a flow but may not be merged
//! goes on to the end with `flush` set. Rule numbers are those of the specification.

pub(crate) mod ipv4;
mod ipv6;
pub(crate) mod tcp;
mod vlan;

use packet::header::{ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, is_vlan};
use packet::{Frame, Layout};

use crate::config::Rules;
use crate::counters::Passed;
use crate::key::Key;

/// A TCP packet, parsed; of a [`Stray`] only the key, as far as its [`Scope`] goes.
#[derive(Debug, Default)]
pub(crate) struct Packet {
    pub(crate) key: Key,
    pub(crate) layout: Layout,
    /// Payload bytes, Ethernet padding left out.
    pub(crate) len: u16,
    /// Bytes of Ethernet padding; not 0 only where they are to be trimmed.
    pub(crate) padding: u16,
    /// Payload bytes of each segment: `len`, unless the packet is a super-packet itself.
    pub(crate) segment: u16,
    /// Segments that it stands for.
    pub(crate) count: u16,
    /// A super-packet whose segments all have the same IPv4 id.
    pub(crate) fixed_id: bool,
    /// IPv4 identification.
    pub(crate) id: u16,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// Bytes 12 to 15 of the TCP header: data offset, flags, window.
    pub(crate) word: u32,
    /// The options, if they are 12 bytes (timestamps, by far the most frequent length), else zeros: the
    /// first eight bytes, and the rest.
    pub(crate) options: u64,
    pub(crate) more_options: u32,
    /// What has to be equal in the IP headers: TOS or traffic class, TTL or hop limit, DF.
    pub(crate) network: u32,
    /// Set when the packet may not be merged though its flow is known (class F).
    pub(crate) flush: Option<Passed>,
    /// The checksum was verified here.
    pub(crate) verified: bool,
}

impl Packet {
    /// Bytes behind the Ethernet header, padding left out.
    #[inline]
    pub(crate) fn size(&self) -> u32 {
        (u32::from(self.layout.payload) + u32::from(self.len)).saturating_sub(ETHERNET_BYTES)
    }

    /// Whether [`options`](Self::options) are all that there are.
    #[inline]
    pub(crate) fn has_usual_options(&self) -> bool {
        matches!(self.word >> 28, WORDS_WITHOUT_OPTIONS | WORDS_WITH_TIMESTAMPS)
    }
}

/// A frame that is no TCP packet, or none that a flow could be found for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stray {
    pub(crate) reason: Passed,
    pub(crate) scope: Scope,
}

/// Which held flows a stray may belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// None.
    Nothing,
    /// Those with its link header.
    Link,
    /// Those with its addresses.
    Addresses,
    /// That with its addresses and ports.
    Connection,
}

/// Parses a frame. `packet` has to be a default one.
#[inline]
pub(crate) fn parse(frame: &Frame, rules: &Rules, packet: &mut Packet) -> Result<(), Stray> {
    let Some(link) = frame.head().first_chunk::<ETHERNET_LEN>() else {
        return stray(Passed::Truncated, Scope::Nothing);
    };
    match u16::from_be_bytes([link[12], link[13]]) {
        ETHERTYPE_IPV4 => ipv4::parse(frame, link, ETHERNET_LEN, 0, rules, packet),
        ETHERTYPE_IPV6 => ipv6::parse(frame, link, ETHERNET_LEN, 0, rules, packet),
        tpid if is_vlan(tpid) => vlan::parse(frame, link, rules, packet),
        _ => stray(Passed::NoHandler, Scope::Nothing),
    }
}

#[inline]
fn stray(reason: Passed, scope: Scope) -> Result<(), Stray> {
    Err(Stray { reason, scope })
}

/// `N` bytes from an offset on, if there are as many.
#[inline]
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<&[u8; N]> {
    bytes.get(at..).and_then(<[u8]>::first_chunk)
}

#[inline]
fn be16<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn be32<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

const ETHERNET_BYTES: u32 = 14;
/// Data offsets: TCP header lengths in words.
const WORDS_WITHOUT_OPTIONS: u32 = 5;
const WORDS_WITH_TIMESTAMPS: u32 = 8;
