//! `Scanner`: one connection's frames.

use std::collections::HashSet;
use std::sync::PoisonError;

use pyo3::prelude::*;
use pyo3::types::PyString;
use sluice_native_core::scan::{self, Bounds, Taken};

use crate::opaques::Opaques;
use crate::resources::{Resources, Target};
use crate::runs::Asker;
use crate::table::Table;

#[pyclass(module = "sluice_native")]
pub struct Scanner {
    state: scan::Scanner,
    /// Of the scanner's keys, by their numbers.
    pub askers: Vec<Asker>,
    pub table: Py<Table>,
    #[pyo3(get)]
    pub owed: Py<Opaques>,
    pub resources: Py<Resources>,
    most_keys: usize,
}

impl Scanner {
    /// Take the plain frames from `position` on.
    pub fn take(
        &mut self,
        py: Python<'_>,
        chunk: &[u8],
        position: usize,
        max_length: i64,
        most_runs: usize,
    ) -> PyResult<Taken> {
        let taken = {
            let shared = self.table.get();
            let mut known = shared.known.lock().unwrap_or_else(PoisonError::into_inner);
            let mut owed = self.owed.try_borrow_mut(py)?;
            let bounds = Bounds { max_length, most_keys: self.most_keys, most_runs };
            self.state.scan(chunk, position, &bounds, &shared.limitable, &mut known, &mut owed.0)
        };
        self.askers.truncate(taken.first_new);
        for key in &taken.new {
            let target = self.resources.borrow_mut(py).target(py, &key.kind, &key.name)?;
            let producer_group = match self.askers.last() {
                Some(last) if last.producer_group.bind(py).to_cow()? == key.group => last.producer_group.clone_ref(py),
                _ => PyString::new(py, &key.group).unbind(),
            };
            self.askers.push(Asker { target, second: None, producer_group });
        }
        Ok(taken)
    }
}

#[pymethods]
impl Scanner {
    #[new]
    fn new(table: Py<Table>, owed: Py<Opaques>, resources: Py<Resources>, most_keys: usize) -> Self {
        Self { state: scan::Scanner::default(), askers: Vec::new(), table, owed, resources, most_keys }
    }

    /// The resources of the keys that are remembered.
    fn names(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let mut seen = HashSet::new();
        let new = self.askers.iter().filter(|asker| seen.insert(asker.target.as_ptr()));
        new.map(|asker| Target::resource(&asker.target, py)).collect()
    }
}
