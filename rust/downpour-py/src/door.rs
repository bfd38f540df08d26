//! The one place where the interpreter is released, and where a panic becomes an exception.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;

use crate::error::Failure;

/// Work on fewer bytes is done with the interpreter held: taking it back costs more, and with
/// other threads running it may cost a whole switch interval.
const SIZE_MIN: usize = 4096;

/// Do `work`, which touches about `size` bytes, and turn its failure into an exception.
///
/// The interpreter is released meanwhile unless the work is small. A panic is an invariant of ours
/// that broke: it becomes an `InternalError`, not an abort and not a `BaseException`.
pub fn enter<T: Send>(
    py: Python<'_>,
    size: usize,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> PyResult<T> {
    // Broken state stays behind poisoned locks, so nobody can observe it.
    let guarded = || {
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|cause| {
            let words = cause
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| cause.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            Err(Failure::Panic(words.to_owned()))
        })
    };
    let result = if size < SIZE_MIN { guarded() } else { py.detach(guarded) };
    result.map_err(|failure| failure.into_py(py))
}
