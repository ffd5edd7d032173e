//! The byte sum on AVX2, for machines that have it; the others take the plain one.
//!
//! Words are added as they lie in memory, each 64-bit word as two halves of 32 bits, so that a lane of
//! 64 bits keeps all carries:
//!
//! ```text
//!   32 bytes      │ word 0: hi lo │ word 1: hi lo │ word 2: hi lo │ word 3: hi lo │
//!                        + +             + +             + +             + +
//!   four lanes    │    lane 0     │    lane 1     │    lane 2     │    lane 3     │
//! ```

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, _mm_add_epi64, _mm_extract_epi64, _mm256_add_epi64, _mm256_and_si256,
    _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_set1_epi64x,
    _mm256_setzero_si256, _mm256_srli_epi64,
};

use super::words;

/// The folded sum of the bytes, like [`words`].
#[inline]
pub(super) fn sum(bytes: &[u8]) -> u16 {
    // The standard library keeps the answer: a load and a branch.
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the function needs a processor with AVX2, which the line above has found.
        return unsafe { avx2(bytes) };
    }
    words(0, bytes)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(bytes: &[u8]) -> u16 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let low = _mm256_set1_epi64x(0xffff_ffff);
    let mut lanes = _mm256_setzero_si256();
    for block in blocks {
        let block: *const __m256i = block.as_ptr().cast();
        // SAFETY: the pointer comes from a reference to 32 bytes, as many as are read; the load has no
        // need of alignment.
        let block = unsafe { _mm256_loadu_si256(block) };
        let halves = _mm256_add_epi64(_mm256_and_si256(block, low), _mm256_srli_epi64::<32>(block));
        lanes = _mm256_add_epi64(lanes, halves);
    }
    let pair = _mm_add_epi64(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256::<1>(lanes));
    let lanes = [_mm_extract_epi64::<0>(pair), _mm_extract_epi64::<1>(pair)];
    words(lanes.iter().map(|lane| lane.cast_unsigned()).sum(), rest)
}
