//! What is decided and counted of runs of requests at once, whatever they were read from.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use crate::indexes::with_indexes;
use crate::resources::{Callers, Costs, Resources, Target};
use crate::row::Second;

/// What the requests of a run are for, and who sends them.
pub struct Asker {
    /// Of all they are for.
    pub target: Py<Target>,
    /// Of the second thing that they are for.
    pub second: Option<Py<Target>>,
    pub producer_group: Py<PyString>,
}

impl Asker {
    /// Who asks for one thing or for two, by their kinds and names; None if for nothing.
    pub fn of(py: Python<'_>, all: &Py<Resources>, names: &[(String, String)]) -> PyResult<Option<Self>> {
        let mut targets = names.iter().map(|(kind, name)| all.borrow_mut(py).target(py, kind, name));
        let Some(first) = targets.next().transpose()? else { return Ok(None) };
        let second = targets.next().transpose()?;
        let target = match &second {
            Some(second) => Target::joint(py, &first, second)?,
            None => first,
        };
        Ok(Some(Self { target, second, producer_group: PyString::new(py, "").unbind() }))
    }

    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            target: self.target.clone_ref(py),
            second: self.second.as_ref().map(|second| second.clone_ref(py)),
            producer_group: self.producer_group.clone_ref(py),
        }
    }
}

/// Requests in runs.
pub trait Runs {
    fn runs(&self) -> usize;
    /// Who asks in a run.
    ///
    /// # Errors
    /// `IndexError` if there is no such run.
    fn asker_of(&self, run: usize) -> PyResult<&Asker>;
    /// How many requests a run has, their bytes, and those of the last one.
    fn sums(&self, run: usize) -> Option<(u32, u64, u64)>;
    /// Of all runs.
    fn requests(&self) -> usize;
    /// The run of a request.
    fn run_at(&self, index: usize) -> usize;
    fn resources(&self) -> &Py<Resources>;

    fn costs(&self, run: usize) -> Costs {
        let Some((count, bytes, last)) = self.sums(run) else { return Costs { before: [0; 3], all: [0; 3] } };
        let count = i64::from(count);
        let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        Costs { before: [count - 1, count - 1, signed(bytes.saturating_sub(last))], all: [count, count, signed(bytes)] }
    }

    fn asker_for<'py>(&self, py: Python<'py>, run: usize) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyString>)> {
        let asker = self.asker_of(run)?;
        let resources = Target::resources(&asker.target, py)?;
        Ok((resources.into_bound(py), asker.producer_group.bind(py).clone()))
    }

    fn admit_from(
        &self,
        py: Python<'_>,
        first: usize,
        now_ns: i64,
        second: &Second,
        callers: Option<&Py<Callers>>,
    ) -> PyResult<usize> {
        let at = self.resources().borrow(py).moment(now_ns, second);
        for run in first..self.runs() {
            let asker = self.asker_of(run)?;
            let callers = callers.map(|callers| (callers, &asker.producer_group));
            if !Target::admit(&asker.target, py, self.resources(), callers, &self.costs(run), &at)? {
                return Ok(run);
            }
        }
        Ok(self.runs())
    }

    /// Count the runs of which nothing is among the `judged`, ascending indexes, and of whose first thing nothing was
    /// refused of late; return the numbers of the others.
    #[allow(clippy::too_many_arguments)]
    fn count_unjudged(
        &self,
        py: Python<'_>,
        second: &Second,
        now_ns: i64,
        sender: &Py<PyAny>,
        outcome: usize,
        judged: &Bound<'_, PyAny>,
    ) -> PyResult<Vec<usize>> {
        let mut left = with_indexes(judged, self.requests(), |judged| {
            let mut left = Vec::new();
            for index in judged.iter() {
                left.resize(self.runs(), false);
                left[self.run_at(index)] = true;
            }
            Ok(left)
        })?;
        let at = self.resources().borrow(py).moment(now_ns, second);
        for run in 0..self.runs() {
            if left.get(run) == Some(&true) {
                continue;
            }
            let asker = self.asker_of(run)?;
            let amount = self.costs(run).all;
            if !Target::count(&asker.target, py, self.resources(), &at, sender, outcome, amount, true)? {
                left.resize(self.runs(), false);
                left[run] = true;
                continue;
            }
            if let Some(target) = &asker.second {
                Target::count(target, py, self.resources(), &at, sender, outcome, amount, false)?;
            }
        }
        Ok(left.iter().enumerate().filter_map(|(run, left)| left.then_some(run)).collect())
    }
}
