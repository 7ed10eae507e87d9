//! Rewrites the delivery numbers in frames to the other peer's numbers.

use super::frame::{self, write_changed, write_uint, Fields, Frame, NotPlain};
use super::links::HALF;

/// An offset for delivery numbers from `from` on, or for all numbers if `from` is None.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    pub from: Option<u32>,
    pub by: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    pub channel: u16,
    /// Subtracted from the ids of deliveries that the frames' sender sends.
    pub sent: Difference,
    /// Added to the ids of deliveries that the frames' sender receives.
    pub received: Difference,
}

impl Difference {
    fn check(&self, number: u32) -> Result<(), NotPlain> {
        let is_behind = self.from.is_none_or(|from| number.wrapping_sub(from) < HALF);
        is_behind.then_some(()).ok_or(NotPlain)
    }
}

impl Numbers {
    fn other(&self, number: u32, is_received: bool) -> Result<u32, NotPlain> {
        if is_received {
            self.received.check(number)?;
            return Ok(number.wrapping_add(self.received.by));
        }
        self.sent.check(number)?;
        Ok(number.wrapping_sub(self.sent.by))
    }
}

/// Write frames, with the other peer's numbers in transfers and dispositions of `sessions`, which are sorted by
/// channel. Frames of other sessions are written unchanged.
///
/// Returns the offset of the first frame that is not written because it has another type, has older numbers, or would
/// exceed `max_bytes`.
pub fn renumber(
    chunk: &[u8],
    position: usize,
    stop: usize,
    sessions: &[Numbers],
    max_bytes: usize,
    out: &mut Vec<u8>,
) -> usize {
    let mut at = position;
    let mut instead = Vec::new();
    while at < stop {
        let Some(frame) = Frame::at(chunk, at) else { break };
        let numbers = sessions.binary_search_by_key(&frame.channel, |numbers| numbers.channel);
        let whole = &chunk[at..frame.stop];
        match numbers.ok().and_then(|place| sessions.get(place)) {
            Some(numbers) if !frame.body.is_empty() => {
                instead.clear();
                let written = out.len();
                if write(&frame, whole, numbers, &mut instead, out).is_err() || out.len() - written > max_bytes {
                    out.truncate(written);
                    break;
                }
            }
            _ => out.extend_from_slice(whole),
        }
        at = frame.stop;
    }
    at
}

fn write(
    frame: &Frame,
    whole: &[u8],
    numbers: &Numbers,
    instead: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<(), NotPlain> {
    let (code, mut fields, payload) = frame::performative(frame.body)?;
    let at = |fields: &Fields| whole.len() - payload.len() - fields.len();
    let begins = match code {
        frame::TRANSFER => {
            fields.uint()?;
            let begins = at(&fields);
            if let Some(id) = fields.uint()? {
                write_uint(numbers.other(id, false)?, instead);
            }
            begins
        }
        frame::DISPOSITION => {
            let is_received = fields.boolean()?.ok_or(NotPlain)?;
            let begins = at(&fields);
            let first = fields.uint()?.ok_or(NotPlain)?;
            write_uint(numbers.other(first, is_received)?, instead);
            let mut rest = fields;
            if let Some(last) = rest.uint()? {
                fields = rest;
                write_uint(numbers.other(last, is_received)?, instead);
            }
            begins
        }
        _ => return Err(NotPlain),
    };
    if instead.is_empty() {
        out.extend_from_slice(whole);
        return Ok(());
    }
    write_changed(whole, begins..at(&fields), instead, out)
}
