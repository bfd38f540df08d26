//! Loops over elements, checksums, and what this build is.

use std::collections::BTreeMap;

use downpour::checksum;
use downpour::kernel::{self, DType, Gradient, Level};
use pyo3::prelude::*;

use crate::buffer::{Input, Output};
use crate::door::enter;
use crate::error::Failure;

/// The element type of a code.
pub fn dtype(code: u8) -> Result<DType, Failure> {
    Ok(DType::try_from(code)?)
}

fn elements(source: &Input, code: u8) -> Result<Gradient<'_>, Failure> {
    Ok(Gradient::from_bytes(source.bytes(), dtype(code)?)?)
}

fn separate(source: &Input, target: &Output) -> Result<(), Failure> {
    if source.overlaps(target) { Err(Failure::Overlap) } else { Ok(()) }
}

/// version, profile, simd, `simd_available` (comma separated), crc32c, target.
#[pyfunction]
pub fn build_info() -> BTreeMap<&'static str, String> {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    BTreeMap::from([
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("profile", profile.to_owned()),
        ("simd", Level::best().name().to_owned()),
        ("simd_available", level_names()),
        ("crc32c", checksum::implementation()),
        ("target", format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)),
    ])
}

/// The level of this name.
pub fn level(name: &str) -> Result<Level, Failure> {
    Level::named(name)
        .ok_or_else(|| Failure::Simd { name: name.to_owned(), available: level_names() })
}

/// The levels of this CPU, narrowest first.
pub fn level_names() -> String {
    let names: Vec<_> = Level::available().into_iter().map(Level::name).collect();
    names.join(",")
}

/// CRC-32C (Castagnoli) of data, continuing from value.
#[pyfunction]
#[pyo3(signature = (data, value = 0))]
pub fn crc32c(py: Python<'_>, data: Input, value: u32) -> PyResult<u32> {
    let bytes = data.bytes();
    enter(py, bytes.len(), || Ok(checksum::extend(value, bytes)))
}

/// Convert element by element, round to nearest even.
#[pyfunction]
pub fn cast(
    py: Python<'_>,
    source: Input,
    source_dtype: u8,
    mut target: Output,
    target_dtype: u8,
) -> PyResult<()> {
    enter(py, source.bytes().len(), || {
        separate(&source, &target)?;
        let target_dtype = dtype(target_dtype)?;
        let source = elements(&source, source_dtype)?;
        Ok(kernel::cast(Level::best(), source, target.bytes_mut(), target_dtype)?)
    })
}

/// target (f32) -= rate * source: the replica's local step.
#[pyfunction]
pub fn step(
    py: Python<'_>,
    mut target: Output,
    source: Input,
    source_dtype: u8,
    rate: f32,
) -> PyResult<()> {
    enter(py, source.bytes().len(), || {
        separate(&source, &target)?;
        let source = elements(&source, source_dtype)?;
        Ok(kernel::step(Level::best(), target.elements_mut()?, source, rate)?)
    })
}
