//! How the program ends when it can't go on: one line, and an exit code.

use std::error::Error;
use std::process::ExitCode;

/// Why the program ends.
#[derive(Debug)]
pub enum Failure {
    /// The command line or what it names can't be used: exit code 2.
    SetUp(String),
    /// Something failed while running: exit code 1.
    Running(String),
}

impl Failure {
    /// A set-up failure, with its causes.
    pub fn set_up(error: &dyn Error) -> Self {
        Self::SetUp(chain(error))
    }

    /// A failure while running, with its causes.
    pub fn running(error: &dyn Error) -> Self {
        Self::Running(chain(error))
    }

    /// Says why, on one line.
    pub fn report(&self) -> ExitCode {
        let (reason, code) = match self {
            Self::SetUp(reason) => (reason, 2),
            Self::Running(reason) => (reason, 1),
        };
        #[expect(
            clippy::print_stderr,
            reason = "the one line that the operator needs, logging or not"
        )]
        {
            eprintln!("vhost-user-gro: {reason}");
        }
        ExitCode::from(code)
    }
}

/// An error and its causes on one line.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Transparent errors repeat their source's text.
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_stand_behind_the_error() {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        let error = port::Error::SetUp {
            port: "packet:eth9".into(),
            doing: "look up the interface",
            hint: "`ip link` lists what there is".into(),
            source,
        };
        assert_eq!(
            chain(&error),
            "port 'packet:eth9': look up the interface: `ip link` lists what there is: entity not found"
        );
    }
}
