//! What the guest prints: a line to begin, one per second, a summary; as text or as JSON.

use std::io::{self, Write};
use std::time::Duration;

use guest::{Guest, Stats, Violations, features};
use serde_json::{Value, json};
use traffic::Summary;

/// Prints, and knows what was printed last.
pub(crate) struct Report {
    json: bool,
    last: Stats,
}

/// Whether all was well.
pub(crate) struct Verdict {
    pub(crate) back_end_lost: bool,
    pub(crate) mismatch: Option<String>,
    pub(crate) bytes_missing: bool,
    pub(crate) violations: u64,
}

impl Verdict {
    pub(crate) fn is_good(&self) -> bool {
        !self.back_end_lost
            && self.mismatch.is_none()
            && !self.bytes_missing
            && self.violations == 0
    }

    fn text(&self) -> String {
        let mut words = Vec::new();
        if self.back_end_lost {
            words.push("the back end went away".to_owned());
        }
        if let Some(mismatch) = &self.mismatch {
            words.push(format!("bytes differ: {mismatch}"));
        }
        if self.bytes_missing {
            words.push("bytes are missing".to_owned());
        }
        if self.violations > 0 {
            words.push(format!("{} rules broken", self.violations));
        }
        if words.is_empty() { "ok".to_owned() } else { words.join("; ") }
    }
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, last: Stats::default() }
    }

    pub(crate) fn begin(&self, guest: &Guest) {
        let names = features::display(guest.acked());
        if self.json {
            print(&json!({
                "event": "begin",
                "offered": format!("{:#x}", guest.offered()),
                "acked": format!("{:#x}", guest.acked()),
                "features": names,
            }));
        } else {
            print(&format_args!("connected: {names}"));
        }
    }

    /// A second of traffic, or about that.
    pub(crate) fn second(&mut self, stats: Stats, time: Duration) {
        let mut value = json!({ "event": "second" });
        let rates = Rates::of(&self.last, &stats, time);
        self.last = stats;
        if self.json {
            rates.add_to(&mut value);
            print(&value);
        } else {
            print(&rates.text());
        }
    }

    pub(crate) fn end(
        &self,
        stats: Stats,
        time: Duration,
        violations: &Violations,
        checked: Option<Summary>,
        verdict: &Verdict,
    ) {
        let rates = Rates::of(&Stats::default(), &stats, time);
        if self.json {
            let mut value = json!({
                "event": "end",
                "seconds": time.as_secs_f64(),
                "rx_packets": stats.rx.packets,
                "rx_segments": stats.rx.segments,
                "rx_bytes": stats.rx.bytes,
                "rx_buffers": stats.rx.buffers,
                "rx_publishes": stats.rx.publishes,
                "rx_interrupts": stats.rx.interrupts,
                "rx_kicks": stats.rx.kicks,
                "tx_packets": stats.tx.packets,
                "tx_bytes": stats.tx.bytes,
                "tx_full": stats.tx.full,
                "tx_interrupts": stats.tx.interrupts,
                "tx_kicks": stats.tx.kicks,
                "violations": violations
                    .broken()
                    .map(|(rule, count)| (rule.name().to_owned(), count.into()))
                    .collect::<serde_json::Map<_, _>>(),
                "verdict": verdict.text(),
            });
            rates.add_to(&mut value);
            if let Some(checked) = checked {
                value["checked_bytes"] = checked.bytes.into();
                value["lost_bytes"] = checked.lost_bytes.into();
                value["mismatches"] = checked.mismatches.into();
            }
            print(&value);
            return;
        }
        print(&format_args!(
            "total in {:.1} s: {} packets, {} segments, {} bytes in, {} packets out; {}",
            time.as_secs_f64(),
            stats.rx.packets,
            stats.rx.segments,
            stats.rx.bytes,
            stats.tx.packets,
            rates.text(),
        ));
        if let Some(checked) = checked {
            print(&format_args!(
                "checked: {} payload bytes of {} flows right, {} missing, {} frames wrong",
                checked.bytes, checked.flows, checked.lost_bytes, checked.mismatches,
            ));
        }
        for (rule, count) in violations.broken() {
            print(&format_args!("broken {count} times: {rule}"));
        }
        for example in violations.first() {
            print(&format_args!("  {example}"));
        }
        print(&format_args!("verdict: {}", verdict.text()));
    }
}

/// Numbers per second.
struct Rates {
    packets: f64,
    segments: f64,
    gigabits: f64,
    mean: f64,
    interrupts: f64,
    kicks: f64,
    sent: f64,
}

impl Rates {
    fn of(from: &Stats, to: &Stats, time: Duration) -> Self {
        let seconds = time.as_secs_f64().max(1e-9);
        let rate = |from: u64, to: u64| float(to - from) / seconds;
        let (a, b) = (&from.rx, &to.rx);
        let packets = rate(a.packets, b.packets);
        let bytes = rate(a.bytes, b.bytes);
        Self {
            packets,
            segments: rate(a.segments, b.segments),
            gigabits: bytes * 8.0 / 1e9,
            mean: if b.packets > a.packets { bytes / packets } else { 0.0 },
            interrupts: rate(a.interrupts, b.interrupts),
            kicks: rate(a.kicks + from.tx.kicks, b.kicks + to.tx.kicks),
            sent: rate(from.tx.packets, to.tx.packets),
        }
    }

    fn text(&self) -> String {
        format!(
            "{:.0} packets/s, {:.0} segments/s, mean {:.0} bytes, {:.3} Gbit/s, {:.0} interrupts/s, \
             {:.0} kicks/s, {:.0} sent/s",
            self.packets,
            self.segments,
            self.mean,
            self.gigabits,
            self.interrupts,
            self.kicks,
            self.sent,
        )
    }

    fn add_to(&self, value: &mut Value) {
        value["packets_per_second"] = self.packets.into();
        value["segments_per_second"] = self.segments.into();
        value["mean_bytes"] = self.mean.into();
        value["gbit_per_second"] = self.gigabits.into();
        value["interrupts_per_second"] = self.interrupts.into();
        value["kicks_per_second"] = self.kicks.into();
        value["sent_per_second"] = self.sent.into();
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates are for reading")]
fn float(number: u64) -> f64 {
    number as f64
}

/// One line. Whoever closes standard output does not want to read on.
fn print(line: &impl std::fmt::Display) {
    writeln!(io::stdout(), "{line}").ok();
}
