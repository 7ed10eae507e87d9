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

impl Channels {
    /// Take a confirm, and write it anew unless it is right as it is; None if there is none to take.
    #[inline]
    pub(super) fn confirm(&mut self, frame: &Frame, method: u32, arguments: &[u8], parts: &mut Parts) -> Option<()> {
        let (publish, &[bits]) = arguments.split_first_chunk::<8>()? else { return None };
        let (publish, multiple) = (u64::from_be_bytes(*publish), bits & MULTIPLE != 0);
        let confirms = self.get(frame.channel)?.confirms.as_mut()?;
        if confirms.is_right(publish, multiple) {
            confirms.settle(publish, multiple, |_| ());
        } else {
            let out = parts.instead(frame.start, frame.stop);
            confirms.settle(publish, multiple, |publish| frame::confirm(frame.channel, method, publish, out));
        }
        Some(())
    }
}

/// The refusal of a publish, as a whole frame.
pub fn write_refusal(channel: u16, publish: u64, out: &mut Vec<u8>) {
    frame::confirm(channel, frame::NACK, publish, out);
}
