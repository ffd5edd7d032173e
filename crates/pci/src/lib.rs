//! A PCI function seen from user space.
