//! Data to write after reading a chunk.

use std::ops::Range;

pub const CLIENT: usize = 0;
pub const BROKER: usize = 1;

/// A range of the current chunk, or of `Out::own`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Chunk(Range<usize>),
    Own(Range<usize>),
}

/// Data by receiving peer.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Out {
    pub to: [Vec<Piece>; 2],
    pub own: Vec<u8>,
}

impl Out {
    pub fn pass(&mut self, to: usize, bytes: Range<usize>) {
        match self.to[to].last_mut() {
            _ if bytes.is_empty() => (),
            Some(Piece::Chunk(last)) if last.end == bytes.start => last.end = bytes.end,
            _ => self.to[to].push(Piece::Chunk(bytes)),
        }
    }

    pub fn add(&mut self, to: usize, bytes: &[u8]) {
        let from = self.own.len();
        self.own.extend_from_slice(bytes);
        self.say(to, from);
    }

    /// Write the bytes of `own` from offset `from` on.
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
