//! Runs of requests that are decided and counted together, for all protocols.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::resources::{Costs, Resources, Target};

pub struct Asker {
    pub target: Py<Target>,
    pub second: Option<Py<Target>>,
    pub producer_group: Py<PyString>,
}

impl Asker {
    pub fn of<S: AsRef<str>>(py: Python<'_>, all: &Py<Resources>, names: &[(S, S)]) -> PyResult<Option<Self>> {
        let mut targets = names.iter().map(|(kind, name)| all.borrow_mut(py).target(py, kind.as_ref(), name.as_ref()));
        let Some(first) = targets.next().transpose()? else { return Ok(None) };
        let second = targets.next().transpose()?;
        let target = match &second {
            Some(second) => Target::joint(py, &first, second)?,
            None => first,
        };
        Ok(Some(Self { target, second, producer_group: PyString::new(py, "").unbind() }))
    }
}

pub trait Runs {
    fn runs(&self) -> usize;
    fn asker(&self, run: usize) -> Option<&Asker>;
    /// Returns the number of requests in a run, their bytes, and the bytes of the last one.
    fn sums(&self, run: usize) -> Option<(u32, u64, u64)>;

    fn asker_of(&self, run: usize) -> PyResult<&Asker> {
        self.asker(run).ok_or_else(|| PyIndexError::new_err("no such run"))
    }

    fn costs(&self, run: usize) -> Costs {
        let Some((count, bytes, last)) = self.sums(run) else { return Costs { before: [0; 3], all: [0; 3] } };
        let count = i64::from(count);
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        Costs { before: [count - 1, count - 1, signed(bytes.saturating_sub(last))], all: [count, count, signed(bytes)] }
    }
}
