//! Configuration space: where what is (PCI Local Bus 3.0, section 6.1), and which accesses there are.

use crate::{Error, Width};

/// Vendor and device identifier.
pub(crate) const IDS: u16 = 0x00;
/// The command register.
pub(crate) const COMMAND: u16 = 0x04;
/// The function answers to its memory BARs.
pub(crate) const COMMAND_MEMORY: u32 = 1 << 1;
/// The function may do DMA.
pub(crate) const COMMAND_BUS_MASTER: u32 = 1 << 2;

/// Whether a text is a PCI address with its domain: `0000:03:00.0`.
pub(crate) fn is_address(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let hex = |part: &str, digits| {
        part.len() == digits && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    matches!(parts[..], [domain, bus, device, function]
        if hex(domain, 4) && hex(bus, 2) && hex(device, 2) && hex(function, 1))
        && text.as_bytes().get(10) == Some(&b'.')
}

/// Refuses what is not an aligned access of up to 4 bytes inside `len` bytes.
pub(crate) fn check(name: &str, offset: u16, width: Width, len: u64) -> Result<(), Error> {
    let bytes = width.bytes();
    let start = usize::from(offset);
    let inside = u64::try_from(start + bytes).is_ok_and(|end| end <= len);
    if width == Width::Qword || !start.is_multiple_of(bytes) || !inside {
        return Err(Error::Config { name: name.to_owned(), offset, bytes });
    }
    Ok(())
}
