//! Parses flows, and rewrites them with other fields.

use super::frame::{self, Fields, Frame, NotPlain, FLOW};

const FIELDS: usize = 11;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub channel: u16,
    pub start: usize,
    pub stop: usize,
    pub before: usize,
    pub numbers: [Option<u32>; 7],
    pub drain: bool,
}

impl Flow {
    #[inline]
    pub(super) fn of(frame: &Frame, start: usize, before: usize, mut fields: Fields) -> Result<Self, NotPlain> {
        let mut numbers = [None; 7];
        for number in &mut numbers {
            *number = fields.uint()?;
        }
        if numbers[1..4].contains(&None) {
            return Err(NotPlain);
        }
        fields.uint()?;
        let drain = fields.boolean()?.unwrap_or(false);
        fields.boolean()?;
        fields.skip_null()?;
        fields.end()?;
        Ok(Self { channel: frame.channel, start, stop: frame.stop, before, numbers, drain })
    }

    /// Returns delivery-count plus link-credit, or None if the receiver does not know the delivery-count.
    pub fn limit(&self) -> Option<u32> {
        Some(self.numbers[5]?.wrapping_add(self.numbers[6].unwrap_or(0)))
    }

    pub fn handle(&self) -> Option<u32> {
        self.numbers[4]
    }
}

/// Replace fields in a flow's frame, given as numbers and encoded values. Returns None if a field does not exist.
pub fn reflow(frame: &[u8], changes: &[(usize, &[u8])]) -> Option<Vec<u8>> {
    let whole = Frame::at(frame, 0)?;
    let (code, mut fields, payload) = frame::performative(whole.body).ok()?;
    if code != FLOW || !payload.is_empty() {
        return None;
    }
    let mut raw: [&[u8]; FIELDS] = [Fields::LEFT_OUT; FIELDS];
    let mut count = 0;
    while let Some(field) = fields.raw().ok()? {
        *raw.get_mut(count)? = field;
        count += 1;
    }
    for &(number, instead) in changes {
        *raw.get_mut(number)? = instead;
    }
    let count = raw.iter().rposition(|field| *field != Fields::LEFT_OUT).map_or(0, |last| last + 1);
    let mut out = Vec::with_capacity(frame.len() + 4 * changes.len());
    frame::write_frame(whole.channel, FLOW, &raw[..count], &mut out).ok()?;
    Some(out)
}
