//! Load generator and sink of the Sluice benchmark.
//!
//! `load sink` is the broker. `load flood` measures throughput, `load rtt` round trips, `load accept` new connections
//! and `load quiet` one client beside a flood, through the measured peer. Each prints one JSON object. `run.py` starts
//! and pins them. `load soak` is for `soak.py`. Linux only.

mod accept;
mod amqp;
mod amqp10;
mod args;
mod counters;
mod cpu;
mod flood;
mod frames;
mod histogram;
mod poller;
mod quiet;
mod rtt;
mod scanner;
mod sink;
mod soak;
mod transfers;

use std::process::ExitCode;

use args::Args;

const USAGE: &str = "\
usage: load sink  --listen ADDR --control ADDR [--protocol PROTOCOL] [--swallow] [--credit N] [--session-window N]
                  [--seconds N]
       load flood --target ADDR --control ADDR [--connections N] [--window N] [FRAMES] [--warmup S] [--seconds S]
                  [--pid PID [--memory]] [--known-topics] [--protocol PROTOCOL] [--settled]
       load rtt   --target ADDR (--rate PER_SECOND [--connections N] | --one-at-a-time) [FRAMES] [--warmup S] [--seconds S]
       load accept --target ADDR [--at-once N] [FRAMES] [--warmup S] [--seconds S] [--pid PID]
       load quiet --target ADDR --control ADDR [--connections N] [FRAMES] [--warmup S] [--seconds S] [--pid PID]
FRAMES: [--size BYTES] [--header json|binary] [--topics N]
       load soak  --target ADDR --frames N --connections N --names N [--each N] [--window N] [--lasting N] [--at-once N]
                  [--size BYTES] [--seconds S]
PROTOCOL: rocketmq (if not said), amqp091 or amqp10. --size is of a body in AMQP, and --topics are queues: those of all
connections, of which each sends to one; in amqp10 each connection has a link to every one. --window asks for confirms in
amqp091";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let mode = words.next().unwrap_or_default();
    let run = match mode.as_str() {
        "sink" => sink::run,
        "flood" => flood::run,
        "rtt" => rtt::run,
        "accept" => accept::run,
        "quiet" => quiet::run,
        "soak" => soak::run,
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match Args::parse(words).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("load {mode}: {reason}");
            ExitCode::FAILURE
        }
    }
}
