//! The table of interrupt vectors (PCI 3.0, 6.8.2), for a machine that leaves masking to the device.

use crate::pci_config::MSIX_PBA;

const ENTRY: usize = 16;
const CONTROL: usize = 12;

/// Vectors: where each is written to, and which ones wait.
#[derive(Debug)]
pub(super) struct Table {
    bytes: Vec<u8>,
    pending: Vec<bool>,
    enabled: bool,
    masked: bool,
    last: usize,
}

impl Table {
    /// All masked, as after a reset.
    pub(super) fn new(vectors: usize) -> Self {
        let mut bytes = vec![0; vectors * ENTRY];
        for entry in bytes.chunks_mut(ENTRY) {
            entry[CONTROL] = 1;
        }
        Self { bytes, pending: vec![false; vectors], enabled: false, masked: false, last: 0 }
    }

    /// The capability's switches.
    pub(super) fn set(&mut self, enabled: bool, masked: bool) {
        (self.enabled, self.masked) = (enabled, masked);
    }

    pub(super) fn raise(&mut self, vector: usize) {
        if let Some(pending) = self.pending.get_mut(vector)
            && self.enabled
        {
            *pending = true;
        }
    }

    /// Address and data of a vector that waits and may go.
    pub(super) fn next(&mut self) -> Option<(u64, u32)> {
        if !self.enabled || self.masked {
            return None;
        }
        let may = |vector: &usize| {
            self.pending[*vector] && self.bytes[*vector * ENTRY + CONTROL] & 1 == 0
        };
        let vector = (0..self.pending.len()).find(may)?;
        self.last = vector;
        let entry = &self.bytes[vector * ENTRY..];
        let address = u64::from_le_bytes(entry[..8].try_into().expect("8 bytes"));
        let data = u32::from_le_bytes(entry[8..12].try_into().expect("4 bytes"));
        Some((address, data))
    }

    /// The one that was last told of is gone.
    pub(super) fn sent(&mut self) {
        self.pending[self.last] = false;
    }

    pub(super) fn read(&self, at: u64, answer: &mut [u8]) {
        for (byte, index) in answer.iter_mut().zip(0..) {
            *byte = at.checked_add(index).map_or(0, |at| self.byte(at));
        }
    }

    fn byte(&self, at: u64) -> u8 {
        let Ok(at) = usize::try_from(at) else { return 0 };
        if let Some(byte) = self.bytes.get(at) {
            return *byte;
        }
        // The pending bits.
        let Some(byte) = at.checked_sub(MSIX_PBA as usize) else { return 0 };
        let bit = |bit: usize| self.pending.get(byte * 8 + bit).is_some_and(|pending| *pending);
        (0..8).map(|at| u8::from(bit(at)) << at).sum()
    }

    pub(super) fn write(&mut self, at: u64, data: &[u8]) {
        let Ok(at) = usize::try_from(at) else { return };
        for (byte, value) in self.bytes.iter_mut().skip(at).zip(data) {
            *byte = *value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masked_vectors_wait() {
        let mut table = Table::new(2);
        table.raise(1);
        assert_eq!(table.next(), None, "switched off: lost");
        table.set(true, false);
        table.write(16, &0x1000u64.to_le_bytes());
        table.write(24, &7u32.to_le_bytes());
        table.raise(1);
        assert_eq!(table.next(), None, "masked");
        let mut pending = [0];
        table.read(MSIX_PBA.into(), &mut pending);
        assert_eq!(pending, [2]);
        table.write(28, &[0]);
        table.set(true, true);
        assert_eq!(table.next(), None, "the whole function is masked");
        table.set(true, false);
        assert_eq!(table.next(), Some((0x1000, 7)));
        table.sent();
        assert_eq!(table.next(), None);
    }
}
