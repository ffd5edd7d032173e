//! An event queue: the ring that the card writes events into (`spec/ef10.md` 5.1, 5.7).
//!
//! ```text
//!        read                      the card writes on, and over what it wrote a round ago:
//!          │ events not yet read   queues are made large enough for all that can be outstanding
//!  ──EEEEEE┴eeeeeeeeeeEEEEEE──
//!     empty             empty      an entry that was read is made empty again: there is no phase bit
//! ```
//!
//! Whoever polls the queue owns it. Nothing tells the card how far it is read except [`EventQueue::arm`],
//! which also asks for the next interrupt: a queue that is only polled never writes a register.

use pci::{Bar, DmaRing, Register, WriteOnly, acquire_from_device, release_to_device};

use crate::error::Error;
use crate::event::{EMPTY, is_present};
use crate::registers::{EVQ_INDIRECT, EVQ_RPTR, indirect_read_pointer};

/// An event queue.
#[derive(Debug)]
pub struct EventQueue {
    ring: DmaRing<u64>,
    read: u32,
    pointer: ReadPointer,
}

/// Where the read pointer is written.
#[derive(Debug)]
enum ReadPointer {
    Direct(Register<u32, WriteOnly>),
    /// Bug 35388.
    Indirect(Register<u32, WriteOnly>),
}

impl EventQueue {
    /// A queue over an empty ring; `window` is that of the queue's virtual interface. `indirect` is
    /// workaround 35388.
    ///
    /// # Errors
    ///
    /// When the window is too small.
    pub fn new(mut ring: DmaRing<u64>, window: &Bar, indirect: bool) -> Result<Self, Error> {
        ring.fill(EMPTY);
        let pointer = if indirect {
            ReadPointer::Indirect(window.register(EVQ_INDIRECT)?)
        } else {
            ReadPointer::Direct(window.register(EVQ_RPTR)?)
        };
        Ok(Self { ring, read: 0, pointer })
    }

    /// The oldest event that has not been read, if there is one. What the card wrote before it can be
    /// read afterwards.
    #[inline]
    pub fn take(&mut self) -> Option<u64> {
        let raw = self.ring.read(self.read);
        if !is_present(raw) {
            return None;
        }
        acquire_from_device();
        self.ring.write(self.read, EMPTY);
        self.read = self.read.wrapping_add(1);
        Some(raw)
    }

    /// Whether an event can be read.
    #[inline]
    pub fn is_pending(&self) -> bool {
        is_present(self.ring.read(self.read))
    }

    /// Asks for an interrupt at the next event; one comes at once when there is an event already.
    pub fn arm(&self) {
        // The emptied entries before the pointer.
        release_to_device();
        let pointer = self.read & self.ring.mask();
        match &self.pointer {
            ReadPointer::Direct(register) => register.write(pointer),
            ReadPointer::Indirect(register) => {
                for half in indirect_read_pointer(pointer) {
                    register.write(half);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pci::PciFunction;
    use pci::fake::{Fake, Script};

    use super::*;

    fn queue(script: &Script, indirect: bool) -> (EventQueue, Fake, pci::Iova) {
        let mut fake = Fake::new(0x2000, script.clone());
        let bar = fake.bar(0).unwrap();
        let region = fake.dma(512 * 8, 4096).unwrap();
        let iova = region.iova();
        (EventQueue::new(DmaRing::new(region, 512), &bar, indirect).unwrap(), fake, iova)
    }

    #[test]
    fn events_in_order_around_the_end() {
        let script = Script::new();
        let (mut queue, fake, iova) = queue(&script, false);
        let host = fake.host();
        for event in 0..1500u64 {
            assert!(!queue.is_pending() && queue.take().is_none());
            host.write(iova.add(event % 512 * 8), &(event | 1 << 40).to_le_bytes());
            assert!(queue.is_pending());
            assert_eq!(queue.take(), Some(event | 1 << 40));
        }
        script.write(0x400, 1500u32 % 512);
        queue.arm();
        script.done();
    }

    #[test]
    fn half_an_event_is_none() {
        let (mut queue, fake, iova) = queue(&Script::new(), false);
        fake.host().write(iova, &7u32.to_le_bytes());
        assert_eq!(queue.take(), None);
        fake.host().write(iova.add(4), &0u32.to_le_bytes());
        assert_eq!(queue.take(), Some(7));
    }

    #[test]
    fn the_pointer_in_two_halves() {
        let script = Script::new();
        let (mut queue, fake, iova) = queue(&script, true);
        for at in 0..0x123u64 {
            fake.host().write(iova.add(at * 8), &0u64.to_le_bytes());
            queue.take().unwrap();
        }
        script.write(0xa18, 0x801u32).write(0xa18, 0x923u32);
        queue.arm();
        script.done();
    }
}
