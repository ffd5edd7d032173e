//! End-to-end tests: real guests, real TCP, and the backend between them.
//!
//! ```text
//!   namespace "peer"            namespace "dut"                     the machine
//!  ┌──────────────────┐       ┌───────────────────────┐       ┌────────────────────┐
//!  │ e2e-peer (TCP,   │ veth  │ wire1 ── vhost-user-gro│ unix  │ guest: QEMU or UML │
//!  │ HTTP, DHCP) wire0├───────┤ packet:wire1           ├socket─┤ eth0, busybox init │
//!  └──────────────────┘       └───────────────────────┘       └────────────────────┘
//! ```
//!
//! - [`lab`]: the two namespaces, the wire between them, the peer's server, the backend.
//! - [`model`]: a card in software, in the place of `wire1`.
//! - [`guest`]: what a guest is told to do and what it answers; [`qemu`] and [`uml`] start one.
//! - [`peer`]: the far end of the wire, run as the program `e2e-peer` inside its namespace.
//! - [`suite`]: runs the tests one after the other, with reasons for what could not run.
//!
//! Nothing here touches an interface of the machine itself, and only processes started here are ended.

pub mod backend;
pub mod command;
pub mod cpio;
pub mod guest;
pub mod kernel;
pub mod lab;
pub mod model;
pub mod netns;
pub mod payload;
pub mod peer;
pub mod process;
pub mod qemu;
pub mod suite;
pub mod time;
pub mod uml;
