//! Defines which requests are limited, and by which fields. See Python's `proxy.protocols.rocketmq.wire.codes`.

use crate::plain::{Known, Plain, Span};

pub const MAX_HEADER_BYTES: usize = 256 * 1024;
const MAX_NAME_BYTES: usize = 255;
const RETRY_PREFIX: &str = "%RETRY%";
const TOPIC: &str = "topic";
const RETRY_GROUP: &str = "retry_group";
/// Sends to names with these prefixes or to `INTERNAL_TOPICS` are not plain.
const INTERNAL_PREFIX: &str = "rmq_sys_";
const INTERNAL_TOPICS: [&str; 8] = [
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "OFFSET_MOVED_EVENT",
    "CHECKPOINT_TOPIC",
];
const PLAIN_SYS_FLAGS: [&[u8]; 10] = [b"0", b"1", b"2", b"3", b"257", b"259", b"513", b"515", b"769", b"771"];

/// Layouts of field names: two versions of sends, and send-backs.
const V1: u8 = 0;
const V2: u8 = 1;
const BACK: u8 = 2;
const ROLES: usize = 4;
const NAME: usize = 0;
const GROUP: usize = 1;
const BATCH: usize = 2;
const SYS_FLAG: usize = 3;

#[inline]
pub fn layout_of(code: i32) -> Option<u8> {
    match code {
        10 | 324 => Some(V1),
        310 | 320 | 325 => Some(V2),
        36 => Some(BACK),
        _ => None,
    }
}

/// Returns whether Python must read requests with this code even if they are not limited.
pub fn is_read(code: i32) -> bool {
    layout_of(code).is_some() || matches!(code, 34 | 35 | 37 | 39 | 9002 | 9003)
}

pub fn is_long_poll(code: i32) -> bool {
    matches!(code, 11 | 361 | 200_050 | 200_054 | 200_070)
}

#[inline]
pub fn field(name: &[u8]) -> Option<usize> {
    let (layout, role) = match name {
        b"topic" => (V1, NAME),
        b"producerGroup" => (V1, GROUP),
        b"batch" => (V1, BATCH),
        b"sysFlag" => (V1, SYS_FLAG),
        b"b" => (V2, NAME),
        b"a" => (V2, GROUP),
        b"m" => (V2, BATCH),
        b"f" => (V2, SYS_FLAG),
        b"group" => (BACK, NAME),
        _ => return None,
    };
    Some(usize::from(layout) * ROLES + role)
}

/// Returns whether a header's plainness depends on this field's value.
pub fn tells(field: usize) -> bool {
    field % ROLES >= BATCH
}

pub fn is_sys_flag(field: usize) -> bool {
    field % ROLES == SYS_FLAG
}

/// Returns None if the name is ambiguous.
pub fn resource(layout: u8, name: &str) -> Option<(&'static str, &str)> {
    // A replacement character may result from invalid UTF-8.
    if name.contains('\u{fffd}') || name.starts_with(INTERNAL_PREFIX) || INTERNAL_TOPICS.contains(&name) {
        return None;
    }
    match name.strip_prefix(RETRY_PREFIX) {
        Some("") => None,
        _ if layout == BACK => Some((RETRY_GROUP, name)),
        Some(group) => Some((RETRY_GROUP, group)),
        None => Some((TOPIC, name)),
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Values([Option<Span>; 3 * ROLES]);

impl Values {
    #[inline]
    pub fn note(&mut self, field: usize, value: Span) -> Option<()> {
        self.0.get_mut(field)?.replace(value).is_none().then_some(())
    }

    /// Returns None if the request is not plain.
    #[inline]
    pub fn plain(&self, header: &[u8], known: Known, opaque_at: Span) -> Option<Plain> {
        let layout = layout_of(known.code).filter(|_| !known.is_answer())?;
        let [name, group, batch, sys_flag] = *self.0.get(usize::from(layout) * ROLES..)?.first_chunk::<ROLES>()?;
        let (name, group) = (name?, group.unwrap_or_default());
        let is_plain = (1..=MAX_NAME_BYTES).contains(&name.of(header).len())
            && group.of(header).len() <= MAX_NAME_BYTES
            && batch.is_none_or(|span| matches!(span.of(header), b"false" | b"0"))
            && sys_flag.is_none_or(|span| PLAIN_SYS_FLAGS.contains(&span.of(header)));
        is_plain.then_some(Plain { known, layout, name, group, opaque_at })
    }
}
