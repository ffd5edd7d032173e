//! The calls for which the helper library has no safe way.

#![expect(unsafe_code, reason = "ioctl, descriptors by number, and memory shown to a device")]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::ioctl::{Ioctl, IoctlOutput, NoArg, Opcode, ioctl};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE,
};
use vfio_ioctls::{VfioDevice, VfioError, VfioOps};

use crate::memory::Memory;
use crate::{EventFd, Iova};

/// `VFIO_DEVICE_RESET` of `linux/vfio.h`: `_IO(';', 100 + 11)`.
const DEVICE_RESET: Opcode = rustix::ioctl::opcode::none(b';', 111);

/// Resets the device, and tells whether that worked.
pub(super) fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: this request takes no argument and touches no memory of ours.
    let request = unsafe { NoArg::<DEVICE_RESET>::new() };
    // SAFETY: the request is of the kind that the descriptor, a VFIO device, knows.
    unsafe { ioctl(device, request) }?;
    Ok(())
}

/// `VFIO_DEVICE_SET_IRQS` of `linux/vfio.h`, with its argument: a `struct vfio_irq_set`, whose fields are
/// all words, and a descriptor per vector.
struct SetInterrupts(Vec<u32>);

// SAFETY: the kernel reads as many words as the first one of the argument says, which is how many there
// are, and writes none.
unsafe impl Ioctl for SetInterrupts {
    type Output = usize;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        rustix::ioctl::opcode::none(b';', 110)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(
        answer: IoctlOutput,
        _: *mut c_void,
    ) -> rustix::io::Result<Self::Output> {
        Ok(usize::try_from(answer).unwrap_or(0))
    }
}

/// Leads the first vectors of a kind to these descriptors, or, without any, switches the kind off. Tells
/// how many could be had: when they are fewer, none is set up.
pub(super) fn set_interrupts(
    device: BorrowedFd<'_>,
    kind: u32,
    events: &[EventFd],
) -> io::Result<usize> {
    let word = |number: usize| u32::try_from(number).map_err(io::Error::other);
    let data = if events.is_empty() { VFIO_IRQ_SET_DATA_NONE } else { VFIO_IRQ_SET_DATA_EVENTFD };
    let bytes = word((5 + events.len()) * size_of::<u32>())?;
    let mut words = vec![bytes, data | VFIO_IRQ_SET_ACTION_TRIGGER, kind, 0, word(events.len())?];
    words.extend(events.iter().map(|event| event.as_raw_fd().cast_unsigned()));
    // SAFETY: the request is of the kind that the descriptor, a VFIO device, knows; see its argument.
    let left = unsafe { ioctl(device, SetInterrupts(words)) }?;
    // A number above zero is what is left when they are too many.
    Ok(if left == 0 { events.len() } else { left })
}

/// The device's descriptor once more.
pub(super) fn duplicate(device: &VfioDevice) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open for as long as the device is borrowed.
    let fd = unsafe { BorrowedFd::borrow_raw(device.as_raw_fd()) };
    fd.try_clone_to_owned()
}

/// Shows all of a memory to the device.
pub(super) fn dma_map(ops: &dyn VfioOps, iova: Iova, memory: &Memory) -> Result<(), VfioError> {
    let base = memory.base().as_ptr();
    // SAFETY: the memory is mapped for its whole length. It is accessed by volatile operations only; or,
    // where references to it exist, packet by packet, and not to what the device has at that time
    // (`packets`: the one place where the library's rule of no reference at all is not kept to the
    // letter); and it is unmapped from the device before it is unmapped here, or pinned by the
    // kernel until the device is closed.
    unsafe { ops.vfio_dma_map(iova.get(), memory.len(), base) }
}

/// Closes the duplicate, then the device; a device that has left sysfs stays open, for the library
/// would panic looking for its group.
pub(super) fn close(
    file: &mut ManuallyDrop<File>,
    vfio: &mut ManuallyDrop<VfioDevice>,
    present: bool,
) {
    // SAFETY: called once, from the owner's drop; the file is not used afterwards.
    unsafe { ManuallyDrop::drop(file) };
    if present {
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(vfio) };
    }
}
