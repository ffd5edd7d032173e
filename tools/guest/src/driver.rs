//! The guest: one connection, one memory, pairs of queues.

use std::sync::Arc;
use std::time::Duration;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use crate::config::{Config, Connect, Poll};
use crate::connection::Door;
use crate::control::{Control, NetConfig, Setup};
use crate::error::{Error, Result};
use crate::features::protocol;
use crate::header::NetHeader;
use crate::memory::Memory;
use crate::pairs::{Pair, base_of, build, rules, setup};
use crate::raw::Raw;
use crate::rx::Received;
use crate::stats::{RxStats, Stats};
use crate::violation::Violations;

/// A guest that is connected to a back end, or was.
#[derive(Debug)]
pub struct Guest {
    config: Config,
    door: Door,
    control: Option<Control>,
    memory: Arc<Memory>,
    pairs: Vec<Pair>,
    /// On whose calls the guest sleeps: those of the receive queues.
    sleep: Epoll,
    offered: u64,
    acked: u64,
    net: Option<NetConfig>,
    violations: Violations,
    refused: u64,
    scratch: Vec<u8>,
}

/// Where a ring stood when the device gave it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Where the device would go on: its answer to GET_VRING_BASE.
    pub base: u32,
    /// The used index, which is the same for a device that holds no buffers.
    pub used: u16,
}

impl Stopped {
    /// Whether the device gave back all that it had taken.
    pub fn is_clean(&self) -> bool {
        self.base == u32::from(self.used)
    }
}

impl Guest {
    /// Connects, negotiates, makes memory and rings, and lets the device begin.
    ///
    /// # Errors
    ///
    /// Nobody at the socket, a message that failed or was refused, more queues than there are,
    /// settings that contradict each other.
    pub fn connect(mut config: Config) -> Result<Self> {
        if let Some(mistake) = config.mistake() {
            return Err(Error::Config(mistake));
        }
        let used_up = Connect::Path(std::path::PathBuf::new());
        let connect = std::mem::replace(&mut config.connect, used_up);
        let mut door = Door::new(connect, config.attempts)?;
        let mut control = Control::open(door.open()?, &config)?;
        let offered = control.offered;
        let acked = config.acked(offered);
        let net = net_config(&mut control)?;
        let (memory, mut pairs) = build(&config, acked)?;
        let rules = rules(&config, acked, net);
        for pair in &mut pairs {
            pair.rx.reset(rules);
            pair.tx.reset(acked);
        }
        let sleep = Epoll::new().map_err(|error| Error::System("a poll set", error))?;
        for (pair, data) in pairs.iter().zip(0..) {
            let interest = EpollEvent::new(EventSet::IN, data);
            sleep
                .ctl(ControlOperation::Add, pair.rx.call.ours(), interest)
                .map_err(|error| Error::System("a poll set", error))?;
        }
        let mut guest = Self {
            config,
            door,
            control: Some(control),
            memory,
            pairs,
            sleep,
            offered,
            acked,
            net,
            violations: Violations::new(),
            refused: 0,
            scratch: Vec::new(),
        };
        guest.start()?;
        Ok(guest)
    }

    /// The features on offer.
    pub fn offered(&self) -> u64 {
        self.offered
    }

    /// The features acked.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// The protocol features on offer and acked, while connected.
    pub fn protocol_features(&self) -> Option<(u64, u64)> {
        self.control.as_ref().map(|control| (control.protocol_offered, control.protocol))
    }

    /// The configuration space as it was when the guest connected, if CONFIG was negotiated.
    pub fn net_config(&self) -> Option<NetConfig> {
        self.net
    }

    /// Reads the configuration space again.
    ///
    /// # Errors
    ///
    /// Without a connection or CONFIG, and when the message fails.
    pub fn read_net_config(&mut self) -> Result<NetConfig> {
        self.control()?.net_config()
    }

    /// Pairs of queues.
    pub fn queue_pairs(&self) -> usize {
        self.pairs.len()
    }

    /// The connection, for messages written by hand.
    ///
    /// # Errors
    ///
    /// Without a connection.
    pub fn raw(&mut self) -> Result<&Raw> {
        Ok(self.control()?.raw())
    }

    /// Our end of the channel for requests of the back end, if BACKEND_REQ was negotiated.
    pub fn backend_channel(&self) -> Option<&std::os::unix::net::UnixStream> {
        self.control.as_ref()?.channel()
    }

    /// Takes all packets received so far, of all queues, and hands each out. Returns how many.
    ///
    /// The buffers are posted again after the last packet of a queue.
    pub fn poll_rx(&mut self, mut each: impl FnMut(Received<'_>)) -> usize {
        let (scratch, violations) = (&mut self.scratch, &mut self.violations);
        let mut packets = 0;
        for (index, pair) in self.pairs.iter_mut().enumerate() {
            packets += pair.rx.poll(index, scratch, violations, &mut each);
        }
        packets
    }

    /// Takes all packets received so far and only counts them: for benchmarks, where the guest is to
    /// cost little. Returns how many.
    #[inline]
    pub fn poll_rx_fast(&mut self) -> usize {
        let violations = &mut self.violations;
        self.pairs.iter_mut().map(|pair| pair.rx.poll_fast(violations)).sum()
    }

    /// Sleeps until the device notifies of received packets, or the time is over. True when there are
    /// packets to take.
    ///
    /// # Errors
    ///
    /// As of `epoll_wait`.
    pub fn wait(&mut self, limit: Duration) -> Result<bool> {
        let armed = self.pairs.iter().all(|pair| pair.rx.arm());
        if armed {
            let milliseconds = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
            let mut events = [EpollEvent::default(); 64];
            if let Err(error) = self.sleep.wait(milliseconds, &mut events)
                && error.kind() != std::io::ErrorKind::Interrupted
            {
                return Err(Error::System("a pause", error));
            }
        }
        let mut woken = !armed;
        for pair in &mut self.pairs {
            let calls = pair.rx.call.take();
            pair.rx.stats.interrupts += calls;
            woken |= calls > 0;
            pair.rx.disarm();
        }
        Ok(woken)
    }

    /// Sleeps as [`Self::wait`] does if the guest is one that sleeps; one that spins comes back at once.
    ///
    /// # Errors
    ///
    /// As [`Self::wait`].
    pub fn idle(&mut self, limit: Duration) -> Result<()> {
        match self.config.poll {
            Poll::Spin => std::hint::spin_loop(),
            Poll::Wait => {
                self.wait(limit)?;
            }
        }
        Ok(())
    }

    /// Sends a frame by the first queue. False when the device has all slots, or the header uses what
    /// was not acked.
    pub fn send(&mut self, header: NetHeader, frame: &[u8]) -> bool {
        self.send_all(0, [(header, frame)]) == 1
    }

    /// Sends frames by one queue, publishes them together and kicks at most once. Returns how many
    /// were taken; the first that is not ends it.
    ///
    /// # Panics
    ///
    /// When there is no such queue.
    pub fn send_all<'a>(
        &mut self,
        queue: usize,
        frames: impl IntoIterator<Item = (NetHeader, &'a [u8])>,
    ) -> usize {
        let tx = &mut self.pairs[queue].tx;
        tx.reap(&mut self.violations);
        let mut taken = 0;
        for (header, frame) in frames {
            if !tx.lawful(&header) {
                self.refused += 1;
                break;
            }
            if !tx.push(&header, frame) {
                break;
            }
            taken += 1;
        }
        tx.publish();
        taken
    }

    /// Sends whatever it is given, be it lawful or not: for hostile guests.
    ///
    /// # Panics
    ///
    /// When there is no such queue.
    pub fn send_unchecked(&mut self, queue: usize, header: NetHeader, frame: &[u8]) -> bool {
        let tx = &mut self.pairs[queue].tx;
        tx.reap(&mut self.violations);
        let taken = tx.push(&header, frame);
        tx.publish();
        taken
    }

    /// Takes back what the device has sent. Returns how many packets it still has.
    pub fn reap_tx(&mut self) -> usize {
        let mut pending = 0;
        for pair in &mut self.pairs {
            pair.tx.reap(&mut self.violations);
            pending += usize::from(pair.tx.pending());
        }
        pending
    }

    /// Everything counted. Reads the call descriptors, so not for every packet.
    pub fn stats(&mut self) -> Stats {
        let mut stats = Stats::default();
        for pair in &mut self.pairs {
            pair.rx.stats.interrupts += pair.rx.call.take();
            pair.tx.stats.interrupts += pair.tx.call.take();
            stats.rx += pair.rx.stats;
            stats.tx += pair.tx.stats;
        }
        stats.tx.refused = self.refused;
        stats
    }

    /// What the receive queues have counted, without looking at the call descriptors: no system call.
    #[inline]
    pub fn rx_stats(&self) -> RxStats {
        let mut stats = RxStats::default();
        self.pairs.iter().for_each(|pair| stats += pair.rx.stats);
        stats
    }

    /// The rules that the device broke.
    pub fn violations(&self) -> &Violations {
        &self.violations
    }

    /// Whether the back end is connected.
    pub fn is_connected(&self) -> bool {
        self.control.as_ref().is_some_and(Control::alive)
    }

    /// Closes the connection. Rings and memory stay as they are.
    pub fn disconnect(&mut self) {
        self.control = None;
    }

    /// Connects again, to a back end that knows nothing of before: rings go on where the used index
    /// stands, so that what it had taken and not used is its to take again.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`], and when the back end no longer offers what the driver has acked.
    pub fn reconnect(&mut self) -> Result<()> {
        self.control = None;
        let control = Control::open(self.door.open()?, &self.config)?;
        let lost = self.acked & !control.offered;
        if lost != 0 {
            return Err(Error::FeaturesLost(lost));
        }
        self.offered = control.offered;
        self.control = Some(control);
        for pair in &mut self.pairs {
            pair.rx.resume();
            pair.tx.resume();
        }
        self.start()?;
        for pair in &mut self.pairs {
            pair.rx.kick_anyway();
            pair.tx.kick_anyway();
        }
        Ok(())
    }

    /// The driver is loaded anew: rings are stopped, emptied and set up again, with other features if
    /// some are given. Returns where the rings stood, receive before transmit of each pair.
    ///
    /// # Errors
    ///
    /// Without a connection, and when a message fails.
    pub fn reload(&mut self, features: Option<u64>) -> Result<Vec<Stopped>> {
        let stopped = (0..self.pairs.len() * 2)
            .map(|ring| self.stop_queue(ring))
            .collect::<Result<Vec<_>>>()?;
        self.control()?.driver_gone()?;
        if let Some(features) = features {
            self.config.features = features;
        }
        self.acked = self.config.acked(self.offered);
        let rules = rules(&self.config, self.acked, self.net);
        for pair in &mut self.pairs {
            pair.rx.reset(rules);
            pair.tx.reset(self.acked);
        }
        self.start()?;
        Ok(stopped)
    }

    /// Stops a ring: number 0 receives and 1 transmits for the first pair, and so on.
    ///
    /// # Errors
    ///
    /// Without a connection, and when the message fails.
    ///
    /// # Panics
    ///
    /// When there is no such ring.
    pub fn stop_queue(&mut self, ring: usize) -> Result<Stopped> {
        let base = self.control()?.stop(ring)?;
        Ok(Stopped { base, used: base_of(&self.pairs, ring) })
    }

    /// Lets a ring go on that was stopped, where it stood.
    ///
    /// # Errors
    ///
    /// Without a connection, and when a message fails.
    ///
    /// # Panics
    ///
    /// When there is no such ring.
    pub fn start_queue(&mut self, ring: usize) -> Result<()> {
        let setup = setup(&self.pairs, ring);
        let control = self.control.as_mut().ok_or(Error::NotConnected)?;
        control.restart(ring, &setup)?;
        let pair = &mut self.pairs[ring / 2];
        if ring.is_multiple_of(2) {
            pair.rx.kick_anyway()
        } else {
            pair.tx.kick_anyway()
        }
        Ok(())
    }

    /// Enables or disables a ring.
    ///
    /// # Errors
    ///
    /// Without a connection, and when the message fails.
    pub fn enable_queue(&mut self, ring: usize, enable: bool) -> Result<()> {
        self.control()?.enable(ring, enable)
    }

    /// Sends RESET_DEVICE: the device forgets all rings.
    ///
    /// # Errors
    ///
    /// Without a connection or RESET_DEVICE, and when the message fails.
    pub fn reset_device(&mut self) -> Result<()> {
        self.control()?.reset_device()
    }

    /// Reads the device status.
    ///
    /// # Errors
    ///
    /// Without a connection or STATUS, and when the message fails.
    pub fn status(&mut self) -> Result<u8> {
        self.control()?.status()
    }

    /// Sets the device status.
    ///
    /// # Errors
    ///
    /// Without a connection or STATUS, and when the message fails.
    pub fn set_status(&mut self, status: u8) -> Result<()> {
        self.control()?.set_status(status)
    }

    /// Tells the device the MTU that the host has set.
    ///
    /// # Errors
    ///
    /// Without a connection or NET_MTU, and when the message fails or is refused.
    pub fn set_mtu(&mut self, mtu: u16) -> Result<()> {
        self.control()?.set_mtu(mtu)
    }

    /// Asks the device to announce the guest's address.
    ///
    /// # Errors
    ///
    /// Without a connection or RARP, and when the message fails.
    pub fn send_rarp(&mut self, mac: [u8; 6]) -> Result<()> {
        self.control()?.send_rarp(mac)
    }

    fn control(&mut self) -> Result<&mut Control> {
        self.control.as_mut().ok_or(Error::NotConnected)
    }

    /// Sets up all rings, each from its used index.
    fn start(&mut self) -> Result<()> {
        let setups: Vec<Setup<'_>> =
            (0..self.pairs.len() * 2).map(|ring| setup(&self.pairs, ring)).collect();
        let control = self.control.as_mut().ok_or(Error::NotConnected)?;
        let mtu = self.config.mtu;
        let memory = (&*self.memory, self.config.regions_reversed);
        control.start(self.acked, memory, &setups, mtu)?;
        for pair in &mut self.pairs {
            // The buffers were posted before the device could ask for a kick.
            pair.rx.kick_anyway();
        }
        Ok(())
    }
}

fn net_config(control: &mut Control) -> Result<Option<NetConfig>> {
    if control.protocol & protocol::CONFIG == 0 {
        return Ok(None);
    }
    control.net_config().map(Some)
}
