//! `Cell`: a limiter's state, shared by Python and Rust.

use std::sync::Arc;

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use sluice_native_core::bucket::Bucket;

#[pyclass(module = "sluice_native", subclass)]
#[derive(Default)]
pub struct Cell {
    pub bucket: Bucket,
    #[pyo3(get)]
    pub asked_ns: i64,
    #[pyo3(get, set)]
    pub epoch: i64,
    #[pyo3(get, set)]
    last_refused_ns: Option<i64>,
    #[pyo3(get, set)]
    last_wait_us: i64,
    #[pyo3(set)]
    resource: Option<Py<PyAny>>,
    /// Set if Rust created the cell. The resource is then created when Python asks for it.
    pub key: Option<Arc<str>>,
    pub is_begun: bool,
    #[pyo3(get, set)]
    pub rule: Option<Py<PyAny>>,
    #[pyo3(get, set)]
    pub pinned: bool,
    #[pyo3(get, set)]
    pub retired: bool,
}
/// Returns `kind:name`. Kinds do not contain colons.
pub fn key_of(resource: &Bound<'_, PyTuple>) -> PyResult<String> {
    let (kind, name) = (resource.get_item(0)?, resource.get_item(1)?);
    Ok([kind.cast::<PyString>()?.to_str()?, ":", name.cast::<PyString>()?.to_str()?].concat())
}

pub fn resource_of(py: Python<'_>, key: &str) -> PyResult<Py<PyAny>> {
    static RESOURCE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let (kind, name) = key.split_once(':').unwrap_or_default();
    let resource = RESOURCE.import(py, "limiter.rules.resource", "Resource")?;
    Ok(resource.call1((PyString::intern(py, kind), name))?.unbind())
}

impl Cell {
    pub fn resource(this: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
        let py = this.py();
        let key = {
            let cell = this.borrow();
            match (&cell.resource, &cell.key) {
                (None, Some(key)) => key.clone(),
                (resource, _) => return Ok(resource.as_ref().map(|resource| resource.clone_ref(py))),
            }
        };
        let resource = resource_of(py, &key)?;
        this.borrow_mut().resource = Some(resource.clone_ref(py));
        Ok(Some(resource))
    }
}

fn clamped(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    match value.extract::<i64>() {
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
            Ok(if value.lt(0)? { i64::MIN } else { i64::MAX })
        }
        other => other,
    }
}

macro_rules! figures {
    ($(($get:ident, $set:ident, $field:ident)),*) => {
        #[pymethods]
        impl Cell {
            #[new]
            #[pyo3(signature = (*_args, **_kwargs))]
            fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
                Self::default()
            }

            #[getter(resource)]
            fn get_resource(this: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
                Self::resource(this)
            }

            $(
                #[getter($field)]
                fn $get(&self) -> i64 {
                    self.bucket.$field
                }

                #[setter($field)]
                fn $set(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
                    self.bucket.$field = clamped(value)?;
                    Ok(())
                }
            )*

            #[getter(open_next_free_ns)]
            fn get_open(&self) -> Option<i64> {
                self.bucket.open_next_free_ns
            }

            #[setter(open_next_free_ns)]
            fn set_open(&mut self, value: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
                self.bucket.open_next_free_ns = value.map(clamped).transpose()?;
                Ok(())
            }

            #[setter(asked_ns)]
            fn set_asked(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
                self.asked_ns = clamped(value)?;
                Ok(())
            }

            fn refill(&mut self, now_ns: i64) -> i64 {
                self.bucket.refill(now_ns)
            }

            fn admits(&mut self, now_ns: i64, before: i64, permits: i64) -> bool {
                self.bucket.admits(now_ns, before, permits)
            }

            fn spend(&mut self, permits: i64) {
                self.bucket.spend(permits);
            }
        }
    };
}

figures!(
    (get_rate, set_rate, rate_upermits_per_s),
    (get_capacity, set_capacity, capacity_upermits),
    (get_stored, set_stored, stored_upermits),
    (get_forgiven, set_forgiven, forgiven_upermits),
    (get_max_debt, set_max_debt, max_debt_upermits),
    (get_at, set_at, at_ns)
);
