//! The broker's answers: stepped over as long as they answer sends, of which only the number matters.

use crate::binary;
use crate::json::{Reader, Value};
use crate::known;
use crate::opaques::Opaques;
use crate::plain::{Known, Loose, Plain, Span};
use crate::prefix::{prefix, HEADER_JSON, PREFIX_BYTES, RESPONSE};
use crate::templates::{Rules, Templates};

/// Read the header of an answer, whose keys may be any.
pub fn read<const LOOSE: bool>(header: &[u8]) -> Option<(Plain, Loose)> {
    // Python takes a header for JSON by its first byte.
    if header.first() != Some(&b'{') {
        return None;
    }
    let mut reader = Reader::<LOOSE>::new(header)?;
    let (mut code, mut opaque, mut flag) = (None, None, None);
    let mut more = reader.open()?;
    while more {
        let place = match reader.key()? {
            b"code" => &mut code,
            b"opaque" => &mut opaque,
            b"flag" => &mut flag,
            _ => {
                if reader.next_mark()? == b'{' {
                    step_over(&mut reader)?;
                } else {
                    reader.scalar()?;
                }
                more = reader.more()?;
                continue;
            }
        };
        if place.replace(reader.i32()?).is_some() {
            return None;
        }
        more = reader.more()?;
    }
    reader.end()?;
    let (code, _) = code?;
    let (opaque, opaque_at) = opaque?;
    let (flag, _) = flag?;
    let nothing = Span::default();
    let plain = Plain { entry: 0, code, flag, opaque, name: nothing, group: nothing, opaque_at };
    (flag & RESPONSE != 0).then_some((plain, reader.loose))
}

/// Read the numbers of the header of any frame of a broker, which may be a request of its own. Python takes it for JSON
/// by its first byte, whatever its type.
pub fn known(header: &[u8], _: u32) -> Option<Known> {
    if header.first() != Some(&b'{') {
        return binary::known(header);
    }
    known::read(header, HEADER_JSON).or_else(|| {
        read::<false>(header).map(|(plain, _)| Known { code: plain.code, opaque: plain.opaque, flag: plain.flag })
    })
}

/// Step over an object of plain values.
fn step_over<const LOOSE: bool>(reader: &mut Reader<LOOSE>) -> Option<()> {
    let mut more = reader.open()?;
    while more {
        reader.key()?;
        let _: Value = reader.scalar()?;
        more = reader.more()?;
    }
    Some(())
}

struct Answers;

impl Rules for Answers {
    const JSON: bool = true;

    fn read<const LOOSE: bool>(&self, header: &[u8]) -> Option<(Plain, Loose)> {
        read::<LOOSE>(header)
    }
}

/// Step over whole answers to requests in `owed`, and take these out.
///
/// Returns the offset of the first frame that is something else, and how many were stepped over.
pub fn settle(chunk: &[u8], position: usize, owed: &mut Opaques, templates: &mut Templates) -> (usize, usize) {
    let mut at = position;
    let mut count = 0;
    while let Some((length, word)) = prefix(chunk, at) {
        let Some(header) = chunk.get(at + PREFIX_BYTES..).and_then(|rest| rest.get(..word as usize)) else {
            break;
        };
        // The word is the header's length alone as long as the type is JSON.
        if word >= 1 << 24 || i64::from(word) > i64::from(length) - 4 {
            break;
        }
        let Some(plain) = templates.read(header, &Answers) else {
            break;
        };
        if !owed.discard(plain.opaque) {
            break;
        }
        at += 4 + usize::try_from(length).unwrap_or_default();
        count += 1;
    }
    (at, count)
}
