//! Runs every target over its seeds, over all past crashes, and over inputs made from them.

use std::path::Path;

use fuzz_targets::TARGETS;

/// Inputs made from seeds, per target.
const MADE: u64 = 3000;

#[test]
fn seeds_crashes_and_variations() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, target) in TARGETS {
        let mut seeds = Vec::new();
        for folder in ["corpus", "crashes"] {
            let Ok(files) = std::fs::read_dir(root.join(folder).join(name)) else { continue };
            for file in files {
                seeds.push(std::fs::read(file.unwrap().path()).unwrap());
            }
        }
        seeds.iter().for_each(|seed| target(seed));
        seeds.push(Vec::new());
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for _ in 0..MADE {
            target(&vary(&seeds, &mut random));
        }
    }
}

/// A seed with a few bytes changed, cut, doubled or added.
fn vary(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len() + 1);
        match random.below(4) {
            0 => {
                let more = (0..random.below(64)).map(|_| random.byte()).collect::<Vec<_>>();
                bytes.splice(at..at, more);
            }
            1 if at < bytes.len() => bytes[at] = random.byte(),
            2 => bytes.truncate(at),
            _ => {
                let from = random.below(at + 1);
                let part = bytes[from..at].to_vec();
                bytes.extend(part);
            }
        }
    }
    bytes.truncate(4096);
    bytes
}

/// Xorshift: the same inputs in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).expect("64 bits")).expect("below a usize")
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[3]
    }
}
