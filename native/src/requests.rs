//! `Requests`: the request state of one `RocketMQ` connection.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyString;
use sluice_native_core::answers::{self, Settled};
use sluice_native_core::opaques::Opaques;
use sluice_native_core::scan::{Bounds, Headers, Scanner, Taken};

use crate::resources::{Resources, Target};
use crate::runs::Asker;

/// Shared by all connections, because most headers are alike.
static HEADERS: Mutex<Option<Headers>> = Mutex::new(None);

fn with_headers<T>(read: impl FnOnce(&mut Headers) -> T) -> T {
    read(HEADERS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

#[pyclass(module = "sluice_native")]
pub struct Requests {
    scanner: Scanner,
    /// Indexed by the scanner's key numbers.
    pub askers: Vec<Asker>,
    pub owed: Opaques,
    resources: Py<Resources>,
    max_keys: usize,
}

impl Requests {
    pub fn take<'a>(
        &mut self,
        py: Python<'_>,
        chunk: &'a [u8],
        position: usize,
        max_length: i64,
        max_runs: usize,
    ) -> PyResult<Taken<'a>> {
        let bounds = Bounds { max_length, max_keys: self.max_keys, max_runs };
        let taken = with_headers(|headers| self.scanner.scan(chunk, position, &bounds, headers, &mut self.owed));
        self.askers.truncate(taken.first_new);
        if taken.new.is_empty() {
            return Ok(taken);
        }
        let targets = self.resources.borrow_mut(py).targets(py, taken.new.iter().map(|key| (key.kind, key.name)))?;
        for (key, target) in taken.new.iter().zip(targets) {
            let producer_group = match self.askers.last() {
                Some(last) if last.producer_group.bind(py).to_cow()? == key.group => last.producer_group.clone_ref(py),
                _ => PyString::new(py, key.group).unbind(),
            };
            self.askers.push(Asker { target, second: None, producer_group });
        }
        Ok(taken)
    }

    pub fn step_over(&mut self, chunk: &[u8], position: usize) -> Settled {
        with_headers(|headers| answers::settle(chunk, position, &mut self.owed, &mut headers.answers))
    }
}

#[pymethods]
impl Requests {
    #[new]
    fn new(resources: Py<Resources>, max_keys: usize, max_owed: usize) -> Self {
        let owed = Opaques::new(max_owed);
        Self { scanner: Scanner::default(), askers: Vec::new(), owed, resources, max_keys }
    }

    fn names(&self, py: Python<'_>) -> PyResult<Vec<Py<PyAny>>> {
        let mut seen = HashSet::new();
        let new = self.askers.iter().filter(|asker| seen.insert(asker.target.as_ptr()));
        new.map(|asker| Target::resource(&asker.target, py)).collect()
    }

    fn add(&mut self, opaque: i32, is_send: bool) {
        self.owed.add(opaque, is_send);
    }

    fn settle(&mut self, opaque: i32) -> Option<bool> {
        self.owed.settle(opaque)
    }

    #[getter]
    fn sends(&self) -> usize {
        self.owed.sends()
    }

    #[getter]
    fn ambiguous(&self) -> bool {
        self.owed.ambiguous()
    }

    fn __len__(&self) -> usize {
        self.owed.len()
    }

    fn __contains__(&self, opaque: i32) -> bool {
        self.owed.contains(opaque)
    }
}
