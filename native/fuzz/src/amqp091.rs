//! AMQP 0.9.1: chunks of the client's publishes and the broker's confirms in turn, on three channels.
//!
//! In front of each chunk stand what else is done (one byte) and its length (two).

use sluice_native_core::amqp::{awaits_more, Bounds, Channels, Cut, Deliveries, Taken};

fn bounds(options: u8) -> Bounds {
    let few = options & 1 != 0;
    Bounds {
        frame_max: 4096,
        most_body: if few { 99 } else { 1 << 20 },
        most_keys: if few { 3 } else { 100 },
        most_runs: if few { 3 } else { 100 },
        most_publishes: if few { 9 } else { 1000 },
        routing_keys: options & 2 != 0,
    }
}

fn check(chunk: &[u8], taken: &Taken, bounds: &Bounds) {
    assert!(taken.stop <= chunk.len() || taken.cut.is_some());
    assert!(taken.stop <= chunk.len() + bounds.frame_max);
    assert!(taken.runs.len() <= bounds.most_runs && taken.publishes.len() <= bounds.most_publishes);
    assert!(taken
        .pieces
        .iter()
        .all(|piece| piece.start < piece.stop && (piece.publish as usize) < taken.publishes.len()));
    assert!(taken.pieces.windows(2).all(|two| two[0].stop <= two[1].start));
    assert!(taken.pieces.last().is_none_or(|piece| piece.stop as usize <= taken.stop));
    assert!(taken.publishes.iter().all(|publish| publish.body <= bounds.most_body));
    for (number, run) in (0..).zip(&taken.runs) {
        let of_run = || taken.publishes.iter().filter(|publish| publish.run == number);
        assert_eq!(of_run().count(), run.publishes as usize);
        assert_eq!(of_run().map(|publish| publish.size).sum::<u64>(), run.bytes);
    }
}

/// Try an input.
///
/// # Panics
///
/// If something is wrong.
pub fn run(data: &[u8]) {
    let mut channels = Channels::new("v/".to_owned());
    for channel in 1..4 {
        channels.mark(channel);
        if channel < 3 {
            channels.select(channel);
        }
    }
    let (mut deliveries, mut cut) = (Deliveries::default(), None);
    let mut rest = data;
    while let Some(([options, high, low], behind)) = rest.split_first_chunk::<3>() {
        let size = usize::from(u16::from_be_bytes([*high, *low])).min(behind.len());
        let (chunk, more) = behind.split_at(size);
        rest = more;
        let channel = u16::from(options >> 6);
        match options >> 3 & 7 {
            0 => channels.mark(channel),
            1 => channels.select(channel),
            2 => drop(channels.unmark(channel)),
            3 => channels.forget(channel),
            4 => channels.take_named(true),
            5 => channels.take_all(channel, true),
            6 => channels.name(chunk.get(..20).unwrap_or(chunk)),
            _ => {}
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
        let unconfirmed = |channels: &Channels| (0..4).map(|channel| channels.unconfirmed(channel)).sum::<usize>();
        let before = unconfirmed(&channels);
        let (stop, ..) = channels.settle(chunk, position, options & 2 != 0, bounds.frame_max);
        assert!(stop >= position && unconfirmed(&channels) <= before);
        let Some((begin, left)) = cut.map_or(Some((position, None)), |cut: Cut| cut.go_on(chunk)) else { continue };
        let read = channels.relay(&mut deliveries, chunk, begin, options & 2 != 0, bounds.frame_max);
        assert!(read.stop >= begin && (read.stop <= chunk.len()) == read.cut.is_none());
        assert!(read.stop < chunk.len() || awaits_more(chunk, read.stop));
        assert!(channels.step_over(chunk, position).stop <= chunk.len().max(position));
        cut = left.or(read.cut.map(|channel| Cut { channel, left: read.stop - chunk.len() }));
    }
}
