//! Requests that nothing limits, such as pulls and routes: of these only the numbers matter.

use crate::binary;
use crate::json::Reader;
use crate::plain::Known;
use crate::prefix::HEADER_JSON;

/// Read a header; None where it is not beyond doubt.
pub fn read(header: &[u8], header_type: u32) -> Option<Known> {
    match header_type {
        HEADER_JSON => json(header),
        1 => binary::known(header),
        _ => None,
    }
}

fn json(header: &[u8]) -> Option<Known> {
    let mut reader = Reader::<false>::new(header)?;
    let mut numbers = [None; 4];
    // Of language, remark, extFields and serializeTypeCurrentRPC, which were met.
    let mut met = [false; 4];
    let mut more = reader.open()?;
    while more {
        let key = reader.key()?;
        let number = [&b"code"[..], b"opaque", b"flag", b"version"].iter().position(|known| *known == key);
        if let Some(number) = number.and_then(|number| numbers.get_mut(number)) {
            if number.replace(reader.i32()?.0).is_some() {
                return None;
            }
        } else {
            let others = [&b"language"[..], b"remark", b"extFields", b"serializeTypeCurrentRPC"];
            let other = others.iter().position(|known| *known == key)?;
            if std::mem::replace(met.get_mut(other)?, true) {
                return None;
            }
            match reader.next_mark()? {
                b'{' if key == b"extFields" => fields(&mut reader)?,
                b'"' => reader.scalar().map(|_| ())?,
                b'n' if key == b"remark" => reader.scalar().map(|_| ())?,
                _ => return None,
            }
        }
        more = reader.more()?;
    }
    reader.end()?;
    let [code, opaque, flag, _] = numbers;
    Some(Known { code: code?, opaque: opaque?, flag: flag.unwrap_or(0) })
}

/// Fields by which other requests are limited. Where one is no string, Python looks closer whatever the request is.
const TYPED: [&[u8]; 9] = [b"a", b"b", b"m", b"f", b"topic", b"producerGroup", b"batch", b"sysFlag", b"group"];

fn fields(reader: &mut Reader<false>) -> Option<()> {
    let mut more = reader.open()?;
    while more {
        let key = reader.key()?;
        if reader.next_mark()? != b'"' && TYPED.contains(&key) {
            return None;
        }
        reader.scalar()?;
        more = reader.more()?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::read;
    use crate::plain::Known;

    #[test]
    fn pulls_and_routes_are_known() {
        let pull =
            br#"{"code":11,"extFields":{"topic":"a","queueId":"3"},"flag":0,"language":"JAVA","opaque":7,"version":1}"#;
        assert_eq!(read(pull, 0), Some(Known { code: 11, opaque: 7, flag: 0 }));
        let answer = br#"{"code":0,"flag":1,"language":"JAVA","opaque":-9,"remark":null}"#;
        assert!(read(answer, 0).is_some_and(Known::is_answer));
        let mut binary = vec![0, 105, 0, 1, 2, 0, 0, 0, 9, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(read(&binary, 1), Some(Known { code: 105, opaque: 9, flag: 2 }));
        binary[20] = 1;
        assert_eq!(read(&binary, 1), None);
    }

    #[test]
    fn doubtful_headers_are_not() {
        for doubtful in [
            &br#"{"code":11,"opaque":7,"Code":10}"#[..],
            br#"{"code":11,"opaque":7,"code":10}"#,
            br#"{"code":11,"opaque":7,"extFields":"x","extFields":{}}"#,
            br#"{"code":11,"opaque":7,"language":{"$ref":"a"}}"#,
            br#"{"code":"11","opaque":7}"#,
            br#"{"code":11,"opaque":7,"extFields":{"group":1}}"#,
            br#"{"code":11}"#,
            br#"{"code":11,"opaque":7} x"#,
        ] {
            assert_eq!(read(doubtful, 0), None);
        }
        assert_eq!(read(br#"{"code":11,"opaque":7}"#, 2), None);
    }
}
