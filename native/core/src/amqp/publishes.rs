//! Reads the plain publishes at the front of a chunk, and finds their keys.

use super::channel::{Channel, Channels, Stage};
use super::frame::{self, Frame, AROUND_BYTES, MAX_PLAIN_BYTES};

const CLASS_BASIC: u16 = 60;
const HEADER_BYTES: usize = 14;
/// Bits of the flags: more flags follow, and there is a headers table.
const CONTINUED: u16 = 1;
const TABLE: u16 = 1 << 13;
const MANDATORY: u8 = 1;
/// Maximum number of frames to read ahead while a channel waits for a header.
const MAX_AHEAD: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish {
    pub run: u32,
    /// Number on its channel, starting at 1. 0 if the channel has no confirms.
    pub number: u64,
    /// Size of all frames. Frames that have not arrived yet count with the maximum length.
    pub size: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub publish: u32,
    pub start: u32,
    pub stop: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub key: usize,
    pub channel: u16,
    pub confirms: bool,
    pub first: u32,
    pub last: u32,
    pub publishes: u32,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    pub is_queue: bool,
    pub name: String,
    pub routing_key: Option<String>,
}

#[derive(Debug, Default)]
pub struct Taken {
    pub stop: usize,
    pub frames: usize,
    pub publishes: Vec<Publish>,
    pub pieces: Vec<Piece>,
    pub runs: Vec<Run>,
    /// Incomplete contents that began in this chunk, by channel and publish.
    pub open: Vec<(u16, u32)>,
    /// Channel and publish of the frame that ends beyond the chunk.
    pub cut: Option<(u16, Option<u32>)>,
    pub first_new: usize,
    pub new: Vec<NewKey>,
}

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub frame_max: usize,
    pub max_body: u64,
    pub max_keys: usize,
    pub max_runs: usize,
    pub max_publishes: usize,
    pub routing_keys: bool,
}

/// The last possible end of the scan.
struct End {
    stop: usize,
    frames: usize,
    publishes: usize,
    pieces: usize,
    runs: usize,
}

impl Channels {
    /// Read plain publishes from `position` on, the rest of earlier contents, and frames that may interleave.
    ///
    /// The scan ends where each publish has its header. Bodies may be incomplete.
    pub fn scan(&mut self, chunk: &[u8], position: usize, bounds: &Bounds) -> Taken {
        let scan = &mut self.scan;
        scan.number += 1;
        scan.runs.clear();
        scan.touched.clear();
        scan.keys.begin(if scan.routing_keys == bounds.routing_keys { bounds.max_keys } else { 0 });
        scan.routing_keys = bounds.routing_keys;
        let mut taken = Taken { first_new: scan.keys.len(), ..Taken::default() };
        taken.publishes.reserve(scan.expected);
        taken.pieces.reserve(scan.expected);
        let mut end = End { stop: position, frames: 0, publishes: 0, pieces: 0, runs: 0 };
        let (mut at, mut frames, mut waiting) = (position, 0, 0_usize);
        while let Some(frame) = Frame::at(chunk, at) {
            if frame.size() > bounds.frame_max.saturating_sub(AROUND_BYTES) || frames - end.frames > MAX_AHEAD {
                break;
            }
            let is_taken = match frame.kind {
                frame::METHOD => self.method(&frame, bounds, &mut taken).map(|()| waiting += 1),
                frame::HEADER => self.header(&frame, bounds, &mut taken).map(|()| waiting -= 1),
                frame::BODY => self.body(&frame, &mut taken),
                _ => None,
            };
            if is_taken.is_none() && !self.passes(&frame) {
                break;
            }
            at = frame.stop;
            frames += 1;
            if waiting == 0 {
                let (publishes, pieces, runs) = (taken.publishes.len(), taken.pieces.len(), taken.runs.len());
                end = End { stop: at, frames, publishes, pieces, runs };
                for place in self.scan.changed.drain(..) {
                    self.all[place].saved = None;
                }
            }
        }
        self.go_back();
        taken.stop = end.stop;
        taken.cut = taken.cut.filter(|_| end.stop > chunk.len());
        taken.frames = end.frames;
        taken.publishes.truncate(end.publishes);
        taken.pieces.truncate(end.pieces);
        taken.runs.truncate(end.runs);
        self.scan.expected = taken.publishes.len();
        for (index, publish) in (0..).zip(&taken.publishes) {
            let Some(run) = taken.runs.get_mut(publish.run as usize) else { continue };
            if run.publishes == 0 {
                run.first = index;
            }
            run.last = index;
            run.publishes += 1;
            run.bytes = run.bytes.saturating_add(publish.size);
        }
        for place in &self.scan.touched {
            let channel = &mut self.all[*place];
            if let Stage::Body { publish: Some(publish), rest } = channel.stage {
                taken.open.push((channel.number, publish));
                channel.stage = Stage::Body { publish: None, rest };
            }
        }
        taken
    }

    fn go_back(&mut self) {
        for place in self.scan.changed.drain(..) {
            let channel = &mut self.all[place];
            if let Some(saved) = channel.saved.take() {
                (channel.stage, channel.published) = saved;
            }
        }
    }

    pub fn undo(&mut self) {
        for place in self.scan.touched.drain(..) {
            let channel = &mut self.all[place];
            (_, channel.stage, channel.published) = channel.began;
        }
    }

    #[inline]
    fn change(&mut self, place: usize, stage: Stage) {
        let channel = &mut self.all[place];
        if channel.saved.is_none() {
            channel.saved = Some((channel.stage, channel.published));
            self.scan.changed.push(place);
            if channel.began.0 != self.scan.number {
                channel.began = (self.scan.number, channel.stage, channel.published);
                self.scan.touched.push(place);
            }
        }
        channel.stage = stage;
    }

    #[inline]
    fn method(&mut self, frame: &Frame, bounds: &Bounds, taken: &mut Taken) -> Option<()> {
        let place = self.place(frame.channel)?;
        if self.all.get(place)?.stage != Stage::Idle || taken.publishes.len() >= bounds.max_publishes {
            return None;
        }
        let (frame::PUBLISH, arguments) = frame::method(frame.payload?)? else { return None };
        let (exchange, rest) = frame::short_string(arguments.get(2..)?)?;
        let (routing_key, &[bits]) = frame::short_string(rest)? else { return None };
        if bits & !MANDATORY != 0 {
            return None;
        }
        let key = match self.scan.keys.find(0, exchange, routing_key) {
            Some(key) => key,
            None => self.meet(exchange, routing_key, bounds, taken)?,
        };
        let piece = u32::try_from(taken.pieces.len()).ok()?;
        let (start, stop) = (u32::try_from(frame.start).ok()?, u32::try_from(frame.stop).ok()?);
        taken.pieces.push(Piece { publish: u32::MAX, start, stop });
        self.change(place, Stage::Method { key, bytes: frame.stop - frame.start, piece });
        Some(())
    }

    #[cold]
    fn meet(&mut self, exchange: &[u8], routing_key: &[u8], bounds: &Bounds, taken: &mut Taken) -> Option<usize> {
        let is_queue = exchange.is_empty();
        let mut name = self.scan.before_names.clone();
        let begins = name.len();
        spell(if is_queue { routing_key } else { exchange }, &mut name)?;
        if name.len() == begins {
            return None;
        }
        let second = if !is_queue && bounds.routing_keys {
            let mut second = format!("{name}/");
            spell(routing_key, &mut second)?;
            Some(second)
        } else {
            None
        };
        taken.new.push(NewKey { is_queue, name, routing_key: second });
        Some(self.scan.keys.add(0, exchange, routing_key))
    }

    #[inline]
    fn header(&mut self, frame: &Frame, bounds: &Bounds, taken: &mut Taken) -> Option<()> {
        let place = self.place(frame.channel)?;
        let Stage::Method { key, bytes, piece } = self.all.get(place)?.stage else { return None };
        let body = body_size(frame.payload?).filter(|size| *size <= bounds.max_body)?;
        let index = u32::try_from(taken.publishes.len()).ok()?;
        let stop = u32::try_from(frame.stop).ok()?;
        let run = self.run(place, key, bounds, taken)?;
        self.change(place, if body == 0 { Stage::Idle } else { Stage::Body { publish: Some(index), rest: body } });
        let channel = &mut self.all[place];
        channel.published += u64::from(channel.confirms.is_some());
        let number = channel.published;
        let of_method = taken.pieces.get_mut(piece as usize)?;
        of_method.publish = index;
        extend(&mut taken.pieces, index, frame.start, stop)?;
        let max_payload = bounds.frame_max.saturating_sub(AROUND_BYTES).max(1) as u64;
        let frames = body.div_ceil(max_payload);
        let before = (bytes + frame.stop - frame.start) as u64;
        let size = before.saturating_add(body).saturating_add(frames.saturating_mul(AROUND_BYTES as u64));
        taken.publishes.push(Publish { run, number, size });
        Some(())
    }

    #[inline]
    fn run(&mut self, place: usize, key: usize, bounds: &Bounds, taken: &mut Taken) -> Option<u32> {
        let Channel { number: channel, run: (scan, of_key, run), confirms, .. } = &self.all[place];
        if *scan == self.scan.number && *of_key == key {
            return Some(*run);
        }
        let run = if let Some(run) = self.scan.runs.get(&(key, *channel)) {
            *run
        } else {
            if taken.runs.len() >= bounds.max_runs {
                return None;
            }
            let run = u32::try_from(taken.runs.len()).ok()?;
            let (channel, confirms) = (*channel, confirms.is_some());
            taken.runs.push(Run { key, channel, confirms, first: 0, last: 0, publishes: 0, bytes: 0 });
            self.scan.runs.insert((key, channel), run);
            run
        };
        self.all[place].run = (self.scan.number, key, run);
        Some(run)
    }

    #[inline]
    fn body(&mut self, frame: &Frame, taken: &mut Taken) -> Option<()> {
        let place = self.place(frame.channel)?;
        let Stage::Body { publish, rest } = self.all.get(place)?.stage else { return None };
        let rest = rest.checked_sub(frame.size() as u64)?;
        let stop = u32::try_from(frame.stop).ok()?;
        if let Some(publish) = publish {
            extend(&mut taken.pieces, publish, frame.start, stop)?;
        }
        if frame.payload.is_none() {
            taken.cut = Some((frame.channel, publish));
        }
        self.change(place, if rest == 0 { Stage::Idle } else { Stage::Body { publish, rest } });
        Some(())
    }
}

#[inline]
fn extend(pieces: &mut Vec<Piece>, publish: u32, start: usize, stop: u32) -> Option<()> {
    let start = u32::try_from(start).ok()?;
    match pieces.last_mut() {
        Some(last) if last.publish == publish && last.stop == start => last.stop = stop,
        _ => pieces.push(Piece { publish, start, stop }),
    }
    Some(())
}

#[inline]
fn body_size(payload: &[u8]) -> Option<u64> {
    let (fixed, properties) = payload.split_first_chunk::<HEADER_BYTES>()?;
    let [class_high, class_low, weight_high, weight_low, size @ .., flags_high, flags_low] = *fixed;
    let flags = u16::from_be_bytes([flags_high, flags_low]);
    let is_plain = u16::from_be_bytes([class_high, class_low]) == CLASS_BASIC
        && (weight_high, weight_low) == (0, 0)
        && flags & CONTINUED == 0
        && properties.len() <= MAX_PLAIN_BYTES - HEADER_BYTES
        && (flags & TABLE == 0 || !may_copy(properties));
    is_plain.then_some(u64::from_be_bytes(size))
}

/// Returns whether a table in these properties may contain the key CC or BCC.
fn may_copy(properties: &[u8]) -> bool {
    properties.windows(3).any(|three| three == b"\x02CC") || properties.windows(4).any(|four| four == b"\x03BCC")
}

/// Write a name in the notation of rules. Returns None if the name is ambiguous.
fn spell(name: &[u8], out: &mut String) -> Option<()> {
    for byte in name {
        match byte {
            b'/' => out.push_str("%2F"),
            b'%' => out.push_str("%25"),
            b' '..=b'~' => out.push(char::from(*byte)),
            _ => return None,
        }
    }
    Some(())
}
