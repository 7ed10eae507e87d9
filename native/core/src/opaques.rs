//! The opaques of requests without an answer.

use hashbrown::HashMap;

/// A block contains two to this power of numbers, most of which are consecutive.
const BLOCK_BITS: u32 = 5;
const MAX_IDLE_BLOCKS: usize = 1024;

/// For each number, whether it is present, and whether it belongs to a send.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    bits: u32,
    sends: u32,
}

#[derive(Debug)]
pub struct Opaques {
    /// Non-empty blocks. The hasher is keyed, so clients cannot cause collisions.
    blocks: HashMap<i32, Block>,
    len: usize,
    sends: usize,
    most: usize,
    ambiguous: bool,
}

#[inline]
fn place(opaque: i32) -> (i32, u32) {
    (opaque >> BLOCK_BITS, 1 << (opaque & ((1 << BLOCK_BITS) - 1)))
}

impl Opaques {
    pub fn new(most: usize) -> Self {
        Self { blocks: HashMap::new(), len: 0, sends: 0, most, ambiguous: false }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn sends(&self) -> usize {
        self.sends
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a number was added twice, or there was no room for one.
    pub fn ambiguous(&self) -> bool {
        self.ambiguous
    }

    pub fn iter(&self) -> impl Iterator<Item = i32> + '_ {
        let numbers = |(block, of): (&i32, &Block)| {
            let (first, bits) = (block << BLOCK_BITS, of.bits);
            (0..1 << BLOCK_BITS).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| first | bit)
        };
        self.blocks.iter().flat_map(numbers)
    }

    pub fn contains(&self, opaque: i32) -> bool {
        let (block, bit) = place(opaque);
        self.blocks.get(&block).is_some_and(|block| block.bits & bit != 0)
    }

    #[inline]
    pub fn add(&mut self, opaque: i32, is_send: bool) {
        if self.len >= self.most {
            self.ambiguous = true;
            return;
        }
        let (block, bit) = place(opaque);
        let block = self.blocks.entry(block).or_default();
        let is_new = block.bits & bit == 0;
        let was_send = block.sends & bit != 0;
        block.bits |= bit;
        // The later request determines whether this is a send.
        block.sends ^= if is_send == was_send { 0 } else { bit };
        self.len += usize::from(is_new);
        self.sends = self.sends - usize::from(was_send) + usize::from(is_send);
        self.ambiguous |= !is_new;
    }

    /// Removes a number. Returns whether it belongs to a send, or None if it is unknown.
    #[inline]
    pub fn settle(&mut self, opaque: i32) -> Option<bool> {
        let (number, bit) = place(opaque);
        let block = self.blocks.get_mut(&number).filter(|block| block.bits & bit != 0)?;
        let is_send = block.sends & bit != 0;
        block.bits ^= bit;
        block.sends &= !bit;
        self.len -= 1;
        self.sends -= usize::from(is_send);
        if block.bits == 0 {
            self.blocks.remove(&number);
            if self.blocks.is_empty() && self.blocks.capacity() > MAX_IDLE_BLOCKS {
                self.blocks = HashMap::new();
            }
        }
        Some(is_send)
    }
}
