//! The broker: accepts connections, counts frames and bytes, and answers each request or discards it.
//!
//! The kernel discards the bytes unread: the first frame of a connection has the length of all its frames, so frames
//! are bytes divided by that. So a sink on the generator's core is much faster than the relay between them. Only the
//! quiet client's connection is answered.
//!
//! With AMQP 0.9.1 the first publish has the length of all. On a channel with confirms each read is answered with one
//! ack for all its publishes. With AMQP 1.0 it grants credit, and accepts all transfers of a read at once.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv, sockopt};

use crate::amqp::{Beginning, push_ack};
use crate::amqp10::{Broker, Granting};
use crate::args::{Args, Protocol};
use crate::counters::Counters;
use crate::frames::{is_quiet, push_answer};
use crate::poller::{Interest, Poller, Ready};
use crate::scanner::Scanner;

const READ_BYTES: usize = 256 << 10;
/// The kernel's default of megabytes per connection exceeds any cache.
const RECEIVE_BUFFER_BYTES: usize = 256 << 10;
/// A connection with more unsent answers is not read until they are gone.
const MAX_UNSENT_BYTES: usize = 1 << 20;
/// The header of a connection's first frame.
const FIRST_LOOK_BYTES: usize = 512;
const BACKLOG: i32 = 4096;
const DATA_LISTENER: usize = 0;
const CONTROL_LISTENER: usize = 1;
const FIRST_CONNECTION: usize = 2;
/// Defaults of `RabbitMQ` 4.0.
const RABBITMQ: Granting = Granting {
    credit: 170,
    window: 400,
};

enum Work {
    Answer(Scanner),
    Swallow(EvenFrames),
    LetIn(Beginning),
    Confirm(EvenFrames),
    Accept(Box<Broker>),
}

struct Connection {
    stream: TcpStream,
    work: Work,
    unsent: Vec<u8>,
    interest: Interest,
}

/// A stream of frames with the length of the first.
#[derive(Default)]
struct EvenFrames {
    bytes: u64,
    /// Known from the first four bytes on.
    frame_len: Option<u64>,
    length_word: Vec<u8>,
}

struct Sink {
    poller: Poller,
    started: Instant,
    swallow: bool,
    protocol: Protocol,
    granting: Granting,
    counters: Counters,
    data: HashMap<usize, Connection>,
    control: HashMap<usize, TcpStream>,
    next_token: usize,
}

pub fn run(mut args: Args) -> Result<(), String> {
    let listen: SocketAddr = args.required("listen")?;
    let control: SocketAddr = args.required("control")?;
    let seconds = args.seconds("seconds", 3600.0)?;
    let swallow = args.flag("swallow");
    let protocol = args.protocol()?;
    let granting = Granting {
        credit: args.optional("credit")?.unwrap_or(RABBITMQ.credit),
        window: args.optional("session-window")?.unwrap_or(RABBITMQ.window),
    };
    args.finish()?;
    let sink = Sink {
        poller: Poller::new().map_err(|error| error.to_string())?,
        started: Instant::now(),
        swallow,
        protocol,
        granting,
        counters: Counters::default(),
        data: HashMap::new(),
        control: HashMap::new(),
        next_token: FIRST_CONNECTION,
    };
    serve(sink, listen, control, seconds).map_err(|error| error.to_string())
}

fn serve(mut sink: Sink, listen: SocketAddr, control: SocketAddr, time: Duration) -> io::Result<()> {
    let data_listener = listener(listen)?;
    sockopt::set_socket_recv_buffer_size(&data_listener, RECEIVE_BUFFER_BYTES)?;
    let control_listener = listener(control)?;
    sink.poller.add(&data_listener, DATA_LISTENER, Interest::Read)?;
    sink.poller.add(&control_listener, CONTROL_LISTENER, Interest::Read)?;
    let mut buffer = vec![0; READ_BYTES];
    let mut ready = Vec::new();
    while sink.started.elapsed() < time {
        sink.poller.wait(&mut ready, Duration::from_secs(1))?;
        for &event in &ready {
            match event.token {
                DATA_LISTENER => sink.accept(&data_listener, true)?,
                CONTROL_LISTENER => sink.accept(&control_listener, false)?,
                token if sink.control.contains_key(&token) => sink.tell(token),
                _ => sink.serve(event, &mut buffer)?,
            }
        }
    }
    Ok(())
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let listener =
        TcpListener::bind(address).map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))?;
    // The standard library's backlog is too short for fast clients.
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Sink {
    fn accept(&mut self, listener: &TcpListener, is_data: bool) -> io::Result<()> {
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let token = self.next_token;
            self.next_token += 1;
            self.poller.add(&stream, token, Interest::Read)?;
            if is_data {
                self.counters.accepted += 1;
                self.counters.connections += 1;
                let work = match self.protocol {
                    Protocol::Amqp10 => Work::Accept(Box::new(Broker::new(self.granting))),
                    Protocol::Amqp091 => Work::LetIn(Beginning::default()),
                    Protocol::RocketMq if self.swallow => Work::Swallow(EvenFrames::default()),
                    Protocol::RocketMq => Work::Answer(Scanner::default()),
                };
                let connection = Connection {
                    stream,
                    work,
                    unsent: Vec::new(),
                    interest: Interest::Read,
                };
                self.data.insert(token, connection);
            } else {
                self.control.insert(token, stream);
            }
        }
    }

    /// Answer one request of the side channel with the counters.
    fn tell(&mut self, token: usize) {
        let stream = self.control.get_mut(&token).expect("the caller looked it up");
        self.counters.at_ns = u64::try_from(self.started.elapsed().as_nanos()).expect("584 years");
        let mut question = [0];
        let told = match stream.read(&mut question) {
            Ok(1) => stream.write_all(self.counters.to_line().as_bytes()).is_ok(),
            Err(error) => error.kind() == ErrorKind::WouldBlock,
            Ok(_) => false,
        };
        if !told {
            self.control.remove(&token);
        }
    }

    fn serve(&mut self, event: Ready, buffer: &mut [u8]) -> io::Result<()> {
        let Some(connection) = self.data.get_mut(&event.token) else {
            return Ok(());
        };
        let served = if event.readable {
            connection.read(buffer, &mut self.counters)
        } else {
            connection.flush()
        };
        match served {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => {
                self.counters.broken += u64::from(!connection.at_boundary());
                self.counters.connections -= 1;
                self.data.remove(&event.token);
                return Ok(());
            }
        }
        let interest = connection.wants();
        if interest != connection.interest {
            connection.interest = interest;
            self.poller.modify(&connection.stream, event.token, interest)?;
        }
        Ok(())
    }
}

impl Connection {
    /// Read one chunk, count it and answer it. After any error but `WouldBlock` the connection is over.
    fn read(&mut self, buffer: &mut [u8], counters: &mut Counters) -> io::Result<()> {
        if matches!(&self.work, Work::Swallow(frames) if frames.bytes == 0) {
            let (_, seen) = recv(&self.stream, &mut buffer[..FIRST_LOOK_BYTES], RecvFlags::PEEK)?;
            if is_quiet(&buffer[..seen]) {
                self.work = Work::Answer(Scanner::default());
            }
        }
        match &mut self.work {
            Work::Swallow(frames) => {
                let read = match frames.length_word_left() {
                    0 => recv(&self.stream, buffer, RecvFlags::TRUNC)?.1,
                    left => {
                        let read = self.stream.read(&mut buffer[..left])?;
                        frames.begin(&buffer[..read])?;
                        read
                    }
                };
                counters.bytes += some(read)? as u64;
                counters.frames += frames.count(read as u64);
                Ok(())
            }
            Work::Confirm(frames) => {
                let read = some(recv(&self.stream, buffer, RecvFlags::TRUNC)?.1)? as u64;
                counters.bytes += read;
                let completed = frames.count(read);
                counters.frames += completed;
                counters.answered += completed;
                self.confirm(completed)
            }
            Work::LetIn(beginning) => {
                let wanted = beginning.wanted().map_err(io::Error::other)?;
                let read = some(self.stream.read(&mut buffer[..wanted])?)?;
                let first = beginning.take(&buffer[..read], &mut self.unsent);
                if let Some(bytes) = first.map_err(io::Error::other)? {
                    counters.bytes += bytes;
                    counters.frames += 1;
                    if beginning.confirms {
                        counters.answered += 1;
                        self.work = Work::Confirm(EvenFrames::after_one(bytes));
                        return self.confirm(1);
                    }
                    self.work = Work::Swallow(EvenFrames::after_one(bytes));
                }
                self.flush()
            }
            Work::Accept(broker) => {
                let read = some(self.stream.read(buffer)?)?;
                let came = broker
                    .take(&buffer[..read], &mut self.unsent)
                    .map_err(io::Error::other)?;
                counters.bytes += read as u64;
                counters.frames += came.transfers;
                counters.answered += came.answered;
                self.flush()
            }
            Work::Answer(scanner) => {
                let read = some(self.stream.read(buffer)?)?;
                counters.bytes += read as u64;
                scanner
                    .scan(&buffer[..read], |head| {
                        counters.frames += 1;
                        if let Some(opaque) = head.opaque_to_answer() {
                            push_answer(&mut self.unsent, opaque);
                            counters.answered += 1;
                        }
                    })
                    .map_err(io::Error::other)?;
                self.flush()
            }
        }
    }

    /// Answer all complete publishes at once, as `RabbitMQ` does.
    fn confirm(&mut self, completed: u64) -> io::Result<()> {
        if completed > 0
            && let Work::Confirm(frames) = &self.work
        {
            push_ack(&mut self.unsent, frames.whole(), completed > 1);
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.unsent.is_empty() {
            let written = self.stream.write(&self.unsent)?;
            self.unsent.drain(..written);
        }
        Ok(())
    }

    fn wants(&self) -> Interest {
        match self.unsent.len() {
            0 => Interest::Read,
            MAX_UNSENT_BYTES.. => Interest::Write,
            _ => Interest::Both,
        }
    }

    fn at_boundary(&self) -> bool {
        match &self.work {
            Work::Answer(scanner) => scanner.at_boundary(),
            Work::LetIn(beginning) => beginning.at_boundary(),
            Work::Accept(broker) => broker.at_boundary(),
            Work::Swallow(frames) | Work::Confirm(frames) => {
                frames.bytes == 0 || frames.frame_len.is_some_and(|len| frames.bytes % len == 0)
            }
        }
    }
}

/// An empty read is the end of the stream.
fn some(read: usize) -> io::Result<usize> {
    if read == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(read)
}

impl EvenFrames {
    /// Missing bytes of the first length word.
    fn length_word_left(&self) -> usize {
        4 - self.length_word.len()
    }

    fn begin(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.length_word.extend(bytes);
        if let Ok(word) = self.length_word.as_slice().try_into() {
            let length = u32::from_be_bytes(word);
            if length < 4 || length >> 24 != 0 {
                return Err(io::Error::other("broken framing"));
            }
            self.frame_len = Some(4 + u64::from(length));
        }
        Ok(())
    }

    /// A stream after one complete frame.
    fn after_one(frame_len: u64) -> Self {
        Self {
            bytes: frame_len,
            frame_len: Some(frame_len),
            length_word: vec![0; 4],
        }
    }

    /// The number of complete frames.
    fn whole(&self) -> u64 {
        self.frame_len.map_or(0, |len| self.bytes / len)
    }

    /// Count bytes. Returns the number of frames that they complete.
    fn count(&mut self, bytes: u64) -> u64 {
        let before = self.whole();
        self.bytes += bytes;
        self.whole() - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_frames_are_counted_when_complete() {
        let mut frames = EvenFrames::default();
        frames.begin(&[0, 0]).unwrap();
        assert_eq!((frames.count(2), frames.length_word_left()), (0, 2));
        frames.begin(&[0, 96]).unwrap();
        assert_eq!((frames.count(2), frames.length_word_left()), (0, 0));
        assert_eq!(frames.count(95), 0);
        assert_eq!(frames.count(1), 1);
        assert_eq!(frames.count(250), 2);
    }

    #[test]
    fn impossible_lengths_are_broken() {
        assert!(EvenFrames::default().begin(&[0, 0, 0, 3]).is_err());
        assert!(EvenFrames::default().begin(&[0x16, 3, 1, 0]).is_err());
    }
}
