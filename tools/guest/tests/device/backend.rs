//! A network device made of the rust-vmm crates, as small as it can be: whatever is sent to it makes
//! it deliver packets, lawful ones or not, as the test says.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::cast_possible_truncation, reason = "frames are short")]

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::JoinHandle;

use vhost::vhost_user::{Listener, VhostUserProtocolFeatures};
use vhost_user_backend::{
    ShutdownHandle, VhostUserBackendMut, VhostUserDaemon, VringRwLock, VringT,
};
use virtio_queue::{QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{
    EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier,
};

/// What the device delivers.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    pub(crate) header: guest::NetHeader,
    pub(crate) frame: Vec<u8>,
    pub(crate) fault: Fault,
}

impl Delivery {
    pub(crate) fn lawful(header: guest::NetHeader, frame: &[u8]) -> Self {
        Self { header, frame: frame.to_vec(), fault: Fault::None }
    }
}

/// How the device misbehaves.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    None,
    /// Says that the packet takes this many buffers.
    NumBuffers(u16),
    /// Publishes the first buffer, and the others after the barrier was passed twice.
    Straddle(Arc<Barrier>),
    /// Names a buffer that is not outstanding.
    Id(u32),
    /// Names this length.
    Len(u32),
    /// Leaves this many bytes of each buffer but the last.
    Gap(u32),
    /// Moves the used index ahead by so many more.
    Ahead(u16),
}

type Memory = GuestMemoryAtomic<GuestMemoryMmap>;
type React = dyn FnMut(guest::NetHeader, Vec<u8>) -> Vec<Delivery> + Send;

/// What a test can see of the device.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) kicks: [AtomicU64; 2],
    pub(crate) calls: AtomicU64,
}

pub(crate) struct Net {
    features: u64,
    header_len: usize,
    mergeable: bool,
    mtu: u16,
    memory: Option<Memory>,
    react: Arc<Mutex<React>>,
    seen: Arc<Seen>,
    backlog: VecDeque<Delivery>,
}

impl Net {
    /// Takes what was sent; false when the ring is stopped, which it may be since the kick.
    fn transmit(&mut self, vring: &VringRwLock) -> io::Result<bool> {
        let memory = self.memory.as_ref().expect("memory comes before kicks").memory();
        let mut state = vring.get_mut();
        if !state.is_enabled() || !state.get_queue().ready() {
            return Ok(false);
        }
        let chains: Vec<_> =
            state.get_queue_mut().iter(memory.clone()).map_err(io::Error::other)?.collect();
        for chain in chains {
            let (head, mut bytes) = (chain.head_index(), Vec::new());
            for descriptor in chain {
                let start = bytes.len();
                bytes.resize(start + descriptor.len() as usize, 0);
                memory
                    .read_slice(&mut bytes[start..], descriptor.addr())
                    .map_err(io::Error::other)?;
            }
            let frame = bytes.split_off(self.header_len);
            let header = guest::NetHeader::parse(&bytes);
            self.backlog.extend((self.react.lock().unwrap())(header, frame));
            state.add_used(head, 0).map_err(io::Error::other)?;
        }
        Ok(true)
    }

    /// Delivers what it can, publishes it at once, and calls if the guest asked for that; false when
    /// the ring is stopped.
    fn receive(&mut self, vring: &VringRwLock) -> io::Result<bool> {
        let memory = self.memory.as_ref().expect("memory comes before kicks").memory();
        let mut state = vring.get_mut();
        if !state.is_enabled() || !state.get_queue().ready() {
            return Ok(false);
        }
        let queue = state.get_queue_mut();
        let (used_ring, size) = (queue.used_ring(), queue.size());
        let first_used = queue.next_used();
        let mut next = first_used;
        let publish = |next: u16| {
            memory.store(next, GuestAddress(used_ring + 2), Ordering::Release).unwrap();
        };
        let mut delivered = false;
        while let Some(delivery) = self.backlog.front() {
            let mut bytes = delivery.header.encode()[..self.header_len].to_vec();
            bytes.extend_from_slice(&delivery.frame);
            let mut parts = Vec::new();
            let mut rest = bytes.as_mut_slice();
            let mut taken = 0u16;
            while !rest.is_empty() && (parts.is_empty() || self.mergeable) {
                let Some(chain) = queue.pop_descriptor_chain(memory.clone()) else { break };
                taken += 1;
                let (head, mut len) = (chain.head_index(), 0);
                let descriptors: Vec<_> = chain.collect();
                let room: u32 = descriptors.iter().map(|d| d.len()).sum();
                let mut room = match delivery.fault {
                    Fault::Gap(gap) if (rest.len() as u32) > room => room - gap,
                    _ => room,
                };
                for descriptor in descriptors {
                    assert!(descriptor.is_write_only());
                    let count = rest.len().min(descriptor.len().min(room) as usize);
                    let (now, later) = rest.split_at_mut(count);
                    parts.push((descriptor.addr(), now.to_vec(), None));
                    (rest, len, room) = (later, len + count as u32, room - count as u32);
                }
                parts.last_mut().unwrap().2 = Some((u32::from(head), len));
            }
            if !rest.is_empty() {
                // Not enough buffers: they are taken again when there are more.
                queue.set_next_avail(queue.next_avail().wrapping_sub(taken));
                break;
            }
            let fault = delivery.fault.clone();
            self.backlog.pop_front();
            delivered = true;
            if self.header_len > 10 {
                let count = match fault {
                    Fault::NumBuffers(count) => count,
                    _ => taken,
                };
                parts[0].1[10..12.min(self.header_len)].copy_from_slice(&count.to_le_bytes());
            }
            let mut first = true;
            for (address, bytes, used) in parts {
                memory.write_slice(&bytes, address).unwrap();
                let Some((mut id, mut len)) = used else { continue };
                match fault {
                    Fault::Id(wrong) => id = wrong,
                    Fault::Len(wrong) => len = wrong,
                    _ => {}
                }
                let element = used_ring + 4 + 8 * u64::from(next % size);
                memory.write_obj([id, len], GuestAddress(element)).unwrap();
                next = next.wrapping_add(1);
                if let (Fault::Straddle(barrier), true) = (&fault, first) {
                    publish(next);
                    barrier.wait();
                    barrier.wait();
                }
                first = false;
            }
            if let Fault::Ahead(count) = fault {
                next = next.wrapping_add(count);
            }
        }
        publish(next);
        queue.set_next_used(next);
        fence(Ordering::SeqCst);
        let read = |address| memory.load::<u16>(GuestAddress(address), Ordering::Relaxed).unwrap();
        let asked = if queue.event_idx_enabled() {
            let event = read(queue.avail_ring() + 4 + 2 * u64::from(size));
            next.wrapping_sub(event).wrapping_sub(1) < next.wrapping_sub(first_used)
        } else {
            read(queue.avail_ring()) & 1 == 0
        };
        if delivered && asked {
            self.seen.calls.fetch_add(1, Ordering::Relaxed);
            state.signal_used_queue()?;
        }
        Ok(true)
    }

    /// Asks to be kicked when there are more buffers than now; true when there are already. What was
    /// left as too little for a packet counts as seen.
    fn ask_for_buffers(&self, vring: &VringRwLock) -> io::Result<bool> {
        let memory = self.memory.as_ref().expect("memory comes before kicks").memory();
        let mut state = vring.get_mut();
        let queue = state.get_queue_mut();
        let next = queue.next_avail();
        let seen = queue.avail_idx(&*memory, Ordering::Acquire).map_err(io::Error::other)?.0;
        queue.set_next_avail(seen);
        let more = queue.enable_notification(&*memory).map_err(io::Error::other);
        queue.set_next_avail(next);
        more
    }
}

impl VhostUserBackendMut for Net {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        2
    }

    fn max_queue_size(&self) -> usize {
        1024
    }

    fn features(&self) -> u64 {
        self.features
    }

    fn acked_features(&mut self, features: u64) {
        self.header_len = guest::NetHeader::len(features);
        self.mergeable = features & guest::features::MRG_RXBUF != 0;
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE
    }

    fn set_event_idx(&mut self, _enabled: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 7, 1, 0, 1, 0];
        bytes.extend(self.mtu.to_le_bytes());
        bytes[offset as usize..][..size as usize].to_vec()
    }

    fn update_memory(&mut self, memory: Memory) -> io::Result<()> {
        self.memory = Some(memory);
        Ok(())
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK).ok()
    }

    fn handle_event(
        &mut self,
        event: u16,
        _set: EventSet,
        vrings: &[VringRwLock],
        _thread: usize,
    ) -> io::Result<()> {
        self.seen.kicks[usize::from(event)].fetch_add(1, Ordering::Relaxed);
        if self.transmit(&vrings[1])? {
            while vrings[1].enable_notification().map_err(io::Error::other)? {
                if !self.transmit(&vrings[1])? {
                    break;
                }
            }
            if vrings[1].needs_notification().map_err(io::Error::other)? {
                vrings[1].signal_used_queue()?;
            }
        }
        if self.receive(&vrings[0])? {
            while self.ask_for_buffers(&vrings[0])? {
                if !self.receive(&vrings[0])? {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// A device that serves some connections, one after the other, in a thread of its own.
pub(crate) struct Device {
    pub(crate) path: PathBuf,
    pub(crate) seen: Arc<Seen>,
    current: Arc<Mutex<Option<ShutdownHandle>>>,
    thread: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Device {
    pub(crate) fn new(
        features: u64,
        connections: usize,
        react: impl FnMut(guest::NetHeader, Vec<u8>) -> Vec<Delivery> + Send + 'static,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("net.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let mut served = Self::parts(features, react);
        let (current, seen) = (Arc::clone(&served.current), Arc::clone(&served.seen));
        let thread = std::thread::spawn(move || {
            let mut listener = Listener::from(listener);
            for _ in 0..connections {
                served.run(|daemon| daemon.start(&mut listener).unwrap());
            }
        });
        Self { path, seen, current, thread: Some(thread), _directory: directory }
    }

    /// A device that goes to where a guest listens.
    pub(crate) fn client(
        features: u64,
        react: impl FnMut(guest::NetHeader, Vec<u8>) -> Vec<Delivery> + Send + 'static,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("guest.sock");
        let mut served = Self::parts(features, react);
        let (current, seen) = (Arc::clone(&served.current), Arc::clone(&served.seen));
        let there = path.clone();
        let thread = std::thread::spawn(move || {
            // The guest's socket may exist and not be listened on yet.
            served.run(|daemon| {
                while daemon.start_client(there.to_str().unwrap()).is_err() {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
        });
        Self { path, seen, current, thread: Some(thread), _directory: directory }
    }

    /// Breaks the connection as a crash would.
    pub(crate) fn crash(&self) {
        if let Some(handle) = self.current.lock().unwrap().take() {
            handle.shutdown();
        }
    }

    fn parts(
        features: u64,
        react: impl FnMut(guest::NetHeader, Vec<u8>) -> Vec<Delivery> + Send + 'static,
    ) -> Served {
        Served {
            features,
            react: Arc::new(Mutex::new(react)),
            seen: Arc::default(),
            current: Arc::default(),
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.crash();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the device failed");
        }
    }
}

struct Served {
    features: u64,
    react: Arc<Mutex<React>>,
    seen: Arc<Seen>,
    current: Arc<Mutex<Option<ShutdownHandle>>>,
}

impl Served {
    /// One connection, from its start to its end.
    fn run(&mut self, start: impl FnOnce(&mut VhostUserDaemon<Arc<Mutex<Net>>>)) {
        let net = Net {
            features: self.features,
            header_len: 12,
            mergeable: false,
            mtu: 1500,
            memory: None,
            react: Arc::clone(&self.react),
            seen: Arc::clone(&self.seen),
            backlog: VecDeque::new(),
        };
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let mut daemon =
            VhostUserDaemon::new("net".into(), Arc::new(Mutex::new(net)), memory).unwrap();
        start(&mut daemon);
        *self.current.lock().unwrap() = daemon.shutdown_handle();
        daemon.wait().ok();
    }
}
