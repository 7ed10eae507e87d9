//! `Links`: what one peer of an AMQP 1.0 connection sends.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sluice_native_core::amqp10::{self, Difference, Flow, Ids, Numbers, Terms};

use crate::buffer::with_bytes;

#[pyclass(module = "sluice_native")]
pub struct Links(pub amqp10::Links);

type Moved = (u16, u32, u32, u64);
type Begun = (u16, u32, u32, Vec<Ids>);
type Disposed = (u16, bool, bool, u32, u32);
type Said = (Option<u32>, u32, u32, u32, Option<u32>, Option<u32>, Option<u32>, Option<u32>);
pub type Flowed = (u16, usize, usize, Said, bool);
type Taken = (usize, usize, Vec<Moved>, Vec<Begun>, Vec<Disposed>, Vec<Flowed>);

#[pymethods]
impl Links {
    #[new]
    fn new(copies_key: Vec<u8>) -> Self {
        Self(amqp10::Links::new(copies_key))
    }

    #[getter]
    fn most_frame_bytes(&self) -> usize {
        self.0.most_frame_bytes
    }

    #[setter]
    fn set_most_frame_bytes(&mut self, most_frame_bytes: usize) {
        self.0.most_frame_bytes = most_frame_bytes;
    }

    #[getter]
    fn takes_flows(&self) -> bool {
        self.0.takes_flows
    }

    #[setter]
    fn set_takes_flows(&mut self, takes_flows: bool) {
        self.0.takes_flows = takes_flows;
    }

    fn begin(&mut self, channel: u16) {
        self.0.begin(channel);
    }

    fn leave(&mut self, channel: u16) {
        self.0.leave(channel);
    }

    fn end(&mut self, channel: u16) {
        self.0.end(channel);
    }

    #[pyo3(signature = (channel, handle, most_bytes = None, copies = false, decides = false))]
    fn mark(&mut self, channel: u16, handle: u32, most_bytes: Option<usize>, copies: bool, decides: bool) {
        self.0.mark(channel, handle, Terms { most_bytes, copies, decides });
    }

    fn unmark(&mut self, channel: u16, handle: u32) {
        self.0.unmark(channel, handle);
    }

    #[allow(clippy::needless_pass_by_value)]
    fn scan(&mut self, py: Python<'_>, chunk: PyBuffer<u8>, position: usize, most_runs: usize) -> Taken {
        let taken = with_bytes(py, &chunk, |bytes| self.0.scan(bytes, position, most_runs, false));
        let moved = taken.moved.iter().map(|each| (each.channel, each.handle, each.deliveries, each.bytes));
        let begun = taken.begun.into_iter().map(|each| (each.channel, each.ids.0, each.ids.1, each.unsettled));
        let disposed = taken.disposed.iter().map(|each| {
            let (first, last) = each.ids;
            (each.channel, each.is_receiver, each.is_settled, first, last)
        });
        let flows = taken.flows.iter().map(flowed);
        (taken.stop, taken.frames, moved.collect(), begun.collect(), disposed.collect(), flows.collect())
    }
}

pub fn flowed(flow: &Flow) -> Flowed {
    let said = (
        flow.next_incoming_id,
        flow.incoming_window,
        flow.next_outgoing_id,
        flow.outgoing_window,
        flow.handle,
        flow.delivery_count,
        flow.link_credit,
        flow.available,
    );
    (flow.channel, flow.start, flow.stop, said, flow.drain)
}

#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
pub fn reflow(
    py: Python<'_>,
    chunk: PyBuffer<u8>,
    start: usize,
    stop: usize,
    changes: Vec<(usize, Vec<u8>)>,
) -> PyResult<Bound<'_, PyBytes>> {
    let changes: Vec<(usize, &[u8])> = changes.iter().map(|(number, raw)| (*number, &raw[..])).collect();
    let written = with_bytes(py, &chunk, |bytes| amqp10::reflow(bytes.get(start..stop)?, &changes));
    let written = written.ok_or_else(|| PyValueError::new_err("no flow as a scan takes it, or no such field"))?;
    Ok(PyBytes::new(py, &written))
}

type Session = (u16, Option<u32>, u32, Option<u32>, u32);

#[pyfunction]
#[allow(clippy::needless_pass_by_value)]
#[pyo3(signature = (chunk, position, stop, sessions, most_bytes = None))]
pub fn renumber(
    py: Python<'_>,
    chunk: PyBuffer<u8>,
    position: usize,
    stop: usize,
    sessions: Vec<Session>,
    most_bytes: Option<usize>,
) -> (usize, Bound<'_, PyBytes>) {
    let numbers = |(channel, sent_from, sent_by, received_from, received_by)| Numbers {
        channel,
        sent: Difference { from: sent_from, by: sent_by },
        received: Difference { from: received_from, by: received_by },
    };
    let mut numbers: Vec<_> = sessions.into_iter().map(numbers).collect();
    numbers.sort_unstable_by_key(|numbers| numbers.channel);
    let mut out = Vec::with_capacity(stop.saturating_sub(position).min(chunk.len_bytes()));
    let most_bytes = most_bytes.unwrap_or(usize::MAX);
    let stop = with_bytes(py, &chunk, |bytes| amqp10::renumber(bytes, position, stop, &numbers, most_bytes, &mut out));
    (stop, PyBytes::new(py, &out))
}
