//! Load generator and sink of the Sluice benchmark.
//!
//! `load sink` plays the broker; `load flood` measures throughput, `load rtt` round trips, `load accept` new
//! connections and `load quiet` one client beside a flood, through whatever stands between the two. Each prints one JSON
//! object; `run.py` starts and pins them. Linux only.

mod accept;
mod amqp;
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

use std::process::ExitCode;

use args::Args;

const USAGE: &str = "\
usage: load sink  --listen ADDR --control ADDR [--protocol PROTOCOL] [--swallow] [--seconds N]
       load flood --target ADDR --control ADDR [--connections N] [--window N] [FRAMES] [--warmup S] [--seconds S]
                  [--pid PID [--memory]] [--known-topics] [--protocol PROTOCOL]
       load rtt   --target ADDR (--rate PER_SECOND [--connections N] | --one-at-a-time) [FRAMES] [--warmup S] [--seconds S]
       load accept --target ADDR [--at-once N] [FRAMES] [--warmup S] [--seconds S] [--pid PID]
       load quiet --target ADDR --control ADDR [--connections N] [FRAMES] [--warmup S] [--seconds S] [--pid PID]
FRAMES: [--size BYTES] [--header json|binary] [--topics N]
PROTOCOL: rocketmq (if not said) or amqp091: --size is of a body then, --topics are queues, and --window asks for confirms";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let mode = words.next().unwrap_or_default();
    let run = match mode.as_str() {
        "sink" => sink::run,
        "flood" => flood::run,
        "rtt" => rtt::run,
        "accept" => accept::run,
        "quiet" => quiet::run,
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
