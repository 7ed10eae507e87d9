//! The first eight bytes of a `RocketMQ` frame.

/// Two words: the length of the rest of the frame, and the header's type and length.
pub const PREFIX_BYTES: usize = 8;
pub const HEADER_LENGTH: u32 = 0x00ff_ffff;
pub const HEADER_JSON: u32 = 0;
/// The bit of `flag` that marks an answer.
pub const RESPONSE: i32 = 1;

#[inline]
pub fn prefix(chunk: &[u8], at: usize) -> Option<(i32, u32)> {
    let words = chunk.get(at..)?.first_chunk::<PREFIX_BYTES>()?;
    let word = u64::from_be_bytes(*words);
    #[allow(clippy::cast_possible_truncation)]
    Some(((word >> 32) as i32, word as u32))
}
