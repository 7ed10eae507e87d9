//! AMQP 0.9.1: publishes of plain channels, and the broker's confirms.
//!
//! A publish is *plain* if its channel was added, its names are unambiguous, and its header requests no copies.

mod channel;
mod confirms;
mod frame;
mod publishes;
mod relay;
#[cfg(test)]
mod tests;

pub use channel::Channels;
pub use confirms::Numbers;
pub use publishes::{Bounds, NewKey, Piece, Publish, Run, Taken};
pub use relay::{awaits_more, write_refusal, Cut, Deliveries, Read};
