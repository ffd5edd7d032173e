//! Base address registers: a function's registers, and windows into them.
//!
//! Life: [`PciFunction::bar`](crate::PciFunction::bar) maps a BAR; the driver cuts [`Bar::window`]s
//! out of it, one per queue, and binds the registers of the hot path with [`Bar::register`]. Offsets
//! are checked as they enter: a window's when it is cut, a bound register's when it is bound.
//!
//! Where the registers are mapped, an access is one volatile load or store. Where they are not (a
//! vfio-user server without shared memory, the rest of a partly mapped BAR, the fake), it is a
//! message; which of the two is one branch. A read that nobody answers gives all ones, as on the bus.
//!
//! Who owns what: every handle owns a share of the mapping, and none is tied to the function's
//! lifetime. What a doorbell needs before it is in [`release_to_device`](crate::release_to_device).

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::memory::{Cell, Memory, as_u64};
use crate::{Error, ReadWrite, Readable, Reg, Value, Width, Writable};

/// Registers reached by messages: what a way in brings for the places that it can't map.
pub(crate) trait RegionIo: Send + Sync {
    /// Reads; all ones when nobody answers.
    fn read(&self, bar: u8, offset: u64, width: Width) -> u64;

    /// Writes; lost when nobody takes it.
    fn write(&self, bar: u8, offset: u64, width: Width, value: u64);
}

/// A whole BAR.
pub(crate) struct Region {
    bar: u8,
    len: u64,
    areas: Vec<Area>,
    io: Arc<dyn RegionIo>,
}

/// A mapped part of a BAR.
pub(crate) struct Area {
    /// Where it begins in the BAR; a multiple of the page size.
    pub(crate) offset: u64,
    pub(crate) memory: Arc<Memory>,
}

impl Area {
    /// Where `len` bytes of the BAR are in the mapped memory, if all of them are.
    fn find(&self, offset: u64, len: u64) -> Option<usize> {
        let start = usize::try_from(offset.checked_sub(self.offset)?).ok()?;
        self.memory.contains(start, usize::try_from(len).ok()?).then_some(start)
    }
}

impl Region {
    pub(crate) fn new(bar: u8, len: u64, areas: Vec<Area>, io: Arc<dyn RegionIo>) -> Self {
        Self { bar, len, areas, io }
    }

    fn mapped(&self, offset: u64, len: u64) -> Option<(&Arc<Memory>, usize)> {
        self.areas.iter().find_map(|area| Some((&area.memory, area.find(offset, len)?)))
    }

    #[cold]
    fn read<V: Value>(&self, offset: u64) -> V {
        match self.mapped(offset, as_u64(size_of::<V>())) {
            Some((memory, start)) => memory.load(start),
            None => V::from_bits(self.io.read(self.bar, offset, V::WIDTH)),
        }
    }

    #[cold]
    fn write<V: Value>(&self, offset: u64, value: V) {
        match self.mapped(offset, as_u64(size_of::<V>())) {
            Some((memory, start)) => memory.store(start, value),
            None => self.io.write(self.bar, offset, V::WIDTH, value.bits()),
        }
    }
}

/// A BAR, or a window cut out of one. Cheap to clone; may be sent to another thread.
#[derive(Clone)]
pub struct Bar {
    region: Arc<Region>,
    offset: u64,
    len: u64,
    /// The memory and where the window begins in it, when the whole window is mapped.
    mapped: Option<(Arc<Memory>, usize)>,
}

impl Bar {
    pub(crate) fn new(region: Region) -> Self {
        let len = region.len;
        Self::cut(Arc::new(region), 0, len)
    }

    fn cut(region: Arc<Region>, offset: u64, len: u64) -> Self {
        let mapped = region.mapped(offset, len).map(|(memory, start)| (Arc::clone(memory), start));
        Self { region, offset, len, mapped }
    }

    /// The length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a BAR has registers")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether every access is a load or store, none a message.
    pub fn is_mapped(&self) -> bool {
        self.mapped.is_some()
    }

    /// `len` bytes from `offset` on, with offsets of their own from 0.
    ///
    /// # Errors
    ///
    /// When they are not all inside, or do not begin at a multiple of 8.
    pub fn window(&self, offset: u64, len: u64) -> Result<Self, Error> {
        let start = self.inside(offset, len)?;
        if !offset.is_multiple_of(8) {
            return Err(Error::Unaligned { bar: self.region.bar, offset });
        }
        Ok(Self::cut(Arc::clone(&self.region), start, len))
    }

    /// A register, checked here and never again: for the hot path.
    ///
    /// # Errors
    ///
    /// When it is not inside.
    pub fn register<V: Value, A>(&self, reg: Reg<V, A>) -> Result<Register<V, A>, Error> {
        let len = as_u64(size_of::<V>());
        let offset = self.inside(reg.offset(), len)?;
        let cell = self.region.mapped(offset, len).and_then(|(memory, start)| memory.cell(start));
        let place = match cell {
            Some(cell) => Place::Mapped(cell),
            None => Place::Message(Arc::clone(&self.region), offset),
        };
        Ok(Register { place, access: PhantomData })
    }

    /// Reads a register.
    ///
    /// # Panics
    ///
    /// When the register is not inside. A driver cuts a window that has all its registers first.
    #[inline]
    pub fn read<V: Value, A: Readable>(&self, reg: Reg<V, A>) -> V {
        self.check::<V>(reg.offset());
        match &self.mapped {
            Some((memory, start)) => memory.load(start + as_usize(reg.offset())),
            None => self.region.read(self.offset + reg.offset()),
        }
    }

    /// Writes a register.
    ///
    /// # Panics
    ///
    /// As [`Self::read`].
    #[inline]
    pub fn write<V: Value, A: Writable>(&self, reg: Reg<V, A>, value: V) {
        self.check::<V>(reg.offset());
        match &self.mapped {
            Some((memory, start)) => memory.store(start + as_usize(reg.offset()), value),
            None => self.region.write(self.offset + reg.offset(), value),
        }
    }

    /// Reads 32 bits at an offset that is no constant.
    ///
    /// # Panics
    ///
    /// When they are not inside, or not aligned.
    pub fn read32(&self, offset: u32) -> u32 {
        self.read(Reg::<u32, ReadWrite>::new(offset))
    }

    /// Reads 64 bits, as [`Self::read32`].
    ///
    /// # Panics
    ///
    /// As [`Self::read32`].
    pub fn read64(&self, offset: u32) -> u64 {
        self.read(Reg::<u64, ReadWrite>::new(offset))
    }

    /// Writes 32 bits at an offset that is no constant.
    ///
    /// # Panics
    ///
    /// As [`Self::read32`].
    pub fn write32(&self, offset: u32, value: u32) {
        self.write(Reg::<u32, ReadWrite>::new(offset), value);
    }

    /// Writes 64 bits, as [`Self::write32`].
    ///
    /// # Panics
    ///
    /// As [`Self::read32`].
    pub fn write64(&self, offset: u32, value: u64) {
        self.write(Reg::<u64, ReadWrite>::new(offset), value);
    }

    #[inline]
    fn check<V>(&self, offset: u64) {
        let inside = offset.checked_add(as_u64(size_of::<V>())).is_some_and(|end| end <= self.len);
        assert!(inside, "a register at {offset:#x} of a window of {:#x} bytes", self.len);
    }

    /// Where bytes of this window are in the BAR.
    fn inside(&self, offset: u64, len: u64) -> Result<u64, Error> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::Outside { bar: self.region.bar, offset, len, size: self.len });
        }
        Ok(self.offset + offset)
    }
}

impl fmt::Debug for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.is_mapped() { "mapped" } else { "not all mapped" };
        let (offset, end) = (self.offset, self.offset + self.len);
        write!(f, "Bar({}, {offset:#x}..{end:#x}, {how})", self.region.bar)
    }
}

/// A register bound to its place: an access checks nothing any more.
#[derive(Clone)]
pub struct Register<V, A> {
    place: Place<V>,
    access: PhantomData<fn() -> A>,
}

#[derive(Clone)]
enum Place<V> {
    Mapped(Cell<V>),
    Message(Arc<Region>, u64),
}

impl<V: Value, A: Readable> Register<V, A> {
    /// Reads it: one load where it is mapped.
    #[inline]
    pub fn read(&self) -> V {
        match &self.place {
            Place::Mapped(cell) => cell.load(),
            Place::Message(region, offset) => region.read(*offset),
        }
    }
}

impl<V: Value, A: Writable> Register<V, A> {
    /// Writes it: one store where it is mapped.
    #[inline]
    pub fn write(&self, value: V) {
        match &self.place {
            Place::Mapped(cell) => cell.store(value),
            Place::Message(region, offset) => region.write(*offset, value),
        }
    }
}

impl<V, A> fmt::Debug for Register<V, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Mapped(_) => f.write_str("Register(mapped)"),
            Place::Message(region, offset) => {
                write!(f, "Register(BAR {} at {offset:#x}, by message)", region.bar)
            }
        }
    }
}

/// A checked offset as an index into memory.
#[inline]
fn as_usize(offset: u64) -> usize {
    usize::try_from(offset).expect("an offset that was checked against memory's length")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use proptest::prelude::*;

    use super::*;
    use crate::memory::PAGE;
    use crate::{ReadOnly, WriteOnly};

    const PAGE_LEN: u64 = 4096;

    /// Registers by message: remembers what was written, reads give the offset.
    #[derive(Default)]
    struct Messages(Mutex<Vec<(u64, u64)>>);

    impl RegionIo for Messages {
        fn read(&self, _bar: u8, offset: u64, _width: Width) -> u64 {
            offset
        }

        fn write(&self, _bar: u8, offset: u64, _width: Width, value: u64) {
            self.0.lock().unwrap().push((offset, value));
        }
    }

    /// Four pages, of which the second is mapped.
    fn partly_mapped() -> (Bar, Arc<Memory>, Arc<Messages>) {
        let memory = Arc::new(Memory::heap(PAGE));
        let messages = Arc::new(Messages::default());
        let area = Area { offset: PAGE_LEN, memory: Arc::clone(&memory) };
        let io = Arc::clone(&messages);
        (Bar::new(Region::new(2, 4 * PAGE_LEN, vec![area], io)), memory, messages)
    }

    #[test]
    fn the_same_register_through_bar_window_and_binding() {
        const REG: Reg<u32, ReadWrite> = Reg::new(0x18);
        let (bar, memory, messages) = partly_mapped();
        let window = bar.window(PAGE_LEN, PAGE_LEN).unwrap();
        assert!(window.is_mapped() && !bar.is_mapped());
        window.write(REG, 1);
        assert_eq!(memory.load::<u32>(0x18), 1);
        bar.write32(0x1018, 2);
        assert_eq!(window.read(REG), 2);
        let register = window.register(REG).unwrap();
        register.write(3);
        assert_eq!((bar.read32(0x1018), register.read()), (3, 3));
        assert!(messages.0.lock().unwrap().is_empty());
    }

    #[test]
    fn what_is_not_mapped_goes_by_message() {
        let (bar, _, messages) = partly_mapped();
        let window = bar.window(2 * PAGE_LEN, 0x100).unwrap();
        assert_eq!(window.read(Reg::<u64, ReadOnly>::new(0x20)), 0x2020);
        window.write(Reg::<u32, WriteOnly>::new(0x24), 5);
        window.register(Reg::<u16, WriteOnly>::new(0x26)).unwrap().write(6);
        assert_eq!(*messages.0.lock().unwrap(), [(0x2024, 5), (0x2026, 6)]);
    }

    #[test]
    fn a_window_over_the_edge_of_the_mapping_uses_both() {
        let (bar, memory, messages) = partly_mapped();
        let window = bar.window(PAGE_LEN, 2 * PAGE_LEN).unwrap();
        window.write32(0xffc, 1);
        window.write32(0x1000, 2);
        assert_eq!(memory.load::<u32>(0xffc), 1);
        assert_eq!(*messages.0.lock().unwrap(), [(0x2000, 2)]);
    }

    #[test]
    #[should_panic(expected = "a register at 0x1000")]
    fn a_register_behind_the_window_is_refused() {
        let (bar, ..) = partly_mapped();
        bar.window(PAGE_LEN, PAGE_LEN).unwrap().read32(0x1000);
    }

    #[test]
    fn errors_name_the_place() {
        let (bar, ..) = partly_mapped();
        assert_eq!(
            bar.window(0x3000, 0x2000).unwrap_err().to_string(),
            "8192 bytes at 0x3000 are not inside the 0x4000 bytes of BAR 2"
        );
        assert!(matches!(bar.window(4, 4), Err(Error::Unaligned { bar: 2, offset: 4 })));
    }

    proptest! {
        #[test]
        fn windows_are_cut_exactly_when_they_are_inside(
            first in (0_u64..5 * PAGE_LEN, 0_u64..5 * PAGE_LEN),
            second in (any::<u64>(), any::<u64>()),
        ) {
            let (bar, ..) = partly_mapped();
            let offset = first.0 / 8 * 8;
            let window = bar.window(offset, first.1);
            prop_assert_eq!(window.is_ok(), offset + first.1 <= bar.len());
            if let Ok(window) = window {
                prop_assert_eq!(window.len(), first.1);
                let (offset, len) = (second.0 / 8 * 8, second.1);
                let inside = u128::from(offset) + u128::from(len) <= u128::from(window.len());
                prop_assert_eq!(window.window(offset, len).is_ok(), inside);
            }
        }

        #[test]
        fn a_register_is_bound_exactly_when_it_is_inside(
            start in 0_u64..2040,
            len in 0_u64..64,
            offset in 0_u32..16,
        ) {
            let (bar, ..) = partly_mapped();
            let window = bar.window(start * 8, len).unwrap();
            let reg = Reg::<u32, ReadWrite>::new(offset * 4);
            let inside = reg.offset() + 4 <= len;
            prop_assert_eq!(window.register(reg).is_ok(), inside);
            if inside {
                window.write(reg, 0x55);
                if window.register(reg).unwrap().read() != 0x55 {
                    // Not in the mapped page, then: the answer is the place in the BAR.
                    let place = u32::try_from(start * 8 + reg.offset()).unwrap();
                    prop_assert_eq!(window.read(reg), place);
                    prop_assert!(!(0x1000..0x2000).contains(&place));
                }
            }
        }
    }
}
