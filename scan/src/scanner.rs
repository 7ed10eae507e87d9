//! `Scanner`: one connection's frames.

use std::sync::PoisonError;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use sluice_scan_core::scan::{self, Bounds};

use crate::buffer::with_bytes;
use crate::opaques::Opaques;
use crate::segment::Segment;
use crate::table::Table;

#[pyclass(module = "sluice_scan")]
pub struct Scanner {
    state: scan::Scanner,
    table: Py<Table>,
    owed: Py<Opaques>,
    most_keys: usize,
    most_runs: usize,
}

#[pymethods]
impl Scanner {
    #[new]
    fn new(table: Py<Table>, owed: Py<Opaques>, most_keys: usize, most_runs: usize) -> Self {
        Self { state: scan::Scanner::default(), table, owed, most_keys, most_runs }
    }

    #[allow(clippy::needless_pass_by_value)]
    fn scan(&mut self, py: Python<'_>, chunk: PyBuffer<u8>, position: usize, max_length: i64) -> PyResult<Segment> {
        let taken = {
            let shared = self.table.get();
            let mut known = shared.known.lock().unwrap_or_else(PoisonError::into_inner);
            let mut owed = self.owed.try_borrow_mut(py)?;
            let bounds = Bounds { max_length, most_keys: self.most_keys, most_runs: self.most_runs };
            with_bytes(py, &chunk, |bytes| {
                self.state.scan(bytes, position, &bounds, &shared.limitable, &mut known, &mut owed.0)
            })
        };
        Segment::new(py, taken, self.table.get(), &self.owed)
    }
}
