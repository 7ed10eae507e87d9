//! The first eight bytes of a frame of `RocketMQ`.

/// Two words: the frame's length behind the first, and type and length of the header.
pub const PREFIX_BYTES: usize = 8;
pub const HEADER_LENGTH: u32 = 0x00ff_ffff;
/// The type of a header that is JSON.
pub const HEADER_JSON: u32 = 0;
/// The bit of `flag` that an answer has and a request has not.
pub const RESPONSE: i32 = 1;

/// The two words of the frame at `at`, if they have come.
#[inline]
pub fn prefix(chunk: &[u8], at: usize) -> Option<(i32, u32)> {
    let words = chunk.get(at..)?.first_chunk::<PREFIX_BYTES>()?;
    let word = u64::from_be_bytes(*words);
    #[allow(clippy::cast_possible_truncation)]
    Some(((word >> 32) as i32, word as u32))
}
