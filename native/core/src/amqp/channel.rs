//! What is known of the channels of one connection.

use std::collections::HashMap;

use super::confirms::{Confirms, Numbers};
use crate::keys::Keys;

/// Where the contents of one channel stand, between two frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// Nothing is begun.
    #[default]
    Idle,
    /// The method frame has come: the key, its size, and which piece of the chunk it is.
    Method { key: usize, bytes: usize, piece: u32 },
    /// The header has come, too: of which publish of this chunk, if it began there, and how much body is to come.
    Body { publish: Option<u32>, rest: u64 },
}

#[derive(Debug, Default)]
pub struct Channel {
    pub number: u16,
    pub stage: Stage,
    /// The number of the last publish; of a channel with confirms.
    pub published: u64,
    /// What both were when a scan could have ended last, if they have changed since.
    pub saved: Option<(Stage, u64)>,
    /// The last scan that changed both, and what they were before it.
    pub began: (u64, Stage, u64),
    /// The last run, and of which scan and key it is.
    pub run: (u64, usize, u32),
    pub confirms: Option<Confirms>,
}

/// What is remembered between chunks.
#[derive(Debug, Default)]
pub struct Scan {
    pub(super) before_names: String,
    pub(super) keys: Keys,
    pub(super) routing_keys: bool,
    pub(super) number: u64,
    /// Of this scan, by key and channel.
    pub(super) runs: HashMap<(usize, u16), u32>,
    /// Places of channels that changed since the scan could have ended, and since it began.
    pub(super) changed: Vec<usize>,
    pub(super) touched: Vec<usize>,
    /// How many publishes the last chunk had.
    pub(super) expected: usize,
}

/// The channels of one connection that may be read, by number.
#[derive(Debug, Default)]
pub struct Channels {
    /// By channel, one more than its place in `all`.
    places: Vec<u16>,
    pub(super) all: Vec<Channel>,
    pub(super) scan: Scan,
}

impl Channels {
    /// `before_names`: how all names begin.
    pub fn new(before_names: String) -> Self {
        Self { scan: Scan { before_names, ..Scan::default() }, ..Self::default() }
    }

    #[inline]
    pub(super) fn place(&self, number: u16) -> Option<usize> {
        usize::from(*self.places.get(usize::from(number))?).checked_sub(1)
    }

    #[inline]
    pub(super) fn get(&mut self, number: u16) -> Option<&mut Channel> {
        let place = self.place(number)?;
        self.all.get_mut(place)
    }

    /// Add a channel, with the rest of the body that is open there, and with `numbers` if it has confirms.
    pub fn add(&mut self, number: u16, rest: u64, numbers: Option<&Numbers>) {
        let Ok(place) = u16::try_from(self.all.len() + 1) else { return };
        if self.places.len() <= usize::from(number) {
            self.places.resize(usize::from(number) + 1, 0);
        }
        self.places[usize::from(number)] = place;
        let mut channel = Channel { number, ..Channel::default() };
        if rest > 0 {
            channel.stage = Stage::Body { publish: None, rest };
        }
        if let Some(numbers) = numbers {
            channel.published = numbers.0;
            channel.confirms = Some(Confirms::new(numbers));
        }
        self.all.push(channel);
    }

    /// Forget all channels, but not the keys.
    pub fn clear(&mut self) {
        self.places.clear();
        self.all.clear();
        self.scan.changed.clear();
        self.scan.touched.clear();
    }

    /// Channels with an open content, and how many bytes of its body are still to come.
    pub fn open(&self) -> Vec<(u16, u64)> {
        let rest = |channel: &Channel| match channel.stage {
            Stage::Body { rest, .. } => Some((channel.number, rest)),
            _ => None,
        };
        self.all.iter().filter_map(rest).collect()
    }

    /// The numbers of channels with confirms.
    pub fn numbers(&self) -> Vec<(u16, Numbers)> {
        let numbers = |channel: &Channel| Some((channel.number, channel.confirms.as_ref()?.numbers(channel.published)));
        self.all.iter().filter_map(numbers).collect()
    }

    /// Note that a publish goes on to the broker now.
    #[inline]
    pub fn forward(&mut self, number: u16, publish: u64) {
        if let Some(confirms) = self.get(number).and_then(|channel| channel.confirms.as_mut()) {
            confirms.forward(publish);
        }
    }

    /// Whether nothing is begun on a channel.
    pub(super) fn is_idle(&self, number: u16) -> bool {
        self.place(number).is_some_and(|place| self.all[place].stage == Stage::Idle)
    }

    fn confirms(&self, number: u16) -> Option<&Confirms> {
        self.place(number).and_then(|place| self.all.get(place))?.confirms.as_ref()
    }

    /// How many publishes went on and are not confirmed yet.
    pub fn unconfirmed(&self) -> usize {
        self.all.iter().filter_map(|channel| channel.confirms.as_ref()).map(Confirms::len).sum()
    }

    /// How many publishes of a channel went on.
    pub fn forwarded(&self, number: u16) -> u64 {
        self.confirms(number).map_or(0, Confirms::sent)
    }

    /// Whether the broker has not confirmed the publish to which it gave a number.
    pub fn is_open(&self, number: u16, publish: u64) -> bool {
        self.confirms(number).is_some_and(|confirms| confirms.is_open(publish))
    }
}
