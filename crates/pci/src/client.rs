//! A function behind a vfio-user socket: another process is the device.
//!
//! Life: connected; regions described by the server; parts of a BAR that the server shares a file for
//! are mapped, the rest is reached by messages; DMA memory is a file whose descriptor is sent to the
//! server; interrupts are event descriptors sent to it. Closed when the function, its BARs and its
//! regions are gone.
//!
//! Who owns what: the protocol client lives on a thread of its own and does one request at a time, so
//! that every request has a time limit even though the client's reads have none. After the first
//! failure the connection is given up: an answer that comes late would be taken for that of the next
//! request. From then on registers read as all ones, and everything else says that the function is
//! gone.
//!
//! What the client does not tell us: of a failed `DMA_MAP`, `DEVICE_SET_IRQS` or `DEVICE_RESET` it
//! returns success. A server that refuses those is noticed by what it does not do.

use std::fmt;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender, SyncSender};
use std::time::Duration;
use std::{io, thread};

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE,
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSI_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::Client;

use crate::bar::{Area, Region, RegionIo};
use crate::dma::{Mapper, Space};
use crate::iova::IovaMap;
use crate::memory::{Memory, PAGE, as_u64};
use crate::{Bar, DmaRegion, Error, EventFd, Iova, PciFunction, Width, config};

/// How long a server may take to answer one request.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A function served over a socket.
pub struct Served {
    connection: Arc<Connection>,
    space: Arc<Space>,
    config_len: u64,
}

impl Served {
    /// Connects to a vfio-user server.
    ///
    /// # Errors
    ///
    /// When nobody listens at the path, or what does is not a vfio-user server of a PCI function.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        Self::connect_within(path, ANSWER_LIMIT)
    }

    fn connect_within(path: &Path, limit: Duration) -> Result<Self, Error> {
        let connection = Arc::new(Connection::open(path, limit)?);
        let config = connection.describe(VFIO_PCI_CONFIG_REGION_INDEX)?;
        let config_len = config.map_or(0, |config| config.len);
        let mapper = Box::new(Files(Arc::clone(&connection)));
        let space = Space::new(&connection.name, IovaMap::default(), mapper);
        Ok(Self { connection, space, config_len })
    }

    /// The kind of interrupts the function has, and how many.
    fn interrupt_kind(&self) -> Result<(u32, usize), Error> {
        self.connection.ask("ask for its interrupts", |client| {
            let mut info = client.get_irq_info(VFIO_PCI_MSIX_IRQ_INDEX)?;
            if info.count == 0 {
                info = client.get_irq_info(VFIO_PCI_MSI_IRQ_INDEX)?;
            }
            Ok((info.index, usize::try_from(info.count).unwrap_or(usize::MAX)))
        })
    }
}

impl PciFunction for Served {
    fn name(&self) -> &str {
        &self.connection.name
    }

    fn config_read(&self, offset: u16, width: Width) -> Result<u32, Error> {
        config::check(self.name(), offset, width, self.config_len)?;
        let bits = self.connection.read(VFIO_PCI_CONFIG_REGION_INDEX, offset.into(), width)?;
        Ok(u32::try_from(bits).expect("no access is wider than 4 bytes"))
    }

    fn config_write(&mut self, offset: u16, width: Width, value: u32) -> Result<(), Error> {
        config::check(self.name(), offset, width, self.config_len)?;
        let region = VFIO_PCI_CONFIG_REGION_INDEX;
        self.connection.write(region, offset.into(), width, value.into())
    }

    fn bar(&mut self, index: u8) -> Result<Bar, Error> {
        let described = match index {
            0..=5 => self.connection.describe(index.into())?,
            _ => None,
        };
        let Some(description) = described.filter(|described| described.len > 0) else {
            return Err(Error::NoBar { name: self.name().to_owned(), index });
        };
        let areas = description.map(self.name(), index);
        let io = Arc::clone(&self.connection);
        Ok(Bar::new(Region::new(index, description.len, areas, io)))
    }

    fn dma(&mut self, bytes: usize, align: usize) -> Result<DmaRegion, Error> {
        self.space.allocate(bytes, align)
    }

    fn map_guest(
        &mut self,
        iova: Iova,
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
    ) -> Result<DmaRegion, Error> {
        self.space.map_file(iova, file, offset, bytes)
    }

    fn interrupts(&mut self, count: usize) -> Result<Vec<EventFd>, Error> {
        let (kind, offered) = self.interrupt_kind()?;
        if count > offered {
            let name = self.name().to_owned();
            return Err(Error::Interrupts { name, wanted: count, offered });
        }
        let events = crate::event_fds(self.name(), count)?;
        let raw: Vec<RawFd> = events.iter().map(AsRawFd::as_raw_fd).collect();
        // The descriptors stay open until the answer is there or the connection is given up: `events`
        // is not dropped before.
        self.connection.ask("set its interrupts up", move |client| {
            let off = VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER;
            client.set_irqs(kind, off, 0, 0, &[])?;
            let on = VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER;
            // One at a time: a server need not take more than one descriptor per message.
            for (vector, fd) in (0..).zip(raw) {
                client.set_irqs(kind, on, vector, 1, &[fd])?;
            }
            Ok(())
        })?;
        Ok(events)
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.connection.ask("reset it", Client::reset)
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Served({})", self.connection.name)
    }
}

type Job = Box<dyn FnOnce(&mut Client) + Send>;

/// The way to the thread that has the client.
struct Connection {
    name: String,
    jobs: Sender<Job>,
    given_up: AtomicBool,
    limit: Duration,
}

impl Connection {
    fn open(path: &Path, limit: Duration) -> Result<Self, Error> {
        let name = path.display().to_string();
        let (jobs, work) = mpsc::channel::<Job>();
        let (connected, result) = mpsc::sync_channel(1);
        let own_path = path.to_owned();
        let serve = move || {
            let Some(mut client) = answer(&connected, Client::new(&own_path)) else { return };
            while let Ok(job) = work.recv() {
                job(&mut client);
            }
        };
        thread::Builder::new()
            .name("vfio-user".to_owned())
            .spawn(serve)
            .map_err(crate::kernel_error(&name, "start a thread"))?;
        match result.recv_timeout(limit) {
            Ok(Ok(())) => Ok(Self { name, jobs, given_up: AtomicBool::new(false), limit }),
            Ok(Err(source)) => Err(Error::Connect { path: path.to_owned(), source }),
            Err(RecvTimeoutError::Timeout) => {
                Err(Error::NoAnswer { name, doing: "connect", seconds: limit.as_secs() })
            }
            Err(RecvTimeoutError::Disconnected) => Err(Error::Gone { name }),
        }
    }

    /// Has the client do something, and waits for it.
    fn ask<T: Send + 'static>(
        &self,
        doing: &'static str,
        job: impl FnOnce(&mut Client) -> Result<T, vfio_user::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, result) = mpsc::sync_channel(1);
        let job: Job = Box::new(move |client| {
            // Whoever asked may have given up by now.
            let _ = reply.send(job(client));
        });
        let name = self.name.clone();
        if self.given_up.load(Ordering::Relaxed) || self.jobs.send(job).is_err() {
            return Err(Error::Gone { name });
        }
        let error = match result.recv_timeout(self.limit) {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(source)) => Error::Connection { name, doing, source },
            Err(RecvTimeoutError::Timeout) => {
                Error::NoAnswer { name, doing, seconds: self.limit.as_secs() }
            }
            Err(RecvTimeoutError::Disconnected) => Error::Gone { name },
        };
        if !self.given_up.swap(true, Ordering::Relaxed) {
            log::error!("connection given up: {error}");
        }
        Err(error)
    }

    /// What the server says of a region; `None` when it has none of that index.
    fn describe(&self, index: u32) -> Result<Option<Description>, Error> {
        self.ask("describe a region", move |client| {
            Ok(client.region(index).map(|region| Description {
                len: region.size,
                file: region.file_offset.as_ref().map(|at| (Arc::clone(at.arc()), at.start())),
                areas: region.sparse_areas.iter().map(|area| (area.offset, area.size)).collect(),
            }))
        })
    }

    fn read(&self, region: u32, offset: u64, width: Width) -> Result<u64, Error> {
        self.ask("read a register", move |client| {
            let mut bytes = [0; 8];
            client.region_read(region, offset, &mut bytes[..width.bytes()])?;
            Ok(u64::from_le_bytes(bytes))
        })
    }

    fn write(&self, region: u32, offset: u64, width: Width, value: u64) -> Result<(), Error> {
        self.ask("write a register", move |client| {
            client.region_write(region, offset, &value.to_le_bytes()[..width.bytes()])
        })
    }
}

impl RegionIo for Connection {
    fn read(&self, bar: u8, offset: u64, width: Width) -> u64 {
        // The failure has been logged, and the next request that can tell of it does.
        Self::read(self, bar.into(), offset, width).unwrap_or_else(|_| width.all_ones())
    }

    fn write(&self, bar: u8, offset: u64, width: Width, value: u64) {
        // As for a read: a write to what is gone is lost.
        let _ = Self::write(self, bar.into(), offset, width, value);
    }
}

/// Sends the outcome of connecting to whoever waits for it, and keeps the client.
fn answer(
    connected: &SyncSender<Result<(), vfio_user::Error>>,
    result: Result<Client, vfio_user::Error>,
) -> Option<Client> {
    let (client, outcome) = match result {
        Ok(client) => (Some(client), Ok(())),
        Err(error) => (None, Err(error)),
    };
    connected.send(outcome).ok().and(client)
}

/// A region as its server describes it.
struct Description {
    len: u64,
    file: Option<(Arc<File>, u64)>,
    areas: Vec<(u64, u64)>,
}

impl Description {
    /// Maps what can be mapped. What can't is told, and stays with messages.
    fn map(&self, name: &str, bar: u8) -> Vec<Area> {
        let Some((file, start)) = &self.file else { return Vec::new() };
        // A file and no areas: all of it.
        let whole = [(0, self.len)];
        let areas = if self.areas.is_empty() { &whole[..] } else { &self.areas };
        let map = |&(offset, len): &(u64, u64)| match self.map_area(file, *start, offset, len) {
            Ok(area) => Some(area),
            Err(error) => {
                log::warn!("{name}: BAR {bar} at {offset:#x}, {len:#x} bytes: not mapped: {error}");
                None
            }
        };
        areas.iter().filter_map(map).collect()
    }

    fn map_area(&self, file: &File, start: u64, offset: u64, len: u64) -> io::Result<Area> {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let page = as_u64(PAGE);
        if len == 0 || !len.is_multiple_of(page) || !offset.is_multiple_of(page) {
            return Err(invalid("not in whole pages"));
        }
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(invalid("not inside the BAR"));
        }
        let place = start.checked_add(offset).ok_or_else(|| invalid("beyond any file"))?;
        let len = usize::try_from(len).map_err(|_| invalid("too long"))?;
        let memory = Memory::of_file(OwnedFd::from(file.try_clone()?), place, len)?;
        Ok(Area { offset, memory: Arc::new(memory) })
    }
}

/// Shows memory by sending the descriptor of the file it is in.
struct Files(Arc<Connection>);

impl Mapper for Files {
    fn map(&self, iova: Iova, memory: &Arc<Memory>) -> Result<(), Error> {
        let memory = Arc::clone(memory);
        self.0.ask("map memory for DMA", move |client| {
            let (file, offset) = memory.file().expect("DMA memory is in a file");
            client.dma_map(offset, iova.get(), as_u64(memory.len()), file.as_raw_fd())
        })
    }

    fn unmap(&self, iova: Iova, len: u64) -> Result<(), Error> {
        self.0.ask("unmap memory", move |client| client.dma_unmap(iova.get(), len))
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests;
