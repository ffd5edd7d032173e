//! Arbitrary traffic: steps that give a frame to the engine, or let time pass.

use std::num::NonZeroU32;
use std::time::Duration;

use gro::Instant;
use packet::build::{Ip, TcpFrame, UdpFrame, fix_checksums};
use packet::{Checksum, Gso, GsoKind, VlanTag, checksum, header};
use proptest::prelude::*;

/// What happens next.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Give(Input),
    EndOfPoll,
    FlushAll,
    Wait(Duration),
}

/// A frame that is given.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) connection: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) checksum: Checksum,
    pub(crate) hash: Option<NonZeroU32>,
    pub(crate) vlan: Option<VlanTag>,
    pub(crate) gso: Option<Gso>,
    /// Where to cut it into pieces.
    pub(crate) cut: Option<usize>,
    /// When it was given.
    pub(crate) at: Instant,
}

impl Default for Input {
    fn default() -> Self {
        Self {
            connection: 0,
            bytes: Vec::new(),
            checksum: Checksum::Unknown,
            hash: None,
            vlan: None,
            gso: None,
            cut: None,
            at: Instant::default(),
        }
    }
}

impl Input {
    /// VLANs, addresses and ports; nothing when the ports are not to be found.
    pub(crate) fn connection_key(&self) -> Option<Vec<u8>> {
        let mut key = self.address_key()?;
        let (head, ip) = (self.head(), self.network()?);
        let transport = if head[ip - 2] == 0x08 {
            if head[ip + 6] & 0x3f != 0 || head[ip + 7] != 0 {
                return None;
            }
            ip + usize::from(head[ip] & 0xf) * 4
        } else {
            ip + 40
        };
        key.extend(head.get(transport..transport + 4)?);
        Some(key)
    }

    /// VLANs and addresses of what may be TCP without extension headers; nothing when they are not to be
    /// found.
    pub(crate) fn address_key(&self) -> Option<Vec<u8>> {
        let (head, ip) = (self.head(), self.network()?);
        let mut key = head[12..ip].to_vec();
        match self.vlan {
            Some(tag) => key.extend([tag.tpid.to_be_bytes(), tag.tci.to_be_bytes()].concat()),
            None => key.push(0),
        }
        let packet = &head[ip..];
        match &head[ip - 2..ip] {
            [0x08, 0x00] if packet.len() >= 20 && packet[9] == 6 => key.extend(&packet[12..20]),
            [0x86, 0xdd] if packet.len() >= 40 && packet[6] == 6 => key.extend(&packet[8..40]),
            _ => return None,
        }
        Some(key)
    }

    /// Where the IP header begins, behind any tags.
    fn network(&self) -> Option<usize> {
        let head = self.head();
        let mut at = 12;
        while matches!(head.get(at..at + 2)?, [0x81, 0x00] | [0x88, 0xa8]) {
            at += 4;
        }
        Some(at + 2)
    }

    /// The first piece: headers lie there.
    fn head(&self) -> &[u8] {
        &self.bytes[..self.cut.unwrap_or(self.bytes.len())]
    }
}

/// One packet of a connection, relative to the one before.
#[derive(Debug, Clone)]
struct Next {
    connection: usize,
    len: usize,
    odd: Odd,
    checksum: u8,
    hash: u32,
    cut: Option<usize>,
}

/// What is special about a packet.
#[derive(Debug, Clone)]
enum Odd {
    Nothing,
    /// The same packet once more.
    Again,
    /// Sequence numbers jump.
    Jump(i32),
    Flags(u16),
    Ack,
    Window,
    Options(usize),
    Urgent,
    /// TOS or class, TTL or hop limit, DF, reserved bit.
    Network(u8),
    Id(u16),
    Label,
    Mac,
    IpOptions,
    Extension(u8),
    Fragment,
    /// A byte changed; checksums made right again or not.
    Byte(usize, u8, bool),
    Padding(usize),
    Cut(usize),
    Udp,
}

/// Steps with packets of these connections.
pub(crate) fn steps(connections: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => next(connections).prop_map(Raw::Next),
        1 => Just(Raw::EndOfPoll),
        1 => Just(Raw::FlushAll),
        1 => (1..40_u64).prop_map(Raw::Wait),
    ];
    prop::collection::vec(step, 0..60).prop_map(|raw| {
        let mut senders = (0..4).map(Sender::new).collect::<Vec<_>>();
        raw.into_iter()
            .map(|raw| match raw {
                Raw::Next(next) => Step::Give(senders[next.connection].send(&next)),
                Raw::EndOfPoll => Step::EndOfPoll,
                Raw::FlushAll => Step::FlushAll,
                Raw::Wait(micros) => Step::Wait(Duration::from_micros(micros)),
            })
            .collect()
    })
}

#[derive(Debug, Clone)]
enum Raw {
    Next(Next),
    EndOfPoll,
    FlushAll,
    Wait(u64),
}

fn next(connections: std::ops::Range<usize>) -> impl Strategy<Value = Next> {
    let len = prop_oneof![8 => Just(100_usize), 1 => Just(101), 1 => Just(50), 1 => Just(0),
        1 => Just(7), 1 => Just(1400)];
    let odd = prop_oneof![
        30 => Just(Odd::Nothing),
        1 => Just(Odd::Again),
        1 => prop::sample::select(vec![-200, -100, -1, 1, 100]).prop_map(Odd::Jump),
        3 => (0..12_u16).prop_map(|bit| Odd::Flags(1 << bit)),
        1 => Just(Odd::Ack),
        1 => Just(Odd::Window),
        2 => (0..4_usize).prop_map(Odd::Options),
        1 => Just(Odd::Urgent),
        2 => (0..4_u8).prop_map(Odd::Network),
        2 => prop::sample::select(vec![0_u16, 1, 2, 0xffff]).prop_map(Odd::Id),
        1 => Just(Odd::Label),
        1 => Just(Odd::Mac),
        1 => Just(Odd::IpOptions),
        1 => (0..3_u8).prop_map(Odd::Extension),
        1 => Just(Odd::Fragment),
        3 => (0..120_usize, 1..=255_u8, any::<bool>())
            .prop_map(|(at, bits, fixed)| Odd::Byte(at, bits, fixed)),
        2 => (1..20_usize).prop_map(Odd::Padding),
        1 => (0..100_usize).prop_map(Odd::Cut),
        1 => Just(Odd::Udp),
    ];
    let cut = prop_oneof![6 => Just(None), 1 => (0..150_usize).prop_map(Some)];
    (connections, len, odd, any::<u8>(), any::<u32>(), cut).prop_map(
        |(connection, len, odd, checksum, hash, cut)| Next {
            connection,
            len,
            odd,
            checksum,
            hash,
            cut,
        },
    )
}

/// One end of a connection. 0 and 2 share their addresses; 1 and 3 do, too, but not their VLAN.
struct Sender {
    connection: usize,
    base: TcpFrame<'static>,
    fixed_id: bool,
    last: Option<Input>,
}

impl Sender {
    fn new(connection: usize) -> Self {
        let odd = connection % 2 == 1;
        let mut base = if odd { TcpFrame::v6() } else { TcpFrame::v4() };
        base.link.source[5] = if odd { 0x11 } else { 0x22 };
        if odd {
            base.link.tags = &[(0x8100, 5)];
        } else {
            base.options = OPTIONS[1];
        }
        base.ports.0 += u16::try_from(connection).expect("a few");
        base.seq = 0xffff_ff00;
        Self { connection, base, fixed_id: connection == 2, last: None }
    }

    fn send(&mut self, next: &Next) -> Input {
        if let (Odd::Again, Some(last)) = (&next.odd, &self.last) {
            return last.clone();
        }
        let mut frame = self.base;
        let start = frame.seq as usize % 97;
        frame.payload = &PATTERN[start..start + next.len];
        self.base.seq = self.base.seq.wrapping_add(u32::try_from(next.len).expect("a packet"));
        if let (Ip::V4 { id, .. }, false) = (&mut self.base.ip, self.fixed_id) {
            *id = id.wrapping_add(1);
        }
        self.change(&mut frame, &next.odd);
        let bytes = self.spoil(frame, &next.odd);
        let vlan = (self.connection == 3).then_some(VlanTag { tpid: 0x8100, tci: 9 });
        let input = Input {
            connection: self.connection,
            checksum: truth(&bytes, next.checksum),
            hash: NonZeroU32::new(next.hash % 3),
            vlan,
            gso: None,
            // All hints but the sum hold for scattered frames as well.
            cut: next.cut.filter(|cut| *cut > 0 && *cut < bytes.len()),
            bytes,
            at: Instant::default(),
        };
        self.last = Some(input.clone());
        input
    }

    /// Changes that leave the frame well formed.
    fn change(&mut self, frame: &mut TcpFrame<'static>, odd: &Odd) {
        match odd {
            Odd::Jump(by) => {
                frame.seq = frame.seq.wrapping_add_signed(*by);
                self.base.seq = self.base.seq.wrapping_add_signed(*by);
            }
            Odd::Flags(bits) => frame.flags ^= bits,
            Odd::Ack => {
                self.base.ack += 1;
                frame.ack += 1;
            }
            Odd::Window => frame.window += 1,
            Odd::Options(which) => {
                self.base.options = OPTIONS[*which];
                frame.options = OPTIONS[*which];
            }
            Odd::Urgent => frame.urgent = 5,
            Odd::Network(which) => match (&mut frame.ip, which) {
                (Ip::V4 { tos, .. }, 0) => *tos ^= 3,
                (Ip::V4 { ttl, .. }, 1) => *ttl -= 1,
                (Ip::V4 { flags, .. }, 2) => *flags ^= 0x4000,
                (Ip::V4 { flags, .. }, _) => *flags ^= 0x8000,
                (Ip::V6 { class, .. }, 0) => *class ^= 3,
                (Ip::V6 { hop_limit, .. }, _) => *hop_limit -= 1,
            },
            Odd::Id(step) => {
                for ip in [&mut frame.ip, &mut self.base.ip] {
                    if let Ip::V4 { id, .. } = ip {
                        *id = id.wrapping_add(*step);
                    }
                }
            }
            Odd::Label => {
                if let Ip::V6 { label, .. } = &mut frame.ip {
                    *label ^= 7;
                }
            }
            Odd::Mac => frame.link.destination[0] ^= 4,
            Odd::IpOptions if matches!(frame.ip, Ip::V4 { .. }) => frame.ip.set_options(&[1; 4]),
            Odd::Extension(which) if matches!(frame.ip, Ip::V6 { .. }) => {
                frame.ip.set_extensions(EXTENSIONS[usize::from(*which)]);
            }
            _ => {}
        }
    }

    /// Changes to the finished bytes.
    fn spoil(&self, frame: TcpFrame<'static>, odd: &Odd) -> Vec<u8> {
        let mut bytes = frame.to_vec();
        match odd {
            Odd::Fragment if bytes[12] == 0x08 => {
                bytes[20] |= 0x20;
                bytes[24..26].fill(0);
                let sum = !checksum::sum(&bytes[14..34]);
                bytes[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            Odd::Byte(at, bits, fixed) => {
                if let Some(byte) = bytes.get_mut(*at) {
                    *byte ^= bits;
                }
                if *fixed {
                    fix_checksums(&mut bytes);
                }
            }
            Odd::Padding(len) => bytes.resize(bytes.len() + len, 0x5a),
            Odd::Cut(len) => bytes.truncate(bytes.len().min(*len)),
            Odd::Udp => {
                let mut udp = UdpFrame::v4();
                udp.link = frame.link;
                udp.ip = frame.ip;
                udp.payload = frame.payload;
                bytes = udp.to_vec();
            }
            _ => {}
        }
        bytes
    }
}

/// A hint that is true of these bytes.
fn truth(bytes: &[u8], choice: u8) -> Checksum {
    match choice % 3 {
        0 if is_valid(bytes) => Checksum::Verified { levels: 1 },
        1 if bytes.len() > 14 => Checksum::Sum(checksum::sum(&bytes[14..])),
        _ => Checksum::Unknown,
    }
}

fn is_valid(bytes: &[u8]) -> bool {
    let Ok(parsed) = header::parse(bytes) else { return false };
    let (network, transport) =
        (usize::from(parsed.layout.network), usize::from(parsed.layout.transport));
    let end = network + parsed.ip_len;
    if end > bytes.len() || end < usize::from(parsed.layout.payload) {
        return false;
    }
    let pseudo = checksum::pseudo_header(&bytes[..end], &parsed, end - transport);
    checksum::add(pseudo, checksum::sum(&bytes[transport..end])) == 0xffff
}

/// Bytes of no meaning, most of them behind headers that look right.
pub(crate) fn noise() -> impl Strategy<Value = Input> {
    let types = prop::sample::select(vec![0x0800_u16, 0x86dd, 0x8100, 0x88a8, 0x0806]);
    let first = prop::sample::select(vec![0x45_u8, 0x46, 0x60, 0x4f, 0x00]);
    let protocol = prop::sample::select(vec![6_u8, 17, 0, 43, 44, 60]);
    let hint = prop_oneof![
        Just(Checksum::Unknown),
        any::<u8>().prop_map(|levels| Checksum::Verified { levels }),
        any::<u16>().prop_map(Checksum::Sum),
        any::<(u16, u16)>().prop_map(|(start, offset)| Checksum::Partial { start, offset }),
    ];
    let gso = any::<(u16, u16, bool, bool)>().prop_map(|(size, segments, v6, trusted)| Gso {
        kind: if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 },
        size: size % 100,
        segments: segments % 8,
        fixed_id: trusted,
        ecn: false,
        trusted,
    });
    let gso = prop::option::weighted(0.2, gso);
    let bytes = prop::collection::vec(any::<u8>(), 0..160);
    (bytes, types, first, protocol, hint, any::<(bool, bool)>(), gso).prop_map(
        |(mut bytes, ethertype, first, protocol, checksum, (lengths, sums), gso)| {
            let len = bytes.len();
            if len > 60 {
                bytes[12..14].copy_from_slice(&ethertype.to_be_bytes());
                bytes[14] = first;
                bytes[if ethertype == 0x0800 { 23 } else { 20 }] = protocol;
                if lengths {
                    let (at, behind) = if ethertype == 0x0800 { (16, 14) } else { (18, 54) };
                    let value = u16::try_from(len - behind).expect("a small frame");
                    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
                    // No fragment, and a TCP header of 20 or 24 bytes.
                    bytes[20..22].copy_from_slice(&if ethertype == 0x0800 {
                        [0x40, 0]
                    } else {
                        [protocol, 64]
                    });
                    let at = if ethertype == 0x0800 { 46 } else { 54 + 12 };
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = 0x50 | (*byte & 0x1f);
                    }
                }
                if sums {
                    fix_checksums(&mut bytes);
                }
            }
            Input { bytes, checksum, gso, ..Input::default() }
        },
    )
}

const OPTIONS: [&[u8]; 4] = [
    &[],
    &[1, 1, 8, 10, 0, 0, 0, 10, 0, 0, 0, 20],
    &[1, 1, 8, 10, 0, 0, 0, 11, 0, 0, 0, 20],
    &[1, 1, 5, 18, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 20, 0, 0, 0, 29],
];
const EXTENSIONS: [&[(u8, &[u8])]; 3] = [
    &[(60, &[0, 0, 1, 4, 0, 0, 0, 0])],
    &[(60, &[0, 0, 1, 4, 0, 0, 0, 1])],
    &[(0, &[0, 0, 1, 4, 0, 0, 0, 0]), (43, &[0; 8])],
];

static PATTERN: [u8; 2048] = {
    let mut bytes = [0; 2048];
    let mut at = 0;
    while at < bytes.len() {
        #[expect(clippy::cast_possible_truncation, reason = "below 253")]
        let byte = ((at * at / 7 + at * 31 + 7) % 253) as u8;
        bytes[at] = byte;
        at += 1;
    }
    bytes
};
