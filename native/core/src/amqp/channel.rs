//! What is known of the channels of one connection.

use std::collections::{HashMap, HashSet};

use super::confirms::Confirms;
use crate::keys::Keys;

/// Where the contents of one channel stand, between two frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stage {
    /// The session reads this channel.
    #[default]
    NotPlain,
    /// Nothing is begun.
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
    /// Publishes are taken whatever their key.
    pub takes_all: bool,
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
    /// Places of channels with an open content.
    pub(super) open: Vec<usize>,
    /// Places of channels that changed since the scan could have ended, and since it began.
    pub(super) changed: Vec<usize>,
    pub(super) touched: Vec<usize>,
    /// How many publishes the last chunk had.
    pub(super) expected: usize,
}

impl Scan {
    pub fn new(before_names: String) -> Self {
        Self { before_names, ..Self::default() }
    }
}

/// The channels of one connection, by number.
#[derive(Debug, Default)]
pub struct Channels {
    /// By channel, one more than its place in `all`.
    places: Vec<u16>,
    pub(super) all: Vec<Channel>,
    free: Vec<u16>,
    pub(super) scan: Scan,
    /// Of channels with confirms, publishes are taken only of keys that were named.
    pub(super) only_named: bool,
    /// Exchange and routing key of each as they came, each with its length in front.
    pub(super) named: HashSet<Vec<u8>>,
    /// Of channels where that is asked for, the number of the last delivery that was stepped over.
    pub(super) delivered: HashMap<u16, u64>,
}

/// When there are so many names, all are forgotten.
const MAX_NAMED: usize = 1024;

impl Channels {
    /// `before_names`: how all names begin.
    #[must_use]
    pub fn new(before_names: String) -> Self {
        Self { scan: Scan::new(before_names), ..Self::default() }
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

    /// A channel, made if there is none; None if there are too many.
    fn make(&mut self, number: u16) -> Option<&mut Channel> {
        if self.place(number).is_none() {
            let place = match self.free.pop() {
                Some(place) => place,
                None => u16::try_from(self.all.len()).ok().filter(|place| *place < u16::MAX)?,
            };
            if usize::from(place) == self.all.len() {
                self.all.push(Channel::default());
            }
            self.all[usize::from(place)] = Channel { number, ..Channel::default() };
            if self.places.len() <= usize::from(number) {
                self.places.resize(usize::from(number) + 1, 0);
            }
            self.places[usize::from(number)] = place + 1;
        }
        self.get(number)
    }

    /// Let a scan take publishes of a channel on which nothing is begun.
    pub fn mark(&mut self, number: u16) {
        if let Some(channel) = self.make(number) {
            if channel.stage == Stage::NotPlain {
                channel.stage = Stage::Idle;
            }
        }
    }

    /// Let a scan take publishes of a channel, behind the rest of the body of an open content.
    pub fn resume(&mut self, number: u16, rest: u64) {
        let Some(channel) = self.make(number) else { return };
        channel.stage = if rest == 0 { Stage::Idle } else { Stage::Body { publish: None, rest } };
        self.scan.open.extend(self.place(number));
        self.keep_open();
    }

    /// Channels with an open content, and how many bytes of its body are still to come.
    #[must_use]
    pub fn open(&self) -> Vec<(u16, u64)> {
        let channels = self.scan.open.iter().map(|place| &self.all[*place]);
        let rest = |channel: &Channel| match channel.stage {
            Stage::Body { rest, .. } => Some((channel.number, rest)),
            _ => None,
        };
        channels.filter_map(rest).collect()
    }

    /// Let it take none; returns how much body of the content that is open is to come.
    pub fn unmark(&mut self, number: u16) -> u64 {
        let Some(channel) = self.get(number) else { return 0 };
        let rest = if let Stage::Body { rest, .. } = channel.stage { rest } else { 0 };
        channel.stage = Stage::NotPlain;
        self.keep_open();
        rest
    }

    /// Number the publishes of a channel from 1 on.
    pub fn select(&mut self, number: u16) {
        if let Some(channel) = self.make(number) {
            channel.confirms.get_or_insert_default();
        }
    }

    /// Note the numbers of deliveries of a channel.
    pub fn track(&mut self, number: u16) {
        self.delivered.entry(number).or_default();
    }

    /// The number of the last delivery of a channel that was stepped over; 0 if there was none.
    #[must_use]
    pub fn delivered(&self, number: u16) -> u64 {
        self.delivered.get(&number).copied().unwrap_or_default()
    }

    pub fn forget(&mut self, number: u16) {
        self.delivered.remove(&number);
        if let Some(place) = self.place(number) {
            self.places[usize::from(number)] = 0;
            self.all[place] = Channel::default();
            self.free.extend(u16::try_from(place));
            self.keep_open();
        }
    }

    /// The number of a publish that came now; 0 on a channel without confirms.
    pub fn publish(&mut self, number: u16) -> u64 {
        let Some(channel) = self.get(number).filter(|channel| channel.confirms.is_some()) else { return 0 };
        channel.published += 1;
        channel.published
    }

    /// Take publishes of channels with confirms only as far as they are for keys that are named from now on; or all.
    pub fn take_named(&mut self, only: bool) {
        self.only_named = only;
        self.named.clear();
    }

    /// Take publishes of a channel whatever their key, or only as of all channels again.
    pub fn take_all(&mut self, number: u16, all: bool) {
        if let Some(channel) = self.get(number) {
            channel.takes_all = all;
        }
    }

    pub fn name(&mut self, raw: &[u8]) {
        if self.named.len() >= MAX_NAMED {
            self.named.clear();
        }
        self.named.insert(raw.to_vec());
    }

    /// Note that a publish goes on to the broker now.
    #[inline]
    pub fn forward(&mut self, number: u16, publish: u64) {
        if let Some(confirms) = self.get(number).and_then(|channel| channel.confirms.as_mut()) {
            confirms.forward(publish);
        }
    }

    /// Take a confirm of the broker's; returns the client's numbers that it is for, or None if it is right as it is.
    pub fn answered(&mut self, number: u16, publish: u64, multiple: bool, refused: bool) -> Option<Vec<u64>> {
        self.get(number)?.confirms.as_mut()?.answered(publish, multiple, refused)
    }

    /// Withhold what the broker says of the last publish that went on, but for a nack; returns the broker's number.
    pub fn withhold(&mut self, number: u16) -> u64 {
        self.get(number).and_then(|channel| channel.confirms.as_mut()).map_or(0, Confirms::withhold)
    }

    /// Withhold not only an ack.
    pub fn settle_withheld(&mut self, number: u16, publish: u64) {
        if let Some(confirms) = self.get(number).and_then(|channel| channel.confirms.as_mut()) {
            confirms.settle_withheld(publish);
        }
    }

    /// Withhold nothing any more.
    pub fn release(&mut self, number: u16, publish: u64) {
        if let Some(confirms) = self.get(number).and_then(|channel| channel.confirms.as_mut()) {
            confirms.release(publish);
        }
    }

    /// Whether a scan may take a publish of a channel next.
    pub(super) fn is_idle(&self, number: u16) -> bool {
        self.place(number).is_some_and(|place| self.all[place].stage == Stage::Idle)
    }

    fn confirms(&self, number: u16) -> Option<&Confirms> {
        self.place(number).and_then(|place| self.all.get(place))?.confirms.as_ref()
    }

    /// How many publishes of a channel went on and are not confirmed yet.
    #[must_use]
    pub fn unconfirmed(&self, number: u16) -> usize {
        self.confirms(number).map_or(0, Confirms::len)
    }

    /// How many publishes of a channel went on.
    #[must_use]
    pub fn forwarded(&self, number: u16) -> u64 {
        self.confirms(number).map_or(0, Confirms::sent)
    }

    /// Whether the broker has not confirmed the publish to which it gave a number.
    #[must_use]
    pub fn is_open(&self, number: u16, publish: u64) -> bool {
        self.confirms(number).is_some_and(|confirms| confirms.is_open(publish))
    }
}
