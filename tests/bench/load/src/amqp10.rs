//! AMQP 1.0 of the bench: frames and their fields, the start of a connection, and both ends of a session.
//!
//! Section numbers are those of the OASIS specification, part 2.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const SASL_HEADER: &[u8; 8] = b"AMQP\x03\x01\0\0";
const HEADER: &[u8; 8] = b"AMQP\0\x01\0\0";
const PREFIX_BYTES: usize = 8;
const FRAME_MAX: usize = 131_072;
/// A session window without effect.
const WIDE: u32 = 1 << 30;
const PATIENCE: Duration = Duration::from_secs(10);

const OPEN: u8 = 0x10;
const BEGIN: u8 = 0x11;
const ATTACH: u8 = 0x12;
const FLOW: u8 = 0x13;
const TRANSFER: u8 = 0x14;
const DISPOSITION: u8 = 0x15;
const DETACH: u8 = 0x16;
const END: u8 = 0x17;
const CLOSE: u8 = 0x18;
const ACCEPTED: u8 = 0x24;
const SOURCE: u8 = 0x28;
const TARGET: u8 = 0x29;
const MECHANISMS: u8 = 0x40;
const INIT: u8 = 0x41;
const OUTCOME: u8 = 0x44;

const AMQP_FRAME: u8 = 0;
const SASL_FRAME: u8 = 1;

/// A list's encoded fields.
#[derive(Default)]
struct Fields {
    bytes: Vec<u8>,
    count: u8,
}

impl Fields {
    fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self.count += 1;
        self
    }

    fn null(self) -> Self {
        self.raw(&[0x40])
    }

    fn boolean(self, value: bool) -> Self {
        self.raw(&[if value { 0x41 } else { 0x42 }])
    }

    /// Always four bytes, so that frames of a kind have one length.
    fn uint(self, value: u32) -> Self {
        self.raw(&[&[0x70][..], &value.to_be_bytes()].concat())
    }

    fn handle(self, value: u8) -> Self {
        self.raw(&[0x52, value])
    }

    fn ushort(self, value: u16) -> Self {
        self.raw(&[&[0x60][..], &value.to_be_bytes()].concat())
    }

    fn string(self, text: &str) -> Self {
        let length = u8::try_from(text.len()).expect("texts are short");
        self.raw(&[&[0xa1, length][..], text.as_bytes()].concat())
    }

    fn symbol(self, text: &str) -> Self {
        let length = u8::try_from(text.len()).expect("texts are short");
        self.raw(&[&[0xa3, length][..], text.as_bytes()].concat())
    }

    fn binary(self, bytes: &[u8]) -> Self {
        let length = u8::try_from(bytes.len()).expect("what is binary is short");
        self.raw(&[&[0xa0, length][..], bytes].concat())
    }

    fn described(&self, code: u8) -> Vec<u8> {
        let mut out = vec![0, 0x53, code];
        if self.count == 0 {
            out.push(0x45);
        } else {
            let size = u8::try_from(self.bytes.len() + 1).expect("lists are short");
            out.extend([0xc0, size, self.count]);
            out.extend(&self.bytes);
        }
        out
    }
}

fn push_frame(out: &mut Vec<u8>, kind: u8, channel: u16, parts: &[&[u8]]) {
    let length = PREFIX_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
    out.extend(u32::try_from(length).expect("frames are bounded").to_be_bytes());
    out.extend([2, kind]);
    out.extend(channel.to_be_bytes());
    for part in parts {
        out.extend(*part);
    }
}

fn push(out: &mut Vec<u8>, code: u8, fields: &Fields) {
    push_frame(out, AMQP_FRAME, 0, &[&fields.described(code)]);
}

/// A performative's code and fields.
struct Performative<'a> {
    code: u8,
    fields: &'a [u8],
}

impl<'a> Performative<'a> {
    /// None: an empty frame.
    fn of(frame: &'a [u8]) -> Result<Option<Self>, &'static str> {
        let body = frame
            .get(usize::from(frame[4]) * 4..)
            .ok_or("a frame without its body")?;
        if body.is_empty() {
            return Ok(None);
        }
        let (code, list) = match body {
            [0, 0x53, code, list @ ..] | [0, 0x80, 0, 0, 0, 0, 0, 0, 0, code, list @ ..] => (*code, list),
            _ => return Err("a frame without a performative"),
        };
        let fields = match list {
            [0x45, ..] => Some(&list[..0]),
            [0xc0, size, _, fields @ ..] => fields.get(..usize::from(*size).wrapping_sub(1)),
            [0xd0, a, b, c, d, _, _, _, _, fields @ ..] => {
                fields.get(..(u32::from_be_bytes([*a, *b, *c, *d]) as usize).wrapping_sub(4))
            }
            _ => None,
        };
        let fields = fields.ok_or("a performative without its list")?;
        Ok(Some(Self { code, fields }))
    }

    /// The encoded field of a number, null if it is omitted.
    fn raw(&self, number: usize) -> &'a [u8] {
        let mut rest = self.fields;
        for _ in 0..number {
            let Some((_, behind)) = value(rest) else { return &[0x40] };
            rest = behind;
        }
        value(rest).map_or(&[0x40], |(found, _)| found)
    }

    fn uint(&self, number: usize) -> Option<u32> {
        match self.raw(number) {
            [0x43, ..] => Some(0),
            [0x50 | 0x52, small, ..] => Some(u32::from(*small)),
            [0x60, a, b] => Some(u32::from(u16::from_be_bytes([*a, *b]))),
            [0x70, bytes @ ..] => bytes.try_into().ok().map(u32::from_be_bytes),
            _ => None,
        }
    }

    fn needed(&self, number: usize) -> Result<u32, &'static str> {
        self.uint(number).ok_or("a field that must be there is not")
    }

    fn boolean(&self, number: usize) -> bool {
        matches!(self.raw(number), [0x41] | [0x56, 1])
    }
}

fn value(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&constructor, rest) = bytes.split_first()?;
    if constructor == 0 {
        let (descriptor, behind) = value(rest)?;
        let (described, _) = value(behind)?;
        return bytes.split_at_checked(1 + descriptor.len() + described.len());
    }
    let length = match constructor >> 4 {
        4 => 0,
        5 => 1,
        6 => 2,
        7 => 4,
        8 => 8,
        9 => 16,
        0xa | 0xc | 0xe => 1 + usize::from(*rest.first()?),
        _ => 4 + u32::from_be_bytes(*rest.first_chunk()?) as usize,
    };
    bytes.split_at_checked(1 + length)
}

/// The length of a frame from its first four bytes.
fn frame_bytes(start: &[u8]) -> Result<usize, &'static str> {
    let bytes = u32::from_be_bytes(*start.first_chunk().expect("the caller looked")) as usize;
    if (PREFIX_BYTES..=FRAME_MAX).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("a frame is shorter or longer than agreed")
    }
}

#[derive(Default)]
struct Cutter {
    /// Of the incomplete frame.
    rest: Vec<u8>,
}

impl Cutter {
    fn cut(
        &mut self,
        chunk: &[u8],
        mut on_frame: impl FnMut(&[u8]) -> Result<(), &'static str>,
    ) -> Result<(), &'static str> {
        let mut joined = Vec::new();
        let mut left = if self.rest.is_empty() {
            chunk
        } else {
            joined.append(&mut self.rest);
            joined.extend(chunk);
            &joined[..]
        };
        while left.len() >= PREFIX_BYTES {
            let Some((frame, behind)) = left.split_at_checked(frame_bytes(left)?) else {
                break;
            };
            on_frame(frame)?;
            left = behind;
        }
        self.rest.extend(left);
        Ok(())
    }
}

#[derive(Clone, Debug)]
pub struct Link {
    pub address: String,
    pub settled: bool,
}

struct ClientLink {
    attached: bool,
    /// A complete transfer. Delivery-id and delivery-tag are set in each.
    transfer: Vec<u8>,
    id_at: usize,
    tag_at: usize,
    /// Deliveries sent or received so far, 2.6.7's delivery-count from 0.
    count: u32,
    /// delivery-count and link-credit added, from the receiver's last flow.
    limit: u32,
}

/// A client's connection with one session.
pub struct Client {
    cutter: Cutter,
    links: Vec<ClientLink>,
    next_outgoing_id: u32,
    /// The end of the session's window, 2.5.6.
    window_end: u32,
    /// Answered deliveries, and those of them that were not accepted.
    pub answered: u64,
    pub refused: u64,
    turn: usize,
}

impl Client {
    /// Start a connection in blocking mode. The links are attached once `ready`.
    pub fn sign_in(stream: &mut TcpStream, links: &[Link], body_bytes: usize) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(SASL_HEADER)?;
        expect_header(stream, *SASL_HEADER)?;
        expect(stream, MECHANISMS)?;
        let mut out = Vec::new();
        let init = Fields::default().symbol("PLAIN").binary(b"\0guest\0guest");
        push_frame(&mut out, SASL_FRAME, 0, &[&init.described(INIT)]);
        stream.write_all(&out)?;
        let outcome = expect(stream, OUTCOME)?;
        if Performative::of(&outcome)
            .map_err(io::Error::other)?
            .and_then(|said| said.uint(0))
            != Some(0)
        {
            return Err(io::Error::other("the user was not let in"));
        }
        stream.write_all(HEADER)?;
        expect_header(stream, *HEADER)?;
        out.clear();
        let open = Fields::default()
            .string("sluice-bench")
            .string("localhost")
            .uint(to_u32(FRAME_MAX))
            .ushort(10);
        push(&mut out, OPEN, &open);
        push(
            &mut out,
            BEGIN,
            &Fields::default().null().uint(0).uint(WIDE).uint(WIDE).uint(255),
        );
        stream.write_all(&out)?;
        expect(stream, OPEN)?;
        let begun = expect(stream, BEGIN)?;
        let begun = Performative::of(&begun)
            .map_err(io::Error::other)?
            .expect("it was looked for");
        let begun = |number| begun.needed(number).map_err(io::Error::other);
        let mut client = Self::new(begun(2)?);
        out.clear();
        for link in links {
            client.attach(link, body_bytes, &mut out);
        }
        stream.write_all(&out)?;
        stream.set_read_timeout(None)?;
        Ok(client)
    }

    fn new(window: u32) -> Self {
        Self {
            cutter: Cutter::default(),
            links: Vec::new(),
            next_outgoing_id: 0,
            window_end: window,
            answered: 0,
            refused: 0,
            turn: 0,
        }
    }

    fn attach(&mut self, link: &Link, body_bytes: usize, out: &mut Vec<u8>) {
        let handle = u8::try_from(self.links.len()).expect("few links");
        let address = Fields::default().string(&link.address);
        let fields = Fields::default()
            .string(&format!("link-{handle}"))
            .handle(handle)
            .boolean(false)
            .raw(&[0x50, u8::from(link.settled)])
            .raw(&[0x50, 0])
            .raw(&Fields::default().described(SOURCE))
            .raw(&address.described(TARGET))
            .null()
            .null();
        push(out, ATTACH, &fields.uint(0));
        let (transfer, id_at, tag_at) = transfer(handle, link.settled, body_bytes);
        self.links.push(ClientLink {
            attached: false,
            transfer,
            id_at,
            tag_at,
            count: 0,
            limit: 0,
        });
    }

    pub fn ready(&self) -> bool {
        self.links.iter().all(|link| link.attached)
    }

    pub fn transfer_bytes(&self) -> usize {
        self.links[0].transfer.len()
    }

    pub fn sent(&self) -> u64 {
        u64::from(self.next_outgoing_id)
    }

    /// Append transfers of the links in turn, up to a number of bytes. `may` says whether a link may send one more.
    pub fn produce(&mut self, out: &mut Vec<u8>, bytes: usize, may: impl Fn(usize, u64) -> bool) {
        let mut idle = 0;
        while out.len() < bytes && idle < self.links.len() {
            let number = self.turn;
            self.turn = (self.turn + 1) % self.links.len();
            let window = self.window_end.wrapping_sub(self.next_outgoing_id);
            let link = &mut self.links[number];
            let credit = link.limit.wrapping_sub(link.count);
            if window == 0 || credit == 0 || !may(number, u64::from(link.count)) {
                idle += 1;
                continue;
            }
            idle = 0;
            let at = out.len();
            out.extend(&link.transfer);
            let id = self.next_outgoing_id.to_be_bytes();
            out[at + link.id_at..][..4].copy_from_slice(&id);
            out[at + link.tag_at..][..4].copy_from_slice(&id);
            link.count = link.count.wrapping_add(1);
            self.next_outgoing_id = self.next_outgoing_id.wrapping_add(1);
        }
    }

    pub fn take(&mut self, chunk: &[u8]) -> Result<(), String> {
        let mut cutter = std::mem::take(&mut self.cutter);
        let taken = cutter.cut(chunk, |frame| match Performative::of(frame)? {
            None => Ok(()),
            Some(said) => self.hear(&said),
        });
        self.cutter = cutter;
        taken.map_err(|reason| format!("{reason}; it ends with {:?}", String::from_utf8_lossy(tail(chunk))))
    }

    fn hear(&mut self, said: &Performative) -> Result<(), &'static str> {
        match said.code {
            ATTACH => {
                self.link(said.needed(1)?)?.attached = true;
            }
            FLOW => {
                let known = said.uint(0).unwrap_or(0);
                self.window_end = known.wrapping_add(said.needed(1)?);
                if let Some(handle) = said.uint(4) {
                    let count = said.uint(5).unwrap_or(0);
                    let credit = said.uint(6).unwrap_or(0);
                    let link = self.link(handle)?;
                    // Deliveries in flight may exceed a lowered limit.
                    let limit = count.wrapping_add(credit);
                    link.limit = if limit.wrapping_sub(link.count) > WIDE {
                        link.count
                    } else {
                        limit
                    };
                }
            }
            DISPOSITION => {
                let first = said.needed(1)?;
                let count = u64::from(said.uint(2).unwrap_or(first).wrapping_sub(first)) + 1;
                self.answered += count;
                if !matches!(said.raw(4), [0, 0x53, ACCEPTED, ..] | [0, 0x80, .., ACCEPTED, 0x45]) {
                    self.refused += count;
                }
            }
            CLOSE => return Err("the connection was closed"),
            END => return Err("the session was ended"),
            DETACH => return Err("a link was detached"),
            _ => return Err("something that the bench does not use"),
        }
        Ok(())
    }

    fn link(&mut self, handle: u32) -> Result<&mut ClientLink, &'static str> {
        self.links.get_mut(handle as usize).ok_or("an unknown link")
    }
}

fn tail(chunk: &[u8]) -> &[u8] {
    &chunk[chunk.len().saturating_sub(200)..]
}

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).expect("it is small")
}

/// A transfer of one frame with a durable message, and the positions of its delivery-id and its tag.
fn transfer(handle: u8, settled: bool, body_bytes: usize) -> (Vec<u8>, usize, usize) {
    let fields = Fields::default()
        .handle(handle)
        .uint(0)
        .binary(&[0; 4])
        .raw(&[0x43])
        .boolean(settled);
    let mut message = Fields::default().boolean(true).described(0x70);
    message.extend([0, 0x53, 0x75]);
    if let Ok(length) = u8::try_from(body_bytes) {
        message.extend([0xa0, length]);
    } else {
        message.push(0xb0);
        message.extend(to_u32(body_bytes).to_be_bytes());
    }
    message.resize(message.len() + body_bytes, b'x');
    let mut out = Vec::new();
    push_frame(&mut out, AMQP_FRAME, 0, &[&fields.described(TRANSFER), &message]);
    // Behind the frame's prefix, the descriptor, the list's head, the handle and the constructors.
    (out, PREFIX_BYTES + 9, PREFIX_BYTES + 15)
}

fn push_disposition(out: &mut Vec<u8>, receiver: bool, first: u32, last: u32) {
    let fields = Fields::default()
        .boolean(receiver)
        .uint(first)
        .uint(last)
        .boolean(true)
        .raw(&Fields::default().described(ACCEPTED));
    push(out, DISPOSITION, &fields);
}

fn expect_header(stream: &mut TcpStream, header: [u8; 8]) -> io::Result<()> {
    let mut found = [0; 8];
    stream.read_exact(&mut found)?;
    if found == header {
        Ok(())
    } else {
        Err(io::Error::other(format!("{found:?} is not {header:?}")))
    }
}

fn expect(stream: &mut TcpStream, code: u8) -> io::Result<Vec<u8>> {
    loop {
        let mut frame = vec![0; PREFIX_BYTES];
        stream.read_exact(&mut frame)?;
        frame.resize(frame_bytes(&frame).map_err(io::Error::other)?, 0);
        stream.read_exact(&mut frame[PREFIX_BYTES..])?;
        match Performative::of(&frame).map_err(io::Error::other)? {
            Some(said) if said.code == code => return Ok(frame),
            None => {}
            Some(said) => {
                let text = String::from_utf8_lossy(tail(&frame)).into_owned();
                return Err(io::Error::other(format!("{:#x} is not {code:#x}: {text:?}", said.code)));
            }
        }
    }
}

/// A broker's grants: credit of a link and window of a session, renewed once half is used.
#[derive(Clone, Copy, Debug)]
pub struct Granting {
    pub credit: u32,
    pub window: u32,
}

struct BrokerLink {
    count: u32,
    left: u32,
}

/// A broker's connection with one session, on which clients send.
pub struct Broker {
    granting: Granting,
    /// Of the incomplete header or frame.
    cutter: Cutter,
    header: Vec<u8>,
    in_frames: bool,
    sasl: bool,
    links: Vec<BrokerLink>,
    next_incoming_id: u32,
    window_left: u32,
    /// First and last of the unanswered deliveries.
    unsettled: Option<(u32, u32)>,
}

/// The numbers of transfers and answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Came {
    pub transfers: u64,
    pub answered: u64,
}

impl Broker {
    pub fn new(granting: Granting) -> Self {
        Self {
            granting,
            cutter: Cutter::default(),
            header: Vec::new(),
            in_frames: false,
            sasl: false,
            links: Vec::new(),
            next_incoming_id: 0,
            window_left: granting.window,
            unsettled: None,
        }
    }

    pub fn at_boundary(&self) -> bool {
        self.header.is_empty() && self.cutter.rest.is_empty()
    }

    /// Take data, and append the answers.
    pub fn take(&mut self, mut chunk: &[u8], out: &mut Vec<u8>) -> Result<Came, &'static str> {
        let mut came = Came::default();
        while !chunk.is_empty() {
            if !self.in_frames {
                let (more, rest) = chunk.split_at((HEADER.len() - self.header.len()).min(chunk.len()));
                self.header.extend(more);
                chunk = rest;
                if self.header.len() == HEADER.len() {
                    self.greet(out)?;
                }
                continue;
            }
            if self.sasl {
                chunk = self.let_in(chunk, out)?;
                continue;
            }
            let mut cutter = std::mem::take(&mut self.cutter);
            let cut = cutter.cut(chunk, |frame| match Performative::of(frame)? {
                None => Ok(()),
                Some(said) => self.hear(&said, &mut came, out),
            });
            self.cutter = cutter;
            cut?;
            break;
        }
        self.settle(&mut came, out);
        self.grant(out);
        Ok(came)
    }

    fn greet(&mut self, out: &mut Vec<u8>) -> Result<(), &'static str> {
        self.sasl = self.header == SASL_HEADER;
        if !self.sasl && self.header != HEADER {
            return Err("another protocol");
        }
        out.append(&mut self.header);
        if self.sasl {
            let mechanisms = Fields::default().symbol("PLAIN");
            push_frame(out, SASL_FRAME, 0, &[&mechanisms.described(MECHANISMS)]);
        }
        self.in_frames = true;
        Ok(())
    }

    /// Take the client's only SASL frame. Returns the data behind it.
    fn let_in<'a>(&mut self, chunk: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], &'static str> {
        let rest = &mut self.cutter.rest;
        let wanted = if rest.len() < PREFIX_BYTES {
            PREFIX_BYTES
        } else {
            frame_bytes(rest)?
        };
        let (more, behind) = chunk.split_at((wanted - rest.len()).min(chunk.len()));
        rest.extend(more);
        if rest.len() > PREFIX_BYTES && rest.len() == frame_bytes(rest)? {
            rest.clear();
            let outcome = Fields::default().raw(&[0x50, 0]);
            push_frame(out, SASL_FRAME, 0, &[&outcome.described(OUTCOME)]);
            (self.sasl, self.in_frames) = (false, false);
        }
        Ok(behind)
    }

    fn hear(&mut self, said: &Performative, came: &mut Came, out: &mut Vec<u8>) -> Result<(), &'static str> {
        match said.code {
            TRANSFER => {
                came.transfers += 1;
                self.next_incoming_id = self.next_incoming_id.wrapping_add(1);
                self.window_left = self.window_left.checked_sub(1).ok_or("a transfer beyond the window")?;
                let link = self.links.get_mut(said.needed(0)? as usize).ok_or("an unknown link")?;
                link.count = link.count.wrapping_add(1);
                link.left = link.left.checked_sub(1).ok_or("a transfer beyond credit")?;
                if !said.boolean(4) {
                    let id = said.needed(1)?;
                    match self.unsettled {
                        Some((first, last)) if last.wrapping_add(1) == id => self.unsettled = Some((first, id)),
                        _ => {
                            self.settle(came, out);
                            self.unsettled = Some((id, id));
                        }
                    }
                }
            }
            OPEN => {
                // With its name, so that addresses are read as its are.
                let mut open = Fields::default()
                    .string("sink")
                    .null()
                    .uint(to_u32(FRAME_MAX))
                    .ushort(10);
                for _ in 0..5 {
                    open = open.null();
                }
                let open = open.raw(b"\xc1\x14\x02\xa3\x07product\xa1\x08RabbitMQ");
                push(out, OPEN, &open);
            }
            BEGIN => {
                self.next_incoming_id = said.needed(1)?;
                let begin = Fields::default()
                    .ushort(0)
                    .uint(0)
                    .uint(self.granting.window)
                    .uint(WIDE)
                    .uint(255);
                push(out, BEGIN, &begin);
            }
            ATTACH => self.attach(said, out)?,
            FLOW => {}
            DETACH => push(out, DETACH, &Fields::default().raw(said.raw(0)).boolean(true)),
            END => push(out, END, &Fields::default()),
            CLOSE => push(out, CLOSE, &Fields::default()),
            _ => return Err("something that the bench does not use"),
        }
        Ok(())
    }

    fn attach(&mut self, said: &Performative, out: &mut Vec<u8>) -> Result<(), &'static str> {
        if said.boolean(2) || said.needed(1)? as usize != self.links.len() {
            return Err("a link that the bench does not use");
        }
        let fields = Fields::default()
            .raw(said.raw(0))
            .raw(said.raw(1))
            .boolean(true)
            .raw(said.raw(3))
            .raw(&[0x50, 0])
            .raw(said.raw(5))
            .raw(said.raw(6));
        push(out, ATTACH, &fields);
        self.links.push(BrokerLink {
            count: said.uint(9).unwrap_or(0),
            left: 0,
        });
        Ok(())
    }

    fn settle(&mut self, came: &mut Came, out: &mut Vec<u8>) {
        if let Some((first, last)) = self.unsettled.take() {
            push_disposition(out, true, first, last);
            came.answered += u64::from(last.wrapping_sub(first)) + 1;
        }
    }

    /// Renew grants that are half used.
    fn grant(&mut self, out: &mut Vec<u8>) {
        let Granting { credit, window } = self.granting;
        let mut said = false;
        for (handle, link) in self.links.iter_mut().enumerate() {
            if link.left > credit / 2 {
                continue;
            }
            link.left = credit;
            self.window_left = window;
            said = true;
            let fields = Fields::default()
                .uint(self.next_incoming_id)
                .uint(window)
                .uint(0)
                .uint(WIDE)
                .uint(to_u32(handle))
                .uint(link.count)
                .uint(credit);
            push(out, FLOW, &fields);
        }
        if !said && self.window_left <= window / 2 {
            self.window_left = window;
            let fields = Fields::default()
                .uint(self.next_incoming_id)
                .uint(window)
                .uint(0)
                .uint(WIDE);
            push(out, FLOW, &fields);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const RABBIT: Granting = Granting {
        credit: 170,
        window: 400,
    };

    fn links(settled: bool) -> Vec<Link> {
        (0..2)
            .map(|number| Link {
                address: format!("/queues/q{number}"),
                settled,
            })
            .collect()
    }

    /// A client and a broker whose session has two links.
    fn begun(settled: bool) -> (Client, Broker) {
        let (mut client, mut broker) = (Client::new(RABBIT.window), Broker::new(RABBIT));
        broker.in_frames = true;
        let (mut said, mut answers) = (Vec::new(), Vec::new());
        for link in links(settled) {
            client.attach(&link, 128, &mut said);
        }
        assert!(!client.ready());
        assert_eq!(broker.take(&said, &mut answers), Ok(Came::default()));
        client.take(&answers).unwrap();
        assert!(client.ready());
        (client, broker)
    }

    #[test]
    fn client_and_broker_begin() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        let serving = std::thread::spawn(move || {
            let (mut broker, mut buffer) = (Broker::new(RABBIT), [0; 7]);
            loop {
                let read = other.read(&mut buffer).unwrap();
                if read == 0 {
                    return broker.links.len();
                }
                let mut out = Vec::new();
                assert_eq!(broker.take(&buffer[..read], &mut out), Ok(Came::default()));
                other.write_all(&out).unwrap();
            }
        });
        let mut client = Client::sign_in(&mut stream, &links(false), 128).unwrap();
        while !client.ready() {
            let mut buffer = [0; 100];
            let read = stream.read(&mut buffer).unwrap();
            client.take(&buffer[..read]).unwrap();
        }
        drop(stream);
        assert_eq!(serving.join().unwrap(), 2);
        assert_eq!(client.window_end, RABBIT.window);
    }

    #[test]
    fn a_client_sends_what_credit_and_window_allow() {
        let (mut client, mut broker) = begun(false);
        let mut out = Vec::new();
        client.produce(&mut out, usize::MAX, |_, _| true);
        assert_eq!(out.len(), 340 * client.transfer_bytes());
        let mut answers = Vec::new();
        let came = broker
            .take(&out[..200 * client.transfer_bytes() + 3], &mut answers)
            .unwrap();
        assert_eq!(
            came,
            Came {
                transfers: 200,
                answered: 200
            }
        );
        assert!(!broker.at_boundary());
        client.take(&answers).unwrap();
        assert_eq!((client.answered, client.refused), (200, 0));
        let mut more = Vec::new();
        client.produce(&mut more, usize::MAX, |_, _| true);
        assert_eq!(more.len(), 200 * client.transfer_bytes());
    }

    #[test]
    fn settled_transfers_are_not_answered() {
        let (mut client, mut broker) = begun(true);
        let mut out = Vec::new();
        client.produce(&mut out, 100, |_, _| true);
        let came = broker.take(&out, &mut Vec::new()).unwrap();
        assert_eq!(
            came,
            Came {
                transfers: 1,
                answered: 0
            }
        );
    }

    #[test]
    fn frames_are_cut_in_chunks_of_any_size() {
        let mut stream = Vec::new();
        push_disposition(&mut stream, true, 0, 9);
        push_frame(&mut stream, AMQP_FRAME, 0, &[]);
        push_disposition(&mut stream, true, 10, 10);
        for step in [1, 7, 8, 9, 30, 1000] {
            let (mut client, _) = begun(false);
            for chunk in stream.chunks(step) {
                client.take(chunk).unwrap();
            }
            assert_eq!((client.answered, client.refused), (11, 0));
            assert!(client.cutter.rest.is_empty());
        }
    }

    #[test]
    fn beyond_credit_is_an_error() {
        let (mut client, mut broker) = begun(true);
        for link in &mut client.links {
            link.limit = 1000;
        }
        let mut out = Vec::new();
        client.produce(&mut out, usize::MAX, |_, _| true);
        assert!(broker.take(&out, &mut Vec::new()).is_err());
    }
}
