//! What is to be written of what was read.

use std::ops::Range;

/// The peers, by where a chunk came from or whom it goes to.
pub const CLIENT: usize = 0;
pub const BROKER: usize = 1;

/// Bytes of the chunk in hand, or of `Out::own`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Chunk(Range<usize>),
    Own(Range<usize>),
}

/// What is to be written of one chunk, in order, by the peer that it goes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Out {
    pub to: [Vec<Piece>; 2],
    pub own: Vec<u8>,
}

impl Out {
    /// Pass bytes of the chunk on; adjacent ones become one piece.
    pub fn pass(&mut self, to: usize, bytes: Range<usize>) {
        match self.to[to].last_mut() {
            _ if bytes.is_empty() => (),
            Some(Piece::Chunk(last)) if last.end == bytes.start => last.end = bytes.end,
            _ => self.to[to].push(Piece::Chunk(bytes)),
        }
    }

    /// Write bytes that are not of the chunk.
    pub fn add(&mut self, to: usize, bytes: &[u8]) {
        let from = self.own.len();
        self.own.extend_from_slice(bytes);
        self.say(to, from);
    }

    /// Write what was appended to `own` since it had `from` bytes.
    pub fn say(&mut self, to: usize, from: usize) {
        let end = self.own.len();
        match self.to[to].last_mut() {
            _ if from == end => (),
            Some(Piece::Own(last)) if last.end == from => last.end = end,
            _ => self.to[to].push(Piece::Own(from..end)),
        }
    }

    pub fn clear(&mut self) {
        self.to.iter_mut().for_each(Vec::clear);
        self.own.clear();
    }
}
