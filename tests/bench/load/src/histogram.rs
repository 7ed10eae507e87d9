//! Latency histogram: log-linear buckets, each at most 1/128 wide, from 0 ns to the end of `u64`.
//!
//! Recording is one increment. A quantile is the upper edge of its bucket, so it is too high by up to 0.8 %, never too
//! low.

const SUB_BITS: u32 = 7;
const BUCKETS: usize = (65 - SUB_BITS as usize) << SUB_BITS;

pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Histogram {
    pub fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            total: 0,
            max: 0,
        }
    }

    pub fn record(&mut self, value: u64) {
        self.counts[index(value)] += 1;
        self.total += 1;
        self.max = self.max.max(value);
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that `per_mille`/1000 of all records do not exceed. 0: no records.
    pub fn quantile(&self, per_mille: u64) -> u64 {
        let rank = (self.total * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_edge(index).min(self.max);
            }
        }
        self.max
    }
}

/// Values below 2 × 128 have separate buckets. Each doubling above is divided into 128.
fn index(value: u64) -> usize {
    let shift = (value | 1).ilog2().saturating_sub(SUB_BITS);
    let within = usize::try_from(value >> shift).expect("at most 255");
    ((shift as usize) << SUB_BITS) + within
}

/// The largest value that falls into the bucket.
fn upper_edge(index: usize) -> u64 {
    let shift = (index >> SUB_BITS).saturating_sub(1);
    let within = (index - (shift << SUB_BITS)) as u64;
    (within << shift) | ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket_and_buckets_are_narrow() {
        let mut value = 0_u64;
        while value < u64::MAX / 3 {
            let bucket = index(value);
            let upper = upper_edge(bucket);
            assert!(value <= upper, "{value} above its bucket's edge {upper}");
            assert!(upper - value <= value / 128);
            assert!(bucket == 0 || upper_edge(bucket - 1) < value);
            value += 1 + value / 97;
        }
    }

    #[test]
    fn buckets_are_contiguous_to_the_end() {
        for bucket in 1..=index(u64::MAX) {
            assert_eq!(index(upper_edge(bucket - 1) + 1), bucket);
        }
        assert_eq!(upper_edge(index(u64::MAX)), u64::MAX);
        assert_eq!(index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_of_known_values() {
        let mut histogram = Histogram::new();
        for value in 1..=1000 {
            histogram.record(value * 1000);
        }
        for (per_mille, exact) in [(500, 500_000), (990, 990_000), (999, 999_000)] {
            let found = histogram.quantile(per_mille);
            assert!((exact..=exact + exact / 128).contains(&found), "{found}");
        }
        assert_eq!(histogram.quantile(1000), 1_000_000);
        assert_eq!((histogram.total(), histogram.max()), (1000, 1_000_000));
    }

    #[test]
    fn empty_histogram_says_zero() {
        assert_eq!(Histogram::new().quantile(500), 0);
    }
}
