//! A transmit queue: a slot per packet, written, made available, reaped when the device has used it.
//!
//! Every slot has its buffer, its descriptors and, where wanted, its indirect table from the start.
//! Packets are pushed one by one and published together, with at most one kick.

use std::collections::VecDeque;
use std::sync::Arc;

use vm_memory::Bytes;
use vmm_sys_util::eventfd::EventFd;

use crate::call::CallFd;
use crate::features::{
    CSUM, EVENT_IDX, HOST_ECN, HOST_TSO4, HOST_TSO6, HOST_UFO, HOST_USO, INDIRECT_DESC,
};
use crate::header::{
    GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, NEEDS_CSUM, NetHeader,
};
use crate::memory::{INSIDE, Memory, Place};
use crate::ring::{Descriptor, INDIRECT, NEXT, Ring, write_descriptor};
use crate::rx::part;
use crate::stats::TxStats;
use crate::violation::{Violation, Violations};

/// The bytes of a transmit buffer: the largest IP packet, two VLAN tags and the longest header.
pub(crate) const BUFFER: usize = 65_664;

/// The driver's end of one transmit queue.
#[derive(Debug)]
pub(crate) struct TxQueue {
    memory: Arc<Memory>,
    pub(crate) ring: Ring,
    pub(crate) kick: EventFd,
    pub(crate) call: CallFd,
    buffers: Vec<Place>,
    /// A table for each slot, if packets are sent by indirect descriptors.
    tables: Vec<Place>,
    chain: u16,
    indirect: bool,
    free: VecDeque<u16>,
    /// By slot: whether the device has it.
    sent: Vec<bool>,
    /// How far we have read the used ring.
    seen: u16,
    /// How far the available ring is filled, and how far it is published.
    filled: u16,
    published: u16,
    broken: bool,
    features: u64,
    header_len: usize,
    event_idx: bool,
    pub(crate) stats: TxStats,
}

impl TxQueue {
    pub(crate) fn new(
        memory: Arc<Memory>,
        ring: Ring,
        (kick, call): (EventFd, CallFd),
        buffers: Vec<Place>,
        tables: Vec<Place>,
        chain: u16,
    ) -> Self {
        Self {
            memory,
            ring,
            kick,
            call,
            sent: vec![false; buffers.len()],
            free: VecDeque::with_capacity(buffers.len()),
            buffers,
            tables,
            chain,
            indirect: false,
            seen: 0,
            filled: 0,
            published: 0,
            broken: false,
            features: 0,
            header_len: 0,
            event_idx: false,
            stats: TxStats::default(),
        }
    }

    /// Starts over with an empty ring and these features.
    pub(crate) fn reset(&mut self, features: u64) {
        self.features = features;
        self.header_len = NetHeader::len(features);
        self.event_idx = features & EVENT_IDX != 0;
        self.indirect = features & INDIRECT_DESC != 0 && !self.tables.is_empty();
        self.ring.clear();
        (self.seen, self.filled, self.published, self.broken) = (0, 0, 0, false);
        self.sent.fill(false);
        // Without indirect tables a chain takes its descriptors from the ring.
        let slots = if self.indirect { self.ring.size() } else { self.ring.size() / self.chain };
        self.free.clear();
        self.free.extend(0..slots);
        self.ring.view().suppress(self.event_idx, self.seen);
    }

    /// The used index: where a device that lost its state goes on.
    pub(crate) fn base(&self) -> u16 {
        self.ring.view().used_index()
    }

    /// Makes the ring fit to go on after a device was started anew on it.
    pub(crate) fn resume(&mut self) {
        self.ring.view().suppress(self.event_idx, self.seen);
    }

    /// Whether the header keeps to the features acked.
    pub(crate) fn lawful(&self, header: &NetHeader) -> bool {
        let needed = match header.gso_type & !GSO_ECN {
            GSO_NONE => 0,
            GSO_TCPV4 => HOST_TSO4,
            GSO_TCPV6 => HOST_TSO6,
            GSO_UDP => HOST_UFO,
            GSO_UDP_L4 => HOST_USO,
            _ => return false,
        };
        let congestion = if header.gso_type & GSO_ECN != 0 { HOST_ECN } else { 0 };
        let checksum = if header.flags & NEEDS_CSUM != 0 { CSUM } else { 0 };
        let needed = needed | congestion | checksum;
        self.features & needed == needed && header.flags & !NEEDS_CSUM == 0
    }

    /// Writes a packet into a slot, to be seen by the device after [`Self::publish`]. False when all
    /// slots are with the device or the frame is longer than any.
    pub(crate) fn push(&mut self, header: &NetHeader, frame: &[u8]) -> bool {
        let len = self.header_len + frame.len();
        if len > BUFFER {
            return false;
        }
        let Some(slot) = self.free.pop_front() else {
            self.stats.full += 1;
            return false;
        };
        let place = self.buffers[usize::from(slot)];
        let buffer = self.memory.slice(place, len);
        buffer.write_slice(&header.encode()[..self.header_len], 0).expect(INSIDE);
        buffer.write_slice(frame, self.header_len).expect(INSIDE);
        let head = self.describe(slot, u32::try_from(len).expect("a buffer is short"));
        self.ring.view().set_avail(self.filled, head);
        self.filled = self.filled.wrapping_add(1);
        self.sent[usize::from(slot)] = true;
        self.stats.packets += 1;
        self.stats.segments += header.segments(frame.len());
        self.stats.bytes += frame.len() as u64;
        true
    }

    /// Shows the device what was pushed, and kicks it if it asked for that.
    pub(crate) fn publish(&mut self) {
        if self.filled == self.published {
            return;
        }
        let view = self.ring.view();
        view.publish(self.filled);
        let old = std::mem::replace(&mut self.published, self.filled);
        if view.wants_kick(self.event_idx, old, self.published) {
            self.kick_anyway();
        }
    }

    /// Takes back the slots that the device has used. Returns how many.
    pub(crate) fn reap(&mut self, violations: &mut Violations) -> usize {
        if self.broken {
            return 0;
        }
        let view = self.ring.view();
        let ready = view.used_index().wrapping_sub(self.seen);
        let outstanding = self.published.wrapping_sub(self.seen);
        if ready > outstanding {
            self.broken = true;
            self.stats.violations += 1;
            violations
                .add(Violation::UsedIndex, format_args!("{ready} used of {outstanding} sent"));
            return 0;
        }
        for number in 0..ready {
            let used = view.used(self.seen.wrapping_add(number));
            let slot = u16::try_from(used.id).ok().map(|head| self.slot(head));
            let sent = slot.and_then(|slot| self.sent.get_mut(usize::from(slot)));
            let (Some(slot), Some(sent)) = (slot, sent.filter(|sent| **sent)) else {
                self.stats.violations += 1;
                violations.add(Violation::UsedId, format_args!("{used:?} of a packet sent"));
                continue;
            };
            *sent = false;
            self.free.push_back(slot);
            if used.len != 0 {
                self.stats.violations += 1;
                violations.add(Violation::SentWritten, format_args!("{used:?}"));
            }
        }
        self.seen = self.seen.wrapping_add(ready);
        if ready > 0 {
            view.suppress(self.event_idx, self.seen);
        }
        usize::from(ready)
    }

    /// Packets that the device has and we have not seen used.
    pub(crate) fn pending(&self) -> u16 {
        self.filled.wrapping_sub(self.seen)
    }

    /// Kicks whatever the device asked for.
    pub(crate) fn kick_anyway(&mut self) {
        self.stats.kicks += 1;
        // A full counter means that kicks are pending, which is what was wanted.
        self.kick.write(1).ok();
    }

    fn slot(&self, head: u16) -> u16 {
        if self.indirect { head } else { head / self.chain }
    }

    /// Writes the descriptors of a slot with `len` bytes; returns the head.
    fn describe(&self, slot: u16, len: u32) -> u16 {
        let view = self.ring.view();
        let address = self.memory.guest_address(self.buffers[usize::from(slot)]);
        let header = u32::try_from(self.header_len).expect("a header is short");
        // A part without bytes would be an invalid descriptor.
        let room = u16::try_from(len - header).unwrap_or(u16::MAX).saturating_add(1).max(1);
        let chain = self.chain.min(room);
        let descriptor = |index: u16, next: u16| {
            let (offset, len) = part(len, header, chain, index);
            let more = index + 1 < chain;
            Descriptor {
                address: address + u64::from(offset),
                len,
                flags: if more { NEXT } else { 0 },
                next: if more { next } else { 0 },
            }
        };
        if !self.indirect {
            let head = slot * self.chain;
            for index in 0..chain {
                view.set_descriptor(head + index, descriptor(index, head + index + 1));
            }
            return head;
        }
        let bytes = 16 * usize::from(chain);
        let place = self.tables[usize::from(slot)];
        let table = self.memory.slice(place, bytes);
        for index in 0..chain {
            write_descriptor(&table, 16 * usize::from(index), descriptor(index, index + 1));
        }
        view.set_descriptor(
            slot,
            Descriptor {
                address: self.memory.guest_address(place),
                len: u32::from(chain) * 16,
                flags: INDIRECT,
                next: 0,
            },
        );
        slot
    }
}
