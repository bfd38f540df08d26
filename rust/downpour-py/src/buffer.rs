//! Python's buffers, coming in and going out: the only `unsafe` of this crate.
//!
//! Coming in, [`Input`] and [`Output`] wrap any C-contiguous buffer of any format and lend its
//! bytes. Going out, [`Receiver`] lends its scratch for a socket to write into, and a pinned
//! stripe lends its parameters.
//!
//! # What is checked, and what cannot be
//! Contiguity, size, alignment, writability and overlap are checked. That no other thread writes
//! into a buffer during a call cannot be: no buffer of Python's can promise it, numpy's neither.
//! Callers keep that rule; breaking it gives wrong numbers, as it would in numpy. The addresses
//! stay valid whatever happens, because each buffer is held until the call or the object ends.
#![allow(unsafe_code, reason = "the buffer protocol is a C interface")]

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use downpour::kernel::DType;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::{PyClass, ffi};

use crate::error::Failure;
use crate::fetch::PinnedStripe;
use crate::inlets::{ReplicaInlet, ShardInlet};

/// A buffer to read from.
#[derive(Debug)]
pub struct Input(PyUntypedBuffer);

/// A buffer to write into.
#[derive(Debug)]
pub struct Output(PyUntypedBuffer);

/// Take a buffer whose memory is one run of bytes.
fn contiguous(object: Borrowed<'_, '_, PyAny>) -> PyResult<PyUntypedBuffer> {
    let buffer = PyUntypedBuffer::get(&object)?;
    if buffer.is_c_contiguous() {
        return Ok(buffer);
    }
    Err(Failure::NotContiguous.into_py(object.py()))
}

impl FromPyObject<'_, '_> for Input {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        contiguous(object).map(Self)
    }
}

impl FromPyObject<'_, '_> for Output {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let buffer = contiguous(object)?;
        if buffer.readonly() {
            return Err(Failure::ReadOnly.into_py(object.py()));
        }
        Ok(Self(buffer))
    }
}

/// An empty buffer may come with a null or dangling address.
fn is_empty(buffer: &PyUntypedBuffer) -> bool {
    buffer.len_bytes() == 0
}

impl Input {
    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        if is_empty(&self.0) {
            return &[];
        }
        // SAFETY: the exporter guarantees `len_bytes` contiguous bytes at `buf_ptr` until the
        // buffer is released, which `self` outlives; contiguity was checked in `contiguous`. That
        // nobody writes meanwhile is the caller's part of the contract (see the module).
        unsafe { std::slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }

    /// All bytes as elements.
    pub fn elements<T: bytemuck::AnyBitPattern>(&self) -> Result<&[T], Failure> {
        if is_empty(&self.0) {
            return Ok(&[]);
        }
        bytemuck::try_cast_slice(self.bytes()).map_err(|_| unfit::<T>(&self.0))
    }

    /// Whether it is a native array of this shape, and of which of numpy's own float types; `None`
    /// if it is anything else.
    pub fn plain(&self, shape: &[usize]) -> Option<DType> {
        if self.0.shape() != shape {
            return None;
        }
        match self.0.format().to_bytes() {
            b"f" => Some(DType::F32),
            b"d" => Some(DType::F64),
            b"e" => Some(DType::F16),
            _ => None,
        }
    }

    /// Whether a byte of `self` is a byte of `target`.
    pub fn overlaps(&self, target: &Output) -> bool {
        let range = |buffer: &PyUntypedBuffer| {
            let start = buffer.buf_ptr() as usize;
            (start, start + buffer.len_bytes())
        };
        let ((a, a_stop), (b, b_stop)) = (range(&self.0), range(&target.0));
        !is_empty(&self.0) && !is_empty(&target.0) && a < b_stop && b < a_stop
    }
}

impl Output {
    /// All bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if is_empty(&self.0) {
            return &mut [];
        }
        // SAFETY: as `Input::bytes`; the exporter said it is writable, and `&mut self` keeps this
        // view the only one made from `self`. Callers check `overlaps` before they hold two.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }

    /// All bytes as elements.
    pub fn elements_mut<T: bytemuck::Pod>(&mut self) -> Result<&mut [T], Failure> {
        if is_empty(&self.0) {
            return Ok(&mut []);
        }
        let unfit = unfit::<T>(&self.0);
        bytemuck::try_cast_slice_mut(self.bytes_mut()).map_err(|_| unfit)
    }

    /// Whether the two share a byte.
    pub fn overlaps(&self, other: &Self) -> bool {
        let range = |buffer: &PyUntypedBuffer| {
            let start = buffer.buf_ptr() as usize;
            (start, start + buffer.len_bytes())
        };
        let ((a, a_stop), (b, b_stop)) = (range(&self.0), range(&other.0));
        a < b_stop && b < a_stop
    }
}

fn unfit<T>(buffer: &PyUntypedBuffer) -> Failure {
    Failure::Unfit { size: buffer.len_bytes(), element_size: size_of::<T>() }
}

/// One cache line, so that a payload behind a 64-byte header is aligned for every kernel.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

/// An inlet and the scratch it parses, which Python's side may write into between calls.
pub struct Receiver<T> {
    inlet: Mutex<T>,
    scratch: Box<[UnsafeCell<Line>]>,
    size: usize,
}

// SAFETY: the scratch is read and written by Rust only inside `with`, which holds the mutex, and
// by Python only through exported views, between calls (see the module).
unsafe impl<T: Send> Sync for Receiver<T> {}

impl<T> Receiver<T> {
    /// An inlet that wants a scratch of `size` bytes.
    pub fn new(inlet: T, size: usize) -> Self {
        let lines = size.div_ceil(size_of::<Line>());
        let scratch = (0..lines).map(|_| UnsafeCell::new(Line([0; 64]))).collect();
        Self { inlet: Mutex::new(inlet), scratch, size }
    }

    /// The inlet and its scratch, for one call at a time.
    ///
    /// The lock is never held while this thread waits for the interpreter, so a thread that waits
    /// for the lock with the interpreter held cannot be part of a deadlock.
    pub fn with<R>(&self, work: impl FnOnce(&mut T, &mut [u8]) -> R) -> Result<R, Failure> {
        let mut inlet = self.inlet.lock().map_err(|_| Failure::Poisoned)?;
        // SAFETY: the box holds at least `size` bytes in `UnsafeCell`s, lives as long as `self`,
        // and the mutex makes this the only slice over it.
        let scratch = unsafe { std::slice::from_raw_parts_mut(self.address().cast(), self.size) };
        Ok(work(&mut inlet, scratch))
    }

    fn address(&self) -> *mut c_void {
        self.scratch.as_ptr().cast_mut().cast()
    }
}

/// Fill a view over `size` bytes at `address` that keeps `owner` alive.
///
/// # Safety
/// `view` is the pointer that Python passed to `__getbuffer__`; the bytes live as long as `owner`.
unsafe fn export<T: PyClass>(
    owner: &Bound<'_, T>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    address: *mut c_void,
    size: usize,
    readonly: bool,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("no view to fill"));
    }
    let size = ffi::Py_ssize_t::try_from(size)?;
    // SAFETY: the caller's promises; FillInfo takes its own reference to the owner.
    let status = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), address, size, readonly.into(), flags)
    };
    if status == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

#[pymethods]
impl ShardInlet {
    // SAFETY: called by Python alone, with a view to fill; PyO3 makes the slot an unsafe function.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let receiver = &slf.get().receiver;
        // SAFETY: Python passes the view; the scratch lives as long as the frozen object.
        unsafe { export(slf, view, flags, receiver.address(), receiver.size, false) }
    }
}

#[pymethods]
impl ReplicaInlet {
    // SAFETY: called by Python alone, with a view to fill; PyO3 makes the slot an unsafe function.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let receiver = &slf.get().receiver;
        // SAFETY: Python passes the view; the scratch lives as long as the frozen object.
        unsafe { export(slf, view, flags, receiver.address(), receiver.size, false) }
    }
}

#[pymethods]
impl PinnedStripe {
    // SAFETY: called by Python alone, with a view to fill; PyO3 makes the slot an unsafe function.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let parameters: &[u8] = bytemuck::cast_slice(slf.get().0.parameters());
        let address = parameters.as_ptr().cast_mut().cast();
        // SAFETY: Python passes the view; a published block never moves or changes while pinned,
        // and the frozen object holds the pin. The view is read-only.
        unsafe { export(slf, view, flags, address, parameters.len(), true) }
    }
}
