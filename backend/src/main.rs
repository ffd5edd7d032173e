//! The `vhost-user-gro` program.

use std::process::ExitCode;

use clap::Parser;
use vhost_user_gro::cli::{Cli, Command, usage_line};
use vhost_user_gro::{Failure, demo, nic, serve};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version are answers, not failures.
        Err(answer) if !answer.use_stderr() => answer.exit(),
        Err(error) => return Failure::SetUp(usage_line(&error.to_string())).report(),
    };
    let level = if cli.command.is_some() { "warn" } else { "info" };
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or(level)).init();
    let result = match &cli.command {
        Some(Command::Demo(options)) => demo::run(options),
        Some(Command::Nic(command)) => nic::run(command),
        None => serve::run(&cli.serve),
    };
    result.map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS)
}
