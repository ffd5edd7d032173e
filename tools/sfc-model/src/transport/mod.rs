//! Ways in for drivers.

pub(crate) mod vfio_user;
pub(crate) mod vhost_user_pci;
