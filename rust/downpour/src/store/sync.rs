//! The one door by which atomics enter the store, so that loom can stand in for them.
//!
//! With `--cfg loom` every atomic, lock and shared cell below is loom's, which explores the
//! interleavings and checks that each access is ordered; otherwise they are the standard ones.

use std::sync::TryLockError;

#[cfg(loom)]
mod primitive {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
    pub(crate) use loom::thread::yield_now;

    /// loom has no free-running spin: every wait must give the others a turn.
    pub(crate) fn spin_loop() {
        yield_now();
    }
}

#[cfg(not(loom))]
mod primitive {
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use std::sync::{Arc, Mutex, MutexGuard};
    pub(crate) use std::thread::yield_now;

    /// The standard cell in loom's shape: access only inside a closure.
    #[derive(Debug)]
    pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        #[inline]
        pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }

        #[inline]
        pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}

pub(crate) use primitive::*;

/// Enter a lock that is free by construction: its owner is decided by an atomic elsewhere (a
/// claim, a free list), and the lock only tells the compiler so without `unsafe`.
///
/// # Panics
///
/// If the lock is taken after all, which would be a bug in the protocol around it.
pub(crate) fn own<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    match lock.try_lock() {
        Ok(guard) => guard,
        // A panic elsewhere left the value as it was between two whole operations.
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => panic!("a store cell has two owners"),
    }
}

/// Waiting for another thread: a few spins, then the rest of the time slice.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    rounds: u32,
}

impl Backoff {
    const SPINS: u32 = 64;

    pub(crate) fn wait(&mut self) {
        if self.rounds < Self::SPINS {
            self.rounds += 1;
            spin_loop();
        } else {
            yield_now();
        }
    }
}
