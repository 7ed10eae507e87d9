//! `RocketMQ` frames to send: requests and answers.
//!
//! A request looks like a Java client's `SEND_MESSAGE_V2`, with its properties padded until the JSON header has 400
//! bytes. A small frame keeps only the fields that a proxy reads. The binary header has the same fields without
//! padding. Opaques have ten digits, so that they can be changed in place.

use std::ops::Range;

/// The topic of the quiet client, which no flood sends.
pub const QUIET_TOPIC: u32 = 999_999;
/// Opaques count up from here.
pub const FIRST_OPAQUE: u32 = 1_000_000_000;

const JSON_HEADER_BYTES: usize = 400;
pub const PREFIX_BYTES: usize = 8;
pub const MAX_FRAME_BYTES: usize = 16 << 20;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Header {
    Json,
    Binary,
}

/// The frames of one run, all of the same size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    pub size: usize,
    pub header: Header,
    pub topics: u32,
}

impl Shape {
    pub fn new(size: usize, header: Header, topics: u32) -> Result<Self, String> {
        let shape = Self { size, header, topics };
        let smallest = PREFIX_BYTES + shape.header_bytes(0, FIRST_OPAQUE, false).len();
        if !(smallest..=MAX_FRAME_BYTES).contains(&size) {
            return Err(format!("--size {size}: must be {smallest} to {MAX_FRAME_BYTES}"));
        }
        if !(1..=1_000_000).contains(&topics) {
            return Err(format!("--topics {topics}: must be 1 to 1000000"));
        }
        Ok(shape)
    }

    pub fn request(&self, topic: u32, opaque: u32) -> Vec<u8> {
        let mut header = self.header_bytes(topic, opaque, true);
        if PREFIX_BYTES + header.len() > self.size {
            header = self.header_bytes(topic, opaque, false);
        }
        let mut frame = prefix(self.size, self.header as u8, header.len()).to_vec();
        frame.extend(header);
        frame.resize(self.size, b'x');
        frame
    }

    /// Frames with the topics in turn, at least `bytes` long and a whole number of rounds.
    pub fn block(&self, bytes: usize) -> Vec<u8> {
        let topics = self.topics as usize;
        let frames = bytes.div_ceil(self.size).next_multiple_of(topics);
        (0..self.topics)
            .cycle()
            .zip(FIRST_OPAQUE..)
            .take(frames)
            .flat_map(|(topic, opaque)| with_own_id(self.request(topic, opaque), opaque))
            .collect()
    }

    /// The opaque's position in a frame.
    pub fn opaque_place(&self) -> Range<usize> {
        let (low, high) = (self.request(0, FIRST_OPAQUE), self.request(0, 2_111_111_111));
        let first = low.iter().zip(&high).position(|(a, b)| a != b).expect("differ");
        first
            ..first
                + match self.header {
                    Header::Json => 10,
                    Header::Binary => 4,
                }
    }

    pub fn opaque_bytes(&self, opaque: u32) -> Vec<u8> {
        match self.header {
            Header::Json => opaque.to_string().into_bytes(),
            Header::Binary => opaque.to_be_bytes().to_vec(),
        }
    }

    fn header_bytes(&self, topic: u32, opaque: u32, full: bool) -> Vec<u8> {
        let topic = topic_name(topic);
        match self.header {
            Header::Json => json_header(&topic, opaque, full),
            Header::Binary => binary_header(&topic, opaque, full),
        }
    }
}

/// Give a frame's message a unique id, like clients, by the ten digits of its opaque.
fn with_own_id(mut frame: Vec<u8>, opaque: u32) -> Vec<u8> {
    let last = b"FFD3A00000";
    if let Some(at) = frame.windows(last.len()).position(|seen| seen == last) {
        frame[at..at + last.len()].copy_from_slice(opaque.to_string().as_bytes());
    }
    frame
}

pub fn topic_name(topic: u32) -> String {
    format!("bench{topic:06}")
}

/// Whether it names the quiet client's topic.
pub fn is_quiet(header: &[u8]) -> bool {
    let name = topic_name(QUIET_TOPIC);
    header.windows(name.len()).any(|seen| seen == name.as_bytes())
}

fn prefix(size: usize, header_type: u8, header_len: usize) -> [u8; PREFIX_BYTES] {
    let length = u32::try_from(size - 4).expect("frame sizes are bounded");
    let word = u32::from(header_type) << 24 | u32::try_from(header_len).expect("header lengths are bounded");
    (u64::from(length) << 32 | u64::from(word)).to_be_bytes()
}

/// The fields of a V2 send in a Java client's order. Only the topic (`b`) and the queue (`e`) if not `full`.
fn fields<'a>(topic: &'a str, properties: &'a str, full: bool) -> Vec<(&'static str, &'a str)> {
    let all = [
        ("a", "bench-producer"),
        ("b", topic),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "1"),
        ("f", "0"),
        ("g", "1795252796322"),
        ("h", "0"),
        ("i", properties),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
        ("n", "broker-a"),
    ];
    all.into_iter()
        .filter(|(key, _)| full || ["b", "e"].contains(key))
        .collect()
}

fn json_header(topic: &str, opaque: u32, full: bool) -> Vec<u8> {
    let build = |padding: usize| {
        let properties = format!(
            "UNIQ_KEY\\u0001FD0000000000000000000000000000022CA81DBD16A668FFD3A00000\\u0002KEYS\\u0001{}\\u0002WAIT\\u0001true\\u0002",
            "k".repeat(padding)
        );
        let fields: Vec<String> = fields(topic, &properties, full)
            .iter()
            .map(|(key, value)| format!("\"{key}\":\"{value}\""))
            .collect();
        let serialize = if full {
            "\"serializeTypeCurrentRPC\":\"JSON\","
        } else {
            ""
        };
        format!(
            "{{\"code\":310,\"extFields\":{{{}}},\"flag\":0,\"language\":\"JAVA\",\"opaque\":{opaque},{serialize}\"version\":513}}",
            fields.join(",")
        )
        .into_bytes()
    };
    let bare = build(0);
    if full {
        build(JSON_HEADER_BYTES - bare.len())
    } else {
        bare
    }
}

fn binary_header(topic: &str, opaque: u32, full: bool) -> Vec<u8> {
    let properties = "UNIQ_KEY\u{1}FD0000000000000000000000000000022CA81DBD16A668FFD3A00000\u{2}WAIT\u{1}true\u{2}";
    let mut ext = Vec::new();
    for (key, value) in fields(topic, properties, full) {
        ext.extend(u16::try_from(key.len()).expect("one letter keys").to_be_bytes());
        ext.extend(key.bytes());
        ext.extend(u32::try_from(value.len()).expect("short values").to_be_bytes());
        ext.extend(value.bytes());
    }
    let mut header = Vec::new();
    header.extend(310_u16.to_be_bytes());
    header.push(0); // language: JAVA
    header.extend(513_u16.to_be_bytes());
    header.extend(opaque.to_be_bytes());
    header.extend(0_u32.to_be_bytes()); // flag
    header.extend(0_u32.to_be_bytes()); // length of the remark
    header.extend(u32::try_from(ext.len()).expect("a few hundred bytes").to_be_bytes());
    header.extend(ext);
    header
}

const ANSWER_BEFORE_OPAQUE: &str = concat!(
    r#"{"code":0,"extFields":{"queueId":"1","transactionId":"FD0000000000000000000000000000022CA81DBD16A668FFD3A00000","#,
    r#""msgId":"7F00000200002A9F000000000A63287A","TRACE_ON":"true","MSG_REGION":"DefaultRegion","queueOffset":"26"},"#,
    r#""flag":1,"language":"JAVA","opaque":"#,
);
const ANSWER_BEHIND_OPAQUE: &str = r#","serializeTypeCurrentRPC":"JSON","version":513}"#;

/// Append a broker's answer to a send: always JSON, about 300 bytes, as a real broker's.
pub fn push_answer(out: &mut Vec<u8>, opaque: u32) {
    let digits = opaque.to_string();
    let header_len = ANSWER_BEFORE_OPAQUE.len() + digits.len() + ANSWER_BEHIND_OPAQUE.len();
    out.extend(prefix(PREFIX_BYTES + header_len, 0, header_len));
    out.extend_from_slice(ANSWER_BEFORE_OPAQUE.as_bytes());
    out.extend_from_slice(digits.as_bytes());
    out.extend_from_slice(ANSWER_BEHIND_OPAQUE.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scanner::{head_of, measure};

    const SIZES: [usize; 4] = [128, 536, 1432, 65536];

    fn shapes() -> impl Iterator<Item = Shape> {
        SIZES
            .into_iter()
            .flat_map(|size| [Header::Json, Header::Binary].map(|header| Shape::new(size, header, 3).unwrap()))
    }

    #[test]
    fn frames_have_the_size_asked_for_and_consistent_lengths() {
        for shape in shapes() {
            let frame = shape.request(2, FIRST_OPAQUE + 7);
            assert_eq!(frame.len(), shape.size);
            let (head_len, frame_len) = measure(&frame).unwrap();
            assert_eq!(frame_len, Some(shape.size));
            let header = &frame[PREFIX_BYTES..head_len];
            assert!(header.windows(11).any(|seen| seen == b"bench000002"));
            let head = head_of(&frame[..head_len]);
            assert_eq!(head.header_type, shape.header as u8);
            assert_eq!(head.opaque_to_answer(), Some(FIRST_OPAQUE + 7));
        }
    }

    #[test]
    fn json_header_is_padded_to_400_bytes_where_it_fits() {
        for size in [536, 1432, 65536] {
            let frame = Shape::new(size, Header::Json, 1).unwrap().request(0, FIRST_OPAQUE);
            assert_eq!(measure(&frame).unwrap().0, PREFIX_BYTES + JSON_HEADER_BYTES);
        }
    }

    #[test]
    fn binary_header_ends_with_its_last_field() {
        let frame = Shape::new(536, Header::Binary, 1).unwrap().request(0, FIRST_OPAQUE);
        let header = &frame[PREFIX_BYTES..measure(&frame).unwrap().0];
        let ext_len = u32::from_be_bytes(header[17..21].try_into().unwrap()) as usize;
        assert_eq!(header.len(), 21 + ext_len);
        assert!(header.ends_with(b"\x00\x01n\x00\x00\x00\x08broker-a"));
    }

    #[test]
    fn quiet_client_is_told_by_its_topic() {
        for shape in shapes() {
            assert!(is_quiet(&shape.request(QUIET_TOPIC, FIRST_OPAQUE)));
            assert!(!is_quiet(&shape.request(2, FIRST_OPAQUE)));
        }
    }

    #[test]
    fn opaque_is_changed_in_place() {
        for shape in shapes() {
            let mut frame = shape.request(1, FIRST_OPAQUE);
            frame[shape.opaque_place()].copy_from_slice(&shape.opaque_bytes(1_234_567_890));
            assert_eq!(frame, shape.request(1, 1_234_567_890));
        }
    }

    #[test]
    fn too_small_and_too_large_frames_are_refused() {
        for size in [0, 100, MAX_FRAME_BYTES + 1] {
            assert!(Shape::new(size, Header::Json, 1).is_err());
        }
        assert!(Shape::new(536, Header::Json, 0).is_err());
    }
}
