//! AMQP 1.0: scans chunks of one peer's frames, and rewrites flows and numbers.
//!
//! Each chunk is preceded by options (one byte) and its length (two bytes).

use sluice_native_core::amqp10::{reflow, renumber, Difference, Links, Numbers, Terms};

fn numbers(sent: Difference, received: Difference) -> Vec<Numbers> {
    (0..3).map(|channel| Numbers { channel, sent, received }).collect()
}

/// # Panics
///
/// Panics on any finding.
pub fn run(data: &[u8]) {
    let mut links = Links::new(usize::MAX);
    for channel in 0..3 {
        links.begin(channel);
        for handle in 0..3 {
            links.mark(channel, handle, Terms { copies: handle == 2, ..Terms::default() });
        }
    }
    let mut rest = data;
    while let Some(([options, high, low], behind)) = rest.split_first_chunk::<3>() {
        let size = usize::from(u16::from_be_bytes([*high, *low])).min(behind.len());
        let (chunk, more) = behind.split_at(size);
        rest = more;
        let (channel, handle) = (u16::from(options >> 6), u32::from(options >> 4 & 3));
        match options & 7 {
            0 => links.begin(channel),
            3 => links.mark(channel, handle, Terms { max_bytes: Some(50), copies: true, decides: true }),
            _ => {}
        }
        let max_runs = if options & 7 == 5 { 3 } else { 1000 };
        let mut taken = links.scan(0);
        links.take(chunk, &mut taken, max_runs);
        let stop = taken.stop;
        links.take(chunk, &mut taken, max_runs);
        assert!(stop == taken.stop, "it stops there for a reason");
        assert!(taken.stop <= chunk.len());
        let ranges: usize = taken.begun.iter().map(|begun| 1 + begun.unsettled.len()).sum();
        assert!(taken.moved.len() + ranges + taken.disposed.len() <= max_runs);
        assert!(taken.moved.iter().map(|moved| moved.bytes).sum::<u64>() <= taken.stop as u64);
        for flow in &taken.flows {
            let frame = &chunk[flow.start..flow.stop];
            let written = reflow(frame, &[]).expect("what was taken can be written");
            assert!(written.len() <= frame.len() + 16);
            assert_eq!(reflow(&written, &[]).as_ref(), Some(&written));
            assert!(reflow(frame, &[(usize::from(options >> 4), &[0x40])]).is_some() == (options >> 4 < 11));
        }
        let _ = reflow(chunk, &[]);

        let same = Difference { from: None, by: 0 };
        let mut out = Vec::new();
        let stop = renumber(chunk, 0, taken.stop, &numbers(same, same), usize::MAX, &mut out);
        assert!(stop <= taken.stop);
        // Numbers encoded with too many bytes become shorter or stay unchanged.
        assert!(out.len() <= 2 * stop + 64);
        let from = Difference { from: Some(3), by: 1 };
        let all = Difference { from: None, by: 250 };
        out.clear();
        let stop = renumber(chunk, 0, taken.stop, &numbers(from, all), usize::MAX, &mut out);
        assert!(stop <= taken.stop && out.len() <= 3 * stop);
        // A frame that would become longer is not written.
        let mut short = Vec::new();
        let stopped = renumber(chunk, 0, taken.stop, &numbers(from, all), 40, &mut short);
        assert!(stopped <= stop && out.starts_with(&short));
    }
}
