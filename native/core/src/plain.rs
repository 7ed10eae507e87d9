//! The contents of a plain header, and their positions.

use crate::prefix::RESPONSE;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    pub fn new(start: usize, end: usize) -> Self {
        #[allow(clippy::cast_possible_truncation)]
        Self { start: start as u32, end: end as u32 }
    }

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
    pub layout: u8,
    /// Includes `%RETRY%`.
    pub name: Span,
    pub group: Span,
    pub opaque_at: Span,
}

/// Bytes that may differ between headers of the same shape. See `templates`.
#[derive(Debug, Default)]
pub struct Loose {
    pub text: Vec<Span>,
    /// The digits of integers without a leading zero.
    pub digits: Vec<Span>,
}
