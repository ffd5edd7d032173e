//! The client against a small vfio-user server: one BAR of four pages of which the second is shared
//! memory, one BAR without any, a configuration space, three vectors.

use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::panic;
use std::path::PathBuf;
use std::sync::{Mutex, mpsc};

use vfio_bindings::bindings::vfio::{
    VFIO_REGION_INFO_FLAG_MMAP, VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE,
    vfio_region_info, vfio_region_sparse_mmap_area,
};
use vfio_user::{
    DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion, SparseArea,
};

use super::*;
use crate::{Reg, WriteOnly};

const PAGE_LEN: u64 = 4096;

/// What the server was asked for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Write(u32, u64, Vec<u8>),
    Map(u64, u64),
    Unmap(u64, u64),
    Reset,
}

/// Address, size, offset in the file, and the file.
type Mapped = (u64, u64, u64, File);

/// The device: registers are bytes, DMA goes through the files that it was sent.
struct Device {
    asked: Sender<Asked>,
    memory: Arc<Mutex<Vec<Mapped>>>,
    vectors: Arc<Mutex<Vec<Option<File>>>>,
    config: [u8; 256],
    fault: Fault,
}

/// What goes wrong at a read of that offset.
enum Fault {
    None,
    ErrorAt(u64),
    EndAt(u64),
}

impl ServerBackend for Device {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match self.fault {
            Fault::ErrorAt(at) if at == offset => return Err(io::ErrorKind::Other.into()),
            Fault::EndAt(at) if at == offset => panic::resume_unwind(Box::new("the server ends")),
            _ => {}
        }
        let start = usize::try_from(offset).unwrap();
        if region == VFIO_PCI_CONFIG_REGION_INDEX {
            data.copy_from_slice(&self.config[start..start + data.len()]);
        } else {
            let value = (u64::from(region) << 32 | offset).to_le_bytes();
            data.copy_from_slice(&value[..data.len()]);
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        if region == VFIO_PCI_CONFIG_REGION_INDEX {
            let start = usize::try_from(offset).unwrap();
            self.config[start..start + data.len()].copy_from_slice(data);
        }
        let _ = self.asked.send(Asked::Write(region, offset, data.to_vec()));
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> io::Result<()> {
        assert_eq!(flags, DmaMapFlags::READ_WRITE);
        self.memory.lock().unwrap().push((address, size, offset, fd.unwrap()));
        let _ = self.asked.send(Asked::Map(address, size));
        Ok(())
    }

    fn dma_unmap(&mut self, _flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        self.memory.lock().unwrap().retain(|(at, ..)| *at != address);
        let _ = self.asked.send(Asked::Unmap(address, size));
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        let _ = self.asked.send(Asked::Reset);
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
        assert_eq!(index, VFIO_PCI_MSIX_IRQ_INDEX);
        let mut vectors = self.vectors.lock().unwrap();
        if flags & VFIO_IRQ_SET_DATA_NONE != 0 && count == 0 {
            *vectors = vec![None, None, None];
        }
        for (vector, fd) in (usize::try_from(start).unwrap()..).zip(fds) {
            vectors[vector] = Some(fd);
        }
        Ok(())
    }
}

/// A running server and the ends of it that a test looks at.
struct Running {
    path: PathBuf,
    asked: mpsc::Receiver<Asked>,
    memory: Arc<Mutex<Vec<Mapped>>>,
    vectors: Arc<Mutex<Vec<Option<File>>>>,
    shared: File,
    thread: thread::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

fn region(index: u32, size: u64) -> ServerRegion {
    let flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
    let argsz = u32::try_from(size_of::<vfio_region_info>()).unwrap();
    let region_info = vfio_region_info { argsz, flags, index, size, ..Default::default() };
    ServerRegion { region_info, sparse_areas: Vec::new(), mmap_fd: None }
}

/// Serves the device.
fn serve(areas: &[(u64, u64)], fault: Fault) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nic.sock");
    let shared = tempfile::tempfile().unwrap();
    shared.set_len(4 * PAGE_LEN).unwrap();
    let mut regions: Vec<_> = (0..9).map(|index| region(index, 0)).collect();
    regions[0] = region(0, 4 * PAGE_LEN);
    regions[0].mmap_fd = Some(shared.as_raw_fd());
    regions[0].region_info.flags |= VFIO_REGION_INFO_FLAG_MMAP;
    let area = |&(offset, size)| SparseArea { area: vfio_region_sparse_mmap_area { offset, size } };
    regions[0].sparse_areas = areas.iter().map(area).collect();
    regions[2] = region(2, PAGE_LEN);
    regions[7] = region(7, 256);
    let irq = |index| IrqInfo { index, flags: 1, count: if index == 2 { 3 } else { 0 } };
    let server = Server::new(&path, true, (0..5).map(irq).collect(), regions).unwrap();
    let (sender, asked) = mpsc::channel();
    let memory = Arc::default();
    let vectors = Arc::default();
    let mut config = [0; 256];
    config[..4].copy_from_slice(&[0x24, 0x19, 0x03, 0x0a]);
    let (memory_too, vectors_too) = (Arc::clone(&memory), Arc::clone(&vectors));
    let mut device =
        Device { asked: sender, memory: memory_too, vectors: vectors_too, config, fault };
    let thread = thread::spawn(move || {
        server.run(&mut device).unwrap();
    });
    Running { path, asked, memory, vectors, shared, thread, _dir: dir }
}

const SHARED_PAGE: [(u64, u64); 1] = [(PAGE_LEN, PAGE_LEN)];

#[test]
fn mapped_registers_are_memory_and_the_others_messages() {
    let server = serve(&SHARED_PAGE, Fault::None);
    let mut function = Served::connect(&server.path).unwrap();
    let bar = function.bar(0).unwrap();
    assert_eq!((bar.len(), bar.is_mapped()), (4 * PAGE_LEN, false));
    let window = bar.window(PAGE_LEN, PAGE_LEN).unwrap();
    assert!(window.is_mapped());
    window.register(Reg::<u32, WriteOnly>::new(0x830)).unwrap().write(8);
    let mut seen = [0; 4];
    server.shared.read_exact_at(&mut seen, PAGE_LEN + 0x830).unwrap();
    assert_eq!(u32::from_le_bytes(seen), 8);
    assert_eq!(server.asked.try_recv(), Err(mpsc::TryRecvError::Empty));
    bar.write32(0x204, 0x1122_3344);
    assert_eq!(server.asked.recv().unwrap(), Asked::Write(0, 0x204, vec![0x44, 0x33, 0x22, 0x11]));
    assert_eq!(bar.read32(0x2010), 0x2010);
    let unmapped = function.bar(2).unwrap();
    assert_eq!((unmapped.read64(8), unmapped.len()), (0x2_0000_0008, PAGE_LEN));
    assert!(matches!(function.bar(1), Err(Error::NoBar { index: 1, .. })));
    assert!(matches!(function.bar(7), Err(Error::NoBar { index: 7, .. })));
    drop((function, bar, window, unmapped));
    server.thread.join().unwrap();
}

#[test]
fn areas_that_can_not_be_mapped_stay_with_messages() {
    // Not whole pages; beyond the BAR; nothing; past every file.
    let areas =
        [(0, 100), (3 * PAGE_LEN, 2 * PAGE_LEN), (PAGE_LEN, 0), (u64::MAX - 4095, PAGE_LEN)];
    let server = serve(&areas, Fault::None);
    let bar = Served::connect(&server.path).unwrap().bar(0).unwrap();
    assert_eq!(bar.read32(0x3000), 0x3000);
}

#[test]
fn configuration_space_and_reset() {
    let server = serve(&SHARED_PAGE, Fault::None);
    let mut function = open(&server.path);
    assert_eq!(function.ids().unwrap(), (0x1924, 0x0a03));
    function.enable().unwrap();
    assert_eq!(server.asked.recv().unwrap(), Asked::Write(7, 4, vec![6, 0]));
    assert_eq!(function.config_read(4, Width::Word).unwrap(), 6);
    assert!(matches!(function.config_read(0xfe, Width::Dword), Err(Error::Config { .. })));
    assert!(matches!(function.config_read(0x100, Width::Byte), Err(Error::Config { .. })));
    function.reset().unwrap();
    assert_eq!(server.asked.recv().unwrap(), Asked::Reset);
}

fn open(path: &Path) -> Box<dyn PciFunction> {
    crate::open(path.to_str().unwrap()).unwrap()
}

#[test]
fn the_server_sees_dma_memory_through_its_file() {
    let server = serve(&SHARED_PAGE, Fault::None);
    let mut function = open(&server.path);
    let region = function.dma(5000, 256).unwrap();
    let iova = region.iova().get();
    assert_eq!(server.asked.recv().unwrap(), Asked::Map(iova, 8192));
    region.write(4992, 0x55_u8);
    {
        let memory = server.memory.lock().unwrap();
        let (address, size, offset, file) = &memory[0];
        assert_eq!((*address, *size), (iova, 8192));
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset + 4992).unwrap();
        assert_eq!(byte, [0x55]);
        file.write_all_at(b"event", offset + 8).unwrap();
    }
    let mut bytes = [0; 6];
    region.copy_out(8, &mut bytes);
    assert_eq!(&bytes, b"event\0");
    drop(region);
    assert_eq!(server.asked.recv().unwrap(), Asked::Unmap(iova, 8192));
}

#[test]
fn guest_memory_is_mapped_where_the_guest_has_it() {
    let server = serve(&SHARED_PAGE, Fault::None);
    let mut function = open(&server.path);
    let guest = tempfile::tempfile().unwrap();
    guest.set_len(4 * PAGE_LEN).unwrap();
    let fd = std::os::fd::AsFd::as_fd(&guest);
    let iova = Iova::new(0x10_0000);
    let region = function.map_guest(iova, fd, PAGE_LEN, 2 * PAGE).unwrap();
    assert_eq!(server.asked.recv().unwrap(), Asked::Map(0x10_0000, 8192));
    assert_eq!(server.memory.lock().unwrap()[0].2, PAGE_LEN);
    guest.write_all_at(&[9], PAGE_LEN + 3).unwrap();
    assert_eq!(region.read::<u8>(3), 9);
    let again = function.map_guest(iova.add(PAGE_LEN), fd, 0, PAGE);
    assert!(matches!(again, Err(Error::IovaTaken { .. })));
    let odd = function.map_guest(iova, fd, 100, PAGE);
    assert!(matches!(odd, Err(Error::NotPages { .. })));
    let beyond = function.map_guest(Iova::new(0), fd, 3 * PAGE_LEN, 2 * PAGE);
    assert!(matches!(beyond, Err(Error::Memory { .. })));
}

#[test]
fn interrupts_arrive_at_their_descriptors() {
    let server = serve(&SHARED_PAGE, Fault::None);
    let mut function = open(&server.path);
    let wanted = function.interrupts(4);
    assert!(matches!(wanted, Err(Error::Interrupts { wanted: 4, offered: 3, .. })));
    let events = function.interrupts(2).unwrap();
    {
        let vectors = server.vectors.lock().unwrap();
        assert_eq!(vectors.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
        let file = vectors[1].as_ref().unwrap();
        io::Write::write_all(&mut &*file, &1_u64.to_ne_bytes()).unwrap();
    }
    assert_eq!(events[1].read().unwrap(), 1);
    assert_eq!(events[0].read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert!(function.interrupts(0).unwrap().is_empty());
    assert!(server.vectors.lock().unwrap().iter().all(Option::is_none));
}

#[test]
fn nobody_listens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.sock");
    let error = Served::connect(&path).unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
}

#[test]
fn a_server_that_ends_is_an_error_and_all_ones() {
    let server = serve(&SHARED_PAGE, Fault::EndAt(0x18));
    let mut function = open(&server.path);
    let bar = function.bar(0).unwrap();
    let region = function.dma(64, 64).unwrap();
    assert_eq!(bar.read32(0x18), u32::MAX);
    assert_eq!(bar.read32(0x10), u32::MAX);
    bar.write32(0x10, 1);
    assert!(matches!(function.ids(), Err(Error::Gone { .. })));
    assert!(matches!(function.dma(64, 64), Err(Error::Gone { .. })));
    assert!(matches!(function.interrupts(1), Err(Error::Gone { .. })));
    assert!(matches!(function.reset(), Err(Error::Gone { .. })));
    // Memory is still memory.
    region.write(0, 1_u8);
    assert_eq!(region.read::<u8>(0), 1);
    assert!(server.thread.join().is_err());
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mute.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let error = Served::connect_within(&path, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(error, Error::NoAnswer { doing: "connect", .. }), "{error:?}");
}

#[test]
fn an_error_reply_ends_the_connection_in_time() {
    // An error reply is shorter than the answer, so the client waits for the rest.
    let server = serve(&SHARED_PAGE, Fault::ErrorAt(0x18));
    let mut function = Served::connect_within(&server.path, Duration::from_millis(500)).unwrap();
    let bar = function.bar(0).unwrap();
    assert_eq!(bar.read32(0x10), 0x10);
    assert_eq!(bar.read32(0x18), u32::MAX);
    assert!(matches!(function.ids(), Err(Error::Gone { .. })));
}
