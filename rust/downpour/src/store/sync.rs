//! The one door by which atomics enter the store, so that loom can stand in for them.
//!
//! With `--cfg loom` every atomic, lock and shared cell below is loom's, which explores the
//! interleavings and checks that each access is ordered; otherwise they are the standard ones.

pub(crate) use std::sync::PoisonError;

#[cfg(loom)]
mod primitive {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };
    pub(crate) use loom::sync::{Mutex, MutexGuard};
}

#[cfg(not(loom))]
mod primitive {
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering,
    };
    pub(crate) use std::sync::{Mutex, MutexGuard};

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
