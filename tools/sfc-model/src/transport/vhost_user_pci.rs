//! The card as a PCI function of a User Mode Linux machine: PCI over virtio, over vhost-user.
//!
//! The machine's `virtio_uml` driver is the front end (one connection, at most two regions of memory,
//! split rings), `virt-pci` the driver behind it. Ring 0 carries accesses of the machine to the function's
//! configuration space and BARs, ring 1 interrupts to the machine. The front end sends its memory table
//! with room for two regions even when there is one, which the usual protocol library refuses: the few
//! messages it sends are read here.

mod message;
mod msix;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use virtio_queue::{DescriptorChain, Queue, QueueT};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

use crate::bits::{le32, le64, size};
use crate::config::Config;
use crate::device::Shared;
use crate::host::Interrupts;
use crate::pci_config::MSIX_BAR;
use message::{Message, request};
use msix::Table;

/// Features: a modern device with protocol features.
const VERSION_1: u64 = 1 << 32;
const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Protocol features: requests of the back end, without which the front end gives no interrupt line.
const BACKEND_REQ: u64 = 1 << 5;
/// Entries that rings may have.
const RING: u16 = 256;

/// Operations (`linux/virtio_pcidev.h`).
mod op {
    pub(super) const CONFIG_READ: u8 = 1;
    pub(super) const CONFIG_WRITE: u8 = 2;
    pub(super) const READ: u8 = 3;
    pub(super) const WRITE: u8 = 4;
    pub(super) const FILL: u8 = 5;
    pub(super) const MSI: u8 = 7;
}
/// Bytes before the data of an operation.
const HEADER: usize = 16;

/// A socket where a machine can come.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: UnixListener,
    path: PathBuf,
    config: Config,
}

impl Listener {
    /// Makes the socket; what is there already is left alone.
    pub(crate) fn bind(path: &Path, config: &Config) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        Ok(Self { listener, path: path.to_owned(), config: config.clone() })
    }

    /// Serves machines, one after the other, until the process ends.
    pub(crate) fn serve(self, shared: &Shared) {
        for stream in self.listener.incoming() {
            let served =
                stream.and_then(|stream| Machine::new(shared, &self.config).serve(&stream));
            shared.card().disconnect();
            match served {
                Ok(()) => log::info!("the machine at {} is gone", self.path.display()),
                Err(error) => log::warn!("the machine at {}: {error}", self.path.display()),
            }
        }
    }
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// A ring and its descriptors.
#[derive(Debug)]
struct Ring {
    queue: Queue,
    kick: Option<File>,
    call: Option<File>,
}

impl Ring {
    fn new() -> Self {
        Self { queue: Queue::new(RING).expect("a power of two"), kick: None, call: None }
    }

    /// Gives a chain back.
    fn give_back(&mut self, memory: &GuestMemoryMmap, head: u16, len: usize) -> io::Result<()> {
        let len = u32::try_from(len).map_err(io::Error::other)?;
        self.queue.add_used(memory, head, len).map_err(io::Error::other)
    }

    /// Tells the machine, if it wants to know.
    fn notify(&mut self, memory: &GuestMemoryMmap) -> io::Result<()> {
        let wanted = self.queue.needs_notification(memory).map_err(io::Error::other)?;
        match &mut self.call {
            Some(call) if wanted => call.write_all(&1u64.to_ne_bytes()),
            _ => Ok(()),
        }
    }
}

/// What interrupts need: the second ring, the table, and where both are.
#[derive(Debug)]
struct Delivery {
    memory: Option<GuestMemoryMmap>,
    ring: Ring,
    table: Table,
}

impl Delivery {
    /// Sends what is raised and not masked, as far as the machine has buffers for it.
    fn deliver(&mut self) -> io::Result<()> {
        let Some(memory) = &self.memory else { return Ok(()) };
        if !self.ring.queue.ready() {
            return Ok(());
        }
        let mut sent = false;
        while let Some((address, data)) = self.table.next() {
            let Some(chain) = self.ring.queue.pop_descriptor_chain(memory) else { break };
            let head = chain.head_index();
            let mut message = [0; HEADER + 4];
            message[0] = op::MSI;
            message[4..8].copy_from_slice(&4u32.to_ne_bytes());
            message[8..16].copy_from_slice(&address.to_ne_bytes());
            message[16..].copy_from_slice(&data.to_le_bytes());
            chain.writer(memory).map_err(io::Error::other)?.write_all(&message)?;
            self.ring.give_back(memory, head, message.len())?;
            self.table.sent();
            sent = true;
        }
        if sent { self.ring.notify(memory) } else { Ok(()) }
    }
}

/// Interrupts of the card on their way to the machine.
#[derive(Clone, Debug)]
struct Line(Arc<Mutex<Delivery>>);

impl Line {
    fn lock(&self) -> MutexGuard<'_, Delivery> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Interrupts for Line {
    fn raise(&mut self, vector: u32) {
        let mut delivery = self.lock();
        delivery.table.raise(size(vector));
        if let Err(error) = delivery.deliver() {
            log::warn!("interrupt {vector}: {error}");
        }
    }
}

/// A machine that is connected.
struct Machine<'a> {
    shared: &'a Shared,
    bar: u32,
    memory: Option<GuestMemoryMmap>,
    commands: Ring,
    line: Line,
    /// Held open: the front end wants somebody at the other end.
    _requests: Option<OwnedFd>,
}

impl<'a> Machine<'a> {
    fn new(shared: &'a Shared, config: &Config) -> Self {
        let table = Table::new(size(config.vectors()));
        let delivery = Delivery { memory: None, ring: Ring::new(), table };
        let line = Line(Arc::new(Mutex::new(delivery)));
        let bar = config.bar();
        Self { shared, bar, memory: None, commands: Ring::new(), line, _requests: None }
    }

    /// Messages and kicks until the machine is gone.
    fn serve(&mut self, stream: &UnixStream) -> io::Result<()> {
        self.shared.card().set_interrupts(Box::new(self.line.clone()));
        loop {
            let interrupts =
                self.line.lock().ring.kick.as_ref().map(File::try_clone).transpose()?;
            let commands = self.commands.kick.as_ref().map(File::try_clone).transpose()?;
            let mut kicks: Vec<File> = [commands, interrupts].into_iter().flatten().collect();
            let mut fds = vec![PollFd::new(stream, PollFlags::IN)];
            fds.extend(kicks.iter().map(|kick| PollFd::new(kick, PollFlags::IN)));
            poll(&mut fds, None)?;
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            for (kick, _) in kicks.iter_mut().zip(&ready[1..]).filter(|(_, kicked)| **kicked) {
                kick.read_exact(&mut [0; 8])?;
            }
            self.run_commands()?;
            self.line.lock().deliver()?;
            if ready[0] {
                let Some(message) = Message::receive(stream)? else { return Ok(()) };
                self.message(stream, message)?;
            }
        }
    }

    fn message(&mut self, stream: &UnixStream, message: Message) -> io::Result<()> {
        let value = || le64(&message.payload, 0);
        match message.request {
            request::GET_FEATURES => message.reply(stream, VERSION_1 | PROTOCOL_FEATURES)?,
            request::GET_PROTOCOL_FEATURES => message.reply(stream, BACKEND_REQ)?,
            request::SET_FEATURES | request::SET_PROTOCOL_FEATURES | request::SET_OWNER => {}
            request::SET_BACKEND_REQ_FD => self._requests = message.fd(),
            request::SET_MEM_TABLE => self.set_memory(message)?,
            request::SET_VRING_NUM
            | request::SET_VRING_ADDR
            | request::SET_VRING_BASE
            | request::SET_VRING_KICK
            | request::SET_VRING_CALL
            | request::SET_VRING_ENABLE => match value() & 0xff {
                0 => configure(&mut self.commands, message)?,
                1 => configure(&mut self.line.lock().ring, message)?,
                ring => return Err(invalid(format!("ring {ring}"))),
            },
            unknown => return Err(invalid(format!("message {unknown}"))),
        }
        Ok(())
    }

    /// The machine's memory, for the rings and for the card: device addresses are the machine's own.
    fn set_memory(&mut self, message: Message) -> io::Result<()> {
        let count = le32(&message.payload, 0) as usize;
        if count != message.fds.len() {
            return Err(invalid(format!("{} descriptors for {count} regions", message.fds.len())));
        }
        let mut card = self.shared.card();
        card.forget_memory();
        let mut regions = Vec::new();
        for (index, fd) in message.fds.into_iter().enumerate() {
            let at = 8 + 32 * index;
            let word = |field: usize| le64(&message.payload, at + 8 * field);
            let (address, len, user, offset) = (word(0), word(1), word(2), word(3));
            if address != user {
                return Err(invalid("memory whose addresses differ"));
            }
            let file = File::from(fd);
            card.map(address, len, file.try_clone()?, offset)?;
            let memory = MmapRegion::from_file(FileOffset::new(file, offset), size(len));
            let memory = memory.map_err(io::Error::other)?;
            let region = GuestRegionMmap::new(memory, GuestAddress(address));
            regions.push(region.ok_or_else(|| invalid("memory at the end of the address space"))?);
        }
        let memory = GuestMemoryMmap::from_regions(regions).map_err(io::Error::other)?;
        self.line.lock().memory = Some(memory.clone());
        self.memory = Some(memory);
        Ok(())
    }

    fn run_commands(&mut self) -> io::Result<()> {
        let Some(memory) = self.memory.clone() else { return Ok(()) };
        if !self.commands.queue.ready() {
            return Ok(());
        }
        let mut any = false;
        while let Some(chain) = self.commands.queue.pop_descriptor_chain(&memory) {
            let head = chain.head_index();
            let len = self.operation(&memory, chain)?;
            self.commands.give_back(&memory, head, len)?;
            any = true;
        }
        if any { self.commands.notify(&memory) } else { Ok(()) }
    }

    /// One access; tells how many bytes were answered.
    fn operation(
        &mut self,
        memory: &GuestMemoryMmap,
        chain: DescriptorChain<&GuestMemoryMmap>,
    ) -> io::Result<usize> {
        let mut reader = chain.clone().reader(memory).map_err(io::Error::other)?;
        let mut bytes = vec![0; reader.available_bytes()];
        reader.read_exact(&mut bytes)?;
        if bytes.len() < HEADER {
            return Err(invalid(format!("an operation of {} bytes", bytes.len())));
        }
        let (header, data) = bytes.split_at(HEADER);
        let (op, bar) = (header[0], u32::from(header[1]));
        let (len, address) = (le32(header, 4) as usize, le64(header, 8));
        let data = &data[..len.min(data.len())];
        match op {
            op::CONFIG_WRITE => self.write_config(address, data),
            op::WRITE => self.write(bar, address, data),
            op::FILL => {
                let len = len.min(size(self.shared.card().config().bar_len()));
                let fill = vec![data.first().copied().unwrap_or(0); len];
                self.write(bar, address, &fill);
            }
            op::CONFIG_READ | op::READ => {
                let mut writer = chain.writer(memory).map_err(io::Error::other)?;
                let mut answer = vec![0; writer.available_bytes()];
                let wanted = len.min(answer.len());
                if op == op::READ {
                    self.read(bar, address, &mut answer[..wanted]);
                } else {
                    self.shared.card().read_config(address, &mut answer[..wanted]);
                }
                writer.write_all(&answer)?;
                return Ok(answer.len());
            }
            unknown => return Err(invalid(format!("operation {unknown}"))),
        }
        Ok(0)
    }

    fn write_config(&mut self, at: u64, data: &[u8]) {
        let mut card = self.shared.card();
        card.write_config(at, data);
        let (enabled, masked) = card.msix();
        drop(card);
        let mut delivery = self.line.lock();
        delivery.table.set(enabled, masked);
    }

    fn read(&mut self, bar: u32, at: u64, answer: &mut [u8]) {
        if bar == MSIX_BAR {
            self.line.lock().table.read(at, answer);
        } else if bar == self.bar {
            self.shared.card().read_bar(at, answer);
        }
    }

    fn write(&mut self, bar: u32, at: u64, data: &[u8]) {
        if bar == MSIX_BAR {
            self.line.lock().table.write(at, data);
        } else if bar == self.bar {
            let now = self.shared.now();
            self.shared.card().write_bar(now, at, data);
        }
    }
}

/// A message about a ring.
fn configure(ring: &mut Ring, message: Message) -> io::Result<()> {
    let value = le32(&message.payload, 4);
    let small = u16::try_from(value);
    match message.request {
        request::SET_VRING_NUM => ring.queue.set_size(small.map_err(io::Error::other)?),
        request::SET_VRING_BASE => {
            let base = small.map_err(io::Error::other)?;
            ring.queue.set_next_avail(base);
            ring.queue.set_next_used(base);
        }
        request::SET_VRING_ADDR => {
            let half = |at: usize| {
                (Some(le32(&message.payload, at)), Some(le32(&message.payload, at + 4)))
            };
            let (descriptors, used, available) = (half(8), half(16), half(24));
            ring.queue.set_desc_table_address(descriptors.0, descriptors.1);
            ring.queue.set_used_ring_address(used.0, used.1);
            ring.queue.set_avail_ring_address(available.0, available.1);
        }
        request::SET_VRING_KICK => ring.kick = message.fd().map(File::from),
        request::SET_VRING_CALL => ring.call = message.fd().map(File::from),
        _ => ring.queue.set_ready(value == 1),
    }
    Ok(())
}
