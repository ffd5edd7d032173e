//! The function's configuration space: header, MSI-X and PCI Express capabilities.
//!
//! The table of vectors lies in BAR 4, beside the windows (where a real card has it is unverified;
//! 1.2). Function level reset is asked for through the PCI Express device control register.

use crate::config::Config;

/// The BAR of the MSI-X table.
pub(crate) const MSIX_BAR: u32 = 4;
/// Where the pending bits are in it.
pub(crate) const MSIX_PBA: u32 = 0x800;
/// Its length.
pub(crate) const MSIX_BAR_LEN: u64 = 0x1000;
/// Length of the configuration space.
pub(crate) const LEN: usize = 4096;

const MSIX: usize = 0x40;
const EXPRESS: usize = 0x60;
const DEVICE_CONTROL: usize = EXPRESS + 8;
const FLR: u8 = 0x80;

/// What a write asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Nothing,
    Reset,
}

/// The configuration space.
#[derive(Debug)]
pub(crate) struct PciConfig {
    bytes: Vec<u8>,
    writable: Vec<u8>,
}

impl PciConfig {
    pub(crate) fn new(config: &Config) -> Self {
        let mut space = Self { bytes: vec![0; LEN], writable: vec![0; LEN] };
        space.put(0x00, &0x1924u16.to_le_bytes());
        space.put(0x02, &config.device_id().to_le_bytes());
        space.put(0x06, &0x0010u16.to_le_bytes());
        space.put(0x09, &[0x00, 0x00, 0x02]);
        // The command register: memory, bus mastering, no INTx.
        space.allow(0x04, &[0x06, 0x04]);
        space.bar(config.bar(), config.bar_len());
        space.bar(MSIX_BAR, MSIX_BAR_LEN);
        space.put(0x2c, &0x1924u16.to_le_bytes());
        space.put(0x2e, &0x8000u16.to_le_bytes());
        space.put(0x34, &[0x40]);
        // MSI-X (PCI 3.0, 6.8.2).
        let count = u16::try_from(config.vectors() - 1).expect("at most 2048 vectors");
        space.put(MSIX, &[0x11, 0x60]);
        space.put(MSIX + 2, &count.to_le_bytes());
        space.put(MSIX + 4, &MSIX_BAR.to_le_bytes());
        space.put(MSIX + 8, &(MSIX_PBA | MSIX_BAR).to_le_bytes());
        space.allow(MSIX + 3, &[0xc0]);
        // PCI Express (3.0, 7.8): version 2, an endpoint that can be reset alone.
        space.put(EXPRESS, &[0x10, 0x00, 0x02, 0x00]);
        space.put(EXPRESS + 4, &(1u32 << 28 | 1 << 15).to_le_bytes());
        space.allow(DEVICE_CONTROL, &[0xff, 0x7f]);
        space
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, bits: &[u8]) {
        self.writable[at..at + bits.len()].copy_from_slice(bits);
    }

    /// A 64-bit memory BAR, not prefetchable; the bits below its length stay zero.
    fn bar(&mut self, index: u32, len: u64) {
        let at = 0x10 + 4 * index as usize;
        self.put(at, &[0x04]);
        self.allow(at, &(!(len - 1)).to_le_bytes());
    }

    /// Reads; zeros beyond the end.
    pub(crate) fn read(&self, at: u64, bytes: &mut [u8]) {
        for (index, byte) in bytes.iter_mut().enumerate() {
            let at = usize::try_from(at).ok().and_then(|at| at.checked_add(index));
            *byte = at.and_then(|at| self.bytes.get(at)).copied().unwrap_or(0);
        }
    }

    /// Writes what is writable.
    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> Asked {
        let mut asked = Asked::Nothing;
        for (index, &byte) in bytes.iter().enumerate() {
            let Some(at) = usize::try_from(at).ok().and_then(|at| at.checked_add(index)) else {
                break;
            };
            let (Some(old), Some(&mask)) = (self.bytes.get_mut(at), self.writable.get(at)) else {
                break;
            };
            if at == DEVICE_CONTROL + 1 && byte & FLR != 0 {
                asked = Asked::Reset;
            }
            *old = *old & !mask | byte & mask;
        }
        asked
    }

    /// Whether MSI-X is switched on, and masked as a whole.
    pub(crate) fn msix(&self) -> (bool, bool) {
        (self.bytes[MSIX + 3] & 0x80 != 0, self.bytes[MSIX + 3] & 0x40 != 0)
    }

    /// Whether the function may access memory.
    pub(crate) fn bus_master(&self) -> bool {
        self.bytes[4] & 4 != 0
    }

    /// Whether the BARs answer.
    pub(crate) fn memory_space(&self) -> bool {
        self.bytes[4] & 2 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Function, Generation};

    fn dword(space: &PciConfig, at: u64) -> u32 {
        let mut bytes = [0; 4];
        space.read(at, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn bars_tell_their_length() {
        let config = Config::new(Generation::Medford, Function::Physical);
        let mut space = PciConfig::new(&config);
        space.write(0x18, &[0xff; 8]);
        let low = u64::from(dword(&space, 0x18)) & !0xf;
        let mask = u64::from(dword(&space, 0x1c)) << 32 | low;
        assert_eq!(!mask + 1, config.bar_len());
        assert_eq!(dword(&space, 0x18) & 0xf, 4, "64 bits");
        space.write(0x10, &[0xff; 8]);
        assert_eq!(dword(&space, 0x10), 0, "no BAR 0 on this one");
    }

    #[test]
    fn the_command_register_is_kept() {
        let mut space = PciConfig::new(&Config::new(Generation::Medford2, Function::Virtual));
        assert!(!space.bus_master() && !space.memory_space());
        assert_eq!(dword(&space, 0), 0x1b03_1924);
        space.write(4, &[0xff, 0xff]);
        assert!(space.bus_master() && space.memory_space());
        assert_eq!(dword(&space, 4) & 0xffff, 0x0406);
    }

    #[test]
    fn flr_is_one_bit() {
        let mut space = PciConfig::new(&Config::new(Generation::Medford, Function::Physical));
        assert_eq!(space.write(0x68, &0x2810u16.to_le_bytes()), Asked::Nothing);
        assert_eq!(space.write(0x68, &0xa810u16.to_le_bytes()), Asked::Reset);
        assert_eq!(dword(&space, 0x68) & 0xffff, 0x2810, "the bit reads as zero");
    }
}
