//! The end-to-end tests. `tests/run` runs them; so does, with what they need installed,
//! `E2E=1 cargo test -p e2e --test e2e [PART OF A NAME…]`.

use std::process::ExitCode;

use e2e::suite;

mod cli;
mod faults;
mod ipxe;
mod model;
mod program;
mod qemu;
mod transfers;
mod uml;
mod vfio;

fn main() -> ExitCode {
    suite::main(
        &[
            cli::TESTS,
            program::TESTS,
            uml::TESTS,
            ipxe::TESTS,
            qemu::TESTS,
            faults::TESTS,
            model::TESTS,
            vfio::TESTS,
        ]
        .concat(),
    )
}
