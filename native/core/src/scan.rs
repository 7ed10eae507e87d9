//! Reads the plain frames at the front of a chunk, and finds their keys.

use crate::keys::Keys;
use crate::opaques::Opaques;
use crate::plain::{Known, Plain};
use crate::prefix::{prefix, HEADER_JSON, HEADER_LENGTH, PREFIX_BYTES};
use crate::templates::Templates;
use crate::{binary, json, message_id, sends};

const ONEWAY: i32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub run: u32,
    pub start: u32,
    /// The frame may end beyond the chunk.
    pub size: u32,
    pub opaque: i32,
    pub flag: i32,
}

impl Frame {
    pub fn stop(&self) -> usize {
        self.start as usize + self.size as usize
    }

    pub fn message_id<'a>(&self, chunk: &'a [u8]) -> Option<&'a [u8]> {
        let start = self.start as usize;
        let (_, word) = prefix(chunk, start)?;
        let header = chunk.get(start + PREFIX_BYTES..)?.get(..(word & HEADER_LENGTH) as usize)?;
        message_id::message_id(header, word >> 24)
    }

    pub fn is_oneway(&self) -> bool {
        self.flag & ONEWAY != 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub key: usize,
    pub first: u32,
    pub last: u32,
    pub frames: u32,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey<'a> {
    pub kind: &'static str,
    pub name: &'a str,
    pub group: &'a str,
}

#[derive(Debug, Default)]
pub struct Taken<'a> {
    pub stop: usize,
    pub frames: Vec<Frame>,
    pub runs: Vec<Run>,
    pub first_new: usize,
    pub new: Vec<NewKey<'a>>,
}

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub max_length: i64,
    pub max_keys: usize,
    pub max_runs: usize,
}

#[derive(Debug, Default)]
pub struct Headers {
    json: Templates,
    binary: Templates,
    pub answers: Templates,
}

pub fn known(header: &[u8], is_json: bool) -> Option<Known> {
    if is_json {
        json::header(header, None).map(|header| header.known)
    } else {
        binary::known(header)
    }
}

#[derive(Debug, Default)]
pub struct Scanner {
    keys: Keys,
    expected: usize,
}

impl Scanner {
    /// Read consecutive plain frames from `position` on, as far as their headers have arrived.
    ///
    /// Adds the opaques of all but oneway frames to `owed`.
    pub fn scan<'a>(
        &mut self,
        chunk: &'a [u8],
        position: usize,
        bounds: &Bounds,
        headers: &mut Headers,
        owed: &mut Opaques,
    ) -> Taken<'a> {
        self.keys.begin(bounds.max_keys);
        let mut taken = Taken { stop: position, first_new: self.keys.len(), ..Taken::default() };
        taken.frames.reserve(self.expected);
        while taken.runs.len() < bounds.max_runs {
            let Some(frame) = self.frame(chunk, &mut taken, bounds.max_length, headers) else { break };
            if !frame.is_oneway() {
                owed.add(frame.opaque, true);
            }
            taken.stop = frame.stop();
            taken.frames.push(frame);
        }
        self.expected = taken.frames.len();
        taken
    }

    #[inline]
    fn frame<'a>(
        &mut self,
        chunk: &'a [u8],
        taken: &mut Taken<'a>,
        max_length: i64,
        headers: &mut Headers,
    ) -> Option<Frame> {
        let start = taken.stop;
        let (length, word) = prefix(chunk, start)?;
        let header_bytes = (word & HEADER_LENGTH) as usize;
        let size = usize::try_from(length).ok()?.checked_add(4)?;
        if size < PREFIX_BYTES + header_bytes
            || i64::from(length) > max_length
            || header_bytes > sends::MAX_HEADER_BYTES
        {
            return None;
        }
        let header = chunk.get(start + PREFIX_BYTES..)?.get(..header_bytes)?;
        let plain = match word >> 24 {
            HEADER_JSON => headers.json.read::<true>(header, json::read)?,
            1 => headers.binary.read::<false>(header, binary::read)?,
            _ => return None,
        };
        let index = u32::try_from(taken.frames.len()).ok()?;
        let frame = Frame {
            run: 0,
            start: u32::try_from(start).ok()?,
            size: u32::try_from(size).ok()?,
            opaque: plain.known.opaque,
            flag: plain.known.flag,
        };
        let run = self.run(header, &plain, taken)?;
        let of_key = taken.runs.get_mut(run as usize)?;
        if of_key.frames == 0 {
            of_key.first = index;
        }
        of_key.last = index;
        of_key.frames += 1;
        of_key.bytes += size as u64;
        Some(Frame { run, ..frame })
    }

    #[inline]
    fn run<'a>(&mut self, header: &'a [u8], plain: &Plain, taken: &mut Taken<'a>) -> Option<u32> {
        let (name, group) = (plain.name.of(header), plain.group.of(header));
        let key = match self.keys.find(plain.layout, name, group) {
            Some(key) => key,
            None => self.meet(plain.layout, name, group, taken)?,
        };
        let next = u32::try_from(taken.runs.len()).ok()?;
        let run = self.keys.run(key, next);
        if run == next {
            taken.runs.push(Run { key, first: 0, last: 0, frames: 0, bytes: 0 });
        }
        Some(run)
    }

    fn meet<'a>(&mut self, layout: u8, name: &'a [u8], group: &'a [u8], taken: &mut Taken<'a>) -> Option<usize> {
        let (kind, bare) = sends::resource(layout, std::str::from_utf8(name).ok()?)?;
        let producer_group = match taken.new.last() {
            Some(last) if last.group.as_bytes() == group => last.group,
            _ => std::str::from_utf8(group).ok().filter(|group| !group.contains('\u{fffd}'))?,
        };
        taken.new.push(NewKey { kind, name: bare, group: producer_group });
        Some(self.keys.add(layout, name, group))
    }
}

impl Taken<'_> {
    pub fn by_run(&self) -> Vec<Vec<usize>> {
        let mut by_run: Vec<Vec<usize>> = self.runs.iter().map(|run| Vec::with_capacity(run.frames as usize)).collect();
        for (index, frame) in self.frames.iter().enumerate() {
            if let Some(run) = by_run.get_mut(frame.run as usize) {
                run.push(index);
            }
        }
        by_run
    }

    pub fn cut(&mut self, first: usize) {
        self.stop = self.frames.get(first).map_or(self.stop, |frame| frame.start as usize);
        for frame in self.frames.drain(first..) {
            if let Some(run) = self.runs.get_mut(frame.run as usize) {
                run.frames -= 1;
                run.bytes -= u64::from(frame.size);
            }
        }
        self.runs.retain(|run| run.frames > 0);
        for (index, frame) in (0..).zip(&self.frames) {
            if let Some(run) = self.runs.get_mut(frame.run as usize) {
                run.last = index;
            }
        }
    }
}
