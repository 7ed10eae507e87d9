//! What a header says that is beyond doubt, and where in the header it stands.

use crate::prefix::RESPONSE;

/// The places from `start` to before `end`.
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

    /// What stands there; nothing if the header is shorter.
    pub fn of(self, header: &[u8]) -> &[u8] {
        header.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// What a header says of its frame.
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

/// The reading of one plain header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plain {
    pub known: Known,
    /// Of a send.
    pub layout: u8,
    /// The name as it stands there, `%RETRY%` included.
    pub name: Span,
    /// The producer group; empty if there is none.
    pub group: Span,
    /// Where the opaque stands: its digits, or its four bytes.
    pub opaque_at: Span,
}

/// Which bytes of a header could be others without a change to how it is read.
///
/// Filled while a header is read, if it is to become a template.
#[derive(Debug, Default)]
pub struct Loose {
    /// Any bytes that are ordinary: see `templates`.
    pub text: Vec<Span>,
    /// Digits of an integer: any others, the first not zero if there are several.
    pub digits: Vec<Span>,
}
