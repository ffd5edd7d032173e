//! A receive queue: buffers posted, packets taken out of the used ring, buffers posted again.
//!
//! Every buffer has its descriptors from the start and keeps them, so that posting one again is one
//! entry of the available ring. The life of a burst: read the used index once, take whole packets up
//! to it, post what they took, publish, kick if the device asked for it.
//!
//! Two ways to take: [`RxQueue::poll`] gathers each packet, checks it and hands it out;
//! [`RxQueue::poll_fast`] only counts, for when the guest must cost next to nothing.

use std::sync::Arc;

use vm_memory::VolatileMemory;
use vmm_sys_util::eventfd::EventFd;

use crate::call::CallFd;
use crate::features::{EVENT_IDX, MRG_RXBUF};
use crate::header::{LONGEST, NetHeader};
use crate::memory::{INSIDE, Memory, Place};
use crate::ring::{Descriptor, NEXT, Ring, WRITE};
use crate::rules::Rules;
use crate::stats::RxStats;
use crate::violation::{Violation, Violations};

/// A packet received.
#[derive(Debug)]
pub struct Received<'a> {
    /// The pair of queues it came by.
    pub queue: usize,
    /// The header in front of it.
    pub header: NetHeader,
    /// The frame, from the first byte of its Ethernet header.
    pub bytes: &'a [u8],
    /// Buffers that it took.
    pub buffers: u16,
    /// The rule that it breaks, if it does.
    pub violation: Option<Violation>,
}

/// The driver's end of one receive queue.
#[derive(Debug)]
pub(crate) struct RxQueue {
    memory: Arc<Memory>,
    pub(crate) ring: Ring,
    pub(crate) kick: EventFd,
    pub(crate) call: CallFd,
    buffers: Vec<Place>,
    buffer_size: u32,
    chain: u16,
    /// By descriptor: whether the device has the chain that starts there.
    posted: Vec<bool>,
    /// Chains taken in this burst, to be posted again at its end.
    taken: Vec<u16>,
    outstanding: u16,
    /// How far we have read the used ring.
    seen: u16,
    /// The used index as it was last read.
    index: u16,
    /// How far we have published the available ring.
    avail: u16,
    /// The packet that was found incomplete, by its position, so that it is counted once.
    incomplete: Option<u16>,
    broken: bool,
    rules: Rules,
    header_len: usize,
    mergeable: bool,
    event_idx: bool,
    pub(crate) stats: RxStats,
}

impl RxQueue {
    pub(crate) fn new(
        memory: Arc<Memory>,
        ring: Ring,
        (kick, call): (EventFd, CallFd),
        buffers: Vec<Place>,
        (buffer_size, chain): (u32, u16),
    ) -> Self {
        let posted = vec![false; usize::from(ring.size())];
        let taken = Vec::with_capacity(posted.len());
        Self {
            memory,
            ring,
            kick,
            call,
            buffers,
            buffer_size,
            chain,
            posted,
            taken,
            outstanding: 0,
            seen: 0,
            index: 0,
            avail: 0,
            incomplete: None,
            broken: false,
            rules: Rules { features: 0, mtu: None },
            header_len: 0,
            mergeable: false,
            event_idx: false,
            stats: RxStats::default(),
        }
    }

    /// Starts over with an empty ring and these features, and posts every buffer.
    pub(crate) fn reset(&mut self, rules: Rules) {
        self.rules = rules;
        self.header_len = NetHeader::len(rules.features);
        self.mergeable = rules.features & MRG_RXBUF != 0;
        self.event_idx = rules.features & EVENT_IDX != 0;
        self.ring.clear();
        self.posted.fill(false);
        (self.outstanding, self.seen, self.index, self.avail) = (0, 0, 0, 0);
        (self.incomplete, self.broken) = (None, false);
        let view = self.ring.view();
        for (place, head) in self.buffers.iter().zip((0u16..).step_by(usize::from(self.chain))) {
            for descriptor in 0..self.chain {
                view.set_descriptor(head + descriptor, self.descriptor(*place, head, descriptor));
            }
            view.set_avail(self.avail, head);
            self.posted[usize::from(head)] = true;
            self.avail += 1;
        }
        self.outstanding = self.avail;
        view.suppress(self.event_idx, self.seen);
        view.publish(self.avail);
    }

    /// The used index up to which everything was taken: where a device that lost its state goes on.
    pub(crate) fn base(&self) -> u16 {
        self.ring.view().used_index()
    }

    /// Forgets a ring's fault, after a device was started anew on it.
    pub(crate) fn resume(&mut self) {
        self.incomplete = None;
        let view = self.ring.view();
        view.suppress(self.event_idx, self.seen);
    }

    /// Takes all packets there are, checks each and hands it out. Returns how many.
    pub(crate) fn poll(
        &mut self,
        queue: usize,
        scratch: &mut Vec<u8>,
        violations: &mut Violations,
        each: &mut impl FnMut(Received<'_>),
    ) -> usize {
        let (mut packets, start) = (0, self.seen);
        let ready = self.ring.view().used_index().wrapping_sub(start);
        loop {
            let before = self.seen;
            packets += self.poll_some(queue, scratch, violations, each);
            // What came in meanwhile waits for the next poll.
            if self.seen == before || self.seen.wrapping_sub(start) >= ready {
                return packets;
            }
        }
    }

    /// Takes packets until a good part of the ring is to be posted again: a guest that looks at every
    /// byte is slow, and the device would run out of buffers.
    fn poll_some(
        &mut self,
        queue: usize,
        scratch: &mut Vec<u8>,
        violations: &mut Violations,
        each: &mut impl FnMut(Received<'_>),
    ) -> usize {
        let Some(mut burst) = self.begin(violations) else { return 0 };
        let mut packets = 0;
        while burst.left() > 0 && self.taken.len() < REFILL {
            let Some(header) = self.header(&burst, violations) else {
                // Nothing can be said of an element that names no buffer.
                burst.position = burst.position.wrapping_add(1);
                continue;
            };
            let mut verdict = None;
            let count = self.buffers_of(&header, &mut verdict);
            if count > burst.left() {
                if self.incomplete != Some(burst.position) {
                    self.incomplete = Some(burst.position);
                    violations.add(Violation::Straddles, format_args!("{header:?}"));
                    self.stats.violations += 1;
                }
                break;
            }
            self.gather(&mut burst, count, scratch, &mut verdict);
            let bytes = scratch.get(self.header_len..).unwrap_or(&[]);
            let verdict = verdict.or_else(|| self.rules.check(&header, bytes).err());
            if let Some(violation) = verdict {
                violations.add(
                    violation,
                    format_args!("{header:?}, {} bytes in {count} buffers", bytes.len()),
                );
                self.stats.violations += 1;
            }
            self.stats.packets += 1;
            self.stats.segments += header.segments(bytes.len());
            self.stats.bytes += bytes.len() as u64;
            packets += 1;
            each(Received { queue, header, bytes, buffers: count, violation: verdict });
        }
        let view = self.ring.view();
        for head in self.taken.drain(..) {
            view.set_avail(burst.avail, head);
            burst.avail = burst.avail.wrapping_add(1);
            self.posted[usize::from(head)] = true;
        }
        self.finish(&burst);
        packets
    }

    /// Takes all packets there are and counts them. Returns how many.
    ///
    /// Per packet: one used element and the header read, one available entry written. Ids are held to
    /// the ring, nothing else is checked.
    pub(crate) fn poll_fast(&mut self, violations: &mut Violations) -> usize {
        let Some(mut burst) = self.begin(violations) else { return 0 };
        let (view, memory) = (self.ring.view(), &self.memory);
        let header_len = self.header_len as u64;
        let (mut packets, mut bytes, mut segments, mut more) = (0, 0, 0, 0u16);
        let mut merged: Option<(u64, u16, u16)> = None;
        while burst.left() > 0 {
            let used = view.used(burst.position);
            let head = u16::try_from(used.id).unwrap_or(u16::MAX);
            // The division would cost as much as all the rest.
            let number = if self.chain == 1 { head } else { head / self.chain };
            let Some(place) = self.buffers.get(usize::from(number)) else {
                violations.add(Violation::UsedId, used.id);
                self.stats.violations += 1;
                burst.position = burst.position.wrapping_add(1);
                continue;
            };
            let len = u64::from(used.len);
            if more == 0 {
                let start = memory.slice(*place, 16);
                let first = start.get_ref::<u64>(0).expect(INSIDE).load().to_le_bytes();
                let [_, _, h0, h1, g0, g1, ..] = first;
                let (hdr_len, gso_size) =
                    (u16::from_le_bytes([h0, h1]), u16::from_le_bytes([g0, g1]));
                if self.mergeable {
                    let count = u16::from_le(start.get_ref::<u16>(10).expect(INSIDE).load());
                    more = count.saturating_sub(1);
                }
                packets += 1;
                let len = len.saturating_sub(header_len);
                bytes += len;
                if gso_size == 0 {
                    segments += 1;
                } else if more == 0 {
                    segments += parts(len, hdr_len, gso_size);
                } else {
                    merged = Some((len, hdr_len, gso_size));
                }
            } else {
                more -= 1;
                bytes += len;
                if let Some((total, hdr_len, gso_size)) = &mut merged {
                    *total += len;
                    if more == 0 {
                        segments += parts(*total, *hdr_len, *gso_size);
                        merged = None;
                    }
                }
            }
            view.set_avail(burst.avail, head);
            burst.avail = burst.avail.wrapping_add(1);
            burst.position = burst.position.wrapping_add(1);
        }
        if more > 0 {
            violations.add(Violation::Straddles, format_args!("{more} buffers missing"));
            self.stats.violations += 1;
        }
        self.stats.packets += packets as u64;
        self.stats.bytes += bytes;
        self.stats.segments += segments;
        self.finish(&burst);
        packets
    }

    /// Arms notifications. True when nothing has come in meanwhile, so that the guest may sleep.
    pub(crate) fn arm(&self) -> bool {
        let view = self.ring.view();
        view.arm(self.event_idx, self.seen);
        view.used_index() == self.seen || self.broken
    }

    /// Ends what [`Self::arm`] began.
    pub(crate) fn disarm(&self) {
        self.ring.view().suppress(self.event_idx, self.seen);
    }

    /// Kicks whatever the device asked for: it may have been away when the buffers were posted.
    pub(crate) fn kick_anyway(&mut self) {
        self.stats.kicks += 1;
        // A full counter means that kicks are pending, which is what was wanted.
        self.kick.write(1).ok();
    }

    fn descriptor(&self, place: Place, head: u16, index: u16) -> Descriptor {
        let address = self.memory.guest_address(place);
        let header = u32::try_from(self.header_len).expect("a header is short");
        let (offset, len) = part(self.buffer_size, header, self.chain, index);
        let last = index + 1 == self.chain;
        Descriptor {
            address: address + u64::from(offset),
            len,
            flags: if last { WRITE } else { WRITE | NEXT },
            next: if last { 0 } else { head + index + 1 },
        }
    }

    /// The burst that the device has published, if there is one.
    fn begin(&mut self, violations: &mut Violations) -> Option<Burst> {
        if self.broken {
            return None;
        }
        let index = self.ring.view().used_index();
        let ready = index.wrapping_sub(self.seen);
        if ready == 0 {
            return None;
        }
        if ready > self.outstanding {
            self.broken = true;
            violations.add(
                Violation::UsedIndex,
                format_args!("{ready} used of {} posted", self.outstanding),
            );
            self.stats.violations += 1;
            return None;
        }
        if self.index != index {
            self.index = index;
            self.stats.publishes += 1;
        }
        Some(Burst { position: self.seen, end: index, avail: self.avail })
    }

    /// Publishes what was posted again.
    fn finish(&mut self, burst: &Burst) {
        let taken = burst.position.wrapping_sub(self.seen);
        let posted = burst.avail.wrapping_sub(self.avail);
        self.stats.buffers += u64::from(taken);
        self.outstanding = self.outstanding - taken + posted;
        self.seen = burst.position;
        let view = self.ring.view();
        view.suppress(self.event_idx, self.seen);
        if posted == 0 {
            return;
        }
        view.publish(burst.avail);
        let old = std::mem::replace(&mut self.avail, burst.avail);
        if view.wants_kick(self.event_idx, old, burst.avail) {
            self.kick_anyway();
        }
    }

    /// The header of the packet that the next element starts.
    fn header(&mut self, burst: &Burst, violations: &mut Violations) -> Option<NetHeader> {
        let used = self.ring.view().used(burst.position);
        let buffer = self.buffer(used.id);
        let Some(place) = buffer else {
            violations.add(Violation::UsedId, format_args!("{used:?}"));
            self.stats.violations += 1;
            return None;
        };
        let mut bytes = [0; LONGEST];
        let bytes = &mut bytes[..self.header_len];
        self.memory.slice(place, self.header_len).copy_to(bytes);
        Some(NetHeader::parse(bytes))
    }

    fn buffers_of(&self, header: &NetHeader, verdict: &mut Option<Violation>) -> u16 {
        let right = match (self.mergeable, self.header_len > 10) {
            (true, _) => header.num_buffers >= 1,
            (false, true) => header.num_buffers == 1,
            (false, false) => true,
        };
        if !right {
            *verdict = Some(Violation::NumBuffers);
        }
        if self.mergeable { header.num_buffers.max(1) } else { 1 }
    }

    /// Copies the packet's bytes, header included, into `scratch` and posts its buffers again.
    fn gather(
        &mut self,
        burst: &mut Burst,
        count: u16,
        scratch: &mut Vec<u8>,
        verdict: &mut Option<Violation>,
    ) {
        scratch.clear();
        let mut worse = |violation| *verdict = verdict.or(Some(violation));
        for number in 0..count {
            let used = self.ring.view().used(burst.position);
            burst.position = burst.position.wrapping_add(1);
            let Some(place) = self.buffer(used.id) else {
                worse(Violation::UsedId);
                continue;
            };
            if used.len > self.buffer_size {
                worse(Violation::UsedTooLong);
            }
            if number + 1 < count && used.len < self.buffer_size {
                worse(Violation::BufferNotFull);
            }
            let len = usize::try_from(used.len.min(self.buffer_size)).expect("32 bits fit");
            let least = if number == 0 { self.header_len + SHORTEST_FRAME } else { 1 };
            if len < least {
                worse(Violation::UsedTooShort);
            }
            let start = scratch.len();
            scratch.resize(start + len, 0);
            self.memory.slice(place, len).copy_to(&mut scratch[start..]);
            let head = u16::try_from(used.id).expect("the id was looked up");
            self.posted[usize::from(head)] = false;
            self.taken.push(head);
        }
    }

    /// Where the buffer of a used element lies, if the device has it.
    fn buffer(&self, id: u32) -> Option<Place> {
        let head = usize::try_from(id).ok()?;
        let posted = self.posted.get(head).copied().unwrap_or(false);
        posted.then(|| self.buffers[head / usize::from(self.chain)])
    }
}

/// Used elements from `position` to `end`, and how far the available ring was filled meanwhile.
#[derive(Debug)]
struct Burst {
    position: u16,
    end: u16,
    avail: u16,
}

impl Burst {
    #[inline]
    fn left(&self) -> u16 {
        self.end.wrapping_sub(self.position)
    }
}

/// Offset and length of one of `chain` parts of `size` bytes: the first of several is the header.
pub(crate) fn part(size: u32, header: u32, chain: u16, index: u16) -> (u32, u32) {
    if chain == 1 {
        return (0, size);
    }
    if index == 0 {
        return (0, header);
    }
    let (body, parts) = (size - header, u32::from(chain) - 1);
    let (each, number) = (body / parts, u32::from(index) - 1);
    let len = if number + 1 == parts { body - each * number } else { each };
    (header + each * number, len)
}

#[inline]
fn parts(len: u64, hdr_len: u16, gso_size: u16) -> u64 {
    len.saturating_sub(u64::from(hdr_len)).div_ceil(u64::from(gso_size)).max(1)
}

/// Buffers taken before they are posted again.
const REFILL: usize = 64;
/// An Ethernet header.
const SHORTEST_FRAME: usize = 14;

#[cfg(test)]
#[path = "rx_tests.rs"]
mod tests;
