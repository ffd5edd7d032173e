//! Transmit: from the rings of the host to the wire (section 7).

use crate::bits::{bit, bits, low16, low32, number, size};
use crate::card::Card;
use crate::config::{flags1, flags2};
use crate::parse::{Encap, Headers, L4, parse};
use crate::queue::{Offload, Txq};
use crate::violation::Rule;
use crate::{checksum, event};

/// Longest header offset that segmentation knows (7.4).
const TSO_HEADER: usize = 208;
/// Longest frame without segmentation, and with it.
const FRAME: usize = 9240;
const SUPER_FRAME: usize = 256 * 1024;
/// Shorter frames are padded (unverified; 7.1).
const SHORTEST: usize = 60;

/// Kinds of transmit errors (5.6).
#[derive(Clone, Copy, Debug)]
enum Broken {
    Load,
    NoEnd,
    TooBig,
    BadOption,
    Segmentation,
    OptionInPacket,
    BadAddress,
}

impl Broken {
    /// How the controller calls it; it has no name for what can't be segmented.
    fn code(self) -> u32 {
        match self {
            Self::Load => 1,
            Self::NoEnd => 2,
            Self::TooBig => 3,
            Self::BadOption | Self::Segmentation => 5,
            Self::OptionInPacket => 8,
            Self::BadAddress => 9,
        }
    }

    fn rule(self) -> Rule {
        match self {
            Self::Load | Self::BadAddress => Rule::Unmapped,
            Self::NoEnd | Self::TooBig => Rule::PacketEnd,
            Self::BadOption | Self::OptionInPacket => Rule::Option,
            Self::Segmentation => Rule::Segmentation,
        }
    }
}

impl Card {
    /// A transmit doorbell; `push` is the descriptor that came with it (2.6).
    pub(crate) fn tx_doorbell(&mut self, instance: usize, value: u32, push: Option<Option<u64>>) {
        let Self { host, function, mc, .. } = self;
        let Some(mut txq) = function.txqs.get_mut(instance).and_then(Option::take) else {
            if !mc.forgotten {
                host.violation(Rule::NoQueue, format_args!("transmit doorbell of VI {instance}"));
            }
            return;
        };
        let entries = txq.ring.entries();
        let pointer = u64::from(value);
        let added = pointer.wrapping_sub(txq.posted) & (entries - 1);
        if pointer >= entries || txq.posted + added - txq.taken >= entries {
            host.violation(
                Rule::PastRing,
                format_args!("write pointer {pointer} of TXQ {instance}"),
            );
        } else if !txq.dead {
            self.check_push(&mut txq, instance, push);
            txq.posted += added;
            self.transmit(&mut txq, instance);
        }
        self.function.txqs[instance] = Some(txq);
    }

    fn check_push(&mut self, txq: &mut Txq, instance: usize, push: Option<Option<u64>>) {
        let mut there = [0];
        txq.ring.load(&mut self.host, txq.posted, &mut there, "a transmit ring");
        if let Some(Some(pushed)) = push
            && pushed != there[0]
        {
            self.host.violation(Rule::PushMismatch, format_args!("{pushed:#x} to TXQ {instance}"));
        }
        if !txq.pushed && (push.is_none() || there[0] >> 60 != 8) {
            self.host.violation(Rule::FirstPush, format_args!("TXQ {instance}: {:#x}", there[0]));
        }
        txq.pushed = true;
    }

    fn transmit(&mut self, txq: &mut Txq, instance: usize) {
        while txq.taken < txq.posted {
            if let Err((broken, detail)) = self.packet(txq) {
                self.host.violation(broken.rule(), format_args!("TXQ {instance}: {detail}"));
                let data = low32(number(instance)) | broken.code() << 12;
                let error = event::controller(event::code::TX_ERR, data);
                self.function.evqs.post(&mut self.host, txq.evq, error);
                (txq.dead, txq.flushing) = (true, true);
                return;
            }
            if !self.function.evqs.get(txq.evq).is_some_and(|evq| evq.tx_merge) {
                self.flush_tx(txq);
            }
        }
        self.flush_tx(txq);
    }

    fn flush_tx(&mut self, txq: &mut Txq) {
        if let Some(last) = txq.completed.take() {
            let index = last & (txq.ring.entries() - 1);
            let done = event::transmitted(txq.label, index);
            self.function.evqs.post(&mut self.host, txq.evq, done);
        }
    }

    /// Takes one packet, or one option, off the ring.
    fn packet(&mut self, txq: &mut Txq) -> Result<(), (Broken, String)> {
        let mut frame = Vec::new();
        let mut header = None;
        loop {
            if txq.taken == txq.posted {
                return Err((
                    Broken::NoEnd,
                    "the last descriptor says that another follows".into(),
                ));
            }
            let mut descriptor = [0];
            if txq
                .ring
                .load(&mut self.host, txq.taken, &mut descriptor, "a transmit ring")
                .is_none()
            {
                return Err((Broken::Load, "the ring is not mapped".into()));
            }
            let [descriptor] = descriptor;
            if bit(descriptor, 63) {
                if header.is_some() {
                    return Err((Broken::OptionInPacket, format!("option {descriptor:#x}")));
                }
                self.option(txq, descriptor)?;
                txq.taken += 1;
                // An option alone is complete; one that belongs to a packet is told with it.
                txq.completed = Some(txq.taken - 1);
                return Ok(());
            }
            let (address, len) = (bits(descriptor, 0, 48), size(bits(descriptor, 48, 14)));
            if len == 0 {
                self.host.violation(Rule::Descriptor, format_args!("transmit {descriptor:#x}"));
            }
            let at = frame.len();
            frame.resize(at + len, 0);
            if !self.host.dma.holds(address, number(len)) {
                return Err((Broken::BadAddress, format!("{len} bytes at {address:#x}")));
            }
            self.host.read(address, &mut frame[at..], "a transmit buffer");
            header.get_or_insert(len);
            txq.taken += 1;
            let most = if txq.segment[0].is_some() { SUPER_FRAME } else { FRAME };
            if frame.len() > most {
                return Err((Broken::TooBig, format!("{} bytes", frame.len())));
            }
            if !bit(descriptor, 62) {
                break;
            }
        }
        match std::mem::take(&mut txq.segment) {
            [None, None] => {
                self.fill(&mut frame, txq.offload);
                self.emit(txq, frame);
            }
            [Some(first), Some(second)] => {
                self.segment(txq, &frame, header.unwrap_or(0), first, second)?;
            }
            _ => {
                return Err((
                    Broken::BadOption,
                    "one segmentation option without the other".into(),
                ));
            }
        }
        txq.completed = Some(txq.taken - 1);
        Ok(())
    }

    fn option(&mut self, txq: &mut Txq, option: u64) -> Result<(), (Broken, String)> {
        let bad = |why: &str| Err((Broken::BadOption, format!("{option:#x}: {why}")));
        if txq.segment[0].is_some() && (txq.segment[1].is_some() || bits(option, 56, 8) != 0xf3) {
            return bad("between the segmentation options and their packet");
        }
        match bits(option, 60, 3) {
            0 => {
                txq.offload = Offload {
                    ip: bit(option, 0),
                    l4: bit(option, 1),
                    inner_ip: bit(option, 6),
                    inner_l4: bit(option, 7),
                };
                if bits(option, 2, 3) != 0 {
                    return bad("CRC offloads are not modelled");
                }
            }
            6 => {
                if !self.config.has(flags1::TX_VLAN_INSERTION) || bits(option, 32, 2) > 1 {
                    return bad("VLAN insertion is not there");
                }
                let tags = [low16(bits(option, 0, 16)), low16(bits(option, 16, 16))];
                txq.vlan = bit(option, 32).then_some(tags);
            }
            7 => {
                if !txq.tso {
                    return bad("the queue was made without segmentation");
                }
                match bits(option, 56, 4) {
                    2 => txq.segment[0] = Some(option),
                    3 if txq.segment[0].is_some() => txq.segment[1] = Some(option),
                    _ => return bad("an unknown segmentation option"),
                }
            }
            _ => return bad("an unknown option"),
        }
        Ok(())
    }

    fn fill(&self, frame: &mut [u8], offload: Offload) {
        let Some(parsed) = self.parse(frame) else { return };
        if let Some(inner) = &parsed.inner {
            if offload.inner_ip {
                checksum::fill_ip(frame, inner);
            }
            if offload.inner_l4 {
                checksum::fill_l4(frame, inner);
            }
        }
        if offload.ip {
            checksum::fill_ip(frame, &parsed.outer);
        }
        if offload.l4 {
            checksum::fill_l4(frame, &parsed.outer);
        }
    }

    /// Cuts a frame into segments (7.4). Where FIN and PSH go is unverified: to the last one.
    fn segment(
        &mut self,
        txq: &Txq,
        frame: &[u8],
        header: usize,
        first: u64,
        second: u64,
    ) -> Result<(), (Broken, String)> {
        let bad = |why: &str| Err((Broken::Segmentation, why.to_owned()));
        let Some(parsed) = parse_super(frame, header, &self.function.tunnel_ports) else {
            return bad("the headers are not understood");
        };
        let (mut outer, headers) = match parsed {
            (outer, Some(inner)) => (Some(outer), inner),
            (only, None) => (None, only),
        };
        if outer.is_some() && !self.config.has2(flags2::TX_TSO_V2_ENCAP) {
            return bad("the card does not segment tunnels");
        }
        let mss = size(bits(second, 32, 16));
        let payload = &frame[header..];
        let expected = headers.payload_at(frame);
        if headers.l4 != L4::Tcp || headers.l4_at > TSO_HEADER || expected != Some(header) {
            return bad("the first descriptor is not exactly the headers of TCP");
        }
        if mss < 4 || payload.is_empty() || payload.len().div_ceil(mss) > 32767 {
            return bad("the segment size or the payload is out of range");
        }
        let (id, sequence) = (low16(bits(first, 32, 16)), low32(bits(first, 0, 32)));
        let outer_id = low16(bits(second, 0, 16));
        let count = payload.len().div_ceil(mss);
        for (index, chunk) in payload.chunks(mss).enumerate() {
            let mut out = frame[..header].to_vec();
            out.extend_from_slice(chunk);
            let end = out.len();
            let step = low16(number(index));
            let mut inner = headers.clone();
            inner.end = end;
            patch_lengths(&mut out, &inner, id.wrapping_add(step));
            let sequence = sequence.wrapping_add(low32(number(index * mss)));
            out[inner.l4_at + 4..inner.l4_at + 8].copy_from_slice(&sequence.to_be_bytes());
            if index + 1 < count {
                out[inner.l4_at + 13] &= !0x09;
            }
            if index > 0 {
                out[inner.l4_at + 13] &= !0x80;
            }
            checksum::fill_ip(&mut out, &inner);
            checksum::fill_l4(&mut out, &inner);
            if let Some(outer) = &mut outer {
                outer.end = end;
                patch_lengths(&mut out, outer, outer_id.wrapping_add(step));
                if outer.l4 == L4::Udp {
                    let len = low16(number(end - outer.l4_at));
                    out[outer.l4_at + 4..outer.l4_at + 6].copy_from_slice(&len.to_be_bytes());
                }
                checksum::fill_ip(&mut out, outer);
                if txq.offload.l4 {
                    checksum::fill_l4(&mut out, outer);
                }
            }
            self.emit(txq, out);
        }
        Ok(())
    }

    fn emit(&mut self, txq: &Txq, mut frame: Vec<u8>) {
        if frame.len() < 14 {
            self.host.violation(Rule::PacketEnd, format_args!("a frame of {} bytes", frame.len()));
            return;
        }
        if let Some(tags) = txq.vlan {
            let tag = tags[0].to_be_bytes();
            frame.splice(12..12, [0x81, 0x00, tag[0], tag[1]]);
        }
        if frame.len() < SHORTEST {
            frame.resize(SHORTEST, 0);
        }
        if self.port.is_up() && !self.port.drain {
            self.counters.frame(&frame, true);
            self.outgoing.push(frame);
        }
    }
}

/// Parses headers whose length fields are larger than the packet is (7.4).
fn parse_super(
    frame: &[u8],
    header: usize,
    tunnel_ports: &[u16],
) -> Option<(Headers, Option<Headers>)> {
    // Room for any length that the headers may name.
    let mut long = frame.get(..header)?.to_vec();
    long.resize(header + 0x1_0000, 0);
    let parsed = parse(&long, tunnel_ports)?;
    (parsed.encap == Encap::None || parsed.inner.is_some()).then_some((parsed.outer, parsed.inner))
}

fn patch_lengths(frame: &mut [u8], headers: &Headers, id: u16) {
    let at = headers.l3_at;
    if headers.is_v4() {
        let total = low16(number(headers.end - at));
        frame[at + 2..at + 4].copy_from_slice(&total.to_be_bytes());
        frame[at + 4..at + 6].copy_from_slice(&id.to_be_bytes());
    } else {
        let len = low16(number(headers.end - at - 40));
        frame[at + 4..at + 6].copy_from_slice(&len.to_be_bytes());
    }
}
