//! Bits and bytes of registers, descriptors, events and messages: little-endian, lowest bit 0.

/// `width` bits of a value, from bit `low` on.
pub(crate) const fn bits(value: u64, low: u32, width: u32) -> u64 {
    (value >> low) & ((1 << width) - 1)
}

/// Whether a bit is set.
pub(crate) const fn bit(value: u64, at: u32) -> bool {
    value >> at & 1 == 1
}

/// The lower half.
pub(crate) fn low32(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).expect("32 bits were kept")
}

/// The lowest 16 bits.
pub(crate) fn low16(value: u64) -> u16 {
    u16::try_from(value & 0xffff).expect("16 bits were kept")
}

/// The lowest 8 bits.
pub(crate) fn low8(value: u64) -> u8 {
    u8::try_from(value & 0xff).expect("8 bits were kept")
}

/// A number as an index or a length of memory.
pub(crate) fn size(value: impl Into<u64>) -> usize {
    usize::try_from(value.into()).expect("machines of 64 bits")
}

/// A length as a number.
pub(crate) fn number(value: usize) -> u64 {
    u64::try_from(value).expect("machines of 64 bits")
}

/// A big-endian 16-bit number at an offset; `None` beyond the end.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes(bytes.try_into().expect("2 bytes were taken")))
}

/// A big-endian 32-bit number at an offset; `None` beyond the end.
pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().expect("4 bytes were taken")))
}

/// A little-endian 32-bit number at an offset; bytes beyond the end count as zero, as the controller
/// extends short requests (section 3.2).
pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    for (to, from) in word.iter_mut().zip(bytes.iter().skip(at)) {
        *to = *from;
    }
    u32::from_le_bytes(word)
}

/// A little-endian 64-bit number at an offset; bytes beyond the end count as zero.
pub(crate) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}
