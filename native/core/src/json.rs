//! A strict parser of JSON headers.

use crate::plain::{Known, Loose, Plain, Span};
use crate::sends::{self, Values};

/// All methods return None if the header is not plain.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    loose: Option<&'a mut Loose>,
}

enum Value {
    Text(Span),
    Digits(Span),
    Other,
}

impl<'a> Reader<'a> {
    #[inline]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[inline]
    fn next_mark(&mut self) -> Option<u8> {
        loop {
            let byte = self.peek()?;
            if byte > b' ' {
                return Some(byte);
            }
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return None;
            }
            self.at += 1;
        }
    }

    #[inline]
    fn expect(&mut self, mark: u8) -> Option<()> {
        (self.next_mark()? == mark).then(|| self.at += 1)
    }

    /// Returns false at the end of the object.
    #[inline]
    fn more(&mut self) -> Option<bool> {
        let mark = self.next_mark()?;
        self.at += 1;
        match mark {
            b',' => Some(true),
            b'}' => Some(false),
            _ => None,
        }
    }

    /// Returns false if the object is empty.
    #[inline]
    fn open(&mut self) -> Option<bool> {
        self.expect(b'{')?;
        if self.next_mark()? == b'}' {
            self.at += 1;
            return Some(false);
        }
        Some(true)
    }

    fn end(&mut self) -> Option<()> {
        (self.next_mark().is_none() && self.at == self.bytes.len()).then_some(())
    }

    #[inline]
    fn key(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let start = self.at;
        if self.peek()? == b'$' {
            return None;
        }
        self.at = text_end(self.bytes, start);
        if self.peek()? != b'"' {
            return None;
        }
        let key = &self.bytes[start..self.at];
        self.at += 1;
        self.expect(b':')?;
        Some(key)
    }

    /// Reads a string after its opening quote.
    #[inline]
    fn text(&mut self) -> Option<Value> {
        let start = self.at;
        let mut piece = start;
        let mut plain = true;
        if self.peek()? == b'$' {
            return None;
        }
        loop {
            self.at = text_end(self.bytes, self.at);
            if let Some(loose) = &mut self.loose {
                loose.text.push(Span::new(piece, self.at));
            }
            match self.peek()? {
                b'"' => break,
                b'\\' => self.escape()?,
                _ => return None,
            }
            plain = false;
            piece = self.at;
        }
        let span = Span::new(start, self.at);
        self.at += 1;
        Some(if plain { Value::Text(span) } else { Value::Other })
    }

    fn escape(&mut self) -> Option<()> {
        let rest = self.bytes.get(self.at + 1..)?;
        match *rest.first()? {
            // An escaped quote before `$` could look like `$ref`.
            b'"' if rest.get(1) == Some(&b'$') => return None,
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 2,
            b'u' => {
                let digits = rest.get(1..5)?;
                let hex = |byte: u8| char::from(byte).to_digit(16);
                let (first, second) = (hex(digits[0])?, hex(digits[1])?);
                hex(digits[2])?;
                hex(digits[3])?;
                // A surrogate.
                if first == 0xd && second >= 8 {
                    return None;
                }
                self.at += 6;
            }
            _ => return None,
        }
        Some(())
    }

    /// Reads an integer of at most 18 digits, without a leading zero.
    #[inline]
    fn integer(&mut self) -> Option<(i64, Span)> {
        let negative = self.peek()? == b'-';
        self.at += usize::from(negative);
        let start = self.at;
        let mut value = 0_i64;
        while let Some(digit) = self.peek().map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
            if self.at - start == 18 {
                return None;
            }
            value = value * 10 + i64::from(digit);
            self.at += 1;
        }
        let digits = self.at - start;
        if digits == 0 || (self.bytes[start] == b'0' && (digits > 1 || negative)) {
            return None;
        }
        Some((if negative { -value } else { value }, Span::new(start, self.at)))
    }

    #[inline]
    fn i32(&mut self) -> Option<(i32, Span)> {
        self.next_mark()?;
        let (value, span) = self.integer()?;
        Some((i32::try_from(value).ok()?, span))
    }

    #[inline]
    fn scalar(&mut self) -> Option<Value> {
        match self.next_mark()? {
            b'"' => {
                self.at += 1;
                self.text()
            }
            b'-' | b'0'..=b'9' => {
                let negative = self.peek()? == b'-';
                let (_, span) = self.integer()?;
                if let Some(loose) = &mut self.loose {
                    loose.digits.push(span);
                }
                Some(if negative { Value::Other } else { Value::Digits(span) })
            }
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => None,
        }
    }

    fn word(&mut self, word: &[u8]) -> Option<Value> {
        if !self.bytes.get(self.at..)?.starts_with(word) {
            return None;
        }
        self.at += word.len();
        Some(Value::Other)
    }

    fn any_text(&mut self) -> Option<()> {
        self.expect(b'"')?;
        self.text().map(drop)
    }
}

/// Returns the index of the first quote, backslash or control character, or the end.
#[inline]
pub(crate) fn text_end(bytes: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    const QUOTE: u64 = 0x22;
    const BACKSLASH: u64 = 0x5c;
    // Reads eight bytes at a time. In `found`, the high bit of each matching byte is set. The high bits of later bytes
    // may be set too.
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let word = u64::from_le_bytes(*word);
        let quote = word ^ (ONES * QUOTE);
        let backslash = word ^ (ONES * BACKSLASH);
        let found = (quote.wrapping_sub(ONES) & !quote)
            | (backslash.wrapping_sub(ONES) & !backslash)
            | (word.wrapping_sub(ONES * 0x20) & !word);
        if found & HIGH != 0 {
            return at + (found & HIGH).trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while bytes.get(at).is_some_and(|byte| *byte >= b' ' && *byte != b'"' && *byte != b'\\') {
        at += 1;
    }
    at.min(bytes.len())
}

#[inline]
fn once<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.replace(value).is_none().then_some(())
}

pub struct Header {
    pub known: Known,
    pub opaque_at: Span,
    values: Values,
}

pub fn header(bytes: &[u8], loose: Option<&mut Loose>) -> Option<Header> {
    if !bytes.is_ascii() && std::str::from_utf8(bytes).is_err() {
        return None;
    }
    let mut reader = Reader { bytes, at: 0, loose };
    let (mut code, mut opaque, mut flag, mut version) = (None, None, None, None);
    let (mut language, mut remark, mut serialize, mut values) = (None, None, None, None);
    let mut more = reader.open()?;
    while more {
        match reader.key()? {
            b"code" => once(&mut code, reader.i32()?)?,
            b"opaque" => once(&mut opaque, reader.i32()?)?,
            b"flag" => once(&mut flag, reader.i32()?)?,
            b"version" => once(&mut version, reader.i32()?)?,
            b"extFields" => once(&mut values, fields(&mut reader)?)?,
            b"language" => once(&mut language, reader.any_text()?)?,
            b"serializeTypeCurrentRPC" => once(&mut serialize, reader.any_text()?)?,
            b"remark" => {
                let value = match reader.next_mark()? {
                    b'n' => reader.word(b"null").map(drop),
                    _ => reader.any_text(),
                };
                once(&mut remark, value?)?;
            }
            _ => return None,
        }
        more = reader.more()?;
    }
    reader.end()?;
    let ((code, _), (opaque, opaque_at)) = (code?, opaque?);
    let flag = flag.map_or(0, |(flag, _)| flag);
    Some(Header { known: Known { code, opaque, flag }, opaque_at, values: values.unwrap_or_default() })
}

pub fn read(bytes: &[u8], loose: Option<&mut Loose>) -> Option<Plain> {
    let Header { known, opaque_at, values } = header(bytes, loose)?;
    values.plain(bytes, known, opaque_at)
}

/// Reads `extFields`. Fields that matter must be strings without escapes.
#[inline]
fn fields(reader: &mut Reader) -> Option<Values> {
    let mut values = Values::default();
    let mut more = reader.open()?;
    while more {
        let field = sends::field(reader.key()?);
        match (field, reader.scalar()?) {
            (Some(field), Value::Text(span)) => {
                values.note(field, span)?;
                if let Some(loose) = reader.loose.as_mut().filter(|_| sends::tells(field)) {
                    loose.text.pop();
                }
            }
            (Some(field), Value::Digits(span)) if sends::is_sys_flag(field) => {
                values.note(field, span)?;
                if let Some(loose) = &mut reader.loose {
                    loose.digits.pop();
                }
            }
            (Some(_), _) => return None,
            (None, _) => (),
        }
        more = reader.more()?;
    }
    Some(values)
}
