//! Reads both streams of an AMQP 0.9.1 connection: plain publishes and their confirms, deliveries, consumers' acks, and
//! heartbeats.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3::{PyTraverseError, PyVisit};
use sluice_native_core::amqp::{self, awaits_more, write_refusal, Bounds, Cut, Deliveries, NewKey, Numbers, Taken};

use crate::resources::{Resources, Target};
use crate::runs::{Asker, Runs};
use crate::turn::judge::{Counted, Decided, Judge};
use crate::turn::{Context, Lent, Next, Out, Reading, BROKER, CLIENT};

const MAX_RUNS: usize = 256;
const MAX_PUBLISHES: usize = 16_384;
const MAX_KEYS: usize = 1024;
const MAX_BODY_BYTES: u64 = 1 << 31;

const QUEUE: &str = "queue";
const EXCHANGE: &str = "exchange";
const ROUTING_KEY: &str = "routing_key";

#[pyclass(module = "sluice_native")]
pub struct Channels {
    state: amqp::Channels,
    askers: Vec<Asker>,
    resources: Py<Resources>,
}

impl Channels {
    fn scan(&mut self, py: Python<'_>, chunk: &[u8], at: usize, bounds: &Bounds) -> PyResult<Taken> {
        let taken = self.state.scan(chunk, at, bounds);
        self.askers.truncate(taken.first_new);
        for NewKey { is_queue, name, routing_key: second } in &taken.new {
            let mut names = vec![(if *is_queue { QUEUE } else { EXCHANGE }, &name[..])];
            names.extend(second.iter().map(|name| (ROUTING_KEY, &name[..])));
            self.askers.extend(Asker::of(py, &self.resources, &names)?);
        }
        Ok(taken)
    }
}

#[pymethods]
impl Channels {
    #[new]
    fn new(resources: Py<Resources>, before_names: String) -> Self {
        Self { state: amqp::Channels::new(before_names), askers: Vec::new(), resources }
    }

    fn names(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let targets = self.askers.iter().flat_map(|asker| std::iter::once(&asker.target).chain(&asker.second));
        targets.map(|target| Target::resource(target, py)).collect()
    }

    fn unconfirmed(&self) -> usize {
        self.state.unconfirmed()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.resources)
    }
}

struct Scan<'a> {
    taken: &'a Taken,
    askers: &'a [Asker],
}

impl Runs for Scan<'_> {
    fn runs(&self) -> usize {
        self.taken.runs.len()
    }

    fn asker(&self, run: usize) -> Option<&Asker> {
        self.askers.get(self.taken.runs.get(run)?.key)
    }

    fn sums(&self, run: usize) -> Option<(u32, u64, u64)> {
        let run = self.taken.runs.get(run)?;
        let last = self.taken.publishes.get(run.last as usize).map_or(0, |publish| publish.size);
        Some((run.publishes, run.bytes, last))
    }
}

type OfPeer = (u64, bool, HashMap<u16, u64>, Option<(u16, usize)>);
/// The state for the session. See `lend_amqp091` in `sluice_native.pyi`.
type State = ([OfPeer; 2], Vec<u16>, bool, Option<(u16, u64, i64)>, Vec<(u16, Py<PyBytes>)>, Vec<(u16, Numbers)>);

struct Amqp091 {
    judge: Judge,
    channels: Py<Channels>,
    bounds: Bounds,
    contents: bool,
    deliveries: Deliveries,
    cuts: [Option<Cut>; 2],
    timed: Option<(u16, u64, i64)>,
    reads: [u64; 2],
    written: [bool; 2],
    published: bool,
    dropped: Vec<u16>,
    waiting: Vec<(u16, Vec<u8>)>,
    frames: u64,
    refused: u64,
}

/// Indexes of refused publishes, or None to leave all publishes of the scan to Python.
type Refused = Option<Vec<usize>>;

impl Amqp091 {
    fn resume(&mut self, side: usize, chunk: &[u8], out: &mut Out) -> Option<usize> {
        let Some(cut) = self.cuts[side] else { return Some(0) };
        let (stop, left) = cut.resume(chunk)?;
        self.cuts[side] = left;
        out.pass(1 - side, 0..stop);
        Some(stop)
    }

    fn read_client(
        &mut self,
        py: Python<'_>,
        chunk: &[u8],
        context: &mut Context<'_>,
        out: &mut Out,
    ) -> PyResult<Next> {
        let Some(mut at) = self.resume(CLIENT, chunk, out) else { return Ok(Next::Leave(0)) };
        let mut decided = 0;
        let mut last = None;
        let next = loop {
            if at == chunk.len() {
                break Next::Keep(at);
            }
            let taken = self.channels.borrow_mut(py).scan(py, chunk, at, &self.bounds)?;
            if taken.stop == at {
                break if awaits_more(chunk, at, false, self.bounds.frame_max) {
                    Next::Keep(at)
                } else {
                    Next::Leave(at)
                };
            }
            let Some(refused) = self.decide(py, &taken, context)? else {
                self.channels.borrow_mut(py).state.undo();
                break Next::Leave(at);
            };
            context.runs_left = context.runs_left.saturating_sub(taken.runs.len());
            if !refused.is_empty() {
                context.asks_left = context.asks_left.saturating_sub(taken.runs.len());
            }
            context.report.frames[CLIENT] += taken.frames as u64;
            self.frames += taken.frames as u64;
            decided += taken.publishes.len();
            if let Some(publish) = taken.publishes.last() {
                self.published = true;
                let passes = publish.number != 0 && refused.last() != Some(&(taken.publishes.len() - 1));
                last = passes.then(|| taken.runs[publish.run as usize].channel);
            }
            let stop = taken.stop.min(chunk.len());
            let left = taken.stop - stop;
            self.cuts[CLIENT] = taken.cut.map(|(channel, _)| Cut { channel, left });
            self.forward(py, &taken, &refused);
            if refused.is_empty() {
                out.pass(BROKER, at..stop);
            } else {
                self.refuse(&taken, &refused, at, stop, out);
            }
            at = stop;
            if !self.dropped.is_empty() || !self.waiting.is_empty() {
                break Next::Leave(at);
            }
            if context.took_long() {
                break Next::More(at);
            }
        };
        context.decided(py, decided)?;
        if let Some(channel) = last.filter(|_| self.timed.is_none()) {
            let latest = self.channels.borrow(py).state.forwarded(channel);
            self.timed = Some((channel, latest, context.now_ns));
        }
        Ok(next)
    }

    fn decide(&self, py: Python<'_>, taken: &Taken, context: &Context<'_>) -> PyResult<Refused> {
        let channels = self.channels.borrow(py);
        let scan = Scan { taken, askers: &channels.askers };
        let mut refused = Vec::new();
        if !taken.runs.iter().all(|run| run.confirms) {
            // Without confirms, a publish cannot be refused, so it has to wait.
            let Some(bypassed) = self.judge.admit_all(py, &scan, context)? else { return Ok(None) };
            for (run, is_bypassed) in bypassed.into_iter().enumerate() {
                self.judge.count(py, &scan, run, context, is_bypassed)?;
            }
            return Ok(Some(refused));
        }
        if self.judge.first_foreign(py, &scan, context)?.is_some() {
            return Ok(None);
        }
        for (run, of_run) in taken.runs.iter().enumerate() {
            let every = of_run.first as usize..of_run.last as usize + 1;
            let of_run = || every.clone().filter(|index| taken.publishes[*index].run as usize == run);
            let size = |index: usize| u32::try_from(taken.publishes[index].size).unwrap_or(u32::MAX);
            match self.judge.decide(py, &scan, run, context, || of_run().map(size).collect())? {
                Decided::Spans(spans) => {
                    let mut indexes = of_run();
                    for span in spans {
                        let these: Vec<usize> = indexes.by_ref().take(span.requests).collect();
                        if these.is_empty() {
                            continue;
                        }
                        let requests = i64::try_from(these.len()).unwrap_or(i64::MAX);
                        let bytes = these.iter().map(|index| i64::from(size(*index))).sum();
                        let counted = Counted { requests, bytes, answers: requests, repeats: None };
                        self.judge.tell(py, &scan, run, context, span.refuse.as_ref(), false, &counted)?;
                        if span.refuse.is_some() {
                            refused.extend(these);
                        }
                    }
                }
                passed => {
                    self.judge.count(py, &scan, run, context, matches!(passed, Decided::Bypassed))?;
                }
            }
        }
        refused.sort_unstable();
        Ok(Some(refused))
    }

    fn forward(&self, py: Python<'_>, taken: &Taken, refused: &[usize]) {
        let mut channels = self.channels.borrow_mut(py);
        let mut refused = refused.iter().peekable();
        for (index, publish) in taken.publishes.iter().enumerate() {
            if refused.next_if(|refused| **refused == index).is_none() && publish.number != 0 {
                channels.state.forward(taken.runs[publish.run as usize].channel, publish.number);
            }
        }
    }

    fn refuse(&mut self, taken: &Taken, refused: &[usize], begin: usize, end: usize, out: &mut Out) {
        self.refused += refused.len() as u64;
        let mut is_refused = vec![false; taken.publishes.len()];
        let from = out.own.len();
        for index in refused {
            is_refused[*index] = true;
            let publish = &taken.publishes[*index];
            let channel = taken.runs[publish.run as usize].channel;
            if self.cuts[BROKER].is_none() && !self.deliveries.is_open(channel) {
                write_refusal(channel, publish.number, &mut out.own);
            } else {
                let mut answer = Vec::new();
                write_refusal(channel, publish.number, &mut answer);
                self.waiting.push((channel, answer));
            }
        }
        out.say(CLIENT, from);
        let is_refused = |publish: u32| is_refused[publish as usize];
        let mut at = begin;
        for piece in taken.pieces.iter().filter(|piece| is_refused(piece.publish)) {
            out.pass(BROKER, at..(piece.start as usize).min(end));
            at = piece.stop as usize;
        }
        out.pass(BROKER, at.min(end)..end);
        let cut = taken.cut.and_then(|(channel, publish)| Some((channel, publish?)));
        let open = taken.open.iter().copied().chain(cut);
        self.dropped.extend(open.filter(|(_, publish)| is_refused(*publish)).map(|(channel, _)| channel));
    }

    fn read_broker(&mut self, py: Python<'_>, chunk: &[u8], context: &mut Context<'_>, out: &mut Out) -> Next {
        let Some(begin) = self.resume(BROKER, chunk, out) else { return Next::Leave(0) };
        let mut channels = self.channels.borrow_mut(py);
        let frame_max = self.bounds.frame_max;
        let read = channels.state.relay(&mut self.deliveries, chunk, begin, self.contents, frame_max, out);
        let stop = read.stop.min(chunk.len());
        if let Some(channel) = read.cut {
            self.cuts[BROKER] = Some(Cut { channel, left: read.stop - stop });
        }
        context.report.frames[BROKER] += read.frames as u64;
        context.report.answered(read.answers, 0);
        if let Some((channel, number, since_ns)) = self.timed {
            if !channels.state.is_open(channel, number) {
                context.report.round_trip(context.now_ns - since_ns);
                self.timed = None;
            }
        }
        if self.cuts[BROKER].is_some() || awaits_more(chunk, stop, self.contents, frame_max) {
            Next::Keep(stop)
        } else {
            Next::Leave(stop)
        }
    }
}

impl Reading for Amqp091 {
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
        let next = if side == CLIENT {
            self.read_client(py, chunk, context, out)?
        } else {
            self.read_broker(py, chunk, context, out)
        };
        self.reads[side] += 1;
        for (written, pieces) in self.written.iter_mut().zip(&out.to) {
            *written |= !pieces.is_empty();
        }
        Ok(next)
    }

    fn take_counts(&mut self, _: Python<'_>) -> PyResult<(u64, u64)> {
        Ok((std::mem::take(&mut self.frames), std::mem::take(&mut self.refused)))
    }

    fn unanswered(&self, py: Python<'_>) -> u64 {
        self.channels.borrow(py).state.unconfirmed() as u64
    }

    fn give_back(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let channels = &mut self.channels.borrow_mut(py).state;
        let open = [channels.open(), self.deliveries.open()];
        let numbers = channels.numbers();
        channels.clear();
        let of_peer = |side: usize| -> OfPeer {
            let cut = self.cuts[side].map(|Cut { channel, left }| (channel, left));
            (self.reads[side], self.written[side], open[side].iter().copied().collect(), cut)
        };
        let waiting = self.waiting.drain(..).map(|(channel, answer)| (channel, PyBytes::new(py, &answer).unbind()));
        let waiting = waiting.collect();
        let dropped = std::mem::take(&mut self.dropped);
        let of_peers = [of_peer(CLIENT), of_peer(BROKER)];
        let state: State = (of_peers, dropped, self.published, self.timed, waiting, numbers);
        Ok(state.into_pyobject(py)?.into_any().unbind())
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.judge.traverse(visit)
    }
}

#[pyfunction]
pub fn lend_amqp091(
    judge: &Bound<'_, PyAny>,
    channels: &Bound<'_, Channels>,
    of_channels: HashMap<u16, (u64, Option<Numbers>)>,
    frame_max: usize,
    max_body_bytes: u64,
    publishes: bool,
    routing_keys: bool,
    contents: bool,
    cuts: [Option<(u16, usize)>; 2],
    deliveries: HashMap<u16, u64>,
    timed: Option<(u16, u64, i64)>,
    kept: [Vec<u8>; 2],
) -> PyResult<Lent> {
    let judge = Judge::new(judge)?;
    let mut borrowed = channels.try_borrow_mut()?;
    borrowed.state.clear();
    for (number, (rest, numbers)) in of_channels {
        borrowed.state.add(number, rest, numbers.as_ref());
    }
    drop(borrowed);
    let bounds = Bounds {
        frame_max,
        max_body: max_body_bytes.min(MAX_BODY_BYTES),
        max_keys: MAX_KEYS,
        max_runs: MAX_RUNS,
        max_publishes: if publishes { MAX_PUBLISHES } else { 0 },
        routing_keys,
    };
    let reading = Box::new(Amqp091 {
        judge,
        channels: channels.clone().unbind(),
        bounds,
        contents,
        deliveries: Deliveries::new(deliveries),
        cuts: cuts.map(|cut| cut.map(|(channel, left)| Cut { channel, left })),
        timed,
        reads: [0; 2],
        written: [false; 2],
        published: false,
        dropped: Vec::new(),
        waiting: Vec::new(),
        frames: 0,
        refused: 0,
    });
    Ok(Lent::new(reading, kept))
}
