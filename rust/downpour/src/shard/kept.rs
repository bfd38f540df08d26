//! Each replica's last gradient, for records that ask for it to be applied again.
//!
//! A record that says "again" has an identity of its own and no payload: it stands for the gradient
//! of the same fragment that this shard took last from the same life of its replica. It is applied,
//! numbered, journaled and marked as any other; the journal is given the gradient itself, so that
//! nothing has to be kept to do what it says once more. What is kept is in no export: where it is
//! missing (before the first push, in a process that took the shard over, beyond the limit) the
//! record is refused, and its replica sends the whole gradient under the same identity.
//!
//! # Ordering
//! The map's lock is held for a look only. A replica's own lock is taken under that of its entry,
//! which orders its records.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::kernel::{Gradient, Level, widen};

/// What is kept of all replicas.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Bytes that may be kept; 0: nothing is.
    size_max: AtomicUsize,
    size: AtomicUsize,
    of: Mutex<BTreeMap<u32, Arc<Mutex<Life>>>>,
}

/// Of one life of a replica, fragment by fragment.
#[derive(Debug, Default)]
pub(super) struct Life {
    incarnation: u32,
    last: Vec<Option<Last>>,
}

/// A gradient, and the version it was computed from.
#[derive(Debug)]
pub(super) struct Last {
    push: u64,
    pub values: Box<[f32]>,
    pub base_version: u64,
}

impl Kept {
    /// Keep so many bytes at most from now on; 0 keeps nothing, and lets go of what there is.
    pub(super) fn keep_at_most(&self, size_max: usize) {
        // ORDERING: Relaxed, here and below: numbers alone, no memory goes with them.
        self.size_max.store(size_max, Ordering::Relaxed);
        if size_max == 0 {
            self.retain(|_| false);
        }
    }

    /// Bytes that are kept.
    pub(super) fn bytes(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    /// Forget the replicas that are not wanted.
    pub(super) fn retain(&self, is_wanted: impl Fn(u32) -> bool) {
        lock(&self.of).retain(|replica, life| {
            let stays = is_wanted(*replica);
            if !stays {
                self.let_go(&mut lock(life));
            }
            stays
        });
    }

    /// The gradients of a replica, if any are kept.
    pub(super) fn of(&self, replica: u32) -> Option<Arc<Mutex<Life>>> {
        lock(&self.of).get(&replica).cloned()
    }

    /// A gradient was taken: it is the last one of its fragment now.
    pub(super) fn keep(
        &self,
        level: Level,
        (replica, incarnation, push): (u32, u32, u64),
        (place, places): (usize, usize),
        gradient: Gradient<'_>,
        base_version: u64,
    ) {
        let size_max = self.size_max.load(Ordering::Relaxed);
        if size_max == 0 {
            return;
        }
        let life = Arc::clone(lock(&self.of).entry(replica).or_default());
        let mut life = lock(&life);
        if life.incarnation != incarnation || life.last.len() != places {
            self.let_go(&mut life);
            life.incarnation = incarnation;
            life.last.resize_with(places, || None);
        }
        let slot = &mut life.last[place];
        if slot.as_ref().is_some_and(|last| last.push > push) {
            return; // it was turned down at first, and a newer one was taken before it
        }
        if slot.is_none() {
            let size = gradient.len() * size_of::<f32>();
            if self.size.fetch_add(size, Ordering::Relaxed) + size > size_max {
                self.size.fetch_sub(size, Ordering::Relaxed);
                return;
            }
        }
        let last = slot.get_or_insert_with(|| Last {
            push,
            values: vec![0.0; gradient.len()].into(),
            base_version,
        });
        widen(level, gradient, &mut last.values);
        (last.push, last.base_version) = (push, base_version);
    }

    fn let_go(&self, life: &mut Life) {
        for last in life.last.drain(..).flatten() {
            self.size.fetch_sub(size_of_val(&*last.values), Ordering::Relaxed);
        }
    }
}

impl Life {
    /// The last gradient of a fragment, if it is of that life.
    pub(super) fn last(&self, incarnation: u32, place: usize) -> Option<&Last> {
        let last = self.last.get(place).filter(|_| self.incarnation == incarnation);
        last?.as_ref()
    }
}

/// A panic leaves a whole value behind: what is kept is only ever replaced.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
