//! A function behind the kernel's VFIO: bound to vfio-pci, behind an IOMMU.
//!
//! Life: looked up in sysfs, so that each thing that can be wrong has its own message; opened through
//! its character device and iommufd where the kernel has them, through its group otherwise; BARs
//! mapped as far as the kernel lets them be mapped; DMA memory pinned and shown to the IOMMU;
//! interrupts led to event descriptors. Closed when the function, its BARs and its regions are gone.
//!
//! Who owns what: one [`Device`] is shared by the function, its BARs' mappings and its DMA space, for
//! the kernel gives a group back only after the last mapping of its device.
//!
//! The helper library swallows the errors of register access, of reset and of interrupts, and panics
//! when it is dropped after the device has left sysfs: those are done here.

mod place;
mod sys;

use std::fmt;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iommufd_ioctls::IommuFd;
use vfio_bindings::bindings::vfio::{
    VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_MSI_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_REGION_INFO_FLAG_MMAP,
};
use vfio_ioctls::{VfioContainer, VfioDevice, VfioError, VfioIommufd, VfioOps, VfioRegionInfoCap};

use crate::bar::{Area, Region, RegionIo};
use crate::dma::{Mapper, Space};
use crate::iova::IovaMap;
use crate::memory::{Memory, PAGE, as_u64};
use crate::{Bar, DmaRegion, Error, EventFd, Iova, PciFunction, Width, config};
use place::{Place, Roots};

/// A function that vfio-pci holds for us.
pub struct Kernel {
    device: Arc<Device>,
    space: Arc<Space>,
    /// Kind and number of interrupts that are set up.
    interrupts: Option<u32>,
    numa_node: Option<u32>,
}

impl Kernel {
    /// Opens the function at a PCI address, `0000:03:00.0`.
    ///
    /// # Errors
    ///
    /// When the machine has no VFIO or no IOMMU, there is no such function, it is bound to another
    /// driver, it shares its group with a function that is, or it may not be opened. Each message
    /// says what to do.
    pub fn open(address: &str) -> Result<Self, Error> {
        let place = Place::find(&Roots::default(), address)?;
        let device = Arc::new(Device::open(&place)?);
        let taken = IovaMap::without(&place.reserved);
        let space = Space::new(address, taken, Box::new(Pins(Arc::clone(&device))));
        Ok(Self { device, space, interrupts: None, numa_node: place.numa_node })
    }
}

impl PciFunction for Kernel {
    fn name(&self) -> &str {
        &self.device.name
    }

    fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    fn config_read(&self, offset: u16, width: Width) -> Result<u32, Error> {
        let device = &self.device;
        config::check(self.name(), offset, width, device.len(VFIO_PCI_CONFIG_REGION_INDEX))?;
        let bits = device.read(VFIO_PCI_CONFIG_REGION_INDEX, offset.into(), width);
        let bits = bits.map_err(crate::kernel_error(self.name(), "read its configuration"))?;
        Ok(u32::try_from(bits).expect("no access is wider than 4 bytes"))
    }

    fn config_write(&mut self, offset: u16, width: Width, value: u32) -> Result<(), Error> {
        let device = &self.device;
        config::check(self.name(), offset, width, device.len(VFIO_PCI_CONFIG_REGION_INDEX))?;
        device
            .write(VFIO_PCI_CONFIG_REGION_INDEX, offset.into(), width, value.into())
            .map_err(crate::kernel_error(self.name(), "write its configuration"))
    }

    fn bar(&mut self, index: u8) -> Result<Bar, Error> {
        let len = if index <= 5 { self.device.len(index.into()) } else { 0 };
        if len == 0 {
            return Err(Error::NoBar { name: self.name().to_owned(), index });
        }
        let areas = self.device.map(index, len);
        let io = Arc::clone(&self.device);
        Ok(Bar::new(Region::new(index, len, areas, io)))
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
        let name = self.device.name.clone();
        let failed = || crate::kernel_error(&name, "set its interrupts up");
        let device = self.device.file.as_fd();
        if let Some(kind) = self.interrupts {
            sys::set_interrupts(device, kind, &[]).map_err(failed())?;
            self.interrupts = None;
        }
        let (kind, offered) = self.device.interrupt_kind();
        let too_many = |offered| Error::Interrupts { name: name.clone(), wanted: count, offered };
        if count > offered {
            return Err(too_many(offered));
        }
        let events = crate::event_fds(&name, count)?;
        if count > 0 {
            let set = sys::set_interrupts(device, kind, &events).map_err(failed())?;
            if set < count {
                // So many the system has left; none is set up.
                return Err(too_many(set));
            }
            self.interrupts = Some(kind);
        }
        Ok(events)
    }

    fn reset(&mut self) -> Result<(), Error> {
        sys::reset(self.device.file.as_fd()).map_err(crate::kernel_error(self.name(), "reset it"))
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = if self.device.by_iommufd { "iommufd" } else { "group" };
        write!(f, "Kernel({} by {way})", self.device.name)
    }
}

/// What the kernel gives for a function.
struct Device {
    name: String,
    /// The same open device as `vfio` has, for access whose errors are told. Closed before `vfio`.
    file: ManuallyDrop<File>,
    vfio: ManuallyDrop<VfioDevice>,
    ops: Arc<dyn VfioOps>,
    by_iommufd: bool,
    /// Gone when the function is.
    group_link: PathBuf,
    complained: AtomicBool,
}

impl Device {
    fn open(place: &Place) -> Result<Self, Error> {
        let ops = container(place)?;
        let vfio = VfioDevice::new(&place.sysfs, Arc::clone(&ops), true);
        let vfio = vfio.map_err(|source| place.explain(source))?;
        let file = sys::duplicate(&vfio)
            .map_err(crate::kernel_error(&place.address, "duplicate its descriptor"))?;
        Ok(Self {
            name: place.address.clone(),
            file: ManuallyDrop::new(File::from(file)),
            vfio: ManuallyDrop::new(vfio),
            ops,
            by_iommufd: place.has_cdev,
            group_link: place.sysfs.join("iommu_group"),
            complained: AtomicBool::new(false),
        })
    }

    fn len(&self, region: u32) -> u64 {
        self.vfio.get_region_size(region)
    }

    /// MSI-X where there is, else MSI.
    fn interrupt_kind(&self) -> (u32, usize) {
        let count = |kind| self.vfio.get_irq_info(kind).map_or(0, |info| info.count);
        let kinds = [VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_MSI_IRQ_INDEX];
        let kind = kinds.into_iter().find(|&kind| count(kind) > 0);
        let kind = kind.unwrap_or(VFIO_PCI_MSIX_IRQ_INDEX);
        (kind, usize::try_from(count(kind)).unwrap_or(usize::MAX))
    }

    fn place(&self, region: u32, offset: u64, width: Width) -> io::Result<u64> {
        let bytes = as_u64(width.bytes());
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.len(region));
        let at = self.vfio.get_region_offset(region).checked_add(offset).filter(|_| inside);
        at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
    }

    fn read(&self, region: u32, offset: u64, width: Width) -> io::Result<u64> {
        let mut bytes = [0; 8];
        let at = self.place(region, offset, width)?;
        self.file.read_exact_at(&mut bytes[..width.bytes()], at)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn write(&self, region: u32, offset: u64, width: Width, value: u64) -> io::Result<()> {
        let at = self.place(region, offset, width)?;
        self.file.write_all_at(&value.to_le_bytes()[..width.bytes()], at)
    }

    /// Maps what the kernel lets be mapped; the rest is reached by system calls.
    fn map(self: &Arc<Self>, bar: u8, len: u64) -> Vec<Area> {
        let region = u32::from(bar);
        if self.vfio.get_region_flags(region) & VFIO_REGION_INFO_FLAG_MMAP == 0 {
            return Vec::new();
        }
        let sparse = self.vfio.get_region_caps(region).into_iter().find_map(|cap| match cap {
            VfioRegionInfoCap::SparseMmap(sparse) => Some(sparse.areas),
            _ => None,
        });
        let areas = sparse.map_or_else(
            || vec![(0, len)],
            |areas| areas.iter().map(|area| (area.offset, area.size)).collect(),
        );
        let start = self.vfio.get_region_offset(region);
        let map = |(offset, len): (u64, u64)| match self.map_area(start, offset, len) {
            Ok(area) => Some(area),
            Err(error) => {
                log::warn!(
                    "{}: BAR {bar} at {offset:#x}, {len:#x} bytes: not mapped: {error}",
                    self.name
                );
                None
            }
        };
        areas.into_iter().filter_map(map).collect()
    }

    fn map_area(self: &Arc<Self>, start: u64, offset: u64, len: u64) -> io::Result<Area> {
        let page = as_u64(PAGE);
        if len == 0 || !len.is_multiple_of(page) || !offset.is_multiple_of(page) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not in whole pages"));
        }
        let at = start.checked_add(offset).ok_or(io::ErrorKind::InvalidInput)?;
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let owner = Arc::clone(self);
        let memory = Memory::of_device(self.file.as_fd(), at, len, owner)?;
        Ok(Area { offset, memory: Arc::new(memory) })
    }

    /// Tells of the first failure of a register; a card that is gone fails at every one.
    fn complain(&self, doing: &str, error: &io::Error) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            log::error!("{}: could not {doing} a register: {error}", self.name);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        sys::close(&mut self.file, &mut self.vfio, self.group_link.exists());
    }
}

impl RegionIo for Device {
    fn read(&self, bar: u8, offset: u64, width: Width) -> u64 {
        Self::read(self, bar.into(), offset, width).unwrap_or_else(|error| {
            self.complain("read", &error);
            width.all_ones()
        })
    }

    fn write(&self, bar: u8, offset: u64, width: Width, value: u64) {
        if let Err(error) = Self::write(self, bar.into(), offset, width, value) {
            self.complain("write", &error);
        }
    }
}

/// Who translates the device's addresses: an iommufd where the function has a character device of its
/// own, a container for its group otherwise.
fn container(place: &Place) -> Result<Arc<dyn VfioOps>, Error> {
    if place.has_cdev {
        let opened = IommuFd::new().map_err(VfioError::NewVfioIommufd);
        let iommufd = opened.and_then(|fd| VfioIommufd::new(Arc::new(fd), None, None));
        return match iommufd {
            Ok(iommufd) => Ok(Arc::new(iommufd)),
            Err(source) => Err(place.explain(source)),
        };
    }
    let container = VfioContainer::new(None).map_err(|source| place.explain(source))?;
    Ok(Arc::new(container))
}

/// Shows memory by pinning it.
struct Pins(Arc<Device>);

impl Mapper for Pins {
    fn map(&self, iova: Iova, memory: &Arc<Memory>) -> Result<(), Error> {
        sys::dma_map(&*self.0.ops, iova, memory)
            .map_err(|source| place::explain_map(&self.0.name, iova, as_u64(memory.len()), source))
    }

    fn unmap(&self, iova: Iova, len: u64) -> Result<(), Error> {
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        self.0.ops.vfio_dma_unmap(iova.get(), bytes).map_err(|source| Error::Vfio {
            name: self.0.name.clone(),
            doing: "unmap memory",
            source,
        })
    }
}
