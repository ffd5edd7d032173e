//! `sfc-model`: a card for a driver in another process.

use std::fs::File;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, ValueEnum};
use sfc_model::Card;
use sfc_model::config::{Config, Function, Generation};
use sfc_model::device::{Device, Socket};
use sfc_model::fault::Scheduled;
use sfc_model::wire::Kind;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// A software model of a Solarflare EF10 network function, with a checking eye on its driver
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// Socket where the driver comes, by vfio-user; must not exist yet
    #[arg(long, value_name = "PATH", required_unless_present = "vhost_user_pci")]
    vfio_user: Option<PathBuf>,
    /// Socket where a User Mode Linux machine comes, by PCI over virtio (virtio_uml.device=PATH:ID)
    #[arg(long, value_name = "PATH", conflicts_with = "vfio_user")]
    vhost_user_pci: Option<PathBuf>,
    /// What is plugged into the port: tap:NAME, packet:INTERFACE, pcap:IN[,OUT] or peer:OWN,OTHER
    #[arg(long, value_name = "KIND:ARGUMENTS")]
    wire: Kind,
    /// Generation of the card
    #[arg(long, value_enum, default_value = "medford")]
    generation: GenerationName,
    /// A virtual function, with few privileges
    #[arg(long)]
    vf: bool,
    /// Its permanent MAC address
    #[arg(long, value_parser = mac)]
    mac: Option<[u8; 6]>,
    /// Something to go wrong, KIND[=ARGUMENT][@SECONDS after the driver attached]: mc-reboot,
    /// mcdi-error=COMMAND:ERROR, mcdi-delay=SECONDS, short-reply=COMMAND:LENGTH, bad-checksum=COUNT,
    /// crc-error=COUNT, link-flap=SECONDS, lose-events=COUNT, evq-overflow, bad-prefix=COUNT, remove
    #[arg(long, value_name = "FAULT")]
    fault: Vec<Scheduled>,
    /// File for the report at the end, as JSON
    #[arg(long, value_name = "PATH")]
    report: Option<PathBuf>,
    /// Exit code 3 at the end when the driver broke a rule
    #[arg(long)]
    strict: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum GenerationName {
    Huntington,
    Medford,
    Medford2,
}

impl From<GenerationName> for Generation {
    fn from(name: GenerationName) -> Self {
        match name {
            GenerationName::Huntington => Self::Huntington,
            GenerationName::Medford => Self::Medford,
            GenerationName::Medford2 => Self::Medford2,
        }
    }
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Option<Vec<u8>> =
        text.split(':').map(|part| u8::from_str_radix(part, 16).ok()).collect();
    let mac: Option<[u8; 6]> = bytes.and_then(|bytes| bytes.try_into().ok());
    mac.filter(|mac| mac[0] & 1 == 0)
        .ok_or_else(|| "must be six bytes like 00:0f:53:00:00:01, not multicast".into())
}

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    match run(&Flags::parse()) {
        Ok(code) => code,
        Err(error) => {
            log::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("signal handlers")?;
    let function = if flags.vf { Function::Virtual } else { Function::Physical };
    let mut config = Config::new(flags.generation.into(), function);
    config.mac = flags.mac.unwrap_or(config.mac);
    let wire = flags.wire.open().with_context(|| format!("the wire {:?}", flags.wire))?;
    let socket = match (&flags.vfio_user, &flags.vhost_user_pci) {
        (Some(path), _) => Socket::VfioUser(path.clone()),
        (None, Some(path)) => Socket::VhostUserPci(path.clone()),
        (None, None) => anyhow::bail!("give --vfio-user or --vhost-user-pci"),
    };
    let device = Device::start(Card::new(config), wire, &socket)?;
    for fault in &flags.fault {
        device.inject(fault.clone());
    }
    log::info!("waiting for a driver at {}", socket.path().display());
    signals.forever().next();
    let report = device.report();
    drop(device);
    if let Err(error) = std::fs::remove_file(socket.path()) {
        log::warn!("{}: {error}", socket.path().display());
    }
    log::info!("{report}");
    if let Some(path) = &flags.report {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        serde_json::to_writer_pretty(file, &report).with_context(|| path.display().to_string())?;
    }
    let broken = report["violations"]["total"] != 0;
    Ok(if flags.strict && broken { ExitCode::from(3) } else { ExitCode::SUCCESS })
}
