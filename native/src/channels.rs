//! `Channels`: the publishes and confirms of one connection.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use sluice_native_core::amqp::{self, Bounds, NewKey, Part};

use crate::buffer::with_bytes;
use crate::publishes::Publishes;
use crate::resources::{Resources, Target};
use crate::runs::Asker;

/// The kinds of what publishes are for.
#[derive(FromPyObject)]
struct Kinds(String, String, String);

#[pyclass(module = "sluice_native")]
pub struct Channels {
    pub state: amqp::Channels,
    /// Of the keys, by their numbers, and how they came.
    askers: Vec<(Asker, Py<PyBytes>)>,
    resources: Py<Resources>,
    kinds: Kinds,
    most_keys: usize,
    producer_group: Py<PyString>,
    #[pyo3(get, set)]
    frame_max: usize,
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
            Some(second) => Target::joint(py, &self.resources, &first, second)?,
            None => first,
        };
        Ok(Asker { target, second, producer_group: self.producer_group.clone_ref(py) })
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
        let first = |(asker, _): &(Asker, _)| {
            Ok(Target::resources(&asker.target, py, &self.resources)?.bind(py).get_item(0)?.unbind())
        };
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
        let bounds = Bounds {
            frame_max: channels.frame_max,
            most_body: channels.most_body_bytes,
            most_keys: channels.most_keys,
            most_runs,
            most_publishes,
            routing_keys,
        };
        let taken = with_bytes(py, &chunk, |bytes| channels.state.scan(bytes, position, &bounds));
        channels.askers.truncate(taken.first_new);
        for key in &taken.new {
            let asker = channels.asker(py, key)?;
            channels.askers.push((asker, PyBytes::new(py, &key.raw).unbind()));
        }
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
