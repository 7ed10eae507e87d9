//! Reads both streams of a `RocketMQ` connection: plain sends, all unlimited requests, and their answers.

use std::cell::OnceCell;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3::{PyTraverseError, PyVisit};
use sluice_native_core::opaques::Opaques;
use sluice_native_core::plain::Known;
use sluice_native_core::prefix::{prefix, HEADER_JSON, HEADER_LENGTH, PREFIX_BYTES};
use sluice_native_core::scan::{known, Taken};
use sluice_native_core::{answers, sends};

use crate::requests::Requests;
use crate::runs::{Asker, Runs};
use crate::turn::judge::{Counted, Decided, Judge};
use crate::turn::{Context, Lent, Next, Out, Reading, BROKER, CLIENT, MAX_KEPT_BYTES, MAX_UNWRITTEN_BYTES};

const MAX_RUNS: usize = 128;
const MAX_HEADER_BYTES: usize = MAX_KEPT_BYTES - PREFIX_BYTES;
const ONEWAY: i32 = 2;
/// One request at a time is timed: at most this often, and for at most this long.
const TIMED_EVERY_NS: i64 = 10_000_000;
const TIMED_FOR_NS: i64 = 60_000_000_000;

struct Scan<'a> {
    taken: &'a Taken<'a>,
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
        let last = self.taken.frames.get(run.last as usize).map_or(0, |frame| u64::from(frame.size));
        Some((run.frames, run.bytes, last))
    }
}

/// The state for the session. See `lend_rocketmq` in `sluice_native.pyi`.
type State = ((usize, bool), usize, Py<PyBytes>, (Vec<i32>, bool), (Option<i32>, i64));

struct RocketMq {
    judge: Judge,
    requests: Py<Requests>,
    around: Py<PyAny>,
    max_length: i64,
    /// Bytes left of each peer's current frame.
    left: [usize; 2],
    swallows: bool,
    /// Answers to write after the broker's current frame.
    waiting: Vec<u8>,
    polls: Opaques,
    timed: Option<i32>,
    timed_ns: i64,
    frames: u64,
    refused: u64,
    is_new: bool,
}

enum Other {
    Incomplete,
    /// The request, and the offset of its end.
    Known(Known, usize),
    Foreign,
}

/// Refused frames as (index, number of the answer), and the answers. Each answer consists of two halves.
#[derive(Default)]
struct Refused {
    frames: Vec<(usize, usize)>,
    answers: Vec<(Vec<u8>, Vec<u8>)>,
}

impl RocketMq {
    fn other(&self, chunk: &[u8], at: usize, read: impl FnOnce(&[u8], u32) -> Option<Known>) -> Other {
        let Some((length, word)) = prefix(chunk, at) else { return Other::Incomplete };
        let header_bytes = (word & HEADER_LENGTH) as usize;
        let Some(size) = usize::try_from(length).ok().and_then(|length| length.checked_add(4)) else {
            return Other::Foreign;
        };
        // Do not wait for the rest of an invalid frame, or of a header that is too long to keep.
        let is_odd = word >> 24 > 1 || header_bytes > MAX_HEADER_BYTES;
        if is_odd || size < PREFIX_BYTES + header_bytes || i64::from(length) > self.max_length {
            return Other::Foreign;
        }
        let Some(header) = chunk[at + PREFIX_BYTES..].get(..header_bytes) else { return Other::Incomplete };
        read(header, word >> 24).map_or(Other::Foreign, |known| Other::Known(known, at + size))
    }

    fn resume(&mut self, side: usize, chunk: &[u8], out: &mut Out) -> usize {
        let step = self.left[side].min(chunk.len());
        self.left[side] -= step;
        if side == BROKER || !self.swallows {
            out.pass(1 - side, 0..step);
        }
        step
    }

    fn read_client(
        &mut self,
        py: Python<'_>,
        chunk: &[u8],
        context: &mut Context<'_>,
        out: &mut Out,
    ) -> PyResult<Next> {
        // A new connection may use TLS, or start with a PROXY header.
        if !self.judge.refresh(py)? || (self.is_new && chunk[0] != 0) {
            return Ok(Next::Leave(0));
        }
        let mut at = self.resume(CLIENT, chunk, out);
        let mut decided = 0;
        let mut first = None;
        let next = loop {
            if chunk.len() - at < PREFIX_BYTES {
                break Next::Keep(at);
            }
            let mut taken = self.requests.borrow_mut(py).take(py, chunk, at, self.max_length, MAX_RUNS)?;
            if taken.frames.is_empty() {
                match self.other(chunk, at, |header, header_type| known(header, header_type == HEADER_JSON)) {
                    Other::Incomplete => break Next::Keep(at),
                    Other::Known(known, stop) if known.is_answer() || !sends::is_read(known.code) => {
                        if !self.identify(py, chunk, at)? {
                            break Next::Leave(at);
                        }
                        self.note(py, known);
                        context.report.frames[CLIENT] += 1;
                        self.frames += 1;
                        let end = self.come_to(CLIENT, stop, chunk);
                        out.pass(BROKER, at..end);
                        at = end;
                    }
                    _ => break Next::Leave(at),
                }
                continue;
            }
            let whole = self.cut(py, &mut taken, context)?;
            if !taken.frames.is_empty() {
                if !self.identify(py, chunk, at)? {
                    self.give_up(py, &taken, 0);
                    break Next::Leave(at);
                }
                first = first.or(taken.frames.first().filter(|frame| !frame.is_oneway()).map(|frame| frame.opaque));
                decided += taken.frames.len();
                at = self.decide(py, &taken, at, chunk, context, out)?;
                context.runs_left = context.runs_left.saturating_sub(taken.runs.len());
            }
            if !whole || self.waiting.len() > MAX_UNWRITTEN_BYTES {
                break Next::Leave(at);
            }
            if context.took_long() {
                break Next::More(at);
            }
        };
        context.decided(py, decided)?;
        self.time(py, first, context.now_ns);
        Ok(next)
    }

    fn come_to(&mut self, side: usize, stop: usize, chunk: &[u8]) -> usize {
        let end = stop.min(chunk.len());
        self.left[side] = stop - end;
        self.swallows &= side == BROKER;
        end
    }

    fn note(&mut self, py: Python<'_>, known: Known) {
        if known.is_answer() || known.flag & ONEWAY != 0 {
            return;
        }
        if sends::is_long_poll(known.code) {
            self.polls.add(known.opaque, false);
        } else {
            self.requests.borrow_mut(py).owed.add(known.opaque, false);
        }
    }

    /// Remove the first run that Python must decide, and all frames after it. Returns false if there is such a run.
    fn cut(&self, py: Python<'_>, taken: &mut Taken, context: &Context<'_>) -> PyResult<bool> {
        let first = {
            let known = self.requests.borrow(py);
            let scan = Scan { taken, askers: &known.askers };
            self.judge.first_foreign(py, &scan, context)?
        };
        let Some(first) = first.and_then(|run| taken.runs.get(run)).map(|run| run.first as usize) else {
            return Ok(true);
        };
        self.give_up(py, taken, first);
        taken.cut(first);
        Ok(false)
    }

    /// Stop expecting answers to the frames from index `first` on.
    fn give_up(&self, py: Python<'_>, taken: &Taken, first: usize) {
        let owed = &mut self.requests.borrow_mut(py).owed;
        for frame in taken.frames[first..].iter().filter(|frame| !frame.is_oneway()) {
            owed.settle(frame.opaque);
        }
    }

    fn identify(&mut self, py: Python<'_>, chunk: &[u8], at: usize) -> PyResult<bool> {
        let Some((_, word)) = prefix(chunk, at).filter(|_| self.is_new) else { return Ok(true) };
        let header = &chunk[at + PREFIX_BYTES..][..(word & HEADER_LENGTH) as usize];
        self.is_new = !self.judge.identify(py, header, word >> 24)?;
        Ok(!self.is_new)
    }

    fn decide(
        &mut self,
        py: Python<'_>,
        taken: &Taken,
        start: usize,
        chunk: &[u8],
        context: &mut Context<'_>,
        out: &mut Out,
    ) -> PyResult<usize> {
        context.report.frames[CLIENT] += taken.frames.len() as u64;
        self.frames += taken.frames.len() as u64;
        let mut refused = Refused::default();
        let by_run = OnceCell::new();
        let indexes = |number: usize| &by_run.get_or_init(|| taken.by_run())[number];
        let known = self.requests.borrow(py);
        let scan = Scan { taken, askers: &known.askers };
        for number in 0..taken.runs.len() {
            let sizes = || indexes(number).iter().map(|index| taken.frames[*index].size).collect();
            match self.judge.decide(py, &scan, number, context, sizes)? {
                Decided::Spans(spans) => {
                    context.asks_left = context.asks_left.saturating_sub(1);
                    let mut left = &indexes(number)[..];
                    for span in spans {
                        let (these, rest) = left.split_at(span.requests.min(left.len()));
                        left = rest;
                        self.tell(py, &scan, number, these, span.refuse.as_ref(), false, chunk, context)?;
                        if let Some(refuse) = &span.refuse {
                            refused.frames.extend(these.iter().map(|index| (*index, refused.answers.len())));
                            refused.answers.push(self.around.call1(py, (refuse,))?.extract(py)?);
                        }
                    }
                }
                passed => {
                    let is_bypassed = matches!(passed, Decided::Bypassed);
                    if !self.judge.count(py, &scan, number, context, is_bypassed)? {
                        self.tell(py, &scan, number, indexes(number), None, is_bypassed, chunk, context)?;
                    }
                }
            }
        }
        drop(known);
        let end = self.come_to(CLIENT, taken.stop, chunk);
        if refused.frames.is_empty() {
            out.pass(BROKER, start..end);
        } else {
            refused.frames.sort_unstable();
            self.refuse(py, taken, start, end, &refused, out);
        }
        Ok(end)
    }

    fn tell(
        &self,
        py: Python<'_>,
        scan: &Scan<'_>,
        number: usize,
        indexes: &[usize],
        refuse: Option<&Py<PyAny>>,
        is_bypassed: bool,
        chunk: &[u8],
        context: &Context<'_>,
    ) -> PyResult<()> {
        if indexes.is_empty() {
            return Ok(());
        }
        let frames = || indexes.iter().map(|index| &scan.taken.frames[*index]);
        let mut repeats = None;
        if let Some(ids) = &self.judge.ids {
            let is_empty = ids.borrow(py).0.is_empty();
            if refuse.is_some() || (!is_empty && self.judge.looks(py, scan, number, context)?) {
                let key = Judge::key(py, scan, number)?;
                let mut ids = ids.borrow_mut(py);
                let (mut repeated, mut bytes, mut identified) = (0, 0, 0);
                for frame in frames() {
                    let Some(id) = frame.message_id(chunk) else { continue };
                    let (is_known, is_seen) = ids.0.see(key, id, context.now_ns, refuse.is_some());
                    repeated += u64::from(is_known);
                    bytes += if is_known { u64::from(frame.size) } else { 0 };
                    identified += u64::from(is_seen);
                }
                repeats = Some((repeated, repeated, bytes, identified));
            }
        }
        let counted = Counted {
            requests: i64::try_from(indexes.len()).unwrap_or(i64::MAX),
            bytes: frames().map(|frame| i64::from(frame.size)).sum(),
            answers: frames().map(|frame| i64::from(!frame.is_oneway())).sum(),
            repeats,
        };
        self.judge.tell(py, scan, number, context, refuse, is_bypassed, &counted)
    }

    fn refuse(&mut self, py: Python<'_>, taken: &Taken, start: usize, end: usize, refused: &Refused, out: &mut Out) {
        self.refused += refused.frames.len() as u64;
        let owed = &mut self.requests.borrow_mut(py).owed;
        let in_gap = self.left[BROKER] == 0;
        let from = out.own.len();
        let mut at = start;
        for (index, answer) in &refused.frames {
            let frame = &taken.frames[*index];
            out.pass(BROKER, at..(frame.start as usize).min(end));
            at = frame.stop();
            if !frame.is_oneway() {
                owed.settle(frame.opaque);
                let (head, tail) = &refused.answers[*answer];
                say_busy(if in_gap { &mut out.own } else { &mut self.waiting }, frame.opaque, head, tail);
            }
        }
        out.pass(BROKER, at.min(end)..end);
        self.swallows = at > end;
        out.say(CLIENT, from);
        if self.timed.is_some_and(|timed| !owed.contains(timed)) {
            self.timed = None;
        }
    }

    fn time(&mut self, py: Python<'_>, first: Option<i32>, now_ns: i64) {
        let every_ns = if self.timed.is_some() { TIMED_FOR_NS } else { TIMED_EVERY_NS };
        let Some(first) = first.filter(|_| now_ns - self.timed_ns >= every_ns) else { return };
        if self.requests.borrow(py).owed.contains(first) {
            (self.timed, self.timed_ns) = (Some(first), now_ns);
        }
    }

    fn read_broker(&mut self, py: Python<'_>, chunk: &[u8], context: &mut Context<'_>, out: &mut Out) -> Next {
        let mut at = self.resume(BROKER, chunk, out);
        if self.left[BROKER] == 0 && !self.waiting.is_empty() {
            out.add(CLIENT, &std::mem::take(&mut self.waiting));
        }
        let known = self.requests.clone_ref(py);
        let mut requests = known.borrow_mut(py);
        let begin = at;
        let next = loop {
            if chunk.len() - at < PREFIX_BYTES {
                break Next::Keep(at);
            }
            let settled = requests.step_over(chunk, at);
            context.report.frames[BROKER] += settled.frames as u64;
            context.report.answered(settled.answers, settled.busy);
            if settled.frames > 0 {
                at = self.come_to(BROKER, settled.stop, chunk);
                continue;
            }
            match self.other(chunk, at, |header, _| answers::known(header)) {
                Other::Incomplete => break Next::Keep(at),
                Other::Known(known, stop) if known.is_answer() || !sends::is_read(known.code) => {
                    if known.is_answer() {
                        match requests.owed.settle(known.opaque) {
                            Some(true) => context.report.answered(1, answers::is_busy(known.code).into()),
                            Some(false) => {}
                            None => drop(self.polls.settle(known.opaque)),
                        }
                    }
                    context.report.frames[BROKER] += 1;
                    at = self.come_to(BROKER, stop, chunk);
                }
                _ => break Next::Leave(at),
            }
        };
        out.pass(CLIENT, begin..at);
        if self.timed.is_some_and(|timed| !requests.owed.contains(timed)) {
            self.timed = None;
            let took_ns = context.now_ns - self.timed_ns;
            if took_ns <= TIMED_FOR_NS {
                context.report.round_trip(took_ns);
            }
        }
        next
    }
}

impl Reading for RocketMq {
    fn read(
        &mut self,
        py: Python<'_>,
        side: usize,
        chunk: &[u8],
        context: &mut Context<'_>,
        out: &mut Out,
    ) -> PyResult<Next> {
        if side == CLIENT {
            self.read_client(py, chunk, context, out)
        } else {
            Ok(self.read_broker(py, chunk, context, out))
        }
    }

    fn between_frames(&self) -> bool {
        self.left == [0, 0] && self.waiting.is_empty()
    }

    fn take_counts(&mut self, _: Python<'_>) -> PyResult<(u64, u64)> {
        Ok((std::mem::take(&mut self.frames), std::mem::take(&mut self.refused)))
    }

    fn unanswered(&self, py: Python<'_>) -> u64 {
        self.requests.borrow(py).owed.sends() as u64
    }

    fn give_back(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let polls: Vec<i32> = self.polls.iter().collect();
        let owed = &self.requests.borrow(py).owed;
        let is_ambiguous = self.polls.ambiguous() || polls.iter().any(|poll| owed.contains(*poll));
        let state: State = (
            (self.left[CLIENT], self.swallows),
            self.left[BROKER],
            PyBytes::new(py, &std::mem::take(&mut self.waiting)).unbind(),
            (polls, is_ambiguous),
            (self.timed, self.timed_ns),
        );
        Ok(state.into_pyobject(py)?.into_any().unbind())
    }

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.judge.traverse(visit)
    }
}

fn say_busy(out: &mut Vec<u8>, opaque: i32, head: &[u8], tail: &[u8]) {
    let mut digits = itoa::Buffer::new();
    let opaque = digits.format(opaque).as_bytes();
    let size = u32::try_from(head.len() + opaque.len() + tail.len()).unwrap_or(0);
    for part in [&(size + 4).to_be_bytes(), &size.to_be_bytes(), head, opaque, tail] {
        out.extend_from_slice(part);
    }
}

#[pyfunction]
pub fn lend_rocketmq(
    judge: &Bound<'_, PyAny>,
    requests: Py<Requests>,
    around: Py<PyAny>,
    max_length: i64,
    max_polls: usize,
    client: (usize, bool),
    broker: usize,
    polls: Vec<i32>,
    timed: (Option<i32>, i64),
    kept: Vec<u8>,
    is_new: bool,
) -> PyResult<Lent> {
    let mut numbers = Opaques::new(max_polls);
    for poll in polls {
        numbers.add(poll, false);
    }
    let reading = Box::new(RocketMq {
        judge: Judge::new(judge)?,
        requests,
        around,
        max_length,
        left: [client.0, broker],
        swallows: client.1,
        waiting: Vec::new(),
        polls: numbers,
        timed: timed.0,
        timed_ns: timed.1,
        frames: 0,
        refused: 0,
        is_new,
    });
    Ok(Lent::new(reading, [kept, Vec::new()]))
}
