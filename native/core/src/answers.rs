//! Skips the broker's answers to sends. Only their opaques matter.

use crate::opaques::Opaques;
use crate::plain::{Known, Loose, Plain};
use crate::prefix::{prefix, PREFIX_BYTES};
use crate::templates::Templates;
use crate::{json, scan};

pub fn read(header: &[u8], loose: Option<&mut Loose>) -> Option<Plain> {
    let json::Header { known, opaque_at, .. } = json::header(header, loose).filter(|_| is_json(header))?;
    known.is_answer().then(|| Plain { known, opaque_at, ..Plain::default() })
}

/// Like Python, ignores the declared type of the header.
fn is_json(header: &[u8]) -> bool {
    header.first() == Some(&b'{')
}

pub fn known(header: &[u8]) -> Option<Known> {
    scan::known(header, is_json(header))
}

/// `SYSTEM_BUSY` or `FLOW_CONTROL`.
pub fn is_busy(code: i32) -> bool {
    matches!(code, 2 | 215)
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settled {
    pub stop: usize,
    pub frames: usize,
    pub answers: u64,
    pub busy: u64,
}

/// Skip answers to requests in `owed`, and remove these requests.
pub fn settle(chunk: &[u8], position: usize, owed: &mut Opaques, templates: &mut Templates) -> Settled {
    let mut settled = Settled { stop: position, ..Settled::default() };
    while let Some((length, word)) = prefix(chunk, settled.stop) {
        let Some(header) = chunk.get(settled.stop + PREFIX_BYTES..).and_then(|rest| rest.get(..word as usize)) else {
            break;
        };
        // If the type is JSON, the word equals the header's length.
        if word >= 1 << 24 || i64::from(word) > i64::from(length) - 4 {
            break;
        }
        let Some(plain) = templates.read::<true>(header, read) else {
            break;
        };
        let Some(is_send) = owed.settle(plain.known.opaque) else {
            break;
        };
        settled.stop += 4 + usize::try_from(length).unwrap_or_default();
        settled.frames += 1;
        settled.answers += u64::from(is_send);
        settled.busy += u64::from(is_send && is_busy(plain.known.code));
    }
    settled
}
