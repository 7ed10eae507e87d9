use pyo3::prelude::*;
use sluice_native_core::refused_ids;

#[pyclass(module = "sluice_native")]
pub struct RefusedIds(pub refused_ids::RefusedIds);

#[pymethods]
impl RefusedIds {
    #[new]
    #[pyo3(signature = (most = 65_536))]
    fn new(most: usize) -> Self {
        Self(refused_ids::RefusedIds::new(most))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn see(&mut self, key: i64, message_id: &[u8], now_ns: i64, refused: bool) -> (bool, bool) {
        self.0.see(key, message_id, now_ns, refused)
    }
}
