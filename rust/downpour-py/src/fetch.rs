//! Pieces of a fetch as Python buffers.

use downpour::shard::{Batch, Piece};
use downpour::store::Pinned;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// The published parameters of one stripe, as a read-only buffer, pinned while this lives.
#[pyclass(frozen, module = "pydownpour._core")]
pub struct PinnedStripe(pub Pinned);

#[pymethods]
impl PinnedStripe {
    fn __len__(&self) -> usize {
        size_of_val(self.0.parameters())
    }
}

/// The pieces in order, each a buffer.
pub fn buffers(py: Python<'_>, batch: Batch) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for piece in batch.pieces {
        match piece {
            Piece::Bytes(bytes) => list.append(PyBytes::new(py, &bytes))?,
            Piece::Stripe(pinned) => list.append(Bound::new(py, PinnedStripe(pinned))?)?,
        }
    }
    Ok(list)
}
