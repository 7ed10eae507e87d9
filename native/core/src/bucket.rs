//! A token bucket with a breaker. Makes only the most common decision: to admit all requests.
//!
//! Equivalent to Python's `limiter.buckets.cell`, plus `Limiter.inherit` and `Bucket.full_at_ns`.

const UPERMITS_PER_PERMIT: i128 = 1_000_000;
const NS_PER_S: u128 = 1_000_000_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    pub rate_upermits_per_s: i64,
    pub capacity_upermits: i64,
    pub stored_upermits: i64,
    pub forgiven_upermits: i64,
    pub max_debt_upermits: i64,
    pub at_ns: i64,
    pub open_next_free_ns: Option<i64>,
}

#[inline]
#[allow(clippy::cast_possible_truncation)]
fn clamped(value: i128) -> i64 {
    value.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

impl Bucket {
    #[inline]
    pub fn refill(&mut self, now_ns: i64) -> i64 {
        if now_ns <= self.at_ns || self.rate_upermits_per_s <= 0 {
            return self.stored_upermits;
        }
        let (elapsed, rate) =
            (u128::from(now_ns.abs_diff(self.at_ns)), u128::from(self.rate_upermits_per_s.unsigned_abs()));
        let product = elapsed * rate;
        #[allow(clippy::cast_possible_truncation)]
        let (accrued, leftover) = match u64::try_from(product) {
            Ok(small) => (u128::from(small / NS_PER_S as u64), u128::from(small % NS_PER_S as u64)),
            Err(_) => (product / NS_PER_S, product % NS_PER_S),
        };
        if accrued == 0 {
            return self.stored_upermits;
        }
        let stored = i128::from(self.stored_upermits) + i128::try_from(accrued).unwrap_or(i128::MAX / 2);
        let excess = stored - i128::from(self.capacity_upermits);
        if excess >= 0 {
            self.forgiven_upermits = clamped((i128::from(self.forgiven_upermits) - excess).max(0));
            self.stored_upermits = self.capacity_upermits;
            self.at_ns = now_ns;
        } else {
            self.stored_upermits = clamped(stored);
            self.at_ns = now_ns - i64::try_from(leftover / rate).unwrap_or(0);
        }
        self.stored_upermits
    }

    /// `before` is the cost of all but the last request.
    #[inline]
    pub fn admits(&mut self, now_ns: i64, before: i64, permits: i64) -> bool {
        if self.open_next_free_ns.is_some() {
            return false;
        }
        let stored = i128::from(self.refill(now_ns));
        let left = stored - i128::from(permits) * UPERMITS_PER_PERMIT;
        left > 0 || stored > i128::from(before) * UPERMITS_PER_PERMIT && left >= -i128::from(self.max_debt_upermits)
    }

    pub fn inherit(&mut self, other: &mut Self, now_ns: i64) {
        if other.refill(now_ns) < self.refill(now_ns) {
            self.stored_upermits = other.stored_upermits;
            self.at_ns = self.at_ns.max(other.at_ns);
        }
        self.forgiven_upermits = self.forgiven_upermits.max(other.forgiven_upermits);
    }

    pub fn is_full(&mut self, now_ns: i64) -> bool {
        self.refill(now_ns) >= self.capacity_upermits && self.forgiven_upermits == 0
    }

    #[inline]
    pub fn spend(&mut self, permits: i64) {
        self.stored_upermits = clamped(i128::from(self.stored_upermits) - i128::from(permits) * UPERMITS_PER_PERMIT);
    }
}

#[cfg(test)]
mod tests {
    use super::Bucket;

    fn bucket(rate: i64, capacity: i64, stored: i64) -> Bucket {
        Bucket { rate_upermits_per_s: rate, capacity_upermits: capacity, stored_upermits: stored, ..Bucket::default() }
    }

    #[test]
    fn refills_by_whole_micro_permits_and_loses_no_time() {
        let mut slow = bucket(3, 1_000_000, 0);
        assert_eq!(slow.refill(333_333_333), 0);
        assert_eq!((slow.refill(333_333_334), slow.at_ns), (1, 333_333_334));
        assert_eq!(slow.refill(1_000_000_000), 2);
        assert_eq!(slow.refill(1_000_000_002), 3);
    }

    #[test]
    fn is_full_at_its_capacity_and_forgets_what_was_forgiven() {
        let mut full = Bucket { forgiven_upermits: 10, ..bucket(1_000_000_000, 50, 49) };
        assert_eq!(full.refill(5), 50);
        assert_eq!((full.forgiven_upermits, full.at_ns), (6, 5));
        assert_eq!(full.refill(i64::MAX), 50);
    }

    #[test]
    fn admits_by_what_comes_before_the_last_and_no_deeper_than_the_debt() {
        let mut two = Bucket { max_debt_upermits: 3_000_000, ..bucket(1, 2_000_000, 2_000_000) };
        assert!(two.admits(0, 1, 5));
        assert!(!two.admits(0, 1, 6));
        assert!(!two.admits(0, 2, 5));
        two.open_next_free_ns = Some(0);
        assert!(!two.admits(0, 0, 1));
    }

    #[test]
    fn spending_stops_at_what_64_bits_hold() {
        let mut owing = bucket(1, 1, 0);
        owing.spend(i64::MAX);
        assert_eq!(owing.stored_upermits, i64::MIN);
        assert!(!owing.admits(i64::MAX, i64::MAX, i64::MAX));
    }
}
