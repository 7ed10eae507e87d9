//! Round trips: request out, answer back, one histogram.
//!
//! With `--rate` the loop is open: request k is due at start + k / rate, and its latency counts from that moment, so a
//! stall counts for every request that it delays (no coordinated omission). With `--one-at-a-time` the next request is
//! sent after the answer: the path's latency without any queue.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU64;
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::counters::connect;
use crate::frames::{FIRST_OPAQUE, Shape};
use crate::histogram::Histogram;
use crate::poller::{Interest, Poller, Ready};
use crate::scanner::{SYSTEM_BUSY, Scanner};

/// Time for answers after the last request.
const GRACE: Duration = Duration::from_secs(5);
const READ_BYTES: usize = 64 << 10;
const REQUESTS_PER_TURN: u32 = 256;

struct Client {
    stream: TcpStream,
    answers: Scanner,
    unsent: Vec<u8>,
    interest: Interest,
}

#[derive(Clone, Copy)]
struct Schedule {
    start: Instant,
    rate: f64,
}

impl Schedule {
    fn due(&self, request: u32) -> Instant {
        self.start + Duration::from_secs_f64(f64::from(request) / self.rate)
    }
}

pub struct Tally {
    latency: Histogram,
    /// The generator's own delay: from due to the socket.
    late: Histogram,
    pub busy: u64,
    unanswered: u64,
}

impl Tally {
    fn new() -> Self {
        Self {
            latency: Histogram::new(),
            late: Histogram::new(),
            busy: 0,
            unanswered: 0,
        }
    }

    pub fn requests(&self) -> u64 {
        self.latency.total()
    }

    /// A quantile per mille, in microseconds.
    pub fn us(&self, per_mille: u64) -> f64 {
        micros(self.latency.quantile(per_mille))
    }

    fn print(&self, rate: Option<f64>) {
        println!(
            "{{\"rate_per_s\": {}, \"requests\": {}, \"p50_us\": {:.2}, \"p99_us\": {:.2}, \"p999_us\": {:.2}, \"max_us\": {:.2}, \
             \"late_p50_us\": {:.2}, \"late_p99_us\": {:.2}, \"busy\": {}, \"lost\": {}}}",
            rate.map_or("null".to_owned(), |rate| rate.to_string()),
            self.requests(),
            self.us(500),
            self.us(990),
            self.us(999),
            micros(self.latency.max()),
            micros(self.late.quantile(500)),
            micros(self.late.quantile(990)),
            self.busy,
            self.unanswered,
        );
    }
}

pub fn run(mut args: Args) -> Result<(), String> {
    let target: SocketAddr = args.required("target")?;
    let shape = args.shape()?;
    let warmup = args.seconds("warmup", 0.5)?;
    let seconds = args.seconds("seconds", 3.0)?;
    let rate: Option<f64> = args.optional("rate")?;
    let connections: usize = args.optional("connections")?.unwrap_or(1);
    let one_at_a_time = args.flag("one-at-a-time");
    args.finish()?;
    // A timer may otherwise be 50 us late.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1)).map_err(|error| error.to_string())?;
    let tally = match rate {
        None if one_at_a_time => OneAtATime::connect(target, shape, 0)?.run(warmup, seconds)?,
        Some(rate) if rate > 0.0 && !one_at_a_time => {
            OpenLoop::connect(target, shape, connections)?.run(rate, warmup, seconds)?
        }
        _ => {
            return Err("either --rate (above 0) or --one-at-a-time says how requests are paced".into());
        }
    };
    tally.print(rate);
    Ok(())
}

/// One connection with one request at a time.
pub struct OneAtATime {
    target: SocketAddr,
    stream: TcpStream,
    shape: Shape,
    frame: Vec<u8>,
    opaque_place: Range<usize>,
    answers: Scanner,
    buffer: Vec<u8>,
    next: u32,
}

impl OneAtATime {
    pub fn connect(target: SocketAddr, shape: Shape, topic: u32) -> Result<Self, String> {
        let stream = connect(target)?;
        stream
            .set_read_timeout(Some(GRACE))
            .map_err(|error| error.to_string())?;
        Ok(Self {
            target,
            stream,
            shape,
            frame: shape.request(topic, FIRST_OPAQUE),
            opaque_place: shape.opaque_place(),
            answers: Scanner::default(),
            buffer: vec![0; READ_BYTES],
            next: FIRST_OPAQUE,
        })
    }

    /// The number of requests, all of them answered.
    pub fn sent(&self) -> u64 {
        u64::from(self.next - FIRST_OPAQUE)
    }

    pub fn run(&mut self, warmup: Duration, seconds: Duration) -> Result<Tally, String> {
        let mut tally = Tally::new();
        let start = Instant::now();
        let until = start + warmup + seconds;
        // On a very busy machine the first may be the only one.
        while Instant::now() < until || tally.latency.total() == 0 {
            let (sent, latency, code) = self.round_trip()?;
            if sent - start >= warmup {
                tally.latency.record(nanos(latency));
                tally.busy += u64::from(code == SYSTEM_BUSY);
            }
        }
        Ok(tally)
    }

    /// Send one request and wait for its answer. Returns the time, the duration, and the answer's code.
    fn round_trip(&mut self) -> Result<(Instant, Duration, i64), String> {
        let target = self.target;
        let broke = |error: std::io::Error| format!("the connection to {target} broke: {error}");
        let opaque = self.next;
        self.next += 1;
        self.frame[self.opaque_place.clone()].copy_from_slice(&self.shape.opaque_bytes(opaque));
        let sent = Instant::now();
        self.stream.write_all(&self.frame).map_err(broke)?;
        let mut answer = None;
        while answer.is_none() || !self.answers.at_boundary() {
            let read = self.stream.read(&mut self.buffer).map_err(broke)?;
            if read == 0 {
                return Err(format!("{target} closed the connection"));
            }
            self.answers.scan(&self.buffer[..read], |head| answer = head.answer())?;
        }
        let latency = sent.elapsed();
        match answer {
            Some((code, answered)) if answered == opaque => Ok((sent, latency, code)),
            _ => Err(format!("{target} answered another request than {opaque}")),
        }
    }
}

struct OpenLoop {
    poller: Poller,
    clients: Vec<Client>,
    shape: Shape,
    frames: Vec<Vec<u8>>,
}

impl OpenLoop {
    fn connect(target: SocketAddr, shape: Shape, connections: usize) -> Result<Self, String> {
        let poller = Poller::new().map_err(|error| error.to_string())?;
        let mut clients = Vec::with_capacity(connections);
        for token in 0..connections.max(1) {
            let stream = connect(target)?;
            stream
                .set_nonblocking(true)
                .and_then(|()| poller.add(&stream, token, Interest::Read))
                .map_err(|error| error.to_string())?;
            clients.push(Client {
                stream,
                answers: Scanner::default(),
                unsent: Vec::new(),
                interest: Interest::Read,
            });
        }
        let frames = (0..shape.topics)
            .map(|topic| shape.request(topic, FIRST_OPAQUE))
            .collect();
        Ok(Self {
            poller,
            clients,
            shape,
            frames,
        })
    }

    fn run(mut self, rate: f64, warmup: Duration, seconds: Duration) -> Result<Tally, String> {
        let schedule = Schedule {
            start: Instant::now(),
            rate,
        };
        let count = |time: Duration| {
            let requests = (time.as_secs_f64() * rate).round();
            if requests > 1e9 {
                return Err("too many requests for one run".to_owned());
            }
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // checked just above
            Ok(requests as u32)
        };
        let first_counted = count(warmup)?;
        let total = count(warmup + seconds)?;
        let place = self.shape.opaque_place();
        let (mut tally, mut next, mut answered) = (Tally::new(), 0, 0);
        let mut ready = Vec::new();
        let mut buffer = vec![0; READ_BYTES];
        let until = schedule.due(total) + GRACE;
        while answered < total {
            let now = Instant::now();
            if now > until {
                break;
            }
            let first = next;
            while next < total && next - first < REQUESTS_PER_TURN && schedule.due(next) <= now {
                let frame = &mut self.frames[next as usize % self.shape.topics as usize];
                frame[place.clone()].copy_from_slice(&self.shape.opaque_bytes(FIRST_OPAQUE + next));
                let token = next as usize % self.clients.len();
                self.clients[token].unsent.extend_from_slice(frame);
                next += 1;
            }
            // Once per connection: a late generator catches up with fewer system calls.
            for request in first..next {
                let token = request as usize % self.clients.len();
                if !self.clients[token].unsent.is_empty() {
                    self.flush(token)?;
                }
            }
            let handed_over = Instant::now();
            for request in first.max(first_counted)..next {
                let late = handed_over.saturating_duration_since(schedule.due(request));
                tally.late.record(nanos(late));
            }
            let wake = if next < total { schedule.due(next) } else { until };
            self.poller
                .wait(&mut ready, wake.saturating_duration_since(Instant::now()))
                .map_err(|error| error.to_string())?;
            for event in &ready {
                answered += self.serve(*event, &mut buffer, schedule, first_counted, &mut tally)?;
            }
        }
        tally.unanswered = u64::from(total - answered);
        Ok(tally)
    }

    /// Take the answers of one connection. Returns their number.
    fn serve(
        &mut self,
        event: Ready,
        buffer: &mut [u8],
        schedule: Schedule,
        first_counted: u32,
        tally: &mut Tally,
    ) -> Result<u32, String> {
        let mut answered = 0;
        if event.readable {
            let client = &mut self.clients[event.token];
            match client.stream.read(buffer) {
                Ok(0) => return Err("a connection was closed by the other side".into()),
                Ok(read) => {
                    let now = Instant::now();
                    client.answers.scan(&buffer[..read], |head| {
                        let Some((code, opaque)) = head.answer() else {
                            return;
                        };
                        answered += 1;
                        let request = opaque.wrapping_sub(FIRST_OPAQUE);
                        if request >= first_counted {
                            tally
                                .latency
                                .record(nanos(now.saturating_duration_since(schedule.due(request))));
                            tally.busy += u64::from(code == SYSTEM_BUSY);
                        }
                    })?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(format!("a connection broke: {error}")),
            }
        }
        if event.writable {
            self.flush(event.token)?;
        }
        Ok(answered)
    }

    fn flush(&mut self, token: usize) -> Result<(), String> {
        let client = &mut self.clients[token];
        match client.stream.write(&client.unsent) {
            Ok(written) => drop(client.unsent.drain(..written)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(format!("a connection broke: {error}")),
        }
        let interest = if client.unsent.is_empty() {
            Interest::Read
        } else {
            Interest::Both
        };
        if interest != client.interest {
            client.interest = interest;
            self.poller
                .modify(&client.stream, token, interest)
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

fn micros(nanos: u64) -> f64 {
    Duration::from_nanos(nanos).as_secs_f64() * 1e6
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_due_at_even_distances() {
        let start = Instant::now();
        let schedule = Schedule { start, rate: 4000.0 };
        assert_eq!(schedule.due(0), start);
        assert_eq!(schedule.due(1) - start, Duration::from_micros(250));
        assert_eq!(schedule.due(8000) - start, Duration::from_secs(2));
    }
}
