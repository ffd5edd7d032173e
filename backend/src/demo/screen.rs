//! The demo's table, drawn in place on a terminal and line by line elsewhere.
#![expect(clippy::print_stdout, reason = "this module is the demo's output")]

use std::fmt::Write;
use std::io::{IsTerminal, Write as _};

use crate::stats::Stats;

/// The table.
#[derive(Debug)]
pub(super) struct Screen {
    title: String,
    terminal: bool,
    /// Lines to go up before the next drawing.
    drawn: usize,
    before: (u64, Stats),
}

impl Screen {
    pub(super) fn new(title: String) -> Self {
        let terminal = std::io::stdout().is_terminal();
        if !terminal {
            println!("{title}");
        }
        Self { title, terminal, drawn: 0, before: (0, Stats::default()) }
    }

    /// Shows the counters at a tick (a fifth of a second).
    pub(super) fn draw(&mut self, tick: u64, stats: &Stats) {
        let (last_tick, last) = &self.before;
        #[expect(clippy::cast_precision_loss, reason = "a rate to three digits")]
        let rate = |now: u64, then: u64| (now - then) as f64 * 5.0 / (tick - last_tick) as f64;
        let packets = rate(stats.port_rx.frames, last.port_rx.frames);
        let gbits = rate(stats.port_rx.bytes, last.port_rx.bytes) * 8.0 / 1e9;
        if self.terminal {
            let table = table(&self.title, stats, packets, gbits);
            let up = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
            self.drawn = table.lines().count();
            print!("{up}{}", table.replace('\n', "\x1b[K\n"));
            // A terminal that is gone is noticed when the summary is printed.
            let _ = std::io::stdout().flush();
        } else if tick.is_multiple_of(5) {
            println!(
                "{:>3} s: {:.2} M packets/s in, {gbits:.1} Gbit/s, {:.1} packets merged into one",
                tick / 5,
                packets / 1e6,
                ratio(stats)
            );
        } else {
            return;
        }
        self.before = (tick, stats.clone());
    }

    /// Shows the last state of things.
    pub(super) fn finish(&mut self, stats: &Stats) {
        if !self.terminal {
            print!("{}", table("in all", stats, 0.0, 0.0));
        }
        println!();
    }
}

fn table(title: &str, stats: &Stats, packets: f64, gbits: f64) -> String {
    let mut text = format!("{title}\n");
    let mut row = |name: &str, value: String, more: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:<28}{value:>16}  {more}");
    };
    let rate = if packets > 0.0 {
        format!("{:.2} M/s, {gbits:.1} Gbit/s", packets / 1e6)
    } else {
        String::new()
    };
    row("packets in", number(stats.port_rx.frames), &rate);
    row("merged into another", number(stats.gro.merged), "");
    row("normal batches", number(stats.batches), "");
    row("packets to the guest", number(stats.fill.frames), "");
    row("of them super-packets", number(stats.fill.supers), "");
    row("packets in per packet out", format!("{:.2}", ratio(stats)), "");
    row("notifications", number(stats.fill.notified), &suppressed(stats));
    row("dropped", number(stats.no_ring + stats.fill.dropped()), "");
    let mut reasons: Vec<_> = stats.gro.completed().filter(|(_, count)| *count > 0).collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    for (index, (reason, count)) in reasons.iter().take(4).enumerate() {
        let label = if index == 0 { "why flows were flushed" } else { "" };
        row(label, number(*count), reason);
    }
    text
}

fn suppressed(stats: &Stats) -> String {
    format!("{} suppressed", number(stats.fill.suppressed))
}

#[expect(clippy::cast_precision_loss, reason = "a ratio to three digits")]
fn ratio(stats: &Stats) -> f64 {
    stats.fill.segments as f64 / stats.fill.frames.max(1) as f64
}

/// A number with its thousands apart.
pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        assert_eq!(number(0), "0");
        assert_eq!(number(999), "999");
        assert_eq!(number(1000), "1 000");
        assert_eq!(number(1_234_567), "1 234 567");
    }

    #[test]
    fn the_table_shows_what_was_counted() {
        let mut stats = Stats::default();
        stats.port_rx.frames = 4000;
        stats.fill.frames = 1000;
        stats.fill.segments = 4000;
        let text = table("title", &stats, 2e6, 24.3);
        assert!(text.contains("4 000  2.00 M/s, 24.3 Gbit/s"), "{text}");
        assert!(text.contains("4.00"), "{text}");
    }
}
