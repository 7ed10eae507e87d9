//! AMQP 0.9.1 of the bench: publishes, both sides' start of a connection, confirms, and consuming.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::frames::topic_name;

const HEADER: &[u8; 8] = b"AMQP\0\0\x09\x01";
const PREFIX_BYTES: usize = 7;
const FRAME_MAX: usize = 131_072;
const CHANNEL_MAX: u16 = 2047;
const FRAME_END: u8 = 0xce;
const METHOD: u8 = 1;
const CONTENT: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
const CHANNEL: u16 = 1;
const PATIENCE: Duration = Duration::from_secs(10);

const START: u32 = method(10, 10);
const START_OK: u32 = method(10, 11);
const TUNE: u32 = method(10, 30);
const TUNE_OK: u32 = method(10, 31);
const OPEN: u32 = method(10, 40);
const OPEN_OK: u32 = method(10, 41);
const CHANNEL_OPEN: u32 = method(20, 10);
const CHANNEL_OPEN_OK: u32 = method(20, 11);
const PUBLISH: u32 = method(60, 40);
const ACK: u32 = method(60, 80);
const NACK: u32 = method(60, 120);
const SELECT: u32 = method(85, 10);
const SELECT_OK: u32 = method(85, 11);

const fn method(class: u16, number: u16) -> u32 {
    (class as u32) << 16 | number as u32
}

/// The publishes of one run: each is a method, a content header and one body, all of the same lengths.
pub struct Publishes {
    body_bytes: usize,
    pub queues: u32,
}

impl Publishes {
    pub fn new(body_bytes: usize, queues: u32) -> Result<Self, String> {
        let most = FRAME_MAX - PREFIX_BYTES - 1;
        if !(1..=most).contains(&body_bytes) {
            return Err(format!("--size {body_bytes}: must be 1 to {most}"));
        }
        if !(1..=1_000_000).contains(&queues) {
            return Err(format!("--topics {queues}: must be 1 to 1000000"));
        }
        Ok(Self { body_bytes, queues })
    }

    pub fn size(&self) -> usize {
        self.publish(0).len()
    }

    /// Publishes to the queues in turn, at least `bytes` long and a whole number of rounds.
    pub fn block(&self, bytes: usize) -> Vec<u8> {
        let count = bytes.div_ceil(self.size()).next_multiple_of(self.queues as usize);
        (0..self.queues)
            .cycle()
            .take(count)
            .flat_map(|queue| self.publish(queue))
            .collect()
    }

    fn publish(&self, queue: u32) -> Vec<u8> {
        publish_to(&topic_name(queue), self.body_bytes)
    }
}

/// A publish through the default exchange, with the properties of a Java client's `PERSISTENT_BASIC`.
fn publish_to(queue: &str, body_bytes: usize) -> Vec<u8> {
    let mut arguments = vec![0, 0]; // ticket
    push_short_string(&mut arguments, "");
    push_short_string(&mut arguments, queue);
    arguments.push(0); // neither mandatory nor immediate
    let mut content = [60_u16.to_be_bytes(), [0, 0]].concat(); // class, weight
    content.extend((body_bytes as u64).to_be_bytes());
    content.extend(0b1001_1000_0000_0000_u16.to_be_bytes()); // content type, delivery mode, priority
    push_short_string(&mut content, "application/octet-stream");
    content.extend([2, 0]);
    let mut out = Vec::new();
    push_method(&mut out, CHANNEL, PUBLISH, &arguments);
    push_frame(&mut out, CONTENT, CHANNEL, &content);
    push_frame(&mut out, BODY, CHANNEL, &vec![b'x'; body_bytes]);
    out
}

fn push_frame(out: &mut Vec<u8>, kind: u8, channel: u16, payload: &[u8]) {
    out.push(kind);
    out.extend(channel.to_be_bytes());
    out.extend(u32::try_from(payload.len()).expect("frames are bounded").to_be_bytes());
    out.extend(payload);
    out.push(FRAME_END);
}

fn push_method(out: &mut Vec<u8>, channel: u16, method: u32, arguments: &[u8]) {
    push_frame(out, METHOD, channel, &[&method.to_be_bytes(), arguments].concat());
}

fn push_short_string(out: &mut Vec<u8>, text: &str) {
    out.push(u8::try_from(text.len()).expect("names are short"));
    out.extend(text.bytes());
}

fn push_long_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(u32::try_from(bytes.len()).expect("texts are short").to_be_bytes());
    out.extend(bytes);
}

/// A table with the product alone.
fn push_properties(out: &mut Vec<u8>, product: &str) {
    let mut table = Vec::new();
    push_short_string(&mut table, "product");
    table.push(b'S');
    push_long_string(&mut table, product.as_bytes());
    push_long_string(out, &table);
}

/// Append a broker's ack, alone or with all before it.
pub fn push_ack(out: &mut Vec<u8>, tag: u64, multiple: bool) {
    let mut arguments = [0; 9];
    arguments[..8].copy_from_slice(&tag.to_be_bytes());
    arguments[8] = u8::from(multiple);
    push_method(out, CHANNEL, ACK, &arguments);
}

/// A client's start of a connection in blocking mode: no heartbeats, one channel.
pub fn sign_in(stream: &mut TcpStream, confirms: bool) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(HEADER)?;
    let mut arguments = Vec::new();
    push_properties(&mut arguments, "sluice-bench");
    push_short_string(&mut arguments, "PLAIN");
    push_long_string(&mut arguments, b"\0guest\0guest");
    push_short_string(&mut arguments, "en_US");
    expect(stream, START)?;
    say(stream, 0, START_OK, &arguments)?;
    expect(stream, TUNE)?;
    say(stream, 0, TUNE_OK, &tuning(0))?;
    say(stream, 0, OPEN, b"\x01/\0\0")?;
    expect(stream, OPEN_OK)?;
    say(stream, CHANNEL, CHANNEL_OPEN, &[0])?;
    expect(stream, CHANNEL_OPEN_OK)?;
    if confirms {
        say(stream, CHANNEL, SELECT, &[0])?;
        expect(stream, SELECT_OK)?;
    }
    stream.set_read_timeout(None)
}

fn tuning(heartbeat_s: u16) -> Vec<u8> {
    let mut arguments = CHANNEL_MAX.to_be_bytes().to_vec();
    arguments.extend(u32::try_from(FRAME_MAX).expect("it is").to_be_bytes());
    arguments.extend(heartbeat_s.to_be_bytes());
    arguments
}

fn say(stream: &mut TcpStream, channel: u16, method: u32, arguments: &[u8]) -> io::Result<()> {
    let mut out = Vec::new();
    push_method(&mut out, channel, method, arguments);
    stream.write_all(&out)
}

fn expect(stream: &mut TcpStream, method: u32) -> io::Result<()> {
    let mut frame = vec![0; PREFIX_BYTES];
    stream.read_exact(&mut frame)?;
    frame.resize(frame_bytes(&frame).map_err(io::Error::other)?, 0);
    stream.read_exact(&mut frame[PREFIX_BYTES..])?;
    match method_of(&frame) {
        Some((found, _)) if found == method => Ok(()),
        _ => Err(io::Error::other(format!(
            "{frame:?} is not method {}.{}",
            method >> 16,
            method & 0xffff
        ))),
    }
}

/// The length of a frame from its first seven bytes.
fn frame_bytes(start: &[u8]) -> Result<usize, &'static str> {
    let length = u32::from_be_bytes(*start[3..].first_chunk().expect("the caller looked"));
    let bytes = PREFIX_BYTES + length as usize + 1;
    if bytes > FRAME_MAX {
        return Err("a frame is longer than agreed");
    }
    Ok(bytes)
}

/// Method and arguments of a complete frame. None: not a method.
fn method_of(frame: &[u8]) -> Option<(u32, &[u8])> {
    let payload = &frame[PREFIX_BYTES..frame.len() - 1];
    let (method, arguments) = payload.split_first_chunk()?;
    (frame[0] == METHOD && frame.ends_with(&[FRAME_END])).then_some((u32::from_be_bytes(*method), arguments))
}

/// A broker's side until the first publish, which has the length of all others.
#[derive(Default)]
pub struct Beginning {
    /// Of the incomplete frame.
    bytes: Vec<u8>,
    greeted: bool,
    publish_bytes: u64,
    body_left: u64,
    pub confirms: bool,
}

impl Beginning {
    /// How much may be read next, never beyond a frame.
    pub fn wanted(&self) -> Result<usize, &'static str> {
        let whole = if !self.greeted {
            HEADER.len()
        } else if self.bytes.len() < PREFIX_BYTES {
            PREFIX_BYTES
        } else {
            frame_bytes(&self.bytes)?
        };
        Ok(whole - self.bytes.len())
    }

    /// Take at most `wanted` bytes, and append the answer. Returns the length of the first publish once it is complete.
    pub fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Option<u64>, &'static str> {
        self.bytes.extend(bytes);
        if !self.greeted {
            if self.bytes.len() == HEADER.len() {
                self.greet(out)?;
            }
            return Ok(None);
        }
        if self.bytes.len() <= PREFIX_BYTES || self.wanted()? > 0 {
            return Ok(None);
        }
        let frame = std::mem::take(&mut self.bytes);
        if !frame.ends_with(&[FRAME_END]) {
            return Err("a frame without its end");
        }
        match frame[0] {
            METHOD => self.answer(&frame, out)?,
            CONTENT => {
                let size = frame.get(PREFIX_BYTES + 4..).and_then(<[u8]>::first_chunk);
                self.body_left = u64::from_be_bytes(*size.ok_or("a content without its size")?);
                self.publish_bytes += frame.len() as u64;
            }
            BODY => {
                self.body_left = self.body_left.saturating_sub((frame.len() - PREFIX_BYTES - 1) as u64);
                self.publish_bytes += frame.len() as u64;
                return Ok((self.body_left == 0).then_some(self.publish_bytes));
            }
            HEARTBEAT => {}
            _ => return Err("an unknown frame"),
        }
        Ok(None)
    }

    /// Whether there is no incomplete frame, and no publish yet.
    pub fn at_boundary(&self) -> bool {
        self.bytes.is_empty() && self.publish_bytes == 0
    }

    fn greet(&mut self, out: &mut Vec<u8>) -> Result<(), &'static str> {
        if self.bytes != HEADER {
            return Err("another protocol");
        }
        self.bytes.clear();
        self.greeted = true;
        let mut arguments = vec![0, 9];
        push_properties(&mut arguments, "RabbitMQ");
        push_long_string(&mut arguments, b"PLAIN AMQPLAIN");
        push_long_string(&mut arguments, b"en_US");
        push_method(out, 0, START, &arguments);
        Ok(())
    }

    fn answer(&mut self, frame: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
        let (method, _) = method_of(frame).ok_or("a method without its number")?;
        match method {
            START_OK => push_method(out, 0, TUNE, &tuning(60)),
            OPEN => push_method(out, 0, OPEN_OK, &[0]),
            CHANNEL_OPEN => push_method(out, CHANNEL, CHANNEL_OPEN_OK, &[0; 4]),
            SELECT => {
                self.confirms = true;
                push_method(out, CHANNEL, SELECT_OK, &[]);
            }
            PUBLISH => self.publish_bytes = frame.len() as u64,
            TUNE_OK => {}
            _ => return Err("a method that the bench does not use"),
        }
        Ok(())
    }
}

/// A client's confirms, each once and in order.
#[derive(Default)]
pub struct Confirms {
    /// Of the incomplete frame.
    bytes: Vec<u8>,
    answered: u64,
}

impl Confirms {
    /// Call `on_answer` with the number of answered publishes, and whether they were refused.
    pub fn scan(&mut self, mut chunk: &[u8], mut on_answer: impl FnMut(u64, bool)) -> Result<(), &'static str> {
        while !chunk.is_empty() {
            if self.bytes.is_empty() && chunk.len() >= PREFIX_BYTES {
                let whole = frame_bytes(chunk)?;
                if let Some((frame, rest)) = chunk.split_at_checked(whole) {
                    self.take(frame, &mut on_answer)?;
                    chunk = rest;
                    continue;
                }
            }
            let known = self.bytes.len() >= PREFIX_BYTES;
            let until = if known { frame_bytes(&self.bytes)? } else { PREFIX_BYTES };
            let (more, rest) = chunk.split_at((until - self.bytes.len()).min(chunk.len()));
            self.bytes.extend(more);
            chunk = rest;
            if known && self.bytes.len() == until {
                let frame = std::mem::take(&mut self.bytes);
                self.take(&frame, &mut on_answer)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, frame: &[u8], on_answer: &mut impl FnMut(u64, bool)) -> Result<(), &'static str> {
        if frame[0] == HEARTBEAT {
            return Ok(());
        }
        let Some((method @ (ACK | NACK), arguments)) = method_of(frame) else {
            return Err("something else than an answer to a publish");
        };
        let (Some(tag), Some(flags)) = (arguments.first_chunk(), arguments.get(8)) else {
            return Err("an answer without its number");
        };
        let tag = u64::from_be_bytes(*tag);
        let count = tag.checked_sub(self.answered).ok_or("a publish was answered twice")?;
        if count == 0 || (count > 1 && flags & 1 == 0) {
            return Err("publishes are not answered in their order");
        }
        self.answered = tag;
        on_answer(count, method == NACK);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn publishes_are_as_long_as_each_other() {
        let publishes = Publishes::new(128, 3).unwrap();
        let block = publishes.block(1000);
        assert_eq!(block.len() % (3 * publishes.size()), 0);
        for queue in 0..3 {
            let publish = &block[queue * publishes.size()..][..publishes.size()];
            assert_eq!(publish, publishes.publish(u32::try_from(queue).unwrap()));
        }
        assert!(Publishes::new(0, 1).is_err());
        assert!(Publishes::new(FRAME_MAX, 1).is_err());
    }

    #[test]
    fn client_and_broker_begin_and_the_first_publish_tells_its_length() {
        for confirms in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut broker, _) = listener.accept().unwrap();
            let publishes = Publishes::new(128, 1).unwrap();
            let publish = publishes.publish(0);
            let sending = std::thread::spawn(move || {
                sign_in(&mut client, confirms).unwrap();
                client.write_all(&publish.repeat(2)).unwrap();
                client
            });
            let mut beginning = Beginning::default();
            let first = loop {
                let mut bytes = vec![0; beginning.wanted().unwrap()];
                broker.read_exact(&mut bytes).unwrap();
                let mut out = Vec::new();
                let first = beginning.take(&bytes, &mut out).unwrap();
                broker.write_all(&out).unwrap();
                if let Some(first) = first {
                    break first;
                }
            };
            assert_eq!(first, publishes.size() as u64);
            assert_eq!(beginning.confirms, confirms);
            let mut second = vec![0; publishes.size()];
            broker.read_exact(&mut second).unwrap();
            assert_eq!(second, publishes.publish(0), "nothing was read beyond the first");
            drop(sending.join().unwrap());
        }
    }

    #[test]
    fn answers_are_counted_in_chunks_of_any_size() {
        let mut stream = Vec::new();
        push_ack(&mut stream, 1, false);
        push_ack(&mut stream, 5, true);
        push_frame(&mut stream, HEARTBEAT, 0, &[]);
        push_method(&mut stream, CHANNEL, NACK, &[0, 0, 0, 0, 0, 0, 0, 6, 0]);
        for step in [1, 6, 7, 8, 20, 21, 22, 100] {
            let (mut confirms, mut found) = (Confirms::default(), Vec::new());
            for chunk in stream.chunks(step) {
                confirms.scan(chunk, |count, busy| found.push((count, busy))).unwrap();
            }
            assert_eq!(found, [(1, false), (4, false), (1, true)]);
        }
    }

    #[test]
    fn answers_out_of_order_are_errors() {
        for (tag, multiple) in [(0, true), (2, false)] {
            let mut stream = Vec::new();
            push_ack(&mut stream, tag, multiple);
            assert!(Confirms::default().scan(&stream, |_, _| ()).is_err());
        }
        let mut closed = Vec::new();
        push_method(&mut closed, 0, method(10, 50), &[]);
        assert!(Confirms::default().scan(&closed, |_, _| ()).is_err());
    }
}
