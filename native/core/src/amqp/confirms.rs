//! The broker's confirms: its numbers become those of the client.

use std::collections::VecDeque;
use std::mem;

use super::channel::Channels;
use super::frame::{self, Frame};

/// A set that held more is made smaller when it is empty.
const KEPT: usize = 1024;
const MULTIPLE: u8 = 1;
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
    withheld: usize,
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
    fn is_right(&self, number: u64, multiple: bool) -> bool {
        // Up to there all that the client has sent has gone to the broker.
        (1..=self.alike.unwrap_or(self.sent())).contains(&number)
            && (multiple || self.at(number).is_some_and(|at| self.waiting[at] != 0))
    }

    /// Take out what the broker confirms, or refuses; `each` gets the client's numbers that it is to hear of.
    #[inline]
    fn settle(&mut self, number: u64, multiple: bool, refused: bool, mut each: impl FnMut(u64)) {
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

/// What goes on to the client.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// Of the chunk, from and to.
    Slice(usize, usize),
    Bytes(Vec<u8>),
}

/// What goes on of frames, put together from what stays as it is and what is written anew.
struct Parts {
    done: Vec<Part>,
    /// Written, and not among these yet.
    written: Vec<u8>,
    /// Where what follows it begins in the chunk.
    from: usize,
    /// Something is written anew, or left out.
    changed: bool,
}

impl Parts {
    /// Leave out what is from `start` to `stop`; returns where to write what is to stand there.
    fn instead(&mut self, start: usize, stop: usize) -> &mut Vec<u8> {
        self.keep(start);
        self.from = stop;
        self.changed = true;
        &mut self.written
    }

    fn keep(&mut self, until: usize) {
        if self.from < until {
            if !self.written.is_empty() {
                self.done.push(Part::Bytes(mem::take(&mut self.written)));
            }
            self.done.push(Part::Slice(self.from, until));
        }
    }

    fn end(mut self, at: usize) -> Option<Vec<Part>> {
        self.keep(at);
        if !self.written.is_empty() {
            self.done.push(Part::Bytes(self.written));
        }
        self.changed.then_some(self.done)
    }
}

/// The name of the field of a message that is to be restored.
const MARK: &[u8] = b"\x10x-sluice-confirm";
/// The high byte of the flags that say what properties there are, and the bit of a table in it.
const FLAGS_AT: usize = 12;
const TABLE: u8 = 1 << 5;

/// Whether a content header may hold a mark.
fn is_marked(header: &[u8]) -> bool {
    if header.get(FLAGS_AT).is_none_or(|flags| flags & TABLE == 0) {
        return false;
    }
    let begins = header.iter().enumerate().filter(|(_, byte)| **byte == MARK[0]);
    begins.into_iter().any(|(at, _)| header[at..].starts_with(MARK))
}

/// Where the content that a method begins ends, and how many frames it is; None if it is not there as a whole, or
/// marked, or if one of its bodies is longer than a frame may be. The broker bounds no other frames.
fn whole(chunk: &[u8], method: &Frame, frame_max: usize) -> Option<(usize, usize)> {
    let header = Frame::at(chunk, method.stop).filter(|frame| frame.kind == frame::HEADER)?;
    let size = header.payload?.get(4..12)?.first_chunk::<8>()?;
    if is_marked(header.payload?) {
        return None;
    }
    let (mut rest, mut at, mut frames) = (u64::from_be_bytes(*size), header.stop, 2);
    let mut last = header;
    while rest > 0 {
        let body = Frame::at(chunk, at).filter(|frame| frame.kind == frame::BODY && frame.channel == last.channel)?;
        if body.stop - body.start > frame_max {
            return None;
        }
        let bytes = u64::try_from(body.payload?.len()).ok().filter(|bytes| *bytes > 0)?;
        rest = rest.checked_sub(bytes)?;
        (at, frames, last) = (body.stop, frames + 1, body);
    }
    (last.channel == method.channel).then_some((at, frames))
}

impl Channels {
    /// Step over confirms and heartbeats of the broker, and with `contents` over deliveries and returns that are there
    /// as a whole, one frame behind the other. No body may be in a frame longer than `frame_max`.
    ///
    /// Returns the offset of the first frame that is something else, how many frames were stepped over, and what
    /// goes on of them; None if they do as they are.
    pub fn settle(
        &mut self,
        chunk: &[u8],
        position: usize,
        contents: bool,
        frame_max: usize,
    ) -> (usize, usize, Option<Vec<Part>>) {
        let mut parts = Parts { done: Vec::new(), written: Vec::new(), from: position, changed: false };
        let (mut at, mut frames) = (position, 0);
        while let Some(frame) = Frame::at(chunk, at) {
            let known = match (frame.kind, frame.payload) {
                (frame::HEARTBEAT, Some([])) => Some((frame.stop, 1)),
                (frame::METHOD, Some(payload)) => match frame::method(payload) {
                    Some((method @ (frame::ACK | frame::NACK), arguments)) => {
                        self.confirm(&frame, method, arguments, &mut parts).map(|()| (frame.stop, 1))
                    }
                    Some((frame::RETURN, _)) if contents => whole(chunk, &frame, frame_max),
                    Some((frame::DELIVER, arguments)) if contents => {
                        whole(chunk, &frame, frame_max).filter(|_| self.note_delivery(frame.channel, arguments))
                    }
                    _ => None,
                },
                _ => None,
            };
            let Some((stop, count)) = known else { break };
            at = stop;
            frames += count;
        }
        (at, frames, parts.end(at))
    }

    /// Note the number of a delivery, if that is asked for; false if it cannot be read.
    #[inline]
    fn note_delivery(&mut self, channel: u16, arguments: &[u8]) -> bool {
        if self.delivered.is_empty() {
            return true;
        }
        let Some(last) = self.delivered.get_mut(&channel) else { return true };
        let number = frame::short_string(arguments).and_then(|(_, rest)| rest.first_chunk::<8>());
        number.is_some_and(|number| {
            *last = u64::from_be_bytes(*number);
            true
        })
    }

    /// Take a confirm, and write it anew unless it is right as it is; None if there is none to take.
    #[inline]
    fn confirm(&mut self, frame: &Frame, method: u32, arguments: &[u8], parts: &mut Parts) -> Option<()> {
        let (publish, &[bits]) = arguments.split_first_chunk::<8>()? else { return None };
        let (publish, multiple) = (u64::from_be_bytes(*publish), bits & MULTIPLE != 0);
        let confirms = self.get(frame.channel)?.confirms.as_mut()?;
        let refused = method == frame::NACK;
        if refused && confirms.withheld > 0 {
            // The session is to know which of them are refused.
            return None;
        }
        if confirms.is_right(publish, multiple) {
            confirms.settle(publish, multiple, refused, |_| ());
        } else {
            let out = parts.instead(frame.start, frame.stop);
            confirms.settle(publish, multiple, refused, |publish| frame::confirm(frame.channel, method, publish, out));
        }
        Some(())
    }
}

/// The refusal of a publish, as a whole frame.
pub fn write_refusal(channel: u16, publish: u64, out: &mut Vec<u8>) {
    frame::confirm(channel, frame::NACK, publish, out);
}
