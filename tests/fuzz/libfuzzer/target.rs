//! One program for all targets: `FUZZ_TARGET` names the one to run.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

fuzz_target!(|data: &[u8]| {
    TARGET.get_or_init(|| {
        let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
        let found = fuzz_targets::TARGETS.iter().find(|(target, _)| *target == name);
        found.unwrap_or_else(|| panic!("no target {name}")).1
    })(data);
});
