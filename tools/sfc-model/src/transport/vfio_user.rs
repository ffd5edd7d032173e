//! The card as a vfio-user server: configuration space, windows, vectors, memory and reset.
//!
//! The windows are memory that the driver maps, unless stores must not be merged: with workaround 35388
//! several of them go to one word (2.7), so the windows of a Huntington are messages.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::RawFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_IRQ_SET_DATA_NONE, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_MMAP,
    VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
    vfio_region_sparse_mmap_area,
};
use vfio_user::{
    DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion, SparseArea,
};

use crate::bits::{number, size};
use crate::config::{Config, Generation};
use crate::device::Shared;
use crate::doorbells::{Doorbells, PAGE};
use crate::host::Interrupts;
use crate::pci_config::{self, MSIX_BAR, MSIX_BAR_LEN};

/// A socket where a driver can come.
#[derive(Debug)]
pub(crate) struct Listener {
    listener: UnixListener,
    path: PathBuf,
    config: Config,
    /// The windows' memory, where they are memory: a descriptor, and where the pages are in it.
    windows: Option<(RawFd, Vec<u64>)>,
}

impl Listener {
    /// Makes the socket; what is there already is left alone.
    pub(crate) fn bind(path: &Path, config: &Config) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let (path, config) = (path.to_owned(), config.clone());
        Ok(Self { listener, path, config, windows: None })
    }

    /// The windows, where they can be memory. They live as long as the card.
    pub(crate) fn doorbells(&mut self) -> io::Result<Option<Doorbells>> {
        if self.config.generation == Generation::Huntington {
            return Ok(None);
        }
        let doorbells = Doorbells::new(&self.config)?;
        self.windows = Some((doorbells.fd(), doorbells.pages().collect()));
        Ok(Some(doorbells))
    }

    fn region(&self, index: u32) -> ServerRegion {
        let len = match index {
            VFIO_PCI_CONFIG_REGION_INDEX => number(pci_config::LEN),
            _ if index == self.config.bar() => self.config.bar_len(),
            MSIX_BAR => MSIX_BAR_LEN,
            _ => 0,
        };
        let flags =
            if len > 0 { VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE } else { 0 };
        let argsz = u32::try_from(size_of::<vfio_region_info>()).expect("a small structure");
        let mut region_info =
            vfio_region_info { argsz, flags, index, size: len, ..Default::default() };
        let (mut sparse_areas, mut mmap_fd) = (Vec::new(), None);
        if let Some((fd, pages)) = &self.windows
            && index == self.config.bar()
        {
            region_info.flags |= VFIO_REGION_INFO_FLAG_MMAP;
            let area =
                |&offset| SparseArea { area: vfio_region_sparse_mmap_area { offset, size: PAGE } };
            sparse_areas = pages.iter().map(area).collect();
            mmap_fd = Some(*fd);
        }
        ServerRegion { region_info, sparse_areas, mmap_fd }
    }

    /// Serves drivers, one after the other, until the process ends.
    pub(crate) fn serve(self, shared: &Shared) {
        let irqs = (0..VFIO_PCI_NUM_IRQS).map(|index| {
            let count = if index == VFIO_PCI_MSIX_IRQ_INDEX { self.config.vectors() } else { 0 };
            IrqInfo { index, flags: VFIO_IRQ_INFO_EVENTFD, count }
        });
        let irqs: Vec<_> = irqs.collect();
        let regions = (0..VFIO_PCI_NUM_REGIONS).map(|index| self.region(index)).collect();
        let bar = self.config.bar();
        let vectors = size(self.config.vectors());
        let server = Server::from_owned_fd(self.listener.into(), true, irqs, regions);
        loop {
            let table = vec![0; size(MSIX_BAR_LEN)];
            let mut backend = Backend { shared, bar, vectors: Vectors::new(vectors), table };
            let ended = server.run(&mut backend);
            shared.card().disconnect();
            match ended {
                Ok(()) => log::info!("the driver at {} is gone", self.path.display()),
                Err(vfio_user::Error::SocketAccept(error)) => {
                    log::error!("no more drivers at {}: {error}", self.path.display());
                    return;
                }
                Err(error) => log::warn!("the driver at {}: {error}", self.path.display()),
            }
        }
    }
}

/// What one driver sees.
struct Backend<'a> {
    shared: &'a Shared,
    bar: u32,
    vectors: Vectors,
    table: Vec<u8>,
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.into())
}

impl Backend<'_> {
    fn table(&mut self, offset: u64, len: usize) -> io::Result<&mut [u8]> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let range = start..start.saturating_add(len);
        self.table
            .get_mut(range)
            .ok_or_else(|| invalid(format!("{len} bytes at {offset:#x} of the table")))
    }
}

impl ServerBackend for Backend<'_> {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => self.shared.card().read_config(offset, data),
            _ if region == self.bar => {
                if !self.shared.card().read_bar(offset, data) {
                    return Err(invalid(format!("{} bytes at {offset:#x} of the BAR", data.len())));
                }
            }
            MSIX_BAR => data.copy_from_slice(self.table(offset, data.len())?),
            _ => return Err(invalid(format!("a read of region {region}"))),
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => self.shared.card().write_config(offset, data),
            _ if region == self.bar => {
                let now = self.shared.now();
                self.shared.card().write_bar(now, offset, data);
            }
            MSIX_BAR => self.table(offset, data.len())?.copy_from_slice(data),
            _ => return Err(invalid(format!("a write to region {region}"))),
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        _flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> io::Result<()> {
        let file = fd.ok_or_else(|| invalid("memory without a file"))?;
        self.shared.card().map(address, size, file, offset)
    }

    fn dma_unmap(&mut self, _flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        if self.shared.card().unmap(address, size) {
            Ok(())
        } else {
            Err(invalid("nothing is mapped there"))
        }
    }

    fn reset(&mut self) -> io::Result<()> {
        self.shared.card().reset();
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> io::Result<()> {
        if index != VFIO_PCI_MSIX_IRQ_INDEX || flags & VFIO_IRQ_SET_ACTION_TRIGGER == 0 {
            return Err(invalid(format!("interrupts {index}, flags {flags:#x}")));
        }
        self.vectors.set(flags, start, count, fds)?;
        self.shared.card().set_interrupts(Box::new(self.vectors.try_clone()?));
        Ok(())
    }
}

/// Event descriptors by vector.
#[derive(Debug)]
struct Vectors(Vec<Option<File>>);

impl Vectors {
    fn new(count: usize) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    fn set(&mut self, flags: u32, start: u32, count: u32, fds: Vec<File>) -> io::Result<()> {
        let end = size(start).saturating_add(size(count));
        let len = self.0.len();
        if flags & VFIO_IRQ_SET_DATA_NONE != 0 && count == 0 {
            *self = Self::new(len);
            return Ok(());
        }
        let range = self.0.get_mut(size(start)..end);
        let range = range.ok_or_else(|| invalid(format!("vectors {start} to {end} of {len}")))?;
        if flags & VFIO_IRQ_SET_DATA_EVENTFD == 0 || fds.len() != range.len() {
            return Err(invalid(format!("{} descriptors for {count} vectors", fds.len())));
        }
        for (vector, fd) in range.iter_mut().zip(fds) {
            *vector = Some(fd);
        }
        Ok(())
    }

    fn try_clone(&self) -> io::Result<Self> {
        let clone = |fd: &Option<File>| fd.as_ref().map(File::try_clone).transpose();
        Ok(Self(self.0.iter().map(clone).collect::<io::Result<_>>()?))
    }
}

impl Interrupts for Vectors {
    fn raise(&mut self, vector: u32) {
        if let Some(Some(fd)) = self.0.get_mut(size(vector))
            && let Err(error) = fd.write_all(&1u64.to_ne_bytes())
        {
            log::warn!("interrupt {vector}: {error}");
        }
    }
}
