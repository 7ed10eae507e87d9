//! `Segment`: what one scan took, and what is decided and counted of it at once.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use sluice_native_core::scan::{Frame, Run, Taken};

use crate::buffer::with_bytes;
use crate::indexes::with_indexes;
use crate::opaques::Opaques;
use crate::refused_ids::RefusedIds;
use crate::resources::{Callers, Resources};
use crate::row::Second;
use crate::runs::{Asker, Runs};
use crate::table::Table;

#[pyclass(module = "sluice_native", frozen)]
pub struct Segment {
    #[pyo3(get)]
    stop: usize,
    runs: Vec<Run>,
    frames: Vec<Frame>,
    /// For each run.
    askers: Vec<Asker>,
    table: Py<Table>,
    owed: Py<Opaques>,
    resources: Py<Resources>,
}

impl Segment {
    pub fn new(
        taken: Taken,
        askers: Vec<Asker>,
        table: Py<Table>,
        owed: Py<Opaques>,
        resources: Py<Resources>,
    ) -> Self {
        let Taken { stop, runs, frames, .. } = taken;
        Self { stop, runs, frames, askers, table, owed, resources }
    }
}

impl Runs for Segment {
    fn runs(&self) -> usize {
        self.runs.len()
    }

    fn asker_of(&self, run: usize) -> PyResult<&Asker> {
        self.askers.get(run).ok_or_else(|| PyIndexError::new_err("no such run"))
    }

    fn sums(&self, run: usize) -> Option<(u32, u64, u64)> {
        let run = self.runs.get(run)?;
        Some((run.frames, run.bytes, self.frames.get(run.last as usize).map_or(0, |frame| u64::from(frame.size))))
    }

    fn requests(&self) -> usize {
        self.frames.len()
    }

    fn run_at(&self, index: usize) -> usize {
        self.frames[index].run as usize
    }

    fn resources(&self) -> &Py<Resources> {
        &self.resources
    }
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

    /// How many runs there are.
    #[getter]
    fn runs(&self) -> usize {
        self.runs.len()
    }

    fn asker<'py>(&self, py: Python<'py>, run: usize) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyString>)> {
        self.asker_for(py, run)
    }

    fn run<'py>(&self, py: Python<'py>, run: usize) -> PyResult<(Bound<'py, PyAny>, u64)> {
        let of_run = self.runs.get(run).ok_or_else(|| PyIndexError::new_err("no such run"))?;
        let indexes = if of_run.last - of_run.first + 1 == of_run.frames {
            self.table.get().range(py, of_run.first, of_run.last + 1)?.into_any()
        } else {
            let own = (of_run.first..=of_run.last).filter(|index| self.frames[*index as usize].run as usize == run);
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

    /// Count the runs of which no frame is among the `judged`, ascending indexes; return the numbers of the others.
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

    fn frame(&self, index: usize) -> PyResult<(u32, u32, usize, i32, i32, i32)> {
        let frame = self.frames.get(index).ok_or_else(|| PyIndexError::new_err("no such frame"))?;
        Ok((frame.run, frame.start, frame.stop(), frame.code, frame.opaque, frame.flag))
    }

    fn oneway(&self, indexes: &Bound<'_, PyAny>) -> PyResult<usize> {
        with_indexes(indexes, self.frames.len(), |indexes| {
            Ok(indexes.iter().filter(|index| self.frames[*index].is_oneway()).count())
        })
    }

    fn sizes(&self, indexes: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        with_indexes(indexes, self.frames.len(), |indexes| {
            Ok(indexes.iter().map(|index| self.frames[index].size).collect())
        })
    }

    #[allow(clippy::needless_pass_by_value, clippy::too_many_arguments)]
    fn repeats(
        &self,
        py: Python<'_>,
        chunk: PyBuffer<u8>,
        indexes: &Bound<'_, PyAny>,
        ids: &Bound<'_, RefusedIds>,
        key: i64,
        now_ns: i64,
        refused: bool,
    ) -> PyResult<(u64, u64, u64, u64)> {
        with_indexes(indexes, self.frames.len(), |indexes| {
            let mut ids = ids.try_borrow_mut()?;
            let (mut repeated, mut size_bytes, mut identified) = (0, 0, 0);
            with_bytes(py, &chunk, |bytes| {
                for frame in indexes.iter().map(|index| &self.frames[index]) {
                    let Some(id) = frame.message_id(bytes) else { continue };
                    let (known, is_seen) = ids.0.see(key, id, now_ns, refused);
                    repeated += u64::from(known);
                    size_bytes += if known { u64::from(frame.size) } else { 0 };
                    identified += u64::from(is_seen);
                }
            });
            Ok((repeated, repeated, size_bytes, identified))
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
                if count == 0 {
                    out.reserve(refused.iter().count() * (32 + head.len() + tail.len()));
                }
                count += usize::from(say_busy(&mut out, frame.opaque, head, tail));
            }
            Ok((PyBytes::new(py, &out), count))
        })
    }
}

/// Answer a request; false if the answer would be too long.
pub fn say_busy(out: &mut Vec<u8>, opaque: i32, head: &[u8], tail: &[u8]) -> bool {
    let mut digits = Digits::default();
    let opaque = digits.spell(opaque);
    let Some(prefix) = prefix(head.len() + opaque.len() + tail.len()) else { return false };
    for part in [&prefix, head, opaque, tail] {
        out.extend_from_slice(part);
    }
    true
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
