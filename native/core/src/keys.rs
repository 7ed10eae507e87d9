//! Assigns numbers to the keys of requests. A key is a layout, a name and a producer group.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

#[derive(Debug)]
struct Key {
    hash: u64,
    layout: u8,
    /// Name and group in one box, because comparisons with an empty box are slow.
    text: Box<[u8]>,
    name_bytes: usize,
    chunk: u32,
    run: u32,
}

impl Key {
    #[inline]
    fn is(&self, layout: u8, name: &[u8], group: &[u8]) -> bool {
        let (own_name, own_group) = self.text.split_at(self.name_bytes);
        self.layout == layout && own_name == name && own_group == group
    }
}

#[derive(Debug, Default)]
pub struct Keys {
    all: Vec<Key>,
    numbers: HashTable<usize>,
    hasher: DefaultHashBuilder,
    last: usize,
    chunk: u32,
}

impl Keys {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn begin(&mut self, most: usize) {
        self.chunk = self.chunk.wrapping_add(1);
        if self.all.len() > most || self.chunk == 0 {
            self.all.clear();
            self.numbers.clear();
            self.chunk = 1;
        }
    }

    #[inline]
    pub fn find(&mut self, layout: u8, name: &[u8], group: &[u8]) -> Option<usize> {
        if !self.all.get(self.last).is_some_and(|key| key.is(layout, name, group)) {
            let hash = self.hasher.hash_one((layout, name, group));
            self.last = *self.numbers.find(hash, |number| self.all[*number].is(layout, name, group))?;
        }
        Some(self.last)
    }

    pub fn add(&mut self, layout: u8, name: &[u8], group: &[u8]) -> usize {
        let hash = self.hasher.hash_one((layout, name, group));
        self.last = self.all.len();
        let text = [name, group].concat().into();
        self.all.push(Key { hash, layout, text, name_bytes: name.len(), chunk: 0, run: 0 });
        self.numbers.insert_unique(hash, self.last, |number| self.all[*number].hash);
        self.last
    }

    #[inline]
    pub fn run(&mut self, number: usize, next: u32) -> u32 {
        let key = &mut self.all[number];
        if key.chunk != self.chunk {
            key.chunk = self.chunk;
            key.run = next;
        }
        key.run
    }
}
