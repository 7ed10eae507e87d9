//! The ids of what was refused of late: `limiter.counting.repeats` in Python word for word; a test holds both equal.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

use crate::keys::hash_text;

const HALF_NS: i64 = 30_000_000_000;
const SOON_NS: i64 = 10_000_000_000;

/// What is kept are hashes already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |number, byte| number << 8 | u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

type Ids = HashSet<u64, BuildHasherDefault<AsItIs>>;

/// The ids of what was refused of late, in two generations.
pub struct RefusedIds {
    half: usize,
    new: Ids,
    old: Ids,
    began_ns: i64,
    /// Of the ids that were forgotten early so many have not been told so far.
    unseen: usize,
    secret: u64,
}

impl RefusedIds {
    pub fn new(most: usize) -> Self {
        let secret = RandomState::new().hash_one(0_u8) | 1;
        Self { half: most / 2, new: Ids::default(), old: Ids::default(), began_ns: 0, unseen: 0, secret }
    }

    pub fn len(&self) -> usize {
        self.new.len() + self.old.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Say whether a message comes again, and whether it is refused and a repeat of it will be seen.
    #[inline]
    pub fn see(&mut self, key: i64, message_id: &[u8], now_ns: i64, refused: bool) -> (bool, bool) {
        let number = hash_text(self.secret, u64::from_ne_bytes(key.to_ne_bytes()), message_id);
        self.grow_old(now_ns);
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
    fn grow_old(&mut self, now_ns: i64) {
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
