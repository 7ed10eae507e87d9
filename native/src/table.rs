//! `Table`: what all scanners share.

use std::collections::BTreeMap;
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sluice_native_core::scan::Known;
use sluice_native_core::table;

type Entry = (String, String, Option<String>, Option<String>, Option<String>);

#[pyclass(module = "sluice_native", frozen)]
pub struct Table {
    pub limitable: table::Table,
    pub known: Mutex<Known>,
}

#[pymethods]
impl Table {
    #[new]
    fn new(
        limitable: BTreeMap<i32, Entry>,
        max_name_bytes: usize,
        retry_prefix: String,
        retry_kind: String,
        max_header_bytes: usize,
        plain_sys_flags: Vec<String>,
        internal_topics: Vec<String>,
        internal_prefix: String,
        read_by_python: Vec<i32>,
        long_polls: Vec<i32>,
    ) -> PyResult<Self> {
        let mut table = table::Table::new(max_header_bytes, max_name_bytes, retry_prefix, retry_kind);
        table.plain_sys_flags = plain_sys_flags;
        table.internal_topics = internal_topics;
        table.internal_prefix = internal_prefix;
        table.read_by_python = read_by_python;
        table.long_polls = long_polls;
        for (code, (kind, name, group, batch, sys_flag)) in &limitable {
            table
                .add(*code, kind, name, group.as_deref(), batch.as_deref(), sys_flag.as_deref())
                .ok_or_else(|| PyValueError::new_err(format!("more than {} field names", table::MAX_FIELDS)))?;
        }
        Ok(Self { limitable: table, known: Mutex::default() })
    }
}
