//! The held flows: buckets to find them by hash, a list in the order in which they were held first.
//!
//! ```text
//!   tags                                  flows
//!   ┌──┬──┬──┬──┬──┬──┬──┬──┐   way 0…7   ┌────┬────┬─   ─┬────┐     oldest ─▶ … ─▶ newest
//!   │t0│  │t2│  │  │  │  │  │ ──────────▶ │ 8b │8b+1│  …  │8b+7│     a list through the flows
//!   └──┴──┴──┴──┴──┴──┴──┴──┘             └────┴────┴─   ─┴────┘
//!   bucket b: one word, 8 bits of the hash for each way, 0 is free
//! ```
//!
//! The hash chooses a bucket of eight places, and eight more of its bits are compared with all eight tags
//! at once, as bytes of one word; the hash only filters, keys decide. A full bucket gives up its oldest
//! flow, so that any flood of flows costs the same per packet.
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
    tags: Box<[u64]>,
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
            tags: vec![0; buckets].into(),
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
        let mut ways = zero_bytes(self.tags[bucket] ^ (tag(hash) * EACH_BYTE));
        while ways != 0 {
            let slot = slot(bucket, first_byte(ways));
            let flow = self.flow(slot);
            if flow.key.same_flow(&packet.key) {
                if !packet.key.has_extensions() || same_extensions(flow, packet, head) {
                    return Found::Flow(slot);
                }
                return Found::Sibling(slot);
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
            Scope::Addresses | Scope::Connection => self.pairs[usize::from(self.pair(key))] == 0,
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
        if zero_bytes(self.tags[bucket]) != 0 {
            return None;
        }
        let age = |way: &u32| self.turn.wrapping_sub(self.flow(slot(bucket, *way)).turn);
        (0..8).max_by_key(age).map(|way| slot(bucket, way))
    }

    /// Holds a flow. Its bucket must have a place: see [`in_the_way`](Self::in_the_way).
    #[inline]
    pub(crate) fn hold(&mut self, hash: u64, frame: Frame, packet: &Packet, now: Instant) {
        let bucket = self.bucket(hash);
        let free = zero_bytes(self.tags[bucket]);
        debug_assert!(free != 0, "a free place");
        let way = first_byte(free);
        self.tags[bucket] |= tag(hash) << (8 * way);
        let slot = slot(bucket, way);
        let pair = self.pair(&packet.key);
        self.pairs[usize::from(pair)] += 1;
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
        flow.pair = pair;
        flow.turn = turn;
        flow.older = older;
        flow.newer = NONE;
    }

    /// Frees a flow's place. The flow can be read, and its frame is still there to be taken, until
    /// another is held.
    #[inline]
    pub(crate) fn release(&mut self, slot: Slot) -> &mut Flow {
        let (bucket, way) = (usize::from(slot) / WAYS, usize::from(slot) % WAYS);
        self.tags[bucket] &= !(0xff << (8 * way));
        self.held -= 1;
        let Flow { older, newer, pair, .. } = *self.flow(slot);
        self.pairs[usize::from(pair)] -= 1;
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
    fn pair(&self, key: &Key) -> u8 {
        (key.address_hash(self.seed) >> 56) as u8
    }
}

/// M3: extension headers are equal byte by byte; their length is in the key.
#[cold]
fn same_extensions(flow: &Flow, packet: &Packet, head: &[u8]) -> bool {
    let layout = packet.layout;
    let range = usize::from(layout.network) + IPV6_LEN..usize::from(layout.transport);
    flow.head().get(range.clone()) == head.get(range)
}

/// Eight bits of the hash, not those that choose the bucket; 0 is left for places that are free.
#[inline]
fn tag(hash: u64) -> u64 {
    (hash >> 56).max(1)
}

/// The highest bit of each byte that is zero.
#[inline]
fn zero_bytes(word: u64) -> u64 {
    const LOW: u64 = EACH_BYTE * 0x7f;
    // Adding carries into the highest bit of a byte unless its lower bits are zero, and no further.
    !(((word & LOW) + LOW) | word | LOW)
}

/// Which byte the lowest of these bits is in.
#[inline]
fn first_byte(bits: u64) -> u32 {
    bits.trailing_zeros() / 8
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
const EACH_BYTE: u64 = 0x0101_0101_0101_0101;
const NONE: Slot = Slot::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Accept, Config, Rules};
    use crate::parse::parse;
    use packet::build::{Ip, TcpFrame};
    use packet::{Frame, Pool};
    use proptest::prelude::*;

    fn packet(frame: &Frame) -> Packet {
        let accept = Accept { tcp4: true, ..Accept::default() };
        let mut packet = Packet::default();
        parse(frame, &Rules::new(&Config::default(), &accept), &mut packet).unwrap();
        packet
    }

    fn frame(host: u8, port: u16, pool: &mut Pool) -> Frame {
        let mut frame = TcpFrame::v4();
        if let Ip::V4 { source, .. } = &mut frame.ip {
            source[3] = host;
        }
        frame.ports.0 = port;
        frame.payload = &[0; 10];
        Frame::copied_from(&frame.to_vec(), pool).unwrap()
    }

    proptest! {
        #[test]
        fn bytes_of_zero_are_found(bytes: [u8; 8], mask: u8) {
            let bytes: [u8; 8] =
                std::array::from_fn(|at| if mask >> at & 1 == 0 { bytes[at] } else { 0 });
            let found = zero_bytes(u64::from_le_bytes(bytes));
            for (at, byte) in bytes.iter().enumerate() {
                prop_assert_eq!(found >> (8 * at + 7) & 1 == 1, *byte == 0);
            }
            prop_assert_eq!(found & (EACH_BYTE * 0x7f), 0);
            if found != 0 {
                let first = bytes.iter().position(|byte| *byte == 0).unwrap();
                prop_assert_eq!(first_byte(found) as usize, first);
            }
        }

        /// Against a plain list: what is held is found, what was released is not, the oldest is the oldest,
        /// and strays find flows by their addresses.
        #[test]
        fn a_table_is_a_list(steps in prop::collection::vec((0..3_u8, 0..12_u16, any::<bool>()), 0..200)) {
            let mut pool = Pool::new(64, 128);
            let mut table = Table::new(8, 1);
            let mut list: Vec<(u8, u16)> = Vec::new();
            let places = |list: &[(u8, u16)], table: &Table, pool: &mut Pool| -> Vec<_> {
                list.iter()
                    .map(|(host, port)| {
                        let frame = frame(*host, *port, pool);
                        let packet = packet(&frame);
                        let found = table.find(table.hash(&packet.key), &packet, frame.head());
                        pool.recycle(frame);
                        match found {
                            Found::Flow(slot) => slot,
                            other => panic!("{other:?} instead of a flow"),
                        }
                    })
                    .collect()
            };
            for (host, port, hold) in steps {
                let new = frame(host, port, &mut pool);
                let packet = packet(&new);
                let hash = table.hash(&packet.key);
                let found = table.find(hash, &packet, new.head());
                let index = list.iter().position(|held| *held == (host, port));
                prop_assert_eq!(index.is_some(), matches!(found, Found::Flow(_)));
                let any = list.iter().any(|(other, _)| *other == host);
                prop_assert_eq!(table.find_in(Scope::Addresses, &packet).is_some(), any);
                if let Found::Flow(slot) = found {
                    pool.recycle(new);
                    if !hold {
                        list.remove(index.unwrap());
                        pool.recycle(table.release(slot).frame.take().unwrap());
                    }
                } else {
                    if let Some(slot) = table.in_the_way(hash) {
                        prop_assert_eq!(list.len(), 8);
                        prop_assert_eq!(Some(slot), table.oldest());
                        list.remove(0);
                        pool.recycle(table.release(slot).frame.take().unwrap());
                    }
                    list.push((host, port));
                    table.hold(hash, new, &packet, Instant::default());
                }
                prop_assert_eq!(table.len(), list.len());
                let places = places(&list, &table, &mut pool);
                prop_assert_eq!(table.oldest(), places.first().copied());
                let counted: u16 = table.pairs.iter().sum();
                prop_assert_eq!(usize::from(counted), list.len());
            }
        }
    }
}
