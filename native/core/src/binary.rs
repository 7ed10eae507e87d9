//! Binary headers of requests: fixed-size numbers, then fields with length prefixes.

use crate::plain::{Known, Loose, Plain, Span};
use crate::sends::{self, Values};

/// Python also rejects headers with more fields.
pub const MAX_FIELDS: usize = 128;

const OPAQUE_AT: usize = 5;
/// The total size of code, language, version, opaque, flag, and the lengths of remark and fields.
const FIXED_BYTES: usize = 21;

#[inline]
fn chunk<const N: usize>(header: &[u8], at: usize) -> Option<[u8; N]> {
    header.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied()
}

#[inline]
pub fn opaque(header: &[u8]) -> Option<i32> {
    chunk(header, OPAQUE_AT).map(i32::from_be_bytes)
}

pub fn known(header: &[u8]) -> Option<Known> {
    let fixed: [u8; FIXED_BYTES] = chunk(header, 0)?;
    let remark_bytes = i32::from_be_bytes(chunk(&fixed, 13)?);
    let fields_bytes = i32::from_be_bytes(chunk(&fixed, 17)?);
    if remark_bytes != 0 || usize::try_from(fields_bytes) != Ok(header.len() - FIXED_BYTES) {
        return None;
    }
    let code = i32::from(i16::from_be_bytes(chunk(&fixed, 0)?));
    let flag = i32::from_be_bytes(chunk(&fixed, 9)?);
    Some(Known { code, opaque: opaque(header)?, flag })
}

pub fn read(header: &[u8], mut loose: Option<&mut Loose>) -> Option<Plain> {
    let known = known(header).filter(|known| sends::layout_of(known.code).is_some())?;
    if let Some(loose) = &mut loose {
        loose.text.push(Span::new(2, 9));
    }
    let mut values = Values::default();
    let mut at = FIXED_BYTES;
    let mut left = MAX_FIELDS;
    while at < header.len() {
        left = left.checked_sub(1)?;
        let key_bytes = usize::try_from(i16::from_be_bytes(chunk(header, at)?)).ok()?;
        let length_at = at + 2 + key_bytes;
        let field = sends::field(header.get(at + 2..length_at)?);
        let value_bytes = usize::try_from(i32::from_be_bytes(chunk(header, length_at)?)).ok()?;
        let value_at = length_at + 4;
        at = value_at + value_bytes;
        if at > header.len() {
            return None;
        }
        let value = Span::new(value_at, at);
        if let Some(field) = field {
            values.note(field, value)?;
        }
        if let Some(loose) = loose.as_mut().filter(|_| !field.is_some_and(sends::tells)) {
            loose.text.push(value);
        }
    }
    values.plain(header, known, Span::new(OPAQUE_AT, OPAQUE_AT + 4))
}
