//! Throughput: N connections write prebuilt frames as fast as they are taken; the sink says what arrived.
//!
//! The window between two readings of the sink's counters is what counts. Afterwards the writers stop between two
//! frames and every frame sent must show up at the sink or as a busy answer; what does not is `lost`.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::counters::{Control, Counters, connect};
use crate::cpu::CpuTime;
use crate::poller::{Interest, Poller, Ready};
use crate::scanner::{SYSTEM_BUSY, Scanner};

/// Small enough to stay in a core's second cache, large enough for few system calls.
const BLOCK_BYTES: usize = 256 << 10;
const MAX_BLOCK_BYTES: usize = 1 << 30;
const DRAIN: Duration = Duration::from_secs(60);

struct Client {
    stream: TcpStream,
    /// Where in the block the next write starts.
    position: usize,
    answers: Scanner,
}

#[derive(Clone, Copy, Default)]
struct Seen {
    sent_bytes: u64,
    answers: u64,
    busy: u64,
}

/// Everything read at one end of the window.
struct Reading {
    sink: Counters,
    seen: Seen,
    cpu: Option<CpuTime>,
}

struct Flood {
    poller: Poller,
    block: Vec<u8>,
    frame_size: usize,
    clients: Vec<Client>,
    seen: Seen,
    ready: Vec<Ready>,
    buffer: Vec<u8>,
}

pub fn run(mut args: Args) -> Result<(), String> {
    let target: SocketAddr = args.required("target")?;
    let mut control = Control::connect(args.required("control")?)?;
    let shape = args.shape()?;
    let connections: usize = args.optional("connections")?.unwrap_or(1);
    let warmup = args.seconds("warmup", 0.5)?;
    let seconds = args.seconds("seconds", 3.0)?;
    let pid: Option<u32> = args.optional("pid")?;
    args.finish()?;
    if shape.topics as usize * shape.size > MAX_BLOCK_BYTES {
        return Err(format!(
            "{} topics of {} bytes do not fit into memory",
            shape.topics, shape.size
        ));
    }

    let before = control.counters()?;
    let mut flood = Flood::connect(target, connections, shape.block(BLOCK_BYTES), shape.size)?;
    flood.write_for(warmup)?;
    let from = flood.reading(&mut control, pid)?;
    flood.write_for(seconds)?;
    let to = flood.reading(&mut control, pid)?;
    let after = flood.drain(&mut control, before)?;

    let frames_sent = flood.seen.sent_bytes / shape.size as u64;
    let arrived = after.frames - before.frames;
    let lost = i128::from(frames_sent) - i128::from(arrived) - i128::from(flood.seen.busy);
    let window = window(&from, &to);
    println!(
        "{{\"connections\": {connections}, \"frame_bytes\": {}, {window}, \"sent\": {frames_sent}, \"arrived\": {arrived}, \
         \"busy\": {}, \"lost\": {lost}, \"broken\": {}}}",
        shape.size,
        flood.seen.busy,
        after.broken - before.broken,
    );
    Ok(())
}

/// The figures of the window: rates at the sink, refusals, CPU of the process measured.
#[allow(clippy::cast_precision_loss)] // counts of seconds-long windows are far below 2^52
fn window(from: &Reading, to: &Reading) -> String {
    let seconds = (to.sink.at_ns - from.sink.at_ns) as f64 / 1e9;
    let frames = to.sink.frames - from.sink.frames;
    let bytes = to.sink.bytes - from.sink.bytes;
    let busy = to.seen.busy - from.seen.busy;
    let decided = (frames + busy) as f64;
    let cpu = match (from.cpu, to.cpu) {
        (Some(from), Some(to)) => {
            let used = (to.used_us - from.used_us) as f64;
            let waited = (to.waited_us - from.waited_us) as f64;
            format!(
                "{:.4}, \"cpu_share\": {:.3}, \"waited_share\": {:.3}",
                used / decided.max(1.0),
                used / seconds / 1e6,
                waited / seconds / 1e6,
            )
        }
        _ => "null, \"cpu_share\": null, \"waited_share\": null".to_owned(),
    };
    format!(
        "\"seconds\": {seconds:.4}, \"mb_per_s\": {:.2}, \"frames_per_s\": {:.0}, \"busy_per_s\": {:.0}, \"cpu_us_per_frame\": {cpu}",
        bytes as f64 / seconds / 1e6,
        frames as f64 / seconds,
        busy as f64 / seconds,
    )
}

impl Flood {
    fn connect(target: SocketAddr, connections: usize, block: Vec<u8>, frame_size: usize) -> Result<Self, String> {
        let poller = Poller::new().map_err(|error| error.to_string())?;
        let frames = block.len() / frame_size;
        let mut clients = Vec::with_capacity(connections);
        for token in 0..connections {
            let stream = connect(target)?;
            stream
                .set_nonblocking(true)
                .and_then(|()| poller.add(&stream, token, Interest::Both))
                .map_err(|error| error.to_string())?;
            clients.push(Client {
                stream,
                position: frames * token / connections * frame_size,
                answers: Scanner::default(),
            });
        }
        Ok(Self {
            poller,
            block,
            frame_size,
            clients,
            seen: Seen::default(),
            ready: Vec::new(),
            buffer: vec![0; BLOCK_BYTES],
        })
    }

    fn reading(&self, control: &mut Control, pid: Option<u32>) -> Result<Reading, String> {
        Ok(Reading {
            cpu: pid.map(CpuTime::of).transpose()?,
            sink: control.counters()?,
            seen: self.seen,
        })
    }

    fn write_for(&mut self, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.turn(false)?;
        }
        Ok(())
    }

    /// Stop between two frames and wait until all frames are accounted for and the connections are gone.
    fn drain(&mut self, control: &mut Control, before: Counters) -> Result<Counters, String> {
        let until = Instant::now() + DRAIN;
        loop {
            let unfinished = self.turn(true)?;
            let now = control.counters()?;
            let arrived = (now.frames - before.frames) + self.seen.busy;
            let answered = (now.answered - before.answered) + self.seen.busy;
            let settled = arrived * self.frame_size as u64 == self.seen.sent_bytes && answered == self.seen.answers;
            if (settled && !unfinished) || Instant::now() > until {
                break;
            }
        }
        self.clients.clear();
        loop {
            let now = control.counters()?;
            if now.connections <= before.connections || Instant::now() > until {
                return Ok(now);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Serve what is ready once; says whether some connection still stands inside a frame.
    fn turn(&mut self, stopping: bool) -> Result<bool, String> {
        let mut ready = std::mem::take(&mut self.ready);
        self.poller
            .wait(&mut ready, Duration::from_millis(5))
            .map_err(|error| error.to_string())?;
        for event in &ready {
            if event.readable {
                self.read(event.token)?;
            }
            if event.writable {
                self.write(event.token, stopping)?;
            }
        }
        self.ready = ready;
        Ok(stopping
            && self
                .clients
                .iter()
                .any(|client| !client.position.is_multiple_of(self.frame_size)))
    }

    fn write(&mut self, token: usize, stopping: bool) -> Result<(), String> {
        let client = &mut self.clients[token];
        let end = if stopping {
            client.position.next_multiple_of(self.frame_size)
        } else {
            self.block.len()
        };
        if client.position == end {
            return self
                .poller
                .modify(&client.stream, token, Interest::Read)
                .map_err(|error| error.to_string());
        }
        match client.stream.write(&self.block[client.position..end]) {
            Ok(written) => {
                client.position = (client.position + written) % self.block.len();
                self.seen.sent_bytes += written as u64;
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(format!("connection {token} broke: {error}")),
        }
    }

    fn read(&mut self, token: usize) -> Result<(), String> {
        let client = &mut self.clients[token];
        let seen = &mut self.seen;
        match client.stream.read(&mut self.buffer) {
            Ok(0) => Err(format!("connection {token} was closed by the other side")),
            Ok(read) => client
                .answers
                .scan(&self.buffer[..read], |head| {
                    seen.answers += 1;
                    seen.busy += u64::from(head.answer().is_some_and(|(code, _)| code == SYSTEM_BUSY));
                })
                .map_err(|reason| format!("answers on connection {token}: {reason}")),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(format!("connection {token} broke: {error}")),
        }
    }
}
