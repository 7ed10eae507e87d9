//! Tests with arbitrary bytes. Results are tested in Python.

use super::flows::reflow;
use super::frame::may_annotate;
use super::links::{Begun, Disposed, Links, Moved, Taken, Terms, Unknown};
use super::renumbering::{renumber, Difference, Numbers};
use super::settling::Settling;

fn frame(channel: u16, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(8 + body.len()).unwrap().to_be_bytes();
    [&size[..], &[2, 0], &channel.to_be_bytes(), body].concat()
}

fn performative(code: u8, count: u8, fields: &[u8]) -> Vec<u8> {
    [&[0, 0x53, code, 0xc0, u8::try_from(fields.len() + 1).unwrap(), count][..], fields].concat()
}

fn transfer(channel: u16, handle: u8, id: u8, more: bool, payload: &[u8]) -> Vec<u8> {
    let fields = [0x52, handle, 0x52, id, 0xa0, 2, b't', id, 0x43, 0x42, if more { 0x41 } else { 0x42 }];
    frame(channel, &[&performative(0x14, 6, &fields)[..], payload].concat())
}

fn disposition(channel: u16, first: u8, last: u8) -> Vec<u8> {
    let fields = [0x41, 0x52, first, 0x52, last, 0x41, 0x00, 0x53, 0x24, 0x45];
    frame(channel, &performative(0x15, 5, &fields))
}

fn links() -> Links {
    let mut links = Links::new(usize::MAX);
    for channel in 0..3 {
        links.begin(channel);
        for handle in 0..3 {
            links.mark(channel, handle, Terms::default());
        }
    }
    links
}

fn scan(links: &mut Links, chunk: &[u8], position: usize, max_runs: usize) -> Taken {
    let mut taken = links.scan(position);
    links.take(chunk, &mut taken, max_runs);
    taken
}

#[test]
fn runs_are_summed_by_link() {
    let mut links = links();
    let one = transfer(1, 2, 7, false, b"payload");
    let chunk =
        [&one[..], &transfer(1, 2, 8, false, b""), &frame(0, b""), &disposition(1, 3, 4), &disposition(1, 5, 5)];
    let (chunk, bytes) = (chunk.concat(), (2 * one.len() - 7) as u64);
    let taken = scan(&mut links, &[&chunk[..], &transfer(1, 2, 9, true, b"")].concat(), 0, 99);
    assert_eq!((taken.stop, taken.frames), (chunk.len(), 5));
    let last_bytes = one.len() as u64 - 7;
    assert_eq!(taken.moved, [Moved { channel: 1, handle: 2, deliveries: 2, bytes, last_bytes }]);
    assert_eq!(taken.begun, [Begun { channel: 1, ids: (7, 8), unsettled: vec![(7, 8)] }]);
    let disposed = Disposed { channel: 1, is_receiver: true, is_settled: true, ids: (3, 5) };
    assert_eq!(taken.disposed, [disposed]);
}

#[test]
fn a_scan_goes_on_once_it_knows_more() {
    let mut links = links();
    let chunk = [transfer(1, 2, 7, false, b""), transfer(1, 9, 8, false, b""), disposition(8, 3, 4)].concat();
    let mut taken = scan(&mut links, &chunk, 0, 99);
    assert_eq!((taken.frames, taken.unknown), (1, Some(Unknown::Link(1, 9))));
    links.take(&chunk, &mut taken, 99);
    assert_eq!((taken.frames, taken.unknown), (1, Some(Unknown::Link(1, 9))));
    links.mark(1, 9, Terms::default());
    links.take(&chunk, &mut taken, 99);
    assert_eq!((taken.frames, taken.unknown), (2, Some(Unknown::Session(8))));
    links.begin(8);
    links.take(&chunk, &mut taken, 99);
    assert_eq!((taken.stop, taken.frames, taken.unknown), (chunk.len(), 3, None));
    assert_eq!(taken.begun, [Begun { channel: 1, ids: (7, 8), unsettled: vec![(7, 8)] }]);
}

#[test]
fn a_key_is_found_in_annotations_alone() {
    let section =
        |code: u8, inside: &[u8]| [&[0, 0x53, code, 0xc1, u8::try_from(inside.len()).unwrap()], inside].concat();
    let header = [0, 0x53, 0x70, 0x45];
    let body = [&[0, 0x53, 0x75, 0xa0, 4][..], b"x-cc"].concat();
    let with = [&header[..], &section(0x72, b"..x-cc.."), &body].concat();
    assert!(may_annotate(&with, b"x-cc"));
    let without = [&header[..], &section(0x72, b"..x-cd.."), &section(0x74, b"x-cc"), &body].concat();
    assert!(!may_annotate(&without, b"x-cc"));
    assert!((1..body.len()).all(|cut| may_annotate(&without[..without.len() - cut], b"x-cc")));
    assert!(may_annotate(&[0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0x75, 0xa0, 0], b"x-cc"));
}

fn flow(channel: u16, handle: u8) -> Vec<u8> {
    frame(channel, &performative(0x13, 8, &[0x43, 0x52, 9, 0x43, 0x52, 9, 0x52, handle, 0x43, 0x52, 5, 0x40]))
}

#[test]
fn flows_are_taken_behind_all_others() {
    let mut links = links();
    let chunk = [transfer(1, 2, 7, false, b""), flow(1, 2), frame(0, b""), flow(2, 0)].concat();
    let taken = scan(&mut links, &[&chunk[..], &disposition(1, 3, 4)].concat(), 0, 99);
    assert_eq!((taken.stop, taken.frames, taken.flows.len()), (chunk.len(), 4, 2));
    let (first, size) = (taken.flows[0], flow(1, 2).len());
    assert_eq!((first.handle(), first.numbers[6]), (Some(2), Some(5)));
    let written = reflow(&chunk[first.start..first.stop], &[(6, &[0x70, 0, 0, 1, 0])]).unwrap();
    // The null at the end of the list is omitted.
    assert_eq!((written.len(), &written[size - 3..]), (size + 2, &[0x70, 0, 0, 1, 0][..]));
}

#[test]
fn numbers_get_as_long_as_they_must_be() {
    let mut chunk = [transfer(1, 2, 0, false, b"payload"), frame(1, b""), transfer(0, 2, 5, false, b"x")].concat();
    chunk.extend(disposition(1, 254, 255));
    let all = |by| Difference { from: None, by };
    let mut out = Vec::new();
    let numbers = [Numbers { channel: 1, sent: all(1), received: all(1) }];
    assert_eq!(renumber(&chunk, 0, chunk.len(), &numbers, usize::MAX, &mut out), chunk.len());
    let last = u32::MAX.to_be_bytes();
    let fields = [&[0x52, 2, 0x70][..], &last, &[0xa0, 2, b't', 0, 0x43, 0x42, 0x42]].concat();
    let mut expected = frame(1, &[&performative(0x14, 6, &fields)[..], b"payload"].concat());
    expected.extend([frame(1, b""), transfer(0, 2, 5, false, b"x")].concat());
    let fields = [0x41, 0x52, 255, 0x70, 0, 0, 1, 0, 0x41, 0x00, 0x53, 0x24, 0x45];
    expected.extend(frame(1, &performative(0x15, 5, &fields)));
    assert_eq!(out, expected);
}

#[test]
fn no_bytes_are_too_much() {
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    let small = |number: usize| u8::try_from(number).unwrap();
    let mut links = links();
    for round in 0..40_000 {
        let mut chunk = Vec::new();
        let mut id = random(250);
        for _ in 0..random(9) {
            let (channel, handle) = (u16::try_from(random(4)).unwrap(), small(random(4)));
            match random(6) {
                5 => chunk.extend(flow(channel, handle)),
                0 => chunk.extend(frame(channel, b"")),
                1 => chunk.extend(disposition(channel, small(random(20)), small(random(40)))),
                _ => {
                    chunk.extend(transfer(channel, handle, small(id), random(4) == 0, &vec![0; random(9)]));
                    id = (id + 1) % 256;
                }
            }
        }
        for _ in 0..random(3) {
            if !chunk.is_empty() {
                let at = random(chunk.len());
                chunk[at] = small(random(256));
            }
        }
        chunk.truncate(chunk.len() - random(chunk.len() / 2 + 1));
        let position = random(chunk.len() + 2) * usize::from(round % 3 == 0);
        let max_runs = random(12);
        let taken = scan(&mut links, &chunk, position, max_runs);
        assert!(taken.stop >= position && taken.stop <= chunk.len().max(position));
        let ranges: usize = taken.begun.iter().map(|begun| 1 + begun.unsettled.len()).sum();
        assert!(taken.moved.len() + ranges + taken.disposed.len() <= max_runs);
        let bytes: u64 = taken.moved.iter().map(|moved| moved.bytes).sum();
        assert!(bytes <= (taken.stop - position) as u64);
        for flow in &taken.flows {
            let number = random(13);
            assert_eq!(reflow(&chunk[flow.start..flow.stop], &[(number, &[0x40])]).is_some(), number < 11);
        }
        let _ = reflow(&chunk, &[]);
        let mut out = Vec::new();
        let difference = |from, by| Difference { from, by };
        let (sent, received) = (difference(Some(3), 1), difference((round % 2 == 0).then_some(9), 250));
        let numbers: Vec<Numbers> = (0..3).map(|channel| Numbers { channel, sent, received }).collect();
        let stop = renumber(&chunk, position, taken.stop, &numbers, usize::MAX, &mut out);
        assert!(stop >= position && stop <= taken.stop.max(position));
        assert!(out.len() <= 3 * (stop - position));
        let (channel, handle) = (u16::try_from(random(3)).unwrap(), u32::try_from(random(3)).unwrap());
        let max_bytes = (random(2) == 0).then(|| random(50));
        links.mark(channel, handle, Terms { max_bytes, copies: random(4) == 0, decides: random(4) == 0 });
    }
}

#[test]
fn what_is_decided_is_taken_apart() {
    let mut links = links();
    links.mark(1, 2, Terms { decides: true, ..Terms::default() });
    let (free, decided) = (transfer(1, 0, 7, false, b""), transfer(1, 2, 8, false, b""));
    let both =
        [&free[..], &decided, &transfer(1, 2, 9, false, b""), &disposition(1, 3, 4), &transfer(1, 0, 10, false, b"")];
    let chunk = both.concat();
    let taken = scan(&mut links, &chunk, 0, 99);
    assert_eq!((taken.stop, taken.decides), (free.len(), false));
    let taken = scan(&mut links, &chunk, free.len(), 99);
    assert_eq!((taken.frames, taken.decides, taken.moved[0].deliveries), (3, true, 2));
}

#[test]
fn what_is_settled_is_known_as_if_each_was_looked_at() {
    let mut state = 7_u64;
    let mut random = |below: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(state >> 33).unwrap() % below
    };
    for round in 0..2_000 {
        let first = [0, 5, u32::MAX - 3][round % 3];
        let mut settling = Settling::new(Some(first));
        // Index 0 is ten deliveries before the first one.
        let (mut unsettled, mut before, mut next) = (vec![], vec![true; 10], 10_u32);
        let id = |number: u32| first.wrapping_add(number).wrapping_sub(10);
        for _ in 0..random(20) {
            if random(2) == 0 {
                let count = 1 + random(5);
                let is_settled = random(3) == 0;
                assert!(settling.takes(id(next)) && !settling.takes(id(next - 1)));
                assert!(!settling.has_come(id(next)) && settling.has_come(id(next - 1)));
                let range = (id(next), id(next + count - 1));
                settling.add(range, if is_settled { &[] } else { std::slice::from_ref(&range) });
                unsettled.extend(std::iter::repeat_n(!is_settled, count as usize));
                next += count;
            } else {
                let (low, length) = (random(next + 3), random(8));
                let (counted, counted_before) = settling.settle((id(low), id(low + length)), true);
                let open = |number: &u32| unsettled.get(*number as usize - 10) == Some(&true);
                let since = (low.max(10)..=low + length).filter(open).count() as u64;
                let earlier = u64::from(10_u32.saturating_sub(low).min(length + 1));
                assert!(counted == since && [0, earlier].contains(&counted_before));
                for number in (low..=low + length).map(|number| number as usize) {
                    if let Some(is_unsettled) = before.get_mut(number).or_else(|| unsettled.get_mut(number - 10)) {
                        *is_unsettled = false;
                    }
                }
            }
        }
        let changed = next > 10 || before.contains(&false);
        let Some((settled, left, last)) = settling.take() else {
            assert!(!changed);
            continue;
        };
        let has = |ranges: &[(u32, u32)], number: u32| {
            ranges.iter().any(|(first, last)| id(number).wrapping_sub(*first) <= last.wrapping_sub(*first))
        };
        assert!((0..10).all(|number| has(&settled.concat(), number) != before[number as usize]));
        assert!((10..next).all(|number| has(&left, number) == unsettled[number as usize - 10]));
        assert_eq!(last, (next > 10).then(|| id(next - 1)));
        assert!(left.windows(2).all(|pair| pair[0].1.wrapping_add(1) != pair[1].0));
        assert!(settling.takes(id(next)) && settling.take().is_none());
    }
}
