//! Reads unambiguous frames: the parts of the extension that need no Python.
//!
//! A `RocketMQ` frame is *plain* if its header is one send or send-back that every JSON library, or every reader of the
//! binary layout, reads in the same way. For AMQP 0.9.1 see `amqp`, for 1.0 `amqp10`. A scan ends at the first frame
//! that is not plain, which Python then reads. Nothing here is lenient.
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
