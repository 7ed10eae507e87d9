//! The unambiguous contents of a header, and their positions.

use crate::prefix::RESPONSE;

/// Positions from `start` to before `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    /// Headers have at most 2^24 bytes.
    pub fn new(start: usize, end: usize) -> Self {
        #[allow(clippy::cast_possible_truncation)]
        Self { start: start as u32, end: end as u32 }
    }

    /// Empty if the header is shorter.
    pub fn of(self, header: &[u8]) -> &[u8] {
        header.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub code: i32,
    pub opaque: i32,
    pub flag: i32,
}

impl Known {
    pub fn is_answer(self) -> bool {
        self.flag & RESPONSE != 0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plain {
    pub known: Known,
    /// Field names of a send.
    pub layout: u8,
    /// Includes `%RETRY%`.
    pub name: Span,
    /// Empty if missing.
    pub group: Span,
    /// Its digits, or its four bytes.
    pub opaque_at: Span,
}

/// Bytes of a header that can differ without a change to how it is read.
///
/// Filled while reading a header that will become a template.
#[derive(Debug, Default)]
pub struct Loose {
    /// Any ordinary bytes. See `templates`.
    pub text: Vec<Span>,
    /// Digits of an integer: any digits, without a leading zero if there are several.
    pub digits: Vec<Span>,
}
