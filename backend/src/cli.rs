//! The command line.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::Styles;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

/// A vhost-user network backend that does Generic Receive Offload.
#[derive(Debug, Parser)]
#[command(
    version,
    about,
    styles = Styles::plain(),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Logging: RUST_LOG=debug, or RUST_LOG=vhost_user_gro::daemon=debug for one part.\n\
                  Exit codes: 0 ended by a signal or by the front end of --fd, 1 failed while running, 2 wrong usage or set-up."
)]
pub struct Cli {
    /// What to do instead of serving a VM.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Serving a VM.
    #[command(flatten)]
    pub serve: Serve,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show merged packets without privileges, a NIC or a VM: traffic made here, GRO, a vhost-user
    /// socket, and a guest made here.
    Demo(Demo),
    /// Look at a card without serving a VM: what it is, what it counts, whether it works.
    #[command(subcommand)]
    Nic(Nic),
}

/// What to do with a card.
#[derive(Debug, Subcommand)]
pub enum Nic {
    /// What the function is, what its firmware can do, the link.
    Info(NicArgs),
    /// The counters of its network port.
    Stats(NicArgs),
    /// Commands, events, interrupts, counters and queues, tried without a network. Exit code 1 when
    /// something does not work.
    Selftest(NicArgs),
}

/// Which card.
#[derive(Debug, Args)]
pub struct NicArgs {
    /// The function: it must not be in use.
    #[arg(long, value_name = "sfc:FUNCTION")]
    pub port: String,
    /// For programs.
    #[arg(long)]
    pub json: bool,
}

/// Options of the demo.
#[derive(Debug, Args)]
pub struct Demo {
    /// How long the traffic flows, in seconds.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// TCP flows.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub flows: u32,
    /// Consecutive segments of one flow before the next one's turn.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub run: u32,
    /// IPv6 instead of IPv4.
    #[arg(long)]
    pub ipv6: bool,
    /// Have a card receive the traffic, and drive it: a model of a Solarflare card in software, which
    /// also says whether its driver broke a rule.
    #[arg(long, value_name = "model")]
    pub nic: Option<DemoNic>,
    /// GRO.
    #[command(flatten)]
    pub gro: Gro,
    /// What the guest is offered.
    #[command(flatten)]
    pub features: FeatureArgs,
}

/// Options for serving a VM.
#[derive(Debug, Args)]
#[command(next_help_heading = "Front end")]
pub struct Serve {
    /// The vhost-user socket: made and listened on, or with --client connected to.
    #[arg(short, long, value_name = "PATH", required_unless_present_any = ["fd", "print_capabilities"])]
    pub socket_path: Option<PathBuf>,
    /// A vhost-user socket that was opened before this program started: listening, or connected.
    #[arg(long, value_name = "N", conflicts_with_all = ["socket_path", "client"], value_parser = clap::value_parser!(i32).range(3..))]
    pub fd: Option<i32>,
    /// Connect to the socket, again and again, instead of listening on it.
    #[arg(long)]
    pub client: bool,
    /// The first pause between two attempts to connect; it doubles up to two seconds.
    #[arg(long, value_name = "MS", default_value_t = 50, requires = "client", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub reconnect_ms: u64,
    /// Print what this program is as JSON, and exit.
    #[arg(long)]
    pub print_capabilities: bool,
    /// Where frames come from and go to.
    #[command(flatten)]
    pub port: PortArgs,
    /// What the guest is offered.
    #[command(flatten)]
    pub features: FeatureArgs,
    /// GRO.
    #[command(flatten)]
    pub gro: Gro,
    /// How the worker waits.
    #[command(flatten)]
    pub polling: Polling,
}

/// Where frames come from and go to.
#[derive(Debug, Args)]
#[command(next_help_heading = "Port")]
pub struct PortArgs {
    /// Which port: packet, tap, pcap, sfc or memory.
    #[arg(
        help = "packet:IFNAME, tap:NAME, pcap:FILE[,loop][,pps=N], sfc:FUNCTION[,rx=N][,tx=N][,mtu=BYTES][,promiscuous=on|off][,moderation=US], or memory[:flows=N][,run=N][,payload=N]",
        long, value_name = "SPEC", required_unless_present_any = ["print_capabilities"])]
    pub port: Option<String>,
    /// Packet buffers of 2 KiB: what may be under way between the port and the guest.
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(256..=4_194_304))]
    pub buffers: u32,
}

/// What the guest is offered.
#[derive(Debug, Args)]
#[command(next_help_heading = "Device")]
pub struct FeatureArgs {
    /// The guest's address; QEMU and Cloud Hypervisor have one of their own.
    #[arg(long, value_name = "ADDRESS", value_parser = mac)]
    pub mac: Option<[u8; 6]>,
    /// The largest packet behind the Ethernet header that the guest may send.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(68..))]
    pub mtu: Option<u16>,
    /// The largest ring that the guest may use; a power of two.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = queue_size)]
    pub max_queue_size: u16,
    /// Features not to offer: csum, guest_csum, guest_tso4, guest_tso6, guest_ecn, host_tso4,
    /// host_tso6, host_ecn, mrg_rxbuf, event_idx, indirect_desc, in_order, mac, mtu, status.
    #[arg(long, value_name = "NAME", value_delimiter = ',', action = ArgAction::Append)]
    pub disable_feature: Vec<String>,
}

/// Generic Receive Offload, with the names that Linux has for its knobs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "GRO")]
pub struct Gro {
    /// Merge received packets.
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub gro: Switch,
    /// Packets handed to the guest together: a packet that does not merge waits for this many, or for
    /// the end of the poll. 1 is no batching.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub gro_normal_batch: u32,
    /// How long a packet may be held for a successor, in microseconds; 0 holds none beyond the end of
    /// the poll. A port that is polled has no interrupt moderation that would gather packets for a
    /// poll; the default is what Linux uses for such devices.
    #[arg(long, value_name = "US", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub gro_flush_timeout: u64,
    /// The largest merged IP packet in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 65535, value_parser = clap::value_parser!(u32).range(1..=65535))]
    pub gro_max_size: u32,
}

/// How the worker waits.
#[derive(Debug, Args)]
#[command(next_help_heading = "Polling")]
pub struct Polling {
    /// busy never sleeps; adaptive sleeps when nothing has happened for --spin-us.
    #[arg(long, value_name = "busy|adaptive", default_value = "adaptive")]
    pub poll: Poll,
    /// How long to go on polling when nothing happens.
    #[arg(long, value_name = "US", default_value_t = 50, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub spin_us: u64,
}

/// Cards for the demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DemoNic {
    /// A model in software.
    Model,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

/// Polling modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Poll {
    /// Never sleep.
    Busy,
    /// Sleep when idle.
    Adaptive,
}

impl Gro {
    /// The engine's configuration.
    pub fn config(&self) -> gro::Config {
        gro::Config {
            enabled: self.gro == Switch::On,
            flush_timeout: Duration::from_micros(self.gro_flush_timeout),
            max_size: self.gro_max_size,
            // Nobody outside can know which flows meet in one bucket.
            seed: RandomState::new().hash_one(()),
            ..gro::Config::default()
        }
    }
}

impl Polling {
    /// How long the worker spins before it sleeps.
    pub fn spin(&self) -> Option<Duration> {
        (self.poll == Poll::Adaptive).then(|| Duration::from_micros(self.spin_us))
    }
}

/// What a usage error says, on one line: its first paragraph and the tip, without the usage.
pub fn usage_line(error: &str) -> String {
    let lines = error.lines().map(str::trim);
    let (first, rest): (Vec<_>, Vec<_>) = lines
        .take_while(|line| !line.starts_with("Usage:"))
        .enumerate()
        .partition(|(at, _)| *at == 0);
    let first = first.iter().map(|(_, line)| line.trim_start_matches("error: "));
    let rest = rest
        .iter()
        .map(|(_, line)| *line)
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let text: Vec<_> = first.chain(rest).collect();
    format!("{}; `vhost-user-gro --help` lists the options", text.join(" "))
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let wrong = || "six bytes in hexadecimal with colons: 52:54:00:12:34:56".to_owned();
    let parts: Vec<_> = text.split(':').collect();
    let mut mac = [0; 6];
    if parts.len() != mac.len() {
        return Err(wrong());
    }
    for (byte, part) in mac.iter_mut().zip(parts) {
        if part.len() != 2 || part.starts_with('+') {
            return Err(wrong());
        }
        *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
    }
    if mac[0] & 1 != 0 {
        return Err(
            "a group address can't be a guest's: the lowest bit of the first byte is 0".into()
        );
    }
    Ok(mac)
}

fn queue_size(text: &str) -> Result<u16, String> {
    match text.parse::<u16>() {
        Ok(size) if size.is_power_of_two() && (2..=32768).contains(&size) => Ok(size),
        _ => Err("a power of two from 2 to 32768".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once("vhost-user-gro").chain(arguments.split_whitespace()))
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn usage_errors_are_refused() {
        for wrong in [
            "",
            "--socket-path s",
            "--port memory",
            "--socket-path s --port memory --gro-normal-batch 0",
            "--socket-path s --port memory --gro maybe",
            "--socket-path s --port memory --fd 3",
            "--fd 1 --port memory",
            "--socket-path s --port memory --mac 01:00:00:00:00:01",
            "--socket-path s --port memory --mac 2:0:0:0:0:1",
            "--socket-path s --port memory --max-queue-size 100",
            "--socket-path s --port memory --reconnect-ms 10",
            "--socket-path s --port memory --frobnicate",
            "demo --seconds 0",
        ] {
            assert!(parse(wrong).is_err(), "'{wrong}'");
        }
    }

    #[test]
    fn usage_errors_are_told_on_one_line() {
        let line = |arguments| usage_line(&parse(arguments).unwrap_err().to_string());
        assert_eq!(
            line("--socket-path s"),
            "the following required arguments were not provided: --port <SPEC>; \
             `vhost-user-gro --help` lists the options"
        );
        let wrong = line("--socket-path s --port memory --gro-normal-batch 0");
        assert!(wrong.starts_with("invalid value '0' for '--gro-normal-batch <N>'"), "{wrong}");
        let wrong = line("--socket-path s --port memory --gor off");
        assert!(wrong.contains("'--gor'") && wrong.contains("tip: "), "{wrong}");
        assert!(!wrong.contains('\n'));
    }

    #[test]
    fn valid_lines_are_understood() {
        let cli =
            parse("--socket-path s --port packet:eth1 --mac 52:54:00:12:34:56 --gro off").unwrap();
        assert_eq!(cli.serve.features.mac, Some([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
        assert!(!cli.serve.gro.config().enabled);
        let cli = parse("--fd 3 --port tap:t0 --disable-feature csum,mrg_rxbuf").unwrap();
        assert_eq!(cli.serve.features.disable_feature, ["csum", "mrg_rxbuf"]);
        assert!(parse("--print-capabilities").unwrap().serve.print_capabilities);
        assert!(parse("demo --nic model").is_ok() && parse("demo --nic real").is_err());
        assert!(matches!(parse("demo --flows 4").unwrap().command, Some(Command::Demo(_))));
    }
}
