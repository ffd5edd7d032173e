//! The held flows: buckets to find them by hash, a list in the order in which they were held first.
//!
//! ```text
//!   tags                                  flows
//!   ┌──┬──┬──┬──┬──┬──┬──┬──┐   way 0…7   ┌────┬────┬─   ─┬────┐     oldest ─▶ … ─▶ newest
//!   │t0│  │t2│  │  │  │  │  │ ──────────▶ │ 8b │8b+1│  …  │8b+7│     a list through the flows
//!   └──┴──┴──┴──┴──┴──┴──┴──┘             └────┴────┴─   ─┴────┘
//!   bucket b: 16 bits of the hash, 0 is free
//! ```
//!
//! The hash chooses a bucket of eight places, and its upper bits are compared with eight tags at once; the
//! hash only filters, keys decide. A full bucket gives up its oldest flow, so that any flood of flows
//! costs the same per packet.
//!
//! Invariants: a place has a frame, a tag that is not 0 and a place in the list, or none of them; no two
//! held flows belong to one connection; `pairs` counts the held flows by the hash of their addresses.
//! Nothing allocates after construction.

use packet::Frame;
use packet::header::IPV6_LEN;

use crate::flow::Flow;
use crate::key::Key;
use crate::parse::{Packet, Scope};
use crate::time::Instant;

/// All held flows.
#[derive(Debug)]
pub(crate) struct Table {
    tags: Box<[[u16; WAYS]]>,
    flows: Box<[Flow]>,
    pairs: Box<[u16; PAIRS]>,
    held: usize,
    oldest: Slot,
    newest: Slot,
    turn: u32,
    seed: u64,
}

/// A flow's place.
pub(crate) type Slot = u16;

/// What is held for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nothing.
    Nothing,
    /// Its flow.
    Flow(Slot),
    /// A flow of its connection that the packet can never continue: MAC addresses, flow label or
    /// extension headers differ. It must leave first, or the packet would overtake it (2.3, [E]).
    Sibling(Slot),
}

impl Table {
    /// Room for at least `flows`, in buckets of eight.
    pub(crate) fn new(flows: usize, seed: u64) -> Self {
        let buckets = flows.clamp(WAYS, MOST).next_power_of_two() / WAYS;
        Self {
            tags: vec![[FREE; WAYS]; buckets].into(),
            flows: (0..buckets * WAYS).map(|_| Flow::default()).collect(),
            pairs: Box::new([0; PAIRS]),
            held: 0,
            oldest: NONE,
            newest: NONE,
            turn: 0,
            seed,
        }
    }

    /// How many flows are held.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.held
    }

    /// The hash of a key.
    #[inline]
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        key.hash(self.seed)
    }

    /// The oldest flow.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<Slot> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// A held flow.
    #[inline]
    pub(crate) fn flow(&self, slot: Slot) -> &Flow {
        &self.flows[usize::from(slot)]
    }

    /// A held flow, to append to it.
    #[inline]
    pub(crate) fn flow_mut(&mut self, slot: Slot) -> &mut Flow {
        &mut self.flows[usize::from(slot)]
    }

    /// What is held for a packet.
    #[inline]
    pub(crate) fn find(&self, hash: u64, packet: &Packet, head: &[u8]) -> Found {
        let bucket = self.bucket(hash);
        let tag = tag(hash);
        let mut ways = 0u32;
        for (way, other) in self.tags[bucket].iter().enumerate() {
            ways |= u32::from(*other == tag) << way;
        }
        while ways != 0 {
            let slot = slot(bucket, ways.trailing_zeros());
            let flow = self.flow(slot);
            if flow.key.same_flow(&packet.key) && same_extensions(flow, packet, head) {
                return Found::Flow(slot);
            }
            if flow.key.same_connection(&packet.key) {
                return Found::Sibling(slot);
            }
            ways &= ways - 1;
        }
        Found::Nothing
    }

    /// A flow that a packet may belong to of which no more than the scope is known. Walks all flows, but
    /// only when it has to.
    #[cold]
    pub(crate) fn find_in(&self, scope: Scope, packet: &Packet) -> Option<Slot> {
        let key = &packet.key;
        let wanted = |held: &Key| match scope {
            Scope::Nothing => false,
            Scope::Link => held.same_link(key),
            Scope::Addresses => held.same_addresses(key),
            Scope::Connection => held.same_connection(key),
        };
        let none = match scope {
            Scope::Nothing => true,
            Scope::Link => false,
            Scope::Addresses | Scope::Connection => self.pairs[self.pair(key)] == 0,
        };
        let mut slot = if none { NONE } else { self.oldest };
        while slot != NONE && !wanted(&self.flow(slot).key) {
            slot = self.flow(slot).newer;
        }
        (slot != NONE).then_some(slot)
    }

    /// The oldest flow of a full bucket, where a flow of this hash would have to go.
    #[inline]
    pub(crate) fn in_the_way(&self, hash: u64) -> Option<Slot> {
        let bucket = self.bucket(hash);
        if self.tags[bucket].contains(&FREE) {
            return None;
        }
        let age = |way: &u32| self.turn.wrapping_sub(self.flow(slot(bucket, *way)).turn);
        (0..8).max_by_key(age).map(|way| slot(bucket, way))
    }

    /// Holds a flow. Its bucket must have a place: see [`in_the_way`](Self::in_the_way).
    #[inline]
    pub(crate) fn hold(&mut self, hash: u64, frame: Frame, packet: &Packet, now: Instant) {
        let bucket = self.bucket(hash);
        let way = self.tags[bucket].iter().position(|tag| *tag == FREE).expect("a free place");
        self.tags[bucket][way] = tag(hash);
        #[expect(clippy::cast_possible_truncation, reason = "there are eight ways")]
        let slot = slot(bucket, way as u32);
        self.pairs[self.pair(&packet.key)] += 1;
        self.held += 1;
        self.turn = self.turn.wrapping_add(1);

        let (older, turn) = (self.newest, self.turn);
        match older {
            NONE => self.oldest = slot,
            older => self.flows[usize::from(older)].newer = slot,
        }
        self.newest = slot;
        let flow = &mut self.flows[usize::from(slot)];
        flow.hold(frame, packet, now);
        flow.turn = turn;
        flow.older = older;
        flow.newer = NONE;
    }

    /// Frees a flow's place. The flow can be read, and its frame is still there to be taken, until
    /// another is held.
    #[inline]
    pub(crate) fn release(&mut self, slot: Slot) -> &mut Flow {
        let (bucket, way) = (usize::from(slot) / WAYS, usize::from(slot) % WAYS);
        self.tags[bucket][way] = FREE;
        self.held -= 1;
        let pair = self.pair(&self.flow(slot).key);
        self.pairs[pair] -= 1;
        let Flow { older, newer, .. } = *self.flow(slot);
        match older {
            NONE => self.oldest = newer,
            older => self.flows[usize::from(older)].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.flows[usize::from(newer)].older = older,
        }
        &mut self.flows[usize::from(slot)]
    }

    #[inline]
    fn bucket(&self, hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "the lowest bits are wanted")]
        let hash = hash as usize;
        hash & (self.tags.len() - 1)
    }

    #[inline]
    fn pair(&self, key: &Key) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "the lowest bits are wanted")]
        let hash = key.address_hash(self.seed) as usize;
        hash % PAIRS
    }
}

/// M3: extension headers are equal byte by byte; their length is in the key.
#[inline]
fn same_extensions(flow: &Flow, packet: &Packet, head: &[u8]) -> bool {
    if !packet.key.has_extensions() {
        return true;
    }
    let layout = packet.layout;
    let range = usize::from(layout.network) + IPV6_LEN..usize::from(layout.transport);
    flow.frame().head()[range.clone()] == head[range]
}

#[inline]
fn tag(hash: u64) -> u16 {
    let tag = (hash >> 48) as u16;
    tag.max(1)
}

#[inline]
fn slot(bucket: usize, way: u32) -> Slot {
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 32768 places")]
    let slot = (bucket * WAYS) as Slot | way as Slot;
    slot
}

const WAYS: usize = 8;
const MOST: usize = 1 << 15;
const PAIRS: usize = 256;
const FREE: u16 = 0;
const NONE: Slot = Slot::MAX;
