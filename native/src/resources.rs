//! `Resources`: what requests are for, by name, and the limits of each as far as they can be decided here.
//!
//! A limiter that Python made is decided by through its `Cell`. Most names fall under the default of their kind, and
//! nobody ever looks at their limiters: such a limiter is begun here, without Python, and taken over by Python's registry
//! when that has to do with it. Python is never called while something here is borrowed: it may look at it, in another
//! thread, too.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use sluice_native_core::bucket::Bucket;

use crate::cell::Cell;
use crate::row::{Row, Second};

/// What a request costs: its messages, one permit, or its bytes.
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

    /// The number of the dimension that is limited: messages, or requests in their place, and bytes.
    pub fn dimension(self) -> usize {
        usize::from(self == Self::Bytes)
    }
}

/// What requests cost, by unit: all but the last of them, and all.
pub struct Costs {
    pub before: [i64; 3],
    pub all: [i64; 3],
}

/// When something is decided.
pub struct Moment<'a> {
    pub now_ns: i64,
    pub second: &'a Second,
    pub epoch: u64,
}

/// One limit: its state, the row of what is limited, and what a request costs there.
struct Limit {
    cell: Py<Cell>,
    row: Py<Row>,
    unit: Unit,
}

/// What is known of limits that are asked together.
#[derive(Default)]
enum Asked {
    /// Python was not asked so far.
    #[default]
    Unknown,
    /// Python took over what was begun here, and is to be asked.
    TakenOver,
    /// What Python said, and when; None leaves them to Python.
    Said { limits: Option<Box<[Limit]>>, epoch: u64, second: i64 },
}

/// After so many seconds Python is asked again what it kept for itself, or counted with others.
const AGAIN_S: i64 = 10;

impl Asked {
    /// Read what Python says: None, or (cell, row, unit) of each.
    fn read(said: &Bound<'_, PyAny>, at: &Moment) -> PyResult<Self> {
        type Said = (Py<Cell>, Py<Row>, usize);
        let limits: Option<Vec<Said>> = said.extract()?;
        let limit = |(cell, row, unit): Said| Ok(Limit { cell, row, unit: Unit::new(unit)? });
        let limits = limits.map(|limits| limits.into_iter().map(limit).collect::<PyResult<_>>()).transpose()?;
        Ok(Self::said(limits, at))
    }

    fn said(limits: Option<Box<[Limit]>>, at: &Moment) -> Self {
        Self::Said { limits, epoch: at.epoch, second: at.second.number }
    }

    /// The limits; None if they are Python's.
    #[inline]
    fn limits(&self) -> Option<&[Limit]> {
        if let Self::Said { limits, .. } = self {
            limits.as_deref()
        } else {
            None
        }
    }

    /// See to it that they are not evicted before they are asked.
    fn keep(&self, py: Python<'_>, at: &Moment) {
        for limit in self.limits().into_iter().flatten() {
            limit.cell.borrow_mut(py).asked_ns = at.now_ns;
        }
    }

    #[inline]
    fn is_good(&self, py: Python<'_>, at: &Moment) -> bool {
        let Self::Said { limits, epoch, second } = self else { return false };
        let is_recent = at.second.number < second + AGAIN_S;
        *epoch == at.epoch
            && limits.as_ref().map_or(is_recent, |limits| {
                limits.iter().all(|limit| {
                    let row = limit.row.borrow(py);
                    !limit.cell.borrow(py).retired && !row.retired && (is_recent || !row.shared)
                })
            })
    }
}

/// Spend what all of some limits admit; false if one does not.
#[inline]
fn admit(py: Python<'_>, own: &[Limit], scoped: &[Limit], costs: &Costs, at: &Moment) -> PyResult<bool> {
    for limit in own.iter().chain(scoped) {
        let mut cell = limit.cell.borrow_mut(py);
        if !cell.bucket.admits(at.now_ns, costs.before[limit.unit as usize], costs.all[limit.unit as usize]) {
            return Ok(false);
        }
    }
    spend(py, own, scoped, costs, 1, at)?;
    Ok(true)
}

/// Spend what requests cost, or with a sign of -1 give it back.
#[inline]
fn spend(py: Python<'_>, own: &[Limit], scoped: &[Limit], costs: &Costs, sign: i64, at: &Moment) -> PyResult<()> {
    for limit in own.iter().chain(scoped) {
        let permits = sign * costs.all[limit.unit as usize];
        limit.cell.borrow_mut(py).bucket.spend(permits);
        limit.row.borrow_mut(py).take(at.second, limit.unit.dimension(), permits)?;
    }
    Ok(())
}

/// The rule of all names of a kind that have no rule of their own.
struct Rule {
    /// As Python knows it; None is unlimited.
    known_as: Option<Py<PyAny>>,
    /// Under which name Python keeps the limiter that names share for which there is no room.
    shared_as: String,
    full: Bucket,
    unit: Unit,
    /// How names begin and end for which it may be another.
    ends: Vec<(String, String)>,
    /// The last epoch in which it was in force; the greatest number while it is.
    until: AtomicU64,
}

impl Rule {
    fn read(said: &Bound<'_, PyAny>) -> PyResult<Option<Arc<Self>>> {
        /// What Python says of a kind; see there.
        #[derive(FromPyObject)]
        struct PlainDefault {
            rule: Option<Py<PyAny>>,
            bare_name: String,
            unit: usize,
            ends: Vec<(String, String)>,
        }
        #[derive(FromPyObject)]
        #[allow(clippy::struct_field_names)]
        struct Figures {
            rate_upermits_per_s: i64,
            capacity_upermits: i64,
            max_debt_upermits: i64,
        }
        let Some(PlainDefault { rule, bare_name, unit, ends }) = said.extract()? else { return Ok(None) };
        let mut full = Bucket::default();
        if let Some(rule) = &rule {
            let figures: Figures = rule.extract(said.py())?;
            full.rate_upermits_per_s = figures.rate_upermits_per_s;
            full.capacity_upermits = figures.capacity_upermits;
            full.stored_upermits = figures.capacity_upermits;
            full.max_debt_upermits = figures.max_debt_upermits;
        }
        let (unit, until) = (Unit::new(unit)?, AtomicU64::new(u64::MAX));
        Ok(Some(Arc::new(Self { known_as: rule, shared_as: bare_name, full, unit, ends, until })))
    }

    fn is_in_force(&self) -> bool {
        self.until.load(Ordering::Relaxed) == u64::MAX
    }
}

/// A limiter that was begun here.
struct Begun {
    bucket: Bucket,
    asked_ns: i64,
    rule: Arc<Rule>,
}

/// What requests of one name are for.
#[pyclass(module = "sluice_native")]
#[derive(Default)]
pub struct Target {
    kind: usize,
    name: Arc<str>,
    resources: Option<Py<PyTuple>>,
    asked: Asked,
    begun: Option<Begun>,
    /// Another may stand for the name by now: nothing is begun for this one.
    forgotten: bool,
    row: Option<Py<Row>>,
    /// In which second and epoch the row was found.
    row_found: (i64, u64),
}

#[derive(Default)]
struct Kind {
    name: String,
    targets: HashMap<Arc<str>, Py<Target>>,
    /// The rule of names without one of their own; None: Python knows more. And whether Python was asked.
    default: Option<Arc<Rule>>,
    is_known: bool,
    /// The row that names share, and the second in which there was no other.
    shared_row: Option<(Py<Row>, i64)>,
}

/// Limiters that were begun: how many, and how many there may be.
#[derive(Default)]
struct Places {
    begun: usize,
    most: usize,
    /// Their names in the order in which they were begun, and some that were taken over since.
    order: BTreeMap<u64, Py<Target>>,
    next: u64,
    /// Which to look at next to make room.
    look_at: u64,
    /// When room was looked for in vain.
    no_room_ns: Option<i64>,
}

#[pyclass(module = "sluice_native")]
pub struct Resources {
    resource_type: Py<PyAny>,
    limits_of: Py<PyAny>,
    default_of: Py<PyAny>,
    row_of: Py<PyAny>,
    most: usize,
    epoch: u64,
    kinds: Vec<Kind>,
    len: usize,
    /// Its names, as they are looked at to forget one.
    all: VecDeque<Py<Target>>,
    /// Names with a rule of their own, as (kind, name).
    own: Py<PyDict>,
    /// By dimension, the limiters that Python has, by name, and those that names share.
    live: [Py<PyDict>; 2],
    shared: [Py<PyDict>; 2],
    /// By dimension, of the limiters that were begun.
    places: [Places; 2],
    #[pyo3(get)]
    evicted_total: u64,
}

/// Limiters looked at to make room for one.
const MAX_LOOKS: usize = 16;

impl Resources {
    /// Find what requests of a name are for; a new one is made.
    pub fn target(&mut self, py: Python<'_>, kind: &str, name: &str) -> PyResult<Py<Target>> {
        let known = self.kinds.iter().position(|known| known.name == kind);
        let kind_number = known.unwrap_or(self.kinds.len());
        if known.is_none() {
            self.kinds.push(Kind { name: kind.to_owned(), ..Kind::default() });
        }
        if let Some(target) = self.kinds[kind_number].targets.get(name) {
            return Ok(target.clone_ref(py));
        }
        if self.len >= self.most {
            self.forget_one(py);
        }
        let name: Arc<str> = name.into();
        let target = Py::new(py, Target { kind: kind_number, name: name.clone(), ..Target::default() })?;
        self.kinds[kind_number].targets.insert(name, target.clone_ref(py));
        self.all.push_back(target.clone_ref(py));
        self.len += 1;
        Ok(target)
    }

    /// Forget a name, but none whose limiter was begun here.
    fn forget_one(&mut self, py: Python<'_>) {
        for _ in 0..MAX_LOOKS {
            let Some(target) = self.all.pop_front() else { return };
            let mut looked_at = target.borrow_mut(py);
            if looked_at.begun.is_some() {
                drop(looked_at);
                self.all.push_back(target);
                continue;
            }
            // Scanners may still know it.
            looked_at.forgotten = true;
            self.kinds[looked_at.kind].targets.remove(&looked_at.name);
            self.len -= 1;
            return;
        }
    }

    /// Another number whenever the rules change.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn moment<'a>(&self, now_ns: i64, second: &'a Second) -> Moment<'a> {
        Moment { now_ns, second, epoch: self.epoch }
    }

    fn set_default(&mut self, kind: usize, default: Option<Arc<Rule>>) {
        let kind = &mut self.kinds[kind];
        let same = match (&kind.default, &default) {
            (Some(old), Some(new)) if old.ends == new.ends => match (&old.known_as, &new.known_as) {
                (Some(old), Some(new)) => old.is(new),
                (old, new) => old.is_none() && new.is_none(),
            },
            _ => false,
        };
        kind.is_known = true;
        if !same {
            if let Some(old) = &kind.default {
                old.until.store(self.epoch - 1, Ordering::Relaxed);
            }
            kind.default = default;
        }
    }

    fn places(&mut self, dimension: usize) -> PyResult<&mut Places> {
        self.places.get_mut(dimension).ok_or_else(|| PyIndexError::new_err("no such dimension"))
    }

    /// Find room for one more limiter, giving up one that nobody could tell from a new one.
    /// What became of one whose rule is no longer in force only Python can say: those that are met are `stale`.
    fn find_room(&mut self, py: Python<'_>, dimension: usize, now_ns: i64, stale: &mut Vec<(String, String)>) -> bool {
        let places = &mut self.places[dimension];
        let looks = if places.no_room_ns == Some(now_ns) { 1 } else { MAX_LOOKS };
        for _ in 0..looks {
            if places.begun < places.most {
                return true;
            }
            let ahead = places.order.range(places.look_at..).next().or_else(|| places.order.iter().next());
            let Some((&number, target)) = ahead else { return false };
            places.look_at = number + 1;
            let mut looked_at = target.borrow_mut(py);
            let Target { kind, name, begun: Some(begun), .. } = &mut *looked_at else {
                drop(looked_at);
                places.order.remove(&number);
                continue;
            };
            if !begun.rule.is_in_force() {
                stale.push((self.kinds[*kind].name.clone(), name.to_string()));
            } else if begun.asked_ns != now_ns && begun.bucket.is_full(now_ns) {
                looked_at.begun = None;
                drop(looked_at);
                places.order.remove(&number);
                places.begun -= 1;
                self.evicted_total += 1;
            }
        }
        let has_room = places.begun < places.most;
        places.no_room_ns = (!has_room).then_some(now_ns);
        has_room
    }
}

impl Target {
    /// Its kind and name.
    fn key<'py>(this: &Py<Self>, py: Python<'py>, all: &Py<Resources>) -> PyResult<Bound<'py, PyTuple>> {
        let (kind, name) = {
            let target = this.borrow(py);
            (all.borrow(py).kinds[target.kind].name.clone(), target.name.clone())
        };
        PyTuple::new(py, [&*kind, &*name])
    }

    pub fn resources(this: &Py<Self>, py: Python<'_>, all: &Py<Resources>) -> PyResult<Py<PyTuple>> {
        if let Some(resources) = &this.borrow(py).resources {
            return Ok(resources.clone_ref(py));
        }
        let resource_type = all.borrow(py).resource_type.clone_ref(py);
        let resource = resource_type.call1(py, Self::key(this, py, all)?)?;
        let resources = PyTuple::new(py, [resource])?.unbind();
        this.borrow_mut(py).resources = Some(resources.clone_ref(py));
        Ok(resources)
    }

    /// What is for two things at once. Python says what limits both; their rows are their own.
    pub fn joint(py: Python<'_>, all: &Py<Resources>, first: &Py<Self>, second: &Py<Self>) -> PyResult<Py<Self>> {
        let resource =
            |of: &Py<Self>| -> PyResult<Py<PyAny>> { Ok(Self::resources(of, py, all)?.bind(py).get_item(0)?.unbind()) };
        let resources = Some(PyTuple::new(py, [resource(first)?, resource(second)?])?.unbind());
        let (kind, name) = {
            let first = first.borrow(py);
            (first.kind, first.name.clone())
        };
        Py::new(py, Self { kind, name, resources, forgotten: true, ..Self::default() })
    }

    /// Whether the name has a rule of its own.
    fn is_own(this: &Py<Self>, py: Python<'_>, all: &Py<Resources>) -> PyResult<bool> {
        let own = all.borrow(py).own.clone_ref(py);
        own.bind(py).contains(Self::key(this, py, all)?)
    }

    /// Begin a limiter for a name that Python need not know; false if it has to.
    fn begin(this: &Py<Self>, py: Python<'_>, all: &Py<Resources>, at: &Moment) -> PyResult<bool> {
        let kind = this.borrow(py).kind;
        if !all.borrow(py).kinds[kind].is_known {
            let (default_of, name) = {
                let all = all.borrow(py);
                (all.default_of.clone_ref(py), all.kinds[kind].name.clone())
            };
            let default = Rule::read(default_of.call1(py, (name,))?.bind(py))?;
            all.borrow_mut(py).set_default(kind, default);
        }
        let Some(default) = all.borrow(py).kinds[kind].default.clone() else { return Ok(false) };
        let dimension = default.unit.dimension();
        let name = this.borrow(py).name.clone();
        // Python may have limiters of names that were not asked for here so far, or are forgotten.
        let live = all.borrow(py).live[dimension].clone_ref(py);
        if default.ends.iter().any(|(first, last)| name.starts_with(first) && name.ends_with(last))
            || Self::is_own(this, py, all)?
            || live.bind(py).contains(Self::key(this, py, all)?)?
        {
            return Ok(false);
        }
        if default.known_as.is_none() {
            this.borrow_mut(py).asked = Asked::said(Some(Box::default()), at);
            return Ok(true);
        }
        let mut all = all.borrow_mut(py);
        if !all.find_room(py, dimension, at.now_ns, &mut Vec::new()) {
            return Ok(false);
        }
        let mut bucket = Bucket { at_ns: at.now_ns, ..default.full };
        if let Some(shared) = all.shared[dimension].bind(py).get_item(&default.shared_as)? {
            // It may have served this name.
            bucket.inherit(&mut shared.cast::<Cell>()?.borrow_mut().bucket, at.now_ns);
        }
        this.borrow_mut(py).begun = Some(Begun { bucket, asked_ns: at.now_ns, rule: default });
        let places = &mut all.places[dimension];
        places.begun += 1;
        places.order.insert(places.next, this.clone_ref(py));
        places.next += 1;
        Ok(true)
    }

    /// See to it that what is known of its limits is what is in force.
    #[inline]
    fn ask(this: &Py<Self>, py: Python<'_>, all: &Py<Resources>, at: &Moment) -> PyResult<()> {
        let is_new = {
            let target = this.borrow(py);
            if target.is_begun(at) || target.asked.is_good(py, at) {
                return Ok(());
            }
            target.begun.is_none() && !target.forgotten && matches!(target.asked, Asked::Unknown)
        };
        if is_new && Self::begin(this, py, all, at)? {
            return Ok(());
        }
        let resources = Self::resources(this, py, all)?;
        let limits_of = all.borrow(py).limits_of.clone_ref(py);
        let asked = Asked::read(limits_of.call1(py, (resources, at.now_ns))?.bind(py), at)?;
        this.borrow_mut(py).asked = asked;
        Ok(())
    }

    /// As `Asked::keep`; false if they are Python's.
    fn keep(&mut self, py: Python<'_>, at: &Moment) -> bool {
        if self.is_begun(at) {
            self.begun.iter_mut().for_each(|begun| begun.asked_ns = at.now_ns);
            return true;
        }
        self.asked.keep(py, at);
        self.asked.limits().is_some()
    }

    /// Whether its limits, and those of who sends requests for it, can be decided here.
    pub fn is_plain(
        this: &Py<Self>,
        py: Python<'_>,
        all: &Py<Resources>,
        callers: Option<(&Py<Callers>, &str)>,
        at: &Moment,
    ) -> PyResult<bool> {
        Self::ask(this, py, all, at)?;
        if !this.borrow_mut(py).keep(py, at) {
            return Ok(false);
        }
        let Some((callers, group)) = callers else { return Ok(true) };
        Callers::ask(callers, py, group, at)?;
        Ok(callers.borrow(py).by_group.get(group).is_some_and(|asked| asked.limits().is_some()))
    }

    /// Whether its limiter was begun here, under the rule in force.
    #[inline]
    fn is_begun(&self, at: &Moment) -> bool {
        self.begun.as_ref().is_some_and(|begun| begun.rule.until.load(Ordering::Relaxed) >= at.epoch)
    }

    /// Admit all of some requests, if its limits and those of who sends them are plain and do.
    #[inline]
    pub fn admit(
        this: &Py<Self>,
        py: Python<'_>,
        all: &Py<Resources>,
        callers: Option<(&Py<Callers>, &str)>,
        costs: &Costs,
        at: &Moment,
    ) -> PyResult<bool> {
        Self::ask(this, py, all, at)?;
        if !this.borrow_mut(py).keep(py, at) {
            return Ok(false);
        }
        let callers = match callers {
            Some((callers, group)) => {
                Callers::ask(callers, py, group, at)?;
                Some((callers.borrow(py), group))
            }
            None => None,
        };
        let scoped = match &callers {
            Some((callers, group)) => callers.by_group.get(*group).and_then(Asked::limits),
            None => Some([].as_slice()),
        };
        let Some(scoped) = scoped else { return Ok(false) };
        {
            let target = this.borrow(py);
            if !target.is_begun(at) {
                return target.asked.limits().map_or(Ok(false), |own| admit(py, own, scoped, costs, at));
            }
        }
        let row = Self::row(this, py, all, at)?;
        let mut target = this.borrow_mut(py);
        let Some(begun) = &mut target.begun else { return Ok(false) };
        let unit = begun.rule.unit;
        if !begun.bucket.admits(at.now_ns, costs.before[unit as usize], costs.all[unit as usize])
            || !admit(py, &[], scoped, costs, at)?
        {
            return Ok(false);
        }
        let permits = costs.all[unit as usize];
        begun.bucket.spend(permits);
        row.borrow_mut(py).take(at.second, unit.dimension(), permits)?;
        Ok(true)
    }

    /// Give back what was admitted at the same moment.
    pub fn refund(
        this: &Py<Self>,
        py: Python<'_>,
        all: &Py<Resources>,
        callers: Option<(&Py<Callers>, &str)>,
        costs: &Costs,
        at: &Moment,
    ) -> PyResult<()> {
        let callers = callers.map(|(callers, group)| (callers.borrow(py), group));
        let scoped = callers.as_ref().and_then(|(callers, group)| callers.by_group.get(*group)?.limits());
        let scoped = scoped.unwrap_or_default();
        {
            let target = this.borrow(py);
            if !target.is_begun(at) {
                return spend(py, target.asked.limits().unwrap_or_default(), scoped, costs, -1, at);
            }
        }
        spend(py, &[], scoped, costs, -1, at)?;
        let row = Self::row(this, py, all, at)?;
        let mut target = this.borrow_mut(py);
        let Some(begun) = &mut target.begun else { return Ok(()) };
        let unit = begun.rule.unit;
        let permits = -costs.all[unit as usize];
        begun.bucket.spend(permits);
        row.borrow_mut(py).take(at.second, unit.dimension(), permits)?;
        Ok(())
    }

    /// The row that its requests are counted in.
    #[inline]
    pub fn row(this: &Py<Self>, py: Python<'_>, all: &Py<Resources>, at: &Moment) -> PyResult<Py<Row>> {
        if let Some(row) = &this.borrow(py).row {
            // A name that shares one may have got its own, and one that has its own a label.
            let (second, epoch) = this.borrow(py).row_found;
            if at.second.number < second + AGAIN_S && at.epoch == epoch && !row.borrow(py).retired {
                return Ok(row.clone_ref(py));
            }
        }
        let row = match Self::shared_row(this, py, all, at)? {
            Some(row) => row,
            None => Self::find_row(this, py, all, at)?,
        };
        let mut target = this.borrow_mut(py);
        target.row_found = (at.second.number, at.epoch);
        Ok(target.row.insert(row).clone_ref(py))
    }

    /// The row that the name shares, if it did before, and another one found no room in this second.
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

    /// The row that Python has for the name.
    fn find_row(this: &Py<Self>, py: Python<'_>, all: &Py<Resources>, at: &Moment) -> PyResult<Py<Row>> {
        let resource = Self::resources(this, py, all)?.bind(py).get_item(0)?;
        let row_of = all.borrow(py).row_of.clone_ref(py);
        let row: Py<Row> = row_of.call1(py, (&resource, at.now_ns))?.extract(py)?;
        // Who is called as the shared row is has none of its own, however much room there is.
        if row.borrow(py).shared && !resource.eq(&row.borrow(py).resource)? {
            let kind = this.borrow(py).kind;
            all.borrow_mut(py).kinds[kind].shared_row = Some((row.clone_ref(py), at.second.number));
        }
        Ok(row)
    }
}

/// The rule of a limiter that was begun here, the last epoch in which that was in force, and the state.
type Taken = (Py<PyAny>, u64, Py<Cell>);

#[pymethods]
impl Resources {
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        resource_type: Py<PyAny>,
        limits_of: Py<PyAny>,
        default_of: Py<PyAny>,
        row_of: Py<PyAny>,
        most: usize,
        own: Py<PyDict>,
        live: [Py<PyDict>; 2],
        shared: [Py<PyDict>; 2],
    ) -> Self {
        Self {
            resource_type,
            limits_of,
            default_of,
            row_of,
            most,
            epoch: 0,
            kinds: Vec::new(),
            len: 0,
            all: VecDeque::new(),
            own,
            live,
            shared,
            places: Default::default(),
            evicted_total: 0,
        }
    }

    /// Kinds of which something was asked for.
    #[getter]
    fn kinds(&self) -> Vec<String> {
        self.kinds.iter().map(|kind| kind.name.clone()).collect()
    }

    /// Limiters that were begun here.
    #[getter]
    fn begun(&self) -> (usize, usize) {
        (self.places[0].begun, self.places[1].begun)
    }

    fn set_most_begun(&mut self, dimension: usize, most: usize) -> PyResult<()> {
        self.places(dimension)?.most = most;
        Ok(())
    }

    #[allow(clippy::needless_pass_by_value)]
    fn swap(&mut self, own: Py<PyDict>, defaults: Bound<'_, PyDict>) -> PyResult<()> {
        self.epoch += 1;
        self.own = own;
        for (kind, said) in defaults {
            let (name, default) = (kind.extract::<String>()?, Rule::read(&said)?);
            if let Some(kind) = self.kinds.iter().position(|kind| kind.name == name) {
                self.set_default(kind, default);
            }
        }
        Ok(())
    }

    fn make_room(&mut self, py: Python<'_>, dimension: usize, now_ns: i64) -> PyResult<Vec<(String, String)>> {
        self.places(dimension)?;
        let mut stale = Vec::new();
        self.find_room(py, dimension, now_ns, &mut stale);
        Ok(stale)
    }

    fn names_begun(&self, py: Python<'_>, dimension: usize, before: u64, most: usize) -> Vec<(u64, String, String)> {
        let places = self.places.get(dimension).into_iter();
        let names = places.flat_map(|places| places.order.range(..before).rev()).take(most);
        let name = |(number, target): (&u64, &Py<Target>)| {
            let target = target.borrow(py);
            (*number, self.kinds[target.kind].name.clone(), target.name.to_string())
        };
        names.map(name).collect()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for of_python in [&self.resource_type, &self.limits_of, &self.default_of, &self.row_of] {
            visit.call(of_python)?;
        }
        for of_python in [&self.own].into_iter().chain(&self.live).chain(&self.shared) {
            visit.call(of_python)?;
        }
        Ok(())
    }

    fn take(&mut self, py: Python<'_>, kind: &str, name: &str, dimension: usize) -> PyResult<Option<Taken>> {
        let kind = self.kinds.iter().find(|known| known.name == kind);
        let Some(target) = kind.and_then(|kind| kind.targets.get(name)) else { return Ok(None) };
        let mut target = target.borrow_mut(py);
        let of_dimension = |begun: &mut Begun| begun.rule.unit.dimension() == dimension;
        let Some(Begun { bucket, asked_ns, rule }) = target.begun.take_if(of_dimension) else { return Ok(None) };
        target.asked = Asked::TakenOver;
        self.places[dimension].begun -= 1;
        let Some(known_as) = &rule.known_as else { return Ok(None) };
        let epoch = rule.until.load(Ordering::Relaxed).min(self.epoch);
        Ok(Some((known_as.clone_ref(py), epoch, Py::new(py, Cell { bucket, asked_ns, retired: false })?)))
    }

    fn __len__(&self) -> usize {
        self.len
    }
}

/// The limits of one client at one listener, by producer group.
#[pyclass(module = "sluice_native")]
pub struct Callers {
    limits_of: Py<PyAny>,
    by_group: HashMap<String, Asked>,
}

/// More groups are forgotten.
const MAX_GROUPS: usize = 64;

impl Callers {
    /// See to it that the limits of a producer group are those in force.
    fn ask(this: &Py<Self>, py: Python<'_>, group: &str, at: &Moment) -> PyResult<()> {
        let limits_of = {
            let callers = this.borrow(py);
            if let Some(asked) = callers.by_group.get(group).filter(|asked| asked.is_good(py, at)) {
                asked.keep(py, at);
                return Ok(());
            }
            callers.limits_of.clone_ref(py)
        };
        let asked = Asked::read(limits_of.call1(py, (group, at.now_ns))?.bind(py), at)?;
        let mut callers = this.borrow_mut(py);
        if callers.by_group.len() >= MAX_GROUPS {
            callers.by_group.clear();
        }
        callers.by_group.insert(group.to_owned(), asked);
        Ok(())
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
