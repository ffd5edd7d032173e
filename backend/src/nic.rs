//! `nic info|stats|selftest`: a look at a card, for a person or as JSON.

use serde_json::{Value, json};
use sfc::device::{Generation, Kind};
use sfc::mcdi::command::Link;
use sfc::nic::{Check, Info, Settings, Statistics};
use sfc::{Nic, SystemClock, filter, rss};

use crate::cli;
use crate::failure::Failure;

/// Does what was asked for.
///
/// # Errors
///
/// [`Failure::SetUp`] when the function can't be had, [`Failure::Running`] when it does not work.
pub fn run(command: &cli::Nic) -> Result<(), Failure> {
    let (cli::Nic::Info(options) | cli::Nic::Stats(options) | cli::Nic::Selftest(options)) =
        command;
    let spec = port::parse(&options.port).map_err(|error| Failure::set_up(&error))?;
    let port::Spec::Sfc(card) = spec else {
        let port = &options.port;
        return Err(Failure::SetUp(format!("port '{port}' is no card: write --port sfc:FUNCTION")));
    };
    let wrong = |error: sfc::Error| {
        let source = port::Error::Driver { port: card.to_string(), source: error };
        Failure::set_up(&source)
    };
    let function = pci::open(&card.function).map_err(|error| wrong(error.into()))?;
    let mut nic = Nic::open(function, Box::new(SystemClock::new())).map_err(wrong)?;
    let outcome = match command {
        cli::Nic::Info(_) => info(&mut nic, options.json),
        cli::Nic::Stats(_) => stats(&mut nic, options.json),
        cli::Nic::Selftest(_) => self_test(&mut nic, options.json),
    };
    // Whatever came of it, the card is left as it was found.
    let closed = nic.close();
    outcome?;
    closed.map_err(|error| Failure::running(&error))
}

fn info(nic: &mut Nic, json: bool) -> Result<(), Failure> {
    let link = nic.link().map_err(|error| Failure::running(&error))?;
    let (name, info) = (nic.name().to_owned(), nic.info());
    if json {
        print(&format!("{:#}", info_json(&name, info, &link)));
        return Ok(());
    }
    let value = info_json(&name, info, &link);
    print(&lines(&value, 0));
    Ok(())
}

fn stats(nic: &mut Nic, json: bool) -> Result<(), Failure> {
    let statistics = read_statistics(nic)?;
    let counters = statistics.named();
    if json {
        let object: serde_json::Map<_, _> =
            counters.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        print(&format!("{:#}", Value::Object(object)));
    } else {
        let lines: Vec<_> =
            counters.iter().map(|(name, value)| format!("{name:<20}{value:>20}")).collect();
        print(&lines.join("\n"));
    }
    Ok(())
}

/// The card counts for functions that have queues, so they are made, and destroyed again.
fn read_statistics(nic: &mut Nic) -> Result<Statistics, Failure> {
    let failed = |error: sfc::Error| Failure::running(&error);
    let (_, memory) = nic.packet_memory(PACKET_MEMORY).map_err(failed)?;
    let mut pairs = nic.start(&settings(), memory).map_err(failed)?;
    let mut read = Ok(None);
    // The first set is there after a second at most.
    for _ in 0..25 {
        read = nic.statistics();
        if !matches!(read, Ok(None)) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    nic.stop(&mut pairs).map_err(failed)?;
    read.map_err(failed)?
        .ok_or_else(|| Failure::Running("the card writes no counters for this function".to_owned()))
}

fn self_test(nic: &mut Nic, json: bool) -> Result<(), Failure> {
    let (_, memory) = nic.packet_memory(PACKET_MEMORY).map_err(|error| Failure::running(&error))?;
    let checks = nic.self_test(&settings(), memory);
    let failed: Vec<_> =
        checks.iter().filter(|check| check.outcome.is_err()).map(|check| check.name).collect();
    if json {
        let checks: Vec<_> = checks.iter().map(check_json).collect();
        print(&format!("{:#}", json!({ "ok": failed.is_empty(), "checks": checks })));
    } else {
        for Check { name, outcome } in &checks {
            match outcome {
                Ok(what) => print(&format!("{name:<16}ok      {what}")),
                Err(why) => print(&format!("{name:<16}FAILED  {why}")),
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::Running(format!("the card failed its self test: {}", failed.join(", "))))
}

fn check_json(check: &Check) -> Value {
    let (ok, text) = match &check.outcome {
        Ok(text) => (true, text),
        Err(text) => (false, text),
    };
    json!({ "name": check.name, "ok": ok, "text": text })
}

fn info_json(name: &str, info: &Info, link: &Link) -> Value {
    let generation = match info.identity.generation {
        Generation::Huntington => "Huntington",
        Generation::Medford => "Medford",
        Generation::Medford2 => "Medford2",
    };
    let kind = match info.identity.kind {
        Kind::Physical => "physical",
        Kind::Virtual => "virtual",
    };
    let [a, b, c, d] = info.firmware.0;
    let capabilities = info.capabilities;
    json!({
        "function": name,
        "generation": generation,
        "kind": kind,
        "physical_function": info.function.physical,
        "virtual_function": info.function.virtual_function,
        "port": info.port,
        "address": info.address.map(|byte| format!("{byte:02x}")).join(":"),
        "firmware": {
            "version": format!("{a}.{b}.{c}.{d}"),
            "rx_datapath": capabilities.rx_firmware,
            "tx_datapath": capabilities.tx_firmware,
        },
        "link": {
            "up": link.up,
            "speed_mbps": link.speed,
            "full_duplex": link.full_duplex,
        },
        "capabilities": {
            "merged_completions": capabilities.flags1.rx_batching(),
            "tunnels": capabilities.flags1.vxlan_nvgre(),
            "tso": capabilities.flags2.tx_tso_v2(),
            "hash_per_protocol": capabilities.flags1.additional_rss_modes(),
            "rss": !capabilities.flags1.rx_rss_limited(),
            "counters": capabilities.statistics,
            "window_bytes": info.window,
            "padding_bytes": info.padding,
            "indirect_event_registers": info.indirect,
            "timer": info.timer.map(|timer| format!("{timer:?}")),
        },
    })
}

/// A JSON object as indented `name  value` lines.
fn lines(value: &Value, depth: usize) -> String {
    let Value::Object(object) = value else { return value.to_string() };
    let indent = "  ".repeat(depth);
    let width = 28 - 2 * depth;
    let line = |(name, value): (&String, &Value)| {
        let name = name.replace('_', " ");
        match value {
            Value::Object(_) => format!("{indent}{name}\n{}", lines(value, depth + 1)),
            Value::String(text) => format!("{indent}{name:<width$}{text}"),
            Value::Bool(flag) => {
                format!("{indent}{name:<width$}{}", if *flag { "yes" } else { "no" })
            }
            Value::Null => format!("{indent}{name:<width$}-"),
            other => format!("{indent}{name:<width$}{other}"),
        }
    };
    object.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// One pair of the smallest rings: no packet is wanted.
fn settings() -> Settings {
    Settings {
        pairs: 1,
        rx_entries: 512,
        tx_entries: 512,
        mtu: 1500,
        addresses: Vec::new(),
        wanted: filter::Wanted::default(),
        key: [0; rss::KEY_BYTES],
        spread: Vec::new(),
        moderation_ns: 0,
    }
}

#[expect(clippy::print_stdout, reason = "the answer that was asked for")]
fn print(text: &str) {
    println!("{text}");
}

/// Nothing is received into it.
const PACKET_MEMORY: usize = 1 << 16;
