//! Fuzz targets: everything that takes bytes from a wire, a card or a guest.
//!
//! A target is an ordinary function of a byte slice that panics when an invariant does not hold. The
//! test beside this library replays the seeds in `corpus`, every input that ever failed in `crashes`,
//! and a few thousand inputs made from the seeds; `tools/fuzz-all` runs the same functions under
//! libFuzzer for as long as you like. A crash found is a file added to `crashes/TARGET`.

#![forbid(unsafe_code)]

mod card;
mod engine;
mod input;

/// A target: its name, which is that of its folders, and the function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 6] = [
    ("packet_parse", packet_parse),
    ("gro_engine", engine::accounts),
    ("gro_round_trip", engine::round_trip),
    ("sfc_receive", card::receive),
    ("sfc_transmit", card::transmit),
    ("mcdi_reply", card::reply),
];

/// Headers are found inside the bytes, or not at all.
fn packet_parse(data: &[u8]) {
    if let Ok(parsed) = packet::header::parse(data) {
        let layout = parsed.layout;
        assert!(layout.network < layout.transport && layout.transport < layout.payload);
        assert!(usize::from(layout.payload) <= data.len());
    }
}
