//! A frame consists of a size, a data offset, a type, a channel, a performative, and a payload.
//!
//! A performative is a described list. Only the usual encodings are read: a small ulong for the descriptor, and for
//! each field, the encodings of its type.

use std::ops::Range;

const HEADER_BYTES: usize = 8;
const LIST_AT: usize = HEADER_BYTES + 3;
/// The data offset if there is no extended header, in words of four bytes.
const PLAIN_DOFF: u8 = 2;
const AMQP: u8 = 0;

pub const FLOW: u8 = 0x13;
pub const TRANSFER: u8 = 0x14;
pub const DISPOSITION: u8 = 0x15;

const DESCRIBED: u8 = 0x00;
const SMALL_ULONG: u8 = 0x53;
const NULL: u8 = 0x40;
const TRUE: u8 = 0x41;
const FALSE: u8 = 0x42;
const BOOLEAN: u8 = 0x56;
const UINT_0: u8 = 0x43;
const SMALL_UINT: u8 = 0x52;
const UINT: u8 = 0x70;
const UBYTE: u8 = 0x50;
const BINARY_8: u8 = 0xa0;
const BINARY_32: u8 = 0xb0;
const LIST_0: u8 = 0x45;
const LIST_8: u8 = 0xc0;
const LIST_32: u8 = 0xd0;
const MAP_8: u8 = 0xc1;
const MAP_32: u8 = 0xd1;

const STRING_8: u8 = 0xa1;
const STRING_32: u8 = 0xb1;

const MESSAGE_ANNOTATIONS: u8 = 0x72;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotPlain;

pub struct Frame<'a> {
    pub channel: u16,
    pub stop: usize,
    pub size: usize,
    /// The performative and the payload. Empty for a heartbeat.
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Returns None if the frame is incomplete, or not a plain AMQP frame.
    #[inline]
    pub fn at(chunk: &'a [u8], start: usize) -> Option<Self> {
        let rest = chunk.get(start..)?;
        let word = u64::from_be_bytes(*rest.first_chunk::<HEADER_BYTES>()?);
        #[allow(clippy::cast_possible_truncation)]
        let (size, doff, kind, channel) = ((word >> 32) as usize, (word >> 24) as u8, (word >> 16) as u8, word as u16);
        if doff != PLAIN_DOFF || kind != AMQP {
            return None;
        }
        Some(Self { channel, stop: start + size, size, body: rest.get(HEADER_BYTES..size)? })
    }
}

/// Returns the size of an incomplete plain AMQP frame, as far as it is known, or None for other bytes.
pub fn size_of_begun(bytes: &[u8]) -> Option<usize> {
    let Some((head, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Some(HEADER_BYTES) };
    let size = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
    (head[4] == PLAIN_DOFF && head[5] == AMQP && size > bytes.len()).then_some(size)
}

#[inline]
pub fn performative(body: &[u8]) -> Result<(u8, Fields<'_>, &[u8]), NotPlain> {
    let [DESCRIBED, SMALL_ULONG, code, list @ ..] = body else { return Err(NotPlain) };
    let (fields, payload) = Fields::of(list).ok_or(NotPlain)?;
    Ok((*code, fields, payload))
}

#[inline]
fn word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, behind) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*number), behind))
}

/// Unread fields. Fields omitted at the end of a list are null.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    rest: &'a [u8],
    left: u32,
}

impl<'a> Fields<'a> {
    pub const LEFT_OUT: &'static [u8] = &[NULL];

    #[inline]
    fn of(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (size, left, rest) = match bytes {
            [LIST_0, rest @ ..] => (0, 0, rest),
            // The size includes the count.
            [LIST_8, size, count, rest @ ..] => (usize::from(size.checked_sub(1)?), u32::from(*count), rest),
            [LIST_32, rest @ ..] => {
                let (size, rest) = word(rest)?;
                let (count, rest) = word(rest)?;
                (size.checked_sub(4)? as usize, count, rest)
            }
            _ => return None,
        };
        let (rest, behind) = rest.split_at_checked(size)?;
        Some((Self { rest, left }, behind))
    }

    /// Returns the constructor of the next field, or null if the field is omitted.
    #[inline]
    fn next(&mut self) -> Result<u8, NotPlain> {
        if self.left == 0 {
            return Ok(NULL);
        }
        self.left -= 1;
        self.byte()
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, NotPlain> {
        let (byte, rest) = self.rest.split_first().ok_or(NotPlain)?;
        self.rest = rest;
        Ok(*byte)
    }

    #[inline]
    fn word(&mut self) -> Result<u32, NotPlain> {
        let (number, rest) = word(self.rest).ok_or(NotPlain)?;
        self.rest = rest;
        Ok(number)
    }

    #[inline]
    fn skip(&mut self, size: usize) -> Result<(), NotPlain> {
        self.rest = self.rest.get(size..).ok_or(NotPlain)?;
        Ok(())
    }

    #[inline]
    pub fn uint(&mut self) -> Result<Option<u32>, NotPlain> {
        Ok(match self.next()? {
            NULL => None,
            UINT_0 => Some(0),
            SMALL_UINT => Some(u32::from(self.byte()?)),
            UINT => Some(self.word()?),
            _ => return Err(NotPlain),
        })
    }

    #[inline]
    pub fn boolean(&mut self) -> Result<Option<bool>, NotPlain> {
        Ok(match self.next()? {
            NULL => None,
            TRUE => Some(true),
            FALSE => Some(false),
            BOOLEAN => match self.byte()? {
                0 => Some(false),
                1 => Some(true),
                _ => return Err(NotPlain),
            },
            _ => return Err(NotPlain),
        })
    }

    #[inline]
    pub fn skip_ubyte(&mut self) -> Result<(), NotPlain> {
        match self.next()? {
            NULL => Ok(()),
            UBYTE => self.skip(1),
            _ => Err(NotPlain),
        }
    }

    #[inline]
    pub fn skip_binary(&mut self) -> Result<(), NotPlain> {
        let size = match self.next()? {
            NULL => 0,
            BINARY_8 => usize::from(self.byte()?),
            BINARY_32 => self.word()? as usize,
            _ => return Err(NotPlain),
        };
        self.skip(size)
    }

    #[inline]
    pub fn skip_null(&mut self) -> Result<(), NotPlain> {
        (self.next()? == NULL).then_some(()).ok_or(NotPlain)
    }

    #[inline]
    pub fn skip_described(&mut self) -> Result<(), NotPlain> {
        match self.next()? {
            NULL => Ok(()),
            DESCRIBED => {
                let [SMALL_ULONG, _, list @ ..] = self.rest else { return Err(NotPlain) };
                self.rest = Fields::of(list).ok_or(NotPlain)?.1;
                Ok(())
            }
            _ => Err(NotPlain),
        }
    }

    /// Returns the next field as encoded, or None at the end.
    #[inline]
    pub fn raw(&mut self) -> Result<Option<&'a [u8]>, NotPlain> {
        if self.left == 0 {
            return self.rest.is_empty().then_some(None).ok_or(NotPlain);
        }
        let before = self.rest;
        let size = match self.next()? >> 4 {
            4 => 0,
            5 => 1,
            6 => 2,
            7 => 4,
            8 => 8,
            9 => 16,
            0xa | 0xc | 0xe => usize::from(self.byte()?),
            0xb | 0xd | 0xf => self.word()? as usize,
            _ => return Err(NotPlain),
        };
        self.skip(size)?;
        Ok(before.get(..before.len() - self.rest.len()))
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    pub fn end(&self) -> Result<(), NotPlain> {
        (self.left == 0 && self.rest.is_empty()).then_some(()).ok_or(NotPlain)
    }
}

pub fn write_uint(number: u32, out: &mut Vec<u8>) {
    match u8::try_from(number) {
        Ok(0) => out.push(UINT_0),
        Ok(small) => out.extend_from_slice(&[SMALL_UINT, small]),
        _ => {
            out.push(UINT);
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

pub fn write_changed(frame: &[u8], gone: Range<usize>, instead: &[u8], out: &mut Vec<u8>) -> Result<(), NotPlain> {
    let changed = |size: usize| (size + instead.len()).checked_sub(gone.len());
    let resized = |size: u32| changed(size as usize).and_then(|size| u32::try_from(size).ok()).ok_or(NotPlain);
    let (of_frame, rest) = word(frame).ok_or(NotPlain)?;
    let head = rest.get(..LIST_AT - 4).ok_or(NotPlain)?;
    let (list, behind) = match frame.get(LIST_AT..) {
        Some([LIST_8, size, ..]) => {
            let size = changed(usize::from(*size)).and_then(|size| u8::try_from(size).ok()).ok_or(NotPlain)?;
            ([LIST_8, size, 0, 0, 0], 2)
        }
        Some([LIST_32, rest @ ..]) => {
            let [a, b, c, d] = resized(word(rest).ok_or(NotPlain)?.0)?.to_be_bytes();
            ([LIST_32, a, b, c, d], 5)
        }
        _ => return Err(NotPlain),
    };
    let kept = frame.get(LIST_AT + behind..gone.start).ok_or(NotPlain)?;
    let rest = frame.get(gone.end..).ok_or(NotPlain)?;
    out.extend_from_slice(&resized(of_frame)?.to_be_bytes());
    for part in [head, &list[..behind], kept, instead, rest] {
        out.extend_from_slice(part);
    }
    Ok(())
}

pub fn write_frame(channel: u16, code: u8, fields: &[&[u8]], out: &mut Vec<u8>) -> Result<(), NotPlain> {
    let size: usize = fields.iter().map(|field| field.len()).sum();
    let count = u8::try_from(fields.len()).map_err(|_| NotPlain)?;
    let (list, behind) = match u8::try_from(size + 1) {
        _ if count == 0 => ([LIST_0, 0, 0, 0, 0, 0, 0, 0, 0], 1),
        Ok(size) => ([LIST_8, size, count, 0, 0, 0, 0, 0, 0], 3),
        Err(_) => {
            let [a, b, c, d] = u32::try_from(size + 4).map_err(|_| NotPlain)?.to_be_bytes();
            ([LIST_32, a, b, c, d, 0, 0, 0, count], 9)
        }
    };
    let of_frame = u32::try_from(LIST_AT + behind + size).map_err(|_| NotPlain)?;
    out.extend_from_slice(&of_frame.to_be_bytes());
    out.extend_from_slice(&[PLAIN_DOFF, AMQP]);
    out.extend_from_slice(&channel.to_be_bytes());
    out.extend_from_slice(&[DESCRIBED, SMALL_ULONG, code]);
    out.extend_from_slice(&list[..behind]);
    for field in fields {
        out.extend_from_slice(field);
    }
    Ok(())
}

/// Returns whether a message's annotations may contain a key. True if its sections cannot be read.
pub fn may_annotate(payload: &[u8], key: &[u8]) -> bool {
    let mut rest = payload;
    while !rest.is_empty() {
        let [DESCRIBED, SMALL_ULONG, code, section @ ..] = rest else { return true };
        let (size, inside) = match section {
            [LIST_0, inside @ ..] => (0, inside),
            [BINARY_8 | STRING_8 | LIST_8 | MAP_8, size, inside @ ..] => (usize::from(*size), inside),
            [BINARY_32 | STRING_32 | LIST_32 | MAP_32, inside @ ..] => match word(inside) {
                Some((size, inside)) => (size as usize, inside),
                None => return true,
            },
            _ => return true,
        };
        let Some((inside, behind)) = inside.split_at_checked(size) else { return true };
        if *code == MESSAGE_ANNOTATIONS && inside.windows(key.len()).any(|window| window == key) {
            return true;
        }
        rest = behind;
    }
    false
}
