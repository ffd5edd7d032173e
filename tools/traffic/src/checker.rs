//! Whether what arrived is what was sent, byte by byte.
//!
//! A frame's flow is found by its source address, then all of its bytes are looked at: the header fields
//! that are the same in all packets of a flow against those that were sent, lengths, checksums and
//! positions by what they mean, the payload against the pattern. Only the IPv4 id is taken as it comes.

use packet::checksum;
use packet::header::{self, ETHERNET_LEN, IPV4_LEN, IPV6_LEN, ParseError, Parsed, TCP_LEN};

use crate::flow::{self, FIRST_SEQ};
use crate::{StreamConfig, pattern};

/// What a frame's transport checksum should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumState {
    /// Complete and right.
    Complete,
    /// The folded pseudo-header sum (NEEDS_CSUM).
    PseudoHeader,
    /// Anything.
    Unchecked,
}

/// How a frame differs from what was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Its headers can't be read.
    #[error("headers: {0}")]
    Headers(#[from] ParseError),
    /// It belongs to none of the flows.
    #[error("flow {0} does not exist")]
    Flow(u32),
    /// A header field differs that is the same in all packets of the flow.
    #[error("flow {flow}: header byte {at} differs")]
    Header {
        /// Flow number.
        flow: u32,
        /// First byte that differs, from the start of the frame.
        at: usize,
    },
    /// The IP header's length is not that of the frame.
    #[error("flow {flow}: IP length {ip}, frame has {have}")]
    Length {
        /// Flow number.
        flow: u32,
        /// Length by the header, in bytes.
        ip: usize,
        /// Bytes behind the Ethernet header.
        have: usize,
    },
    /// The IPv4 header checksum is wrong.
    #[error("flow {0}: IPv4 header checksum")]
    IpChecksum(u32),
    /// The transport checksum is not what it should be.
    #[error("flow {flow}: transport checksum, expected {state:?}")]
    TransportChecksum {
        /// Flow number.
        flow: u32,
        /// What was expected.
        state: ChecksumState,
    },
    /// Bytes that came before, or in the wrong order.
    #[error("flow {flow}: {got} arrived again or late, {expected} was next")]
    Order {
        /// Flow number.
        flow: u32,
        /// Position (TCP: sequence number, UDP: packet) that arrived.
        got: u32,
        /// Position that was next.
        expected: u32,
    },
    /// A byte differs.
    #[error("flow {flow}: byte {at} of the payload at {position} differs")]
    Payload {
        /// Flow number.
        flow: u32,
        /// Where the payload stands in the flow.
        position: u32,
        /// First byte that differs.
        at: usize,
    },
}

/// What arrived so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Frames, merged ones counted once.
    pub packets: u64,
    /// Payload bytes that were compared and found right.
    pub bytes: u64,
    /// Payload bytes that are missing between those that arrived.
    pub lost_bytes: u64,
    /// Frames that differed.
    pub mismatches: u64,
    /// Flows of which something arrived.
    pub flows: u32,
    /// Payload bytes that all frames carry together, when their number is limited.
    pub expected_bytes: Option<u64>,
}

/// Compares what arrives with what was sent.
#[derive(Debug)]
pub struct Checker {
    config: StreamConfig,
    /// The headers of each flow, with zeros where packets differ.
    headers: Vec<Box<[u8]>>,
    /// TCP: the next sequence number; UDP: the next packet.
    next: Vec<u32>,
    seen: Vec<bool>,
    summary: Summary,
}

impl Checker {
    /// A checker for streams made with this configuration.
    ///
    /// # Panics
    ///
    /// As [`Streams::new`](crate::Streams::new) does.
    pub fn new(config: &StreamConfig) -> Self {
        crate::streams::check(config);
        let flows = config.flows as usize;
        let first = if config.udp { 0 } else { FIRST_SEQ };
        let payload = vec![0; usize::from(config.payload)];
        let header = |flow| {
            let mut frame = flow::first_frame(config, flow, &payload);
            frame.truncate(frame.len() - payload.len());
            blank(&mut frame, config.ipv6, config.udp);
            frame.into_boxed_slice()
        };
        Self {
            config: config.clone(),
            headers: (0..config.flows).map(header).collect(),
            next: vec![first; flows],
            seen: vec![false; flows],
            summary: Summary::default(),
        }
    }

    /// Checks one frame, from its Ethernet header on. It may be several packets merged into one.
    ///
    /// # Errors
    ///
    /// See [`Mismatch`]; it is counted, and the next frame can be checked as usual.
    pub fn frame(&mut self, bytes: &[u8], state: ChecksumState) -> Result<(), Mismatch> {
        let result = self.check(bytes, state);
        match &result {
            Ok(len) => {
                self.summary.packets += 1;
                self.summary.bytes += *len as u64;
            }
            Err(_) => self.summary.mismatches += 1,
        }
        result.map(drop)
    }

    /// What arrived so far.
    pub fn summary(&self) -> Summary {
        let flows = self.seen.iter().filter(|seen| **seen).count();
        let payload = u64::from(self.config.payload);
        Summary {
            flows: u32::try_from(flows).expect("at most 65536 flows"),
            expected_bytes: self.config.total_frames.map(|frames| frames * payload),
            ..self.summary
        }
    }

    fn check(&mut self, bytes: &[u8], state: ChecksumState) -> Result<usize, Mismatch> {
        let parsed = header::parse(bytes)?;
        let network = usize::from(parsed.layout.network);
        let flow = flow::number(bytes, network, parsed.v6);
        if flow >= self.config.flows || parsed.tcp == self.config.udp {
            return Err(Mismatch::Flow(flow));
        }
        self.check_fields(bytes, &parsed, flow)?;
        self.check_lengths_and_sums(bytes, &parsed, flow, state)?;
        let payload = &bytes[usize::from(parsed.layout.payload)..network + parsed.ip_len];
        if parsed.tcp {
            self.check_tcp(bytes, &parsed, flow, payload)?;
        } else {
            self.check_udp(flow, payload)?;
        }
        self.seen[flow as usize] = true;
        Ok(payload.len())
    }

    fn check_fields(&self, bytes: &[u8], parsed: &Parsed, flow: u32) -> Result<(), Mismatch> {
        let sent = &self.headers[flow as usize];
        let mut header = [0; LONGEST_HEADER];
        let len = usize::from(parsed.layout.payload).min(LONGEST_HEADER);
        header[..len].copy_from_slice(&bytes[..len]);
        let header = &mut header[..len];
        if header.len() == sent.len() {
            blank(header, self.config.ipv6, self.config.udp);
        }
        match difference(header, sent) {
            None => Ok(()),
            Some(at) => Err(Mismatch::Header { flow, at }),
        }
    }

    fn check_lengths_and_sums(
        &self,
        bytes: &[u8],
        parsed: &Parsed,
        flow: u32,
        state: ChecksumState,
    ) -> Result<(), Mismatch> {
        let (network, transport) =
            (usize::from(parsed.layout.network), usize::from(parsed.layout.transport));
        let have = bytes.len() - network;
        // The shortest Ethernet frame may carry padding.
        let padded = bytes.len() <= 60 && parsed.ip_len <= have;
        if parsed.ip_len != have && !padded {
            return Err(Mismatch::Length { flow, ip: parsed.ip_len, have });
        }
        if network + parsed.ip_len < usize::from(parsed.layout.payload) {
            return Err(Mismatch::Length { flow, ip: parsed.ip_len, have });
        }
        if !parsed.v6 && checksum::sum(&bytes[network..transport]) != 0xffff {
            return Err(Mismatch::IpChecksum(flow));
        }
        let behind = &bytes[transport..network + parsed.ip_len];
        let pseudo = checksum::pseudo_header(bytes, parsed, behind.len());
        let right = match state {
            ChecksumState::Unchecked => true,
            ChecksumState::Complete => checksum::add(pseudo, checksum::sum(behind)) == 0xffff,
            ChecksumState::PseudoHeader => {
                let field = if parsed.tcp { 16 } else { 6 };
                u16::from_be_bytes([behind[field], behind[field + 1]]) == pseudo
            }
        };
        if right { Ok(()) } else { Err(Mismatch::TransportChecksum { flow, state }) }
    }

    fn check_tcp(
        &mut self,
        bytes: &[u8],
        parsed: &Parsed,
        flow: u32,
        payload: &[u8],
    ) -> Result<(), Mismatch> {
        let at = usize::from(parsed.layout.transport) + 4;
        let seq = u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let missing = self.missing(flow, seq)?;
        let position = seq.wrapping_sub(FIRST_SEQ);
        compare(flow, position, payload, pattern::bytes(flow, position, payload.len()))?;
        self.summary.lost_bytes += u64::from(missing);
        let len = u32::try_from(payload.len()).expect("at most 65535 bytes");
        self.next[flow as usize] = seq.wrapping_add(len);
        Ok(())
    }

    /// A datagram, or several of the same size merged into one.
    fn check_udp(&mut self, flow: u32, payload: &[u8]) -> Result<(), Mismatch> {
        for datagram in payload.chunks(usize::from(self.config.payload)) {
            let Some((number, rest)) = datagram.split_first_chunk::<8>() else {
                return Err(Mismatch::Payload { flow, position: 0, at: datagram.len() });
            };
            let number = u64::from_be_bytes(*number);
            let number = u32::try_from(number).map_err(|_| Mismatch::Payload {
                flow,
                position: 0,
                at: 0,
            })?;
            let missing = self.missing(flow, number)?;
            let position = number.wrapping_mul(u32::from(self.config.payload));
            let whole = pattern::bytes(flow, position, datagram.len());
            compare(flow, position, rest, &whole[8..])?;
            self.summary.lost_bytes += u64::from(missing) * u64::from(self.config.payload);
            self.next[flow as usize] = number.wrapping_add(1);
        }
        Ok(())
    }

    /// How much is missing before this position.
    fn missing(&self, flow: u32, got: u32) -> Result<u32, Mismatch> {
        let expected = self.next[flow as usize];
        let missing = got.wrapping_sub(expected);
        // Half of the number space lies ahead, half behind (RFC 9293, 3.4).
        if missing >= 1 << 31 { Err(Mismatch::Order { flow, got, expected }) } else { Ok(missing) }
    }
}

fn compare(flow: u32, position: u32, got: &[u8], sent: &[u8]) -> Result<(), Mismatch> {
    match difference(got, sent) {
        None => Ok(()),
        Some(at) => Err(Mismatch::Payload { flow, position, at }),
    }
}

/// The first byte that differs; where the shorter one ends, when it is the start of the other.
fn difference(got: &[u8], sent: &[u8]) -> Option<usize> {
    if got == sent {
        return None;
    }
    let shorter = got.len().min(sent.len());
    Some(got.iter().zip(sent).position(|(got, sent)| got != sent).unwrap_or(shorter))
}

/// Zeroes the fields in which the packets of a flow differ: lengths, id, checksums, sequence number.
fn blank(header: &mut [u8], ipv6: bool, udp: bool) {
    let transport = if ipv6 {
        header[18..20].fill(0);
        ETHERNET_LEN + IPV6_LEN
    } else {
        header[16..20].fill(0);
        header[24..26].fill(0);
        ETHERNET_LEN + IPV4_LEN
    };
    let transport = &mut header[transport..];
    // TCP: sequence number and checksum; UDP: length and checksum.
    transport[4..8].fill(0);
    if !udp {
        transport[16..18].fill(0);
    }
}

/// Ethernet, IPv6, TCP with timestamps, and a byte by which a longer one differs.
const LONGEST_HEADER: usize = ETHERNET_LEN + IPV6_LEN + TCP_LEN + 12 + 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Streams;
    use packet::build::fix_checksums;
    use packet::{Burst, Pool};

    fn frames(config: &StreamConfig, count: usize) -> Vec<Vec<u8>> {
        let (mut burst, mut pool) = (Burst::new(count), Pool::new(count, 2048));
        Streams::new(config.clone()).fill(&mut burst, &mut pool);
        burst.drain().map(|frame| frame.to_vec()).collect()
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let config = StreamConfig { flows: 1, payload: 100, ..StreamConfig::default() };
        let frames = frames(&config, 3);
        let check =
            |bytes: &[u8]| Checker::new(&config).frame(bytes, ChecksumState::Complete).unwrap_err();
        let changed = |at: usize, fix: bool| {
            let mut bytes = frames[0].clone();
            bytes[at] ^= 1;
            if fix {
                fix_checksums(&mut bytes);
            }
            check(&bytes)
        };
        assert!(matches!(changed(12, false), Mismatch::Headers(_)));
        assert!(matches!(changed(29, true), Mismatch::Flow(1)));
        assert_eq!(changed(0, false), Mismatch::Header { flow: 0, at: 0 });
        assert_eq!(changed(22, true), Mismatch::Header { flow: 0, at: 22 });
        assert_eq!(changed(37, true), Mismatch::Header { flow: 0, at: 37 });
        assert_eq!(changed(47, true), Mismatch::Header { flow: 0, at: 47 });
        assert_eq!(changed(65, true), Mismatch::Header { flow: 0, at: 65 });
        assert!(matches!(changed(17, false), Mismatch::Length { .. }));
        assert!(matches!(changed(24, false), Mismatch::IpChecksum(0)));
        assert!(matches!(changed(100, false), Mismatch::TransportChecksum { .. }));
        assert!(matches!(changed(100, true), Mismatch::Payload { at: 34, .. }));

        let mut checker = Checker::new(&config);
        let mut next = |bytes: &[u8]| checker.frame(bytes, ChecksumState::Complete);
        next(&frames[0]).unwrap();
        assert!(matches!(next(&frames[0]), Err(Mismatch::Order { got: 1, expected: 101, .. })));
        next(&frames[2]).unwrap();
        assert!(matches!(next(&frames[1]), Err(Mismatch::Order { .. })));
        let summary = checker.summary();
        assert_eq!((summary.packets, summary.mismatches, summary.lost_bytes), (2, 2, 100));
    }

    #[test]
    fn any_changed_byte_and_any_cut_is_found() {
        for (ipv6, udp) in [(false, false), (true, false), (false, true), (true, true)] {
            let config =
                StreamConfig { flows: 2, payload: 100, ipv6, udp, ..StreamConfig::default() };
            let sent = &frames(&config, 1)[0];
            let mut checker = Checker::new(&config);
            let mut found = |bytes: &[u8]| checker.frame(bytes, ChecksumState::Complete).is_err();
            for at in 0..sent.len() {
                assert!(found(&sent[..at]), "cut at {at}");
                for change in 1..=255 {
                    let mut bytes = sent.clone();
                    bytes[at] ^= change;
                    assert!(found(&bytes), "byte {at} changed by {change}");
                }
            }
            checker.frame(sent, ChecksumState::Complete).unwrap();
        }
    }

    #[test]
    fn merged_frames_are_as_good_as_single_ones() {
        let config = StreamConfig { flows: 1, payload: 100, ..StreamConfig::default() };
        let frames = frames(&config, 3);
        let mut merged = frames[0].clone();
        frames[1..].iter().for_each(|frame| merged.extend(&frame[frame.len() - 100..]));
        merged[16..18].copy_from_slice(&352_u16.to_be_bytes());
        fix_checksums(&mut merged);
        let mut checker = Checker::new(&config);
        checker.frame(&merged, ChecksumState::Complete).unwrap();
        assert_eq!(checker.summary().bytes, 300);
        let parsed = header::parse(&merged).unwrap();
        let pseudo = checksum::pseudo_header(&merged, &parsed, 332);
        merged[50..52].copy_from_slice(&pseudo.to_be_bytes());
        let mut checker = Checker::new(&config);
        checker.frame(&merged, ChecksumState::PseudoHeader).unwrap();
    }
}
