//! `Codec`: gradients into fewer bytes, and back.

use std::collections::BTreeMap;
use std::sync::Arc;

use downpour::codec;
use pyo3::prelude::*;

use crate::buffer::{Input, Output};
use crate::door::enter;
use crate::error::Failure;
use crate::numbers;

/// A codec, compiled: it holds no elements.
#[pyclass(frozen, module = "pydownpour._core")]
pub struct Codec(pub Arc<codec::Codec>);

#[pymethods]
impl Codec {
    #[new]
    #[pyo3(signature = (name, numbers, *, simd = None))]
    fn new(
        py: Python<'_>,
        name: &str,
        numbers: BTreeMap<String, f64>,
        simd: Option<&str>,
    ) -> PyResult<Self> {
        enter(py, 0, || {
            let level = simd.map(numbers::level).transpose()?;
            Ok(Self(Arc::new(codec::Codec::compile(name, &numbers, level)?)))
        })
    }

    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }

    /// What a frame's header says for it.
    #[getter]
    fn number(&self) -> u8 {
        self.0.number()
    }

    #[getter]
    fn simd(&self) -> &'static str {
        self.0.level().name()
    }

    /// The most bytes that len elements become.
    fn size_max(&self, len: usize) -> usize {
        self.0.size_max(len)
    }

    /// Encode gradient + residual into target's first bytes; leave in residual what they lack.
    fn encode(
        &self,
        py: Python<'_>,
        gradient: Input,
        mut residual: Output,
        mut target: Output,
    ) -> PyResult<usize> {
        enter(py, gradient.bytes().len(), || {
            if gradient.overlaps(&residual)
                || gradient.overlaps(&target)
                || residual.overlaps(&target)
            {
                return Err(Failure::Overlap);
            }
            Ok(self.0.encode(gradient.elements()?, residual.elements_mut()?, target.bytes_mut())?)
        })
    }

    /// Decode as many elements as target has.
    fn decode(&self, py: Python<'_>, data: Input, mut target: Output) -> PyResult<()> {
        enter(py, data.bytes().len(), || {
            if data.overlaps(&target) {
                return Err(Failure::Overlap);
            }
            Ok(self.0.decode(data.bytes(), target.elements_mut()?)?)
        })
    }

    /// Undo what encoding a gradient that was not applied has changed of the residual.
    fn give_back(
        &self,
        py: Python<'_>,
        data: Input,
        gradient: Input,
        mut residual: Output,
    ) -> PyResult<()> {
        enter(py, gradient.bytes().len(), || {
            if gradient.overlaps(&residual) || data.overlaps(&residual) {
                return Err(Failure::Overlap);
            }
            Ok(self.0.give_back(data.bytes(), gradient.elements()?, residual.elements_mut()?)?)
        })
    }
}

/// The names of all codecs of this build.
#[pyfunction]
pub fn codecs() -> Vec<&'static str> {
    codec::names().collect()
}
