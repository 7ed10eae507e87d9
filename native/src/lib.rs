//! The Python module `sluice_native`. See `sluice_native.pyi`.

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
    /// Checked on import. Increase it when the interface or its behavior changes.
    #[pymodule_export]
    const INTERFACE: u32 = 22;

    #[pymodule_export]
    use crate::{
        cell::Cell,
        live::Live,
        refused_ids::RefusedIds,
        requests::Requests,
        resources::{Callers, Resources, Shares},
        row::{Entry, Row, Second},
        turn::amqp091::{lend_amqp091, Channels},
        turn::amqp10::lend_amqp10,
        turn::rocketmq::lend_rocketmq,
        turn::{Lent, Turn},
    };
}
