//! `Channels`: the publishes and confirms of one connection; `Publishes`: those that one scan took, decided and counted
//! at once.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyRange, PyString, PyTuple};
use sluice_native_core::amqp::{self, write_refusal, Bounds, NewKey, Open, Part, Piece, Publish, Run, Taken};

use crate::buffer::with_bytes;
use crate::indexes::with_indexes;
use crate::resources::{Callers, Resources, Target};
use crate::row::Second;
use crate::runs::{Asker, Runs};

/// The kinds of what publishes are for.
#[derive(FromPyObject)]
struct Kinds(String, String, String);

#[pyclass(module = "sluice_native")]
pub struct Channels {
    pub state: amqp::Channels,
    /// Of the keys, by their numbers, and how they came.
    pub askers: Vec<(Asker, Py<PyBytes>)>,
    resources: Py<Resources>,
    kinds: Kinds,
    most_keys: usize,
    producer_group: Py<PyString>,
    #[pyo3(get, set)]
    pub frame_max: usize,
    #[pyo3(get, set)]
    most_body_bytes: u64,
}

/// Of the longest body, until somebody says otherwise.
const MAX_BODY_BYTES: u64 = 1 << 40;

impl Channels {
    fn asker(&self, py: Python<'_>, key: &NewKey) -> PyResult<Asker> {
        let Kinds(queue, exchange, routing_key) = &self.kinds;
        let of = |kind: &str, name: &str| self.resources.borrow_mut(py).target(py, kind, name);
        let first = of(if key.is_queue { queue } else { exchange }, &key.name)?;
        let second = key.routing_key.as_ref().map(|name| of(routing_key, name)).transpose()?;
        let target = match &second {
            Some(second) => Target::joint(py, &first, second)?,
            None => first,
        };
        Ok(Asker { target, second, producer_group: self.producer_group.clone_ref(py) })
    }

    pub fn bounds(&self, most_runs: usize, most_publishes: usize, routing_keys: bool) -> Bounds {
        Bounds {
            frame_max: self.frame_max,
            most_body: self.most_body_bytes,
            most_keys: self.most_keys,
            most_runs,
            most_publishes,
            routing_keys,
        }
    }

    /// Find the targets of the keys that a scan met for the first time. Comes right behind the scan.
    ///
    /// # Errors
    /// Those of Python.
    pub fn meet(&mut self, py: Python<'_>, taken: &Taken) -> PyResult<()> {
        self.askers.truncate(taken.first_new);
        for key in &taken.new {
            let asker = self.asker(py, key)?;
            self.askers.push((asker, PyBytes::new(py, &key.raw).unbind()));
        }
        Ok(())
    }
}

#[pymethods]
impl Channels {
    #[new]
    fn new(
        py: Python<'_>,
        resources: Py<Resources>,
        kinds: Kinds,
        before_names: String,
        frame_max: usize,
        most_keys: usize,
    ) -> Self {
        Self {
            state: amqp::Channels::new(before_names),
            askers: Vec::new(),
            resources,
            kinds,
            most_keys,
            producer_group: PyString::new(py, "").unbind(),
            frame_max,
            most_body_bytes: MAX_BODY_BYTES,
        }
    }

    fn mark(&mut self, channel: u16) {
        self.state.mark(channel);
    }

    fn unmark(&mut self, channel: u16) -> u64 {
        self.state.unmark(channel)
    }

    fn resume(&mut self, channel: u16, rest: u64) {
        self.state.resume(channel, rest);
    }

    fn select(&mut self, channel: u16) {
        self.state.select(channel);
    }

    fn forget(&mut self, channel: u16) {
        self.state.forget(channel);
    }

    fn track(&mut self, channel: u16) {
        self.state.track(channel);
    }

    fn delivered(&self, channel: u16) -> u64 {
        self.state.delivered(channel)
    }

    fn publish(&mut self, channel: u16) -> u64 {
        self.state.publish(channel)
    }

    fn forward(&mut self, channel: u16, number: u64) {
        self.state.forward(channel, number);
    }

    fn answered(&mut self, channel: u16, number: u64, multiple: bool, refused: bool) -> Option<Vec<u64>> {
        self.state.answered(channel, number, multiple, refused)
    }

    fn take_named(&mut self, only: bool) {
        self.state.take_named(only);
    }

    fn take_all(&mut self, channel: u16, on: bool) {
        self.state.take_all(channel, on);
    }

    fn name(&mut self, key: &[u8]) {
        self.state.name(key);
    }

    fn withhold(&mut self, channel: u16) -> u64 {
        self.state.withhold(channel)
    }

    fn settle_withheld(&mut self, channel: u16, number: u64) {
        self.state.settle_withheld(channel, number);
    }

    fn release(&mut self, channel: u16, number: u64) {
        self.state.release(channel, number);
    }

    fn unconfirmed(&self, channel: u16) -> usize {
        self.state.unconfirmed(channel)
    }

    fn forwarded(&self, channel: u16) -> u64 {
        self.state.forwarded(channel)
    }

    fn is_open(&self, channel: u16, number: u64) -> bool {
        self.state.is_open(channel, number)
    }

    /// The resources of the keys that are remembered, the first of each.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let first = |(asker, _): &(Asker, _)| Target::resource(&asker.target, py);
        self.askers.iter().map(first).collect()
    }

    #[allow(clippy::needless_pass_by_value)]
    fn scan(
        this: Bound<'_, Self>,
        chunk: PyBuffer<u8>,
        position: usize,
        most_runs: usize,
        most_publishes: usize,
        routing_keys: bool,
    ) -> PyResult<Publishes> {
        let py = this.py();
        let mut channels = this.try_borrow_mut()?;
        let bounds = channels.bounds(most_runs, most_publishes, routing_keys);
        let taken = with_bytes(py, &chunk, |bytes| channels.state.scan(bytes, position, &bounds));
        channels.meet(py, &taken)?;
        let of_runs = taken.runs.iter().filter_map(|run| channels.askers.get(run.key));
        let (askers, keys) = of_runs.map(|(asker, key)| (asker.clone_ref(py), key.clone_ref(py))).unzip();
        let resources = channels.resources.clone_ref(py);
        drop(channels);
        Ok(Publishes::new(taken, askers, keys, this.unbind(), resources))
    }

    #[allow(clippy::needless_pass_by_value)]
    fn settle<'py>(
        &mut self,
        py: Python<'py>,
        chunk: PyBuffer<u8>,
        position: usize,
        contents: bool,
    ) -> PyResult<(usize, usize, Option<Bound<'py, PyList>>)> {
        let frame_max = self.frame_max;
        let (stop, frames, parts) =
            with_bytes(py, &chunk, |bytes| self.state.settle(bytes, position, contents, frame_max));
        let part = |part| match part {
            Part::Slice(start, stop) => Ok((start, stop).into_pyobject(py)?.into_any()),
            Part::Bytes(bytes) => Ok(PyBytes::new(py, &bytes).into_any()),
        };
        let list = |parts: Vec<Part>| PyList::new(py, parts.into_iter().map(part).collect::<PyResult<Vec<_>>>()?);
        Ok((stop, frames, parts.map(list).transpose()?))
    }
}

#[pyclass(module = "sluice_native", frozen)]
pub struct Publishes {
    #[pyo3(get)]
    stop: usize,
    #[pyo3(get)]
    frames: usize,
    taken: Vec<Publish>,
    pieces: Vec<Piece>,
    runs: Vec<Run>,
    /// For each run.
    askers: Vec<Asker>,
    keys: Vec<Py<PyBytes>>,
    open: Vec<Open>,
    #[pyo3(get)]
    cut: Option<(u16, Option<u32>)>,
    channels: Py<Channels>,
    resources: Py<Resources>,
}

impl Publishes {
    pub fn new(
        taken: Taken,
        askers: Vec<Asker>,
        keys: Vec<Py<PyBytes>>,
        channels: Py<Channels>,
        resources: Py<Resources>,
    ) -> Self {
        let Taken { stop, frames, publishes, pieces, runs, open, cut, .. } = taken;
        Self { stop, frames, taken: publishes, pieces, runs, askers, keys, open, cut, channels, resources }
    }

    fn channel_of(&self, publish: &Publish) -> u16 {
        self.runs.get(publish.run as usize).map_or(0, |run| run.channel)
    }

    fn run_of(&self, run: usize) -> PyResult<&Run> {
        self.runs.get(run).ok_or_else(|| PyIndexError::new_err("no such run"))
    }
}

impl Runs for Publishes {
    fn runs(&self) -> usize {
        self.runs.len()
    }

    fn asker_of(&self, run: usize) -> PyResult<&Asker> {
        self.askers.get(run).ok_or_else(|| PyIndexError::new_err("no such run"))
    }

    fn sums(&self, run: usize) -> Option<(u32, u64, u64)> {
        let run = self.runs.get(run)?;
        Some((run.publishes, run.bytes, self.taken.get(run.last as usize).map_or(0, |publish| publish.size)))
    }

    fn requests(&self) -> usize {
        self.taken.len()
    }

    fn run_at(&self, index: usize) -> usize {
        self.taken[index].run as usize
    }

    fn resources(&self) -> &Py<Resources> {
        &self.resources
    }
}

#[pymethods]
impl Publishes {
    fn __len__(&self) -> usize {
        self.taken.len()
    }

    /// How many runs there are.
    #[getter]
    fn runs(&self) -> usize {
        self.runs.len()
    }

    fn asker<'py>(&self, py: Python<'py>, run: usize) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyString>)> {
        self.asker_for(py, run)
    }

    fn channel(&self, run: usize) -> PyResult<(u16, bool)> {
        let run = self.run_of(run)?;
        Ok((run.channel, run.confirms))
    }

    fn key<'py>(&self, py: Python<'py>, run: usize) -> PyResult<Bound<'py, PyBytes>> {
        let key = self.keys.get(run).ok_or_else(|| PyIndexError::new_err("no such run"))?;
        Ok(key.bind(py).clone())
    }

    fn run<'py>(&self, py: Python<'py>, run: usize) -> PyResult<(Bound<'py, PyAny>, u64)> {
        let of_run = self.run_of(run)?;
        let indexes = if of_run.last - of_run.first + 1 == of_run.publishes {
            PyRange::new(py, isize::try_from(of_run.first)?, isize::try_from(of_run.last)? + 1)?.into_any()
        } else {
            let own = (of_run.first..=of_run.last).filter(|index| self.taken[*index as usize].run as usize == run);
            PyList::new(py, own.collect::<Vec<_>>())?.into_any()
        };
        Ok((indexes, of_run.bytes))
    }

    #[pyo3(signature = (first, now_ns, second, callers = None))]
    #[allow(clippy::needless_pass_by_value)]
    fn admit(
        &self,
        py: Python<'_>,
        first: usize,
        now_ns: i64,
        second: PyRef<'_, Second>,
        callers: Option<Py<Callers>>,
    ) -> PyResult<usize> {
        self.admit_from(py, first, now_ns, &second, callers.as_ref())
    }

    /// Count the runs of which nothing is among the `judged`, ascending indexes; return the numbers of the others.
    #[allow(clippy::needless_pass_by_value, clippy::too_many_arguments)]
    fn count(
        &self,
        py: Python<'_>,
        second: PyRef<'_, Second>,
        now_ns: i64,
        sender: Py<PyAny>,
        outcome: usize,
        judged: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<usize>> {
        self.count_unjudged(py, &second, now_ns, &sender, outcome, judged)
    }

    fn publish(&self, index: usize) -> PyResult<(u32, u64, u64, u64)> {
        let publish = self.taken.get(index).ok_or_else(|| PyIndexError::new_err("no such publish"))?;
        Ok((publish.run, publish.number, publish.body, publish.size))
    }

    fn spans(&self, indexes: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<(u32, u32)>>> {
        with_indexes(indexes, self.taken.len(), |indexes| {
            let mut of_each = vec![Vec::new(); self.taken.len()];
            for piece in &self.pieces {
                of_each[piece.publish as usize].push((piece.start, piece.stop));
            }
            Ok(indexes.iter().map(|index| of_each[index].clone()).collect())
        })
    }

    fn open(&self) -> Vec<(u16, Option<u32>, u64)> {
        self.open.iter().map(|open| (open.channel, open.publish, open.rest)).collect()
    }

    fn sizes(&self, indexes: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
        with_indexes(indexes, self.taken.len(), |indexes| {
            Ok(indexes.iter().map(|index| self.taken[index].size).collect())
        })
    }

    fn numbered(&self, indexes: &Bound<'_, PyAny>) -> PyResult<usize> {
        with_indexes(indexes, self.taken.len(), |indexes| {
            Ok(indexes.iter().filter(|index| self.taken[*index].number != 0).count())
        })
    }

    fn kept(&self, gone: &Bound<'_, PyAny>, start: usize, end: usize) -> PyResult<Vec<(usize, usize)>> {
        with_indexes(gone, self.taken.len(), |gone| {
            let mut is_gone = vec![false; self.taken.len()];
            gone.iter().for_each(|index| is_gone[index] = true);
            let mut kept = Vec::new();
            let mut position = start;
            for piece in self.pieces.iter().filter(|piece| is_gone[piece.publish as usize]) {
                let until = (piece.start as usize).min(end);
                if until > position {
                    kept.push((position, until));
                }
                position = position.max(piece.stop as usize);
            }
            if position < end {
                kept.push((position, end));
            }
            Ok(kept)
        })
    }

    fn forward(&self, py: Python<'_>, gone: &Bound<'_, PyAny>) -> PyResult<()> {
        with_indexes(gone, self.taken.len(), |gone| {
            let mut channels = self.channels.try_borrow_mut(py)?;
            let mut gone = gone.iter().peekable();
            for (index, publish) in self.taken.iter().enumerate() {
                if gone.next_if_eq(&index).is_none() && publish.number != 0 {
                    channels.state.forward(self.channel_of(publish), publish.number);
                }
            }
            Ok(())
        })
    }

    fn refuse<'py>(&self, py: Python<'py>, refused: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyBytes>, usize)> {
        with_indexes(refused, self.taken.len(), |refused| {
            let mut out = Vec::new();
            let mut count = 0;
            for publish in refused.iter().map(|index| &self.taken[index]).filter(|publish| publish.number != 0) {
                write_refusal(self.channel_of(publish), publish.number, &mut out);
                count += 1;
            }
            Ok((PyBytes::new(py, &out), count))
        })
    }
}
