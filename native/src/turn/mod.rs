//! `Turn`: serves lent connections. Each call serves all that are ready.
//!
//! A connection has two sockets, owned by Python, and a `Reading`, which implements the protocol. A connection *leaves*
//! if its reading cannot handle a frame, or if a stream ends or fails. It is then no longer served.
//!
//! Readiness is edge-triggered, so each socket stays in its rank's queue until it has been drained. Brokers are read
//! first, because clients are waiting for their answers, then clients, and finally sockets whose last read filled the
//! buffer, which are usually floods. A turn reads each socket once.

pub mod amqp091;
pub mod amqp10;
pub mod judge;
pub mod rocketmq;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsRawFd, RawFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::errno::Errno;
use nix::sys::socket::{recv, sendmsg, shutdown, MsgFlags, Shutdown};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyIndexError, PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3::{PyTraverseError, PyVisit};

pub use sluice_native_core::out::{Out, Piece, BROKER, CLIENT};

use crate::row::Second;

/// The size of a read, and its size after a read that filled the buffer.
const CHUNK_BYTES: usize = 256 * 1024;
const LARGE_CHUNK_BYTES: usize = 2 * 1024 * 1024;
/// If an incomplete frame is larger, the connection leaves.
pub const MAX_KEPT_BYTES: usize = 64 * 1024;
/// A peer is not read while more unwritten data is waiting for it.
pub const MAX_UNWRITTEN_BYTES: usize = 1024 * 1024;
/// Number of sockets read at once in each rank: brokers, clients, floods.
const READ_AT_ONCE: [usize; 3] = [128, 16, 1];
/// A read that contains more runs, or more runs decided by Python, continues in another turn.
const MAX_RUNS_PER_READ: usize = 4096;
const MAX_REQUESTS_PER_READ: usize = 64;
/// Larger buffers are freed when they are empty.
const MAX_IDLE_BYTES: usize = 4096;
const EVENTS: usize = 256;
const MAX_ROUND_TRIPS: usize = 1024;
/// Linux's `IOV_MAX`.
const MAX_SLICES: usize = 1024;

pub enum Next {
    /// Start of an incomplete frame, to be read again when more bytes have arrived.
    Keep(usize),
    /// Start of data to be read in another turn.
    More(usize),
    /// Start of data for Python.
    Leave(usize),
}

pub struct Context<'a> {
    pub now_ns: i64,
    pub second: &'a Py<Second>,
    pub clock: &'a Py<PyAny>,
    pub report: &'a mut Report,
    /// How many more runs may be decided in this read, in total and by Python.
    pub runs_left: usize,
    pub asks_left: usize,
}

impl Context<'_> {
    pub fn took_long(&self) -> bool {
        self.runs_left == 0 || self.asks_left == 0
    }

    pub fn clock_ns(&self, py: Python<'_>) -> PyResult<i64> {
        self.clock.call0(py)?.extract(py)
    }

    pub fn decided(&mut self, py: Python<'_>, requests: usize) -> PyResult<()> {
        if requests > 0 {
            let took_ns = self.clock_ns(py)? - self.now_ns;
            self.report.processing.push((took_ns, u32::try_from(requests).unwrap_or(u32::MAX)));
        }
        Ok(())
    }
}

#[derive(Default)]
struct Signals {
    answers: u64,
    busy: u64,
    round_trips: Vec<i64>,
}

#[derive(Default)]
pub struct Report {
    pub frames: [u64; 2],
    bytes: [u64; 2],
    /// Nanoseconds from reading to deciding, and the number of requests.
    pub processing: Vec<(i64, u32)>,
    round_trips: Vec<i64>,
    signals: Vec<Signals>,
    scope: usize,
    events: Vec<(usize, u8)>,
    pub system_calls: u64,
}

impl Report {
    pub fn answered(&mut self, answers: u64, busy: u64) {
        if let Some(signals) = self.signals.get_mut(self.scope) {
            signals.answers += answers;
            signals.busy += busy;
        }
    }

    pub fn round_trip(&mut self, took_ns: i64) {
        self.round_trips.push(took_ns);
        let signals = self.signals.get_mut(self.scope);
        if let Some(signals) = signals.filter(|signals| signals.round_trips.len() < MAX_ROUND_TRIPS) {
            signals.round_trips.push(took_ns);
        }
    }
}

/// Codes of events. See `sluice_native.pyi`.
const LEFT: u8 = 0;
const STALLED: u8 = 1;
const FLOWS: u8 = 2;
const ENDS: u8 = 3;
const ENDED: u8 = 4;
const BROKEN: u8 = 5;

pub trait Reading: Send + Sync {
    /// Read a chunk from one peer. Everything before the returned offset is in `out` or discarded.
    fn read(
        &mut self,
        py: Python<'_>,
        side: usize,
        chunk: &[u8],
        context: &mut Context<'_>,
        out: &mut Out,
    ) -> PyResult<Next>;

    /// Whether the end of the client's stream can be forwarded.
    fn between_frames(&self) -> bool {
        false
    }

    fn take_counts(&mut self, py: Python<'_>) -> PyResult<(u64, u64)>;

    fn unanswered(&self, py: Python<'_>) -> u64;

    /// The reading must not be used afterwards.
    fn give_back(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>>;

    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError>;
}

#[pyclass(module = "sluice_native")]
pub struct Lent {
    reading: Option<Box<dyn Reading>>,
    /// Each peer's incomplete frame, which the session had already read.
    kept: [Vec<u8>; 2],
}

impl Lent {
    pub fn new(reading: Box<dyn Reading>, kept: [Vec<u8>; 2]) -> Self {
        Self { reading: Some(reading), kept }
    }
}

type Fed = ([Vec<Py<PyAny>>; 2], usize, bool, [u64; 2], Vec<(i64, u32)>, Vec<i64>, (u64, u64));

#[pymethods]
impl Lent {
    fn feed(
        &mut self,
        py: Python<'_>,
        side: usize,
        chunk: PyBuffer<u8>,
        now_ns: i64,
        clock: Py<PyAny>,
        second: Py<Second>,
    ) -> PyResult<Fed> {
        let reading = self
            .reading
            .as_mut()
            .ok_or_else(|| PyRuntimeError::new_err("the reader cannot be used while it is lent to a turn"))?;
        let mut report = Report { signals: vec![Signals::default()], ..Report::default() };
        let mut out = Out::default();
        let (runs_left, asks_left) = (usize::MAX, usize::MAX);
        let mut context = Context { now_ns, second: &second, clock: &clock, report: &mut report, runs_left, asks_left };
        // Copied, because Python may be called while the chunk is being read.
        let bytes = chunk.to_vec(py)?;
        let read = catch_unwind(AssertUnwindSafe(|| reading.read(py, side, &bytes, &mut context, &mut out)));
        let (stop, leaves) = match read.unwrap_or_else(|_| Err(panicked()))? {
            Next::Keep(stop) => (stop, false),
            Next::More(stop) | Next::Leave(stop) => (stop, true),
        };
        let piece = |piece: &Piece| -> PyResult<Py<PyAny>> {
            Ok(match piece {
                Piece::Chunk(range) => (range.start, range.end).into_pyobject(py)?.into_any().unbind(),
                Piece::Own(range) => PyBytes::new(py, &out.own[range.clone()]).into_any().unbind(),
            })
        };
        let pieces = |to: usize| out.to[to].iter().map(piece).collect::<PyResult<_>>();
        let pieces = [pieces(CLIENT)?, pieces(BROKER)?];
        let answers = report.signals.first().map_or((0, 0), |signals| (signals.answers, signals.busy));
        Ok((pieces, stop, leaves, report.frames, report.processing, report.round_trips, answers))
    }

    fn take_kept(&mut self, py: Python<'_>) -> [Py<PyBytes>; 2] {
        std::mem::take(&mut self.kept).map(|kept| PyBytes::new(py, &kept).unbind())
    }

    fn take_counts(&mut self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.reading.as_mut().map_or(Ok((0, 0)), |reading| reading.take_counts(py))
    }

    fn unanswered(&self, py: Python<'_>) -> u64 {
        self.reading.as_ref().map_or(0, |reading| reading.unanswered(py))
    }

    fn give_back(&mut self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.reading.take().map_or_else(
            || Err(PyRuntimeError::new_err("the reader cannot be given back while it is lent to a turn")),
            |mut reading| reading.give_back(py),
        )
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.reading.as_ref().map_or(Ok(()), |reading| reading.traverse(&visit))
    }
}

#[allow(clippy::struct_excessive_bools)]
#[derive(Default)]
struct End {
    fd: RawFd,
    readable: bool,
    /// The stream has ended or failed, so a short read does not mean that it is drained.
    closing: bool,
    queued: bool,
    large: bool,
    kept: Vec<u8>,
    /// Kept data from this offset on is handled before more data is received.
    goes_on: Option<usize>,
    /// Data that the kernel did not accept, and how many bytes of it have been sent since.
    rest: Vec<u8>,
    sent: usize,
    read_bytes: u64,
    /// Saved because the kernel reports an error only once.
    errno: i32,
}

impl End {
    /// `unread` follows the kept data. It is handled before the socket is read.
    fn new(fd: RawFd, mut kept: Vec<u8>, unread: &[u8]) -> Self {
        kept.extend_from_slice(unread);
        Self { fd, kept, goes_on: (!unread.is_empty()).then_some(0), ..Self::default() }
    }

    fn unwritten(&self) -> usize {
        self.rest.len() - self.sent
    }

    /// Returns the number of bytes sent, and whether the socket is usable.
    fn send<'a>(&self, parts: impl Iterator<Item = IoSlice<'a>>, report: &mut Report) -> (usize, bool) {
        let mut parts: Vec<IoSlice> = parts.collect();
        let mut left = &mut parts[..];
        let mut taken = 0;
        while !left.is_empty() {
            report.system_calls += 1;
            match sendmsg::<()>(self.fd, &left[..left.len().min(MAX_SLICES)], &[], MsgFlags::MSG_NOSIGNAL, None) {
                Ok(sent) => {
                    taken += sent;
                    IoSlice::advance_slices(&mut left, sent);
                }
                Err(Errno::EINTR) => (),
                Err(errno) => return (taken, errno == Errno::EAGAIN),
            }
        }
        (taken, true)
    }

    /// Returns false if the socket has failed.
    fn write_on(&mut self, report: &mut Report) -> bool {
        let (sent, alive) = self.send([IoSlice::new(&self.rest[self.sent..])].into_iter(), report);
        self.sent += sent;
        if self.unwritten() == 0 {
            (self.rest, self.sent) = (Vec::new(), 0);
        }
        alive
    }

    fn write(&mut self, pieces: &[Piece], chunk: &[u8], own: &[u8], report: &mut Report) -> bool {
        let bytes = |piece: &Piece| match piece {
            Piece::Chunk(range) => IoSlice::new(&chunk[range.clone()]),
            Piece::Own(range) => IoSlice::new(&own[range.clone()]),
        };
        let pieces = pieces.iter().map(bytes);
        let (mut sent, alive) = if self.unwritten() == 0 { self.send(pieces.clone(), report) } else { (0, true) };
        for piece in pieces {
            let skip = sent.min(piece.len());
            self.rest.extend_from_slice(&piece[skip..]);
            sent -= skip;
        }
        alive
    }
}

#[allow(clippy::struct_excessive_bools)]
struct Conn {
    ends: [End; 2],
    reading: Box<dyn Reading>,
    scope: usize,
    read_ns: i64,
    /// The turn forwards the end of the client's stream, and the connection ends when the broker's stream ends.
    ends_here: bool,
    ended: bool,
    over: bool,
    stalled: bool,
    left: bool,
}

impl Conn {
    /// Whether a peer has data to read that the other peer can accept. Checked again after writes.
    fn may_be_read(&self, side: usize) -> bool {
        let (end, other) = (&self.ends[side], &self.ends[1 - side]);
        let has_some = end.readable || end.goes_on.is_some();
        !self.left && !self.over && has_some && other.unwritten() == 0 && end.unwritten() <= MAX_UNWRITTEN_BYTES
    }
}

type Buffer = Box<[u8]>;

#[pyclass(module = "sluice_native")]
pub struct Turn {
    poll: Poll,
    events: Events,
    conns: Vec<Option<Box<Conn>>>,
    free: Vec<usize>,
    /// Connections whose client has ended its stream since the last report.
    ending: Vec<usize>,
    /// By rank.
    queues: [VecDeque<usize>; 3],
    rank: usize,
    quota: usize,
    buffer: Buffer,
    out: Out,
    report: Report,
    clock: Py<PyAny>,
    second_at: Py<PyAny>,
    failed: Py<PyAny>,
}

fn panicked() -> PyErr {
    PyRuntimeError::new_err("the compiled extension panicked")
}

fn token(number: usize, side: usize) -> usize {
    number * 2 + side
}

type Served = (bool, Vec<(usize, u8)>, [u64; 2], [u64; 2], Vec<(i64, u32)>, Vec<i64>);
type Taken = (Py<PyAny>, [Py<PyBytes>; 2], [Py<PyBytes>; 2], [Py<PyBytes>; 2], [i32; 2]);

impl Turn {
    fn queue(&mut self, number: usize, side: usize) {
        let Some(conn) = self.conns.get_mut(number).and_then(Option::as_mut) else { return };
        let may_be_read = conn.may_be_read(side);
        let end = &mut conn.ends[side];
        if end.queued || !may_be_read {
            return;
        }
        end.queued = true;
        let rank = usize::from(side == CLIENT) + usize::from(end.large || end.goes_on.is_some());
        self.queues[rank].push_back(token(number, side));
    }

    fn look(&mut self) -> PyResult<()> {
        let mut events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        self.report.system_calls += 1;
        let polled = self.poll.poll(&mut events, Some(Duration::ZERO));
        for event in &events {
            let (number, side) = (event.token().0 / 2, event.token().0 % 2);
            let Some(conn) = self.conns.get_mut(number).and_then(Option::as_mut).filter(|conn| !conn.left) else {
                continue;
            };
            let end = &mut conn.ends[side];
            // If the client's stream has ended, a closed broker socket is expected.
            let is_closed = event.is_write_closed() && !(conn.ended && side == BROKER);
            if event.is_error() || is_closed {
                // Python gets the error when it uses the socket.
                self.leave(number, BROKEN);
                continue;
            }
            end.closing |= event.is_read_closed();
            end.readable |= event.is_readable();
            if event.is_writable() && end.unwritten() > 0 {
                self.write_on(number, side);
            }
            self.queue(number, side);
        }
        self.events = events;
        match polled {
            Err(error) if error.kind() != std::io::ErrorKind::Interrupted => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn write_on(&mut self, number: usize, side: usize) {
        let Some(conn) = self.conns[number].as_mut() else { return };
        if !conn.ends[side].write_on(&mut self.report) {
            self.leave(number, BROKEN);
        } else if conn.ends[side].unwritten() == 0 {
            if std::mem::take(&mut conn.stalled) {
                self.report.events.push((number, FLOWS));
            }
            self.queue(number, 1 - side);
            self.queue(number, side);
        }
    }

    fn leave(&mut self, number: usize, why: u8) {
        let Some(conn) = self.conns[number].as_mut().filter(|conn| !conn.left) else { return };
        conn.left = true;
        for end in &conn.ends {
            self.report.system_calls += 1;
            let _ = self.poll.registry().deregister(&mut SourceFd(&end.fd));
        }
        self.report.events.push((number, why));
    }

    fn read(
        &mut self,
        py: Python<'_>,
        number: usize,
        side: usize,
        second: &mut Option<(Py<Second>, i64)>,
    ) -> PyResult<Option<u8>> {
        let Some(conn) = self.conns.get_mut(number).and_then(Option::as_mut) else { return Ok(None) };
        conn.ends[side].queued = false;
        if !conn.may_be_read(side) {
            return Ok(None);
        }
        let now_ns: i64 = self.clock.call0(py)?.extract(py)?;
        if second.as_ref().is_none_or(|(_, ends_ns)| now_ns >= *ends_ns) {
            *second = Some(self.second_at.call1(py, (now_ns,))?.extract(py)?);
        }
        let (Some((second, _)), Some(mut conn)) = (&*second, self.conns[number].take()) else { return Ok(None) };
        let mut buffer = std::mem::take(&mut self.buffer);
        // A panic only ends this connection.
        let read = AssertUnwindSafe(|| self.read_into(py, &mut buffer, number, &mut conn, side, now_ns, second));
        let served = catch_unwind(read).unwrap_or_else(|_| Err(panicked()));
        self.buffer = buffer;
        self.conns[number] = Some(conn);
        served
    }

    fn read_into(
        &mut self,
        py: Python<'_>,
        buffer: &mut [u8],
        number: usize,
        conn: &mut Conn,
        side: usize,
        now_ns: i64,
        second: &Py<Second>,
    ) -> PyResult<Option<u8>> {
        let (first, last) = conn.ends.split_at_mut(1);
        let (end, other) = if side == CLIENT { (&mut first[0], &mut last[0]) } else { (&mut last[0], &mut first[0]) };
        let resumed = end.goes_on.take();
        let kept = if resumed.is_some() { std::mem::take(&mut end.kept) } else { Vec::new() };
        let chunk = if let Some(from) = resumed {
            &kept[from..]
        } else {
            let room = if end.large { LARGE_CHUNK_BYTES } else { CHUNK_BYTES };
            self.report.system_calls += 1;
            let got = match recv(end.fd, &mut buffer[MAX_KEPT_BYTES..MAX_KEPT_BYTES + room], MsgFlags::empty()) {
                Ok(0) => {
                    let is_clean = conn.ends_here && end.kept.is_empty() && conn.reading.between_frames();
                    if !is_clean || (side == BROKER && !conn.ended) {
                        return Ok(Some(BROKEN));
                    }
                    end.readable = false;
                    if side == BROKER {
                        conn.over = true;
                        self.report.events.push((number, ENDED));
                    } else if !std::mem::replace(&mut conn.ended, true) {
                        self.ending.push(number);
                        self.report.system_calls += 1;
                        return Ok(shutdown(other.fd, Shutdown::Write).is_err().then_some(BROKEN));
                    }
                    return Ok(None);
                }
                Ok(got) => got,
                Err(Errno::EAGAIN) if !end.closing => {
                    end.readable = false;
                    end.large = false;
                    return Ok(None);
                }
                Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
                Err(errno) => {
                    end.errno = errno as i32;
                    return Ok(Some(BROKEN));
                }
            };
            end.large = got > CHUNK_BYTES || got == room;
            end.readable = got == room || end.closing;
            let begin = MAX_KEPT_BYTES - end.kept.len();
            buffer[begin..MAX_KEPT_BYTES].copy_from_slice(&end.kept);
            end.kept.clear();
            end.read_bytes += got as u64;
            self.report.bytes[side] += got as u64;
            &buffer[begin..MAX_KEPT_BYTES + got]
        };
        conn.read_ns = now_ns;
        self.report.scope = conn.scope;
        self.out.clear();
        let (reading, out) = (&mut conn.reading, &mut self.out);
        let (runs_left, asks_left) = (MAX_RUNS_PER_READ, MAX_REQUESTS_PER_READ);
        let mut context =
            Context { now_ns, second, clock: &self.clock, report: &mut self.report, runs_left, asks_left };
        let next = reading.read(py, side, chunk, &mut context, out)?;
        // Refusals must not wait for a slow broker.
        let alive = end.write(&self.out.to[side], chunk, &self.out.own, &mut self.report)
            & other.write(&self.out.to[1 - side], chunk, &self.out.own, &mut self.report);
        if side == CLIENT && other.unwritten() > 0 && !conn.stalled {
            conn.stalled = true;
            self.report.events.push((number, STALLED));
        }
        let (from, stays, is_begun) = match next {
            Next::Keep(from) if chunk.len() - from <= MAX_KEPT_BYTES => (from, true, true),
            Next::More(from) => (from, true, false),
            Next::Keep(from) | Next::Leave(from) => (from, false, false),
        };
        let is_read_again = !is_begun && from < chunk.len();
        end.goes_on = is_read_again.then_some(resumed.map_or(0, |start| start + from));
        if end.kept.capacity() > MAX_IDLE_BYTES {
            end.kept = Vec::new();
        }
        if resumed.is_some() && end.goes_on.is_some() {
            end.kept = kept;
        } else {
            end.kept.extend_from_slice(&chunk[from..]);
        }
        Ok(match (alive, stays) {
            (false, _) => Some(BROKEN),
            (true, false) => Some(LEFT),
            (true, true) => None,
        })
    }

    fn conn(&mut self, number: usize) -> PyResult<&mut Conn> {
        let conn = self.conns.get_mut(number).and_then(Option::as_deref_mut);
        conn.ok_or_else(|| PyIndexError::new_err("no such connection"))
    }

    /// Returns false if time runs out first.
    fn serve_until(&mut self, py: Python<'_>, ends: Instant) -> PyResult<bool> {
        let mut second: Option<(Py<Second>, i64)> = None;
        loop {
            if self.quota == 0 {
                self.rank = (self.rank + 1) % READ_AT_ONCE.len();
                if self.rank == 0 {
                    self.look()?;
                    if self.queues.iter().all(VecDeque::is_empty) {
                        self.rank = READ_AT_ONCE.len() - 1;
                        return Ok(true);
                    }
                }
                self.quota = self.queues[self.rank].len().min(READ_AT_ONCE[self.rank]);
                continue;
            }
            self.quota -= 1;
            let Some(next) = self.queues[self.rank].pop_front() else {
                self.quota = 0;
                continue;
            };
            let (number, side) = (next / 2, next % 2);
            match self.read(py, number, side, &mut second) {
                Ok(None) => self.queue(number, side),
                Ok(Some(why)) => self.leave(number, why),
                Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => return Err(error),
                Err(error) => {
                    self.failed.call1(py, (number, error))?;
                    self.leave(number, LEFT);
                }
            }
            if Instant::now() >= ends {
                return Ok(false);
            }
        }
    }
}

#[pymethods]
impl Turn {
    #[new]
    fn new(clock: Py<PyAny>, second_at: Py<PyAny>, failed: Py<PyAny>) -> PyResult<Self> {
        Ok(Self {
            poll: Poll::new()?,
            events: Events::with_capacity(EVENTS),
            conns: Vec::new(),
            free: Vec::new(),
            ending: Vec::new(),
            queues: Default::default(),
            rank: READ_AT_ONCE.len() - 1,
            quota: 0,
            buffer: vec![0; MAX_KEPT_BYTES + LARGE_CHUNK_BYTES].into(),
            out: Out::default(),
            report: Report::default(),
            clock,
            second_at,
            failed,
        })
    }

    fn fileno(&self) -> RawFd {
        self.poll.as_raw_fd()
    }

    #[getter]
    fn system_calls(&self) -> u64 {
        self.report.system_calls
    }

    fn __len__(&self) -> usize {
        self.conns.len() - self.free.len()
    }

    #[pyo3(signature = (client, broker, lent, ends_here, unread, scope = 0))]
    fn lend(
        &mut self,
        client: RawFd,
        broker: RawFd,
        lent: &Bound<'_, Lent>,
        ends_here: bool,
        unread: [Vec<u8>; 2],
        scope: usize,
    ) -> PyResult<usize> {
        let number = self.free.last().copied().unwrap_or(self.conns.len());
        let both = Interest::READABLE | Interest::WRITABLE;
        let registry = self.poll.registry();
        self.report.system_calls += 2;
        registry.register(&mut SourceFd(&client), Token(token(number, CLIENT)), both)?;
        if let Err(error) = registry.register(&mut SourceFd(&broker), Token(token(number, BROKER)), both) {
            registry.deregister(&mut SourceFd(&client))?;
            return Err(error.into());
        }
        let mut lent = lent.try_borrow_mut()?;
        let reading =
            lent.reading.take().ok_or_else(|| PyRuntimeError::new_err("the reader is already lent to a turn"))?;
        let [of_client, of_broker] = std::mem::take(&mut lent.kept);
        let ends = [End::new(client, of_client, &unread[CLIENT]), End::new(broker, of_broker, &unread[BROKER])];
        let conn = Conn {
            ends,
            reading,
            scope,
            read_ns: 0,
            ends_here,
            ended: false,
            over: false,
            stalled: false,
            left: false,
        };
        let conn = Box::new(conn);
        let scopes = self.report.signals.len().max(scope + 1);
        self.report.signals.resize_with(scopes, Signals::default);
        if self.free.pop().is_some() {
            self.conns[number] = Some(conn);
        } else {
            self.conns.push(Some(conn));
        }
        // The sockets are writable, so Python will call `serve`.
        self.queue(number, CLIENT);
        self.queue(number, BROKER);
        Ok(number)
    }

    fn serve(&mut self, py: Python<'_>, budget_ns: u64) -> PyResult<Served> {
        let is_idle = self.serve_until(py, Instant::now() + Duration::from_nanos(budget_ns))?;
        for number in self.ending.drain(..) {
            let conn = self.conns.get(number).and_then(Option::as_ref);
            if conn.is_some_and(|conn| conn.ended && !conn.over && !conn.left) {
                self.report.events.push((number, ENDS));
            }
        }
        let Report { frames, bytes, processing, round_trips, events, .. } = &mut self.report;
        Ok((
            is_idle,
            std::mem::take(events),
            std::mem::take(frames),
            std::mem::take(bytes),
            std::mem::take(processing),
            std::mem::take(round_trips),
        ))
    }

    fn take_counts(&mut self, py: Python<'_>, number: usize) -> PyResult<(u64, u64, [u64; 2], i64)> {
        let conn = self.conn(number)?;
        let (requests, refused) = conn.reading.take_counts(py)?;
        let bytes = [0, 1].map(|side| std::mem::take(&mut conn.ends[side].read_bytes));
        Ok((requests, refused, bytes, conn.read_ns))
    }

    fn take_signals(&mut self, py: Python<'_>) -> Vec<(u64, u64, Vec<i64>, u64)> {
        let mut unanswered = vec![0; self.report.signals.len()];
        // Skip clients that do not read, because their answers may have arrived already.
        for conn in self.conns.iter().flatten().filter(|conn| conn.ends[CLIENT].unwritten() == 0) {
            unanswered[conn.scope] += conn.reading.unanswered(py);
        }
        let signals = self.report.signals.iter_mut().map(std::mem::take).zip(unanswered);
        signals.map(|(of, unanswered)| (of.answers, of.busy, of.round_trips, unanswered)).collect()
    }

    fn take(&mut self, py: Python<'_>, number: usize) -> PyResult<Taken> {
        self.conn(number)?;
        self.leave(number, LEFT);
        // Queue entries that remain do no harm to the next connection with this number.
        self.report.events.retain(|(other, _)| *other != number);
        let Some(mut conn) = self.conns[number].take() else { return Err(PyIndexError::new_err("no such connection")) };
        self.free.push(number);
        let bytes = |bytes: &[u8]| PyBytes::new(py, bytes).unbind();
        // If `goes_on` is set, the kept data is unread.
        let begun = conn.ends.each_ref().map(|end| bytes(if end.goes_on.is_some() { &[] } else { &end.kept }));
        let unread = conn.ends.each_ref().map(|end| bytes(end.goes_on.map_or(&[], |from| &end.kept[from..])));
        let unwritten = conn.ends.each_ref().map(|end| bytes(&end.rest[end.sent..]));
        let errnos = conn.ends.each_ref().map(|end| end.errno);
        let state = catch_unwind(AssertUnwindSafe(|| conn.reading.give_back(py)));
        let state = state.unwrap_or_else(|_| Err(panicked()));
        Ok((state?, begun, unread, unwritten, errnos))
    }

    /// The sockets are closed, so the kernel has already removed them from its list.
    fn forget(&mut self, number: usize) -> PyResult<()> {
        self.conn(number)?;
        self.report.events.retain(|(other, _)| *other != number);
        self.conns[number] = None;
        self.free.push(number);
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for of_python in [&self.clock, &self.second_at, &self.failed] {
            visit.call(of_python)?;
        }
        self.conns.iter().flatten().try_for_each(|conn| conn.reading.traverse(&visit))
    }
}
