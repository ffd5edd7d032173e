//! Pairs of queues: what they are made of, and how the device is told of them.

use std::sync::Arc;

use crate::call::{CallFd, event};
use crate::config::{Config, MessageOrder};
use crate::control::{NetConfig, Setup};
use crate::error::{Error, Result};
use crate::features::{self, MRG_RXBUF};
use crate::memory::{Memory, Plan};
use crate::ring::Ring;
use crate::rules::Rules;
use crate::rx::RxQueue;
use crate::tx::{self, TxQueue};

/// A receive and a transmit queue.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) rx: RxQueue,
    pub(crate) tx: TxQueue,
}

/// The used index of a ring: where a device that knows nothing of it begins.
pub(crate) fn base_of(pairs: &[Pair], ring: usize) -> u16 {
    let Pair { rx, tx } = &pairs[ring / 2];
    if ring.is_multiple_of(2) { rx.base() } else { tx.base() }
}

/// How a ring is set up: number 0 receives and 1 transmits for the first pair, and so on.
pub(crate) fn setup(pairs: &[Pair], ring: usize) -> Setup<'_> {
    let base = base_of(pairs, ring);
    let Pair { rx, tx } = &pairs[ring / 2];
    if ring.is_multiple_of(2) {
        Setup { ring: &rx.ring, kick: &rx.kick, call: &rx.call, base }
    } else {
        Setup { ring: &tx.ring, kick: &tx.kick, call: &tx.call, base }
    }
}

/// What the device is held to.
pub(crate) fn rules(config: &Config, acked: u64, net: Option<NetConfig>) -> Rules {
    let told = net.filter(|_| acked & features::MTU != 0).map(|net| net.mtu);
    Rules { features: acked, mtu: config.mtu.or(told) }
}

/// Makes memory, rings and buffers.
pub(crate) fn build(config: &Config, acked: u64) -> Result<(Arc<Memory>, Vec<Pair>)> {
    let size = config.queue_size;
    let buffer_size = config.rx_buffer_size.unwrap_or(if acked & MRG_RXBUF != 0 {
        MERGEABLE_BUFFER
    } else {
        LARGEST_PACKET
    });
    let rx_len = usize::try_from(buffer_size).expect("32 bits fit");
    let rx_count = usize::from(size / config.rx_chain);
    let (tx_count, table_count) = if config.tx_indirect {
        (usize::from(size), usize::from(size))
    } else {
        (usize::from(size / config.tx_chain), 0)
    };
    let (ring_len, table_len) = (Ring::len(size), 16 * usize::from(config.tx_chain));
    let count = usize::from(config.queue_pairs);
    let pieces = [
        (ring_len, 2 * count),
        (rx_len, rx_count * count),
        (tx::BUFFER, tx_count * count),
        (table_len, table_count * count),
    ];
    let mut plan = Plan::new(config.regions, config.memory, &pieces);
    let mut places = Vec::with_capacity(count);
    for _ in 0..count {
        let rings = [plan.place(ring_len), plan.place(ring_len)];
        let rx: Vec<_> = (0..rx_count).map(|_| plan.place(rx_len)).collect();
        let tx: Vec<_> = (0..tx_count).map(|_| plan.place(tx::BUFFER)).collect();
        let tables: Vec<_> = (0..table_count).map(|_| plan.place(table_len)).collect();
        places.push((rings, rx, tx, tables));
    }
    let user_is_guest = config.order == MessageOrder::Uml;
    let memory = Arc::new(plan.build(user_is_guest)?);
    let pairs = places.into_iter().map(|([rx_ring, tx_ring], rx, tx, tables)| {
        let ring = |place| Ring::new(Arc::clone(&memory), place, size);
        let fds = || -> std::io::Result<_> { Ok((event()?, CallFd::new(config.call)?)) };
        let fds = || fds().map_err(|error| Error::System("descriptors for a ring", error));
        let layout = (buffer_size, config.rx_chain);
        Ok(Pair {
            rx: RxQueue::new(Arc::clone(&memory), ring(rx_ring), fds()?, rx, layout),
            tx: TxQueue::new(
                Arc::clone(&memory),
                ring(tx_ring),
                fds()?,
                tx,
                tables,
                config.tx_chain,
            ),
        })
    });
    let pairs = pairs.collect::<Result<Vec<_>>>()?;
    Ok((memory, pairs))
}

/// A receive buffer where a packet may take several.
const MERGEABLE_BUFFER: u32 = 2048;
/// The largest IP packet with its Ethernet header, a VLAN tag and the longest header (virtio 1.3,
/// 5.1.6.3.1 asks for 65,562 bytes and the tag is ours).
const LARGEST_PACKET: u32 = 65_584;
