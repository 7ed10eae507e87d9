//! The parts of the extension that do not need Python.
//!
//! A `RocketMQ` frame is *plain* if its header is one send or send-back that every parser of JSON or of the binary
//! layout understands in the same way. A scan ends at the first frame that is not plain.
#![forbid(unsafe_code)]

pub mod amqp;
pub mod amqp10;
pub mod answers;
pub mod binary;
pub mod bucket;
pub mod json;
pub mod keys;
pub mod message_id;
pub mod opaques;
pub mod out;
pub mod plain;
pub mod prefix;
pub mod refused_ids;
pub mod scan;
pub mod sends;
pub mod templates;
#[cfg(test)]
mod tests;
