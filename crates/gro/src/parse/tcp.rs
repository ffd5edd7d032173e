//! The TCP header (`spec/gro.md` 2.4).

use packet::header::TCP_LEN;
use packet::{Frame, Layout};

use super::{Packet, Scope, Stray, WORDS_WITH_TIMESTAMPS, be32, chunk, stray};
use crate::config::Rules;
use crate::counters::Passed;

/// Where the headers are, and where the IP packet ends by its own word.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub(super) network: usize,
    pub(super) transport: usize,
    pub(super) end: usize,
}

// Always: with constant offsets in the untagged case, and with the packet's fields in registers, it is
// 3 ns of 34 per packet cheaper than a call.
#[inline(always)]
pub(super) fn parse(
    frame: &Frame,
    at: At,
    rules: &Rules,
    packet: &mut Packet,
) -> Result<(), Stray> {
    let head = frame.head();
    let Some(tcp) = chunk::<TCP_LEN>(head, at.transport) else {
        return cut_off(head, at.transport, packet); // B8
    };
    packet.key.set_ports([tcp[0], tcp[1], tcp[2], tcp[3]]);
    packet.word = be32(tcp, 12);
    packet.seq = be32(tcp, 4);
    packet.ack = be32(tcp, 8);
    let payload = at.transport + (packet.word >> 28) as usize * 4;
    if payload < at.transport + TCP_LEN || payload > head.len() {
        return stray(Passed::L4Header, Scope::Connection); // B8
    }
    if packet.word >> 28 == WORDS_WITH_TIMESTAMPS
        && let Some(options) = chunk::<TIMESTAMPS_LEN>(head, at.transport + TCP_LEN)
    {
        packet.options = u64::from(be32(options, 0)) << 32 | u64::from(be32(options, 4));
        packet.more_options = be32(options, 8);
    }
    let mut end = at.end;
    if end != frame.len() {
        end = other_length(frame, at.end, rules, packet);
    }
    let bounds = (u16::try_from(payload), end.checked_sub(payload).map(u16::try_from));
    let (Ok(payload), Some(Ok(len))) = bounds else {
        return stray(Passed::L4Header, Scope::Connection);
    };
    #[expect(clippy::cast_possible_truncation, reason = "they are less than the payload's offset")]
    let (network, transport) = (at.network as u16, at.transport as u16);
    packet.layout = Layout { network, transport, payload };
    (packet.len, packet.segment, packet.count) = (len, len, 1);
    if frame.meta.gso.is_some() {
        super_packet(frame, packet);
    }
    if len == 0 || packet.word & (SYN | RST | URG) != 0 {
        let control = packet.word & (SYN | RST | URG | FIN) != 0;
        let reason = if control { Passed::ControlFlag } else { Passed::ZeroPayload };
        packet.flush.get_or_insert(reason);
    }
    Ok(())
}

/// A TCP header that is cut off may still have its ports.
#[cold]
fn cut_off(head: &[u8], transport: usize, packet: &mut Packet) -> Result<(), Stray> {
    let Some(ports) = chunk::<4>(head, transport) else {
        return stray(Passed::L4Header, Scope::Addresses);
    };
    packet.key.set_ports(*ports);
    stray(Passed::L4Header, Scope::Connection)
}

/// F1, F3: the IP packet does not end where the frame ends. Answers the end to go on with.
#[cold]
fn other_length(frame: &Frame, end: usize, rules: &Rules, packet: &mut Packet) -> usize {
    let whole = frame.len();
    if rules.trim_padding && end < whole && frame.tail().is_empty() {
        #[expect(clippy::cast_possible_truncation, reason = "a piece has at most 65535 bytes")]
        let padding = (whole - end) as u16;
        packet.padding = padding;
        return end;
    }
    packet.flush.get_or_insert(Passed::IpLength);
    end.min(whole)
}

/// The input is a super-packet (1.8): it can go on only if its numbers are trusted and fit its bytes.
#[cold]
fn super_packet(frame: &Frame, packet: &mut Packet) {
    let Some(gso) = frame.meta.gso else { return };
    let fits = gso.trusted
        && gso.kind.is_tcp()
        && gso.kind.is_v6() == packet.key.is_ipv6()
        // CWR on the first segment only: no packet behind it could say so.
        && !gso.ecn
        && gso.segments > 1
        && packet.len.checked_sub(1).and_then(|len| len.checked_div(gso.size))
            == Some(gso.segments - 1);
    if fits {
        packet.segment = gso.size;
        packet.count = gso.segments;
        packet.fixed_id = gso.fixed_id && !packet.key.is_ipv6();
    } else {
        packet.flush.get_or_insert(Passed::UntrustedSuper);
    }
}

/// FIN and PSH: in [`Packet::word`], like the other flags.
pub(crate) const FIN_PSH: u32 = FIN | PSH;
/// Flags that end a super-packet.
pub(crate) const ENDING: u32 = URG | PSH | RST | SYN | FIN;
/// Congestion window reduced.
pub(crate) const CWR: u32 = 0x80 << 16;
/// The window.
pub(crate) const WINDOW: u32 = 0xffff;
/// Two NOPs and the option itself.
const TIMESTAMPS_LEN: usize = 12;
const URG: u32 = 0x20 << 16;
const PSH: u32 = 0x08 << 16;
const RST: u32 = 0x04 << 16;
const SYN: u32 = 0x02 << 16;
const FIN: u32 = 0x01 << 16;
