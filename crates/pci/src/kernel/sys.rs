//! The calls for which the helper library has no safe way.

#![expect(unsafe_code, reason = "ioctl, descriptors by number, and memory shown to a device")]

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::ioctl::{NoArg, Opcode, ioctl};
use vfio_ioctls::{VfioDevice, VfioError, VfioOps};

use crate::Iova;
use crate::memory::Memory;

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

/// The device's descriptor once more.
pub(super) fn duplicate(device: &VfioDevice) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open for as long as the device is borrowed.
    let fd = unsafe { BorrowedFd::borrow_raw(device.as_raw_fd()) };
    fd.try_clone_to_owned()
}

/// Shows all of a memory to the device.
pub(super) fn dma_map(ops: &dyn VfioOps, iova: Iova, memory: &Memory) -> Result<(), VfioError> {
    let base = memory.base().as_ptr();
    // SAFETY: the memory is mapped for its whole length. It is accessed by volatile operations only,
    // or, where it is lent to the device packet by packet, not at all while the device has it
    // (`packets`); and it is unmapped from the device before it is unmapped here, or pinned by the
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
