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

    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    pub fn len(self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// What stands there; nothing if the header is shorter.
    pub fn of(self, header: &[u8]) -> &[u8] {
        header.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// The reading of one plain header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plain {
    /// Number of the table's entry; 0 for an answer.
    pub entry: u8,
    pub code: i32,
    pub flag: i32,
    pub opaque: i32,
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

/// What a header says of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
