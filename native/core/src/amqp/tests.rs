//! Tests with arbitrary bytes. Results are tested in Python.

use super::{awaits_more, Bounds, Channels, Cut, Deliveries, Numbers};
use crate::out::{Out, Piece, CLIENT};

const BOUNDS: Bounds =
    Bounds { frame_max: 4096, max_body: 99, max_keys: 3, max_runs: 3, max_publishes: 9, routing_keys: true };

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[kind][..], &channel.to_be_bytes(), &size, payload, &[0xce]].concat()
}

fn publish(channel: u16, key: &[u8], body: &[u8]) -> Vec<u8> {
    let key_bytes = u8::try_from(key.len()).unwrap();
    let method = [&[0, 60, 0, 40, 0, 0, 1, b'e', key_bytes][..], key, &[0]].concat();
    let header = [&[0, 60, 0, 0][..], &(body.len() as u64).to_be_bytes(), &[0, 0]].concat();
    [frame(1, channel, &method), frame(2, channel, &header), frame(3, channel, body)].concat()
}

fn ack(channel: u16, number: u64, multiple: u8) -> Vec<u8> {
    frame(1, channel, &[&[0, 60, 0, 80][..], &number.to_be_bytes(), &[multiple]].concat())
}

fn channels() -> Channels {
    let mut channels = Channels::new("v/".to_owned());
    for channel in 1..4 {
        channels.add(channel, 0, Some(&numbers()));
    }
    channels
}

fn numbers() -> Numbers {
    (0, 0, None, 1, [].into(), [].into())
}

#[test]
fn a_publish_has_two_names() {
    let chunk = publish(1, b"k", b"body");
    let taken = channels().scan(&chunk, 0, &BOUNDS);
    assert_eq!((taken.stop, taken.frames, taken.publishes.len()), (chunk.len(), 3, 1));
    assert_eq!(taken.new[0].name, "v/e");
    assert_eq!(taken.new[0].routing_key.as_deref(), Some("v/e/k"));
}

#[test]
fn a_longer_body_is_not_plain() {
    let chunk = [publish(1, b"k", &[0; 99]), publish(1, b"k", &[0; 100])].concat();
    let taken = channels().scan(&chunk, 0, &BOUNDS);
    assert_eq!((taken.stop, taken.publishes.len()), (chunk.len() / 2, 1));
}

#[test]
fn no_bytes_are_too_much() {
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    let (mut channels, mut deliveries) = (channels(), Deliveries::default());
    for round in 0..20_000 {
        let mut chunk = Vec::new();
        for _ in 0..random(8) {
            let channel = u16::try_from(random(5)).unwrap();
            match random(5) {
                0 => chunk.extend(ack(channel, random(20) as u64, u8::try_from(random(3)).unwrap())),
                1 => chunk.extend(frame(3, channel, &[0; 3])),
                2 => chunk.extend(delivery(channel, &vec![0; random(9)])),
                _ => chunk.extend(publish(channel, &[b'a' + u8::try_from(random(9)).unwrap()], &vec![0; random(9)])),
            }
        }
        for _ in 0..random(3) {
            if !chunk.is_empty() {
                let at = random(chunk.len());
                chunk[at] = u8::try_from(random(256)).unwrap();
            }
        }
        chunk.truncate(chunk.len() - random(chunk.len() / 2 + 1));
        let position = random(chunk.len() + 2) * usize::from(round % 3 == 0);
        let undone = channels.scan(&chunk, position, &BOUNDS);
        channels.undo();
        let taken = channels.scan(&chunk, position, &BOUNDS);
        assert_eq!((&taken.publishes, &taken.open, taken.stop), (&undone.publishes, &undone.open, undone.stop));
        assert!(taken.stop >= position && taken.runs.len() <= BOUNDS.max_runs);
        assert!(taken.pieces.iter().all(|piece| (piece.publish as usize) < taken.publishes.len()));
        assert!(taken.pieces.windows(2).all(|two| two[0].stop <= two[1].start));
        assert!(taken.publishes.iter().all(|publish| (publish.run as usize) < taken.runs.len()));
        for publish in &taken.publishes {
            channels.forward(taken.runs[publish.run as usize].channel, publish.number);
        }
        let read = channels.relay(&mut deliveries, &chunk, position, round % 2 == 0, 200, &mut Out::default());
        assert!(read.stop >= position && (read.cut.is_none() || read.stop > chunk.len()));
        if random(4) == 0 {
            let (open, numbers) = (channels.open(), channels.numbers());
            channels.clear();
            for (number, of_channel) in &numbers {
                let rest = open.iter().find(|(channel, _)| channel == number).map_or(0, |(_, rest)| *rest);
                channels.add(*number, rest, Some(of_channel));
            }
            assert_eq!((channels.open().len(), &channels.numbers()), (open.len(), &numbers));
        }
    }
}

#[test]
fn confirms_are_found_however_many_there_are() {
    let mut channels = channels();
    for number in 2..100_000 {
        channels.forward(1, number);
    }
    let confirm = |channels: &mut Channels, number, multiple| {
        let mut out = Out::default();
        channels.relay(&mut Deliveries::default(), &ack(1, number, multiple), 0, true, 4096, &mut out);
        assert_eq!(out.to[CLIENT], [Piece::Own(0..out.own.len())]);
        out.own
    };
    assert_eq!(confirm(&mut channels, 99_997, 0), ack(1, 99_998, 0));
    assert_eq!(confirm(&mut channels, 99_998, 1).len(), 99_997 * ack(1, 1, 0).len());
    assert_eq!(channels.unconfirmed(), 0);
    channels.forward(1, 100_000);
    assert_eq!(confirm(&mut channels, 0, 1), ack(1, 100_000, 0));
}

#[test]
fn numbers_are_given_back_as_they_came() {
    let given: Numbers = (9, 6, Some(2), 2, [4].into(), [(3, 4), (5, 7), (6, 9)].into());
    let mut channels = Channels::new(String::new());
    channels.add(7, 0, Some(&given));
    assert_eq!(channels.numbers(), vec![(7, given)]);
    assert_eq!((channels.unconfirmed(), channels.forwarded(7)), (4, 6));
    assert!(channels.is_open(7, 3) && !channels.is_open(7, 4) && !channels.is_open(7, 1));
}

fn delivery(channel: u16, body: &[u8]) -> Vec<u8> {
    let method = [&[0, 60, 0, 60, 1, b't'][..], &7_u64.to_be_bytes(), &[0, 0, 1, b'q']].concat();
    let header = [&[0, 60, 0, 0][..], &(body.len() as u64).to_be_bytes(), &[0, 0]].concat();
    let bodies = body.chunks(90).map(|part| frame(3, channel, part));
    [frame(1, channel, &method), frame(2, channel, &header)].into_iter().chain(bodies).flatten().collect()
}

#[test]
fn a_scan_can_be_undone() {
    let mut channels = channels();
    channels.add(2, 5, Some(&numbers()));
    let second = [frame(3, 2, b"12345"), publish(1, b"k", b"body"), publish(2, b"k", b"body")].concat();
    let taken = channels.scan(&second, 0, &BOUNDS);
    assert_eq!((taken.stop, taken.publishes[0].number, taken.publishes[1].number), (second.len(), 1, 1));
    channels.undo();
    assert_eq!(channels.open(), vec![(2, 5)]);
    let again = channels.scan(&second, 0, &BOUNDS);
    assert_eq!((again.stop, again.publishes), (taken.stop, taken.publishes));
}

#[test]
fn what_consumers_settle_passes_where_no_content_is_open() {
    let mut channels = channels();
    let chunk = [frame(8, 0, b""), ack(1, 7, 1), ack(2, 0, 0), ack(4, 1, 0)].concat();
    let read = channels.scan(&chunk, 0, &BOUNDS);
    assert_eq!((read.stop, read.frames), (chunk.len() - ack(4, 1, 0).len(), 3));
    channels.add(2, 1, None);
    assert_eq!(channels.scan(&chunk, 0, &BOUNDS).frames, 2);
}

#[test]
fn more_is_awaited_of_what_may_be_plain() {
    let chunk = publish(1, b"k", b"body");
    let method = chunk.len() - frame(3, 1, b"body").len() - frame(2, 1, &[0; 14]).len();
    for stop in 0..method + 22 {
        assert!(awaits_more(&chunk[..stop], 0, true, 4096), "{stop}");
    }
    assert!(!awaits_more(&chunk, 0, true, 4096));
    for (kind, bytes) in [(1, 4089), (2, 4089), (3, 4089), (7, 0)] {
        let whole = frame(kind, 1, &vec![0; bytes]);
        assert!(awaits_more(&whole[..6], 0, true, 4096) && !awaits_more(&whole[..7], 0, true, 4096), "{kind}");
    }
    let method = &delivery(1, b"")[..26];
    assert!(awaits_more(method, 0, true, 4096) && !awaits_more(method, 0, false, 4096));
}

#[test]
fn deliveries_pass_however_they_are_cut() {
    let whole = [delivery(1, &[1; 200]), ack(2, 1, 0), delivery(3, b""), delivery(1, b"x"), frame(8, 0, b"")].concat();
    for size in 1..whole.len() {
        let (mut channels, mut deliveries, mut cut) = (channels(), Deliveries::default(), None::<Cut>);
        channels.forward(2, 1);
        let (mut frames, mut passed, mut rest) = (0, Vec::new(), Vec::new());
        for part in whole.chunks(size) {
            let chunk = [&rest[..], part].concat();
            let (begin, left) = cut.map_or((0, None), |cut| cut.resume(&chunk).unwrap());
            cut = left;
            let mut out = Out::default();
            let read = channels.relay(&mut deliveries, &chunk, begin, true, 4096, &mut out);
            let stop = read.stop.min(chunk.len());
            assert_eq!(out.to[CLIENT], if begin == stop { vec![] } else { vec![Piece::Chunk(begin..stop)] });
            assert!(cut.is_some() || stop == chunk.len() || awaits_more(&chunk, stop, true, 4096));
            cut = cut.or_else(|| Some(Cut { channel: read.cut?, left: read.stop - chunk.len() }));
            passed.extend_from_slice(&chunk[..stop]);
            rest = chunk[stop..].to_vec();
            frames += read.frames;
        }
        assert_eq!((frames, passed == whole, cut, deliveries.open()), (12, true, None, vec![]));
        assert_eq!(channels.unconfirmed(), 0);
    }
}

#[test]
fn confirms_get_other_numbers_between_deliveries() {
    let mut channels = channels();
    channels.forward(2, 2);
    let chunk = [delivery(1, b"x"), ack(2, 1, 0), delivery(1, b"y")].concat();
    let mut out = Out::default();
    channels.relay(&mut Deliveries::default(), &chunk, 0, true, 4096, &mut out);
    let first = delivery(1, b"x").len();
    let last = first + ack(2, 1, 0).len();
    assert_eq!(out.to[CLIENT], [Piece::Chunk(0..first), Piece::Own(0..last - first), Piece::Chunk(last..chunk.len())]);
    assert_eq!(out.own, ack(2, 2, 0));
}

#[test]
fn a_content_within_another_is_not_plain() {
    let whole = delivery(1, &[1; 200]);
    let (mut channels, mut deliveries) = (channels(), Deliveries::default());
    let mut relay = |chunk: &[u8], deliveries: &mut Deliveries, frame_max| {
        channels.relay(deliveries, chunk, 0, true, frame_max, &mut Out::default())
    };
    let header = whole.len() - 3 * 8 - 200;
    assert_eq!(relay(&whole[..header], &mut deliveries, 4096).frames, 2);
    assert_eq!(deliveries.open(), vec![(1, 200)]);
    assert_eq!(relay(&whole, &mut deliveries, 4096).stop, 0);
    assert_eq!(relay(&frame(3, 1, &[1; 201]), &mut deliveries, 4096).stop, 0);
    assert_eq!(relay(&frame(3, 1, &[1; 9]), &mut deliveries, 16).stop, 0);
    assert_eq!(Cut { channel: 1, left: 2 }.resume(b"xy"), None);
}
