//! The broker's confirms, translated to the client's numbers.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;

const KEPT: usize = 1024;

/// See `proxy.protocols.amqp091.confirms.Numbers`.
pub type Numbers = (u64, u64, Option<u64>, u64, HashSet<u64>, HashMap<u64, u64>);

#[derive(Debug, Default)]
pub struct Confirms {
    /// The client's numbers, indexed by the broker's number minus `before`. 0 if confirmed.
    waiting: VecDeque<u64>,
    before: u64,
    count: usize,
    /// Numbers of client and broker are equal up to this number. None if they always were.
    alike: Option<u64>,
}

impl Confirms {
    pub fn new((_, sent, alike, first_open, ahead, numbers): &Numbers) -> Self {
        let number = |tag| if ahead.contains(&tag) { 0 } else { *numbers.get(&tag).unwrap_or(&tag) };
        let waiting: VecDeque<u64> = (*first_open..=*sent).map(number).collect();
        let count = waiting.iter().filter(|publish| **publish != 0).count();
        Self { waiting, before: first_open.saturating_sub(1), count, alike: *alike }
    }

    pub fn numbers(&self, published: u64) -> Numbers {
        let waiting = || (self.before + 1..).zip(self.waiting.iter().copied());
        let ahead = waiting().filter(|(_, publish)| *publish == 0).map(|(tag, _)| tag).collect();
        let differs = |tag: u64| self.alike.is_some_and(|alike| tag > alike);
        let numbers = waiting().filter(|(tag, publish)| *publish != 0 && differs(*tag)).collect();
        (published, self.sent(), self.alike, self.before + 1, ahead, numbers)
    }

    pub fn len(&self) -> usize {
        self.count
    }

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

    fn at(&self, number: u64) -> Option<usize> {
        let at = usize::try_from(number.checked_sub(self.before)?.checked_sub(1)?).ok()?;
        (at < self.waiting.len()).then_some(at)
    }

    pub fn is_open(&self, number: u64) -> bool {
        number > self.sent() || self.at(number).is_some_and(|at| self.waiting[at] != 0)
    }

    /// Returns whether a confirm can be forwarded unchanged.
    #[inline]
    pub(super) fn is_right(&self, number: u64, multiple: bool) -> bool {
        (1..=self.alike.unwrap_or(self.sent())).contains(&number)
            && (multiple || self.at(number).is_some_and(|at| self.waiting[at] != 0))
    }

    #[inline]
    pub(super) fn settle(&mut self, number: u64, multiple: bool, mut each: impl FnMut(u64)) {
        let settled = match self.at(number) {
            Some(at) if multiple => 0..at + 1,
            Some(at) => at..at + 1,
            None if multiple && (number == 0 || number > self.before) => 0..self.waiting.len(),
            None => return,
        };
        for publish in self.waiting.range_mut(settled) {
            let publish = mem::take(publish);
            if publish != 0 {
                self.count -= 1;
                each(publish);
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
}
