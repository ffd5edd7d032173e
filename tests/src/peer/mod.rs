//! The far end of the wire: what runs as `e2e-peer` in the namespace "peer", on the host's own stack.

pub mod dhcp;
pub mod http;
pub mod transfer;

use std::net::{Ipv4Addr, Ipv6Addr};

/// The peer's IPv4 address.
pub const PEER_V4: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// The guest's IPv4 address.
pub const GUEST_V4: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
/// The peer's IPv6 address.
pub const PEER_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1);
/// The guest's IPv6 address.
pub const GUEST_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2);
/// Where [`transfer`] listens.
pub const TRANSFER_PORT: u16 = 7000;
/// Where [`http`] listens.
pub const HTTP_PORT: u16 = 8080;
