//! `Live`: the live limiters of one dimension. See `limiter.plans.registry.PythonLive`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use sluice_native_core::bucket::Bucket;

use crate::cell::{key_of, Cell};

#[pyclass(module = "sluice_native")]
pub struct Live {
    #[pyo3(get)]
    overflow: Py<PyDict>,
    #[pyo3(get)]
    unpinned: i64,
    #[pyo3(get)]
    evicted_total: u64,
    max_unpinned: i64,
    is_idle: Py<PyAny>,
    limiters: HashMap<Arc<str>, Py<Cell>>,
    /// In the order in which they are checked for eviction.
    order: VecDeque<Arc<str>>,
    no_room_ns: Option<i64>,
}

const MAX_LOOKS: usize = 16;

impl Live {
    pub fn find(&self, key: &str) -> Option<&Py<Cell>> {
        self.limiters.get(key)
    }

    fn has_room(&self) -> bool {
        self.unpinned < self.max_unpinned
    }

    fn insert(&mut self, py: Python<'_>, key: Arc<str>, limiter: Py<Cell>) {
        let unpinned = |limiter: &Py<Cell>| i64::from(!limiter.borrow(py).pinned);
        self.unpinned += unpinned(&limiter);
        match self.limiters.insert(key.clone(), limiter) {
            Some(old) => self.unpinned -= unpinned(&old),
            None => self.order.push_back(key),
        }
    }

    /// Create a full limiter with the rule of `full`. Returns None if there is no room. `shared_as` names the overflow
    /// limiter.
    pub fn begin(
        this: &Py<Self>,
        py: Python<'_>,
        key: &Arc<str>,
        full: &Py<Cell>,
        shared_as: &str,
        now_ns: i64,
        epoch: i64,
    ) -> PyResult<Option<Py<Cell>>> {
        if !Self::make_room(this.bind(py), now_ns, epoch)? {
            return Ok(None);
        }
        let of = full.bind(py).get_type();
        let limiter = of.call_method1("__new__", (&of,))?.cast_into::<Cell>()?;
        let shared = this.borrow(py).overflow.bind(py).get_item(shared_as)?;
        {
            let (full, mut begun) = (full.borrow(py), limiter.borrow_mut());
            begun.bucket = Bucket { at_ns: now_ns, ..full.bucket };
            begun.rule = full.rule.as_ref().map(|rule| rule.clone_ref(py));
            (begun.epoch, begun.key, begun.is_begun) = (epoch, Some(key.clone()), true);
            if let Some(shared) = shared {
                begun.bucket.inherit(&mut shared.cast::<Cell>()?.borrow_mut().bucket, now_ns);
            }
        }
        let limiter = limiter.unbind();
        this.borrow_mut(py).insert(py, key.clone(), limiter.clone_ref(py));
        Ok(Some(limiter))
    }

    fn looks_idle(this: &Bound<'_, Self>, limiter: &Bound<'_, Cell>, now_ns: i64, epoch: i64) -> PyResult<bool> {
        {
            let mut cell = limiter.borrow_mut();
            if cell.pinned || cell.asked_ns == now_ns {
                return Ok(false);
            }
            if cell.is_begun && cell.epoch == epoch && cell.bucket.open_next_free_ns.is_none() {
                return Ok(cell.bucket.is_full(now_ns));
            }
        }
        let is_idle = this.borrow().is_idle.bind(this.py()).clone();
        is_idle.call1((Cell::resource(limiter)?, now_ns))?.extract()
    }
}

#[pymethods]
impl Live {
    #[new]
    fn new(py: Python<'_>, max_live: i64, is_idle: Py<PyAny>) -> Self {
        Self {
            overflow: PyDict::new(py).unbind(),
            unpinned: 0,
            evicted_total: 0,
            max_unpinned: max_live,
            is_idle,
            limiters: HashMap::new(),
            order: VecDeque::new(),
            no_room_ns: None,
        }
    }

    fn __len__(&self) -> usize {
        self.limiters.len()
    }

    fn get(&self, py: Python<'_>, resource: &Bound<'_, PyTuple>) -> PyResult<Option<Py<Cell>>> {
        Ok(self.find(&key_of(resource)?).map(|limiter| limiter.clone_ref(py)))
    }

    fn all(&self, py: Python<'_>) -> Vec<Py<Cell>> {
        self.limiters.values().map(|limiter| limiter.clone_ref(py)).collect()
    }

    fn put(&mut self, py: Python<'_>, limiter: Bound<'_, Cell>) -> PyResult<()> {
        let resource = Cell::resource(&limiter)?.into_pyobject(py)?;
        let key = key_of(resource.cast()?)?;
        self.insert(py, key.into(), limiter.unbind());
        Ok(())
    }

    fn pin(&mut self, mut limiter: PyRefMut<'_, Cell>, pinned: bool) {
        self.unpinned += i64::from(limiter.pinned) - i64::from(pinned);
        limiter.pinned = pinned;
    }

    fn make_room(this: &Bound<'_, Self>, now_ns: i64, epoch: i64) -> PyResult<bool> {
        let py = this.py();
        let looks = {
            let live = this.borrow();
            if live.has_room() || live.no_room_ns == Some(now_ns) {
                return Ok(live.has_room());
            }
            live.order.len().min(MAX_LOOKS)
        };
        for _ in 0..looks {
            let (key, limiter) = {
                let mut live = this.borrow_mut();
                let Some(key) = live.order.pop_front() else { break };
                let limiter = live.limiters.get(&key).map(|limiter| limiter.clone_ref(py));
                (key, limiter)
            };
            let Some(limiter) = limiter else { continue };
            let is_idle = Self::looks_idle(this, limiter.bind(py), now_ns, epoch)?;
            let mut live = this.borrow_mut();
            if !is_idle {
                live.order.push_back(key);
                continue;
            }
            // Python may have replaced the limiter.
            if let Some(evicted) = live.limiters.remove(&key) {
                evicted.borrow_mut(py).retired = true;
            }
            live.unpinned -= 1;
            live.evicted_total += 1;
            if live.has_room() {
                return Ok(true);
            }
        }
        this.borrow_mut().no_room_ns = Some(now_ns);
        Ok(false)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.is_idle)
    }
}
