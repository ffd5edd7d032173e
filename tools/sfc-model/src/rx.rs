//! Receive: from the wire into the buffers that the host posted (section 6).

use crate::bits::{bit, bits, low8, low16, low32, number, size};
use crate::card::Card;
use crate::config::flags1;
use crate::fault::take;
use crate::parse::{Encap, Headers, L3, L4, Parsed, parse};
use crate::queue::{Open, Rxq};
use crate::stats::index;
use crate::violation::Rule;
use crate::{checksum, filter, toeplitz};

/// Bytes before a frame (6.3).
const PREFIX: usize = 14;
/// Most completions in one event. The field would hold 15 (5.3).
const MERGE: u64 = 8;
/// What is written behind a frame up to the alignment, so that hosts which look there notice.
const PAD: u8 = 0xa5;

const CONT: u64 = 1 << 14;
const ECRC_ERR: u64 = 1 << 24;
const IP_ERR: u64 = 1 << 25;
const L4_ERR: u64 = 1 << 26;
const TRUNC_ERR: u64 = 1 << 29;
const INNER_IP_ERR: u64 = 1 << 56;
const INNER_L4_ERR: u64 = 1 << 57;

/// The fields of an event that describe a frame (5.3).
fn classes(frame: &[u8], parsed: &Parsed, outer_classes: bool, bad: bool) -> u64 {
    let described: &Headers = match &parsed.inner {
        Some(inner) if !outer_classes => inner,
        _ => &parsed.outer,
    };
    let mut flags = u64::from(frame[0] & 1) << 35;
    flags |= match parsed.encap {
        Encap::None => 0,
        Encap::Udp => 1 << 32,
        Encap::Gre => 2 << 32,
    };
    if described.ether_type < 0x600 {
        flags |= 1 << 36;
    }
    flags |= u64::from(described.tag_count) << 39;
    let l3 = match described.l3 {
        L3::Unknown => 0,
        L3::V4 => 1,
        L3::V6 => 2,
        L3::V4Fragment => 4,
        L3::Arp => 5,
        L3::V6Fragment => 6,
    };
    let l4 = match described.l4 {
        L4::Unknown => 0,
        L4::Tcp => 1,
        L4::Udp => 2,
    };
    flags |= l3 << 42 | l4 << 45;
    let outer = &parsed.outer;
    if !checksum::ip_is_good(frame, outer) {
        flags |= IP_ERR;
    }
    if outer.l4 != L4::Unknown && (bad || !checksum::l4_is_good(frame, outer)) {
        flags |= L4_ERR;
    }
    if let Some(inner) = &parsed.inner {
        if !checksum::ip_is_good(frame, inner) {
            flags |= INNER_IP_ERR;
        }
        if !checksum::l4_is_good(frame, inner) {
            flags |= INNER_L4_ERR;
        }
    }
    flags
}

impl Card {
    /// A receive doorbell (2.6).
    pub(crate) fn rx_doorbell(&mut self, instance: usize, value: u32) {
        let Self { host, function, .. } = self;
        let Some(rxq) = function.rxqs.get_mut(instance).and_then(Option::as_mut) else {
            if !self.mc.forgotten {
                host.violation(Rule::NoQueue, format_args!("receive doorbell of VI {instance}"));
            }
            return;
        };
        let entries = rxq.ring.entries();
        let pointer = u64::from(value);
        if pointer % 8 != 0 {
            host.violation(Rule::DoorbellMultiple, format_args!("{pointer} to RXQ {instance}"));
        }
        let added = pointer.wrapping_sub(rxq.posted) & (entries - 1);
        if pointer >= entries || rxq.posted + added - rxq.taken >= entries {
            host.violation(
                Rule::PastRing,
                format_args!("write pointer {pointer} of RXQ {instance}"),
            );
            return;
        }
        rxq.posted += added;
    }

    /// A frame came in on the wire, without its check sequence.
    pub(crate) fn receive(&mut self, frame: &[u8]) {
        let chaining = self.config.has(flags1::MCAST_FILTER_CHAINING) && self.mc.chaining;
        let Some(parsed) = self.parse(frame) else { return };
        if !self.port.is_up() || self.port.drain {
            return;
        }
        self.counters.frame(frame, false);
        if number(frame.len()) + 4 > u64::from(self.port.mtu) {
            self.counters.add(index::RX_JABBER, 1);
            return;
        }
        let bad_crc = take(&mut self.faults.crc_error);
        if bad_crc {
            self.counters.add(index::RX_BAD_FCS, 1);
            self.counters.add(index::RX_BAD_BYTES, number(frame.len()) + 4);
        } else {
            self.counters.add(index::RX_GOOD, 1);
        }
        let mut targets = Vec::new();
        for filter in filter::select(&self.function.filters, frame, &parsed, chaining) {
            let mut queue = filter.queue;
            let mut hash = 0;
            let context =
                filter.rss.and_then(|id| self.function.rss.iter().find(|context| context.id == id));
            if let Some(context) = context {
                let hashed = parsed.inner.as_ref().filter(|_| parsed.encap != Encap::None);
                let input = context.input(frame, hashed.unwrap_or(&parsed.outer));
                if !input.is_empty() {
                    hash = toeplitz::hash(&context.key, &input);
                    queue += usize::from(context.table[(hash & 127) as usize]);
                }
            }
            targets.push((queue, hash));
        }
        if targets.is_empty() {
            self.counters.add(index::RXDP_DISPATCHER_DROPPED, 1);
        }
        let bad_checksum = parsed.outer.l4 != L4::Unknown && take(&mut self.faults.bad_checksum);
        for (queue, hash) in targets {
            let Some(mut rxq) = self.function.rxqs.get_mut(queue).and_then(Option::take) else {
                self.counters.add(index::RXDP_QUEUE_DISABLED, 1);
                continue;
            };
            let mut flags = classes(frame, &parsed, rxq.outer_classes, bad_checksum);
            if bad_crc {
                flags |= ECRC_ERR;
            }
            self.deliver(&mut rxq, frame, &parsed, hash, flags);
            self.function.rxqs[queue] = Some(rxq);
        }
    }

    /// What this card understands of a frame: tunnels only from Medford on.
    pub(crate) fn parse(&self, frame: &[u8]) -> Option<Parsed> {
        let mut parsed = parse(frame, &self.function.tunnel_ports)?;
        if !self.config.has(flags1::VXLAN_NVGRE) {
            (parsed.encap, parsed.inner) = (Encap::None, None);
        }
        Some(parsed)
    }

    fn prefix(&mut self, frame: &[u8], parsed: &Parsed, hash: u32) -> [u8; PREFIX] {
        let mut prefix = [0; PREFIX];
        prefix[..4].copy_from_slice(&hash.to_le_bytes());
        prefix[4..6].copy_from_slice(&parsed.outer.tags[0].to_be_bytes());
        prefix[6..8].copy_from_slice(&parsed.outer.tags[1].to_be_bytes());
        let mut len = low16(number(frame.len()));
        if take(&mut self.faults.bad_prefix) {
            len |= 0x3f00;
        }
        prefix[8..10].copy_from_slice(&len.to_le_bytes());
        prefix[10..14].copy_from_slice(&(1u32 << 31).to_le_bytes());
        prefix
    }

    fn deliver(&mut self, rxq: &mut Rxq, frame: &[u8], parsed: &Parsed, hash: u32, flags: u64) {
        let mut bytes = Vec::with_capacity(PREFIX + frame.len());
        if rxq.prefix {
            bytes.extend(self.prefix(frame, parsed, hash));
        }
        bytes.extend(frame);
        if rxq.posted == rxq.taken {
            self.counters.add(index::RX_NODESC_DROPS, 1);
            self.counters.add(index::VADAPTOR_RX + 8, 1);
            return;
        }
        let mut rest = &bytes[..];
        let mut first = true;
        loop {
            if rxq.posted == rxq.taken {
                // The packet is given up: no descriptor more, no bytes (5.3).
                self.flush_rx(rxq);
                self.rx_event(rxq, flags, 0);
                self.counters.add(index::RX_OVERFLOW, 1);
                return;
            }
            let mut descriptor = [0];
            if rxq.ring.load(&mut self.host, rxq.taken, &mut descriptor, "a receive ring").is_none()
            {
                return;
            }
            let (address, room) = (bits(descriptor[0], 0, 48), bits(descriptor[0], 48, 14));
            if descriptor[0] >> 62 != 0 || room == 0 {
                self.host.violation(Rule::Descriptor, format_args!("receive {:#x}", descriptor[0]));
            }
            let len = rest.len().min(size(room));
            let (now, later) = rest.split_at(len);
            let end = address + number(len);
            let padding = self.config.padding;
            let mut padded = now.to_vec();
            padded.resize(len + size(end.next_multiple_of(padding) - end), PAD);
            self.host.write(address, &padded, "a receive buffer");
            rxq.taken += 1;
            let bytes = number(len);
            let truncated = !later.is_empty() && !rxq.scatter;
            if first && later.is_empty() {
                self.complete_rx(rxq, flags, bytes);
            } else {
                self.flush_rx(rxq);
                let more = if later.is_empty() { 0 } else { CONT };
                let error = if truncated { TRUNC_ERR } else { 0 };
                self.rx_event(rxq, flags | more | error, bytes);
            }
            if truncated {
                self.counters.add(index::RXDP_TRUNCATED, 1);
            }
            if later.is_empty() || truncated {
                return;
            }
            (first, rest) = (false, later);
        }
    }

    /// A frame in one descriptor: told together with others like it, where that is allowed.
    fn complete_rx(&mut self, rxq: &mut Rxq, flags: u64, bytes: u64) {
        let merge = self.config.has(flags1::RX_BATCHING)
            && rxq.prefix
            && self.function.evqs.get(rxq.evq).is_some_and(|evq| evq.rx_merge);
        if rxq.open.is_some_and(|open| open.flags != flags || open.packets == MERGE) {
            // The counter of descriptors already counts the new one.
            rxq.taken -= 1;
            self.flush_rx(rxq);
            rxq.taken += 1;
        }
        let packets = rxq.open.map_or(0, |open| open.packets) + 1;
        rxq.open = Some(Open { flags, bytes, packets });
        if !merge {
            self.flush_rx(rxq);
        }
    }

    fn flush_rx(&mut self, rxq: &mut Rxq) {
        if let Some(open) = rxq.open.take() {
            self.rx_event(rxq, open.flags, open.bytes);
        }
    }

    /// Tells what was not told yet, of all queues.
    pub(crate) fn flush_all_rx(&mut self) {
        for instance in 0..self.function.rxqs.len() {
            if let Some(mut rxq) = self.function.rxqs[instance].take() {
                self.flush_rx(&mut rxq);
                self.function.rxqs[instance] = Some(rxq);
            }
        }
    }

    fn rx_event(&mut self, rxq: &Rxq, flags: u64, bytes: u64) {
        let event = flags | bytes | rxq.label << 16 | (rxq.taken & 15) << 48;
        if take(&mut self.faults.lose_events) {
            return;
        }
        let Self { host, function, faults, .. } = self;
        if std::mem::take(&mut faults.overflow)
            && let Some(evq) = function.evqs.get(rxq.evq)
        {
            evq.flood(host, event);
            return;
        }
        function.evqs.post(host, rxq.evq, event);
    }
}

/// An RSS context (4.8).
#[derive(Clone, Debug)]
pub(crate) struct RssContext {
    pub(crate) id: u32,
    pub(crate) queues: u32,
    pub(crate) shared: bool,
    pub(crate) key: [u8; 40],
    pub(crate) table: [u8; 128],
    pub(crate) flags: u32,
}

impl RssContext {
    /// What is hashed of a frame: empty when nothing is.
    fn input(&self, frame: &[u8], headers: &Headers) -> Vec<u8> {
        if !headers.is_ip() {
            return Vec::new();
        }
        let flags = u64::from(self.flags);
        let v6 = !headers.is_v4();
        let kind = match headers.l4 {
            L4::Tcp => 0,
            L4::Udp => 1,
            L4::Unknown => 2,
        };
        let mode = if self.flags >> 8 == 0 {
            let enabled = if v6 { 2 } else { 0 };
            let tcp = kind == 0 && bit(flags, enabled + 1);
            if tcp {
                0xf
            } else if bit(flags, enabled) {
                3
            } else {
                0
            }
        } else {
            low8(bits(flags, 8 + 4 * kind + if v6 { 12 } else { 0 }, 4))
        };
        let mut input = Vec::new();
        let mut add = |bit: u8, range: std::ops::Range<usize>| {
            if mode >> bit & 1 == 1
                && let Some(bytes) = frame.get(range)
            {
                input.extend_from_slice(bytes);
            }
        };
        add(0, headers.source.clone());
        add(1, headers.destination.clone());
        if headers.l4 != L4::Unknown {
            add(2, headers.l4_at..headers.l4_at + 2);
            add(3, headers.l4_at + 2..headers.l4_at + 4);
        }
        input
    }
}

/// The default flags as drivers assume them (4.8).
pub(crate) fn default_rss_flags(additional_modes: bool) -> u32 {
    if additional_modes { low32(0x33f3_3f0f) } else { 0xf }
}
