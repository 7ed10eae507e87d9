//! A set of the numbers of requests that have no answer yet.

use std::hash::{BuildHasher, RandomState};

/// A set of i32 with a bound: an open table with linear probing, at most half full.
///
/// Most numbers come one after the other, so sixteen that do share a cache line: its place is a secret of the set, and
/// so is their order in it, so that nobody can choose numbers that collide. If the place is taken, the next line's is
/// tried; only behind the last line the next place in a line.
#[derive(Debug)]
pub struct Opaques {
    /// Zero where nothing is; the number zero itself has its own place.
    slots: Vec<u32>,
    has_zero: bool,
    len: usize,
    most: usize,
    secret: u64,
    ambiguous: bool,
}

const LINE_BITS: u32 = 4;
const LINE_MASK: usize = (1 << LINE_BITS) - 1;
const FEWEST_SLOTS: usize = 64;
/// An empty set with more slots than this gives them back: a connection was busy once, and may be idle now.
const MAX_IDLE_SLOTS: usize = 4096;

impl Opaques {
    pub fn new(most: usize) -> Self {
        let secret = RandomState::new().hash_one(0_u8) | 1;
        Self { slots: Vec::new(), has_zero: false, len: 0, most, secret, ambiguous: false }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a number was ever added that was there already, or for which there was no room.
    pub fn ambiguous(&self) -> bool {
        self.ambiguous
    }

    /// The step of the probing at which the search for a number begins.
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    fn first(&self, number: u32) -> usize {
        let hash = (u64::from(number >> LINE_BITS) + 1).wrapping_mul(self.secret) >> 24;
        let place = (u64::from(number) ^ hash) as usize & LINE_MASK;
        let line = (hash >> 8) as usize & (self.slots.len() - 1) >> LINE_BITS;
        place << (self.slots.len().trailing_zeros() - LINE_BITS) | line
    }

    /// The slot of a step: the steps go through one place of all lines, then through the next.
    #[inline]
    fn slot(&self, step: usize) -> usize {
        let lines = self.slots.len() >> LINE_BITS;
        (step & (lines - 1)) << LINE_BITS | step >> lines.trailing_zeros()
    }

    #[inline]
    fn at(&self, step: usize) -> u32 {
        self.slots[self.slot(step)]
    }

    /// The step of a number, or of the empty slot where it would be.
    #[inline]
    fn find(&self, number: u32) -> Option<usize> {
        let mask = self.slots.len().checked_sub(1)?;
        let mut step = self.first(number);
        loop {
            let found = self.at(step);
            if found == number || found == 0 {
                return Some(step);
            }
            step = (step + 1) & mask;
        }
    }

    /// All numbers, in no order.
    pub fn iter(&self) -> impl Iterator<Item = i32> + '_ {
        let numbers = self.slots.iter().copied().filter(|number| *number != 0);
        numbers.chain(self.has_zero.then_some(0)).map(|number| i32::from_ne_bytes(number.to_ne_bytes()))
    }

    pub fn contains(&self, opaque: i32) -> bool {
        let number = u32::from_ne_bytes(opaque.to_ne_bytes());
        if number == 0 {
            return self.has_zero;
        }
        self.find(number).is_some_and(|step| self.at(step) == number)
    }

    /// Add a number; without effect when the set is full.
    #[inline]
    pub fn add(&mut self, opaque: i32) {
        let number = u32::from_ne_bytes(opaque.to_ne_bytes());
        if self.len >= self.most {
            self.ambiguous = true;
            return;
        }
        if number == 0 {
            self.ambiguous |= self.has_zero;
            self.len += usize::from(!self.has_zero);
            self.has_zero = true;
            return;
        }
        if (self.len + 1) * 2 > self.slots.len() {
            self.grow();
        }
        if let Some(slot) = self.find(number).map(|step| self.slot(step)) {
            let new = self.slots[slot] == 0;
            self.ambiguous |= !new;
            self.len += usize::from(new);
            self.slots[slot] = number;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let slots = (self.slots.len() * 2).max(FEWEST_SLOTS);
        let numbers = std::mem::replace(&mut self.slots, vec![0; slots]);
        for number in numbers.into_iter().filter(|number| *number != 0) {
            if let Some(slot) = self.find(number).map(|step| self.slot(step)) {
                self.slots[slot] = number;
            }
        }
    }

    /// Take a number out; returns whether it was there.
    #[inline]
    pub fn discard(&mut self, opaque: i32) -> bool {
        let number = u32::from_ne_bytes(opaque.to_ne_bytes());
        if number == 0 {
            let was = std::mem::take(&mut self.has_zero);
            self.len -= usize::from(was);
            return was;
        }
        let Some(mut hole) = self.find(number).filter(|step| self.at(*step) == number) else { return false };
        self.len -= 1;
        // Whatever stands behind the hole and would no longer be found moves into it.
        let mask = self.slots.len() - 1;
        let mut step = hole;
        loop {
            step = (step + 1) & mask;
            let other = self.at(step);
            if other == 0 {
                break;
            }
            if step.wrapping_sub(self.first(other)) & mask >= step.wrapping_sub(hole) & mask {
                let slot = self.slot(hole);
                self.slots[slot] = other;
                hole = step;
            }
        }
        let slot = self.slot(hole);
        self.slots[slot] = 0;
        if self.len == 0 && self.slots.len() > MAX_IDLE_SLOTS {
            self.slots = Vec::new();
        }
        true
    }
}
