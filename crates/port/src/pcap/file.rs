//! Reads captures: pcap (both byte orders, micro- and nanoseconds) and pcapng.
//!
//! The blocks are found by the parser crate; of a packet only the lengths and the bytes matter here,
//! so that odd times or options in a capture do not keep it from being replayed.

use std::fmt;

use pcap_file::pcap::PcapParser;
use pcap_file::pcapng::PcapNgParser;
use pcap_file::{DataLink, Endianness, PcapError};

use crate::pieces;

/// The frames of a capture.
#[derive(Default)]
pub(super) struct Capture {
    bytes: Vec<u8>,
    /// Where each frame is among the bytes: offset and length.
    pub(super) frames: Vec<(usize, usize)>,
    /// Frames left out: the capture holds only their beginning.
    pub(super) cut: u64,
    /// Frames left out: shorter than an Ethernet header.
    pub(super) short: u64,
    /// Frames left out: longer than any frame may be.
    pub(super) long: u64,
}

impl Capture {
    /// Reads a capture file's bytes; the error says what is wrong with it and how to mend it.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut capture = Self::default();
        match bytes {
            [] => return Err("the file is empty: capture with `tcpdump -i IFNAME -w FILE`".into()),
            [0x0a, 0x0d, 0x0d, 0x0a, ..] => capture.read_pcapng(bytes)?,
            _ => capture.read_pcap(bytes)?,
        }
        if capture.frames.is_empty() {
            return Err(capture.nothing_to_replay());
        }
        Ok(capture)
    }

    /// The frame of that number.
    pub(super) fn frame(&self, number: usize) -> Option<&[u8]> {
        self.frames.get(number).map(|(offset, len)| &self.bytes[*offset..*offset + *len])
    }

    fn read_pcap(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (mut rest, parser) = PcapParser::new(bytes).map_err(|error| match error {
            PcapError::IncompleteBuffer => NO_CAPTURE.to_owned(),
            other => format!("{NO_CAPTURE} ({other})"),
        })?;
        // The upper half of the field says how long a checksum behind each frame is.
        let link = DataLink::from(u32::from(parser.header().datalink) & 0xffff);
        ethernet(link)?;
        while !rest.is_empty() {
            let number = self.seen() + 1;
            let (after, packet) =
                parser.next_raw_packet(rest).map_err(|error| broken(number, &error))?;
            self.add(&packet.data, packet.orig_len);
            rest = after;
        }
        Ok(())
    }

    fn read_pcapng(&mut self, bytes: &[u8]) -> Result<(), String> {
        let (mut rest, mut parser) =
            PcapNgParser::new(bytes).map_err(|error| format!("{NO_CAPTURE} ({error})"))?;
        while !rest.is_empty() {
            let number = self.seen() + 1;
            let (after, block) =
                parser.next_raw_block(rest).map_err(|error| broken(number, &error))?;
            rest = after;
            let endianness = parser.section().endianness;
            let Some(packet) = packet(block.type_, &block.body, endianness) else { continue };
            let Packet { interface, data, original } =
                packet.ok_or_else(|| format!("frame {number} makes no sense: {REWRITE}"))?;
            let interface = parser.interfaces().get(interface).ok_or_else(|| {
                format!("frame {number} is from an interface that the file lacks: {REWRITE}")
            })?;
            ethernet(interface.linktype)?;
            match data {
                Data::Whole(data) => self.add(data, original),
                Data::Padded(data) => {
                    let limit = if interface.snaplen == 0 { u32::MAX } else { interface.snaplen };
                    let len = usize::try_from(limit.min(original)).unwrap_or(usize::MAX);
                    self.add(&data[..len.min(data.len())], original);
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, data: &[u8], original: u32) {
        if usize::try_from(original).is_ok_and(|original| data.len() < original) {
            self.cut += 1;
        } else if data.len() < pieces::SHORTEST {
            self.short += 1;
        } else if data.len() > pieces::LONGEST {
            self.long += 1;
        } else {
            self.frames.push((self.bytes.len(), data.len()));
            self.bytes.extend_from_slice(data);
        }
    }

    fn seen(&self) -> u64 {
        self.frames.len() as u64 + self.cut + self.short + self.long
    }

    fn nothing_to_replay(&self) -> String {
        if self.cut > 0 {
            format!(
                "all {} frames were cut off by the capture's snap length: capture with `tcpdump -s 0`",
                self.cut
            )
        } else {
            "the capture has no frames: capture some traffic".to_owned()
        }
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frames, cut, short, long, .. } = self;
        write!(f, "Capture({} frames; {cut} cut, {short} short, {long} long)", frames.len())
    }
}

/// A packet block of a pcapng file.
struct Packet<'a> {
    interface: usize,
    data: Data<'a>,
    original: u32,
}

enum Data<'a> {
    /// The packet's bytes.
    Whole(&'a [u8]),
    /// The packet's bytes and padding behind them: a simple packet block does not say its length.
    Padded(&'a [u8]),
}

/// Reads a block if it holds a packet; `Some(None)` when it makes no sense.
fn packet(kind: u32, body: &[u8], endianness: Endianness) -> Option<Option<Packet<'_>>> {
    let word = |at: usize| {
        let bytes: [u8; 4] = body.get(at..at + 4)?.try_into().ok()?;
        Some(match endianness {
            Endianness::Big => u32::from_be_bytes(bytes),
            Endianness::Little => u32::from_le_bytes(bytes),
        })
    };
    let with_lengths = |interface: u32| {
        let (captured, original) = (usize::try_from(word(12)?).ok()?, word(16)?);
        let data = Data::Whole(body.get(20..)?.get(..captured)?);
        Some(Packet { interface: usize::try_from(interface).ok()?, data, original })
    };
    match kind {
        ENHANCED_PACKET => Some(word(0).and_then(with_lengths)),
        // The interface has 16 bits in the old block, a drop count the other 16.
        OLD_PACKET => Some(word(0).and_then(|word| {
            with_lengths(if endianness.is_big() { word >> 16 } else { word & 0xffff })
        })),
        SIMPLE_PACKET => Some(word(0).map(|original| {
            let data = Data::Padded(body.get(4..).unwrap_or_default());
            Packet { interface: 0, data, original }
        })),
        _ => None,
    }
}

fn ethernet(link: DataLink) -> Result<(), String> {
    if link == DataLink::ETHERNET {
        return Ok(());
    }
    Err(format!(
        "the capture has frames of link type {link:?} ({}), not Ethernet: capture on an Ethernet \
         interface, not on 'any'",
        u32::from(link)
    ))
}

fn broken(number: u64, error: &PcapError) -> String {
    match error {
        PcapError::IncompleteBuffer => {
            format!("the file ends in the middle of frame {number}: {REWRITE}")
        }
        other => format!("frame {number} can't be read ({other}): {REWRITE}"),
    }
}

const NO_CAPTURE: &str = "this is no pcap or pcapng file: capture with `tcpdump -i IFNAME -w FILE`";
const REWRITE: &str = "`tcpdump -r FILE -w WHOLE` writes what can be read to a new file";
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One record of a little-endian pcap file.
    pub(in crate::pcap) fn record(data: &[u8], original: u32) -> Vec<u8> {
        let captured = u32::try_from(data.len()).unwrap();
        // A time that no clock shows: times do not matter here.
        let words = [7, u32::MAX, captured, original];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend_from_slice(data);
        bytes
    }

    /// A little-endian pcap file of these frames.
    pub(in crate::pcap) fn little_pcap(frames: &[&[u8]]) -> Vec<u8> {
        let mut bytes = pcap_header(u32::to_le_bytes, 1);
        for frame in frames {
            bytes.extend(record(frame, u32::try_from(frame.len()).unwrap()));
        }
        bytes
    }

    fn pcap_header(word: fn(u32) -> [u8; 4], link: u32) -> Vec<u8> {
        // Magic, version (2 and 4 in halves of one word), zone, accuracy, snap length, link type.
        let version = if word(1)[0] == 1 { 0x0004_0002 } else { 0x0002_0004 };
        [0xa1b2_c3d4, version, 0, 0, 65_535, link].into_iter().flat_map(word).collect()
    }

    fn block(word: fn(u32) -> [u8; 4], kind: u32, body: &[u8]) -> Vec<u8> {
        let padded = body.len().next_multiple_of(4);
        let total = u32::try_from(padded + 12).unwrap();
        let mut bytes = [word(kind), word(total)].concat();
        bytes.extend_from_slice(body);
        bytes.resize(8 + padded, 0);
        bytes.extend(word(total));
        bytes
    }

    /// A pcapng file with one Ethernet interface and one frame in each kind of packet block.
    fn pcapng(word: fn(u32) -> [u8; 4], link: u32) -> Vec<u8> {
        let little = word(1)[0] == 1;
        let half = |value: u32| if little { word(value) } else { word(value << 16) };
        let version = half(1);
        let mut bytes = block(
            word,
            0x0a0d_0d0a,
            &[word(0x1a2b_3c4d), version, word(u32::MAX), word(u32::MAX)].concat(),
        );
        bytes.extend(block(word, 1, &[half(link), word(0)].concat()));
        let lengths = [word(0), word(0), word(61), word(61)].concat();
        bytes.extend(block(word, 6, &[word(0).to_vec(), lengths.clone(), vec![1; 61]].concat()));
        bytes.extend(block(word, 4, &[0; 8]));
        bytes.extend(block(word, 3, &[word(62).to_vec(), vec![2; 62]].concat()));
        bytes.extend(block(word, 2, &[word(0).to_vec(), lengths, vec![3; 61]].concat()));
        bytes
    }

    fn frames(capture: &Capture) -> Vec<&[u8]> {
        (0..capture.frames.len()).map(|number| capture.frame(number).unwrap()).collect()
    }

    #[test]
    fn pcap_of_both_byte_orders() {
        let capture = Capture::read(&little_pcap(&[&[1; 60], &[2; 1514]])).unwrap();
        assert_eq!(frames(&capture), [&[1; 60][..], &[2; 1514]]);
        let mut big = pcap_header(u32::to_be_bytes, 1);
        big.extend([0u32, 0, 60, 60].iter().flat_map(|word| word.to_be_bytes()));
        big.extend([9; 60]);
        assert_eq!(frames(&Capture::read(&big).unwrap()), [&[9; 60]]);
    }

    #[test]
    fn pcapng_of_both_byte_orders_and_all_packet_blocks() {
        for word in [u32::to_le_bytes as fn(u32) -> [u8; 4], u32::to_be_bytes] {
            let bytes = pcapng(word, 1);
            let capture = Capture::read(&bytes).unwrap();
            assert_eq!(frames(&capture), [&[1; 61][..], &[2; 62], &[3; 61]]);
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let whole = little_pcap(&[&[1; 60], &[2; 60]]);
        let mut cut_off = little_pcap(&[]);
        cut_off.extend(record(&[1; 60], 1514));
        let table = [
            (vec![], "the file is empty"),
            (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n".to_vec(), "no pcap or pcapng file"),
            (b"short".to_vec(), "no pcap or pcapng file"),
            (little_pcap(&[]), "the capture has no frames"),
            (whole[..whole.len() - 1].to_vec(), "ends in the middle of frame 2"),
            (whole[..30].to_vec(), "ends in the middle of frame 1"),
            (cut_off, "all 1 frames were cut off"),
            (pcap_header(u32::to_le_bytes, 113), "(113), not Ethernet"),
            (pcapng(u32::to_le_bytes, 276), "(276), not Ethernet"),
            (pcapng(u32::to_be_bytes, 1)[..150].to_vec(), "ends in the middle of frame"),
        ];
        for (bytes, reason) in table {
            let error = Capture::read(&bytes).unwrap_err();
            assert!(error.contains(reason), "{reason}: {error}");
        }
    }

    proptest! {
        #[test]
        fn damaged_captures_are_refused_or_read(
            pcap in any::<bool>(),
            little in any::<bool>(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            length in any::<prop::sample::Index>(),
            cut in any::<bool>(),
        ) {
            let mut bytes = match (pcap, little) {
                (true, _) => little_pcap(&[&[1; 60], &[2; 70]]),
                (false, true) => pcapng(u32::to_le_bytes, 1),
                (false, false) => pcapng(u32::to_be_bytes, 1),
            };
            for (at, value) in damage {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if cut {
                bytes.truncate(length.index(bytes.len()));
            }
            if let Ok(capture) = Capture::read(&bytes) {
                let total: usize = frames(&capture).iter().map(|frame| frame.len()).sum();
                prop_assert!(total > 0 && total <= bytes.len());
            }
        }
    }
}
