//! Tests that do not need Python. Headers are tested in Python, against its parsers.

use crate::opaques::Opaques;
use crate::plain::{Known, Loose, Span};
use crate::scan::{Bounds, Headers, Scanner, Taken};
use crate::{answers, json};

fn send(topic: &str, opaque: i32, filler: &str) -> Vec<u8> {
    format!(r#"{{"code":310,"extFields":{{"a":"pg","b":"{topic}","i":"{filler}","m":"false"}},"opaque":{opaque}}}"#)
        .into()
}

fn frame(header: &[u8]) -> Vec<u8> {
    let size = u32::try_from(header.len()).unwrap();
    [&(size + 4).to_be_bytes(), &size.to_be_bytes(), header].concat()
}

fn scan(known: &mut Headers, headers: &[Vec<u8>]) -> Taken<'static> {
    let (mut scanner, mut owed) = (Scanner::default(), Opaques::new(10));
    let bounds = Bounds { max_length: 1 << 24, max_keys: 10, max_runs: 10 };
    let mut last = Taken::default();
    for header in headers {
        last = scanner.scan(frame(header).leak(), 0, &bounds, known, &mut owed);
    }
    last
}

#[test]
fn a_header_like_the_one_before_is_read_by_itself() {
    let mut known = Headers::default();
    for opaque in [1_000_000_007, 2_147_483_647, 1_999_999_999] {
        for topic in ["orders", "offers"] {
            let taken = scan(&mut known, &[send(topic, opaque, "x")]);
            assert_eq!(taken.frames[0].opaque, opaque);
            assert_eq!((taken.new[0].name, taken.new[0].group), (topic, "pg"));
        }
    }
}

#[test]
fn no_byte_of_a_template_lets_another_header_pass() {
    let header = send("orders", -10, r"a\u0001b\n");
    let mut known = Headers::default();
    for at in 0..header.len() {
        for byte in 0..=255 {
            let mut other = header.clone();
            other[at] = byte;
            let afresh = json::read(&other, None);
            let taken = scan(&mut known, &[header.clone(), other.clone()]);
            assert_eq!(taken.frames.len(), usize::from(afresh.is_some()), "{:?}", String::from_utf8_lossy(&other));
            if let (Some(plain), Some(frame)) = (afresh, taken.frames.first()) {
                assert_eq!((frame.opaque, frame.flag), (plain.known.opaque, plain.known.flag));
            }
        }
    }
}

#[test]
fn every_length_of_header_is_compared_to_its_end() {
    let mut known = Headers::default();
    for length in 0..200 {
        let filler = "x".repeat(length);
        let header = send("orders", 7, &filler);
        let mut cut = header.clone();
        *cut.last_mut().unwrap() = b']';
        assert_eq!(scan(&mut known, &[header.clone(), header]).frames.len(), 1);
        assert_eq!(scan(&mut known, &[cut]).frames.len(), 0);
    }
}

#[test]
fn loose_are_the_contents_of_strings_but_of_the_batch_flag() {
    let header = send("orders", 7, r"a\u0001b");
    let mut loose = Loose::default();
    let plain = json::read(&header, Some(&mut loose)).unwrap();
    let loose: Vec<&[u8]> = loose.text.iter().map(|span| span.of(&header)).collect();
    assert_eq!(loose, [&b"pg"[..], b"orders", b"a", b"b"]);
    assert_eq!(plain.opaque_at.of(&header), b"7");
}

#[test]
fn a_message_that_is_special_is_not_plain() {
    let header = |value: &str| -> Vec<u8> {
        format!(r#"{{"code":310,"extFields":{{"a":"pg","b":"t","f":{value},"m":"false"}},"opaque":1}}"#).into()
    };
    let mut known = Headers::default();
    for plain in ["\"0\"", "\"1\"", "0", "1"] {
        assert_eq!(scan(&mut known, &[header(plain), header(plain)]).frames.len(), 1);
    }
    for special in ["\"4\"", "\"128\"", "\"\"", "4", "128", "-1", "true", "null"] {
        assert_eq!(scan(&mut known, &[header("\"0\""), header("0"), header(special)]).frames.len(), 0);
    }
}

#[test]
fn a_send_to_an_internal_topic_is_not_plain() {
    for topic in ["rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"] {
        assert_eq!(scan(&mut Headers::default(), &[send("orders", 1, ""), send(topic, 2, "")]).frames.len(), 0);
    }
}

#[test]
fn an_answer_is_read_with_whatever_fields() {
    let header = br#"{"code":0,"flag":1,"extFields":{"y":1,"z":"\"}"},"opaque":-3,"remark":null,"language":"JAVA"}"#;
    assert_eq!(answers::read(header, None).unwrap().known, Known { code: 0, flag: 1, opaque: -3 });
}

#[test]
fn doubtful_headers_are_not_read() {
    assert!(json::header(br#"{"code":11,"extFields":{"topic":"a","queueId":"3"},"opaque":7}"#, None).is_some());
    for doubtful in [
        &br#"{"code":11,"opaque":7,"Code":10}"#[..],
        br#"{"code":11,"opaque":7,"code":10}"#,
        br#"{"code":11,"opaque":7,"extFields":{},"extFields":{}}"#,
        br#"{"code":11,"opaque":7,"language":{"$ref":"a"}}"#,
        br#"{"code":"11","opaque":7}"#,
        br#"{"code":11,"opaque":7,"extFields":{"group":1}}"#,
        br#"{"code":11}"#,
        br#"{"code":11,"opaque":7} x"#,
    ] {
        assert!(json::header(doubtful, None).is_none());
    }
}

#[test]
fn a_span_beyond_the_header_is_empty() {
    assert_eq!(Span::new(2, 9).of(b"abc"), b"");
    assert_eq!(Span::new(2, 1).of(b"abc"), b"");
}
