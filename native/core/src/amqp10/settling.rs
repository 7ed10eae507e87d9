//! Tracks which of a session's deliveries have been settled since a given start.

use super::links::Ids;

const MAX_RANGES: usize = 1024;

#[derive(Debug, Default)]
pub struct Settling {
    /// The first id since the start. The other numbers are relative to it.
    first: Option<u32>,
    next: i64,
    unsettled: Vec<(i64, i64)>,
    /// Earlier deliveries that were settled by their receiver, and by their sender.
    before: [Vec<Ids>; 2],
}

impl Settling {
    pub fn new(first: Option<u32>) -> Self {
        Self { first, ..Self::default() }
    }

    fn number(&self, id: u32) -> i64 {
        let first = self.first.unwrap_or(id);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)]
        let ahead = id.wrapping_sub(first.wrapping_add(self.next as u32)) as i32;
        self.next + i64::from(ahead)
    }

    fn id(&self, number: i64) -> u32 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        self.first.unwrap_or(0).wrapping_add(number as u32)
    }

    /// Returns whether deliveries that start at an id follow all others, and there is room for them.
    pub fn takes(&self, id: u32) -> bool {
        self.number(id) >= self.next
            && self.unsettled.len() + self.before.iter().map(Vec::len).sum::<usize>() < MAX_RANGES
    }

    pub fn has_come(&self, id: u32) -> bool {
        self.first.is_some() && self.number(id) < self.next
    }

    /// Add deliveries that `takes` has accepted. Unsettled ranges must be in ascending order.
    pub fn add(&mut self, (first, last): Ids, unsettled: &[Ids]) {
        self.first.get_or_insert(first);
        for &(first, last) in unsettled {
            let span = i64::from(last.wrapping_sub(first));
            let first = self.number(first);
            let last = first + span;
            match self.unsettled.last_mut() {
                Some(before) if before.1 + 1 == first => before.1 = last,
                _ => self.unsettled.push((first, last)),
            }
        }
        self.next = self.number(last) + 1;
    }

    /// Settle a range of less than half of all numbers. Returns how many deliveries were unsettled, and how many may
    /// precede the start.
    pub fn settle(&mut self, (first, last): Ids, by_receiver: bool) -> (u64, u64) {
        if self.first.is_none() {
            return (0, 0);
        }
        let low = self.number(first);
        let high = low + i64::from(last.wrapping_sub(first));
        let before =
            if low < 0 && self.settle_before((first, last), by_receiver) { high.min(-1).abs_diff(low - 1) } else { 0 };
        let begin = self.unsettled.partition_point(|range| range.1 < low);
        let end = self.unsettled.partition_point(|range| range.0 <= high);
        if begin >= end {
            return (0, before);
        }
        let settled = self.unsettled[begin..end].iter().map(|range| range.1.min(high).abs_diff(range.0.max(low) - 1));
        let settled = settled.sum();
        let (lowest, highest) = (self.unsettled[begin].0, self.unsettled[end - 1].1);
        let kept = [(lowest, low - 1), (high + 1, highest)].into_iter().filter(|(first, last)| first <= last);
        self.unsettled.splice(begin..end, kept);
        (settled, before)
    }

    /// Record a settlement that may be of earlier deliveries. Returns false if it has been recorded already.
    fn settle_before(&mut self, ids: Ids, by_receiver: bool) -> bool {
        let before = &mut self.before[usize::from(!by_receiver)];
        match before.last_mut() {
            Some(last) if last.1.wrapping_add(1) == ids.0 => last.1 = ids.1,
            Some(last) if *last == ids => return false,
            _ => before.push(ids),
        }
        true
    }

    /// Set a new start. Returns settled earlier deliveries, unsettled ones, and the last delivery, or None if nothing
    /// has changed.
    pub fn take(&mut self) -> Option<([Vec<Ids>; 2], Vec<Ids>, Option<u32>)> {
        if self.next == 0 && self.before.iter().all(Vec::is_empty) {
            return None;
        }
        let last = (self.next > 0).then(|| self.id(self.next - 1));
        let unsettled = self.unsettled.iter().map(|&(first, last)| (self.id(first), self.id(last))).collect();
        let now = Self::new(last.map_or(self.first, |last| Some(last.wrapping_add(1))));
        Some((std::mem::replace(self, now).before, unsettled, last))
    }
}
