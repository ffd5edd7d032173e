//! Transmitting (`spec/ef10.md` section 7).

pub mod descriptor;
