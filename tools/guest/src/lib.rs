//! A vhost-user front end with a guest driver behind it: the other side of the back end, where no
//! virtual machine is needed.
//!
//! A [`Guest`] connects as a virtual machine monitor would ([`MessageOrder`] says which), makes memory
//! and split rings, and drives them as a network driver would: receive buffers posted, packets
//! gathered and handed out, packets sent. What the device does is held to the specification, and
//! every rule broken is counted ([`Violation`]).
//!
//! The life of a guest: [`Guest::connect`]; [`Guest::poll_rx`] and [`Guest::send`] for as long as it
//! likes, with [`Guest::wait`] in between where it sleeps; [`Guest::reload`] as when a driver is loaded
//! anew; [`Guest::disconnect`] and [`Guest::reconnect`] as when the back end is started anew.
//!
//! Nothing here is shared with the device's side of either protocol.
//!
//! ```no_run
//! use guest::{Config, Connect, Guest};
//!
//! let mut guest = Guest::connect(Config::new(Connect::Path("/tmp/net.sock".into())))?;
//! loop {
//!     guest.poll_rx(|packet| println!("{:?}, {} bytes", packet.header, packet.bytes.len()));
//! }
//! # Ok::<(), guest::Error>(())
//! ```

#![forbid(unsafe_code)]

pub mod features;
pub mod header;
pub mod raw;

mod call;
mod config;
mod connection;
mod control;
mod driver;
mod error;
mod memory;
mod pairs;
mod ring;
mod rules;
mod rx;
mod stats;
mod tx;
mod violation;

pub use config::{Call, Config, Connect, MessageOrder, Poll};
pub use control::NetConfig;
pub use driver::{Guest, Stopped};
pub use error::{Error, Result};
pub use header::NetHeader;
pub use rx::Received;
pub use stats::{RxStats, Stats, TxStats};
pub use violation::{Violation, Violations};
