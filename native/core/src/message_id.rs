//! The id that a client has given its message: `proxy.protocols.rocketmq.wire.message_id` in Python word for word, which
//! says what that is and why; a test holds both equal.

use crate::json::text_end;
use crate::prefix::HEADER_JSON;

/// What is searched for, and the byte of it that is rarest in a header, by its place.
struct Mark(&'static [u8], usize);

const JSON_MARK: Mark = Mark(b"UNIQ_KEY\\u0001", 3);
const JSON_END: &[u8] = b"\\u0002";
const BINARY_MARK: Mark = Mark(b"UNIQ_KEY\x01", 3);
const BINARY_END: u8 = 2;
const JSON_FIELD: Mark = Mark(b"\"originMsgId\":\"", 7);
const BINARY_FIELD: Mark = Mark(b"\x00\x0boriginMsgId", 8);
const LENGTH_BYTES: usize = 4;
const MAX_BYTES: usize = 255;
/// Bytes that are searched at once.
const LANE: usize = 32;

impl Mark {
    /// Where it stands first.
    #[inline]
    fn find(&self, header: &[u8]) -> Option<usize> {
        let Self(text, place) = *self;
        let rare = *text.get(place)?;
        // What begins in a lane and whose rare byte is in the next one is found there.
        header.chunks(LANE).enumerate().find_map(|(number, lane)| {
            // No branches: it becomes one comparison of vectors.
            let is_here = lane.iter().fold(0, |found, byte| found | u8::from(*byte == rare));
            if is_here == 0 {
                return None;
            }
            let rare_at = lane.iter().enumerate().filter(|(_, byte)| **byte == rare);
            let mut starts = rare_at.filter_map(|(at, _)| (number * LANE + at).checked_sub(place));
            starts.find(|start| header.get(*start..).is_some_and(|rest| rest.starts_with(text)))
        })
    }
}

/// The id of the message that a send or send-back is about, if it has one.
pub fn message_id(header: &[u8], header_type: u32) -> Option<&[u8]> {
    let is_json = header_type == HEADER_JSON;
    let mark = if is_json { JSON_MARK } else { BINARY_MARK };
    let start = match mark.find(header).filter(|at| *at > 0) {
        Some(at) => {
            let before = header.get(..at)?;
            let is_whole = if is_json {
                before.last() == Some(&b'"') || before.ends_with(JSON_END)
            } else {
                before.last() == Some(&BINARY_END) || before.get(..at.saturating_sub(2))?.ends_with(&[0, 0])
            };
            is_whole.then_some(at + mark.0.len())?
        }
        None if is_json => JSON_FIELD.find(header)? + JSON_FIELD.0.len(),
        None => BINARY_FIELD.find(header)? + BINARY_FIELD.0.len() + LENGTH_BYTES,
    };
    let most = header.get(..start + MAX_BYTES).unwrap_or(header).get(start..)?;
    let bytes = if is_json {
        text_end(most, 0)
    } else {
        most.iter().position(|byte| matches!(*byte, 0 | BINARY_END)).unwrap_or(most.len())
    };
    most.get(..bytes).filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{message_id, Mark};
    use crate::prefix::HEADER_JSON;

    #[test]
    fn a_mark_is_found_wherever_it_stands() {
        for before in 0..100 {
            for behind in [0, 1, 40] {
                let mut header = vec![b'Q'; before];
                header.extend_from_slice(b"UNIQ_KEY");
                header.resize(header.len() + behind, b'Q');
                assert_eq!(Mark(b"UNIQ_KEY", 3).find(&header), Some(before));
                header.truncate(before + 7);
                assert_eq!(Mark(b"UNIQ_KEY", 3).find(&header), None);
            }
        }
    }

    #[test]
    fn an_id_is_read_up_to_the_end_of_its_property() {
        let id = |header: &'static str| message_id(header.as_bytes(), HEADER_JSON);
        assert_eq!(id(r#"{"i":"UNIQ_KEY\u0001abc\u0002WAIT\u0001true\u0002"}"#), Some(b"abc".as_slice()));
        assert_eq!(id(r#"{"i":"KEYS\u0001k\u0002UNIQ_KEY\u0001abc"}"#), Some(b"abc".as_slice()));
        assert_eq!(id(r#"{"i":"MY_UNIQ_KEY\u0001abc\u0002"}"#), None);
        assert_eq!(id(r#"{"i":"UNIQ_KEY\u0001\u0002"}"#), None);
        assert_eq!(id(r#"{"originMsgId":"abc","group":"g"}"#), Some(b"abc".as_slice()));
    }
}
