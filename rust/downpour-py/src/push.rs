//! `Gather`, `Arrays`, `Encoded`: a user's arrays, in one pass, into the frames of a push.

use downpour::kernel::{DType, Gradient, Level};
use downpour::push::{self, Author, Format, Source};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::buffer::{Input, Output};
use crate::codec::Codec;
use crate::door::enter;
use crate::error::Failure;
use crate::numbers;

/// The shapes of a layout's arrays, compiled: takes gradients for them.
#[pyclass(frozen, module = "pydownpour._core")]
pub struct Gather {
    shapes: Vec<Vec<usize>>,
    lens: Vec<usize>,
    len: usize,
}

#[pymethods]
impl Gather {
    #[new]
    fn new(shapes: Vec<Vec<usize>>) -> Self {
        let lens: Vec<usize> = shapes.iter().map(|shape| shape.iter().product()).collect();
        let len = lens.iter().sum();
        Self { shapes, lens, len }
    }

    /// Elements of all arrays.
    #[getter]
    fn len(&self) -> usize {
        self.len
    }

    /// Take one float32, float64 or float16 array of each shape; None if one is anything else.
    fn plain(&self, values: &Bound<'_, PyList>) -> Option<Arrays> {
        if values.len() != self.shapes.len() {
            return None;
        }
        let mut taken = Vec::with_capacity(self.shapes.len());
        for (value, shape) in values.iter().zip(&self.shapes) {
            // An array without dimensions has no shape that a buffer could lend.
            let (value, shape) = match shape.as_slice() {
                [] if value.getattr("shape").ok()?.len().ok()? == 0 => {
                    (value.call_method1("reshape", (1,)).ok()?, &[1][..])
                }
                shape => (value, shape),
            };
            let input: Input = value.extract().ok()?;
            let dtype = input.plain(shape)?;
            taken.push(Taken::Values(input, dtype));
        }
        Some(Arrays { taken, len: self.len })
    }

    /// Take buffers of elements of these dtype codes, of any shape; None stands for zeros.
    fn mixed(&self, values: Vec<Option<Input>>, dtypes: Vec<u8>) -> PyResult<Arrays> {
        Python::attach(|py| {
            enter(py, 0, || {
                let (arrays, codes, wanted) = (values.len(), dtypes.len(), self.lens.len());
                if arrays != wanted || codes != wanted {
                    return Err(Failure::Arrays { arrays, dtypes: codes, wanted });
                }
                let mut taken = Vec::with_capacity(wanted);
                for (index, (value, code)) in values.into_iter().zip(dtypes).enumerate() {
                    let wanted = self.lens[index];
                    let Some(input) = value else {
                        taken.push(Taken::Zeros(wanted));
                        continue;
                    };
                    let dtype = numbers::dtype(code)?;
                    let actual = Gradient::from_bytes(input.bytes(), dtype)?.len();
                    if actual != wanted {
                        return Err(Failure::Array { index, actual, wanted });
                    }
                    taken.push(Taken::Values(input, dtype));
                }
                Ok(Arrays { taken, len: self.len })
            })
        })
    }
}

/// One array, held until the gradient has been used.
enum Taken {
    Values(Input, DType),
    Zeros(usize),
}

impl Taken {
    fn source(&self) -> Result<Source<'_>, Failure> {
        match self {
            Self::Values(input, dtype) => {
                Ok(Source::Values(Gradient::from_bytes(input.bytes(), *dtype)?))
            }
            Self::Zeros(len) => Ok(Source::Zeros(*len)),
        }
    }
}

/// Arrays laid end to end, not copied: nobody may write into them while they are in use.
#[pyclass(frozen, module = "pydownpour._core")]
pub struct Arrays {
    taken: Vec<Taken>,
    len: usize,
}

impl Arrays {
    pub fn sources(&self) -> Result<push::Arrays<'_>, Failure> {
        self.taken.iter().map(Taken::source).collect()
    }

    pub fn apart_from(&self, target: &Output) -> Result<(), Failure> {
        if self.overlaps_output(target) { Err(Failure::Overlap) } else { Ok(()) }
    }

    fn overlaps_output(&self, target: &Output) -> bool {
        self.taken.iter().any(|taken| match taken {
            Taken::Values(input, _) => input.overlaps(target),
            Taken::Zeros(_) => false,
        })
    }

    /// What decides whether the interpreter is released.
    pub fn size(&self) -> usize {
        4 * self.len
    }
}

#[pymethods]
impl Arrays {
    /// Whether one of them shares memory with target.
    fn overlaps(&self, target: Output) -> bool {
        self.overlaps_output(&target)
    }

    /// One element as f32; None if there is no such.
    fn value(&self, py: Python<'_>, index: usize) -> PyResult<Option<f32>> {
        enter(py, 0, || {
            let mut value = [0.0];
            if index >= self.len {
                return Ok(None);
            }
            self.sources()?.read(Level::best(), index, &mut value);
            Ok(Some(value[0]))
        })
    }

    /// Look at all elements as f32: (non-finite ones, index of the first or -1, sum of squares).
    fn check(&self, py: Python<'_>, fragment_len: usize) -> PyResult<(usize, i64, f64)> {
        enter(py, self.size(), || {
            let found = self.sources()?.check(Level::best(), fragment_len);
            Ok((found.count, index(found.first_index), found.sum_of_squares))
        })
    }

    /// target (f32) += elements, or = elements when overwrite.
    #[pyo3(signature = (target, *, overwrite))]
    fn accumulate(&self, py: Python<'_>, mut target: Output, overwrite: bool) -> PyResult<()> {
        enter(py, self.size(), || {
            self.apart_from(&target)?;
            let arrays = self.sources()?;
            Ok(arrays.accumulate(Level::best(), target.elements_mut()?, overwrite)?)
        })
    }

    /// target (f32) -= rate * elements.
    fn step(&self, py: Python<'_>, mut target: Output, rate: f32) -> PyResult<()> {
        enter(py, self.size(), || {
            self.apart_from(&target)?;
            Ok(self.sources()?.step(Level::best(), target.elements_mut()?, rate)?)
        })
    }

    /// Encode fragments first .. first + count - 1 into their places in target, as whole frames.
    #[pyo3(signature = (target, *, dtype, fragment_len, first, count, replica, incarnation, push,
        versions, codec = None, residual = None, leaves_out = false))]
    #[allow(clippy::too_many_arguments, reason = "what frames say, by keyword")]
    fn encode(
        &self,
        py: Python<'_>,
        mut target: Output,
        dtype: u8,
        fragment_len: usize,
        first: usize,
        count: usize,
        replica: u32,
        incarnation: u32,
        push: u64,
        versions: Input,
        codec: Option<&Codec>,
        mut residual: Option<Output>,
        leaves_out: bool,
    ) -> PyResult<Encoded> {
        let codec = codec.map(|codec| &*codec.0);
        enter(py, self.size(), || {
            self.apart_from(&target)?;
            let mut left: &mut [f32] = &mut [];
            if let Some(residual) = &mut residual {
                self.apart_from(residual)?;
                if residual.overlaps(&target) {
                    return Err(Failure::Overlap);
                }
                left = residual.elements_mut()?;
            }
            let format = Format { dtype: numbers::dtype(dtype)?, fragment_len, codec, leaves_out };
            let author = Author { replica, incarnation, push, versions: versions.elements()? };
            let range = first..first.saturating_add(count);
            let (arrays, bytes) = (self.sources()?, target.bytes_mut());
            Ok(Encoded::of(format.encode(Level::best(), &arrays, author, range, left, bytes)?))
        })
    }
}

/// What encoding has found.
#[pyclass(frozen, get_all, module = "pydownpour._core")]
pub struct Encoded {
    bad: usize,
    first_bad: i64,
    overflowed: usize,
    first_overflowed: i64,
    underflowed: usize,
    squares: f64,
    ends: Vec<usize>,
}

impl Encoded {
    fn of(found: push::Encoded) -> Self {
        Self {
            bad: found.gradient.count,
            first_bad: index(found.gradient.first_index),
            overflowed: found.overflowed,
            first_overflowed: index(found.overflowed_first),
            underflowed: found.underflowed,
            squares: found.gradient.sum_of_squares,
            ends: found.ends,
        }
    }
}

fn index(index: Option<usize>) -> i64 {
    index.map_or(-1, |index| i64::try_from(index).unwrap_or(i64::MAX))
}
