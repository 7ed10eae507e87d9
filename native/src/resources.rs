//! `Resources`: finds the destinations of requests by name, and checks plain limits.
//!
//! Python and Rust share limiters: a Python `Limiter` has its state in a `Cell`, and a `Live` contains all limiters.
//! Never call Python while an object is borrowed, because Python may access the object, possibly from another thread.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::iter::Chain;
use std::slice::Iter;
use std::sync::Arc;

use hashbrown::HashTable;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use crate::cell::{resource_of, Cell};
use crate::live::Live;
use crate::row::{Row, Second};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Messages,
    Requests,
    Bytes,
}

impl Unit {
    fn new(number: usize) -> PyResult<Self> {
        let unit = [Self::Messages, Self::Requests, Self::Bytes].get(number).copied();
        unit.ok_or_else(|| PyIndexError::new_err("no such unit"))
    }

    pub fn dimension(self) -> usize {
        usize::from(self == Self::Bytes)
    }
}

/// Costs by unit, for all but the last request and in total.
pub struct Costs {
    pub before: [i64; 3],
    pub all: [i64; 3],
}

pub struct Moment<'a> {
    pub now_ns: i64,
    pub second: &'a Second,
    pub epoch: i64,
}

/// How often to ask Python whether there is now room for a separate row or limiter.
const AGAIN_S: i64 = 10;

#[derive(Clone, Copy, Default)]
struct Good {
    epoch: i64,
    until_s: i64,
}

impl Good {
    fn from(at: &Moment) -> Self {
        Self { epoch: at.epoch, until_s: at.second.number + AGAIN_S }
    }

    fn always(at: &Moment) -> Self {
        Self { epoch: at.epoch, until_s: i64::MAX }
    }

    #[inline]
    fn holds(self, at: &Moment) -> bool {
        self.epoch == at.epoch && at.second.number < self.until_s
    }
}

struct Limit {
    cell: Py<Cell>,
    row: Py<Row>,
    unit: Unit,
    waits: bool,
}

impl Limit {
    /// Returns None if the limit has to be looked up again.
    #[inline]
    fn admit(&self, py: Python<'_>, costs: &Costs, at: &Moment) -> Option<bool> {
        let (mut cell, mut row) = (self.cell.borrow_mut(py), self.row.borrow_mut(py));
        if cell.retired || row.retired {
            return None;
        }
        cell.asked_ns = at.now_ns;
        let (before, permits) = (costs.before[self.unit as usize], costs.all[self.unit as usize]);
        let admits = cell.bucket.admits(at.now_ns, before, permits);
        if admits {
            cell.bucket.spend(permits);
            row.take(at.second, self.unit.dimension(), permits);
        }
        Some(admits)
    }
}

type Asked<'a> = Chain<Chain<Iter<'a, Limit>, Iter<'a, Limit>>, Iter<'a, Limit>>;

#[derive(Default)]
struct Limits {
    plain: Option<Vec<Limit>>,
    good: Good,
}

impl Limits {
    fn read(said: &Bound<'_, PyAny>, at: &Moment) -> PyResult<Self> {
        type Said = (Py<Cell>, Py<Row>, usize, bool);
        let limits: Option<Vec<Said>> = said.extract()?;
        let limit = |(cell, row, unit, waits): Said| Ok(Limit { cell, row, unit: Unit::new(unit)?, waits });
        let plain = limits.map(|limits| limits.into_iter().map(limit).collect::<PyResult<_>>()).transpose()?;
        Ok(Self { plain, good: Good::from(at) })
    }

    /// Also protects the limiters from eviction at this time.
    fn are_good(&self, py: Python<'_>, at: &Moment) -> bool {
        self.good.holds(at)
            && self.plain.iter().flatten().all(|limit| {
                let mut cell = limit.cell.borrow_mut(py);
                cell.asked_ns = at.now_ns;
                !cell.retired && !limit.row.borrow(py).retired
            })
    }
}

#[inline]
fn admit<'a>(py: Python<'_>, limits: impl Iterator<Item = &'a Limit> + Clone, costs: &Costs, at: &Moment) -> bool {
    for limit in limits.clone() {
        let mut cell = limit.cell.borrow_mut(py);
        let unit = limit.unit as usize;
        if cell.retired || !cell.bucket.admits(at.now_ns, costs.before[unit], costs.all[unit]) {
            return false;
        }
    }
    spend(py, limits, costs, 1, at);
    true
}

/// Spend the costs, or give them back if the sign is -1.
#[inline]
fn spend<'a>(py: Python<'_>, limits: impl Iterator<Item = &'a Limit>, costs: &Costs, sign: i64, at: &Moment) {
    for limit in limits {
        let permits = sign * costs.all[limit.unit as usize];
        limit.cell.borrow_mut(py).bucket.spend(permits);
        limit.row.borrow_mut(py).take(at.second, limit.unit.dimension(), permits);
    }
}

struct KindDefault {
    /// A full limiter, or None if unlimited.
    full: Option<Py<Cell>>,
    shared_as: String,
    unit: Unit,
    waits: bool,
    /// (prefix, suffix) pairs of names that may have another limit.
    ends: Vec<(String, String)>,
    since: i64,
}

impl KindDefault {
    fn read(said: &Bound<'_, PyAny>, since: i64) -> PyResult<Option<Self>> {
        type PlainDefault = (Option<Py<Cell>>, String, usize, bool, Vec<(String, String)>);
        let Some((full, shared_as, unit, waits, ends)) = said.extract::<Option<PlainDefault>>()? else {
            return Ok(None);
        };
        Ok(Some(Self { full, shared_as, unit: Unit::new(unit)?, waits, ends, since }))
    }

    fn has_rule_of(&self, py: Python<'_>, limiter: Option<&Py<Cell>>) -> bool {
        let rule = |limiter: &Py<Cell>| limiter.borrow(py).rule.as_ref().map(Py::as_ptr);
        self.full.as_ref().map(rule) == limiter.map(rule)
    }

    fn is_of(&self, name: &str) -> bool {
        !self.ends.iter().any(|(first, last)| name.starts_with(first) && name.ends_with(last))
    }
}

pub type By<'a> = Option<(&'a Py<Callers>, &'a Py<PyString>)>;

#[pyclass(module = "sluice_native")]
#[derive(Default)]
pub struct Target {
    kind: usize,
    key: Arc<str>,
    resource: Option<Py<PyAny>>,
    second: Option<Py<PyAny>>,
    limits: Limits,
    row: Option<Py<Row>>,
    row_good: Good,
}

struct Kind {
    name: String,
    /// None if Python must decide or has not been asked yet.
    default: Option<Arc<KindDefault>>,
    is_known: bool,
    /// The overflow row, and the last second without room for another row.
    shared_row: Option<(Py<Row>, i64)>,
}

struct Named {
    hash: u64,
    target: Py<Target>,
}

#[pyclass(module = "sluice_native")]
pub struct Resources {
    limits_of: Py<PyAny>,
    default_of: Py<PyAny>,
    row_of: Py<PyAny>,
    no_waiters: Py<PyAny>,
    most: usize,
    /// By dimension.
    live: [Py<Live>; 2],
    epoch: i64,
    own: Py<PyDict>,
    kinds: Vec<Kind>,
    hasher: RandomState,
    targets: HashTable<Named>,
    order: VecDeque<Named>,
}

impl Resources {
    pub fn target(&mut self, py: Python<'_>, kind: &str, name: &str) -> PyResult<Py<Target>> {
        let hash = self.hasher.hash_one((kind, name));
        let known = self.targets.find(hash, |known| known.hash == hash && known.target.borrow(py).is(kind, name));
        match known.map(|known| known.target.clone_ref(py)) {
            Some(target) => Ok(target),
            None => self.insert(py, hash, kind, name),
        }
    }

    /// Find or create the targets of names, given as (kind, name).
    pub fn targets<'a>(
        &mut self,
        py: Python<'_>,
        names: impl Iterator<Item = (&'a str, &'a str)> + Clone,
    ) -> PyResult<Vec<Py<Target>>> {
        let hashes: Vec<u64> = names.clone().map(|name| self.hasher.hash_one(name)).collect();
        // The loop is short, so that the processor loads many entries from memory at the same time.
        let find =
            |hash: &u64| self.targets.find(*hash, |known| known.hash == *hash).map(|known| known.target.clone_ref(py));
        let found: Vec<Option<Py<Target>>> = hashes.iter().map(find).collect();
        let checked = names.zip(found).map(|((kind, name), found)| match found {
            Some(found) if found.borrow(py).is(kind, name) => Ok(found),
            _ => self.target(py, kind, name),
        });
        checked.collect()
    }

    fn insert(&mut self, py: Python<'_>, hash: u64, kind: &str, name: &str) -> PyResult<Py<Target>> {
        let known = self.kinds.iter().position(|known| known.name == kind);
        let kind_number = known.unwrap_or(self.kinds.len());
        if known.is_none() {
            self.kinds.push(Kind { name: kind.to_owned(), default: None, is_known: false, shared_row: None });
        }
        if self.targets.len() >= self.most {
            // Scanners may still hold a reference to the target.
            if let Some(oldest) = self.order.pop_front() {
                if let Ok(entry) = self.targets.find_entry(oldest.hash, |known| known.target.is(&oldest.target)) {
                    entry.remove();
                }
            }
        }
        let key = [kind, ":", name].concat().into();
        let target = Py::new(py, Target { kind: kind_number, key, ..Target::default() })?;
        let named = || Named { hash, target: target.clone_ref(py) };
        self.targets.insert_unique(hash, named(), |known| known.hash);
        self.order.push_back(named());
        Ok(target)
    }

    pub fn epoch(&self) -> i64 {
        self.epoch
    }

    pub fn moment<'a>(&self, now_ns: i64, second: &'a Second) -> Moment<'a> {
        Moment { now_ns, second, epoch: self.epoch }
    }

    fn set_default(&mut self, py: Python<'_>, kind: usize, default: Option<KindDefault>) {
        let kind = &mut self.kinds[kind];
        kind.is_known = true;
        match (&kind.default, &default) {
            (Some(old), Some(new)) if old.ends == new.ends && old.has_rule_of(py, new.full.as_ref()) => (),
            _ => kind.default = default.map(Arc::new),
        }
    }

    /// Returns None if Python must decide.
    fn default_of(this: &Py<Self>, py: Python<'_>, kind: usize) -> PyResult<Option<Arc<KindDefault>>> {
        let (default_of, name) = {
            let all = this.borrow(py);
            let known = &all.kinds[kind];
            if known.is_known {
                return Ok(known.default.clone());
            }
            (all.default_of.clone_ref(py), known.name.clone())
        };
        let said = default_of.call1(py, (name,))?;
        let default = KindDefault::read(said.bind(py), this.borrow(py).epoch)?;
        let mut all = this.borrow_mut(py);
        all.set_default(py, kind, default);
        Ok(all.kinds[kind].default.clone())
    }
}

impl Target {
    fn is(&self, kind: &str, name: &str) -> bool {
        self.key.strip_prefix(kind).and_then(|rest| rest.strip_prefix(':')) == Some(name)
    }

    pub fn resource(this: &Py<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let key = {
            let target = this.borrow(py);
            if let Some(resource) = &target.resource {
                return Ok(resource.clone_ref(py));
            }
            target.key.clone()
        };
        let resource = resource_of(py, &key)?;
        this.borrow_mut(py).resource = Some(resource.clone_ref(py));
        Ok(resource)
    }

    pub fn resources(this: &Py<Self>, py: Python<'_>) -> PyResult<Py<PyTuple>> {
        let first = Self::resource(this, py)?;
        let second = this.borrow(py).second.as_ref().map(|second| second.clone_ref(py));
        Ok(PyTuple::new(py, [first].into_iter().chain(second).collect::<Vec<_>>())?.unbind())
    }

    /// Create a target with two resources, each with its own row. Python provides their limits.
    pub fn joint(py: Python<'_>, first: &Py<Self>, second: &Py<Self>) -> PyResult<Py<Self>> {
        let (resource, second) = (Some(Self::resource(first, py)?), Some(Self::resource(second, py)?));
        let (kind, key) = (first.borrow(py).kind, first.borrow(py).key.clone());
        Py::new(py, Self { kind, key, resource, second, ..Self::default() })
    }

    fn is_own(this: &Py<Self>, py: Python<'_>, all: &Py<Resources>) -> PyResult<bool> {
        let own = all.borrow(py).own.clone_ref(py);
        let key = this.borrow(py).key.clone();
        Ok(!own.bind(py).is_empty() && own.bind(py).contains(key.split_once(':').unwrap_or_default())?)
    }

    /// Returns None if the limits are not a plain default.
    fn by_default(this: &Py<Self>, py: Python<'_>, all: &Py<Resources>, at: &Moment) -> PyResult<Option<Limits>> {
        let (kind, key, is_joint) = {
            let target = this.borrow(py);
            (target.kind, target.key.clone(), target.second.is_some())
        };
        let Some(default) = Resources::default_of(all, py, kind)? else { return Ok(None) };
        let name = key.split_once(':').unwrap_or_default().1;
        if is_joint || !default.is_of(name) || Self::is_own(this, py, all)? {
            return Ok(None);
        }
        let good = Good::always(at);
        let Some(full) = &default.full else { return Ok(Some(Limits { plain: Some(Vec::new()), good })) };
        let row = Self::row(this, py, all, at)?;
        let live = all.borrow(py).live[default.unit.dimension()].clone_ref(py);
        let known = live.borrow(py).find(&key).map(|cell| cell.clone_ref(py));
        let cell = match known {
            Some(cell) => cell,
            None => match Live::begin(&live, py, &key, full, &default.shared_as, at.now_ns, at.epoch)? {
                Some(cell) => cell,
                None => return Ok(None),
            },
        };
        {
            let is_its = default.has_rule_of(py, Some(&cell));
            let mut cell = cell.borrow_mut(py);
            // If the limiter still has this rule, it needs no update.
            if !is_its || cell.epoch < default.since {
                return Ok(None);
            }
            (cell.epoch, cell.asked_ns) = (at.epoch, at.now_ns);
        }
        Ok(Some(Limits { plain: Some(vec![Limit { cell, row, unit: default.unit, waits: default.waits }]), good }))
    }

    #[inline]
    fn ask(this: &Py<Self>, py: Python<'_>, all: &Py<Resources>, at: &Moment) -> PyResult<()> {
        Self::row(this, py, all, at)?;
        if this.borrow(py).limits.are_good(py, at) {
            return Ok(());
        }
        let limits = if let Some(limits) = Self::by_default(this, py, all, at)? {
            limits
        } else {
            let limits_of = all.borrow(py).limits_of.clone_ref(py);
            let resources = Self::resources(this, py)?;
            Limits::read(limits_of.call1(py, (resources, at.now_ns))?.bind(py), at)?
        };
        this.borrow_mut(py).limits = limits;
        Ok(())
    }

    /// Also returns false if Python must decide.
    fn with_limits(
        this: &Py<Self>,
        py: Python<'_>,
        all: &Py<Resources>,
        by: By<'_>,
        at: &Moment,
        is_true: impl for<'a> FnOnce(Asked<'a>) -> bool,
    ) -> PyResult<bool> {
        Self::ask(this, py, all, at)?;
        if this.borrow(py).limits.plain.is_none() {
            return Ok(false);
        }
        let group = by.map(|(_, group)| group.bind(py).to_str()).transpose()?.unwrap_or_default();
        let shares = by.map(|(callers, _)| Callers::ask(callers, py, group, at)).transpose()?.flatten();
        if let Some(shares) = &shares {
            Shares::ask(shares, py, this, at)?;
        }
        let (target, callers) = (this.borrow(py), by.map(|(callers, _)| callers.borrow(py)));
        let scoped = callers.as_ref().map_or(Some(&[][..]), |callers| callers.limits(group));
        let shares = shares.as_ref().map(|shares| shares.borrow(py));
        let by_name = shares.as_ref().map_or(Some(&[][..]), |shares| shares.limits(&target.key));
        let Some(((own, scoped), by_name)) = target.limits.plain.as_ref().zip(scoped).zip(by_name) else {
            return Ok(false);
        };
        Ok(is_true(own.iter().chain(scoped).chain(by_name)))
    }

    pub fn is_plain(this: &Py<Self>, py: Python<'_>, all: &Py<Resources>, by: By, at: &Moment) -> PyResult<bool> {
        Self::with_limits(this, py, all, by, at, |mut limits| limits.all(|limit| !limit.waits))
    }

    /// Also returns false if Python must decide.
    #[inline]
    pub fn admit(
        this: &Py<Self>,
        py: Python<'_>,
        all: &Py<Resources>,
        by: By,
        costs: &Costs,
        at: &Moment,
    ) -> PyResult<bool> {
        {
            let target = this.borrow(py);
            let is_good = by.is_none() && target.limits.good.holds(at) && target.row_good.holds(at);
            let limits = target.limits.plain.as_deref().filter(|_| is_good);
            if let Some([only @ Limit { waits: false, .. }]) = limits {
                if let Some(admits) = only.admit(py, costs, at) {
                    return Ok(admits);
                }
            }
        }
        Self::with_limits(this, py, all, by, at, |limits| {
            limits.clone().all(|limit| !limit.waits) && admit(py, limits, costs, at)
        })
    }

    /// Grant permits if the limits are plain, the permits are stored, and no request is waiting. With `waiting`, check
    /// only limits for which requests may wait.
    pub fn grant(
        this: &Py<Self>,
        py: Python<'_>,
        all: &Py<Resources>,
        by: By,
        (permits, waiting): (i64, bool),
        at: &Moment,
    ) -> PyResult<bool> {
        let no_waiters = all.borrow(py).no_waiters.clone_ref(py);
        if !no_waiters.call1(py, (at.now_ns,))?.extract::<bool>(py)? {
            return Ok(false);
        }
        let costs = Costs { before: [permits - 1, permits - 1, 0], all: [permits, permits, 0] };
        Self::with_limits(this, py, all, by, at, |limits| {
            admit(py, limits.filter(|limit| limit.waits || !waiting), &costs, at)
        })
    }

    /// Give admitted costs back. Only allowed at the moment of admission.
    pub fn refund(this: &Py<Self>, py: Python<'_>, by: By, costs: &Costs, at: &Moment) -> PyResult<()> {
        let (target, group) = (this.borrow(py), by.map(|(_, group)| group.bind(py).to_str()).transpose()?);
        let callers = by.map(|(callers, _)| callers.borrow(py));
        let of_group = callers.as_ref().zip(group).and_then(|(callers, group)| callers.by_group.get(group));
        let scoped = of_group.and_then(|(limits, _)| limits.plain.as_deref()).unwrap_or_default();
        let shares = of_group.and_then(|(_, shares)| shares.as_ref()).map(|shares| shares.borrow(py));
        let by_name = shares.as_ref().and_then(|shares| shares.limits(&target.key)).unwrap_or_default();
        spend(py, target.limits.plain.iter().flatten().chain(scoped).chain(by_name), costs, -1, at);
        Ok(())
    }

    /// Returns false, without counting, if `may_look` and requests for this resource were recently refused.
    #[inline]
    pub fn count(
        this: &Py<Self>,
        py: Python<'_>,
        all: &Py<Resources>,
        at: &Moment,
        sender: &Py<PyAny>,
        outcome: usize,
        amount: (i64, i64, i64),
        may_look: bool,
    ) -> PyResult<bool> {
        let count = |row: &mut Row| {
            if may_look && row.repeats_until_ns > at.now_ns {
                return Ok(false);
            }
            row.count(py, at.second, at.now_ns, sender, outcome, amount, 0).map(|()| true)
        };
        {
            let target = this.borrow(py);
            if let (true, Some(row)) = (target.row_good.holds(at), &target.row) {
                let mut row = row.borrow_mut(py);
                if !row.retired {
                    return count(&mut row);
                }
            }
        }
        let row = Self::row(this, py, all, at)?;
        let mut row = row.borrow_mut(py);
        count(&mut row)
    }

    #[inline]
    pub fn row(this: &Py<Self>, py: Python<'_>, all: &Py<Resources>, at: &Moment) -> PyResult<Py<Row>> {
        {
            let target = this.borrow(py);
            let is_good = |row: &&Py<Row>| target.row_good.holds(at) && !row.borrow(py).retired;
            if let Some(row) = target.row.as_ref().filter(is_good) {
                return Ok(row.clone_ref(py));
            }
        }
        let row = match Self::shared_row(this, py, all, at)? {
            Some(row) => row,
            None => Self::find_row(this, py, all, at)?,
        };
        let mut target = this.borrow_mut(py);
        target.row_good = Good::from(at);
        if !target.row.as_ref().is_some_and(|old| old.is(&row)) {
            target.limits.good = Good::default();
        }
        Ok(target.row.insert(row).clone_ref(py))
    }

    /// Returns the overflow row if this name has used it before, and another name found no room in this second.
    fn shared_row(this: &Py<Self>, py: Python<'_>, all: &Py<Resources>, at: &Moment) -> PyResult<Option<Py<Row>>> {
        let shared = {
            let (target, all) = (this.borrow(py), all.borrow(py));
            let shared_before = target.row.as_ref().is_some_and(|row| row.borrow(py).shared);
            let shared_now = all.kinds[target.kind].shared_row.as_ref();
            shared_now
                .filter(|(_, second)| shared_before && *second == at.second.number)
                .map(|(row, _)| row.clone_ref(py))
        };
        Ok(if shared.is_some() && Self::is_own(this, py, all)? { None } else { shared })
    }

    fn find_row(this: &Py<Self>, py: Python<'_>, all: &Py<Resources>, at: &Moment) -> PyResult<Py<Row>> {
        let resource = Self::resource(this, py)?;
        let row_of = all.borrow(py).row_of.clone_ref(py);
        let row: Py<Row> = row_of.call1(py, (&resource, at.now_ns))?.extract(py)?;
        // The name of the overflow row never has its own row.
        if row.borrow(py).shared && !resource.bind(py).eq(&row.borrow(py).resource)? {
            let kind = this.borrow(py).kind;
            all.borrow_mut(py).kinds[kind].shared_row = Some((row.clone_ref(py), at.second.number));
        }
        Ok(row)
    }
}

#[pymethods]
impl Resources {
    #[new]
    fn new(
        limits_of: Py<PyAny>,
        default_of: Py<PyAny>,
        row_of: Py<PyAny>,
        no_waiters: Py<PyAny>,
        most: usize,
        live: [Py<Live>; 2],
        own: Py<PyDict>,
    ) -> Self {
        Self {
            limits_of,
            default_of,
            row_of,
            no_waiters,
            most,
            live,
            epoch: 0,
            own,
            kinds: Vec::new(),
            hasher: RandomState::new(),
            targets: HashTable::new(),
            order: VecDeque::new(),
        }
    }

    #[getter]
    fn kinds(&self) -> Vec<String> {
        self.kinds.iter().filter(|kind| kind.is_known).map(|kind| kind.name.clone()).collect()
    }

    fn swap(&mut self, py: Python<'_>, epoch: i64, own: Py<PyDict>, defaults: Bound<'_, PyDict>) -> PyResult<()> {
        (self.epoch, self.own) = (epoch, own);
        for (kind, said) in defaults {
            let (name, default) = (kind.extract::<String>()?, KindDefault::read(&said, epoch)?);
            if let Some(kind) = self.kinds.iter().position(|kind| kind.name == name) {
                self.set_default(py, kind, default);
            }
        }
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for of_python in [&self.limits_of, &self.default_of, &self.row_of, &self.no_waiters] {
            visit.call(of_python)?;
        }
        self.live.iter().try_for_each(|live| visit.call(live))
    }

    fn __len__(&self) -> usize {
        self.targets.len()
    }
}

/// A client's limits at one listener by producer group, and the shares of the listener's adaptive limit, if any.
#[pyclass(module = "sluice_native")]
pub struct Callers {
    limits_of: Py<PyAny>,
    by_group: HashMap<String, (Limits, Option<Py<Shares>>)>,
}

const MAX_GROUPS: usize = 64;

impl Callers {
    fn limits(&self, group: &str) -> Option<&[Limit]> {
        self.by_group.get(group).and_then(|(limits, _)| limits.plain.as_deref())
    }

    fn ask(this: &Py<Self>, py: Python<'_>, group: &str, at: &Moment) -> PyResult<Option<Py<Shares>>> {
        let limits_of = {
            let callers = this.borrow(py);
            if let Some((_, shares)) = callers.by_group.get(group).filter(|(limits, _)| limits.are_good(py, at)) {
                return Ok(shares.as_ref().map(|shares| shares.clone_ref(py)));
            }
            callers.limits_of.clone_ref(py)
        };
        let said = limits_of.call1(py, (group, at.now_ns))?;
        let (limits, shares): (Bound<'_, PyAny>, Option<Py<Shares>>) = said.extract(py)?;
        let limits = Limits::read(&limits, at)?;
        let mut callers = this.borrow_mut(py);
        if callers.by_group.len() >= MAX_GROUPS {
            callers.by_group.clear();
        }
        callers.by_group.insert(group.to_owned(), (limits, shares.as_ref().map(|shares| shares.clone_ref(py))));
        Ok(shares)
    }
}

#[pymethods]
impl Callers {
    #[new]
    fn new(limits_of: Py<PyAny>) -> Self {
        Self { limits_of, by_group: HashMap::new() }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.limits_of)
    }
}

#[pyclass(module = "sluice_native")]
pub struct Shares {
    share_of: Py<PyAny>,
    by_key: HashMap<Arc<str>, Limits>,
}

/// Python distinguishes fewer names.
const MAX_SHARES: usize = 16_384;

impl Shares {
    fn limits(&self, key: &str) -> Option<&[Limit]> {
        self.by_key.get(key).and_then(|limits| limits.plain.as_deref())
    }

    fn ask(this: &Py<Self>, py: Python<'_>, target: &Py<Target>, at: &Moment) -> PyResult<()> {
        let (share_of, key) = {
            let (shares, target) = (this.borrow(py), target.borrow(py));
            if shares.by_key.get(&target.key).is_some_and(|limits| limits.are_good(py, at)) {
                return Ok(());
            }
            (shares.share_of.clone_ref(py), target.key.clone())
        };
        let resources = Target::resources(target, py)?;
        let limits = Limits::read(share_of.call1(py, (resources, at.now_ns))?.bind(py), at)?;
        let mut shares = this.borrow_mut(py);
        if shares.by_key.len() >= MAX_SHARES {
            shares.by_key.clear();
        }
        shares.by_key.insert(key, limits);
        Ok(())
    }
}

#[pymethods]
impl Shares {
    #[new]
    fn new(share_of: Py<PyAny>) -> Self {
        Self { share_of, by_key: HashMap::new() }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.share_of)
    }
}
