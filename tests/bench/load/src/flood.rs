//! Throughput: N connections send prebuilt frames, and the sink counts the arrived ones.
//!
//! With AMQP 0.9.1 a publish of three frames counts as one. AMQP 1.0 is in `transfers`.
//!
//! Without `--window` each connection writes as fast as possible. With it, each has at most this many requests without
//! an answer, like a producer: the sink answers, and the answers are traffic, too.
//!
//! The time between two readings of the sink's counters is measured. Afterwards the writers stop between two frames,
//! and each frame must appear at the sink or as a busy answer. Others are `lost`.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_send_buffer_size;

use crate::amqp::{self, Confirms, Publishes};
use crate::args::{Args, Protocol};
use crate::counters::{Control, Counters, connect};
use crate::cpu::{CpuTime, resident_bytes};
use crate::frames::Shape;
use crate::poller::{Interest, Poller, Ready};
use crate::scanner::{SYSTEM_BUSY, Scanner};
use crate::transfers;

/// Small enough for a core's L2 cache, large enough for few system calls.
pub const BLOCK_BYTES: usize = 256 << 10;
const MAX_BLOCK_BYTES: usize = 1 << 30;
pub const DRAIN: Duration = Duration::from_secs(60);
/// Maximum of the warm-up, in which each topic was sent and each connection served.
pub const ALL_WARM: Duration = Duration::from_secs(300);
/// Frames of the warm-up, per connection.
pub const FRAMES_EACH_TO_WARM_UP: u64 = 2;
/// Connections that the peer need not have forwarded yet: fewer than any backlog.
pub const CONNECT_AHEAD: u64 = 256;
/// With more connections each has a smaller send buffer, so that the kernel's memory for sockets suffices.
const MANY_CONNECTIONS: usize = 256;
const SMALL_SEND_BUFFER_BYTES: usize = 32 << 10;
/// From the last connection to the measurement of memory.
const SETTLE: Duration = Duration::from_millis(500);

enum Answers {
    RocketMq(Scanner),
    Amqp(Confirms),
}

impl Answers {
    /// Call `on_answer` with the number of answers, and whether they are refusals.
    fn scan(&mut self, chunk: &[u8], mut on_answer: impl FnMut(u64, bool)) -> Result<(), &'static str> {
        match self {
            Self::RocketMq(scanner) => scanner.scan(chunk, |head| {
                on_answer(1, head.answer().is_some_and(|(code, _)| code == SYSTEM_BUSY));
            }),
            Self::Amqp(confirms) => confirms.scan(chunk, on_answer),
        }
    }
}

enum Units {
    Frames(Shape),
    Publishes(Publishes),
}

impl Units {
    fn taken(args: &mut Args, protocol: Protocol) -> Result<Self, String> {
        if protocol == Protocol::RocketMq {
            return Ok(Self::Frames(args.shape()?));
        }
        let body_bytes = args.optional("size")?.unwrap_or(128);
        Ok(Self::Publishes(Publishes::new(
            body_bytes,
            args.optional("topics")?.unwrap_or(1),
        )?))
    }

    fn size(&self) -> usize {
        match self {
            Self::Frames(shape) => shape.size,
            Self::Publishes(publishes) => publishes.size(),
        }
    }

    fn topics(&self) -> u32 {
        match self {
            Self::Frames(shape) => shape.topics,
            Self::Publishes(publishes) => publishes.queues,
        }
    }

    fn block(&self, bytes: usize) -> Vec<u8> {
        match self {
            Self::Frames(shape) => shape.block(bytes),
            Self::Publishes(publishes) => publishes.block(bytes),
        }
    }
}

struct Client {
    stream: TcpStream,
    /// Of the next write, in the block.
    position: usize,
    sent_bytes: u64,
    answered: u64,
    answers: Answers,
    interest: Interest,
}

/// The load's own counts.
#[derive(Clone, Copy, Default)]
pub struct Seen {
    pub sent_bytes: u64,
    pub answers: u64,
    pub busy: u64,
}

/// All figures at one end of the measured time.
pub struct Reading {
    pub sink: Counters,
    pub seen: Seen,
    pub cpu: Option<CpuTime>,
}

pub struct Flood {
    poller: Poller,
    block: Vec<u8>,
    frame_size: usize,
    /// Maximum requests of a connection without an answer. None: unlimited.
    window: Option<u64>,
    amqp: bool,
    clients: Vec<Client>,
    seen: Seen,
    ready: Vec<Ready>,
    buffer: Vec<u8>,
}

pub fn run(mut args: Args) -> Result<(), String> {
    let protocol = args.protocol()?;
    if protocol == Protocol::Amqp10 {
        return transfers::run(args);
    }
    let target: SocketAddr = args.required("target")?;
    let mut control = Control::connect(args.required("control")?)?;
    let units = Units::taken(&mut args, protocol)?;
    let connections: usize = args.optional("connections")?.unwrap_or(1);
    let warmup = args.seconds("warmup", 0.5)?;
    let seconds = args.seconds("seconds", 3.0)?;
    let window: Option<u64> = args.optional("window")?;
    let pid: Option<u32> = args.optional("pid")?;
    let memory = args.flag("memory");
    let known_topics = args.flag("known-topics");
    args.finish()?;
    let (size, topics) = (units.size(), units.topics());
    if topics as usize * size > MAX_BLOCK_BYTES {
        return Err(format!("{topics} topics of {size} bytes do not fit into memory"));
    }
    if window == Some(0) || connections == 0 {
        return Err("--window and --connections must be above 0".into());
    }
    let measured = pid.filter(|_| memory);
    let resident = || measured.map(resident_bytes).transpose();

    let before = control.counters()?;
    let fresh_bytes = resident()?;
    let amqp = matches!(units, Units::Publishes(_));
    let mut flood = Flood::new(units.block(BLOCK_BYTES), size, window, amqp)?;
    flood.connect(target, connections, &mut control, before.accepted)?;
    if measured.is_some() {
        std::thread::sleep(SETTLE);
    }
    let idle_bytes = resident()?;
    let all_topics_bytes = if known_topics { 0 } else { flood.block.len() as u64 };
    flood.warm_up(warmup, all_topics_bytes, &mut control, before)?;
    let from = flood.reading(&mut control, pid)?;
    flood.write_for(seconds)?;
    let to = flood.reading(&mut control, pid)?;
    let busy_bytes = resident()?;
    let account = flood.account(&mut control, before)?;
    let window = figures(&from, &to);
    let memory = match (fresh_bytes, idle_bytes, busy_bytes) {
        (Some(fresh), Some(idle), Some(busy)) => {
            format!(", \"fresh_bytes\": {fresh}, \"idle_bytes\": {idle}, \"busy_bytes\": {busy}")
        }
        _ => String::new(),
    };
    println!("{{\"connections\": {connections}, \"frame_bytes\": {size}, {window}, {account}{memory}}}");
    Ok(())
}

/// Rates at the sink, refusals, and CPU of the measured process.
#[allow(clippy::cast_precision_loss)] // counts of seconds-long windows are far below 2^52
pub fn figures(from: &Reading, to: &Reading) -> String {
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
    pub fn new(block: Vec<u8>, frame_size: usize, window: Option<u64>, amqp: bool) -> Result<Self, String> {
        Ok(Self {
            poller: Poller::new().map_err(|error| error.to_string())?,
            block,
            frame_size,
            window,
            amqp,
            clients: Vec::new(),
            seen: Seen::default(),
            ready: Vec::new(),
            buffer: vec![0; BLOCK_BYTES],
        })
    }

    /// Connect all, no faster than the sink accepts them. It had accepted `before` others.
    pub fn connect(
        &mut self,
        target: SocketAddr,
        connections: usize,
        control: &mut Control,
        before: u64,
    ) -> Result<(), String> {
        let frames = self.block.len() / self.frame_size;
        let mut passed_on = 0;
        for token in 0..connections {
            let mut stream = connect(target)?;
            if connections > MANY_CONNECTIONS {
                set_socket_send_buffer_size(&stream, SMALL_SEND_BUFFER_BYTES).map_err(|error| error.to_string())?;
            }
            let answers = if self.amqp {
                amqp::sign_in(&mut stream, self.window.is_some())
                    .map_err(|error| format!("connection {token} was not let in: {error}"))?;
                Answers::Amqp(Confirms::default())
            } else {
                Answers::RocketMq(Scanner::default())
            };
            stream
                .set_nonblocking(true)
                .and_then(|()| self.poller.add(&stream, token, Interest::Both))
                .map_err(|error| error.to_string())?;
            self.clients.push(Client {
                stream,
                position: frames * token / connections * self.frame_size,
                sent_bytes: 0,
                answered: 0,
                answers,
                interest: Interest::Both,
            });
            let made = token as u64 + 1;
            let last = token + 1 == connections;
            let until = Instant::now() + DRAIN;
            while made.saturating_sub(passed_on) > CONNECT_AHEAD || (last && passed_on < made) {
                passed_on = control.counters()?.accepted - before;
                if Instant::now() > until {
                    return Err(format!("{passed_on} of {made} connections reached the sink"));
                }
            }
        }
        Ok(())
    }

    /// Send for a time, and until no topic is new and every connection was served.
    pub fn warm_up(
        &mut self,
        time: Duration,
        all_topics_bytes: u64,
        control: &mut Control,
        before: Counters,
    ) -> Result<(), String> {
        let until = Instant::now() + ALL_WARM;
        let enough = FRAMES_EACH_TO_WARM_UP * self.clients.len() as u64;
        self.write_for(time)?;
        loop {
            let decided = control.counters()?.frames - before.frames + self.seen.busy;
            if decided >= enough && self.seen.sent_bytes >= all_topics_bytes {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(format!("not every connection and topic was served within {ALL_WARM:?}"));
            }
            self.write_for(Duration::from_millis(5))?;
        }
    }

    pub fn reading(&self, control: &mut Control, pid: Option<u32>) -> Result<Reading, String> {
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

    /// Stop, and report the outcome of all frames.
    pub fn account(&mut self, control: &mut Control, before: Counters) -> Result<String, String> {
        let after = self.drain(control, before)?;
        let sent = self.seen.sent_bytes / self.frame_size as u64;
        let arrived = after.frames - before.frames;
        let lost = i128::from(sent) - i128::from(arrived) - i128::from(self.seen.busy);
        let unanswered =
            i128::from(after.answered - before.answered) + i128::from(self.seen.busy) - i128::from(self.seen.answers);
        Ok(format!(
            "\"sent\": {sent}, \"arrived\": {arrived}, \"busy\": {}, \"lost\": {lost}, \"unanswered\": {unanswered}, \
             \"broken\": {}",
            self.seen.busy,
            after.broken - before.broken,
        ))
    }

    /// Stop between two frames and wait until all frames are accounted for and the connections are closed.
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

    /// Serve ready sockets once. Returns whether a connection is still inside a frame.
    pub fn turn(&mut self, stopping: bool) -> Result<bool, String> {
        let mut ready = std::mem::take(&mut self.ready);
        self.poller
            .wait(&mut ready, Duration::from_millis(5))
            .map_err(|error| error.to_string())?;
        for event in &ready {
            if event.readable {
                self.read(event.token)?;
            }
            // With a window, answers make room for requests without waiting for another turn.
            if event.writable || (self.window.is_some() && event.readable) {
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
        let interest = loop {
            let room = client.room(self.frame_size, self.window, stopping);
            let end = self.block.len().min(client.position.saturating_add(room));
            if client.position == end {
                break Interest::Read;
            }
            match client.stream.write(&self.block[client.position..end]) {
                Ok(written) => {
                    client.position = (client.position + written) % self.block.len();
                    client.sent_bytes += written as u64;
                    self.seen.sent_bytes += written as u64;
                    // Without a window one write sends everything, and the others have their turn.
                    if self.window.is_none() {
                        break Interest::Both;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Interest::Both,
                Err(error) => return Err(format!("connection {token} broke: {error}")),
            }
        };
        if interest != client.interest {
            client.interest = interest;
            self.poller
                .modify(&client.stream, token, interest)
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn read(&mut self, token: usize) -> Result<(), String> {
        let client = &mut self.clients[token];
        let (seen, answered) = (&mut self.seen, &mut client.answered);
        match client.stream.read(&mut self.buffer) {
            Ok(0) => Err(format!("connection {token} was closed by the other side")),
            Ok(read) => client
                .answers
                .scan(&self.buffer[..read], |count, busy| {
                    *answered += count;
                    seen.answers += count;
                    seen.busy += if busy { count } else { 0 };
                })
                .map_err(|reason| format!("answers on connection {token}: {reason}")),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(format!("connection {token} broke: {error}")),
        }
    }
}

impl Client {
    /// Bytes that may be sent now: of the window, or the rest of a frame when stopping.
    fn room(&self, frame_size: usize, window: Option<u64>, stopping: bool) -> usize {
        if stopping {
            return self.position.next_multiple_of(frame_size) - self.position;
        }
        let Some(window) = window else { return usize::MAX };
        let allowed = (self.answered + window) * frame_size as u64;
        usize::try_from(allowed.saturating_sub(self.sent_bytes)).expect("a window fits into memory")
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn client(sent_bytes: u64, answered: u64, position: usize) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Client {
            stream: TcpStream::connect(listener.local_addr().unwrap()).unwrap(),
            position,
            sent_bytes,
            answered,
            answers: Answers::RocketMq(Scanner::default()),
            interest: Interest::Both,
        }
    }

    #[test]
    fn window_has_room_for_what_was_answered() {
        assert_eq!(client(0, 0, 0).room(100, Some(4), false), 400);
        assert_eq!(client(350, 0, 350).room(100, Some(4), false), 50);
        assert_eq!(client(400, 0, 400).room(100, Some(4), false), 0);
        assert_eq!(client(400, 3, 400).room(100, Some(4), false), 300);
        assert_eq!(client(400, 0, 400).room(100, None, false), usize::MAX);
    }

    #[test]
    fn stopping_ends_the_frame_that_was_begun() {
        assert_eq!(client(350, 0, 350).room(100, Some(4), true), 50);
        assert_eq!(client(400, 0, 400).room(100, None, true), 0);
    }
}
