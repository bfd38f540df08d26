//! From the core's errors to the classes of `pydownpour.errors`: one match.
//!
//! The classes are looked up by name when an error is raised, so that the extension can be
//! imported before, and without, the rest of the package.

use downpour::codec::CodecError;
use downpour::dedupe::StateError;
use downpour::frame::{Fault, ProtocolError};
use downpour::inlet::{InletError, Misuse};
use downpour::kernel::KernelError;
use downpour::optimizer::OptimizerError;
use downpour::push::EncodeError;
use downpour::shard::ImportError;
use downpour::store::{Accumulated, AdmissionError, ApplyError, CloseError, StoreError};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use thiserror::Error;

use crate::door::enter;

/// Everything a call into the core can end with.
#[derive(Debug, Error)]
pub enum Failure {
    #[error(transparent)]
    Protocol(ProtocolError),
    #[error(transparent)]
    Misuse(Misuse),
    #[error("cannot encode: {0}")]
    Encode(Fault),
    #[error(transparent)]
    Push(#[from] EncodeError),
    #[error("{arrays} arrays, {dtypes} dtypes: there must be one for each of {wanted}")]
    Arrays { arrays: usize, dtypes: usize, wanted: usize },
    #[error("array {index} has {actual} elements of its dtype, not {wanted}")]
    Array { index: usize, actual: usize, wanted: usize },
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    Close(CloseError),
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    State(StateError),
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    #[error(transparent)]
    Codec(#[from] CodecError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error("buffer is not C-contiguous: pass numpy.ascontiguousarray(...) of it")]
    NotContiguous,
    #[error("buffer is read-only: pass a writable one")]
    ReadOnly,
    #[error("buffer of {size} bytes is not whole, aligned elements of {element_size} bytes")]
    Unfit { size: usize, element_size: usize },
    #[error("source and target share memory: pass a copy of one")]
    Overlap,
    #[error("{name} must be {bound}, not {value}")]
    Argument { name: &'static str, value: i128, bound: &'static str },
    #[error("max_norm must be finite and above 0, not {0}")]
    MaxNorm(f64),
    #[error("simd level {name:?} is unknown or absent here; available are {available}")]
    Simd { name: String, available: String },
    #[error("an earlier call on this object failed half-way: throw it away")]
    Poisoned,
    #[error("the core panicked: {0}")]
    Panic(String),
}

impl From<InletError> for Failure {
    fn from(error: InletError) -> Self {
        match error {
            InletError::Protocol(error) => Self::Protocol(error),
            InletError::Misuse(error) => Self::Misuse(error),
        }
    }
}

impl From<Misuse> for Failure {
    fn from(error: Misuse) -> Self {
        Self::Misuse(error)
    }
}

impl From<CloseError> for Failure {
    fn from(error: CloseError) -> Self {
        match error {
            CloseError::NotNow(error) => Self::Apply(error),
            dropped => Self::Close(dropped),
        }
    }
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Self {
        match error {
            ImportError::State(error) => Self::State(error),
            ImportError::Store(error) => Self::Store(error),
        }
    }
}

/// Numbers that become keyword details, and so attributes, of an exception.
type Details = Vec<(&'static str, u64)>;

impl Failure {
    /// The class in `pydownpour.errors`, and the details.
    fn class(&self) -> (&'static str, Details) {
        match self {
            Self::Protocol(error) => ("RemoteProtocolError", vec![("offset", error.offset)]),
            Self::Misuse(Misuse::Target { .. } | Misuse::Admission(_))
            | Self::Admission(_)
            | Self::Push(_)
            | Self::Arrays { .. }
            | Self::Array { .. }
            | Self::Kernel(_)
            | Self::ReadOnly
            | Self::Unfit { .. }
            | Self::Overlap
            | Self::Argument { .. } => ("ParameterError", vec![]),
            Self::Misuse(_) | Self::Encode(_) => ("LocalProtocolError", vec![]),
            Self::NotContiguous => ("UnsupportedArray", vec![]),
            Self::Apply(error) | Self::Close(CloseError::Dropped { cause: error, .. }) => {
                apply_class(error)
            }
            Self::Close(_) => ("ParameterError", vec![]),
            Self::Store(error) => store_class(error),
            Self::State(_) => ("CheckpointError", vec![]),
            Self::Codec(error) => codec_class(error),
            Self::Optimizer(_) | Self::MaxNorm(_) | Self::Simd { .. } => ("ConfigError", vec![]),
            Self::Poisoned | Self::Panic(_) => ("InternalError", vec![]),
        }
    }

    /// The exception.
    pub fn into_py(self, py: Python<'_>) -> PyErr {
        self.build(py).unwrap_or_else(|error| {
            // Only a broken installation has no error classes; keep the words nevertheless.
            let fallback = PyRuntimeError::new_err(self.to_string());
            fallback.set_cause(py, Some(error));
            fallback
        })
    }

    fn build(&self, py: Python<'_>) -> PyResult<PyErr> {
        let (class, numbers) = self.class();
        let details = PyDict::new(py);
        if class != "InternalError" {
            for (name, number) in numbers {
                details.set_item(name, number)?;
            }
        }
        let class = py.import("pydownpour.errors")?.getattr(class)?;
        Ok(PyErr::from_value(class.call((self.to_string(),), Some(&details))?))
    }
}

fn codec_class(error: &CodecError) -> (&'static str, Details) {
    match error {
        CodecError::NonFinite { count, first_index, .. } => (
            "NonFiniteGradient",
            vec![("count", *count as u64), ("first_index", *first_index as u64)],
        ),
        CodecError::Unknown { .. } | CodecError::Number(_) => ("ConfigError", vec![]),
        _ => ("ParameterError", vec![]),
    }
}

fn apply_class(error: &ApplyError) -> (&'static str, Details) {
    match error {
        ApplyError::NonFinite { count, first_index }
        | ApplyError::ResultNonFinite { count, first_index } => (
            "NonFiniteGradient",
            vec![("count", *count as u64), ("first_index", *first_index as u64)],
        ),
        ApplyError::Full { .. } => ("LimitExceeded", vec![]),
        ApplyError::Round { .. } | ApplyError::Superseded { .. } => ("LocalProtocolError", vec![]),
        _ => ("ParameterError", vec![]),
    }
}

fn store_class(error: &StoreError) -> (&'static str, Details) {
    match error {
        StoreError::Sealed { lsn } => ("LocalProtocolError", vec![("lsn", *lsn)]),
        StoreError::Plane { .. } | StoreError::Range { .. } => ("ParameterError", vec![]),
        StoreError::Fragments { .. } | StoreError::Lsn { .. } => ("CheckpointError", vec![]),
        StoreError::Memory { .. } => ("LimitExceeded", vec![]),
        _ => ("ConfigError", vec![]),
    }
}

/// Panic, so that a test sees what becomes of it, with the interpreter held or released.
#[pyfunction]
#[pyo3(name = "_panic")]
pub fn panic(py: Python<'_>, words: String, size: usize) -> PyResult<()> {
    enter(py, size, || panic!("{words}"))
}

/// One example of every failure, so that a test sees each class and message.
#[pyfunction]
#[pyo3(name = "_all_errors")]
pub fn all_errors(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let examples = vec![
        Failure::Protocol(Fault::Kind { found: 99 }.at(64)),
        Failure::Misuse(Misuse::Undecided),
        Failure::Misuse(Misuse::Admission(AdmissionError::Weight { weight: 0.0 })),
        Failure::Admission(AdmissionError::Power { power: -1.0, power_max: 8.0 }),
        Failure::Encode(Fault::Kind { found: 99 }),
        Failure::Apply(ApplyError::NonFinite { count: 2, first_index: 5 }),
        Failure::Apply(ApplyError::ResultNonFinite { count: 2, first_index: 5 }),
        Failure::Apply(ApplyError::Norm { norm: 2.5, norm_max: 1.0 }),
        Failure::Apply(ApplyError::Length { expected: 4, actual: 3 }),
        Failure::Apply(ApplyError::Fragment { fragment: 7, fragments: 4 }),
        Failure::Apply(ApplyError::Round { round: 1, open: 2, count: 3 }),
        Failure::Apply(ApplyError::Accumulators),
        Failure::Apply(ApplyError::Superseded { staleness: 2, allowed: 0 }),
        Failure::Close(CloseError::Dropped {
            of: Accumulated { round: 2, count: 3, ..Accumulated::default() },
            cause: ApplyError::NonFinite { count: 2, first_index: 5 },
        }),
        Failure::Apply(ApplyError::Full { what: "copies", used: 2, limit: 2 }),
        Failure::Store(StoreError::StripeLen { stripe_len: 3, unit: 16 }),
        Failure::Store(StoreError::Sealed { lsn: 3 }),
        Failure::Store(StoreError::Plane { plane: 3, last: 1 }),
        Failure::Store(StoreError::Memory { bytes: 1 << 50 }),
        Failure::Store(StoreError::Lsn { fragment: 1, fragment_lsn: 9, lsn: 3 }),
        Failure::State(StateError::Version { found: 9, expected: 1 }),
        Failure::Optimizer(OptimizerError::Empty { known: "sgd".into() }),
        Failure::Codec(CodecError::Unknown { name: "gzip".into(), known: "int8".into() }),
        Failure::Codec(CodecError::Length { codec: "int8", size: 3, len: 4, expected: 8 }),
        Failure::Codec(CodecError::NonFinite { codec: "int8", count: 2, first_index: 5 }),
        Failure::Kernel(KernelError::DType { code: 9 }),
        Failure::NotContiguous,
        Failure::ReadOnly,
        Failure::Unfit { size: 7, element_size: 4 },
        Failure::Overlap,
        Failure::Argument { name: "dtype", value: 9, bound: "1, 2, 3 or 4" },
        Failure::MaxNorm(-1.0),
        Failure::Simd { name: "mmx".into(), available: "baseline".into() },
        Failure::Poisoned,
        Failure::Panic("index out of bounds".into()),
    ];
    PyList::new(py, examples.into_iter().map(|failure| failure.into_py(py).into_value(py)))
}
