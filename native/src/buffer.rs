//! The one place with unsafe code: a Python buffer seen as bytes.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

/// Call `read` with the bytes of a buffer; with none if they do not lie side by side.
#[inline]
pub fn with_bytes<R>(_py: Python<'_>, buffer: &PyBuffer<u8>, read: impl FnOnce(&[u8]) -> R) -> R {
    let Some(bytes) = buffer.as_slice_ptr() else {
        return read(&[]);
    };
    // SAFETY: these are readable bytes side by side, which the buffer keeps alive. Nobody changes them as long as
    // `read` has them: the interpreter is ours all that time, as `_py` shows, and `read` is Rust that neither runs
    // Python code nor writes to a buffer. Whoever writes into a buffer without holding the interpreter, while it is
    // read, is at fault; Sluice fills its chunks in the thread that scans them.
    #[allow(unsafe_code)]
    let bytes = unsafe { bytes.as_ref() };
    read(bytes)
}
