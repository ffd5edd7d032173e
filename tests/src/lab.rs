//! The laboratory of a test: two namespaces, the wire between them, and the peer's server.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::{
    model::{Model, Report},
    netns::Namespace,
    peer::{PEER_V4, PEER_V6},
    process::Process,
};

/// What kind of wire the guest hangs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// A veth pair that carries what a cable would: frames of one MTU with complete checksums.
    Cable,
    /// The same, but the peer leaves checksums to be filled in by its interface, as Linux does on a
    /// veth pair unless told otherwise.
    PartialChecksums,
    /// A tap interface of the peer, with the backend at its other end.
    Tap,
    /// The same, with the model of a card at its other end, and the backend as the card's driver. The
    /// options are the model's.
    Model(&'static [&'static str]),
    /// A cable, with the model of a card on a packet socket at its other end.
    ModelOnCable,
    /// A tap with the model of a card, but without the backend: the guest has the card as a PCI function of its own.
    ModelAsPci(&'static [&'static str]),
}

/// The namespaces, the peer at work in its own. The backend is started in the other one, or beside
/// the peer when it shares a tap interface with it.
#[derive(Debug)]
pub struct Lab {
    logs: PathBuf,
    sockets: TempDir,
    port: String,
    // Fields are dropped in this order: processes before namespaces.
    peer_process: Process,
    model: Option<Model>,
    dut: Option<Namespace>,
    peer: Namespace,
}

impl Lab {
    /// Sets all up. Logs go to `logs`.
    pub fn new(logs: &Path, wire: Wire) -> Result<Self> {
        fs::create_dir_all(logs).with_context(|| format!("cannot make {}", logs.display()))?;
        let sockets = tempfile::Builder::new()
            .prefix("vug-")
            .tempdir()
            .context("cannot make a directory for sockets")?;
        let peer = Namespace::new("peer")?;
        let dut = match wire {
            Wire::Tap | Wire::Model(_) | Wire::ModelAsPci(_) => {
                peer.ip(&["tuntap", "add", "dev", PEER_IF, "mode", "tap"])?;
                None
            }
            Wire::Cable | Wire::ModelOnCable | Wire::PartialChecksums => Some(veth(&peer, wire)?),
        };
        peer.sysctl(&format!("ipv6/conf/{PEER_IF}/accept_dad"), "0")?;
        peer.ip(&["addr", "add", &format!("{PEER_V4}/24"), "dev", PEER_IF])?;
        peer.ip(&["addr", "add", &format!("{PEER_V6}/64"), "dev", PEER_IF, "nodad"])?;
        peer.ip(&["link", "set", PEER_IF, "up"])?;
        // For the answers of the DHCP server, which go to 255.255.255.255.
        peer.ip(&["route", "add", "default", "dev", PEER_IF])?;

        let mut peer_process = Process::spawn("peer", logs, peer.command(&peer_program()?))?;
        peer_process.wait_for_output("ready", Duration::from_secs(10), |text| {
            text.lines().any(|line| line == "ready").then_some(())
        })?;
        let model = |namespace: &Namespace, wire: &str, way: &str, options: &[&str]| {
            Model::start(logs, namespace, sockets.path(), wire, way, options).map(Some)
        };
        let tap = format!("tap:{PEER_IF}");
        let model = match (wire, &dut) {
            (Wire::Model(options), _) => model(&peer, &tap, "--vfio-user", options)?,
            (Wire::ModelAsPci(options), _) => model(&peer, &tap, "--vhost-user-pci", options)?,
            (Wire::ModelOnCable, Some(dut)) => {
                model(dut, &format!("packet:{DUT_IF}"), "--vfio-user", &[])?
            }
            _ => None,
        };
        let port = match (wire, &model) {
            (_, Some(model)) => format!("sfc:{}", model.socket().display()),
            (Wire::Tap, _) => format!("tap:{PEER_IF}"),
            _ => format!("packet:{DUT_IF}"),
        };
        Ok(Self { logs: logs.to_owned(), sockets, port, peer_process, model, dut, peer })
    }

    /// The directory of logs.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// Where backend and guest meet, in a directory whose name is short enough for a socket.
    pub fn socket(&self) -> PathBuf {
        self.sockets.path().join("vhost.sock")
    }

    /// The namespace the backend belongs in.
    pub fn dut(&self) -> &Namespace {
        self.dut.as_ref().unwrap_or(&self.peer)
    }

    /// The value of `--port` for the backend.
    pub fn port(&self) -> &str {
        &self.port
    }

    /// The model.
    pub fn model(&mut self) -> Result<&mut Model> {
        self.model.as_mut().context("there is no model in this laboratory")
    }

    /// Ends the model, and reads what it counted.
    pub fn model_report(self) -> Result<Report> {
        self.model.context("there is no model in this laboratory")?.stop()
    }

    /// What the peer's server did so far, a line for each thing.
    pub fn peer_report(&self) -> Result<String> {
        self.peer_process.output()
    }
}

/// A namespace for the backend, and the wire between it and the peer.
fn veth(peer: &Namespace, wire: Wire) -> Result<Namespace> {
    let dut = Namespace::new("dut")?;
    let pair = ["type", "veth", "peer", "name", DUT_IF, "netns", dut.name()];
    peer.ip(&[&["link", "add", PEER_IF], &pair[..]].concat())?;

    // No frame is merged or segmented on the wire or behind it.
    let mut offloads = vec!["-K", PEER_IF, "tso", "off", "gso", "off", "gro", "off"];
    if wire != Wire::PartialChecksums {
        offloads.extend_from_slice(&["tx", "off"]);
    }
    peer.run("ethtool", &offloads)?;
    dut.run("ethtool", &["-K", DUT_IF, "gro", "off"])?;

    // The kernel on the backend's side has no say: no address, not even a link-local one.
    dut.sysctl(&format!("ipv6/conf/{DUT_IF}/disable_ipv6"), "1")?;
    dut.ip(&["link", "set", DUT_IF, "up"])?;
    Ok(dut)
}

/// `e2e-peer`, built beside the test program.
fn peer_program() -> Result<PathBuf> {
    let test = std::env::current_exe().context("cannot tell where the test program is")?;
    test.ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("e2e-peer"))
        .find(|path| path.is_file())
        .with_context(|| format!("no e2e-peer near {}: build the package e2e", test.display()))
}

const PEER_IF: &str = "wire0";
const DUT_IF: &str = "wire1";
