//! What fuzzing tries with the core, as functions of bytes that panic if something is wrong.
//!
//! `fuzz_targets` has libFuzzer call them, with feature `libfuzzer`. Without it, tests try what was found before.
#![forbid(unsafe_code)]

pub mod amqp091;
pub mod amqp10;
pub mod rocketmq;
