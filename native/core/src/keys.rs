//! Numbers for what requests are charged to: each distinct entry, name and producer group has one.

use std::hash::{BuildHasher, RandomState};

/// One key, and which run of the chunk in hand it has.
#[derive(Debug)]
struct Key {
    hash: u64,
    /// The name, and the group behind it.
    bytes: Box<[u8]>,
    name_bytes: u32,
    entry: u8,
    chunk: u32,
    run: u32,
}

impl Key {
    #[inline]
    fn is(&self, entry: u8, name: &[u8], group: &[u8]) -> bool {
        self.entry == entry
            && self
                .bytes
                .split_at_checked(self.name_bytes as usize)
                .is_some_and(|(known_name, known_group)| same(known_name, name) && same(known_group, group))
    }
}

/// The keys of one connection, by number.
#[derive(Debug)]
pub struct Keys {
    all: Vec<Key>,
    /// An open table of numbers plus one, at most half full.
    slots: Vec<u32>,
    last: usize,
    chunk: u32,
    secret: u64,
}

const FEWEST_SLOTS: usize = 8;

impl Default for Keys {
    fn default() -> Self {
        Self { all: Vec::new(), slots: Vec::new(), last: 0, chunk: 0, secret: RandomState::new().hash_one(0_u8) | 1 }
    }
}

impl Keys {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Begin a chunk, with no runs; forget all keys if there are more than `most`.
    pub fn begin(&mut self, most: usize) {
        self.chunk = self.chunk.wrapping_add(1);
        if self.all.len() > most || self.chunk == 0 {
            self.all.clear();
            self.slots.clear();
            self.chunk = 1;
        }
    }

    /// The number of a key; None if it is new.
    #[inline]
    pub fn find(&mut self, entry: u8, name: &[u8], group: &[u8]) -> Option<usize> {
        if self.all.get(self.last).is_some_and(|key| key.is(entry, name, group)) {
            return Some(self.last);
        }
        let hash = self.hash(entry, name, group);
        let mask = self.slots.len().checked_sub(1)?;
        #[allow(clippy::cast_possible_truncation)]
        let mut slot = hash as usize & mask;
        while self.slots[slot] != 0 {
            let number = self.slots[slot] as usize - 1;
            let key = &self.all[number];
            if key.hash == hash && key.is(entry, name, group) {
                self.last = number;
                return Some(number);
            }
            slot = (slot + 1) & mask;
        }
        None
    }

    /// Give a new key its number; None if there are none left.
    pub fn add(&mut self, entry: u8, name: &[u8], group: &[u8]) -> Option<usize> {
        let hash = self.hash(entry, name, group);
        let name_bytes = u32::try_from(name.len()).ok()?;
        let number = self.all.len();
        u32::try_from(number + 1).ok()?;
        self.all.push(Key { hash, bytes: [name, group].concat().into(), name_bytes, entry, chunk: 0, run: 0 });
        if self.all.len() * 2 > self.slots.len() {
            let slots = (self.slots.len() * 2).max(FEWEST_SLOTS);
            self.slots.clear();
            self.slots.resize(slots, 0);
            (0..number).for_each(|number| self.enter(number));
        }
        self.enter(number);
        self.last = number;
        Some(number)
    }

    #[allow(clippy::cast_possible_truncation)]
    fn enter(&mut self, number: usize) {
        let mask = self.slots.len() - 1;
        let mut slot = self.all[number].hash as usize & mask;
        while self.slots[slot] != 0 {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = number as u32 + 1;
    }

    /// The run that a key has in this chunk; `next` if it has none yet.
    #[inline]
    pub fn run(&mut self, number: usize, next: u32) -> u32 {
        let Some(key) = self.all.get_mut(number) else {
            return next;
        };
        if key.chunk != self.chunk {
            key.chunk = self.chunk;
            key.run = next;
        }
        key.run
    }

    /// A hash that nobody outside can foresee.
    #[inline]
    fn hash(&self, entry: u8, name: &[u8], group: &[u8]) -> u64 {
        let lengths = (name.len() as u64) << 8 | (group.len() as u64) << 32 | u64::from(entry);
        let state = fold(self.secret ^ lengths, self.secret);
        mix(self.secret, mix(self.secret, state, name), group)
    }
}

/// A hash of a text and of what it belongs to, that nobody can foresee who does not know the secret.
#[inline]
pub(crate) fn hash_text(secret: u64, of: u64, text: &[u8]) -> u64 {
    let state = fold(fold(secret ^ text.len() as u64, secret) ^ of, secret);
    mix(secret, state, text)
}

#[inline]
fn mix(secret: u64, mut state: u64, text: &[u8]) -> u64 {
    let mut rest = text;
    while let Some((word, after)) = rest.split_first_chunk::<8>() {
        state = fold(state ^ u64::from_le_bytes(*word), secret);
        rest = after;
    }
    let mut word = 0;
    for byte in rest {
        word = word << 8 | u64::from(*byte);
    }
    fold(state ^ word, secret)
}

/// Whether two texts are the same: as `==`, without a call for the few bytes that most names have.
#[inline]
fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() || a.len() > 64 {
        return a == b;
    }
    let (mut rest_a, mut rest_b) = (a, b);
    while let (Some((word_a, after_a)), Some((word_b, after_b))) =
        (rest_a.split_first_chunk::<8>(), rest_b.split_first_chunk::<8>())
    {
        if u64::from_le_bytes(*word_a) != u64::from_le_bytes(*word_b) {
            return false;
        }
        (rest_a, rest_b) = (after_a, after_b);
    }
    rest_a.iter().zip(rest_b).all(|(a, b)| a == b)
}

/// Both halves of the product of two numbers, one upon the other.
#[inline]
#[allow(clippy::cast_possible_truncation)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}
