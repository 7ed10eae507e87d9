//! Indexes of frames, as Python gives them.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyRange, PyRangeMethods};

/// Ascending indexes: a range is not spelled out.
#[derive(Clone, Copy)]
pub enum Indexes<'a> {
    Range(usize, usize),
    List(&'a [usize]),
}

impl Indexes<'_> {
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let (range, list) = match self {
            Indexes::Range(start, stop) => (*start..*stop, [].as_slice()),
            Indexes::List(list) => (0..0, *list),
        };
        range.chain(list.iter().copied())
    }
}

/// Call `use_them` with indexes that all are below `len`.
///
/// # Errors
/// `IndexError` if one is not, `TypeError` if they are no sequence of integers.
pub fn with_indexes<R>(
    given: &Bound<'_, PyAny>,
    len: usize,
    use_them: impl FnOnce(Indexes<'_>) -> PyResult<R>,
) -> PyResult<R> {
    if let Ok(range) = given.cast::<PyRange>() {
        let (start, stop) = (range.start()?, range.stop()?);
        if range.step()? == 1 {
            let stop = stop.max(start);
            return match (usize::try_from(start), usize::try_from(stop)) {
                (Ok(start), Ok(stop)) if stop <= len || start == stop => use_them(Indexes::Range(start, stop)),
                _ => Err(PyIndexError::new_err("no such frame")),
            };
        }
    }
    let list: Vec<usize> = given.extract()?;
    if list.iter().any(|index| *index >= len) {
        return Err(PyIndexError::new_err("no such frame"));
    }
    use_them(Indexes::List(&list))
}
