//! What the card has to be told of one frame (`spec/ef10.md` 7.3, 7.4).
//!
//! A [`Plan`] is made from the frame's metadata before a descriptor is written, so that a frame that
//! does not fit, or that the card can't send, leaves the ring alone.

use packet::header::{self, ETHERNET_LEN, IPV6_LEN, VLAN_LEN};
use packet::{Checksum, Frame, Gso, complete_checksum};

use super::descriptor::{MAX_BYTES, Tso};

/// What becomes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// The card inserts the transport checksum.
    pub(super) checksum: bool,
    /// The card cuts the frame; with how many bytes the headers have.
    pub(super) tso: Option<(Tso, u16)>,
    /// How many descriptors the bytes take.
    pub(super) data: u32,
}

/// Where a frame's checksum comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// It is in the frame.
    Sender,
    /// The card puts it in.
    Card,
    /// It was computed here.
    Software,
}

/// A frame that can never be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused;

impl Plan {
    /// Plans a frame. Completes its checksum in place when the card can't; prepares its headers when
    /// the card cuts it.
    #[inline]
    pub(super) fn of(frame: &mut Frame, can_cut: bool) -> Result<(Self, Source), Refused> {
        // A tag beside the frame would take an option that not every firmware has. No sender makes one.
        if frame.meta.vlan.is_some() || frame.head().len() < ETHERNET_LEN {
            return Err(Refused);
        }
        let tso = match frame.meta.gso {
            Some(gso) if can_cut => Some(segmentation(frame, gso)?),
            Some(_) => return Err(Refused),
            None => None,
        };
        let source = match frame.meta.checksum {
            _ if tso.is_some() => Source::Card,
            Checksum::Partial { start, offset } if card_completes(frame, start, offset) => {
                Source::Card
            }
            Checksum::Partial { .. } => {
                complete_checksum(frame).map_err(|_| Refused)?;
                Source::Software
            }
            _ => Source::Sender,
        };
        let header = tso.map(|(_, header)| header);
        Ok((Self { checksum: source == Source::Card, tso, data: data(frame, header) }, source))
    }

    /// How many descriptors it takes when the checksum option has to be changed, or not.
    #[inline]
    pub(super) fn descriptors(self, change: bool) -> u32 {
        self.data + u32::from(change) + if self.tso.is_some() { 2 } else { 0 }
    }
}

/// How many descriptors the bytes take; the headers of a frame that is cut have one of their own.
#[inline]
fn data(frame: &Frame, header: Option<u16>) -> u32 {
    let count = |bytes: usize| u32::try_from(bytes.div_ceil(MAX_BYTES.into())).unwrap_or(u32::MAX);
    let head = frame.head().len();
    let head = header.map_or_else(|| count(head), |len| 1 + count(head - usize::from(len)));
    frame.tail().iter().fold(head, |sum, piece| sum.saturating_add(count(piece.len())))
}

/// Checks a super-packet against the rules of 7.4, and writes into its headers what the card adds to.
fn segmentation(frame: &mut Frame, gso: Gso) -> Result<(Tso, u16), Refused> {
    let layout = frame.meta.layout;
    let (network, transport) = (usize::from(layout.network), usize::from(layout.transport));
    let (payload, len) = (usize::from(layout.payload), frame.len());
    let fits = gso.kind.is_tcp()
        // CWR would have to go into the first segment only; what the card does is not documented.
        && !gso.ecn
        && gso.size >= Tso::MIN_MSS
        && layout.transport <= Tso::MAX_TCP_OFFSET
        && network + 20 <= transport
        && transport + 20 <= payload
        && payload <= frame.head().len()
        && payload < len
        && (len - payload).div_ceil(gso.size.into()) <= usize::from(Tso::MAX_SEGMENTS);
    if !fits || (gso.kind.is_v6() && network + IPV6_LEN > transport) {
        return Err(Refused);
    }
    let head = frame.head_mut();
    let sequence = [0, 1, 2, 3].map(|at| head[transport + 4 + at]);
    let length = Tso::HEADER_LENGTH.to_be_bytes();
    let ip_id = if gso.kind.is_v6() {
        head[network + 4..][..2].copy_from_slice(&length);
        0
    } else {
        head[network + 2..][..2].copy_from_slice(&length);
        head[network + 10..][..2].fill(0);
        u16::from_be_bytes([head[network + 4], head[network + 5]])
    };
    let tso = Tso { ip_id, sequence: u32::from_be_bytes(sequence), mss: gso.size };
    Ok((tso, layout.payload))
}

/// Whether the card finds the checksum that was left open: TCP or UDP right behind an IP header.
///
/// What the card parses beyond that (extension headers, two tags) is not in the reference, so software
/// completes those.
fn card_completes(frame: &Frame, start: u16, offset: u16) -> bool {
    let Ok(parsed) = header::parse(frame.head()) else { return false };
    let layout = parsed.layout;
    let field = if parsed.tcp { 16 } else { 6 };
    let plain =
        !parsed.v6 || usize::from(layout.network) + IPV6_LEN == usize::from(layout.transport);
    plain
        && usize::from(layout.network) <= ETHERNET_LEN + VLAN_LEN
        && (layout.transport, field) == (start, offset)
}

#[cfg(test)]
mod tests {
    use packet::build::{TcpFrame, UdpFrame};
    use packet::{GsoKind, Layout, Pool};

    use super::*;

    fn frame(bytes: &[u8]) -> Frame {
        Frame::copied_from(bytes, &mut Pool::new(1, 4096)).unwrap()
    }

    fn partial(bytes: &[u8]) -> Frame {
        let mut frame = frame(bytes);
        let parsed = header::parse(bytes).unwrap();
        frame.meta.checksum = Checksum::Partial {
            start: parsed.layout.transport,
            offset: if parsed.tcp { 16 } else { 6 },
        };
        frame.meta.layout = parsed.layout;
        frame
    }

    fn super_packet(bytes: &[u8], v6: bool) -> Frame {
        let mut frame = partial(bytes);
        let kind = if v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 };
        let gso =
            Gso { kind, size: 100, segments: 10, fixed_id: false, ecn: false, trusted: false };
        frame.meta.gso = Some(gso);
        frame
    }

    #[test]
    fn who_completes_a_checksum() {
        let source = |mut frame: Frame| Plan::of(&mut frame, true).unwrap().1;
        let mut tagged = TcpFrame::v4();
        tagged.link.tags = &[(0x8100, 6)];
        let mut twice = TcpFrame::v4();
        twice.link.tags = &[(0x88a8, 5), (0x8100, 6)];
        let mut extended = TcpFrame::v6();
        extended.ip.set_extensions(&[(60, &[0; 8])]);
        let table = [
            ("TCP over IPv4", partial(&TcpFrame::v4().to_vec()), Source::Card),
            ("TCP over IPv6", partial(&TcpFrame::v6().to_vec()), Source::Card),
            ("UDP", partial(&UdpFrame::v4().to_vec()), Source::Card),
            ("one tag", partial(&tagged.to_vec()), Source::Card),
            ("two tags", partial(&twice.to_vec()), Source::Software),
            ("an extension header", partial(&extended.to_vec()), Source::Software),
            ("complete already", frame(&TcpFrame::v4().to_vec()), Source::Sender),
        ];
        for (name, frame, expected) in table {
            assert_eq!(source(frame), expected, "{name}");
        }
        let mut elsewhere = partial(&TcpFrame::v4().to_vec());
        elsewhere.meta.checksum = Checksum::Partial { start: 14, offset: 10 };
        assert_eq!(source(elsewhere), Source::Software);
        let mut nowhere = partial(&TcpFrame::v4().to_vec());
        nowhere.meta.checksum = Checksum::Partial { start: 5000, offset: 16 };
        assert_eq!(Plan::of(&mut nowhere, true), Err(Refused));
    }

    #[test]
    fn headers_of_a_super_packet_are_made_ready() {
        for v6 in [false, true] {
            let mut tcp = if v6 { TcpFrame::v6() } else { TcpFrame::v4() };
            tcp.payload = &[7; 1000];
            let mut frame = super_packet(&tcp.to_vec(), v6);
            let before = frame.to_vec();
            let (plan, source) = Plan::of(&mut frame, true).unwrap();
            let (tso, header) = plan.tso.unwrap();
            let Layout { network, transport, payload } = frame.meta.layout;
            assert_eq!((source, header, plan.data), (Source::Card, payload, 2));
            assert_eq!(plan.descriptors(true), 5);
            assert_eq!(tso.mss, 100);
            let at = usize::from(transport) + 4;
            assert_eq!(tso.sequence.to_be_bytes(), before[at..at + 4]);
            let head = frame.head();
            let network = usize::from(network);
            if v6 {
                assert_eq!((tso.ip_id, &head[network + 4..network + 6]), (0, &[0xff, 0x30][..]));
            } else {
                assert_eq!(tso.ip_id.to_be_bytes(), before[network + 4..network + 6]);
                assert_eq!(head[network + 2..network + 4], [0xff, 0x30]);
                assert_eq!(head[network + 10..network + 12], [0, 0]);
            }
        }
    }

    #[test]
    fn what_the_card_cannot_cut_is_refused() {
        let mut tcp = TcpFrame::v4();
        tcp.payload = &[7; 1000];
        let bytes = tcp.to_vec();
        let refused = |change: &dyn Fn(&mut Frame)| {
            let mut frame = super_packet(&bytes, false);
            change(&mut frame);
            Plan::of(&mut frame, true) == Err(Refused)
        };
        let gso = |frame: &mut Frame, change: fn(&mut Gso)| {
            change(frame.meta.gso.as_mut().unwrap());
        };
        assert!(!refused(&|_| {}));
        assert!(refused(&|frame| gso(frame, |gso| gso.size = 3)));
        assert!(refused(&|frame| gso(frame, |gso| gso.size = 0)));
        assert!(refused(&|frame| gso(frame, |gso| gso.ecn = true)));
        assert!(refused(&|frame| gso(frame, |gso| gso.kind = GsoKind::UdpV4)));
        assert!(refused(&|frame| frame.meta.layout.payload = 1100));
        assert!(refused(&|frame| frame.meta.layout.transport = 20));
        assert!(refused(&|frame| frame.meta.layout.transport = 209));
        assert!(refused(&|frame| frame.meta.vlan = Some(packet::VlanTag { tpid: 0x8100, tci: 1 })));
        assert_eq!(Plan::of(&mut super_packet(&bytes, false), false), Err(Refused));
    }
}
