//! A soak by count: this many frames, connections and distinct names, as fast as possible.
//!
//! A few lasting connections carry most of the frames, with a window of requests each. Beside them short ones connect,
//! send some requests at once, read their answers and close. Both, and new names, progress at the same pace, so that
//! the load is uniform over the run. Progress is a line of JSON for each thousandth part. With `--seconds` it ends
//! after that time, once all requests are answered, however much is left.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::args::Args;
use crate::frames::FIRST_OPAQUE;
use crate::poller::{Interest, Poller, Ready};
use crate::scanner::{SYSTEM_BUSY, Scanner};

const READ_BYTES: usize = 256 << 10;
/// The recurring names. All behind them are new.
const KNOWN_NAMES: u64 = 1000;
/// Names have eight digits, so that they can be changed in place.
const FIRST_NAME: u64 = 10_000_000;
const MAX_NAMES: u64 = 90_000_000 - KNOWN_NAMES;
/// Maximum lead of one kind of connection over the other, as a fraction of the whole.
const AHEAD: f64 = 0.002;
const LINES: u64 = 1000;
/// Maximum time without any answer.
const PATIENCE: Duration = Duration::from_secs(60);

struct Plan {
    target: SocketAddr,
    frames: u64,
    names: u64,
    /// Short connections, and the frames of each.
    connections: u64,
    each: u64,
    window: u64,
}

struct Slot {
    stream: TcpStream,
    answers: Scanner,
    unsent: Vec<u8>,
    interest: Interest,
    waiting: u64,
    lasts: bool,
}

/// Makes frames, each with its own name and opaque.
struct Frames {
    frame: Vec<u8>,
    name_at: usize,
    opaque_at: usize,
    made: u64,
    named: u64,
    total: u64,
    names: u64,
}

struct Soak {
    plan: Plan,
    poller: Poller,
    frames: Frames,
    slots: Vec<Option<Slot>>,
    lasting: usize,
    lasting_begun: usize,
    /// Which of them fills its window first.
    turn: usize,
    buffer: Vec<u8>,
    begun: u64,
    ended: u64,
    by_lasting: u64,
    answered: u64,
    busy: u64,
    until: Option<Instant>,
}

pub fn run(mut args: Args) -> Result<(), String> {
    let plan = Plan {
        target: args.required("target")?,
        frames: args.required("frames")?,
        names: args.required("names")?,
        connections: args.required("connections")?,
        each: args.optional("each")?.unwrap_or(10),
        window: args.optional("window")?.unwrap_or(256),
    };
    let lasting: usize = args.optional("lasting")?.unwrap_or(8);
    let at_once: usize = args.optional("at-once")?.unwrap_or(32);
    let size: usize = args.optional("size")?.unwrap_or(160);
    let seconds: Option<f64> = args.optional("seconds")?;
    args.finish()?;
    if plan.names > MAX_NAMES || plan.names > plan.frames {
        return Err(format!(
            "--names {}: must be at most {MAX_NAMES} and --frames",
            plan.names
        ));
    }
    if lasting == 0 || at_once == 0 || plan.connections * plan.each >= plan.frames {
        return Err(
            "--frames must be more than --connections times --each, and --lasting and --at-once above 0".into(),
        );
    }
    let mut soak = Soak {
        poller: Poller::new().map_err(|error| error.to_string())?,
        frames: Frames::new(size, &plan)?,
        slots: (0..lasting + at_once).map(|_| None).collect(),
        lasting,
        lasting_begun: 0,
        turn: 0,
        buffer: vec![0; READ_BYTES],
        begun: 0,
        ended: 0,
        by_lasting: 0,
        answered: 0,
        busy: 0,
        until: seconds.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds)),
        plan,
    };
    soak.run()
}

impl Frames {
    fn new(size: usize, plan: &Plan) -> Result<Self, String> {
        let shape = crate::frames::Shape::new(size, crate::frames::Header::Json, 1)?;
        let frame = shape.request(u32::try_from(FIRST_NAME).expect("eight digits"), FIRST_OPAQUE);
        let digits = FIRST_NAME.to_string();
        let name_at = frame
            .windows(digits.len())
            .position(|seen| seen == digits.as_bytes())
            .ok_or("the frame has no name")?;
        let opaque = FIRST_OPAQUE.to_string();
        let opaque_at = frame
            .windows(opaque.len())
            .rposition(|seen| seen == opaque.as_bytes())
            .ok_or("the frame has no opaque")?;
        Ok(Self {
            frame,
            name_at,
            opaque_at,
            made: 0,
            named: 0,
            total: plan.frames,
            names: plan.names,
        })
    }

    fn push(&mut self, out: &mut Vec<u8>) {
        // New names are distributed evenly over the run.
        let due = u128::from(self.made + 1) * u128::from(self.names) / u128::from(self.total);
        let name = if u128::from(self.named) < due {
            self.named += 1;
            KNOWN_NAMES + self.named - 1
        } else {
            self.made % KNOWN_NAMES
        };
        put_digits(&mut self.frame[self.name_at..self.name_at + 8], FIRST_NAME + name);
        // Ten digits, like the first.
        let opaque = u64::from(FIRST_OPAQUE) + self.made % 1_000_000_000;
        put_digits(&mut self.frame[self.opaque_at..self.opaque_at + 10], opaque);
        self.made += 1;
        out.extend_from_slice(&self.frame);
    }
}

fn put_digits(place: &mut [u8], mut number: u64) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + u8::try_from(number % 10).expect("a digit");
        number /= 10;
    }
}

impl Soak {
    fn run(&mut self) -> Result<(), String> {
        let mut ready = Vec::new();
        let (mut told, mut alive_at, mut alive) = (0, Instant::now(), 0);
        while self.answered < self.plan.frames {
            if self.until.is_none_or(|until| Instant::now() < until) {
                self.start_what_is_due()?;
            } else if self.answered == self.frames.made {
                break;
            }
            self.poller
                .wait(&mut ready, Duration::from_millis(5))
                .map_err(|error| error.to_string())?;
            for &event in &ready {
                self.serve(event)?;
            }
            if self.answered != alive {
                (alive, alive_at) = (self.answered, Instant::now());
            } else if alive_at.elapsed() > PATIENCE {
                return Err(format!("nothing came back for {PATIENCE:?}; {}", self.line()));
            }
            let part = self.answered * LINES / self.plan.frames;
            if part != told {
                told = part;
                println!("{}", self.line());
            }
        }
        self.slots.clear();
        println!("{}", self.line());
        Ok(())
    }

    fn line(&self) -> String {
        format!(
            "{{\"sent\": {}, \"answered\": {}, \"busy\": {}, \"names\": {}, \"short\": {}, \
             \"lasting\": {}}}",
            self.frames.made, self.answered, self.busy, self.frames.named, self.ended, self.lasting_begun,
        )
    }

    /// Begin short connections, and fill the windows of lasting ones, as long as neither is ahead of the other.
    #[allow(clippy::cast_precision_loss)] // shares of the whole
    fn start_what_is_due(&mut self) -> Result<(), String> {
        let lasting_frames = self.plan.frames - self.plan.connections * self.plan.each;
        for token in self.lasting..self.slots.len() {
            let lasting_done = self.by_lasting as f64 / lasting_frames as f64;
            let due = self.begun as f64 <= (lasting_done + AHEAD) * self.plan.connections as f64;
            if self.slots[token].is_none() && self.begun < self.plan.connections && due {
                self.begun += 1;
                self.connect(token, false)?;
                self.send(token, self.plan.each)?;
            }
        }
        let short_done = match self.plan.connections {
            0 => 1.0,
            all => self.begun as f64 / all as f64,
        };
        for turn in 0..self.lasting {
            let token = (self.turn + turn) % self.lasting;
            if self.by_lasting as f64 > (short_done + AHEAD) * lasting_frames as f64 {
                break;
            }
            let waiting = self.slots[token].as_ref().map_or(0, |slot| slot.waiting);
            let room = (self.plan.window - waiting).min(lasting_frames - self.by_lasting);
            // Half a window at a time, like pipelining clients. The last ones as they are.
            if room > 0 && (room >= self.plan.window / 2 || lasting_frames - self.by_lasting <= self.plan.window) {
                // Not before, because silent connections are closed soon.
                if self.slots[token].is_none() {
                    self.connect(token, true)?;
                    self.lasting_begun += 1;
                }
                self.by_lasting += room;
                self.send(token, room)?;
            }
        }
        self.turn = (self.turn + 1) % self.lasting;
        Ok(())
    }

    fn connect(&mut self, token: usize, lasts: bool) -> Result<(), String> {
        let started = Instant::now();
        let stream = loop {
            match TcpStream::connect_timeout(&self.plan.target, PATIENCE) {
                Ok(stream) => break stream,
                // Ports of connections that just ended are free again after a second.
                Err(error) if error.kind() == ErrorKind::AddrNotAvailable && started.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(format!("cannot connect to {}: {error}", self.plan.target)),
            }
        };
        stream
            .set_nodelay(true)
            .and_then(|()| stream.set_nonblocking(true))
            .and_then(|()| self.poller.add(&stream, token, Interest::Read))
            .map_err(|error| error.to_string())?;
        self.slots[token] = Some(Slot {
            stream,
            answers: Scanner::default(),
            unsent: Vec::new(),
            interest: Interest::Read,
            waiting: 0,
            lasts,
        });
        Ok(())
    }

    fn send(&mut self, token: usize, frames: u64) -> Result<(), String> {
        let Some(slot) = &mut self.slots[token] else {
            return Ok(());
        };
        for _ in 0..frames {
            self.frames.push(&mut slot.unsent);
        }
        slot.waiting += frames;
        self.flush(token)
    }

    fn flush(&mut self, token: usize) -> Result<(), String> {
        let Some(slot) = &mut self.slots[token] else {
            return Ok(());
        };
        while !slot.unsent.is_empty() {
            match slot.stream.write(&slot.unsent) {
                Ok(written) => drop(slot.unsent.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("a connection broke: {error}; {}", self.line())),
            }
        }
        let interest = if slot.unsent.is_empty() {
            Interest::Read
        } else {
            Interest::Both
        };
        if interest != slot.interest {
            slot.interest = interest;
            self.poller
                .modify(&slot.stream, token, interest)
                .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn serve(&mut self, event: Ready) -> Result<(), String> {
        if event.writable {
            self.flush(event.token)?;
        }
        if !event.readable {
            return Ok(());
        }
        let Some(slot) = &mut self.slots[event.token] else {
            return Ok(());
        };
        let read = match slot.stream.read(&mut self.buffer) {
            Ok(0) => return Err(format!("a connection was closed by the other side; {}", self.line())),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(format!("a connection broke: {error}; {}", self.line())),
        };
        let (mut answers, mut busy) = (0, 0);
        slot.answers
            .scan(&self.buffer[..read], |head| {
                if let Some((code, _)) = head.answer() {
                    answers += 1;
                    busy += u64::from(code == SYSTEM_BUSY);
                }
            })
            .map_err(str::to_owned)?;
        if answers > slot.waiting {
            return Err("more answers came than there were requests".to_owned());
        }
        slot.waiting -= answers;
        self.answered += answers;
        self.busy += busy;
        if slot.waiting == 0 && !slot.lasts {
            self.slots[event.token] = None;
            self.ended += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scanner::{head_of, measure};

    fn made(frames: u64, names: u64) -> Vec<(String, u32)> {
        let plan = Plan {
            target: "127.0.0.1:1".parse().unwrap(),
            frames,
            names,
            connections: 0,
            each: 1,
            window: 1,
        };
        let mut making = Frames::new(160, &plan).unwrap();
        (0..frames)
            .map(|_| {
                let mut frame = Vec::new();
                making.push(&mut frame);
                let (head_len, frame_len) = measure(&frame).unwrap();
                assert_eq!(frame_len, Some(frame.len()));
                let head = head_of(&frame[..head_len]);
                let text = String::from_utf8(head.header.to_vec()).unwrap();
                let at = text.find("bench").unwrap();
                (text[at..at + 13].to_owned(), head.opaque_to_answer().unwrap())
            })
            .collect()
    }

    #[test]
    fn new_names_are_spread_evenly_and_all_there() {
        let frames = made(5000, 500);
        let new: Vec<_> = frames
            .iter()
            .map(|(name, _)| name.as_str() >= "bench10001000")
            .collect();
        for tenth in new.chunks(500) {
            assert_eq!(tenth.iter().filter(|&&is| is).count(), 50);
        }
        let distinct: std::collections::HashSet<_> = frames.iter().map(|(name, _)| name).collect();
        assert_eq!(
            distinct.iter().filter(|name| name.as_str() >= "bench10001000").count(),
            500
        );
    }

    #[test]
    fn every_frame_has_an_opaque_of_its_own() {
        let frames = made(100, 1);
        assert_eq!(frames[0].1, FIRST_OPAQUE);
        assert_eq!(frames[99].1, FIRST_OPAQUE + 99);
    }
}
