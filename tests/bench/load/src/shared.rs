//! One connection that several tasks share: it sends to queues, as fast as it goes, at a pace or in batches, and consumes.
//! With `--at-most` nothing goes as fast as it goes: each queue gets so many messages a second, and so many are accepted.
//!
//! A line of JSON says what there was when the warm-up was over, and another when the time was; then the connection stays
//! until the standard input ends, so that a broker can be asked what arrived.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::amqp;
use crate::amqp10::{self, Link, Way};
use crate::args::{Args, Protocol};
use crate::counters::connect;
use crate::poller::{Interest, Poller};

/// What is made ready for the connection at a time: a page, as clients' writers do.
const AHEAD_BYTES: usize = 4096;
const READ_BYTES: usize = 64 << 10;
/// Deliveries that may be without an ack, or the credit of a link.
const PREFETCH: u16 = 200;
/// Publishes of a batch; the next begins when all are answered.
const BATCH: u64 = 10_000;
const LONGEST: Duration = Duration::from_secs(600);

/// How a queue is sent to.
#[derive(Clone, Copy)]
enum Pace {
    Free,
    Batches,
    PerSecond(f64),
}

struct Sending {
    queue: String,
    pace: Pace,
}

enum Client {
    Old(amqp::Client),
    New(amqp10::Client),
}

struct Shared {
    stream: TcpStream,
    poller: Poller,
    sendings: Vec<Sending>,
    client: Client,
    began: Instant,
    /// Of each batch: publishes of all that have begun.
    batches_end: u64,
    /// None that goes beyond so many sends to a queue.
    most: u64,
    /// So many deliveries a second are accepted, if not all at once.
    accepts_per_s: Option<f64>,
    unsent: Vec<u8>,
    written: usize,
    interest: Interest,
}

pub fn run(mut args: Args) -> Result<(), String> {
    let target: SocketAddr = args.required("target")?;
    let protocol = args.protocol()?;
    let body_bytes: usize = args.optional("size")?.unwrap_or(12);
    let sends: String = args.optional("send")?.unwrap_or_default();
    let batches: Option<String> = args.optional("batches")?;
    let paced: Option<String> = args.optional("pace")?;
    let receives: Option<String> = args.optional("receive")?;
    let count: Option<u64> = args.optional("count")?;
    let at_most: Option<f64> = args.optional("at-most")?;
    let warmup = args.seconds("warmup", 2.0)?;
    let seconds = args.seconds("seconds", 8.0)?;
    args.finish()?;
    let mut sendings: Vec<Sending> = sends
        .split(',')
        .filter(|queue| !queue.is_empty())
        .map(|queue| Sending {
            queue: queue.to_owned(),
            pace: at_most.map_or(Pace::Free, Pace::PerSecond),
        })
        .collect();
    if let Some((queue, pace)) = paced.as_ref().and_then(|paced| paced.split_once('=')) {
        let per_second = pace.parse().map_err(|error| format!("--pace {pace}: {error}"))?;
        sendings.push(Sending {
            queue: queue.to_owned(),
            pace: Pace::PerSecond(per_second),
        });
    }
    sendings.extend(batches.map(|queue| Sending {
        queue,
        pace: Pace::Batches,
    }));
    let mut shared = Shared::new(target, protocol, sendings, receives.as_deref(), body_bytes)?;
    shared.accepts_per_s = at_most;
    if let Some(count) = count {
        shared.most = count;
        let until = Instant::now() + LONGEST;
        while shared.answered() < count {
            if Instant::now() > until {
                return Err(format!("not all was answered within {LONGEST:?}"));
            }
            shared.turn()?;
        }
        return Ok(());
    }
    shared.go_on(warmup)?;
    println!("{}", shared.line());
    shared.go_on(seconds)?;
    println!("{}", shared.line());
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}

impl Shared {
    fn new(
        target: SocketAddr,
        protocol: Protocol,
        sendings: Vec<Sending>,
        receives: Option<&str>,
        body_bytes: usize,
    ) -> Result<Self, String> {
        let mut stream = connect(target)?;
        let client = match protocol {
            Protocol::Amqp091 => {
                let queues: Vec<&str> = sendings.iter().map(|sending| &*sending.queue).collect();
                let confirms = sendings.iter().any(|sending| matches!(sending.pace, Pace::Batches));
                let consuming = receives.map(|queue| (queue, PREFETCH));
                amqp::Client::sign_in(&mut stream, &queues, confirms, consuming, body_bytes).map(Client::Old)
            }
            Protocol::Amqp10 => {
                let address = |queue: &str| format!("/queues/{queue}");
                let mut links: Vec<Link> = sendings
                    .iter()
                    .map(|sending| Link {
                        address: address(&sending.queue),
                        way: Way::Out {
                            settled: !matches!(sending.pace, Pace::Batches),
                        },
                    })
                    .collect();
                links.extend(receives.map(|queue| Link {
                    address: address(queue),
                    way: Way::In {
                        credit: PREFETCH.into(),
                    },
                }));
                amqp10::Client::sign_in(&mut stream, &links, body_bytes).map(Client::New)
            }
            Protocol::RocketMq => return Err("--protocol must be amqp091 or amqp10".into()),
        };
        let client = client.map_err(|error| format!("the connection was not let in: {error}"))?;
        let poller = Poller::new().map_err(|error| error.to_string())?;
        stream
            .set_nonblocking(true)
            .and_then(|()| poller.add(&stream, 0, Interest::Read))
            .map_err(|error| error.to_string())?;
        Ok(Self {
            stream,
            poller,
            sendings,
            client,
            began: Instant::now(),
            batches_end: BATCH,
            most: u64::MAX,
            accepts_per_s: None,
            unsent: Vec::new(),
            written: 0,
            interest: Interest::Read,
        })
    }

    fn go_on(&mut self, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.turn()?;
        }
        Ok(())
    }

    /// Read what is there, and write as long as there is something that may be sent.
    fn turn(&mut self) -> Result<(), String> {
        self.accept()?;
        self.produce();
        let interest = if self.unsent.is_empty() {
            Interest::Read
        } else {
            Interest::Both
        };
        if interest != self.interest {
            self.interest = interest;
            self.poller
                .modify(&self.stream, 0, interest)
                .map_err(|error| error.to_string())?;
        }
        let mut ready = Vec::new();
        self.poller
            .wait(&mut ready, Duration::from_millis(1))
            .map_err(|error| error.to_string())?;
        for event in ready {
            if event.readable {
                self.read()?;
            }
            if event.writable {
                self.write()?;
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), String> {
        let mut buffer = vec![0; READ_BYTES];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err("the connection was closed by the other side".into()),
            Ok(read) => match &mut self.client {
                Client::Old(client) => client.take(&buffer[..read]),
                Client::New(client) => client.take(&buffer[..read], &mut self.unsent),
            },
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(format!("the connection broke: {error}")),
        }
    }

    fn accept(&mut self) -> Result<(), String> {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // far below 2^52, and never below 0
        let most = self
            .accepts_per_s
            .map_or(u64::MAX, |rate| (self.began.elapsed().as_secs_f64() * rate) as u64);
        match &mut self.client {
            Client::Old(client) => client.accept(most, &mut self.unsent),
            Client::New(client) => client.accept(most, &mut self.unsent)?,
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), String> {
        match self.stream.write(&self.unsent[self.written..]) {
            Ok(written) => {
                self.written += written;
                if self.written == self.unsent.len() {
                    self.unsent.clear();
                    self.written = 0;
                }
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(format!("the connection broke: {error}")),
        }
    }

    /// Fill up to a page.
    fn produce(&mut self) {
        if self.unsent.len() - self.written >= AHEAD_BYTES {
            return;
        }
        if self.answered() >= self.batches_end {
            self.batches_end += BATCH;
        }
        let until = self.written + AHEAD_BYTES;
        let (sendings, most, batches_end) = (&self.sendings, self.most, self.batches_end);
        let elapsed_s = self.began.elapsed().as_secs_f64();
        #[allow(clippy::cast_precision_loss)] // counts of runs of minutes are far below 2^52
        let may = |number: usize, sent: u64| match sendings.get(number).map(|sending| sending.pace) {
            None => false,
            Some(Pace::Free) => sent < most,
            Some(Pace::Batches) => sent < batches_end.min(most),
            Some(Pace::PerSecond(rate)) => (sent as f64) < elapsed_s * rate,
        };
        match &mut self.client {
            Client::Old(client) => client.produce(&mut self.unsent, until, may),
            Client::New(client) => client.produce(&mut self.unsent, until, may),
        }
    }

    fn answered(&self) -> u64 {
        match &self.client {
            Client::Old(client) => client.answered(),
            Client::New(client) => client.answered,
        }
    }

    fn line(&self) -> String {
        let sent: Vec<u64> = (0..self.sendings.len())
            .map(|number| match &self.client {
                Client::Old(client) => client.sent(number),
                Client::New(client) => client.count(number).into(),
            })
            .collect();
        let (refused, received) = match &self.client {
            Client::Old(client) => (client.refused, client.received),
            Client::New(client) => (client.refused, client.received),
        };
        format!(
            "{{\"at_s\": {:.4}, \"sent\": {sent:?}, \"answered\": {}, \"refused\": {refused}, \"received\": {received}}}",
            self.began.elapsed().as_secs_f64(),
            self.answered(),
        )
    }
}
