//! Reads the plain frames at the front of a chunk, and adds them up by link.

use std::collections::BTreeMap;

use super::flows::Flow;
use super::frame::{self, may_annotate, Fields, Frame, NotPlain};

/// A message with this annotation is copied to other queues.
const COPIES_KEY: &[u8] = b"x-cc";
/// The maximum distance between two serial numbers (RFC 1982).
pub const HALF: u32 = 1 << 31;
const RUNS_OF_FLOW: usize = 3;

/// Defines which of a link's transfers are plain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    pub max_bytes: Option<usize>,
    /// Transfers are plain, except for messages with `COPIES_KEY`.
    pub copies: bool,
    /// Each message is decided. Settled messages are not plain, because they cannot be refused.
    pub decides: bool,
}

/// The first and the last of consecutive deliveries.
pub type Ids = (u32, u32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub channel: u16,
    pub handle: u32,
    pub deliveries: u32,
    pub bytes: u64,
    pub last_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    pub channel: u16,
    pub ids: Ids,
    pub unsettled: Vec<Ids>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disposed {
    pub channel: u16,
    pub is_receiver: bool,
    pub is_settled: bool,
    pub ids: Ids,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    Session(u16),
    Link(u16, u32),
}

#[derive(Debug, Default)]
pub struct Taken {
    pub stop: usize,
    pub frames: usize,
    /// In order of first appearance.
    pub moved: Vec<Moved>,
    /// The transfers have to be decided. They all belong to one link.
    pub decides: bool,
    pub begun: Vec<Begun>,
    pub disposed: Vec<Disposed>,
    /// After the first flow, there are only flows and empty frames.
    pub flows: Vec<Flow>,
    /// The unknown link or session of the next frame. The scan can continue after it has been added.
    pub unknown: Option<Unknown>,
    /// Number of links, sessions and ranges of deliveries.
    runs: usize,
}

impl Taken {
    /// Returns the start of a flow, or the end of the scan, and the number of frames before it.
    #[must_use]
    pub fn until(&self, flow: usize) -> (usize, usize) {
        self.flows.get(flow).map_or((self.stop, self.frames), |flow| (flow.start, flow.before))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct At {
    scan: u64,
    place: usize,
}

#[derive(Debug, Default)]
struct Link {
    terms: Terms,
    at: At,
}

#[derive(Debug, Default)]
struct Session {
    begun: At,
    /// The last dispositions, by role and by whether they settle.
    disposed: [[At; 2]; 2],
}

#[derive(Debug, Default)]
pub struct Links {
    marked: BTreeMap<(u16, u32), Link>,
    sessions: BTreeMap<u16, Session>,
    pub max_frame_bytes: usize,
    scan: u64,
}

impl Links {
    pub fn new(max_frame_bytes: usize) -> Self {
        Self { max_frame_bytes, ..Self::default() }
    }

    /// Add a session. From then on, scans read its dispositions and flows, and the transfers of its added links.
    pub fn begin(&mut self, channel: u16) {
        self.sessions.entry(channel).or_default();
    }

    /// Add a link that has no delivery in progress. From then on, scans read its plain transfers.
    pub fn mark(&mut self, channel: u16, handle: u32, terms: Terms) {
        self.marked.entry((channel, handle)).or_default().terms = terms;
    }

    pub fn scan(&mut self, position: usize) -> Taken {
        self.scan += 1;
        Taken { stop: position, ..Taken::default() }
    }

    /// Continue the last scan: read consecutive plain frames, up to `max_runs` runs.
    ///
    /// A link whose messages are decided is read separately from other links.
    pub fn take(&mut self, chunk: &[u8], taken: &mut Taken, max_runs: usize) {
        taken.unknown = None;
        while taken.runs + 3 <= max_runs {
            let Some(frame) = Frame::at(chunk, taken.stop) else { break };
            if frame.size > self.max_frame_bytes {
                break;
            }
            if !frame.body.is_empty() && self.take_frame(&frame, taken).is_err() {
                break;
            }
            taken.stop = frame.stop;
            taken.frames += 1;
        }
    }

    /// Returns whether unread bytes may be the start of a plain frame of at most `max_bytes`.
    pub fn is_begun(&self, bytes: &[u8], max_bytes: usize) -> bool {
        frame::size_of_begun(bytes).is_some_and(|size| size <= max_bytes.min(self.max_frame_bytes))
    }

    #[inline]
    fn take_frame(&mut self, frame: &Frame, taken: &mut Taken) -> Result<(), NotPlain> {
        let (code, fields, payload) = frame::performative(frame.body)?;
        match code {
            frame::FLOW if payload.is_empty() => self.flow(frame, fields, taken),
            _ if !taken.flows.is_empty() => Err(NotPlain),
            frame::TRANSFER => self.transfer(frame, fields, payload, taken),
            frame::DISPOSITION if payload.is_empty() => self.disposition(frame.channel, fields, taken),
            _ => Err(NotPlain),
        }
    }

    #[inline]
    fn transfer(
        &mut self,
        frame: &Frame,
        mut fields: Fields,
        payload: &[u8],
        taken: &mut Taken,
    ) -> Result<(), NotPlain> {
        let handle = fields.uint()?.ok_or(NotPlain)?;
        let id = fields.uint()?.ok_or(NotPlain)?;
        fields.skip_binary()?;
        fields.uint()?;
        let is_settled = fields.boolean()?.unwrap_or(false);
        let has_more = fields.boolean()?.unwrap_or(false);
        fields.skip_ubyte()?;
        fields.skip_null()?;
        let is_resumed = fields.boolean()?.unwrap_or(false);
        let is_aborted = fields.boolean()?.unwrap_or(false);
        fields.boolean()?;
        fields.end()?;
        let (channel, unknown) = (frame.channel, &mut taken.unknown);
        let link = self
            .marked
            .get_mut(&(channel, handle))
            .ok_or_else(|| not_known(unknown, Unknown::Link(channel, handle)))?;
        let session = self.sessions.get_mut(&channel).ok_or_else(|| not_known(unknown, Unknown::Session(channel)))?;
        let begun = if session.begun.scan == self.scan { taken.begun.get_mut(session.begun.place) } else { None };
        if has_more
            || is_resumed
            || is_aborted
            || begun.as_ref().is_some_and(|begun| begun.ids.1.wrapping_add(1) != id)
            || link.terms.max_bytes.is_some_and(|most| frame.size > most)
            || (link.terms.copies && may_annotate(payload, COPIES_KEY))
        {
            return Err(NotPlain);
        }
        let is_new = link.at.scan != self.scan;
        let is_apart = !taken.moved.is_empty() && is_new && (taken.decides || link.terms.decides);
        if is_apart || (link.terms.decides && is_settled) {
            return Err(NotPlain);
        }
        taken.decides = link.terms.decides;
        if let Some(begun) = begun {
            begun.ids.1 = id;
            match begun.unsettled.last_mut() {
                _ if is_settled => {}
                Some((_, last)) if last.wrapping_add(1) == id => *last = id,
                _ => {
                    taken.runs += 1;
                    begun.unsettled.push((id, id));
                }
            }
        } else {
            session.begun = At { scan: self.scan, place: taken.begun.len() };
            taken.runs += if is_settled { 1 } else { 2 };
            let unsettled = if is_settled { Vec::new() } else { vec![(id, id)] };
            taken.begun.push(Begun { channel: frame.channel, ids: (id, id), unsettled });
        }
        if is_new {
            link.at = At { scan: self.scan, place: taken.moved.len() };
            taken.runs += 1;
            taken.moved.push(Moved { channel: frame.channel, handle, deliveries: 0, bytes: 0, last_bytes: 0 });
        }
        let moved = taken.moved.get_mut(link.at.place).ok_or(NotPlain)?;
        moved.deliveries += 1;
        moved.last_bytes = frame.size as u64;
        moved.bytes += moved.last_bytes;
        Ok(())
    }

    #[inline]
    fn flow(&mut self, frame: &Frame, fields: Fields, taken: &mut Taken) -> Result<(), NotPlain> {
        let channel = frame.channel;
        self.sessions.get_mut(&channel).ok_or_else(|| not_known(&mut taken.unknown, Unknown::Session(channel)))?;
        taken.flows.push(Flow::of(frame, taken.stop, taken.frames, fields)?);
        taken.runs += RUNS_OF_FLOW;
        Ok(())
    }

    #[inline]
    fn disposition(&mut self, channel: u16, mut fields: Fields, taken: &mut Taken) -> Result<(), NotPlain> {
        let is_receiver = fields.boolean()?.ok_or(NotPlain)?;
        let first = fields.uint()?.ok_or(NotPlain)?;
        let last = fields.uint()?.unwrap_or(first);
        let is_settled = fields.boolean()?.unwrap_or(false);
        fields.skip_described()?;
        fields.boolean()?;
        fields.end()?;
        let unknown = &mut taken.unknown;
        let session = self.sessions.get_mut(&channel).ok_or_else(|| not_known(unknown, Unknown::Session(channel)))?;
        if last.wrapping_sub(first) >= HALF {
            return Err(NotPlain);
        }
        let at = &mut session.disposed[usize::from(is_receiver)][usize::from(is_settled)];
        let before = if at.scan == self.scan { taken.disposed.get_mut(at.place) } else { None };
        match before.map(|before| &mut before.ids) {
            Some((begin, end)) if end.wrapping_add(1) == first && last.wrapping_sub(*begin) < HALF => *end = last,
            _ => {
                *at = At { scan: self.scan, place: taken.disposed.len() };
                taken.runs += 1;
                taken.disposed.push(Disposed { channel, is_receiver, is_settled, ids: (first, last) });
            }
        }
        Ok(())
    }
}

fn not_known(noted: &mut Option<Unknown>, unknown: Unknown) -> NotPlain {
    *noted = Some(unknown);
    NotPlain
}
