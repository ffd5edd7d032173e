//! `--port memory`: TCP streams made in the process, for trying things out without a network.

use packet::Pool;
use port::{Capabilities, Fill, Memory, Port};
use traffic::{StreamConfig, Streams};

use crate::failure::Failure;

/// A port that makes the streams that `rest` describes, as fast as they are taken, and throws away what
/// is sent to it. `rest` is a list of `name=value`: `flows`, `run`, `payload`, `frames`.
///
/// # Errors
///
/// When `rest` can't be understood.
pub fn port(rest: &str) -> Result<Box<dyn Port>, Failure> {
    let config = parse(rest).map_err(|reason| {
        Failure::SetUp(format!(
            "port 'memory:{rest}': {reason}: memory[:flows=1..65536][,run=1..][,payload=1..1448][,frames=N]"
        ))
    })?;
    let mut streams = Streams::new(config);
    let source = move |burst: &mut packet::Burst, pool: &mut Pool| match streams.fill(burst, pool) {
        0 if streams.finished() => Fill::Drained,
        0 => Fill::Idle,
        made => Fill::Frames(made),
    };
    let sink = |frame, pool: &mut Pool| pool.recycle(frame);
    Ok(Box::new(Memory::new("memory", source, sink).with_capabilities(CAPABILITIES)))
}

/// What the streams come with.
pub const CAPABILITIES: Capabilities = Capabilities {
    rx_checksum: true,
    rx_hash: true,
    rx_gso: false,
    tx_checksum: false,
    tx_tso4: false,
    tx_tso6: false,
    tx_uso: false,
    queue_pairs: 1,
};

fn parse(rest: &str) -> Result<StreamConfig, String> {
    let mut config = StreamConfig::default();
    for item in rest.split(',').filter(|item| !item.is_empty()) {
        let (name, value) =
            item.split_once('=').ok_or_else(|| format!("'{item}' is no name=value"))?;
        let number = |range: std::ops::RangeInclusive<u64>| {
            value
                .parse::<u64>()
                .ok()
                .filter(|number| range.contains(number))
                .ok_or_else(|| format!("'{value}' is no number that {name} can have"))
        };
        let narrow = |number: u64| u32::try_from(number).expect("checked: in range");
        match name {
            "flows" => config.flows = narrow(number(1..=65_536)?),
            "run" => config.run = narrow(number(1..=65_536)?),
            "payload" => {
                config.payload = u16::try_from(number(1..=1448)?).expect("checked: in range");
            }
            "frames" => config.total_frames = Some(number(0..=u64::MAX)?),
            _ => return Err(format!("'{name}' is not known")),
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_understood_or_refused() {
        assert_eq!(parse("").unwrap(), StreamConfig::default());
        let config = parse("flows=4,run=8,payload=100,frames=5").unwrap();
        assert_eq!((config.flows, config.run, config.payload), (4, 8, 100));
        assert_eq!(config.total_frames, Some(5));
        for wrong in ["flows=0", "flows", "payload=1449", "run=-1", "colour=red", "flows=x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
