//! The state of one connection's channels.

use std::collections::HashMap;

use super::confirms::{Confirms, Numbers};
use crate::keys::Keys;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    #[default]
    Idle,
    /// The method frame was read. `piece` is its index in the pieces of the chunk.
    Method { key: usize, bytes: usize, piece: u32 },
    /// The header was read. `publish` is set if it began in this chunk. `rest` is the number of body bytes left.
    Body { publish: Option<u32>, rest: u64 },
}

#[derive(Debug, Default)]
pub struct Channel {
    pub number: u16,
    pub stage: Stage,
    pub published: u64,
    /// `stage` and `published` at the last possible end of the scan, if changed since.
    pub saved: Option<(Stage, u64)>,
    /// The last scan that changed `stage` and `published`, and their values before it.
    pub began: (u64, Stage, u64),
    pub run: (u64, usize, u32),
    pub confirms: Option<Confirms>,
}

#[derive(Debug, Default)]
pub struct Scan {
    pub(super) before_names: String,
    pub(super) keys: Keys,
    pub(super) routing_keys: bool,
    pub(super) number: u64,
    pub(super) runs: HashMap<(usize, u16), u32>,
    /// Indexes of channels that have changed since the last possible end of the scan, and since its start.
    pub(super) changed: Vec<usize>,
    pub(super) touched: Vec<usize>,
    pub(super) expected: usize,
}

#[derive(Debug, Default)]
pub struct Channels {
    /// Index in `all` plus one, by channel number.
    places: Vec<u16>,
    pub(super) all: Vec<Channel>,
    pub(super) scan: Scan,
}

impl Channels {
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

    /// `rest` is the number of bytes left of the open body. `numbers` is set if the channel has confirms.
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

    pub fn clear(&mut self) {
        self.places.clear();
        self.all.clear();
        self.scan.changed.clear();
        self.scan.touched.clear();
    }

    /// Returns channels with an open content, and the bytes left of its body.
    pub fn open(&self) -> Vec<(u16, u64)> {
        let rest = |channel: &Channel| match channel.stage {
            Stage::Body { rest, .. } => Some((channel.number, rest)),
            _ => None,
        };
        self.all.iter().filter_map(rest).collect()
    }

    pub fn numbers(&self) -> Vec<(u16, Numbers)> {
        let numbers = |channel: &Channel| Some((channel.number, channel.confirms.as_ref()?.numbers(channel.published)));
        self.all.iter().filter_map(numbers).collect()
    }

    #[inline]
    pub fn forward(&mut self, number: u16, publish: u64) {
        if let Some(confirms) = self.get(number).and_then(|channel| channel.confirms.as_mut()) {
            confirms.forward(publish);
        }
    }

    pub(super) fn is_idle(&self, number: u16) -> bool {
        self.place(number).is_some_and(|place| self.all[place].stage == Stage::Idle)
    }

    fn confirms(&self, number: u16) -> Option<&Confirms> {
        self.place(number).and_then(|place| self.all.get(place))?.confirms.as_ref()
    }

    pub fn unconfirmed(&self) -> usize {
        self.all.iter().filter_map(|channel| channel.confirms.as_ref()).map(Confirms::len).sum()
    }

    pub fn forwarded(&self, number: u16) -> u64 {
        self.confirms(number).map_or(0, Confirms::sent)
    }

    /// Returns whether a publish is unconfirmed. `publish` is the broker's number.
    pub fn is_open(&self, number: u16, publish: u64) -> bool {
        self.confirms(number).is_some_and(|confirms| confirms.is_open(publish))
    }
}
