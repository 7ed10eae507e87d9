//! `Judge`: decides and counts a connection's requests, with Python's help where necessary.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3::{PyTraverseError, PyVisit};

use crate::refused_ids::RefusedIds;
use crate::resources::{By, Callers, Moment, Resources, Target};
use crate::runs::{Asker, Runs};
use crate::turn::Context;

pub struct Span {
    pub requests: usize,
    pub refuse: Option<Py<PyAny>>,
}

pub struct Counted {
    pub requests: i64,
    pub bytes: i64,
    pub answers: i64,
    /// See `limiter.counting.repeats.Repeats`.
    pub repeats: Option<(u64, u64, u64, u64)>,
}

pub enum Decided {
    Passed,
    /// Passed, because the limiter has failed.
    Bypassed,
    Spans(Vec<Span>),
}

pub struct Judge {
    /// `proxy.deciding.judge.Judge`.
    python: Py<PyAny>,
    pub resources: Py<Resources>,
    /// None if the client changes a message's id with every send.
    pub ids: Option<Py<RefusedIds>>,
    sender: Py<PyAny>,
    passed: usize,
    bypassed: usize,
    is_exempt: bool,
    callers: Option<Py<Callers>>,
    only_refuses: bool,
    limits_bytes: bool,
    epoch: Option<i64>,
}

/// Attributes of `proxy.deciding.judge.Judge`.
#[derive(FromPyObject)]
struct Terms {
    resources: Py<Resources>,
    ids: Option<Py<RefusedIds>>,
    sender: Py<PyAny>,
    passed: usize,
    bypassed: usize,
    is_exempt: bool,
}

impl Judge {
    pub fn new(python: &Bound<'_, PyAny>) -> PyResult<Self> {
        let Terms { resources, ids, sender, passed, bypassed, is_exempt } = python.extract()?;
        let python = python.clone().unbind();
        Ok(Self {
            python,
            resources,
            ids,
            sender,
            passed,
            bypassed,
            is_exempt,
            callers: None,
            only_refuses: false,
            limits_bytes: true,
            epoch: None,
        })
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.python)
    }

    /// Returns false if Python must serve the connection from now on.
    #[inline]
    pub fn refresh(&mut self, py: Python<'_>) -> PyResult<bool> {
        let epoch = self.resources.borrow(py).epoch();
        if self.epoch == Some(epoch) {
            return Ok(true);
        }
        let stays: bool;
        (stays, self.only_refuses, self.limits_bytes, self.callers) =
            self.python.call_method0(py, "refresh")?.extract(py)?;
        self.epoch = stays.then_some(epoch);
        Ok(stays)
    }

    pub fn identify(&mut self, py: Python<'_>, header: &[u8], header_type: u32) -> PyResult<bool> {
        let met = self.python.call_method1(py, "identify", (PyBytes::new(py, header), header_type))?;
        let Some((sender, ids)) = met.extract::<Option<(Py<PyAny>, Option<Py<RefusedIds>>)>>(py)? else {
            return Ok(false);
        };
        (self.sender, self.ids) = (sender, ids);
        Ok(true)
    }

    /// Returns the first run that Python must decide in a separate batch. Spends nothing.
    pub fn first_foreign<R: Runs>(&self, py: Python<'_>, runs: &R, context: &Context<'_>) -> PyResult<Option<usize>> {
        if self.is_exempt || self.only_refuses {
            return Ok(None);
        }
        for run in 0..runs.runs() {
            // `decide` bypasses a limiter that fails.
            if self.is_plain(py, runs, run, context).unwrap_or(true) {
                continue;
            }
            let asker = runs.asker_of(run)?;
            let resources = Target::resources(&asker.target, py)?;
            let group = asker.producer_group.clone_ref(py);
            if !self.python.call_method1(py, "is_plain", (resources, group))?.extract::<bool>(py)? {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    #[inline]
    fn with<T>(
        &self,
        py: Python<'_>,
        asker: &Asker,
        context: &Context<'_>,
        ask: impl FnOnce(By<'_>, &Moment<'_>) -> PyResult<T>,
    ) -> PyResult<T> {
        let second = context.second.borrow(py);
        let at = self.resources.borrow(py).moment(context.now_ns, &second);
        ask(self.callers.as_ref().map(|callers| (callers, &asker.producer_group)), &at)
    }

    fn is_plain<R: Runs>(&self, py: Python<'_>, runs: &R, run: usize, context: &Context<'_>) -> PyResult<bool> {
        let asker = runs.asker_of(run)?;
        self.with(py, asker, context, |callers, at| Target::is_plain(&asker.target, py, &self.resources, callers, at))
    }

    /// Bypasses a limiter that fails, so the only possible error is `KeyboardInterrupt`.
    pub fn decide<R: Runs>(
        &self,
        py: Python<'_>,
        runs: &R,
        run: usize,
        context: &Context<'_>,
        sizes: impl FnOnce() -> Vec<u32>,
    ) -> PyResult<Decided> {
        if self.is_exempt {
            return Ok(Decided::Passed);
        }
        let decided = self.admit(py, runs, run, context).and_then(|admitted| {
            if admitted {
                return Ok(Decided::Passed);
            }
            let asker = runs.asker_of(run)?;
            let resources = Target::resources(&asker.target, py)?;
            let group = asker.producer_group.clone_ref(py);
            let requests = runs.sums(run).map_or(0, |(requests, ..)| requests);
            let sizes = if self.limits_bytes { sizes() } else { Vec::new() };
            let arguments = (context.now_ns, resources, group, requests, sizes);
            let spans: Vec<(usize, Option<Py<PyAny>>)> =
                self.python.call_method1(py, "decide", arguments)?.extract(py)?;
            let span = |(requests, refuse)| Span { requests, refuse };
            Ok(Decided::Spans(spans.into_iter().map(span).collect()))
        });
        match decided {
            Err(error) => self.bypass(py, runs, run, error).map(|()| Decided::Bypassed),
            decided => decided,
        }
    }

    fn bypass<R: Runs>(&self, py: Python<'_>, runs: &R, run: usize, error: PyErr) -> PyResult<()> {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return Err(error);
        }
        let requests = runs.sums(run).map_or(0, |(requests, ..)| requests);
        self.python.call_method1(py, "failed", (error, requests)).map(drop)
    }

    /// Admit all runs or none. Returns which runs bypassed their limiters, or None if a run is not admitted. The only
    /// possible error is `KeyboardInterrupt`.
    pub fn admit_all<R: Runs>(&self, py: Python<'_>, runs: &R, context: &Context<'_>) -> PyResult<Option<Vec<bool>>> {
        let mut bypassed = vec![false; runs.runs()];
        for run in 0..if self.is_exempt { 0 } else { runs.runs() } {
            match self.admit(py, runs, run, context) {
                Ok(true) => {}
                Ok(false) => {
                    for run in (0..run).filter(|run| !bypassed[*run]) {
                        self.refund(py, runs, run, context)?;
                    }
                    return Ok(None);
                }
                Err(error) => {
                    self.bypass(py, runs, run, error)?;
                    bypassed[run] = true;
                }
            }
        }
        Ok(Some(bypassed))
    }

    fn refund<R: Runs>(&self, py: Python<'_>, runs: &R, run: usize, context: &Context<'_>) -> PyResult<()> {
        let (asker, costs) = (runs.asker_of(run)?, runs.costs(run));
        self.with(py, asker, context, |callers, at| Target::refund(&asker.target, py, callers, &costs, at))
    }

    pub fn admit<R: Runs>(&self, py: Python<'_>, runs: &R, run: usize, context: &Context<'_>) -> PyResult<bool> {
        let (asker, costs) = (runs.asker_of(run)?, runs.costs(run));
        self.with(py, asker, context, |callers, at| {
            Target::admit(&asker.target, py, &self.resources, callers, &costs, at)
        })
    }

    /// Like `Target::grant`, but returns false if the limiter fails, so the only possible error is `KeyboardInterrupt`.
    /// Callers' limits do not apply to consumers.
    pub fn grant(
        &self,
        py: Python<'_>,
        asker: &Asker,
        permits: u32,
        (waiting, consumes): (bool, bool),
        context: &Context<'_>,
    ) -> PyResult<bool> {
        let granted = self.with(py, asker, context, |callers, at| {
            let callers = callers.filter(|_| !consumes);
            Target::grant(&asker.target, py, &self.resources, callers, (permits.into(), waiting), at)
        });
        match granted {
            Err(error) if !error.is_instance_of::<PyKeyboardInterrupt>(py) => Ok(false),
            granted => granted,
        }
    }

    /// Returns false, without counting, if the run may contain repeats of refused messages.
    pub fn count<R: Runs>(
        &self,
        py: Python<'_>,
        runs: &R,
        run: usize,
        context: &Context<'_>,
        is_bypassed: bool,
    ) -> PyResult<bool> {
        let asker = runs.asker_of(run)?;
        let outcome = if is_bypassed { self.bypassed } else { self.passed };
        let [requests, messages, bytes] = runs.costs(run).all;
        let (all, sender) = (&self.resources, &self.sender);
        self.with(py, asker, context, |_, at| {
            if !Target::count(
                &asker.target,
                py,
                all,
                at,
                sender,
                outcome,
                (requests, messages, bytes),
                self.ids.is_some(),
            )? {
                return Ok(false);
            }
            if let Some(target) = &asker.second {
                Target::count(target, py, all, at, sender, outcome, (requests, messages, bytes), false)?;
            }
            Ok(true)
        })
    }

    pub fn tell<R: Runs>(
        &self,
        py: Python<'_>,
        runs: &R,
        run: usize,
        context: &Context<'_>,
        refuse: Option<&Py<PyAny>>,
        is_bypassed: bool,
        counted: &Counted,
    ) -> PyResult<()> {
        let asker = runs.asker_of(run)?;
        let resources = Target::resources(&asker.target, py)?;
        let Counted { requests, bytes, answers, repeats } = *counted;
        let told = (
            context.now_ns,
            resources,
            asker.producer_group.clone_ref(py),
            refuse.map(|refuse| refuse.clone_ref(py)),
            is_bypassed,
            (requests, requests, bytes),
            answers,
            repeats,
        );
        self.python.call_method1(py, "count", told).map(drop)
    }

    pub fn looks<R: Runs>(&self, py: Python<'_>, runs: &R, run: usize, context: &Context<'_>) -> PyResult<bool> {
        let asker = runs.asker_of(run)?;
        let row = self.with(py, asker, context, |_, at| Target::row(&asker.target, py, &self.resources, at))?;
        let looks = row.borrow(py).repeats_until_ns > context.now_ns;
        Ok(looks)
    }

    pub fn key<R: Runs>(py: Python<'_>, runs: &R, run: usize) -> PyResult<i64> {
        let resource = Target::resource(&runs.asker_of(run)?.target, py)?;
        Ok(resource.bind(py).hash()? as i64)
    }
}
