//! What is found by keys that the peers choose, most often by the same as before.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

#[derive(Debug)]
pub struct Slots<K, V> {
    places: BTreeMap<K, usize>,
    values: Vec<V>,
    free: Vec<usize>,
    last: Option<(K, usize)>,
}

impl<K, V> Default for Slots<K, V> {
    fn default() -> Self {
        Self { places: BTreeMap::new(), values: Vec::new(), free: Vec::new(), last: None }
    }
}

impl<K: Copy + Ord, V: Default> Slots<K, V> {
    #[inline]
    fn place(&mut self, key: K) -> Option<usize> {
        if let Some((last, place)) = self.last {
            if last == key {
                return Some(place);
            }
        }
        let place = *self.places.get(&key)?;
        self.last = Some((key, place));
        Some(place)
    }

    #[inline]
    pub fn get(&mut self, key: K) -> Option<&mut V> {
        let place = self.place(key)?;
        self.values.get_mut(place)
    }

    /// The value of a key, made if there is none.
    pub fn make(&mut self, key: K) -> &mut V {
        let place = if let Some(place) = self.place(key) {
            place
        } else {
            let place = self.free.pop().unwrap_or_else(|| {
                self.values.push(V::default());
                self.values.len() - 1
            });
            self.places.insert(key, place);
            place
        };
        &mut self.values[place]
    }

    pub fn remove(&mut self, key: K) -> Option<V> {
        let place = self.places.remove(&key)?;
        self.last = None;
        self.free.push(place);
        Some(std::mem::take(&mut self.values[place]))
    }

    pub fn remove_all(&mut self, keys: RangeInclusive<K>) {
        let gone: Vec<K> = self.places.range(keys).map(|(key, _)| *key).collect();
        for key in gone {
            self.remove(key);
        }
    }
}
