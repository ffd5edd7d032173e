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

/// Whether a text is a PCI address with its domain, as in `0000:03:00.0`.
pub fn is_address(text: &str) -> bool {
    let hex = |part: &str, len: usize| {
        part.len() == len && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let mut parts = text.split([':', '.']);
    let shape = [4, 2, 2, 1].map(|len| parts.next().is_some_and(|part| hex(part, len)));
    let separators: String = text.chars().filter(|c| matches!(c, ':' | '.')).collect();
    shape.iter().all(|&right| right) && separators == "::."
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_domain() {
        assert!(is_address("0000:03:00.0") && is_address("10fa:ff:1f.7"));
        for wrong in ["", "03:00.0", "0000:03:00", "0000.03.00.0", "0000:3:00.0", "0000:03:00.0:"] {
            assert!(!is_address(wrong), "{wrong}");
        }
    }
}
