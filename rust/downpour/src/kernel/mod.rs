//! Loops over floats, each written once and compiled for every instruction set.
//!
//! A kernel is a small struct of slices and numbers with one method, [`Kernel::run`], marked
//! `#[inline(always)]`. A [`Level`] owns a token that proves the CPU has an instruction set; its
//! shell is a `#[target_feature]` function into which the body is inlined, so LLVM compiles the
//! same loop with wider registers. Nothing is written twice, so nothing can disagree.
//!
//! # Numerics
//!
//! Only operations that IEEE 754 rounds exactly (add, subtract, multiply, divide, square root,
//! compare, convert) are used. Rust never contracts `a * b + c` into a fused multiply-add, and no
//! approximate reciprocal appears anywhere. Reductions keep [`LANES`] partial results in a fixed
//! order, independent of the register width. Therefore every level yields the same bits (NaN
//! payloads aside), which `tests/optimizer_levels.rs` checks.

#[allow(unsafe_code, reason = "the instruction that writes past the caches")]
mod bypass;
mod cast;
mod check;
mod combine;
mod convert;
mod dtype;
mod level;

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "the shell into code compiled for AVX2")]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "the shell into code compiled for AVX-512")]
mod avx512;
#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code, reason = "the shell into code compiled for NEON")]
mod neon;

pub(crate) use bypass::Bypass;
pub use cast::cast;
pub(crate) use cast::widen;
pub(crate) use check::sum;
pub use check::{Check, check, zeros};
pub use combine::{accumulate, step};
pub(crate) use combine::{add_scaled, are_finite};
pub use dtype::{DType, Gradient, KernelError};
pub use level::Level;

/// Lanes of every chunked loop: one AVX-512 register of f32.
pub(crate) const LANES: usize = 16;

/// A loop that can be compiled for several instruction sets.
///
/// Implementations mark `run`, and everything it calls, `#[inline(always)]`: only code inlined
/// into a level's shell is compiled with that level's instructions.
pub(crate) trait Kernel {
    type Output;

    fn run(self) -> Self::Output;
}
