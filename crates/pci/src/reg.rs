//! Registers as constants: offset, value type, access type.
//!
//! A register is written down once, next to the specification's section, and used by every function
//! that has it. What may be done with it is in its type, so that a write to a read-only register
//! does not compile. An offset that is not a multiple of the value's size does not compile either.

use std::fmt;
use std::marker::PhantomData;

/// How many bytes one access moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Width {
    /// 8 bits.
    Byte,
    /// 16 bits.
    Word,
    /// 32 bits.
    Dword,
    /// 64 bits. Configuration space has no such access.
    Qword,
}

impl Width {
    /// The width in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Word => 2,
            Self::Dword => 4,
            Self::Qword => 8,
        }
    }

    /// What a read of this width gives when nobody answers: all ones, as on the bus.
    pub const fn all_ones(self) -> u64 {
        match self {
            Self::Byte => 0xff,
            Self::Word => 0xffff,
            Self::Dword => 0xffff_ffff,
            Self::Qword => u64::MAX,
        }
    }
}

/// A number that registers and DMA memory hold: `u8`, `u16`, `u32` or `u64`, little-endian there and
/// of the host's order here.
pub trait Value:
    Copy + Eq + fmt::Debug + fmt::LowerHex + Send + Sync + 'static + sealed::Value
{
    /// How wide it is.
    const WIDTH: Width;

    /// The value whose low bits these are; higher bits are cut off.
    fn from_bits(bits: u64) -> Self;

    /// The value, widened with zeros.
    fn bits(self) -> u64;

    /// Between the host's order and the device's; the same both ways.
    #[must_use]
    fn swap_if_big_endian(self) -> Self;
}

macro_rules! value {
    ($($kind:ty => $width:ident),*) => {$(
        impl sealed::Value for $kind {}

        impl Value for $kind {
            const WIDTH: Width = Width::$width;

            #[inline]
            fn from_bits(bits: u64) -> Self {
                let bytes = bits.to_le_bytes();
                Self::from_le_bytes(*bytes.first_chunk().expect("no value is wider than 8 bytes"))
            }

            #[inline]
            fn bits(self) -> u64 {
                u64::from(self)
            }

            #[inline]
            fn swap_if_big_endian(self) -> Self {
                self.to_le()
            }
        }
    )*};
}

value!(u8 => Byte, u16 => Word, u32 => Dword, u64 => Qword);

/// A register that the driver only reads.
#[derive(Debug, Clone, Copy)]
pub enum ReadOnly {}

/// A register that the driver only writes; what a read gives is not defined.
#[derive(Debug, Clone, Copy)]
pub enum WriteOnly {}

/// A register that the driver reads and writes.
#[derive(Debug, Clone, Copy)]
pub enum ReadWrite {}

/// Access types that allow a read.
pub trait Readable: sealed::Access {}
impl Readable for ReadOnly {}
impl Readable for ReadWrite {}

/// Access types that allow a write.
pub trait Writable: sealed::Access {}
impl Writable for WriteOnly {}
impl Writable for ReadWrite {}

/// A register: its offset in the BAR or window, the value `V` it holds, the access `A` it allows.
///
/// ```
/// use pci::{ReadOnly, Reg, WriteOnly};
///
/// const STATUS: Reg<u32, ReadOnly> = Reg::new(0x10);
/// const DOORBELL: Reg<u32, WriteOnly> = Reg::new(0x204);
/// # use pci::{PciFunction, fake};
/// # let script = fake::Script::new();
/// # script.read(0x10, 7u32);
/// # let bar = fake::Fake::new(0x1000, script).bar(0)?;
/// assert_eq!(bar.read(STATUS), 7);
/// # Ok::<(), pci::Error>(())
/// ```
///
/// ```compile_fail
/// # const STATUS: pci::Reg<u32, pci::ReadOnly> = pci::Reg::new(0x10);
/// # fn write(bar: &pci::Bar) {
/// bar.write(STATUS, 1); // STATUS is read-only
/// # }
/// ```
///
/// ```compile_fail
/// const ODD: pci::Reg<u32, pci::ReadOnly> = pci::Reg::new(0x12); // not a multiple of 4
/// println!("{ODD:?}");
/// ```
pub struct Reg<V, A> {
    offset: u32,
    kind: PhantomData<fn() -> (V, A)>,
}

impl<V: Value, A> Reg<V, A> {
    /// The register at that many bytes from the start of its BAR or window.
    ///
    /// # Panics
    ///
    /// When the offset is not a multiple of the value's size; in a constant, it does not compile.
    pub const fn new(offset: u32) -> Self {
        assert!((offset as usize).is_multiple_of(size_of::<V>()), "registers are aligned");
        Self { offset, kind: PhantomData }
    }

    /// Bytes from the start of the BAR or window.
    pub const fn offset(self) -> u64 {
        self.offset as u64
    }
}

impl<V, A> Clone for Reg<V, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V, A> Copy for Reg<V, A> {}

impl<V, A> fmt::Debug for Reg<V, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reg({:#x})", self.offset)
    }
}

mod sealed {
    pub trait Value {}
    pub trait Access {}
    impl Access for super::ReadOnly {}
    impl Access for super::WriteOnly {}
    impl Access for super::ReadWrite {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_match_their_types() {
        assert_eq!(<u8 as Value>::WIDTH.bytes(), size_of::<u8>());
        assert_eq!(<u16 as Value>::WIDTH.bytes(), size_of::<u16>());
        assert_eq!(<u32 as Value>::WIDTH.bytes(), size_of::<u32>());
        assert_eq!(<u64 as Value>::WIDTH.bytes(), size_of::<u64>());
    }

    #[test]
    fn bits_above_the_width_are_cut_off() {
        assert_eq!(u16::from_bits(0x1_2345_6789), 0x6789);
        assert_eq!(u32::from_bits(u64::MAX).bits(), Width::Dword.all_ones());
    }
}
