//! AMQP 1.0: the transfers of plain links, dispositions, and flows.
//!
//! A link is *plain* if the session declares that its transfers are only forwarded and counted.

mod flows;
mod frame;
mod links;
mod renumbering;
mod settling;
#[cfg(test)]
mod tests;

pub use flows::{reflow, Flow};
pub use frame::write_uint;
pub use links::{Begun, Disposed, Ids, Links, Moved, Taken, Terms, Unknown, HALF};
pub use renumbering::{renumber, Difference, Numbers};
pub use settling::Settling;
