//! `pydownpour._core`: convert, enter the door, convert. No arithmetic, no policy.
//!
//! `buffer` holds all `unsafe`, `door` releases the interpreter, `error` maps errors; the other
//! modules are one method after the other. The contract is `pydownpour/_core.pyi`.
#![allow(clippy::needless_pass_by_value, reason = "PyO3 hands over arguments by value")]

mod buffer;
mod codec;
mod door;
mod error;
mod fetch;
mod frames;
mod inlets;
mod local;
mod numbers;
mod push;
mod shard;

use pyo3::prelude::*;

/// The Rust core: floats and bytes in, floats and bytes out.
#[pymodule(gil_used = false)]
mod _core {
    use super::{Bound, PyAnyMethods, PyModule, PyModuleMethods, PyResult};
    use downpour::frame::{self, Code, Kind};
    use downpour::{dedupe, kernel::DType};

    #[pymodule_export]
    use super::codec::{Codec, codecs};
    #[pymodule_export]
    use super::error::{all_errors, panic};
    #[pymodule_export]
    use super::fetch::PinnedStripe;
    #[pymodule_export]
    use super::frames::{Frame, encode_frame, scan_frames};
    #[pymodule_export]
    use super::inlets::{Refusal, ReplicaInlet, Settled, ShardInlet};
    #[pymodule_export]
    use super::local::LocalOptimizer;
    #[pymodule_export]
    use super::numbers::{build_info, cast, crc32c, step};
    #[pymodule_export]
    use super::push::{Arrays, Encoded, Gather};
    #[pymodule_export]
    use super::shard::{Closed, Journal, Optimizer, Shard};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("HEADER_SIZE", frame::HEADER_SIZE)?;
        module.add("WIRE_VERSION", frame::WIRE_VERSION)?;
        module.add("PUSHES_OPEN_MAX", dedupe::PUSHES_OPEN_MAX)?;
        module.add("FLAG_PUSH_COMPLETE", frame::FLAG_PUSH_COMPLETE)?;
        for kind in Kind::ALL {
            module.add(format!("KIND_{}", kind.name()).as_str(), kind as u8)?;
        }
        for code in Code::ALL {
            module.add(format!("CODE_{}", code.name()).as_str(), code.number())?;
        }
        for (name, dtype) in
            [("F32", DType::F32), ("F64", DType::F64), ("F16", DType::F16), ("BF16", DType::Bf16)]
        {
            module.add(format!("DTYPE_{name}").as_str(), dtype as u8)?;
        }
        // The stub names what there is; a second list would only be one more to keep in step.
        module.delattr("__all__")
    }
}
