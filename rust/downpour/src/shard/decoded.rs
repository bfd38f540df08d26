//! Memory that records are decoded into: a fragment long, used again and again.
//!
//! One is enough for a shard whose records are settled by one thread, and it stays in that thread's
//! cache. Threads that settle at the same time have one each.

use std::sync::{Mutex, PoisonError};

use crate::store::Geometry;

/// The scratches that nobody uses now.
#[derive(Debug)]
pub(super) struct Scratches {
    /// Elements of each.
    len: usize,
    free: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    scratches: Vec<Box<[f32]>>,
    /// Made so far, in use or not.
    count: usize,
}

/// One in use; dropping it puts it back.
pub(super) struct Scratch<'a> {
    owner: &'a Scratches,
    values: Box<[f32]>,
}

impl Scratches {
    /// None yet: they are made when they are needed.
    pub(super) fn new(geometry: &Geometry) -> Self {
        let len = geometry.fragment_len.min(geometry.len);
        Self { len, free: Mutex::default() }
    }

    /// One whose elements may be anything.
    pub(super) fn take(&self) -> Scratch<'_> {
        let mut state = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let values = state.scratches.pop().unwrap_or_else(|| {
            state.count += 1;
            vec![0.0; self.len].into()
        });
        Scratch { owner: self, values }
    }

    /// Bytes of all that were made.
    pub(super) fn bytes(&self) -> usize {
        let state = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        state.count * self.len * size_of::<f32>()
    }
}

impl Scratch<'_> {
    pub(super) fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        let mut state = self.owner.free.lock().unwrap_or_else(PoisonError::into_inner);
        state.scratches.push(std::mem::take(&mut self.values));
    }
}
