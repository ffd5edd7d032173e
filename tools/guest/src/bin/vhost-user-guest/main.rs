//! A guest on the command line: takes what a back end delivers, sends if told to, checks, counts.
//!
//! Exit code 0: all is well. 1: the device broke a rule, bytes differed, or the back end went away.
//! 2: the guest could not begin.

#![forbid(unsafe_code)]

mod cli;
mod report;
mod run;
mod sender;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use guest::Guest;

use crate::cli::Cli;
use crate::run::Run;

fn main() -> ExitCode {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn")).init();
    match start(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            log::error!("{error:#}");
            ExitCode::from(2)
        }
    }
}

fn start(cli: &Cli) -> anyhow::Result<bool> {
    let guest = Guest::connect(cli.config()).context("the guest could not begin")?;
    Run::new(cli, guest)?.run()
}
