//! Throughput of AMQP 1.0: N connections, a session each, send transfers on their links as fast as credit allows.
//!
//! Every transfer must appear at the sink or be refused, and every unsettled one must be answered.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::amqp10::{Client, Link};
use crate::args::Args;
use crate::counters::{Control, Counters, connect};
use crate::cpu::CpuTime;
use crate::flood::{ALL_WARM, BLOCK_BYTES, CONNECT_AHEAD, DRAIN, FRAMES_EACH_TO_WARM_UP, Reading, Seen, figures};
use crate::frames::topic_name;
use crate::poller::{Interest, Poller};

/// Data prepared for a connection at a time.
const AHEAD_BYTES: usize = 128 << 10;

struct Sender {
    stream: TcpStream,
    client: Client,
    unsent: Vec<u8>,
    written: usize,
    interest: Interest,
    /// Everything that credit allows was written.
    idle: bool,
}

struct Transfers {
    poller: Poller,
    senders: Vec<Sender>,
    buffer: Vec<u8>,
    sent_bytes: u64,
}

pub fn run(mut args: Args) -> Result<(), String> {
    let target: SocketAddr = args.required("target")?;
    let mut control = Control::connect(args.required("control")?)?;
    let body_bytes: usize = args.optional("size")?.unwrap_or(128);
    let links: u32 = args.optional("topics")?.unwrap_or(1);
    let connections: usize = args.optional("connections")?.unwrap_or(1);
    let warmup = args.seconds("warmup", 0.5)?;
    let seconds = args.seconds("seconds", 3.0)?;
    let settled = args.flag("settled");
    let pid: Option<u32> = args.optional("pid")?;
    args.finish()?;
    if !(1..=65_536).contains(&body_bytes) || !(1..=255).contains(&links) || connections == 0 {
        return Err("--size must be 1 to 65536, --topics 1 to 255 and --connections above 0".into());
    }
    let links: Vec<Link> = (0..links)
        .map(|number| Link {
            address: format!("/queues/{}", topic_name(number)),
            settled,
        })
        .collect();

    let before = control.counters()?;
    let mut all = Transfers {
        poller: Poller::new().map_err(|error| error.to_string())?,
        senders: Vec::new(),
        buffer: vec![0; BLOCK_BYTES],
        sent_bytes: 0,
    };
    all.connect(target, connections, &links, body_bytes, &mut control, before.accepted)?;
    all.warm_up(warmup, &mut control, before)?;
    let from = all.reading(&mut control, pid)?;
    all.send_for(seconds)?;
    let to = all.reading(&mut control, pid)?;
    let account = all.account(&mut control, before)?;
    let window = figures(&from, &to);
    let size = all.senders[0].client.transfer_bytes();
    println!("{{\"connections\": {connections}, \"frame_bytes\": {size}, {window}, {account}}}");
    Ok(())
}

impl Transfers {
    fn connect(
        &mut self,
        target: SocketAddr,
        connections: usize,
        links: &[Link],
        body_bytes: usize,
        control: &mut Control,
        before: u64,
    ) -> Result<(), String> {
        for token in 0..connections {
            let mut stream = connect(target)?;
            let client = Client::sign_in(&mut stream, links, body_bytes)
                .map_err(|error| format!("connection {token} was not let in: {error}"))?;
            stream
                .set_nonblocking(true)
                .and_then(|()| self.poller.add(&stream, token, Interest::Read))
                .map_err(|error| error.to_string())?;
            self.senders.push(Sender {
                stream,
                client,
                unsent: Vec::new(),
                written: 0,
                interest: Interest::Read,
                idle: true,
            });
        }
        let until = Instant::now() + DRAIN;
        while control.counters()?.accepted - before + CONNECT_AHEAD < connections as u64 {
            if Instant::now() > until {
                return Err("not all connections reached the sink".into());
            }
        }
        Ok(())
    }

    fn warm_up(&mut self, time: Duration, control: &mut Control, before: Counters) -> Result<(), String> {
        let until = Instant::now() + ALL_WARM;
        let enough = FRAMES_EACH_TO_WARM_UP * self.senders.len() as u64;
        self.send_for(time)?;
        while control.counters()?.frames - before.frames + self.seen().busy < enough
            || !self.senders.iter().all(|sender| sender.client.ready())
        {
            if Instant::now() > until {
                return Err(format!("not every connection was served within {ALL_WARM:?}"));
            }
            self.send_for(Duration::from_millis(5))?;
        }
        Ok(())
    }

    fn send_for(&mut self, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.turn(false)?;
        }
        Ok(())
    }

    fn reading(&self, control: &mut Control, pid: Option<u32>) -> Result<Reading, String> {
        Ok(Reading {
            cpu: pid.map(CpuTime::of).transpose()?,
            sink: control.counters()?,
            seen: self.seen(),
        })
    }

    fn seen(&self) -> Seen {
        let clients = || self.senders.iter().map(|sender| &sender.client);
        Seen {
            sent_bytes: self.sent_bytes,
            answers: clients().map(|client| client.answered).sum(),
            busy: clients().map(|client| client.refused).sum(),
        }
    }

    /// Serve ready sockets once.
    fn turn(&mut self, stopping: bool) -> Result<(), String> {
        let mut ready = Vec::new();
        self.poller
            .wait(&mut ready, Duration::from_millis(5))
            .map_err(|error| error.to_string())?;
        for event in ready {
            let sender = &mut self.senders[event.token];
            self.sent_bytes += sender
                .serve(event.readable, &mut self.buffer, stopping)
                .map_err(|reason| format!("connection {}: {reason}", event.token))?;
            let interest = if sender.idle { Interest::Read } else { Interest::Both };
            if interest != sender.interest {
                sender.interest = interest;
                self.poller
                    .modify(&sender.stream, event.token, interest)
                    .map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// Stop, and report the outcome of all transfers.
    fn account(&mut self, control: &mut Control, before: Counters) -> Result<String, String> {
        let until = Instant::now() + DRAIN;
        let (after, sent, seen) = loop {
            self.turn(true)?;
            let now = control.counters()?;
            let sent: u64 = self.senders.iter().map(|sender| sender.client.sent()).sum();
            let seen = self.seen();
            let settled = now.frames - before.frames + seen.busy == sent
                && now.answered - before.answered + seen.busy == seen.answers;
            let written = self.senders.iter().all(|sender| sender.unsent.is_empty());
            if (settled && written) || Instant::now() > until {
                break (now, sent, seen);
            }
        };
        let count = |number: u64| i128::from(number);
        let arrived = after.frames - before.frames;
        let lost = count(sent) - count(arrived) - count(seen.busy);
        let unanswered = count(after.answered - before.answered) + count(seen.busy) - count(seen.answers);
        Ok(format!(
            "\"sent\": {sent}, \"arrived\": {arrived}, \"busy\": {}, \"lost\": {lost}, \"unanswered\": {unanswered}, \
             \"broken\": {}",
            seen.busy,
            after.broken - before.broken,
        ))
    }
}

impl Sender {
    /// Read if possible, then write as much as credit allows. Returns the number of bytes written.
    fn serve(&mut self, readable: bool, buffer: &mut [u8], stopping: bool) -> Result<u64, String> {
        if readable {
            match self.stream.read(buffer) {
                Ok(0) => return Err("it was closed by the other side".into()),
                Ok(read) => self.client.take(&buffer[..read])?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(format!("it broke: {error}")),
            }
        }
        if self.unsent.is_empty() && !stopping {
            self.client.produce(&mut self.unsent, AHEAD_BYTES, |_, _| true);
        }
        self.idle = self.unsent.is_empty();
        if self.idle {
            return Ok(0);
        }
        // One write, then the others have their turn.
        match self.stream.write(&self.unsent[self.written..]) {
            Ok(written) => {
                self.written += written;
                if self.written == self.unsent.len() {
                    self.unsent.clear();
                    self.written = 0;
                }
                Ok(written as u64)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(format!("it broke: {error}")),
        }
    }
}
