//! The Python module `sluice_scan`: see `sluice_scan.pyi` for what it offers and `core` for what it does.

mod buffer;
mod indexes;
mod opaques;
mod scanner;
mod segment;
mod table;

use pyo3::prelude::*;

#[pymodule]
mod sluice_scan {
    /// Told apart by who imports it; another number whenever what is offered, or what it means, changes.
    #[pymodule_export]
    const INTERFACE: u32 = 3;

    #[pymodule_export]
    use crate::opaques::Opaques;
    #[pymodule_export]
    use crate::scanner::Scanner;
    #[pymodule_export]
    use crate::segment::Segment;
    #[pymodule_export]
    use crate::table::Table;
}
