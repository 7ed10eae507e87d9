//! Reads the broker's stream of a plain connection, and the client's interleaved frames. Does not wait for bodies.

use std::collections::HashMap;

use super::channel::Channels;
use super::frame::{self, Frame, AROUND_BYTES, END};
use crate::out::{Out, CLIENT};

const CLASS_BASIC: &[u8] = &[0, 60];
const SETTLING_BYTES: usize = 9;
const MULTIPLE: u8 = 1;
/// A header field of messages that Python must restore.
const MARK: &[u8] = b"\x10x-sluice-confirm";
const FLAGS_AT: usize = 12;
const TABLE: u8 = 1 << 5;

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// May be inside a body that continues beyond the chunk.
    pub stop: usize,
    /// A body frame counts when it begins.
    pub frames: usize,
    /// Channel of a frame that ends beyond the chunk.
    pub cut: Option<u16>,
    /// Publishes that the broker has confirmed or refused.
    pub answers: u64,
}

/// The rest of a body frame that began in an earlier chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub channel: u16,
    /// Bytes left, including the end octet.
    pub left: usize,
}

impl Cut {
    /// Returns the number of the frame's bytes in a chunk, and the rest. Returns None if the end octet is wrong.
    pub fn resume(self, chunk: &[u8]) -> Option<(usize, Option<Self>)> {
        match chunk.get(self.left.checked_sub(1)?) {
            Some(&END) => Some((self.left, None)),
            Some(_) => None,
            None => Some((chunk.len(), Some(Self { left: self.left - chunk.len(), ..self }))),
        }
    }
}

impl Channels {
    /// Returns whether a client's frame may interleave with publishes.
    pub(super) fn passes(&self, frame: &Frame) -> bool {
        match (frame.kind, frame.payload) {
            (frame::HEARTBEAT, Some([])) => frame.channel == 0,
            (frame::METHOD, Some(payload)) => {
                matches!(frame::method(payload), Some((frame::ACK | frame::NACK | frame::REJECT, arguments))
                    if arguments.len() == SETTLING_BYTES && self.is_idle(frame.channel))
            }
            _ => false,
        }
    }

    /// Read the broker's heartbeats and confirms, and if `contents` is set, its deliveries and returns.
    pub fn relay(
        &mut self,
        deliveries: &mut Deliveries,
        chunk: &[u8],
        position: usize,
        contents: bool,
        frame_max: usize,
        out: &mut Out,
    ) -> Read {
        let mut read = Read { stop: position, ..Read::default() };
        // From this offset on, the chunk has not been forwarded yet.
        let mut from = position;
        while let Some(frame) = Frame::at(chunk, read.stop) {
            let known = match (frame.kind, frame.payload) {
                (frame::HEARTBEAT, Some([])) => (frame.channel == 0).then_some((frame.stop, 1)),
                (frame::METHOD, Some(payload)) if !deliveries.is_open(frame.channel) => match frame::method(payload) {
                    Some((method @ (frame::ACK | frame::NACK), arguments)) => {
                        self.confirm(&frame, method, arguments, &mut from, out).map(|answers| {
                            read.answers += answers;
                            (frame.stop, 1)
                        })
                    }
                    Some((frame::DELIVER | frame::RETURN, _)) if contents && self.place(frame.channel).is_some() => {
                        deliveries.begin(chunk, &frame).map(|stop| (stop, 2))
                    }
                    _ => None,
                },
                (frame::BODY, _) if frame.stop - frame.start <= frame_max => {
                    read.cut = frame.payload.is_none().then_some(frame.channel);
                    deliveries.resume(&frame).map(|()| (frame.stop, 1))
                }
                _ => None,
            };
            let Some((stop, count)) = known else { break };
            read.stop = stop;
            read.frames += count;
        }
        out.pass(CLIENT, from..read.stop.min(chunk.len()));
        read.cut = read.cut.filter(|_| read.stop > chunk.len());
        read
    }

    /// Returns the number of publishes, or None if the confirm is not plain.
    #[inline]
    fn confirm(
        &mut self,
        frame: &Frame,
        method: u32,
        arguments: &[u8],
        from: &mut usize,
        out: &mut Out,
    ) -> Option<u64> {
        let (publish, &[bits]) = arguments.split_first_chunk::<8>()? else { return None };
        let (publish, multiple) = (u64::from_be_bytes(*publish), bits & MULTIPLE != 0);
        let confirms = self.get(frame.channel)?.confirms.as_mut()?;
        let before = confirms.len();
        if confirms.is_right(publish, multiple) {
            confirms.settle(publish, multiple, |_| ());
            return Some((before - confirms.len()) as u64);
        }
        out.pass(CLIENT, *from..frame.start);
        *from = frame.stop;
        let begin = out.own.len();
        confirms.settle(publish, multiple, |publish| frame::confirm(frame.channel, method, publish, &mut out.own));
        let answers = before - confirms.len();
        out.say(CLIENT, begin);
        Some(answers as u64)
    }
}

/// Bytes left of open contents, by channel.
#[derive(Debug, Default)]
pub struct Deliveries(HashMap<u16, u64>);

impl Deliveries {
    pub fn new(open: HashMap<u16, u64>) -> Self {
        Self(open)
    }

    pub fn open(&self) -> Vec<(u16, u64)> {
        self.0.iter().map(|(channel, rest)| (*channel, *rest)).collect()
    }

    pub fn is_open(&self, channel: u16) -> bool {
        self.0.contains_key(&channel)
    }

    /// Returns the end of the content's header, or None if the header is incomplete or not plain.
    fn begin(&mut self, chunk: &[u8], method: &Frame) -> Option<usize> {
        let header = Frame::at(chunk, method.stop)?;
        let payload = header.payload.filter(|_| header.kind == frame::HEADER && header.channel == method.channel)?;
        if !payload.starts_with(CLASS_BASIC) || is_marked(payload) {
            return None;
        }
        let rest = u64::from_be_bytes(*payload.get(4..)?.first_chunk::<8>()?);
        if rest > 0 {
            self.0.insert(method.channel, rest);
        }
        Some(header.stop)
    }

    fn resume(&mut self, body: &Frame) -> Option<()> {
        let rest = self.0.get_mut(&body.channel)?;
        *rest = rest.checked_sub((body.stop - body.start - AROUND_BYTES) as u64)?;
        if *rest == 0 {
            self.0.remove(&body.channel);
        }
        Some(())
    }
}

/// Returns whether an incomplete frame, or the header after it, can still be plain. Deliveries count only if `contents`
/// is set.
pub fn awaits_more(chunk: &[u8], position: usize, contents: bool, frame_max: usize) -> bool {
    let begun = Frame::at(chunk, position).and_then(|frame| Some((frame.stop, frame::method(frame.payload?)?.0)));
    match begun {
        Some((stop, frame::PUBLISH)) => Frame::is_to_come(chunk, stop, frame_max),
        Some((stop, frame::DELIVER | frame::RETURN)) => contents && Frame::is_to_come(chunk, stop, frame_max),
        Some(_) => false,
        None => Frame::is_to_come(chunk, position, frame_max),
    }
}

fn is_marked(header: &[u8]) -> bool {
    if header.get(FLAGS_AT).is_none_or(|flags| flags & TABLE == 0) {
        return false;
    }
    let begins = header.iter().enumerate().filter(|(_, byte)| **byte == MARK[0]);
    begins.into_iter().any(|(at, _)| header[at..].starts_with(MARK))
}

pub fn write_refusal(channel: u16, publish: u64, out: &mut Vec<u8>) {
    frame::confirm(channel, frame::NACK, publish, out);
}
