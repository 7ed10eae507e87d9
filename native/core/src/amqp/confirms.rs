//! The broker's confirms: its numbers become those of the client.

use std::collections::VecDeque;
use std::mem;

/// A set that held more is made smaller when it is empty.
const KEPT: usize = 1024;
/// The bit of a number of the client's of which the broker's answer is withheld; without a number once it is answered
/// by somebody else.
const WITHHELD: u64 = 1 << 63;

/// The publishes of one channel that the broker has not confirmed.
#[derive(Debug, Default)]
pub struct Confirms {
    /// By the broker's number, from behind `before` on, that of the client; 0 is confirmed.
    waiting: VecDeque<u64>,
    /// How many there are before the first that waits.
    before: u64,
    count: usize,
    /// How many of these are withheld.
    pub(super) withheld: usize,
    /// Up to this number both count alike; None while they always did.
    alike: Option<u64>,
}

impl Confirms {
    /// How many the broker is to confirm to the client.
    pub fn len(&self) -> usize {
        self.count - self.withheld
    }

    /// How many went on to the broker, which is its number of the last.
    pub fn sent(&self) -> u64 {
        self.before + self.waiting.len() as u64
    }

    #[inline]
    pub fn forward(&mut self, publish: u64) {
        let sent = self.sent();
        if self.alike.is_none() && publish != sent + 1 {
            self.alike = Some(sent);
        }
        self.waiting.push_back(publish);
        self.count += 1;
    }

    /// Withhold what the broker says of the last, but for a nack; returns its number.
    pub fn withhold(&mut self) -> u64 {
        let sent = self.sent();
        if let Some(publish) = self.waiting.back_mut().filter(|publish| **publish & WITHHELD == 0 && **publish != 0) {
            *publish |= WITHHELD;
            self.withheld += 1;
            self.alike.get_or_insert(sent - 1);
        }
        sent
    }

    fn withheld(&mut self, number: u64) -> Option<&mut u64> {
        let at = self.at(number)?;
        self.waiting.get_mut(at).filter(|publish| **publish & WITHHELD != 0)
    }

    /// Note that one that is withheld is answered: not even a nack goes on.
    pub fn settle_withheld(&mut self, number: u64) {
        if let Some(publish) = self.withheld(number) {
            *publish = WITHHELD;
        }
    }

    /// Withhold no more what the broker says of one.
    pub fn release(&mut self, number: u64) {
        if let Some(publish) = self.withheld(number).filter(|publish| **publish != WITHHELD) {
            *publish &= !WITHHELD;
            self.withheld -= 1;
        }
    }

    /// Where a broker's number stands in `waiting`.
    fn at(&self, number: u64) -> Option<usize> {
        let at = usize::try_from(number.checked_sub(self.before)?.checked_sub(1)?).ok()?;
        (at < self.waiting.len()).then_some(at)
    }

    /// Whether nothing was said yet of a broker's number.
    pub fn is_open(&self, number: u64) -> bool {
        number > self.sent() || self.at(number).is_some_and(|at| self.waiting[at] != 0)
    }

    /// Whether the client may hear a confirm as it is.
    #[inline]
    pub(super) fn is_right(&self, number: u64, multiple: bool) -> bool {
        // Up to there all that the client has sent has gone to the broker.
        (1..=self.alike.unwrap_or(self.sent())).contains(&number)
            && (multiple || self.at(number).is_some_and(|at| self.waiting[at] != 0))
    }

    /// Take out what the broker confirms, or refuses; `each` gets the client's numbers that it is to hear of.
    #[inline]
    pub(super) fn settle(&mut self, number: u64, multiple: bool, refused: bool, mut each: impl FnMut(u64)) {
        let settled = match self.at(number) {
            Some(at) if multiple => 0..at + 1,
            Some(at) => at..at + 1,
            None if multiple && (number == 0 || number > self.before) => 0..self.waiting.len(),
            None => return,
        };
        for publish in self.waiting.range_mut(settled) {
            let publish = mem::take(publish);
            if publish == 0 {
                continue;
            }
            self.count -= 1;
            if publish & WITHHELD == 0 {
                each(publish);
                continue;
            }
            self.withheld -= 1;
            if refused && publish != WITHHELD {
                each(publish & !WITHHELD);
            }
        }
        while self.waiting.front() == Some(&0) {
            self.waiting.pop_front();
            self.before += 1;
        }
        if self.waiting.is_empty() && self.waiting.capacity() > KEPT {
            self.waiting.shrink_to(KEPT);
        }
    }

    /// Take a confirm of the broker's; returns the client's numbers that it is for, or None if it is right as it is.
    pub fn answered(&mut self, number: u64, multiple: bool, refused: bool) -> Option<Vec<u64>> {
        let is_right = self.is_right(number, multiple);
        let mut numbers = Vec::new();
        self.settle(number, multiple, refused, |publish| numbers.push(publish));
        (!is_right).then_some(numbers)
    }
}
