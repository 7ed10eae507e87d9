//! `RocketMQ`: scans a chunk of frames with and without known headers, then in two pieces, and then skips it as
//! answers.
//!
//! The first two bytes determine where the chunk is cut.

use sluice_native_core::opaques::Opaques;
use sluice_native_core::prefix::{prefix, HEADER_JSON, PREFIX_BYTES};
use sluice_native_core::scan::{Bounds, Headers, Scanner, Taken};
use sluice_native_core::templates::Templates;
use sluice_native_core::{answers, binary, json, sends};

const BOUNDS: Bounds = Bounds { max_length: (1 << 24) - 4, max_keys: 1024, max_runs: 256 };

fn scan<'a>(chunk: &'a [u8], known: &mut Headers, owed: &mut Opaques) -> Taken<'a> {
    Scanner::default().scan(chunk, 0, &BOUNDS, known, owed)
}

fn check(chunk: &[u8], taken: &Taken, owed: &Opaques) {
    let mut at = 0;
    let mut bytes = 0;
    for frame in &taken.frames {
        assert_eq!(frame.start as usize, at);
        let (length, word) = prefix(chunk, at).unwrap();
        assert_eq!(i64::from(frame.size), i64::from(length) + 4);
        let header = &chunk[at + PREFIX_BYTES..][..(word & 0x00ff_ffff) as usize];
        let afresh = if word >> 24 == HEADER_JSON { json::read(header, None) } else { binary::read(header, None) };
        let plain = afresh.expect("what was taken is plain by itself");
        assert_eq!((frame.opaque, frame.flag), (plain.known.opaque, plain.known.flag));
        let new = &taken.new[taken.runs[frame.run as usize].key];
        let name = std::str::from_utf8(plain.name.of(header)).unwrap();
        assert_eq!(sends::resource(plain.layout, name), Some((new.kind, new.name)));
        assert_eq!(plain.group.of(header), new.group.as_bytes());
        assert!(frame.is_oneway() || owed.contains(frame.opaque));
        let id = frame.message_id(chunk).unwrap_or_default();
        assert!(id.len() <= 255);
        bytes += u64::from(frame.size);
        at = frame.stop();
    }
    assert_eq!(taken.stop, at);
    assert_eq!(taken.runs.iter().map(|run| run.bytes).sum::<u64>(), bytes);
    assert_eq!(taken.runs.iter().map(|run| run.frames as usize).sum::<usize>(), taken.frames.len());
    let mut indexes: Vec<usize> = taken.by_run().into_iter().flatten().collect();
    indexes.sort_unstable();
    assert!(indexes.into_iter().eq(0..taken.frames.len()));
}

/// # Panics
///
/// Panics on any finding.
pub fn run(data: &[u8]) {
    let Some((cut, chunk)) = data.split_first_chunk::<2>() else { return };
    let (mut known, mut owed) = (Headers::default(), Opaques::new(1 << 14));
    let whole = scan(chunk, &mut known, &mut owed);
    check(chunk, &whole, &owed);
    let again = scan(chunk, &mut known, &mut owed);
    assert_eq!(
        (&again.frames, &again.runs, &again.new, again.stop),
        (&whole.frames, &whole.runs, &whole.new, whole.stop)
    );

    let first = &chunk[..usize::from(u16::from_be_bytes(*cut)) % (chunk.len() + 1)];
    let mut scanner = Scanner::default();
    let (mut known, mut owed) = (Headers::default(), Opaques::new(1 << 14));
    let begun = scanner.scan(first, 0, &BOUNDS, &mut known, &mut owed);
    assert_eq!(begun.frames, whole.frames[..begun.frames.len()]);
    if begun.stop <= chunk.len() && begun.runs.len() < BOUNDS.max_runs {
        let rest = scanner.scan(chunk, begun.stop, &BOUNDS, &mut known, &mut owed);
        let frames = begun.frames.iter().chain(&rest.frames).map(|frame| (frame.start, frame.size, frame.opaque));
        assert!(frames.take(whole.frames.len()).eq(whole.frames.iter().map(|frame| (
            frame.start,
            frame.size,
            frame.opaque
        ))));
    }

    settle(chunk);
}

fn settle(chunk: &[u8]) {
    let mut owed = Opaques::new(1 << 14);
    let mut at = 0;
    let mut stops = vec![0];
    let (mut numbers, mut busy) = (Vec::new(), 0);
    while let Some((length, word)) = prefix(chunk, at) {
        let header = chunk.get(at + PREFIX_BYTES..).and_then(|rest| rest.get(..word as usize));
        let Some(plain) = header.and_then(|header| answers::read(header, None)) else { break };
        let Some(size) = usize::try_from(length).ok().filter(|size| *size >= 4 + word as usize) else { break };
        if owed.contains(plain.known.opaque) {
            break;
        }
        owed.add(plain.known.opaque, plain.known.opaque % 2 == 0);
        numbers.push(plain.known.opaque);
        busy += u64::from(plain.known.opaque % 2 == 0 && answers::is_busy(plain.known.code));
        at += 4 + size;
        stops.push(at);
    }
    let mut templates = Templates::default();
    let sends = owed.sends() as u64;
    let settled = answers::settle(chunk, 0, &mut owed, &mut templates);
    let frames = numbers.len();
    assert_eq!(settled, answers::Settled { stop: at, frames, answers: sends, busy });
    assert!(owed.is_empty());
    for (missing, stop) in stops.iter().enumerate().take(numbers.len().min(3)) {
        numbers
            .iter()
            .enumerate()
            .filter(|(place, _)| *place != missing)
            .for_each(|(_, number)| owed.add(*number, true));
        let settled = answers::settle(chunk, 0, &mut owed, &mut templates);
        assert_eq!((settled.stop, settled.frames), (*stop, missing));
        for number in &numbers {
            owed.settle(*number);
        }
    }
}
