//! Ways in for drivers.

pub(crate) mod vfio_user;
