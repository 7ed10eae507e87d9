//! Fuzz targets of the core, as functions of bytes that panic on a finding.
//!
//! With the feature `libfuzzer`, `fuzz_targets` calls them. Otherwise, tests replay earlier findings.
#![forbid(unsafe_code)]

pub mod amqp091;
pub mod amqp10;
pub mod rocketmq;
