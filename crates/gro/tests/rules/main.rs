//! The tables of `spec/gro.md`, section 7, row by row, and what they leave out. Each test is named by its
//! row; rows about UDP and tunnels are not here, because they are not merged.

mod checksums;
mod ipv4;
mod ipv6;
mod lab;
mod machinery;
mod tcp;
