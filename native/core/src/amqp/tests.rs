//! What bytes can do; what scans and confirms come to is tested from Python, against a slow reading there.

use super::{Bounds, Channels};

const BOUNDS: Bounds =
    Bounds { frame_max: 4096, most_body: 99, most_keys: 3, most_runs: 3, most_publishes: 9, routing_keys: true };

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
        channels.mark(channel);
        channels.select(channel);
    }
    channels
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
    let mut channels = channels();
    for round in 0..20_000 {
        let mut chunk = Vec::new();
        for _ in 0..random(8) {
            let channel = u16::try_from(random(5)).unwrap();
            match random(4) {
                0 => chunk.extend(ack(channel, random(20) as u64, u8::try_from(random(3)).unwrap())),
                1 => chunk.extend(frame(3, channel, &[0; 3])),
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
        let taken = channels.scan(&chunk, position, &BOUNDS);
        assert!(taken.stop >= position && taken.runs.len() <= BOUNDS.most_runs);
        assert!(taken.pieces.iter().all(|piece| (piece.publish as usize) < taken.publishes.len()));
        assert!(taken.pieces.windows(2).all(|two| two[0].stop <= two[1].start));
        assert!(taken.publishes.iter().all(|publish| (publish.run as usize) < taken.runs.len()));
        for publish in &taken.publishes {
            channels.forward(taken.runs[publish.run as usize].channel, publish.number);
        }
        let (stop, ..) = channels.settle(&chunk, position, round % 2 == 0, 200);
        assert!(stop >= position);
        let channel = u16::try_from(random(5)).unwrap();
        match random(10) {
            0 => channels.forget(channel),
            1 => drop(channels.unmark(channel)),
            2 => channels.mark(channel),
            3 => channels.select(channel),
            _ => {}
        }
    }
}

#[test]
fn confirms_are_found_however_many_there_are() {
    let mut channels = channels();
    channels.forward(1, 2);
    for number in 3..100_000 {
        channels.forward(1, number);
    }
    assert_eq!(channels.answered(1, 99_998, false, false), Some(vec![99_999]));
    assert_eq!(channels.answered(1, 99_998, true, false).map(|numbers| numbers.len()), Some(99_997));
    assert_eq!(channels.unconfirmed(1), 0);
    channels.forward(1, 100_000);
    assert_eq!(channels.answered(1, 0, true, false), Some(vec![100_000]));
}
