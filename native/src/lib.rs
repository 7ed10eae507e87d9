//! The Python module `sluice_native`: see `sluice_native.pyi` for what it offers and `core` for what it does.

mod cell;
mod live;
mod refused_ids;
mod requests;
mod resources;
mod row;
mod runs;
mod turn;

use pyo3::prelude::*;

#[pymodule]
mod sluice_native {
    /// Told apart by who imports it; another number whenever what is offered, or what it means, changes.
    #[pymodule_export]
    const INTERFACE: u32 = 19;

    #[pymodule_export]
    use crate::cell::Cell;
    #[pymodule_export]
    use crate::live::Live;
    #[pymodule_export]
    use crate::refused_ids::RefusedIds;
    #[pymodule_export]
    use crate::requests::Requests;
    #[pymodule_export]
    use crate::resources::{Callers, Resources};
    #[pymodule_export]
    use crate::row::{Entry, Row, Second};
    #[pymodule_export]
    use crate::turn::amqp091::{lend_amqp091, Channels};
    #[pymodule_export]
    use crate::turn::amqp10::lend_amqp10;
    #[pymodule_export]
    use crate::turn::rocketmq::lend_rocketmq;
    #[pymodule_export]
    use crate::turn::{Lent, Turn};
}
