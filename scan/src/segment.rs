//! `Segment`: what one scan took.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use sluice_scan_core::scan::{Frame, Taken};

use crate::indexes::with_indexes;
use crate::opaques::Opaques;
use crate::table::Table;

#[pyclass(module = "sluice_scan", frozen)]
pub struct Segment {
    #[pyo3(get)]
    stop: usize,
    #[pyo3(get)]
    runs: Py<PyList>,
    #[pyo3(get)]
    first_new: usize,
    #[pyo3(get)]
    new: Py<PyList>,
    frames: Vec<Frame>,
    owed: Py<Opaques>,
}

impl Segment {
    pub fn new(py: Python<'_>, taken: Taken, table: &Table, owed: &Py<Opaques>) -> PyResult<Self> {
        let runs = runs(py, &taken, table)?.unbind();
        let new = PyList::new(py, taken.new.into_iter().map(|key| (key.kind, key.name, key.group)))?.unbind();
        let (stop, first_new, frames) = (taken.stop, taken.first_new, taken.frames);
        Ok(Self { stop, runs, first_new, new, frames, owed: owed.clone_ref(py) })
    }
}

fn runs<'py>(py: Python<'py>, taken: &Taken, table: &Table) -> PyResult<Bound<'py, PyList>> {
    let split = taken.runs.len() > 1;
    let indexes = if split { taken.indexes() } else { Vec::new() };
    let mut rest = indexes.as_slice();
    let mut runs = Vec::with_capacity(taken.runs.len());
    for run in &taken.runs {
        let (own, others) = rest.split_at_checked(run.frames as usize).unwrap_or_default();
        rest = others;
        let whole = run.last - run.first + 1 == run.frames;
        let own =
            if whole { table.range(py, run.first, run.last + 1)?.into_any() } else { PyList::new(py, own)?.into_any() };
        runs.push((run.key, own, run.bytes, run.oneway));
    }
    PyList::new(py, runs)
}

/// Length and header length of a frame that is all header.
fn prefix(header_bytes: usize) -> Option<[u8; 8]> {
    let size = i32::try_from(header_bytes).ok()?;
    let words = u64::try_from(size.checked_add(4)?).ok()? << 32 | u64::try_from(size).ok()?;
    Some(words.to_be_bytes())
}

#[pymethods]
impl Segment {
    fn __len__(&self) -> usize {
        self.frames.len()
    }

    fn frame(&self, index: usize) -> PyResult<(u32, u32, usize, i32, i32, i32)> {
        let frame = self.frames.get(index).ok_or_else(|| PyIndexError::new_err("no such frame"))?;
        Ok((frame.run, frame.start, frame.stop(), frame.code, frame.opaque, frame.flag))
    }

    fn sizes(&self, indexes: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        with_indexes(indexes, self.frames.len(), |indexes| {
            Ok(indexes.iter().map(|index| self.frames[index].size).collect())
        })
    }

    fn kept(&self, refused: &Bound<'_, PyAny>, start: usize, end: usize) -> PyResult<Vec<(usize, usize)>> {
        with_indexes(refused, self.frames.len(), |refused| {
            let mut kept = Vec::new();
            let mut position = start;
            for index in refused.iter() {
                let frame = &self.frames[index];
                let until = (frame.start as usize).min(end);
                if until > position {
                    kept.push((position, until));
                }
                position = position.max(frame.stop());
            }
            if position < end {
                kept.push((position, end));
            }
            Ok(kept)
        })
    }

    fn refuse<'py>(
        &self,
        py: Python<'py>,
        refused: &Bound<'py, PyAny>,
        head: &[u8],
        tail: &[u8],
    ) -> PyResult<(Bound<'py, PyBytes>, usize)> {
        with_indexes(refused, self.frames.len(), |refused| {
            let mut owed = self.owed.try_borrow_mut(py)?;
            let mut out: Vec<u8> = Vec::new();
            let mut count = 0;
            for index in refused.iter() {
                let frame = &self.frames[index];
                if frame.is_oneway() {
                    continue;
                }
                owed.0.discard(frame.opaque);
                let mut digits = Digits::default();
                let opaque = digits.spell(frame.opaque);
                if let Some(prefix) = prefix(head.len() + opaque.len() + tail.len()) {
                    if count == 0 {
                        out.reserve(refused.iter().count() * (32 + head.len() + tail.len()));
                    }
                    out.extend_from_slice(&prefix);
                    out.extend_from_slice(head);
                    out.extend_from_slice(opaque);
                    out.extend_from_slice(tail);
                    count += 1;
                }
            }
            Ok((PyBytes::new(py, &out), count))
        })
    }
}

/// Room for an i32 as it is spelled.
#[derive(Default)]
struct Digits([u8; 11]);

impl Digits {
    fn spell(&mut self, number: i32) -> &[u8] {
        let mut left = number.unsigned_abs();
        let mut at = self.0.len();
        loop {
            at -= 1;
            #[allow(clippy::cast_possible_truncation)]
            let digit = (left % 10) as u8;
            self.0[at] = b'0' + digit;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        if number < 0 {
            at -= 1;
            self.0[at] = b'-';
        }
        &self.0[at..]
    }
}
