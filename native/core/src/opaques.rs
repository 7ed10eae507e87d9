//! A set of the numbers of requests that have no answer yet.

use hashbrown::HashMap;

/// So many numbers in a row share a block, since most come one after the other.
const BLOCK_BITS: u32 = 5;
/// An empty set with room for more blocks gives it back: a connection was busy once, and may be idle now.
const MAX_IDLE_BLOCKS: usize = 1024;

/// A set of i32 with a bound.
#[derive(Debug)]
pub struct Opaques {
    /// Those that are not empty, a bit for each number; nobody can choose numbers that collide.
    blocks: HashMap<i32, u32>,
    len: usize,
    most: usize,
    ambiguous: bool,
}

#[inline]
fn place(opaque: i32) -> (i32, u32) {
    (opaque >> BLOCK_BITS, 1 << (opaque & ((1 << BLOCK_BITS) - 1)))
}

impl Opaques {
    pub fn new(most: usize) -> Self {
        Self { blocks: HashMap::new(), len: 0, most, ambiguous: false }
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

    /// All numbers, in no order.
    pub fn iter(&self) -> impl Iterator<Item = i32> + '_ {
        let numbers = |(block, bits): (&i32, &u32)| {
            let (first, bits) = (block << BLOCK_BITS, *bits);
            (0..1 << BLOCK_BITS).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| first | bit)
        };
        self.blocks.iter().flat_map(numbers)
    }

    pub fn contains(&self, opaque: i32) -> bool {
        let (block, bit) = place(opaque);
        self.blocks.get(&block).is_some_and(|bits| bits & bit != 0)
    }

    /// Add a number; without effect when the set is full.
    #[inline]
    pub fn add(&mut self, opaque: i32) {
        if self.len >= self.most {
            self.ambiguous = true;
            return;
        }
        let (block, bit) = place(opaque);
        let bits = self.blocks.entry(block).or_default();
        let is_new = *bits & bit == 0;
        *bits |= bit;
        self.len += usize::from(is_new);
        self.ambiguous |= !is_new;
    }

    /// Take a number out; returns whether it was there.
    #[inline]
    pub fn discard(&mut self, opaque: i32) -> bool {
        let (block, bit) = place(opaque);
        let Some(bits) = self.blocks.get_mut(&block).filter(|bits| **bits & bit != 0) else { return false };
        *bits ^= bit;
        self.len -= 1;
        if *bits == 0 {
            self.blocks.remove(&block);
            if self.blocks.is_empty() && self.blocks.capacity() > MAX_IDLE_BLOCKS {
                self.blocks = HashMap::new();
            }
        }
        true
    }
}
