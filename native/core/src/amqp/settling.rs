//! Steps over what the broker sends to publishers and consumers.

use std::mem;

use super::channel::Channels;
use super::frame::{self, Frame};

const MULTIPLE: u8 = 1;

/// What goes on to the client.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// Of the chunk, from and to.
    Slice(usize, usize),
    Bytes(Vec<u8>),
}

/// What goes on of frames, put together from what stays as it is and what is written anew.
pub(super) struct Parts {
    done: Vec<Part>,
    /// Written, and not among these yet.
    written: Vec<u8>,
    /// Where what follows it begins in the chunk.
    from: usize,
    /// Something is written anew, or left out.
    changed: bool,
}

impl Parts {
    pub(super) fn new(from: usize) -> Self {
        Self { done: Vec::new(), written: Vec::new(), from, changed: false }
    }

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

    pub(super) fn end(mut self, at: usize) -> Option<Vec<Part>> {
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
pub(super) fn is_marked(header: &[u8]) -> bool {
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
        let mut parts = Parts::new(position);
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
    pub(super) fn confirm(&mut self, frame: &Frame, method: u32, arguments: &[u8], parts: &mut Parts) -> Option<()> {
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
