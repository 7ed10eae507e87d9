//! `Opaques`: the numbers of sends that have no answer yet.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use sluice_native_core::templates::Templates;
use sluice_native_core::{answers, opaques};

/// How answers were read lately; one broker's are much like the other's.
static ANSWERS: Mutex<Option<Templates>> = Mutex::new(None);

#[pyclass(module = "sluice_native")]
pub struct Opaques(pub opaques::Opaques);

impl Opaques {
    /// Step over the answers of a chunk, as `answers::settle` does.
    pub fn step_over(&mut self, chunk: &[u8], position: usize) -> (usize, usize) {
        let mut answers = ANSWERS.lock().unwrap_or_else(PoisonError::into_inner);
        answers::settle(chunk, position, &mut self.0, answers.get_or_insert_default())
    }
}

#[pymethods]
impl Opaques {
    #[new]
    fn new(most: usize) -> Self {
        Self(opaques::Opaques::new(most))
    }

    fn add(&mut self, opaque: i32) {
        self.0.add(opaque);
    }

    fn discard(&mut self, opaque: i32) -> bool {
        self.0.discard(opaque)
    }

    #[getter]
    fn ambiguous(&self) -> bool {
        self.0.ambiguous()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __contains__(&self, opaque: i32) -> bool {
        self.0.contains(opaque)
    }
}
