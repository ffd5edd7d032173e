//! `e2e-peer`: the far end of the wire. Serves transfers, HTTP and DHCP, and reports each on stdout.
//! Started by the tests inside a network namespace of theirs.

use std::{
    net::{Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket},
    thread,
};

use anyhow::{Context as _, Result};
use e2e::peer::{HTTP_PORT, TRANSFER_PORT, dhcp, http, transfer};

fn main() -> Result<()> {
    let transfers = TcpListener::bind((Ipv6Addr::UNSPECIFIED, TRANSFER_PORT))
        .with_context(|| format!("cannot listen on port {TRANSFER_PORT}"))?;
    let documents = TcpListener::bind((Ipv6Addr::UNSPECIFIED, HTTP_PORT))
        .with_context(|| format!("cannot listen on port {HTTP_PORT}"))?;
    let leases = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, DHCP_PORT))
        .with_context(|| format!("cannot listen on UDP port {DHCP_PORT}"))?;
    leases.set_broadcast(true).context("cannot switch broadcasts on")?;

    report("ready");
    let http = thread::spawn(move || http::serve(&documents, report));
    let dhcp = thread::spawn(move || dhcp::serve(&leases, report));
    transfer::serve(&transfers, report)?;
    for server in [http, dhcp] {
        server.join().expect("servers do not panic")?;
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the report is this program's output")]
fn report(line: &str) {
    println!("{line}");
}

const DHCP_PORT: u16 = 67;
