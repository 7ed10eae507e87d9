//! AMQP 0.9.1: alternating chunks of publishes and confirms, on three channels.
//!
//! Each chunk is preceded by options (one byte) and its length (two bytes).

use sluice_native_core::amqp::{awaits_more, Bounds, Channels, Cut, Deliveries, Taken};
use sluice_native_core::out::Out;

fn bounds(options: u8) -> Bounds {
    let few = options & 1 != 0;
    Bounds {
        frame_max: 4096,
        max_body: if few { 99 } else { 1 << 20 },
        max_keys: if few { 3 } else { 100 },
        max_runs: if few { 3 } else { 100 },
        max_publishes: if few { 9 } else { 1000 },
        routing_keys: options & 2 != 0,
    }
}

fn check(chunk: &[u8], taken: &Taken, bounds: &Bounds) {
    assert!(taken.stop <= chunk.len() || taken.cut.is_some());
    assert!(taken.stop <= chunk.len() + bounds.frame_max);
    assert!(taken.runs.len() <= bounds.max_runs && taken.publishes.len() <= bounds.max_publishes);
    assert!(taken
        .pieces
        .iter()
        .all(|piece| piece.start < piece.stop && (piece.publish as usize) < taken.publishes.len()));
    assert!(taken.pieces.windows(2).all(|two| two[0].stop <= two[1].start));
    assert!(taken.pieces.last().is_none_or(|piece| piece.stop as usize <= taken.stop));
    for (number, run) in (0..).zip(&taken.runs) {
        let of_run = || taken.publishes.iter().filter(|publish| publish.run == number);
        assert_eq!(of_run().count(), run.publishes as usize);
        assert_eq!(of_run().map(|publish| publish.size).sum::<u64>(), run.bytes);
    }
}

/// # Panics
///
/// Panics on any finding.
pub fn run(data: &[u8]) {
    let mut channels = Channels::new("v/".to_owned());
    for channel in 1..4 {
        let numbers = (0, 0, None, 1, [].into(), [].into());
        channels.add(channel, 0, (channel < 3).then_some(&numbers));
    }
    let (mut deliveries, mut cut) = (Deliveries::default(), None);
    let mut rest = data;
    while let Some(([options, high, low], behind)) = rest.split_first_chunk::<3>() {
        let size = usize::from(u16::from_be_bytes([*high, *low])).min(behind.len());
        let (chunk, more) = behind.split_at(size);
        rest = more;
        if options >> 3 & 7 == 0 {
            let (open, numbers) = (channels.open(), channels.numbers());
            channels.clear();
            let rest = |number| open.iter().find(|(channel, _)| *channel == number).map_or(0, |(_, rest)| *rest);
            for (number, of_channel) in &numbers {
                channels.add(*number, rest(*number), Some(of_channel));
            }
            channels.add(3, rest(3), None);
            assert_eq!((channels.open().len(), channels.numbers()), (open.len(), numbers));
        }
        let position = if options & 4 == 0 { 0 } else { chunk.len().min(7) };
        let bounds = bounds(*options);
        let before = channels.open();
        let undone = channels.scan(chunk, position, &bounds);
        channels.undo();
        let sorted = |mut open: Vec<(u16, u64)>| {
            open.sort_unstable();
            open
        };
        assert_eq!(sorted(channels.open()), sorted(before));
        let taken = channels.scan(chunk, position, &bounds);
        assert_eq!((&taken.publishes, &taken.pieces, taken.stop), (&undone.publishes, &undone.pieces, undone.stop));
        check(chunk, &taken, &bounds);
        assert!(taken.stop >= position);
        for publish in &taken.publishes {
            let channel = taken.runs[publish.run as usize].channel;
            let before = channels.forwarded(channel);
            channels.forward(channel, publish.number);
            if publish.number != 0 {
                assert_eq!(channels.forwarded(channel), before + 1);
                assert!(channels.is_open(channel, channels.forwarded(channel)));
            }
        }
        let before = channels.unconfirmed();
        let Some((begin, left)) = cut.map_or(Some((position, None)), |cut: Cut| cut.resume(chunk)) else { continue };
        let read =
            channels.relay(&mut deliveries, chunk, begin, options & 2 != 0, bounds.frame_max, &mut Out::default());
        assert!(
            channels.unconfirmed() <= before && read.stop >= begin && (read.stop <= chunk.len()) == read.cut.is_none()
        );
        assert!(read.stop < chunk.len() || awaits_more(chunk, read.stop, options & 2 != 0, bounds.frame_max));
        cut = left.or(read.cut.map(|channel| Cut { channel, left: read.stop - chunk.len() }));
    }
}
