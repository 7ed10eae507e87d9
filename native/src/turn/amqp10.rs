//! Reads both streams of an AMQP 1.0 connection: transfers of plain links, dispositions, flows, and empty frames.
//!
//! Python provides the state of a link or session when its first frame arrives. Changes are reported to Python before
//! flows that Python has to answer, and when the connection leaves.

use std::collections::{BTreeSet, HashMap, HashSet};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyBool;
use pyo3::{PyTraverseError, PyVisit};
use sluice_native_core::amqp10::{
    self, Difference, Disposed, Flow, Ids, Links, Moved, Numbers, Settling, Taken, Terms, Unknown,
};

use crate::runs::{Asker, Runs};
use crate::turn::judge::Judge;
use crate::turn::{Context, Lent, Next, Out, Reading, BROKER, CLIENT, MAX_KEPT_BYTES};

const MAX_RUNS: usize = 4096;
const MAX_WINDOW: u32 = 1 << 16;

/// A channel and a handle, as numbered by the peer that sends them.
type Key = (u16, u32);

/// `proxy.protocols.amqp10.credit.PlainCredit`.
#[derive(Clone, Copy, FromPyObject)]
struct Credit {
    sent: u32,
    granted: u32,
    limit: u32,
    window: Option<u32>,
    used: u32,
    untouched: bool,
    shaped: bool,
}

impl Credit {
    fn note_received(&mut self, deliveries: u32) {
        self.sent = self.sent.wrapping_add(deliveries);
        self.used = self.used.saturating_add(deliveries);
        self.untouched &= deliveries == 0;
    }

    fn unused(&self) -> u32 {
        self.granted.wrapping_sub(self.sent)
    }

    /// Returns the number of deliveries that can arrive before more credit is needed.
    fn plenty(&self) -> u32 {
        let window = self.window.filter(|_| self.granted != self.limit);
        window.map_or(self.unused(), |window| self.unused().saturating_sub(window / 2 + 1))
    }

    /// Returns how many more deliveries a flow requests, or None if Python must decide.
    fn wanted(&self, flow: &Flow) -> Option<u32> {
        let left = flow.limit()?.wrapping_sub(self.granted);
        let unused = self.unused();
        if flow.drain || left >= amqp10::HALF || unused >= amqp10::HALF {
            return None;
        }
        Some(match self.window {
            None => left,
            Some(window) if unused > window / 2 || (unused > 0 && self.untouched) => 0,
            Some(window) => left.min(window - unused),
        })
    }

    /// Returns the sender's delivery-count and link-credit if they differ from the flow's.
    fn grant(&mut self, flow: &Flow, wanted: u32) -> Option<(u32, u32)> {
        self.granted = self.granted.wrapping_add(wanted);
        self.limit = flow.limit()?;
        if let Some(window) = self.window.as_mut().filter(|_| wanted > 0) {
            if self.used >= *window {
                *window = MAX_WINDOW.min(2 * *window);
                self.used = 0;
            }
            self.untouched = true;
        }
        self.shaped |= self.granted != self.limit;
        let is_told = self.granted == self.limit && flow.numbers[5] == Some(self.sent);
        (self.shaped && !is_told).then(|| (self.sent, self.unused()))
    }
}

struct Link {
    /// `proxy.protocols.amqp10.links.Link`.
    python: Py<PyAny>,
    /// None if its deliveries are not counted.
    asker: Option<Asker>,
    /// Deliveries for which the sender has credit.
    known: u64,
    left: u64,
    /// Not yet reported to Python.
    deliveries: u32,
    asks: Option<usize>,
    /// None if Python handles its receiver's flows.
    credit: Option<Credit>,
    /// State after the last unreported flow, with the flow's delivery-count and link-credit.
    flowed: Option<(Credit, [Option<u32>; 2])>,
    waiting: bool,
    /// A function that gets the number of admitted deliveries, and returns false if the link has pending work.
    admitted: Option<Py<PyAny>>,
}

impl Link {
    fn allow(&mut self, (known, left, credit): Allowance) {
        (self.known, self.left) = (known.unwrap_or(u64::MAX), left.unwrap_or(u64::MAX));
        self.credit = credit;
    }

    fn grant(&mut self, flow: &Flow, wanted: u32) -> Changes {
        let Some(credit) = &mut self.credit else { return Changes::new() };
        let told = credit.grant(flow, wanted);
        self.deliveries = 0;
        self.flowed = Some((*credit, [flow.numbers[5], flow.numbers[6]]));
        if credit.window.is_some() {
            self.left = credit.plenty().into();
            self.known = self.known.max(credit.unused().into());
        }
        let uint = |number| {
            let mut raw = Vec::new();
            amqp10::write_uint(number, &mut raw);
            raw
        };
        told.map_or(Changes::new(), |(count, credit)| vec![(5, uint(count)), (6, uint(credit))])
    }

    /// Returns whether the link then has pending work.
    fn pass(&mut self, deliveries: u32) -> bool {
        self.deliveries += deliveries;
        self.credit.iter_mut().for_each(|credit| credit.note_received(deliveries));
        let deliveries = u64::from(deliveries);
        let is_over = self.left < deliveries;
        for bound in [&mut self.known, &mut self.left].into_iter().filter(|bound| **bound != u64::MAX) {
            *bound = bound.saturating_sub(deliveries);
        }
        is_over
    }
}

/// The result of `Link.allowance`.
type Allowance = (Option<u64>, Option<u64>, Option<Credit>);
type Changes = Vec<(usize, Vec<u8>)>;

struct Session {
    /// `proxy.protocols.amqp10.conversation.Conversation`.
    python: Py<PyAny>,
    /// The difference between the peers' delivery numbers, if any.
    numbers: Option<[Numbers; 2]>,
    transfers: [u32; 2],
    /// Fields of each peer's last unreported flow: next-incoming-id, incoming-window, next-outgoing-id (advanced by
    /// transfers) and outgoing-window.
    flows: [Option<[Option<u32>; 4]>; 2],
    settling: Settling,
}

impl Session {
    fn ids_of_client(&self, side: usize, disposed: &Disposed) -> Ids {
        let by = if disposed.is_receiver { self.numbers.map_or(0, |of| of[side].received.by) } else { 0 };
        (disposed.ids.0.wrapping_add(by), disposed.ids.1.wrapping_add(by))
    }
}

fn is_of_client(side: usize, disposed: &Disposed) -> bool {
    disposed.is_receiver == (side == BROKER)
}

struct Timed {
    session: Py<PyAny>,
    id: u32,
    since_ns: i64,
    is_settled: bool,
}

struct Amqp10 {
    judge: Judge,
    /// `proxy.protocols.amqp10.lent.LentConnection`.
    python: Py<PyAny>,
    /// By sending peer.
    scans: [Links; 2],
    links: [HashMap<Key, Link>; 2],
    /// The sender's key of each link, by receiving peer.
    received: [HashMap<Key, Key>; 2],
    sessions: Vec<Session>,
    channels: [HashMap<u16, usize>; 2],
    changed_links: BTreeSet<(usize, Key)>,
    changed_sessions: BTreeSet<usize>,
    asking: Vec<Key>,
    /// Frames from Python, to be written after the chunk.
    own: [Vec<u8>; 2],
    timed: Option<Timed>,
    /// A lower bound, because earlier deliveries may be counted as settled twice.
    unsettled: u64,
    frames: u64,
    heard: [bool; 2],
    written: [bool; 2],
    decided: u32,
    /// Whether any frame was read, and whether the first one was left to Python.
    took: bool,
    is_foreign: bool,
}

type KnownLink =
    (Py<PyAny>, Vec<(String, String)>, Allowance, (Option<usize>, bool), Option<Py<PyAny>>, Option<Key>, bool);
/// The result of `LentConnection.session`.
type KnownSession = (Py<PyAny>, [u16; 2], Option<u32>, Option<[(Option<u32>, Option<u32>, u32); 2]>);
/// See `proxy.protocols.amqp10.lent.Answered`.
type Answered = (u32, Vec<(usize, Key, Allowance)>, [Vec<u8>; 2], bool);
/// The result of `LentConnection.flows`.
type FlowsAnswered = (Option<Vec<Changes>>, Answered);
type Came = Vec<(Py<PyAny>, u32, Option<usize>, Option<(CreditFigures, [Option<u32>; 2])>)>;
type CreditFigures = (u32, u32, Option<u32>, u32, bool, bool);
type Settled = Vec<(Py<PyAny>, [u32; 2], [Option<[Option<u32>; 4]>; 2], [Vec<Ids>; 2], Vec<Ids>, Option<u32>)>;
type TimedState = Option<(Py<PyAny>, u32, i64, bool)>;

struct Run<'a> {
    moved: &'a Moved,
    asker: &'a Asker,
}

impl Runs for Run<'_> {
    fn runs(&self) -> usize {
        1
    }

    fn asker(&self, run: usize) -> Option<&Asker> {
        (run == 0).then_some(self.asker)
    }

    fn sums(&self, _: usize) -> Option<(u32, u64, u64)> {
        Some((self.moved.deliveries, self.moved.bytes, self.moved.last_bytes))
    }
}

impl Amqp10 {
    fn is_begun(&self, side: usize, bytes: &[u8]) -> bool {
        self.scans[side].is_begun(bytes, MAX_KEPT_BYTES)
    }

    /// Scan a chunk. Python provides links and sessions that are new.
    fn scan(&mut self, py: Python<'_>, side: usize, chunk: &[u8], at: usize) -> PyResult<Taken> {
        let mut taken = self.scans[side].scan(at);
        loop {
            self.scans[side].take(chunk, &mut taken, MAX_RUNS);
            let is_learnt = match taken.unknown {
                Some(Unknown::Link(channel, handle)) => self.learn_link(py, side, (channel, handle))?,
                Some(Unknown::Session(channel)) => self.learn_session(py, side, channel)?,
                None => false,
            };
            if !is_learnt {
                return Ok(taken);
            }
        }
    }

    fn learn_link(&mut self, py: Python<'_>, side: usize, key: Key) -> PyResult<bool> {
        let known: Option<KnownLink> = self.python.call_method1(py, "link", (side, key.0, key.1))?.extract(py)?;
        let Some((python, names, allowance, (max_bytes, copies), admitted, receiver, waiting)) = known else {
            return Ok(false);
        };
        let asker = Asker::of(py, &self.judge.resources, &names)?;
        if let Some(receiver) = receiver {
            self.received[1 - side].insert(receiver, key);
        }
        self.scans[side].mark(key.0, key.1, Terms { max_bytes, copies, decides: admitted.is_some() });
        let (known, left, deliveries, asks, credit, flowed) = (0, 0, 0, None, None, None);
        let mut link = Link { python, asker, known, left, deliveries, asks, credit, flowed, waiting, admitted };
        link.allow(allowance);
        self.links[side].insert(key, link);
        Ok(true)
    }

    fn learn_session(&mut self, py: Python<'_>, side: usize, channel: u16) -> PyResult<bool> {
        let known: Option<KnownSession> = self.python.call_method1(py, "session", (side, channel))?.extract(py)?;
        let Some((python, channels, first, differences)) = known else { return Ok(false) };
        let numbers = differences.map(|of| {
            [CLIENT, BROKER].map(|side| {
                let (own, other) = (of[side], of[1 - side]);
                let sent = Difference { from: own.0, by: own.2 };
                Numbers { channel: channels[side], sent, received: Difference { from: other.1, by: other.2 } }
            })
        });
        for side in [CLIENT, BROKER] {
            self.channels[side].insert(channels[side], self.sessions.len());
            self.scans[side].begin(channels[side]);
        }
        let settling = Settling::new(first);
        self.sessions.push(Session { python, numbers, transfers: [0; 2], flows: [None; 2], settling });
        Ok(true)
    }

    /// Returns whether links and sessions accept all frames read. A link that needs more credit requests it after these
    /// frames, so no other frame of the chunk may follow them.
    fn may_take(&self, side: usize, chunk: &[u8], taken: &Taken) -> bool {
        let is_last = taken.flows.is_empty() && self.is_begun(side, &chunk[taken.stop..]);
        let has_credit = |moved: &Moved| {
            let (link, deliveries) = (&self.links[side][&(moved.channel, moved.handle)], u64::from(moved.deliveries));
            deliveries <= link.known && (deliveries <= link.left || is_last)
        };
        let session = |channel| &self.sessions[self.channels[side][&channel]];
        // If the peers' numbers differ, Python removes deliveries that have not arrived yet from dispositions.
        let has_come = |disposed: &Disposed| {
            let session = session(disposed.channel);
            session.numbers.is_none() || session.settling.has_come(session.ids_of_client(side, disposed).1)
        };
        taken.moved.iter().all(has_credit)
            && (side != CLIENT || taken.begun.iter().all(|begun| session(begun.channel).settling.takes(begun.ids.0)))
            && taken.disposed.iter().filter(|disposed| is_of_client(side, disposed)).all(has_come)
    }

    /// Handle the frames before the flows, up to `stop`. Returns false, without any effect, if Python must handle them.
    #[allow(clippy::too_many_arguments)]
    fn take(
        &mut self,
        py: Python<'_>,
        side: usize,
        chunk: &[u8],
        (start, stop): (usize, usize),
        taken: &Taken,
        context: &mut Context<'_>,
        out: &mut Out,
    ) -> PyResult<bool> {
        if !self.may_take(side, chunk, taken) {
            return Ok(false);
        }
        let from = out.own.len();
        let numbers = self.numbers(side, taken);
        if !numbers.is_empty() {
            let max_bytes = self.scans[side].max_frame_bytes;
            if amqp10::renumber(chunk, start, stop, &numbers, max_bytes, &mut out.own) < stop {
                out.own.truncate(from);
                return Ok(false);
            }
        }
        if !self.admits(py, side, taken, context)? {
            out.own.truncate(from);
            return Ok(false);
        }
        if numbers.is_empty() {
            out.pass(1 - side, start..stop);
        } else {
            out.say(1 - side, from);
        }
        self.count_frames(side, taken.until(0).1, context);
        self.settle(py, side, taken, context);
        self.count(py, side, taken, context)?;
        Ok(true)
    }

    fn numbers(&self, side: usize, taken: &Taken) -> Vec<Numbers> {
        let begun = taken.begun.iter().map(|begun| begun.channel);
        let channels = begun.chain(taken.disposed.iter().map(|disposed| disposed.channel));
        let places = channels.filter_map(|channel| self.channels[side].get(&channel));
        let mut numbers: Vec<Numbers> = places.filter_map(|place| Some(self.sessions[*place].numbers?[side])).collect();
        numbers.sort_unstable_by_key(|numbers| numbers.channel);
        numbers.dedup_by_key(|numbers| numbers.channel);
        numbers
    }

    fn admits(&self, py: Python<'_>, side: usize, taken: &Taken, context: &Context<'_>) -> PyResult<bool> {
        let Some(moved) = taken.moved.first().filter(|_| taken.decides) else { return Ok(true) };
        let link = &self.links[side][&(moved.channel, moved.handle)];
        let Some(asker) = &link.asker else { return Ok(false) };
        match self.judge.admit(py, &Run { moved, asker }, 0, context) {
            // If a limiter fails, it fails again in Python, which bypasses it.
            Err(error) if !error.is_instance_of::<PyKeyboardInterrupt>(py) => Ok(false),
            admitted => admitted,
        }
    }

    fn settle(&mut self, py: Python<'_>, side: usize, taken: &Taken, context: &mut Context<'_>) {
        for begun in &taken.begun {
            let place = self.channels[side][&begun.channel];
            self.changed_sessions.insert(place);
            let session = &mut self.sessions[place];
            let transfers = begun.ids.1.wrapping_sub(begun.ids.0) + 1;
            session.transfers[side] += transfers;
            if let Some([_, _, Some(outgoing_id), _]) = &mut session.flows[side] {
                *outgoing_id = outgoing_id.wrapping_add(transfers);
            }
            if side != CLIENT {
                continue;
            }
            session.settling.add(begun.ids, &begun.unsettled);
            let of_range = |(first, last): &Ids| u64::from(last.wrapping_sub(*first)) + 1;
            self.unsettled += begun.unsettled.iter().map(of_range).sum::<u64>();
            if let (None, Some(&(id, _))) = (&self.timed, begun.unsettled.first()) {
                let session = session.python.clone_ref(py);
                self.timed = Some(Timed { session, id, since_ns: context.now_ns, is_settled: false });
            }
        }
        // The broker's deliveries are not counted.
        for disposed in taken.disposed.iter().filter(|disposed| disposed.is_settled && is_of_client(side, disposed)) {
            let place = self.channels[side][&disposed.channel];
            self.changed_sessions.insert(place);
            let session = &mut self.sessions[place];
            let (first, last) = session.ids_of_client(side, disposed);
            let (settled, before) = session.settling.settle((first, last), disposed.is_receiver);
            self.unsettled = self.unsettled.saturating_sub(settled + before);
            // Python reports earlier deliveries. Deliveries that the client settles itself are not answers.
            context.report.answered(if disposed.is_receiver { settled } else { 0 }, 0);
            if let Some(timed) = self.timed.as_mut().filter(|timed| timed.session.is(&session.python)) {
                timed.is_settled |= timed.id.wrapping_sub(first) <= last.wrapping_sub(first);
            }
        }
    }

    fn count_frames(&mut self, side: usize, frames: usize, context: &mut Context<'_>) {
        context.report.frames[side] += frames as u64;
        self.frames += if side == CLIENT { frames as u64 } else { 0 };
    }

    fn count(&mut self, py: Python<'_>, side: usize, taken: &Taken, context: &mut Context<'_>) -> PyResult<()> {
        for moved in &taken.moved {
            let key = (moved.channel, moved.handle);
            let Some(link) = self.links[side].get_mut(&key) else { continue };
            self.changed_links.insert((side, key));
            let mut asks = link.pass(moved.deliveries);
            if let Some(asker) = &link.asker {
                let run = Run { moved, asker };
                self.judge.count(py, &run, 0, context, false)?;
            }
            if let Some(admitted) = &link.admitted {
                asks |= !admitted.call1(py, (moved.deliveries,))?.extract::<bool>(py)?;
            }
            if asks && link.asks.is_none() {
                link.asks = Some(self.asking.len());
                self.asking.push(key);
            }
        }
        Ok(())
    }

    fn ask(&mut self, py: Python<'_>, side: usize, context: &Context<'_>) -> PyResult<bool> {
        if self.asking.is_empty() {
            return Ok(true);
        }
        self.tell(py, Some(context.now_ns))?;
        let asking = std::mem::take(&mut self.asking);
        let links: Vec<&Py<PyAny>> = asking.iter().map(|key| &self.links[side][key].python).collect();
        let answered = self.python.call_method1(py, "note_received", (links,))?;
        Ok(self.answer(answered.extract(py)?))
    }

    fn answer(&mut self, (granted, allowed, own, stays): Answered) -> bool {
        self.decided += granted;
        for (side, key, allowance) in allowed {
            if let Some(link) = self.links[side].get_mut(&key) {
                link.allow(allowance);
            }
        }
        for (to, own) in own.iter().enumerate() {
            self.own[to].extend_from_slice(own);
        }
        stays
    }

    /// Returns the link and the requested credit, or None if Python must handle the flow.
    fn wanted(&self, side: usize, flow: &Flow) -> Option<(Option<Key>, u32)> {
        if self.sessions[self.channels[side][&flow.channel]].numbers.is_some() {
            return None;
        }
        let Some(handle) = flow.handle() else { return Some((None, 0)) };
        let key = *self.received[side].get(&(flow.channel, handle))?;
        Some((Some(key), self.links[1 - side].get(&key)?.credit?.wanted(flow)?))
    }

    /// Handle flows as long as limits grant everything immediately. Returns their changed fields.
    fn grant(&mut self, py: Python<'_>, side: usize, flows: &[Flow], at: &Context<'_>) -> PyResult<Vec<Changes>> {
        // If a link had multiple flows, each would report the grant of the last one.
        let mut links = HashSet::new();
        let is_first = |found: &(Option<Key>, u32)| found.0.is_none_or(|key| links.insert(key));
        let all: Option<Vec<_>> = flows.iter().map(|flow| self.wanted(side, flow)).collect();
        let all = all.filter(|all| all.iter().all(is_first)).unwrap_or_default();
        let mut taken = Vec::with_capacity(all.len());
        for (flow, (key, wanted)) in flows.iter().zip(all) {
            let link = key.and_then(|key| self.links[1 - side].get_mut(&key));
            if let Some(link) = link.as_ref().filter(|link| wanted > 0 && link.left != u64::MAX) {
                let Some(asker) = &link.asker else { break };
                if !self.judge.grant(py, asker, wanted, (link.waiting, side == CLIENT), at)? {
                    break;
                }
                self.decided += 1;
            }
            let place = self.channels[side][&flow.channel];
            self.changed_sessions.insert(place);
            self.sessions[place].flows[side] = flow.numbers.first_chunk().copied();
            self.changed_links.extend(key.map(|key| (1 - side, key)));
            taken.push(link.map_or(Changes::new(), |link| link.grant(flow, wanted)));
        }
        Ok(taken)
    }

    /// Handle and write flows, or let Python answer them. Returns the end of the handled flows, and whether the
    /// connection stays.
    #[allow(clippy::too_many_arguments)]
    fn flows(
        &mut self,
        py: Python<'_>,
        side: usize,
        chunk: &[u8],
        taken: &Taken,
        context: &mut Context<'_>,
        out: &mut Out,
    ) -> PyResult<(usize, bool)> {
        let mut changes = self.grant(py, side, &taken.flows, context)?;
        let granted = changes.len();
        let (mut answered, mut stays) = (taken.flows.len(), true);
        if granted < answered {
            self.tell(py, Some(context.now_ns))?;
            let of = |flow: &Flow| (flow.channel, flow.numbers, flow.drain);
            let flows: Vec<_> = taken.flows[granted..].iter().map(of).collect();
            let (more, answer): FlowsAnswered = self.python.call_method1(py, "flows", (side, flows))?.extract(py)?;
            answered = if more.is_some() { answered } else { granted };
            changes.extend(more.unwrap_or_default());
            stays = self.answer(answer);
            context.asks_left = context.asks_left.saturating_sub(1);
        }
        let (mut at, before) = taken.until(0);
        let (stop, frames) = taken.until(answered);
        self.count_frames(side, frames - before, context);
        for (flow, changes) in taken.flows.iter().zip(&changes) {
            let changes: Vec<(usize, &[u8])> = changes.iter().map(|(number, raw)| (*number, &raw[..])).collect();
            let written = (!changes.is_empty()).then(|| amqp10::reflow(&chunk[flow.start..flow.stop], &changes));
            if let Some(written) = written.flatten() {
                out.pass(1 - side, at..flow.start);
                out.add(1 - side, &written);
                at = flow.stop;
            }
        }
        out.pass(1 - side, at..stop);
        Ok((stop, stays))
    }

    /// Report changes to Python. `now_ns` is set if Python has to answer.
    fn tell(&mut self, py: Python<'_>, now_ns: Option<i64>) -> PyResult<()> {
        let mut links: Came = Vec::new();
        for (side, key) in std::mem::take(&mut self.changed_links) {
            let Some(link) = self.links[side].get_mut(&key) else { continue };
            let figures = |of: Credit| (of.sent, of.granted, of.window, of.used, of.untouched, of.shaped);
            let flowed = link.flowed.take().map(|(credit, said)| (figures(credit), said));
            links.push((link.python.clone_ref(py), std::mem::take(&mut link.deliveries), link.asks.take(), flowed));
        }
        links.sort_by_key(|(_, _, asks, _)| *asks);
        let mut sessions: Settled = Vec::new();
        for place in std::mem::take(&mut self.changed_sessions) {
            let session = &mut self.sessions[place];
            let (transfers, flows) = (std::mem::take(&mut session.transfers), std::mem::take(&mut session.flows));
            let (before, unsettled, last) = session.settling.take().unwrap_or_default();
            sessions.push((session.python.clone_ref(py), transfers, flows, before, unsettled, last));
        }
        let of_timed = |timed: &Timed| (timed.session.clone_ref(py), timed.id, timed.since_ns, timed.is_settled);
        let timed: TimedState = self.timed.as_ref().map(of_timed);
        let heard = (std::mem::take(&mut self.heard), std::mem::take(&mut self.written));
        self.python.call_method1(py, "take", (now_ns, heard.0, heard.1, links, sessions, timed)).map(drop)
    }
}

impl Reading for Amqp10 {
    fn read(
        &mut self,
        py: Python<'_>,
        side: usize,
        chunk: &[u8],
        context: &mut Context<'_>,
        out: &mut Out,
    ) -> PyResult<Next> {
        if !self.judge.refresh(py)? {
            return Ok(Next::Leave(0));
        }
        self.heard[side] = true;
        let mut at = 0;
        let next = loop {
            let taken = self.scan(py, side, chunk, at)?;
            if taken.frames == 0 {
                break if self.is_begun(side, &chunk[at..]) { Next::Keep(at) } else { Next::Leave(at) };
            }
            if !self.take(py, side, chunk, (at, taken.until(0).0), &taken, context, out)? {
                break Next::Leave(at);
            }
            self.decided += taken.moved.first().filter(|_| taken.decides).map_or(0, |moved| moved.deliveries);
            self.took = true;
            let stays: bool;
            (at, stays) = self.flows(py, side, chunk, &taken, context, out)?;
            if !stays {
                break Next::Leave(at);
            }
            if context.took_long() {
                break Next::More(at);
            }
        };
        let next = match next {
            Next::Keep(at) | Next::More(at) if !self.ask(py, side, context)? => Next::Leave(at),
            // If the connection leaves, Python reads the rest first.
            next => next,
        };
        for to in [CLIENT, BROKER] {
            out.add(to, &std::mem::take(&mut self.own[to]));
        }
        self.is_foreign |= !self.took && matches!(next, Next::Leave(_));
        self.written[1 - side] |= !out.to[1 - side].is_empty();
        // If Python reads the rest of the chunk, it checks the timed delivery afterwards.
        let is_over = !matches!(next, Next::Leave(at) if at < chunk.len());
        if let Some(timed) = self.timed.take_if(|timed| is_over && timed.is_settled) {
            if side == BROKER {
                context.report.round_trip(context.now_ns - timed.since_ns);
            }
        }
        if self.decided > 0 {
            let took_ns = context.clock_ns(py)? - context.now_ns;
            context.report.processing.push((took_ns, std::mem::take(&mut self.decided)));
        }
        Ok(next)
    }

    fn take_counts(&mut self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.tell(py, None)?;
        Ok((std::mem::take(&mut self.frames), 0))
    }

    fn unanswered(&self, _: Python<'_>) -> u64 {
        self.unsettled
    }

    fn give_back(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.tell(py, None)?;
        Ok(PyBool::new(py, self.is_foreign).to_owned().into_any().unbind())
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.judge.traverse(visit)?;
        visit.call(&self.python)?;
        for link in self.links.iter().flat_map(HashMap::values) {
            visit.call(&link.python)?;
            visit.call(&link.admitted)?;
        }
        self.sessions.iter().try_for_each(|session| visit.call(&session.python))?;
        self.timed.iter().try_for_each(|timed| visit.call(&timed.session))
    }
}

#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
pub fn lend_amqp10(
    judge: &Bound<'_, PyAny>,
    session: Py<PyAny>,
    max_frame_bytes: [usize; 2],
    timed: TimedState,
    unsettled: u64,
    kept: [Vec<u8>; 2],
) -> PyResult<Lent> {
    let reading = Box::new(Amqp10 {
        judge: Judge::new(judge)?,
        python: session,
        scans: max_frame_bytes.map(Links::new),
        links: Default::default(),
        received: Default::default(),
        sessions: Vec::new(),
        channels: Default::default(),
        changed_links: BTreeSet::new(),
        changed_sessions: BTreeSet::new(),
        asking: Vec::new(),
        own: Default::default(),
        timed: timed.map(|(session, id, since_ns, is_settled)| Timed { session, id, since_ns, is_settled }),
        unsettled,
        frames: 0,
        heard: [false; 2],
        written: [false; 2],
        decided: 0,
        took: false,
        is_foreign: false,
    });
    Ok(Lent::new(reading, kept))
}
