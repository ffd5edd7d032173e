//! The held flows: buckets to find them by hash, a list in the order in which they were held first.
//!
//! ```text
//!  buckets (8 places each, oldest first)        flows (fixed, used again)        order of arrival
//!  ┌──────────────────────────┐                 ┌──────────────────┐
//!  │ hash,slot │ hash,slot │ ⋯│────slot────────▶│ frame, key, …    │◀── oldest ─▶ … ─▶ newest
//!  └──────────────────────────┘                 └──────────────────┘
//! ```
//!
//! Invariants: a flow is in exactly one bucket and in the list, or in neither and on the free stack; a
//! bucket's places are in the order of the list. Nothing allocates after construction.

use packet::Frame;

use crate::parse::{Key, NetworkFields};
use crate::time::Instant;

/// A held flow: its frame so far, and the fields that the next packet is compared with.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) key: Key,
    pub(crate) hash: u32,
    pub(crate) v6: bool,
    pub(crate) frame: Frame,
    /// When the first packet was held.
    pub(crate) since: Instant,
    pub(crate) network: u16,
    pub(crate) transport: u16,
    pub(crate) payload: u16,
    /// Ethernet padding behind the first packet.
    pub(crate) padding: u16,
    /// Payload of the first packet: the segment size.
    pub(crate) mss: u16,
    /// Packets in it.
    pub(crate) count: u16,
    /// Something was appended to the first frame.
    pub(crate) merged: bool,
    /// The sequence number that continues it.
    pub(crate) next_seq: u32,
    pub(crate) ack: u32,
    pub(crate) word: u32,
    /// FIN and PSH of the packets behind the first.
    pub(crate) late_flags: u8,
    pub(crate) network_fields: NetworkFields,
    /// IPv4 identification of the first packet.
    pub(crate) id: u16,
    /// The id stands still.
    pub(crate) fixed_id: bool,
}

/// Which flow: stays the same for as long as the flow is held.
pub(crate) type Slot = u16;

#[derive(Debug)]
struct Place {
    flow: Option<Flow>,
    /// Neighbours in the order of arrival.
    older: Slot,
    newer: Slot,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    hashes: [u32; WAYS],
    slots: [Slot; WAYS],
    used: u8,
}

/// All held flows.
#[derive(Debug)]
pub(crate) struct Table {
    buckets: Box<[Bucket]>,
    places: Box<[Place]>,
    free: Vec<Slot>,
    oldest: Slot,
    newest: Slot,
}

impl Table {
    /// Room for at least `flows`, in buckets of eight.
    pub(crate) fn new(flows: usize) -> Self {
        let buckets = flows.clamp(WAYS, MOST).next_power_of_two() / WAYS;
        let empty = Bucket { hashes: [0; WAYS], slots: [NONE; WAYS], used: 0 };
        let slots = u16::try_from(buckets * WAYS).expect("at most 32768 flows");
        let place = || Place { flow: None, older: NONE, newer: NONE };
        Self {
            buckets: vec![empty; buckets].into(),
            places: (0..slots).map(|_| place()).collect(),
            free: (0..slots).rev().collect(),
            oldest: NONE,
            newest: NONE,
        }
    }

    /// How many flows are held.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// The oldest flow.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<Slot> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// A held flow.
    #[inline]
    pub(crate) fn flow(&self, slot: Slot) -> &Flow {
        self.places[usize::from(slot)].flow.as_ref().expect("a slot in use has a flow")
    }

    /// A held flow, to change.
    #[inline]
    pub(crate) fn flow_mut(&mut self, slot: Slot) -> &mut Flow {
        self.places[usize::from(slot)].flow.as_mut().expect("a slot in use has a flow")
    }

    /// The flow with this key, and another flow of the same connection, if there is one.
    #[inline]
    pub(crate) fn find(&self, hash: u32, key: &Key) -> (Option<Slot>, Option<Slot>) {
        let bucket = &self.buckets[self.bucket(hash)];
        let mut sibling = None;
        for at in 0..usize::from(bucket.used) {
            if bucket.hashes[at] != hash {
                continue;
            }
            let slot = bucket.slots[at];
            let held = &self.flow(slot).key;
            if held == key {
                return (Some(slot), sibling);
            }
            if held.same_connection(key) {
                sibling = Some(slot);
            }
        }
        (None, sibling)
    }

    /// The oldest flow of a full bucket, where a flow of this hash would have to go.
    #[inline]
    pub(crate) fn in_the_way(&self, hash: u32) -> Option<Slot> {
        let bucket = &self.buckets[self.bucket(hash)];
        (usize::from(bucket.used) == WAYS).then_some(bucket.slots[0])
    }

    /// Holds a flow. Its bucket must have a place: see [`in_the_way`](Self::in_the_way).
    #[inline]
    pub(crate) fn insert(&mut self, flow: Flow) {
        let index = self.bucket(flow.hash);
        let bucket = &mut self.buckets[index];
        let slot = self.free.pop().expect("there is a slot for each place of each bucket");
        let at = usize::from(bucket.used);
        bucket.hashes[at] = flow.hash;
        bucket.slots[at] = slot;
        bucket.used += 1;
        let newest = self.newest;
        if newest == NONE {
            self.oldest = slot;
        } else {
            self.places[usize::from(newest)].newer = slot;
        }
        self.newest = slot;
        let place = &mut self.places[usize::from(slot)];
        place.flow = Some(flow);
        place.older = newest;
        place.newer = NONE;
    }

    /// Takes a flow out.
    #[inline]
    pub(crate) fn remove(&mut self, slot: Slot) -> Flow {
        let place = &mut self.places[usize::from(slot)];
        let flow = place.flow.take().expect("a slot in use has a flow");
        let (older, newer) = (place.older, place.newer);
        match older {
            NONE => self.oldest = newer,
            older => self.places[usize::from(older)].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.places[usize::from(newer)].older = older,
        }
        let index = self.bucket(flow.hash);
        let bucket = &mut self.buckets[index];
        let used = usize::from(bucket.used);
        let at = bucket.slots[..used]
            .iter()
            .position(|other| *other == slot)
            .expect("a flow is in its bucket");
        bucket.hashes.copy_within(at + 1..used, at);
        bucket.slots.copy_within(at + 1..used, at);
        bucket.used -= 1;
        self.free.push(slot);
        flow
    }

    /// The oldest flow for which this holds. Walks all flows: not for every packet.
    #[cold]
    pub(crate) fn search(&self, wanted: impl Fn(&Flow) -> bool) -> Option<Slot> {
        let mut slot = self.oldest;
        while slot != NONE {
            if wanted(self.flow(slot)) {
                return Some(slot);
            }
            slot = self.places[usize::from(slot)].newer;
        }
        None
    }

    #[inline]
    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }
}

const WAYS: usize = 8;
const MOST: usize = 1 << 15;
const NONE: Slot = Slot::MAX;
