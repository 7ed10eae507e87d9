//! A frame consists of a type, a channel, a size, a payload, and an end octet.

pub const METHOD: u8 = 1;
pub const HEADER: u8 = 2;
pub const BODY: u8 = 3;
pub const HEARTBEAT: u8 = 8;
pub const END: u8 = 0xce;
const BEFORE_BYTES: usize = 7;
pub const MAX_PLAIN_BYTES: usize = 4096;
pub const AROUND_BYTES: usize = 8;

const fn basic(method: u32) -> u32 {
    60 << 16 | method
}
pub const PUBLISH: u32 = basic(40);
pub const RETURN: u32 = basic(50);
pub const DELIVER: u32 = basic(60);
pub const ACK: u32 = basic(80);
pub const REJECT: u32 = basic(90);
pub const NACK: u32 = basic(120);

pub struct Frame<'a> {
    pub kind: u8,
    pub channel: u16,
    pub start: usize,
    /// May be beyond the end of the chunk.
    pub stop: usize,
    /// None if the frame is incomplete.
    pub payload: Option<&'a [u8]>,
}

impl<'a> Frame<'a> {
    /// Returns None if the frame is too short, or its end octet is wrong.
    #[inline]
    pub fn at(chunk: &'a [u8], start: usize) -> Option<Self> {
        let rest = chunk.get(start..)?;
        let word = u64::from_be_bytes(*rest.first_chunk::<AROUND_BYTES>()?);
        #[allow(clippy::cast_possible_truncation)]
        let (kind, channel, size) = ((word >> 56) as u8, (word >> 40) as u16, (word >> 8) as u32 as usize);
        let stop = start.checked_add(AROUND_BYTES)?.checked_add(size)?;
        let payload = match rest.get(BEFORE_BYTES..=BEFORE_BYTES + size) {
            Some([payload @ .., END]) => Some(payload),
            Some(_) => return None,
            None => None,
        };
        Some(Self { kind, channel, start, stop, payload })
    }

    /// Returns whether an incomplete frame can still be plain.
    pub fn is_to_come(chunk: &[u8], start: usize, frame_max: usize) -> bool {
        let rest = chunk.get(start..).unwrap_or_default();
        let Some([kind, _, _, size @ ..]) = rest.first_chunk::<BEFORE_BYTES>() else { return true };
        let bytes = AROUND_BYTES + u32::from_be_bytes(*size) as usize;
        let awaited = match *kind {
            METHOD | HEADER => bytes <= AROUND_BYTES + MAX_PLAIN_BYTES && rest.len() < bytes,
            BODY | HEARTBEAT => rest.len() < AROUND_BYTES,
            _ => false,
        };
        awaited && bytes <= frame_max
    }

    pub fn size(&self) -> usize {
        self.stop - self.start - AROUND_BYTES
    }
}

#[inline]
pub fn method(payload: &[u8]) -> Option<(u32, &[u8])> {
    let (number, arguments) = payload.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*number), arguments))
}

#[inline]
pub fn short_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

pub fn confirm(channel: u16, method: u32, number: u64, out: &mut Vec<u8>) {
    let mut frame = [0; 21];
    frame[0] = METHOD;
    frame[1..3].copy_from_slice(&channel.to_be_bytes());
    frame[6] = 13;
    frame[7..11].copy_from_slice(&method.to_be_bytes());
    frame[11..19].copy_from_slice(&number.to_be_bytes());
    frame[20] = END;
    out.extend_from_slice(&frame);
}
