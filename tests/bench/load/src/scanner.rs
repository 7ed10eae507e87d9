//! Splits a stream of `RocketMQ` frames, and reads the relevant fields of a header.

use crate::frames::{MAX_FRAME_BYTES, PREFIX_BYTES};

/// The answer code of a refused request, `SYSTEM_BUSY`.
pub const SYSTEM_BUSY: i64 = 2;

const ONEWAY_OR_RESPONSE: i64 = 3;

/// The start of one frame: everything but the body.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    pub header_type: u8,
    pub header: &'a [u8],
}

impl Head<'_> {
    /// The opaque of a request with an answer.
    pub fn opaque_to_answer(&self) -> Option<u32> {
        let (flag, opaque) = if self.header_type == 0 {
            (
                json_int(self.header, b"\"flag\":")?,
                json_int(self.header, b"\"opaque\":")?,
            )
        } else {
            (i64::from(be_u32(self.header, 9)?), i64::from(be_u32(self.header, 5)?))
        };
        let wanted = flag & ONEWAY_OR_RESPONSE == 0;
        u32::try_from(opaque).ok().filter(|_| wanted)
    }

    /// Code and opaque of an answer (always JSON).
    pub fn answer(&self) -> Option<(i64, u32)> {
        // Brokers and Sluice put the code first.
        let code = match self.header.strip_prefix(b"{\"code\":") {
            Some(behind) => leading_int(behind)?,
            None => json_int(self.header, b"\"code\":")?,
        };
        let opaque = json_int(self.header, b"\"opaque\":")?;
        Some((code, u32::try_from(opaque).ok()?))
    }
}

/// The number of a key, searched from the end, where Java puts the most needed ones.
fn json_int(header: &[u8], key: &[u8]) -> Option<i64> {
    let at = header.windows(key.len()).rposition(|seen| seen == key)?;
    leading_int(&header[at + key.len()..])
}

fn leading_int(bytes: &[u8]) -> Option<i64> {
    let digits = bytes.trim_ascii_start();
    let end = digits
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(digits.len());
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

/// Splits one direction of a connection into frames, and keeps only an incomplete head.
#[derive(Default)]
pub struct Scanner {
    body_left: usize,
    head: Vec<u8>,
}

impl Scanner {
    /// Call `on_frame` for each complete head.
    pub fn scan(&mut self, mut chunk: &[u8], mut on_frame: impl FnMut(Head)) -> Result<(), &'static str> {
        loop {
            let body = self.body_left.min(chunk.len());
            self.body_left -= body;
            chunk = &chunk[body..];
            if chunk.is_empty() {
                return Ok(());
            }
            if self.head.is_empty() {
                let (head_len, frame_len) = measure(chunk)?;
                if let (Some(frame_len), Some(bytes)) = (frame_len, chunk.get(..head_len)) {
                    on_frame(head_of(bytes));
                    self.body_left = frame_len - head_len;
                    chunk = &chunk[head_len..];
                } else {
                    self.head.extend(chunk);
                    return Ok(());
                }
            } else {
                let (head_len, frame_len) = measure(&self.head)?;
                let taken = (head_len - self.head.len()).min(chunk.len());
                self.head.extend(&chunk[..taken]);
                chunk = &chunk[taken..];
                if let (Some(frame_len), true) = (frame_len, self.head.len() == head_len) {
                    on_frame(head_of(&self.head));
                    self.body_left = frame_len - head_len;
                    self.head.clear();
                }
            }
        }
    }

    /// Whether the stream is between two frames.
    pub fn at_boundary(&self) -> bool {
        self.body_left == 0 && self.head.is_empty()
    }
}

/// The length of the head and, once its first eight bytes are there, of the whole frame.
pub fn measure(start: &[u8]) -> Result<(usize, Option<usize>), &'static str> {
    let (Some(length), Some(word)) = (be_u32(start, 0), be_u32(start, 4)) else {
        return Ok((PREFIX_BYTES, None));
    };
    let frame_len = 4 + length as usize;
    let head_len = PREFIX_BYTES + (word & 0x00ff_ffff) as usize;
    if frame_len > MAX_FRAME_BYTES || head_len > frame_len {
        return Err("broken framing");
    }
    Ok((head_len, Some(frame_len)))
}

fn be_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub fn head_of(bytes: &[u8]) -> Head<'_> {
    Head {
        header_type: bytes[4],
        header: &bytes[PREFIX_BYTES..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::{Header, Shape, push_answer};

    fn heads(stream: &[u8], step: usize) -> (Vec<(u8, Vec<u8>)>, bool) {
        let mut scanner = Scanner::default();
        let mut found = Vec::new();
        for chunk in stream.chunks(step) {
            scanner
                .scan(chunk, |head| {
                    found.push((head.header_type, head.header.to_vec()));
                })
                .unwrap();
        }
        (found, scanner.at_boundary())
    }

    #[test]
    fn scanner_finds_the_same_frames_in_chunks_of_any_size() {
        let mut stream = Vec::new();
        for size in [536, 128, 1432] {
            stream.extend(Shape::new(size, Header::Json, 3).unwrap().block(3000));
            push_answer(&mut stream, 17);
            stream.extend(Shape::new(size, Header::Binary, 3).unwrap().block(3000));
        }
        let (whole, at_boundary) = heads(&stream, stream.len());
        assert!(at_boundary);
        for step in [1, 2, 7, 8, 9, 408, 535, 536, 537, 5000] {
            assert_eq!(heads(&stream, step), (whole.clone(), true));
        }
        assert!(!heads(&stream[..stream.len() - 1], 64).1);
    }

    #[test]
    fn broken_framing_is_found() {
        for bytes in [
            [0xff, 0, 0, 0, 0, 0, 0, 0],
            [0, 0, 0, 4, 0, 0, 0, 1],
            [0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert!(Scanner::default().scan(&bytes, |_| ()).is_err());
        }
    }

    #[test]
    fn answers_are_read_back() {
        let mut out = Vec::new();
        push_answer(&mut out, 2_000_000_001);
        let head = head_of(&out);
        assert_eq!(head.answer(), Some((0, 2_000_000_001)));
        assert_eq!(head.opaque_to_answer(), None, "an answer is never answered");
    }
}
