//! The rings that a worker has in hand: picked up from the control side, and let go again.
//!
//! A worker lets go of all its rings and picks them up anew whenever the control side has changed
//! something. While it has a ring in hand its indexes are the worker's; when it lets go they are
//! stored where the protocol library looks for them (GET_VRING_BASE), so that picking up goes on where
//! letting go stopped, whatever happened in between.

use packet::Pool;
use vhost_user_backend::{VringRwLock, VringState, VringT};
use virtio_net::feature::Features;
use virtio_net::ring::{Memory as RingMemory, Notifier, RingError, RingSetup, SplitRing};
use virtio_net::{RxFill, RxFillCounters, TxDrain, TxDrainCounters};
use virtio_queue::QueueT;
use vm_memory::GuestAddressSpace;
use vmm_sys_util::event::EventConsumer;

use crate::shared::{Connection, Memory};

/// The rings of all pairs, as far as the guest has started them.
#[derive(Debug, Default)]
pub(super) struct Rings {
    receive: Option<Held<RxFill>>,
    transmit: Vec<Transmit>,
    rx_counters: RxFillCounters,
    tx_counters: TxDrainCounters,
}

/// A transmit ring in hand.
#[derive(Debug)]
pub(super) struct Transmit {
    held: Held<TxDrain>,
    /// A started ring that is disabled has its packets thrown away (vhost-user, "Ring states").
    pub(super) enabled: bool,
}

struct Held<T> {
    library: VringRwLock,
    index: usize,
    ring: T,
    /// Its end was told to the operator.
    broken_told: bool,
}

impl<T: std::fmt::Debug> std::fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("index", &self.index).field("ring", &self.ring).finish()
    }
}

impl Rings {
    /// Takes the rings of a connection in hand; the kicks to wait for.
    pub(super) fn pick_up(&mut self, connection: &Connection) -> Vec<EventConsumer> {
        let features = Features::new(connection.features);
        let mut kicks = Vec::new();
        for (index, library) in connection.vrings.iter().enumerate() {
            let state = library.get_ref();
            if !state.get_queue().ready() {
                continue;
            }
            let enabled = state.is_enabled();
            let receives = index % 2 == 0;
            // One receive ring is filled, the first: spreading flows over several is not done yet.
            if receives && (!enabled || self.receive.is_some()) {
                continue;
            }
            let ring = match ring(&connection.memory, &state, features) {
                Ok(ring) => ring,
                Err(error) => {
                    log::error!("ring {index} can't be used: {error}");
                    continue;
                }
            };
            if receives {
                let ring = RxFill::new(ring, features);
                self.receive = Some(Held::new(library, index, ring));
            } else {
                if let Some(Ok(kick)) = state.get_kick().as_ref().map(EventConsumer::try_clone) {
                    kicks.push(kick);
                }
                let ring = TxDrain::new(ring, features);
                self.transmit.push(Transmit { held: Held::new(library, index, ring), enabled });
            }
        }
        kicks
    }

    /// Lets go of everything: the indexes go to the library, buffers to the pool, counters stay.
    pub(super) fn let_go(&mut self, pool: &mut Pool) {
        if let Some(held) = self.receive.take() {
            self.rx_counters.add(held.ring.counters());
            held.store(held.ring.next_avail(), held.ring.next_used());
        }
        for Transmit { held, .. } in self.transmit.drain(..) {
            let Held { library, index, mut ring, broken_told } = held;
            ring.recycle_pending(pool);
            self.tx_counters.add(ring.counters());
            let (avail, used) = (ring.next_avail(), ring.next_used());
            Held { library, index, ring, broken_told }.store(avail, used);
        }
    }

    /// The receive ring, when the guest has started one and it works.
    #[inline]
    pub(super) fn receive(&mut self) -> Option<&mut RxFill> {
        self.receive.as_mut().map(|held| &mut held.ring)
    }

    /// The transmit rings.
    #[inline]
    pub(super) fn transmit(&mut self) -> impl Iterator<Item = (&mut TxDrain, bool)> {
        self.transmit.iter_mut().map(|transmit| (&mut transmit.held.ring, transmit.enabled))
    }

    /// Tells the operator, once each, about rings that the guest has broken.
    pub(super) fn tell_broken(&mut self) {
        if let Some(held) = &mut self.receive {
            let broken = held.ring.broken().map(ToString::to_string);
            held.tell_broken(broken);
        }
        for Transmit { held, .. } in &mut self.transmit {
            let broken = held.ring.broken().map(ToString::to_string);
            held.tell_broken(broken);
        }
    }

    /// Counters of all rings that were ever in hand.
    pub(super) fn counters(&self) -> (RxFillCounters, TxDrainCounters) {
        let (mut rx, mut tx) = (self.rx_counters.clone(), self.tx_counters.clone());
        if let Some(held) = &self.receive {
            rx.add(held.ring.counters());
        }
        for transmit in &self.transmit {
            tx.add(transmit.held.ring.counters());
        }
        (rx, tx)
    }
}

impl<T> Held<T> {
    fn new(library: &VringRwLock, index: usize, ring: T) -> Self {
        Self { library: library.clone(), index, ring, broken_told: false }
    }

    fn store(&self, next_avail: u16, next_used: u16) {
        self.library.set_queue_next_avail(next_avail);
        self.library.set_queue_next_used(next_used);
    }

    fn tell_broken(&mut self, broken: Option<String>) {
        if let (Some(reason), false) = (broken, self.broken_told) {
            self.broken_told = true;
            log::error!("ring {} stops: the guest broke it: {reason}", self.index);
        }
    }
}

fn ring(
    memory: &Memory,
    state: &VringState<Memory>,
    features: Features,
) -> Result<SplitRing, RingError> {
    let queue = state.get_queue();
    let call = state.get_call().as_ref().and_then(|call| call.try_clone().ok());
    let setup = RingSetup::from_queue(queue, features, call.map(Notifier::from));
    SplitRing::new(RingMemory::new(memory.memory().into_inner()), setup)
}
