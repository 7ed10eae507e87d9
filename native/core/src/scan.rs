//! Takes the plain frames at the front of a chunk, and says by what they are charged.

use crate::keys::Keys;
use crate::opaques::Opaques;
use crate::plain::{Known, Plain};
use crate::prefix::{prefix, HEADER_JSON, HEADER_LENGTH, PREFIX_BYTES};
use crate::templates::Templates;
use crate::{binary, json, message_id, sends};

/// The bit of `flag` that a request has that gets no answer.
const ONEWAY: i32 = 2;

/// One frame that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub run: u32,
    pub start: u32,
    /// Of the whole frame, which may be longer than the chunk.
    pub size: u32,
    pub opaque: i32,
    pub flag: i32,
}

impl Frame {
    pub fn stop(&self) -> usize {
        self.start as usize + self.size as usize
    }

    /// The id of its message, if it is in `chunk`, which it was read from, and has one.
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

/// The frames of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub key: usize,
    pub first: u32,
    pub last: u32,
    pub frames: u32,
    pub bytes: u64,
}

/// A key that was met for the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    pub kind: &'static str,
    pub name: String,
    pub group: String,
}

/// What one scan took.
#[derive(Debug, Default)]
pub struct Taken {
    pub stop: usize,
    pub frames: Vec<Frame>,
    pub runs: Vec<Run>,
    pub first_new: usize,
    pub new: Vec<NewKey>,
}

/// What a scan is to keep to.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The highest length that a frame may name in its first word.
    pub max_length: i64,
    /// When a scan begins with more keys, all are forgotten.
    pub most_keys: usize,
    /// A scan ends when it has so many runs.
    pub most_runs: usize,
}

/// How headers of requests, of both types, and of answers were read lately.
#[derive(Debug, Default)]
pub struct Headers {
    json: Templates,
    binary: Templates,
    pub answers: Templates,
}

/// Read the numbers of any header.
pub fn known(header: &[u8], is_json: bool) -> Option<Known> {
    if is_json {
        json::header(header, None).map(|header| header.known)
    } else {
        binary::known(header)
    }
}

/// What is remembered of one connection between its chunks.
#[derive(Debug, Default)]
pub struct Scanner {
    keys: Keys,
    /// How many frames the last chunk had.
    expected: usize,
}

impl Scanner {
    /// Take the plain frames from `position` on, as long as they come one after the other.
    ///
    /// A frame is taken when its header has come, and is noted in `owed` unless it is oneway.
    pub fn scan(
        &mut self,
        chunk: &[u8],
        position: usize,
        bounds: &Bounds,
        headers: &mut Headers,
        owed: &mut Opaques,
    ) -> Taken {
        self.keys.begin(bounds.most_keys);
        let mut taken = Taken { stop: position, first_new: self.keys.len(), ..Taken::default() };
        taken.frames.reserve(self.expected);
        while taken.runs.len() < bounds.most_runs {
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
    fn frame(&mut self, chunk: &[u8], taken: &mut Taken, max_length: i64, headers: &mut Headers) -> Option<Frame> {
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

    /// The number of the run that a frame belongs to.
    #[inline]
    fn run(&mut self, header: &[u8], plain: &Plain, taken: &mut Taken) -> Option<u32> {
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

    #[cold]
    fn meet(&mut self, layout: u8, name: &[u8], group: &[u8], taken: &mut Taken) -> Option<usize> {
        let (kind, bare) = sends::resource(layout, std::str::from_utf8(name).ok()?)?;
        let new = NewKey {
            kind,
            name: bare.to_owned(),
            group: std::str::from_utf8(group).ok().filter(|group| !group.contains('\u{fffd}'))?.to_owned(),
        };
        taken.new.push(new);
        Some(self.keys.add(layout, name, group))
    }
}

impl Taken {
    /// The indexes of the frames of every run.
    pub fn by_run(&self) -> Vec<Vec<usize>> {
        let mut by_run: Vec<Vec<usize>> = self.runs.iter().map(|run| Vec::with_capacity(run.frames as usize)).collect();
        for (index, frame) in self.frames.iter().enumerate() {
            if let Some(run) = by_run.get_mut(frame.run as usize) {
                run.push(index);
            }
        }
        by_run
    }

    /// Forget the frames from an index on.
    pub fn cut(&mut self, first: usize) {
        self.stop = self.frames.get(first).map_or(self.stop, |frame| frame.start as usize);
        for frame in self.frames.drain(first..) {
            if let Some(run) = self.runs.get_mut(frame.run as usize) {
                run.frames -= 1;
                run.bytes -= u64::from(frame.size);
            }
        }
        // Runs are in the order of their first frames.
        self.runs.retain(|run| run.frames > 0);
        for (index, frame) in (0..).zip(&self.frames) {
            if let Some(run) = self.runs.get_mut(frame.run as usize) {
                run.last = index;
            }
        }
    }
}
