//! The quiet client: one request at a time, first alone, then beside a flood through the same peer.
//!
//! The flood has other topics, on separate connections that write as fast as possible. The sink discards it (`load sink
//! --swallow`). It runs at the lowest priority, so that a quiet client on its core does not wait for it there.

use std::net::SocketAddr;
use std::thread;

use crate::args::Args;
use crate::counters::Control;
use crate::flood::{BLOCK_BYTES, Flood, figures};
use crate::frames::QUIET_TOPIC;
use crate::rtt::OneAtATime;

const LOWEST_PRIORITY: i32 = 19;

pub fn run(mut args: Args) -> Result<(), String> {
    let target: SocketAddr = args.required("target")?;
    let mut control = Control::connect(args.required("control")?)?;
    let shape = args.shape()?;
    let connections: usize = args.optional("connections")?.unwrap_or(1);
    let warmup = args.seconds("warmup", 0.5)?;
    let seconds = args.seconds("seconds", 3.0)?;
    let pid: Option<u32> = args.optional("pid")?;
    args.finish()?;
    if shape.topics > QUIET_TOPIC {
        return Err("one topic is the quiet client's: --topics must be below 1000000".into());
    }

    let mut quiet = OneAtATime::connect(target, shape, QUIET_TOPIC)?;
    let alone = quiet.run(warmup, seconds)?;
    let mut before = control.counters()?;
    let sent_alone = quiet.sent();
    let mut flood = Flood::new(shape.block(BLOCK_BYTES), shape.size, None, false)?;
    flood.connect(target, connections, &mut control, before.accepted)?;
    flood.warm_up(warmup, 0, &mut control, before)?;
    let from = flood.reading(&mut control, pid)?;
    let quietly = thread::spawn(move || {
        let beside = quiet.run(warmup, seconds)?;
        Ok::<_, String>((beside, quiet.sent()))
    });
    rustix::process::setpriority_process(None, LOWEST_PRIORITY).map_err(|error| error.to_string())?;
    while !quietly.is_finished() {
        flood.turn(false)?;
    }
    let (beside, sent) = quietly.join().expect("it does not panic")?;
    let window = figures(&from, &flood.reading(&mut control, pid)?);
    // Only the flood is accounted for. The quiet client's requests were answered.
    before.frames += sent - sent_alone;
    before.answered += sent - sent_alone;
    let account = flood.account(&mut control, before)?;
    println!(
        "{{\"requests\": {}, \"alone_p50_us\": {:.2}, \"alone_p99_us\": {:.2}, \"p50_us\": {:.2}, \"p99_us\": {:.2}, \
         \"quiet_busy\": {}, {window}, {account}}}",
        beside.requests(),
        alone.us(500),
        alone.us(990),
        beside.us(500),
        beside.us(990),
        alone.busy + beside.busy,
    );
    Ok(())
}
