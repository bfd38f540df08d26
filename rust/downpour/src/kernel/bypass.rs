//! Writing results past the caches.
//!
//! A sweep through a store that is far larger than the caches finds its old values in memory and
//! leaves its new ones there. Written the usual way, the new values first push through every cache
//! what is about to be read. Written past the caches, a sweep runs at the memory's own speed. In a
//! store that fits in a cache the same would be a loss: the caller decides.
//!
//! # Ordering
//!
//! Such writes are outside the memory model: only a store fence orders them before the atomic
//! operations that publish the memory. Dropping [`Bypass`] is that fence, so it must be dropped
//! (and not forgotten) before the written memory is published. Its users create it inside a
//! kernel's run.

use super::LANES;

/// What the processor's instruction wants: its target on a multiple of its width.
#[cfg(target_arch = "x86_64")]
const ALIGN: usize = 16;

/// How a loop writes its results: past the caches if `WANTED`, as usual if not or where there is
/// no such instruction.
pub(crate) struct Bypass<const WANTED: bool>(());

impl<const WANTED: bool> Bypass<WANTED> {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// `*target = values`. A target that is not aligned is written as usual.
    #[inline(always)]
    #[allow(clippy::unused_self, reason = "dropping it is the fence")]
    pub(crate) fn put(&self, target: &mut [f32; LANES], values: [f32; LANES]) {
        #[cfg(target_arch = "x86_64")]
        if WANTED && target.as_ptr().addr().is_multiple_of(ALIGN) {
            use std::arch::x86_64::{_mm_setr_ps, _mm_stream_ps};
            let (targets, values) = (target.as_chunks_mut::<4>().0, values.as_chunks::<4>().0);
            for (target, &[a, b, c, d]) in targets.iter_mut().zip(values) {
                // SAFETY: SSE is part of x86-64; the target is four floats that we borrow alone,
                // at a multiple of 16 bytes; the fence follows in `drop`.
                unsafe { _mm_stream_ps(target.as_mut_ptr(), _mm_setr_ps(a, b, c, d)) }
            }
            return;
        }
        *target = values;
    }
}

impl<const WANTED: bool> Drop for Bypass<WANTED> {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if WANTED {
            // SAFETY: SSE is part of x86-64, and a fence touches no memory of ours.
            unsafe { std::arch::x86_64::_mm_sfence() }
        }
    }
}
