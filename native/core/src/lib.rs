//! Reads frames whose meaning is beyond doubt, and nothing else: the parts of the extension that need no Python.
//!
//! A frame of `RocketMQ` is *plain* if its header is one send or send-back that every JSON library, or every reader of the
//! binary layout, reads in the same way; of AMQP 0.9.1 see `amqp`, of 1.0 `amqp10`. Whatever is not plain ends a scan and
//! is read by Python; so nothing here is ever lenient: when in doubt, not plain.
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
