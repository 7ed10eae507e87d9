//! The id that the client assigns to a message. See Python's `proxy.protocols.rocketmq.wire.message_id`.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::json::text_end;
use crate::prefix::HEADER_JSON;

type Mark = LazyLock<Finder<'static>>;

static JSON_MARK: Mark = Mark::new(|| Finder::new(b"UNIQ_KEY\\u0001"));
const JSON_END: &[u8] = b"\\u0002";
static BINARY_MARK: Mark = Mark::new(|| Finder::new(b"UNIQ_KEY\x01"));
const BINARY_END: u8 = 2;
static JSON_FIELD: Mark = Mark::new(|| Finder::new(b"\"originMsgId\":\""));
static BINARY_FIELD: Mark = Mark::new(|| Finder::new(b"\x00\x0boriginMsgId"));
const LENGTH_BYTES: usize = 4;
const MAX_BYTES: usize = 255;

pub fn message_id(header: &[u8], header_type: u32) -> Option<&[u8]> {
    let is_json = header_type == HEADER_JSON;
    let (mark, field) = if is_json { (&JSON_MARK, &JSON_FIELD) } else { (&BINARY_MARK, &BINARY_FIELD) };
    let start = match mark.find(header).filter(|at| *at > 0) {
        Some(at) => {
            let before = header.get(..at)?;
            let is_whole = if is_json {
                before.last() == Some(&b'"') || before.ends_with(JSON_END)
            } else {
                before.last() == Some(&BINARY_END) || before.get(..at.saturating_sub(2))?.ends_with(&[0, 0])
            };
            is_whole.then_some(at + mark.needle().len())?
        }
        None => field.find(header)? + field.needle().len() + if is_json { 0 } else { LENGTH_BYTES },
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
    use super::message_id;
    use crate::prefix::HEADER_JSON;

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
