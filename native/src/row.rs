//! `Row`, `Entry` and `Second`, as in `limiter.counting.row`.

use pyo3::prelude::*;
use pyo3::types::PyList;

const OUTCOMES: usize = 7;
const REFUSED: usize = 1;
const HELD: usize = 2;
const KEPT: i64 = 60;
const SLOTS: usize = 61;
const MAX_SENDERS: usize = 256;
const NOT_ASKED: i64 = -1;

type Amount = (i64, i64, i64);
type Sums = [Amount; OUTCOMES];
type Ring = Box<[i64; SLOTS]>;

#[pyclass(module = "sluice_native")]
pub struct Second {
    #[pyo3(get, set)]
    pub number: i64,
    #[pyo3(get)]
    began: i64,
    #[pyo3(get)]
    entries: Py<PyList>,
}

#[pymethods]
impl Second {
    #[new]
    fn new(py: Python<'_>, number: i64) -> Self {
        Self { number, began: number, entries: PyList::empty(py).unbind() }
    }
}

#[pyclass(module = "sluice_native")]
pub struct Entry {
    #[pyo3(get)]
    resource: Py<PyAny>,
    sums: Sums,
    #[pyo3(get)]
    told: i64,
    asked: Vec<(Py<PyAny>, i64, i64)>,
    others: [i64; 2],
    #[pyo3(get)]
    more: bool,
}

impl Entry {
    #[inline]
    fn ask(&mut self, py: Python<'_>, sender: &Py<PyAny>, requests: i64, refused: i64) {
        if let Some((_, asked, of_them)) = self.asked.iter_mut().find(|(known, _, _)| known.is(sender)) {
            *asked += requests;
            *of_them += refused;
        } else if self.asked.len() < MAX_SENDERS {
            self.asked.push((sender.clone_ref(py), requests, refused));
        } else {
            self.more = true;
            self.others[0] += requests;
            self.others[1] += refused;
        }
    }
}

#[pymethods]
impl Entry {
    fn amounts(&self) -> Sums {
        self.sums
    }

    fn asked(&self, py: Python<'_>) -> Vec<(Option<Py<PyAny>>, i64, i64)> {
        let known = self.asked.iter().map(|(sender, asked, refused)| (Some(sender.clone_ref(py)), *asked, *refused));
        known.chain(self.more.then_some((None, self.others[0], self.others[1]))).collect()
    }
}

fn add(sum: &mut Amount, more: Amount) {
    *sum = (sum.0 + more.0, sum.1 + more.1, sum.2 + more.2);
}

#[pyclass(module = "sluice_native")]
pub struct Row {
    #[pyo3(get)]
    pub resource: Py<PyAny>,
    #[pyo3(get, set)]
    seen_ns: i64,
    #[pyo3(get, set)]
    pub retired: bool,
    #[pyo3(get)]
    pub shared: bool,
    #[pyo3(get, set)]
    pub repeats_until_ns: i64,
    began: Option<i64>,
    entry: Option<Py<Entry>>,
    total: Sums,
    #[pyo3(get)]
    spent_in: i64,
    rings: [Option<Ring>; 2],
    given_back: [i64; 2],
}

impl Row {
    #[inline]
    fn entry(&mut self, py: Python<'_>, second: &Second) -> PyResult<Py<Entry>> {
        match &self.entry {
            Some(entry) if self.began == Some(second.began) => Ok(entry.clone_ref(py)),
            _ => self.begin(py, second),
        }
    }

    #[cold]
    fn begin(&mut self, py: Python<'_>, second: &Second) -> PyResult<Py<Entry>> {
        let entry = Entry {
            resource: self.resource.clone_ref(py),
            sums: Sums::default(),
            told: 0,
            asked: Vec::new(),
            others: [0; 2],
            more: false,
        };
        let entry = Py::new(py, entry)?;
        second.entries.bind(py).append(&entry)?;
        self.began = Some(second.began);
        Ok(self.entry.insert(entry).clone_ref(py))
    }

    #[inline]
    pub fn count(
        &mut self,
        py: Python<'_>,
        second: &Second,
        now_ns: i64,
        sender: &Py<PyAny>,
        outcome: usize,
        amount: Amount,
        told: i64,
    ) -> PyResult<()> {
        add(&mut self.total[outcome], amount);
        self.seen_ns = now_ns;
        let entry = self.entry(py, second)?;
        let mut entry = entry.borrow_mut(py);
        add(&mut entry.sums[outcome], amount);
        entry.told += told;
        let requests = amount.0;
        let refused = if outcome == REFUSED { requests } else { 0 };
        entry.ask(py, sender, if outcome == HELD { 0 } else { requests }, refused);
        Ok(())
    }

    #[inline]
    pub fn take(&mut self, second: &Second, dimension: usize, permits: i64) {
        if second.number != self.spent_in {
            self.turn(second.number);
        }
        let spent =
            &mut self.rings[dimension].get_or_insert_with(|| Box::new([NOT_ASKED; SLOTS]))[place(second.number)];
        let permits = permits + (*spent).max(0) - self.given_back[dimension];
        *spent = permits.max(0);
        self.given_back[dimension] = (-permits).max(0);
    }

    #[cold]
    fn turn(&mut self, number: i64) {
        let first = (self.spent_in + 1).max(number - KEPT);
        for ring in self.rings.iter_mut().flatten() {
            (first..=number).for_each(|silent| ring[place(silent)] = NOT_ASKED);
        }
        self.spent_in = number;
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]
fn place(number: i64) -> usize {
    number.rem_euclid(SLOTS as i64) as usize
}

#[pymethods]
impl Row {
    #[new]
    #[pyo3(signature = (resource, *, shared = false))]
    fn new(resource: Py<PyAny>, shared: bool) -> Self {
        Self {
            resource,
            seen_ns: 0,
            retired: false,
            shared,
            repeats_until_ns: 0,
            began: None,
            entry: None,
            total: Sums::default(),
            spent_in: -1,
            rings: [None, None],
            given_back: [0; 2],
        }
    }

    #[pyo3(signature = (second, now_ns, sender, outcome, requests, messages, size_bytes, told = 0))]
    fn add(
        &mut self,
        py: Python<'_>,
        second: PyRef<'_, Second>,
        now_ns: i64,
        sender: Py<PyAny>,
        outcome: usize,
        requests: i64,
        messages: i64,
        size_bytes: i64,
        told: i64,
    ) -> PyResult<()> {
        self.count(py, &second, now_ns, &sender, outcome, (requests, messages, size_bytes), told)
    }

    fn spend(&mut self, second: PyRef<'_, Second>, dimension: usize, permits: i64) {
        self.take(&second, dimension, permits);
    }

    fn totals(&self) -> Sums {
        self.total
    }

    fn fold(&mut self, amounts: Sums) {
        self.total.iter_mut().zip(amounts).for_each(|(sum, more)| add(sum, more));
    }

    fn used(&self, number: i64, dimension: usize) -> Option<Vec<i64>> {
        let number = number.max(self.spent_in);
        let ring = self.rings[dimension].as_ref().filter(|_| number - self.spent_in <= KEPT)?;
        let oldest = self.spent_in - KEPT;
        let of = |second: i64| if second < oldest || second > self.spent_in { NOT_ASKED } else { ring[place(second)] };
        let used: Vec<i64> = (number - KEPT..number).map(of).collect();
        used.iter().any(|spent| *spent != NOT_ASKED).then_some(used)
    }
}
