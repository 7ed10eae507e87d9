//! The broker's answers: stepped over as long as they answer sends, of which only the number matters.

use crate::opaques::Opaques;
use crate::plain::{Known, Loose, Plain};
use crate::prefix::{prefix, PREFIX_BYTES};
use crate::templates::Templates;
use crate::{json, scan};

/// Read the header of an answer.
pub fn read(header: &[u8], loose: Option<&mut Loose>) -> Option<Plain> {
    let json::Header { known, opaque_at, .. } = json::header(header, loose).filter(|_| is_json(header))?;
    known.is_answer().then(|| Plain { known, opaque_at, ..Plain::default() })
}

/// Python takes the header of a broker for JSON by its first byte, whatever its type.
fn is_json(header: &[u8]) -> bool {
    header.first() == Some(&b'{')
}

/// Read the numbers of the header of any frame of a broker, which may be a request of its own.
pub fn known(header: &[u8]) -> Option<Known> {
    scan::known(header, is_json(header))
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
        let Some(plain) = templates.read::<true>(header, read) else {
            break;
        };
        if !owed.discard(plain.known.opaque) {
            break;
        }
        at += 4 + usize::try_from(length).unwrap_or_default();
        count += 1;
    }
    (at, count)
}
