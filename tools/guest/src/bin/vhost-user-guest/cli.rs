//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use guest::{Config, Connect, MessageOrder, Poll, features};
use traffic::StreamConfig;

/// A vhost-user front end that behaves as a guest's network driver: drains, sends, verifies, measures.
#[derive(Debug, Parser)]
#[command(name = "vhost-user-guest", version)]
pub(crate) struct Cli {
    /// The back end's socket, or with --listen the guest's own
    #[arg(long, value_name = "PATH")]
    socket_path: PathBuf,
    /// Listen at the socket; the back end connects
    #[arg(long)]
    listen: bool,
    /// Connect again when the back end went away
    #[arg(long)]
    pub(crate) reconnect: bool,
    /// Features to ask for, by name or as a hexadecimal number
    #[arg(long, value_name = "LIST", default_value = "default", value_parser = features::parse)]
    features: u64,
    /// Features to leave out
    #[arg(long, value_name = "LIST", default_value = "", value_parser = features::parse)]
    without: u64,
    /// Ask for exactly these features: don't add what every driver has, don't leave out what lacks its
    /// requirement
    #[arg(long)]
    exact: bool,
    /// The front end whose order of messages is followed
    #[arg(long, value_enum, default_value = "plain")]
    order: Order,
    /// Descriptors per queue
    #[arg(long, value_name = "N", default_value_t = 256)]
    queue_size: u16,
    /// Pairs of queues
    #[arg(long, value_name = "N", default_value_t = 1)]
    queue_pairs: u16,
    /// Bytes per receive buffer, header included [default: 2048, or 65584 without mrg_rxbuf]
    #[arg(long, value_name = "BYTES")]
    rx_buffer: Option<u32>,
    /// Descriptors per receive buffer; the first of several holds the header
    #[arg(long, value_name = "N", default_value_t = 1)]
    rx_chain: u16,
    /// Descriptors per packet sent; the first of several holds the header
    #[arg(long, value_name = "N", default_value_t = 1)]
    tx_chain: u16,
    /// Send by indirect descriptors
    #[arg(long)]
    tx_indirect: bool,
    /// Regions that the guest's memory is split into
    #[arg(long, value_name = "N", default_value_t = 1)]
    regions: usize,
    /// The MTU that the guest's host has set
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u16>,
    /// Sleep and be notified, instead of polling
    #[arg(long)]
    pub(crate) wait: bool,
    /// Only count what comes: no look at headers and bytes
    #[arg(long, conflicts_with = "check")]
    pub(crate) fast: bool,
    /// Stop after so many seconds
    #[arg(long, value_name = "N")]
    pub(crate) seconds: Option<u64>,
    /// Stop after so many packets received
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Compare what comes with streams like these: flows=N, payload=BYTES, ipv6, udp, plain (no
    /// timestamps)
    #[arg(long, value_name = "LIST", num_args = 0..=1, default_missing_value = "",
          value_parser = stream)]
    pub(crate) check: Option<StreamConfig>,
    /// With --check: bytes that are missing count as a mismatch
    #[arg(long, requires = "check")]
    pub(crate) lossless: bool,
    /// Send frames: pps=N, size=BYTES, flows=N, ipv6, udp
    #[arg(long, value_name = "LIST", value_parser = send)]
    pub(crate) send: Option<Send>,
    /// Print one JSON object per line instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Order {
    Plain,
    Qemu,
    Ch,
    Uml,
}

/// What to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Send {
    /// Frames per second; 0: as many as go.
    pub(crate) pps: u64,
    /// What the frames are.
    pub(crate) stream: StreamConfig,
}

impl Cli {
    /// The guest that was asked for.
    pub(crate) fn config(&self) -> Config {
        let path = self.socket_path.clone();
        let connect = if self.listen { Connect::Listen(path) } else { Connect::Path(path) };
        let mut config = Config::new(connect).under(match self.order {
            Order::Plain => MessageOrder::Plain,
            Order::Qemu => MessageOrder::Qemu,
            Order::Ch => MessageOrder::CloudHypervisor,
            Order::Uml => MessageOrder::Uml,
        });
        config.features = self.features & !self.without;
        config.without = self.without;
        config.exact_features = self.exact;
        config.queue_size = self.queue_size;
        config.queue_pairs = self.queue_pairs;
        config.rx_buffer_size = self.rx_buffer;
        config.rx_chain = self.rx_chain;
        config.tx_chain = self.tx_chain;
        config.tx_indirect = self.tx_indirect;
        config.regions = self.regions;
        config.mtu = self.mtu;
        config.poll = if self.wait { Poll::Wait } else { Poll::Spin };
        config
    }
}

/// The words of a list, each with its number, if it has one.
fn words(list: &str) -> impl Iterator<Item = Result<(&str, Option<u64>), String>> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty()).map(|word| {
        let Some((name, number)) = word.split_once('=') else { return Ok((word, None)) };
        let number =
            number.parse().map_err(|_| format!("{number:?} in {word:?} is not a number"))?;
        Ok((name, Some(number)))
    })
}

fn stream(list: &str) -> Result<StreamConfig, String> {
    let mut config = StreamConfig::default();
    for word in words(list) {
        match word? {
            ("flows", Some(number)) => config.flows = fitting("flows", number, 1, 65_536)?,
            ("payload", Some(number)) => config.payload = fitting("payload", number, 8, 65_000)?,
            ("ipv6", None) => config.ipv6 = true,
            ("udp", None) => config.udp = true,
            ("plain", None) => config.timestamps = false,
            (name, _) => return Err(format!("{name:?} is not one of the words")),
        }
    }
    Ok(config)
}

fn send(list: &str) -> Result<Send, String> {
    let mut stream = StreamConfig { flows: 1, run: 1, ..StreamConfig::default() };
    let (mut pps, mut size) = (0, 1514u16);
    for word in words(list) {
        match word? {
            ("pps", Some(number)) => pps = number,
            ("size", Some(number)) => size = fitting("size", number, 60, 65_000)?,
            ("flows", Some(number)) => stream.flows = fitting("flows", number, 1, 65_536)?,
            ("ipv6", None) => stream.ipv6 = true,
            ("udp", None) => stream.udp = true,
            (name, _) => return Err(format!("{name:?} is not one of the words")),
        }
    }
    // Ethernet, IP, and TCP with timestamps or UDP.
    let headers = 14 + if stream.ipv6 { 40 } else { 20 } + if stream.udp { 8 } else { 32 };
    let payload = size.checked_sub(headers).filter(|payload| *payload >= 8);
    stream.payload =
        payload.ok_or_else(|| format!("a frame has {} bytes at least", headers + 8))?;
    Ok(Send { pps, stream })
}

fn fitting<T: TryFrom<u64>>(name: &str, number: u64, least: u64, most: u64) -> Result<T, String> {
    T::try_from(number)
        .ok()
        .filter(|_| (least..=most).contains(&number))
        .ok_or_else(|| format!("{name} is {least} to {most}, not {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_a_guest() {
        let cli = Cli::parse_from([
            "vhost-user-guest",
            "--socket-path=/tmp/x",
            "--listen",
            "--without=mrg_rxbuf,version_1",
            "--order=uml",
            "--check",
            "--send=pps=1000,size=100,udp",
        ]);
        let config = cli.config();
        assert!(matches!(config.connect, Connect::Listen(_)));
        assert_eq!(config.order, MessageOrder::Uml);
        assert_eq!(
            config.features,
            features::DEFAULT & !(features::MRG_RXBUF | features::VERSION_1)
        );
        assert_eq!(config.without, features::MRG_RXBUF | features::VERSION_1);
        assert_eq!(cli.check, Some(StreamConfig::default()));
        let sent = cli.send.unwrap();
        assert_eq!((sent.pps, sent.stream.payload), (1000, 58));
    }

    #[test]
    fn wrong_words_are_named() {
        assert!(stream("flows=1,colour").unwrap_err().contains("colour"));
        assert!(stream("flows=0").unwrap_err().contains("flows"));
        assert!(send("pps=x").unwrap_err().contains("pps=x"));
        assert!(send("size=60").unwrap_err().contains("74"));
        assert!(send("size=60,udp").is_ok());
    }
}
