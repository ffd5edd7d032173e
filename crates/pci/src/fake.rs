//! A function that is not there, for tests: registers as the test has them, DMA memory on the heap.
//!
//! [`Fake`] is the function that a driver is given. Behind its BAR is a [`FakeDevice`]: a [`Script`]
//! that expects exactly the accesses it lists, in order, or the test's own. What the device may do to
//! its host, it does through [`Host`]: read and write memory that has been mapped for it, and raise
//! interrupts. The fake is stricter than hardware: an access that is not expected, and DMA outside
//! the mappings, panic with the place.
//!
//! It does nothing that Miri can't follow, except for interrupts, which are event descriptors.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bar::{Region, RegionIo};
use crate::config;
use crate::dma::{Mapper, Space};
use crate::iova::IovaMap;
use crate::memory::{Memory, as_u64};
use crate::{Bar, DmaRegion, Error, EventFd, Iova, PciFunction, Value, Width};

/// What is behind the registers of a [`Fake`].
pub trait FakeDevice: Send {
    /// The driver reads a register.
    fn read(&mut self, offset: u64, width: Width, host: &Host) -> u64;

    /// The driver writes a register.
    fn write(&mut self, offset: u64, width: Width, value: u64, host: &Host);

    /// The driver resets the function.
    fn reset(&mut self, host: &Host);
}

/// What the device can reach of its host.
#[derive(Clone, Default)]
pub struct Host(Arc<Mutex<HostState>>);

#[derive(Default)]
struct HostState {
    mappings: Vec<(Iova, Arc<Memory>)>,
    interrupts: Vec<EventFd>,
}

impl Host {
    /// Reads memory, as the device does.
    ///
    /// # Panics
    ///
    /// When not all of it is in one mapping.
    pub fn read(&self, iova: Iova, bytes: &mut [u8]) {
        let (memory, offset) = self.find(iova, bytes.len());
        memory.copy_out(offset, bytes);
    }

    /// Writes memory, as the device does.
    ///
    /// # Panics
    ///
    /// When not all of it is in one mapping.
    pub fn write(&self, iova: Iova, bytes: &[u8]) {
        let (memory, offset) = self.find(iova, bytes.len());
        memory.copy_in(offset, bytes);
    }

    /// Raises an interrupt; `false` when the driver has not asked for that vector.
    pub fn interrupt(&self, vector: usize) -> bool {
        let state = self.lock();
        state.interrupts.get(vector).is_some_and(|event| event.write(1).is_ok())
    }

    fn find(&self, iova: Iova, len: usize) -> (Arc<Memory>, usize) {
        let state = self.lock();
        let found = state.mappings.iter().find_map(|(from, memory)| {
            let offset = usize::try_from(iova.get().checked_sub(from.get())?).ok()?;
            memory.contains(offset, len).then(|| (Arc::clone(memory), offset))
        });
        found.unwrap_or_else(|| panic!("no memory of the host: {len} bytes at {iova}"))
    }

    fn lock(&self) -> MutexGuard<'_, HostState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        let interrupts = state.interrupts.len();
        write!(f, "Host({} mappings, {interrupts} interrupts)", state.mappings.len())
    }
}

struct HostMapper(Host);

impl Mapper for HostMapper {
    fn allocate(&self, len: usize) -> io::Result<Memory> {
        Ok(Memory::heap(len))
    }

    fn map(&self, iova: Iova, memory: &Arc<Memory>) -> Result<(), Error> {
        self.0.lock().mappings.push((iova, Arc::clone(memory)));
        Ok(())
    }

    fn unmap(&self, iova: Iova, _len: u64) -> Result<(), Error> {
        self.0.lock().mappings.retain(|(from, _)| *from != iova);
        Ok(())
    }
}

/// A function with one BAR, up to 32 interrupt vectors, and configuration space that is plain memory.
pub struct Fake {
    bar: u8,
    len: u64,
    registers: Arc<Registers>,
    config: [u8; 256],
    space: Arc<Space>,
}

struct Registers {
    device: Mutex<Box<dyn FakeDevice>>,
    host: Host,
}

impl Registers {
    fn device(&self) -> MutexGuard<'_, Box<dyn FakeDevice>> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RegionIo for Registers {
    fn read(&self, _bar: u8, offset: u64, width: Width) -> u64 {
        self.device().read(offset, width, &self.host)
    }

    fn write(&self, _bar: u8, offset: u64, width: Width, value: u64) {
        self.device().write(offset, width, value, &self.host);
    }
}

const INTERRUPTS: usize = 32;

impl Fake {
    /// A function whose BAR 0 has that many bytes of registers, with the device behind them.
    pub fn new(bar_len: u64, device: impl FakeDevice + 'static) -> Self {
        let host = Host::default();
        let mapper = Box::new(HostMapper(host.clone()));
        Self {
            bar: 0,
            len: bar_len,
            registers: Arc::new(Registers { device: Mutex::new(Box::new(device)), host }),
            config: [0; 256],
            space: Space::new("fake", IovaMap::default(), mapper),
        }
    }

    /// Has the registers in another BAR.
    #[must_use]
    pub fn at_bar(self, bar: u8) -> Self {
        Self { bar, ..self }
    }

    /// Has a vendor and a device identifier in configuration space.
    #[must_use]
    pub fn with_ids(mut self, vendor: u16, device: u16) -> Self {
        self.config[..2].copy_from_slice(&vendor.to_le_bytes());
        self.config[2..4].copy_from_slice(&device.to_le_bytes());
        self
    }

    /// The device's way to its host, for what a test does between the driver's steps.
    pub fn host(&self) -> Host {
        self.registers.host.clone()
    }

    /// Where in configuration space an access is.
    fn place(&self, offset: u16, width: Width) -> Result<std::ops::Range<usize>, Error> {
        config::check(self.name(), offset, width, as_u64(self.config.len()))?;
        let start = usize::from(offset);
        Ok(start..start + width.bytes())
    }
}

impl PciFunction for Fake {
    fn name(&self) -> &str {
        "fake"
    }

    fn config_read(&self, offset: u16, width: Width) -> Result<u32, Error> {
        let place = self.place(offset, width)?;
        let mut bytes = [0; 4];
        bytes[..place.len()].copy_from_slice(&self.config[place]);
        Ok(u32::from_le_bytes(bytes))
    }

    fn config_write(&mut self, offset: u16, width: Width, value: u32) -> Result<(), Error> {
        let place = self.place(offset, width)?;
        let bytes = &value.to_le_bytes()[..place.len()];
        self.config[place].copy_from_slice(bytes);
        Ok(())
    }

    fn bar(&mut self, index: u8) -> Result<Bar, Error> {
        if index != self.bar {
            return Err(Error::NoBar { name: self.name().to_owned(), index });
        }
        let io = Arc::clone(&self.registers);
        Ok(Bar::new(Region::new(index, self.len, Vec::new(), io)))
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
        let name = self.name();
        if count > INTERRUPTS {
            let name = name.to_owned();
            return Err(Error::Interrupts { name, wanted: count, offered: INTERRUPTS });
        }
        let events = crate::event_fds(name, count)?;
        let ours = events.iter().map(EventFd::try_clone).collect::<io::Result<_>>();
        self.registers.host.lock().interrupts =
            ours.map_err(crate::kernel_error(name, "make an event descriptor"))?;
        Ok(events)
    }

    fn reset(&mut self) -> Result<(), Error> {
        self.registers.device().reset(&self.registers.host);
        Ok(())
    }
}

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fake({:#x} bytes of registers in BAR {})", self.len, self.bar)
    }
}

type Action = Box<dyn FnOnce(u64, &Host) + Send>;

enum Step {
    Read { offset: u64, width: Width, value: u64 },
    Write { offset: u64, width: Width, value: Option<u64>, action: Option<Action> },
    Reset,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { offset, width, .. } => write!(f, "a {width:?} read at {offset:#x}"),
            Self::Write { offset, width, value: Some(value), .. } => {
                write!(f, "a {width:?} write of {value:#x} at {offset:#x}")
            }
            Self::Write { offset, width, value: None, .. } => {
                write!(f, "a {width:?} write at {offset:#x}")
            }
            Self::Reset => f.write_str("a reset"),
        }
    }
}

/// The accesses that a driver is expected to make, in order.
///
/// The test keeps a clone to add steps as it goes and to say that it is [`done`](Self::done). A
/// script that goes away with steps left panics.
///
/// ```
/// use pci::fake::{Fake, Script};
/// use pci::{Iova, PciFunction};
///
/// let script = Script::new();
/// let mut fake = Fake::new(0x1000, script.clone());
/// let region = fake.dma(64, 64)?;
/// // The driver says where its memory is, and the device answers there.
/// script.on_write(0x204, |address: u32, host| host.write(Iova::new(0x20_0000_0000), &[1]));
/// script.read(0x10, 0xb007_0000_u32);
///
/// let bar = fake.bar(0)?;
/// bar.write32(0x204, 0);
/// assert_eq!(bar.read32(0x10), 0xb007_0000);
/// assert_eq!(region.read::<u8>(0), 1);
/// script.done();
/// # Ok::<(), pci::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Script(Arc<Steps>);

#[derive(Default)]
struct Steps(Mutex<VecDeque<Step>>);

impl Script {
    /// Nothing expected yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Expects a read, and answers it.
    pub fn read<V: Value>(&self, offset: u64, value: V) -> &Self {
        self.push(Step::Read { offset, width: V::WIDTH, value: value.bits() })
    }

    /// Expects a write of that value.
    pub fn write<V: Value>(&self, offset: u64, value: V) -> &Self {
        let value = Some(value.bits());
        self.push(Step::Write { offset, width: V::WIDTH, value, action: None })
    }

    /// Expects a write of any value, and does something with it.
    pub fn on_write<V: Value>(
        &self,
        offset: u64,
        action: impl FnOnce(V, &Host) + Send + 'static,
    ) -> &Self {
        let action: Action = Box::new(|bits, host| action(V::from_bits(bits), host));
        self.push(Step::Write { offset, width: V::WIDTH, value: None, action: Some(action) })
    }

    /// Expects a reset.
    pub fn reset(&self) -> &Self {
        self.push(Step::Reset)
    }

    /// Says that everything expected has happened.
    ///
    /// # Panics
    ///
    /// When it has not.
    pub fn done(&self) {
        self.0.check();
    }

    fn push(&self, step: Step) -> &Self {
        self.0.lock().push_back(step);
        self
    }

    fn next(&self, what: impl fmt::Display) -> Step {
        let step = self.0.lock().pop_front();
        step.unwrap_or_else(|| panic!("{what} came, and nothing was expected"))
    }
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Script({} steps left)", self.0.lock().len())
    }
}

impl Steps {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Step>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Panics when steps are left.
    fn check(&self) {
        let left = self.lock();
        if let Some(step) = left.front() {
            panic!("{} steps were expected and did not come, first {step}", left.len());
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        // A test that panics already has told enough.
        if !std::thread::panicking() {
            self.check();
        }
    }
}

impl FakeDevice for Script {
    fn read(&mut self, offset: u64, width: Width, _host: &Host) -> u64 {
        let came = format!("a {width:?} read at {offset:#x}");
        match self.next(&came) {
            Step::Read { offset: at, width: wide, value } if (at, wide) == (offset, width) => value,
            expected => panic!("{came} came, expected was {expected}"),
        }
    }

    fn write(&mut self, offset: u64, width: Width, value: u64, host: &Host) {
        let came = format!("a {width:?} write of {value:#x} at {offset:#x}");
        match self.next(&came) {
            Step::Write { offset: at, width: wide, value: wanted, action }
                if (at, wide) == (offset, width) && wanted.is_none_or(|wanted| wanted == value) =>
            {
                if let Some(action) = action {
                    action(value, host);
                }
            }
            expected => panic!("{came} came, expected was {expected}"),
        }
    }

    fn reset(&mut self, _host: &Host) {
        match self.next("a reset") {
            Step::Reset => {}
            expected => panic!("a reset came, expected was {expected}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reg, WriteOnly};

    const DOORBELL: Reg<u32, WriteOnly> = Reg::new(0x830);

    #[test]
    fn a_script_is_followed_in_order() {
        let script = Script::new();
        script.write(0x830, 8_u32).reset().read(0x10, 5_u64);
        let mut fake = Fake::new(0x2000, script.clone()).at_bar(2);
        let bar = fake.bar(2).unwrap();
        bar.register(DOORBELL).unwrap().write(8);
        fake.reset().unwrap();
        assert_eq!(bar.window(8, 16).unwrap().read64(8), 5);
        script.done();
    }

    #[test]
    #[should_panic(
        expected = "a Dword write of 0x10 at 0x830 came, expected was a Dword write of 0x8 at 0x830"
    )]
    fn another_value_is_refused() {
        let script = Script::new();
        script.write(0x830, 8_u32);
        Fake::new(0x2000, script).bar(0).unwrap().write(DOORBELL, 16);
    }

    #[test]
    #[should_panic(expected = "nothing was expected")]
    fn one_access_too_many_is_refused() {
        Fake::new(0x2000, Script::new()).bar(0).unwrap().write(DOORBELL, 16);
    }

    #[test]
    #[should_panic(expected = "1 steps were expected and did not come, first a Byte read at 0x3")]
    fn what_did_not_come_is_told() {
        let script = Script::new();
        script.read(3, 0_u8);
        drop(Fake::new(0x2000, script));
    }

    #[test]
    fn configuration_space_and_identity() {
        let mut fake = Fake::new(0x2000, Script::new()).with_ids(0x1924, 0x0a03);
        assert_eq!(fake.ids().unwrap(), (0x1924, 0x0a03));
        fake.enable().unwrap();
        assert_eq!(fake.config_read(4, Width::Word).unwrap(), 6);
        fake.config_write(0xff, Width::Byte, 0x1ab).unwrap();
        assert_eq!(fake.config_read(0xff, Width::Byte).unwrap(), 0xab);
        for (offset, width) in [(0x100, Width::Byte), (2, Width::Dword), (0, Width::Qword)] {
            assert!(matches!(fake.config_read(offset, width), Err(Error::Config { .. })));
        }
        assert!(matches!(fake.bar(1), Err(Error::NoBar { index: 1, .. })));
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs event descriptors")]
    fn interrupts_arrive() {
        let mut fake = Fake::new(0x2000, Script::new());
        let host = fake.host();
        let events = fake.interrupts(2).unwrap();
        assert!(host.interrupt(1) && !host.interrupt(2));
        assert_eq!(events[1].read().unwrap(), 1);
        assert_eq!(events[0].read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(matches!(fake.interrupts(33), Err(Error::Interrupts { offered: 32, .. })));
    }
}
