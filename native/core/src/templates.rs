//! Templates of earlier headers, used because most headers differ only in a few values.
//!
//! A header has the *shape* of a template if it has the same length and the same bytes, apart from *loose* ones: the
//! contents of strings, and the digits of numbers. If so, its values are at the same positions. In JSON, loose bytes of
//! strings must be ordinary: not quotes, backslashes or control characters, nor `$`, to exclude `$ref`. Binary headers
//! are structured by lengths, so their loose bytes can have any value. Comparing is much faster than parsing, because
//! the compiler vectorizes the loops below.

use crate::plain::{Known, Loose, Plain, Span};

/// Headers share a bucket if their lengths are equal modulo this number.
const BUCKETS: usize = 256;
const WAYS: usize = 4;
const MAX_BYTES: usize = 2048;
/// After this many consecutive misses, a bucket compares and stores only one in this many headers.
const PATIENCE: u32 = 16;
const LANE: usize = 64;

/// Parses a header, and finds its loose bytes if requested. Returns None if the header is not plain.
type Afresh = fn(&[u8], Option<&mut Loose>) -> Option<Plain>;

#[derive(Debug)]
struct Template {
    bytes: Box<[u8]>,
    /// 0xff for bytes that must be equal, 0 for loose ones.
    fixed: Box<[u8]>,
    /// Numbers, except for the opaque.
    numbers: Box<[Span]>,
    plain: Plain,
}

#[derive(Debug, Default)]
struct Bucket {
    ways: Vec<Template>,
    misses: u32,
}

/// Recent headers by length, shared by all connections. They take up to 7 MiB, but usually about 10 KiB.
#[derive(Debug, Default)]
pub struct Templates(Vec<Bucket>);

impl Templates {
    #[inline]
    pub fn read<const JSON: bool>(&mut self, header: &[u8], afresh: Afresh) -> Option<Plain> {
        if header.len() < LANE || header.len() > MAX_BYTES {
            return afresh(header, None);
        }
        if self.0.is_empty() {
            self.0.resize_with(BUCKETS, Bucket::default);
        }
        let bucket = self.0.get_mut(header.len() % BUCKETS)?;
        let ways = if bucket.is_tried() { bucket.ways.len() } else { 0 };
        for way in 0..ways {
            if let Some(plain) = bucket.ways[way].read::<JSON>(header) {
                bucket.misses = 0;
                if way > 0 {
                    bucket.ways.swap(way - 1, way);
                }
                return Some(plain);
            }
        }
        bucket.miss::<JSON>(header, afresh)
    }
}

impl Bucket {
    #[inline]
    fn is_tried(&self) -> bool {
        self.misses < PATIENCE || self.misses % PATIENCE == 0
    }

    #[cold]
    fn miss<const JSON: bool>(&mut self, header: &[u8], afresh: Afresh) -> Option<Plain> {
        let remembers = self.is_tried();
        self.misses = self.misses.wrapping_add(1);
        if !remembers {
            return afresh(header, None);
        }
        let mut loose = Loose::default();
        let plain = afresh(header, Some(&mut loose))?;
        self.ways.truncate(WAYS - 1);
        self.ways.insert(0, Template::new::<JSON>(header, plain, &loose));
        Some(plain)
    }
}

/// Returns 0 for ordinary loose bytes of JSON: ASCII above `$`, except backslash. Otherwise returns 0xff.
///
/// Excluding spaces, `!` and `#` makes two comparisons enough.
#[inline]
fn odd(byte: u8) -> u8 {
    // Non-ASCII bytes are negative.
    let low = u8::from(i8::from_ne_bytes([byte]) < i8::from_ne_bytes([b'%']));
    (low | u8::from(byte == b'\\')).wrapping_neg()
}

impl Template {
    fn new<const JSON: bool>(header: &[u8], plain: Plain, loose: &Loose) -> Self {
        let mut fixed = vec![0xff; header.len()];
        let spans = loose.text.iter().chain(&loose.digits).chain([&plain.opaque_at]);
        for at in spans.flat_map(|span| span.start as usize..span.end as usize) {
            if let (Some(mark), Some(byte)) = (fixed.get_mut(at), header.get(at)) {
                if !JSON || odd(*byte) == 0 {
                    *mark = 0;
                }
            }
        }
        let numbers = loose.digits.clone().into_boxed_slice();
        Self { bytes: header.into(), fixed: fixed.into_boxed_slice(), numbers, plain }
    }

    #[inline]
    fn read<const JSON: bool>(&self, header: &[u8]) -> Option<Plain> {
        if !self.has_shape::<JSON>(header) {
            return None;
        }
        let opaque = if JSON {
            for span in &self.numbers {
                number(header, *span)?;
            }
            i32::try_from(number(header, self.plain.opaque_at)?).ok()?
        } else {
            crate::binary::opaque(header)?
        };
        let known = Known { opaque, ..self.plain.known };
        Some(Plain { known, ..self.plain })
    }

    #[inline]
    fn has_shape<const JSON: bool>(&self, header: &[u8]) -> bool {
        let (bytes, fixed) = (&*self.bytes, &*self.fixed);
        if bytes.len() != header.len() || fixed.len() != header.len() {
            return false;
        }
        let lanes = header.chunks_exact(LANE).zip(bytes.chunks_exact(LANE)).zip(fixed.chunks_exact(LANE));
        for ((header, bytes), fixed) in lanes {
            if differs::<JSON>(header, bytes, fixed) {
                return false;
            }
        }
        let last = header.len().saturating_sub(LANE);
        !differs::<JSON>(&header[last..], &bytes[last..], &fixed[last..])
    }
}

#[inline]
fn differs<const JSON: bool>(header: &[u8], bytes: &[u8], fixed: &[u8]) -> bool {
    let (Some(header), Some(bytes), Some(fixed)) =
        (header.first_chunk::<LANE>(), bytes.first_chunk::<LANE>(), fixed.first_chunk::<LANE>())
    else {
        return true;
    };
    let mut bad = 0;
    for at in 0..LANE {
        let differs = (header[at] ^ bytes[at]) & fixed[at];
        let breaks = if JSON { odd(header[at]) & !fixed[at] } else { 0 };
        bad |= differs | breaks;
    }
    bad != 0
}

/// Parses an integer with its sign. Returns None if it is not canonical.
#[inline]
fn number(header: &[u8], span: Span) -> Option<i64> {
    let value = i64::try_from(digits(span.of(header))?).ok()?;
    match header.get((span.start as usize).checked_sub(1)?)? {
        b'-' if value == 0 => None,
        b'-' => Some(-value),
        _ => Some(value),
    }
}

#[inline]
fn digits(text: &[u8]) -> Option<u64> {
    if text.len() > 18 || (text.len() > 1 && text[0] == b'0') || text.is_empty() {
        return None;
    }
    text.iter().try_fold(0, |value, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit <= 9).then(|| value * 10 + u64::from(digit))
    })
}
