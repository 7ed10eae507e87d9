//! New connections: connect, send one request, read its answer, close. This many at once, as fast as possible.
//!
//! A connection counts once answered, so a peer gains nothing by connecting to the broker late.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::cpu::CpuTime;
use crate::frames::FIRST_OPAQUE;
use crate::histogram::Histogram;
use crate::poller::{Interest, Poller, Ready};
use crate::scanner::{SYSTEM_BUSY, Scanner};

const READ_BYTES: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(10);

struct Slot {
    stream: TcpStream,
    started: Instant,
    answers: Scanner,
}

struct Connecting {
    target: SocketAddr,
    poller: Poller,
    frame: Vec<u8>,
    slots: Vec<Option<Slot>>,
    buffer: Vec<u8>,
    took: Histogram,
    answered: u64,
    busy: u64,
}

pub fn run(mut args: Args) -> Result<(), String> {
    let target: SocketAddr = args.required("target")?;
    let at_once: usize = args.optional("at-once")?.unwrap_or(64);
    let shape = args.shape()?;
    let warmup = args.seconds("warmup", 0.5)?;
    let seconds = args.seconds("seconds", 3.0)?;
    let pid: Option<u32> = args.optional("pid")?;
    args.finish()?;

    let mut connecting = Connecting {
        target,
        poller: Poller::new().map_err(|error| error.to_string())?,
        frame: shape.request(0, FIRST_OPAQUE),
        slots: (0..at_once.max(1)).map(|_| None).collect(),
        buffer: vec![0; READ_BYTES],
        took: Histogram::new(),
        answered: 0,
        busy: 0,
    };
    for token in 0..connecting.slots.len() {
        connecting.begin(token)?;
    }
    connecting.go_on_for(warmup)?;
    let cpu = || pid.map(CpuTime::of).transpose();
    let (from, answered_before, cpu_before) = (Instant::now(), connecting.answered, cpu()?);
    connecting.took = Histogram::new();
    connecting.go_on_for(seconds)?;
    let (took, answered, cpu_after) = (from.elapsed(), connecting.answered - answered_before, cpu()?);
    let unanswered = connecting.end()?;
    connecting.print(took, answered, cpu_before.zip(cpu_after), unanswered);
    Ok(())
}

impl Connecting {
    fn begin(&mut self, token: usize) -> Result<(), String> {
        let started = Instant::now();
        let mut stream = loop {
            match TcpStream::connect_timeout(&self.target, PATIENCE) {
                Ok(stream) => break stream,
                // Ports of connections that just ended are free again after a second.
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable && started.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(format!("cannot connect to {}: {error}", self.target)),
            }
        };
        stream
            .set_nodelay(true)
            // A frame fits into any new connection's send buffer.
            .and_then(|()| stream.write_all(&self.frame))
            .and_then(|()| stream.set_nonblocking(true))
            .and_then(|()| self.poller.add(&stream, token, Interest::Read))
            .map_err(|error| format!("a new connection to {} broke: {error}", self.target))?;
        self.slots[token] = Some(Slot {
            stream,
            started,
            answers: Scanner::default(),
        });
        Ok(())
    }

    fn go_on_for(&mut self, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        let mut ready = Vec::new();
        while Instant::now() < until {
            self.turn(&mut ready, true)?;
        }
        Ok(())
    }

    /// Wait for the last answers without new connections. Returns the number of missing ones.
    fn end(&mut self) -> Result<usize, String> {
        let until = Instant::now() + PATIENCE;
        let mut ready = Vec::new();
        while self.slots.iter().any(Option::is_some) && Instant::now() < until {
            self.turn(&mut ready, false)?;
        }
        Ok(self.slots.iter().flatten().count())
    }

    fn turn(&mut self, ready: &mut Vec<Ready>, resume: bool) -> Result<(), String> {
        self.poller
            .wait(ready, Duration::from_millis(5))
            .map_err(|error| error.to_string())?;
        for event in ready.iter() {
            if self.read(event.token)? {
                self.slots[event.token] = None;
                if resume {
                    self.begin(event.token)?;
                }
            }
        }
        Ok(())
    }

    /// Returns whether the answer is complete.
    fn read(&mut self, token: usize) -> Result<bool, String> {
        let Some(slot) = &mut self.slots[token] else {
            return Ok(false);
        };
        let broke = |reason: &dyn std::fmt::Display| format!("a new connection ended without its answer: {reason}");
        let read = match slot.stream.read(&mut self.buffer) {
            Ok(0) => return Err(broke(&"closed by the other side")),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(broke(&error)),
        };
        let mut code = None;
        slot.answers
            .scan(&self.buffer[..read], |head| {
                code = head.answer().map(|(code, _)| code).or(code);
            })
            .map_err(|reason| broke(&reason))?;
        let Some(code) = code else { return Ok(false) };
        self.answered += 1;
        self.busy += u64::from(code == SYSTEM_BUSY);
        let took = slot.started.elapsed().as_nanos();
        self.took.record(u64::try_from(took).unwrap_or(u64::MAX));
        Ok(true)
    }

    #[allow(clippy::cast_precision_loss)] // counts of seconds-long windows are far below 2^52
    fn print(&self, took: Duration, answered: u64, cpu: Option<(CpuTime, CpuTime)>, unanswered: usize) {
        let us = |per_mille| Duration::from_nanos(self.took.quantile(per_mille)).as_secs_f64() * 1e6;
        let seconds = took.as_secs_f64();
        let cpu = cpu.map_or("null, \"cpu_share\": null".to_owned(), |(from, to)| {
            let used = (to.used_us - from.used_us) as f64;
            format!(
                "{:.2}, \"cpu_share\": {:.3}",
                used / (answered as f64).max(1.0),
                used / seconds / 1e6
            )
        });
        println!(
            "{{\"seconds\": {seconds:.4}, \"connections_per_s\": {:.1}, \"p50_us\": {:.2}, \"p99_us\": {:.2}, \
             \"cpu_us_per_connection\": {cpu}, \"requests\": {}, \"busy\": {}, \"lost\": {unanswered}}}",
            answered as f64 / seconds,
            us(500),
            us(990),
            self.answered,
            self.busy,
        );
    }
}
