//! Whole-path benchmarks: traffic made in memory through GRO, the virtqueue filler and a vhost-user
//! socket into the built-in guest.
//!
//! The backend's worker has one core, the guest another. The generator writes only headers, and the
//! guest only counts, so that what is measured is the backend. GRO on and off run in turn, several
//! times; the table shows medians.
#![expect(clippy::print_stdout, reason = "the tables are the output")]

mod case;
mod run;

use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};

use case::{CASES, Case};
use run::{Figures, run};

/// Benchmarks of the whole path.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Seconds of each run.
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// Runs of each case, on and off in turn.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// GRO on and off for each kind of traffic.
    Path,
    /// Normal batches of 1 to 64.
    Batch,
}

/// The runs of one configuration.
#[derive(Debug, serde::Serialize)]
struct Row {
    case: &'static str,
    gro: bool,
    normal_batch: usize,
    median: Figures,
    runs: Vec<Figures>,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let rows = match cli.command {
        None | Some(Command::Path) => measure(&cli, &path_configurations())?,
        Some(Command::Batch) => measure(&cli, &batch_configurations())?,
    };
    if cli.json {
        println!("{}", serde_json::to_string_pretty(&rows).context("JSON")?);
    } else {
        print(&rows);
    }
    Ok(())
}

fn path_configurations() -> Vec<(&'static Case, bool, usize)> {
    CASES.iter().flat_map(|case| [(case, true, 8), (case, false, 8)]).collect()
}

fn batch_configurations() -> Vec<(&'static Case, bool, usize)> {
    let sizes = [1, 2, 4, 8, 16, 32, 64];
    CASES.iter().flat_map(|case| sizes.map(|size| (case, true, size))).collect()
}

/// Runs everything in rounds, so that what disturbs the machine for a while disturbs all alike.
fn measure(cli: &Cli, configurations: &[(&'static Case, bool, usize)]) -> anyhow::Result<Vec<Row>> {
    let mut all: Vec<Vec<Figures>> = vec![Vec::new(); configurations.len()];
    for _ in 0..cli.runs {
        for (runs, (case, gro, batch)) in all.iter_mut().zip(configurations) {
            let time = Duration::from_secs_f64(cli.seconds);
            runs.push(run(case, *gro, *batch, time).with_context(|| case.name)?);
        }
    }
    let row = |((case, gro, normal_batch), runs): (&(&'static Case, bool, usize), Vec<Figures>)| {
        let median = Figures::median(&runs);
        Row { case: case.name, gro: *gro, normal_batch: *normal_batch, median, runs }
    };
    Ok(configurations.iter().zip(all).map(row).collect())
}

fn print(rows: &[Row]) {
    println!(
        "{:<34}{:>5}{:>7}{:>10}{:>9}{:>11}{:>12}{:>14}",
        "traffic", "GRO", "batch", "Mpkt/s", "Gbit/s", "ns/packet", "merged into", "notif./packet"
    );
    for row in rows {
        let Figures { mpps, gbits, ns_per_packet, ratio, notifications_per_packet } = row.median;
        println!(
            "{:<34}{:>5}{:>7}{mpps:>10.3}{gbits:>9.2}{ns_per_packet:>11.1}{ratio:>12.2}{notifications_per_packet:>14.4}",
            row.case,
            if row.gro { "on" } else { "off" },
            row.normal_batch,
        );
    }
    for pair in rows.chunks(2) {
        if let [on, off] = pair
            && on.case == off.case
            && on.gro != off.gro
        {
            let times = on.median.mpps / off.median.mpps;
            println!("{}: GRO on is {times:.2} times GRO off", on.case);
        }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=600.0).contains(&seconds) => Ok(seconds),
        _ => Err("seconds from 0.05 to 600".to_owned()),
    }
}
