//! The ids of recently refused messages. Equivalent to Python's `limiter.counting.repeats`.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashSet};

const HALF_NS: i64 = 30_000_000_000;
const SOON_NS: i64 = 10_000_000_000;

pub struct RefusedIds {
    half: usize,
    new: HashSet<u64>,
    old: HashSet<u64>,
    began_ns: i64,
    /// Number of ids that were dropped early and have not been reported yet.
    unseen: usize,
    hasher: DefaultHashBuilder,
}

impl RefusedIds {
    pub fn new(most: usize) -> Self {
        let (new, old) = (HashSet::new(), HashSet::new());
        Self { half: most / 2, new, old, began_ns: 0, unseen: 0, hasher: DefaultHashBuilder::default() }
    }

    pub fn len(&self) -> usize {
        self.new.len() + self.old.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn see(&mut self, key: i64, message_id: &[u8], now_ns: i64, refused: bool) -> (bool, bool) {
        let number = self.hasher.hash_one((key, message_id));
        self.rotate(now_ns);
        if !refused {
            return (self.new.remove(&number) || self.old.remove(&number), false);
        }
        let is_full = self.new.len() >= self.half;
        let is_new = if is_full { !self.new.contains(&number) } else { self.new.insert(number) };
        if !is_new {
            return (true, true);
        }
        let known = self.old.remove(&number);
        if is_full {
            if now_ns - self.began_ns < SOON_NS {
                self.unseen += self.old.len();
            }
            self.turn(now_ns);
            self.new.insert(number);
        }
        let is_seen = self.unseen == 0;
        self.unseen = self.unseen.saturating_sub(1);
        (known, is_seen)
    }

    #[inline]
    fn rotate(&mut self, now_ns: i64) {
        let age_ns = now_ns - self.began_ns;
        if age_ns >= HALF_NS {
            self.turn(now_ns);
            self.unseen = 0;
            if age_ns >= 2 * HALF_NS {
                self.old.clear();
            }
        }
    }

    fn turn(&mut self, now_ns: i64) {
        std::mem::swap(&mut self.new, &mut self.old);
        self.new.clear();
        self.began_ns = now_ns;
    }
}
