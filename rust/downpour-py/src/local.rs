//! `LocalOptimizer`: a chain that steps a replica's own copy.

use std::sync::Mutex;

use downpour::optimizer::Local;
use pyo3::prelude::*;

use crate::buffer::Output;
use crate::door::enter;
use crate::error::Failure;
use crate::push::Arrays;
use crate::shard::Optimizer;

/// An optimizer and its state, for one copy of the parameters.
#[pyclass(frozen, module = "pydownpour._core")]
pub struct LocalOptimizer {
    local: Mutex<Local>,
    size: usize,
}

#[pymethods]
impl LocalOptimizer {
    #[new]
    #[pyo3(signature = (optimizer, *, len))]
    fn new(py: Python<'_>, optimizer: &Optimizer, len: usize) -> PyResult<Self> {
        enter(py, 4 * len, || {
            let local = Local::new(optimizer.compile()?, len);
            let size = local.size();
            Ok(Self { local: Mutex::new(local), size })
        })
    }

    /// Bytes of its state; nobody waits for a step to be told.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// Forget the state; what schedules count goes on.
    fn begin(&self, py: Python<'_>) -> PyResult<()> {
        enter(py, self.size, || {
            self.local.lock().map_err(|_| Failure::Poisoned)?.begin();
            Ok(())
        })
    }

    /// Step target (f32) by a gradient; whether all of it stayed finite.
    #[pyo3(signature = (target, gradient, *, samples))]
    fn step(
        &self,
        py: Python<'_>,
        mut target: Output,
        gradient: &Arrays,
        samples: u64,
    ) -> PyResult<bool> {
        enter(py, gradient.size(), || {
            gradient.apart_from(&target)?;
            let mut local = self.local.lock().map_err(|_| Failure::Poisoned)?;
            Ok(local.step(target.elements_mut()?, &gradient.sources()?, samples)?)
        })
    }
}
