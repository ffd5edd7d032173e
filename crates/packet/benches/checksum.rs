//! Checksums by size, and what a copy adds.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use packet::checksum;

/// An IPv4 header, a small frame, a full segment, a jumbo frame, a super-packet.
const SIZES: [usize; 5] = [20, 64, 1448, 9000, 65_000];

fn sums(criterion: &mut Criterion) {
    let bytes: Vec<u8> = (0..=255).cycle().take(65_536).collect();
    let mut copy = vec![0; bytes.len()];
    let mut group = criterion.benchmark_group("checksum");
    for size in SIZES {
        // Behind an Ethernet, an IP and a TCP header nothing is aligned.
        let from = &bytes[66..][..size];
        let to = &mut copy[66..][..size];
        group.throughput(Throughput::Bytes(size as u64));
        group.bench_function(BenchmarkId::new("sum", size), |bencher| {
            bencher.iter(|| checksum::sum(black_box(from)));
        });
        group.bench_function(BenchmarkId::new("copy_and_sum", size), |bencher| {
            bencher.iter(|| checksum::copy_and_sum(black_box(from), black_box(to)));
        });
    }
    group.finish();
}

criterion_group!(benches, sums);
criterion_main!(benches);
