//! Delay compensation: a stale gradient, corrected to where the parameters are now.
//!
//! ```text
//! delay_compensation            g = g * (1 + (strength * g) * (p - base))
//! adaptive_delay_compensation   m = decay * m + (1 - decay) * (g * g)
//!                               g = g * (1 + (strength / sqrt(m + eps) * g) * (p - base))
//! ```
//!
//! `base` is the parameter in the version that the gradient was computed from, or in the oldest of
//! the `history` versions that are remembered. It is the first term of the gradient's Taylor series
//! with `g * g` in place of the Hessian. With a strength of 0, or nothing between, the gradient is
//! the same to the bit. `1 - decay` is computed in f64 and rounded to f32.
//!
//! Source: Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation", ICML
//! 2017, equation 10, `g + lambda * g * g * (w - w_bak)`, and its adaptive lambda of section 6.
//! Deviations: the sum is written as a product; the backup is the fragment's version, of which all
//! replicas share one copy, instead of one copy a replica.

use super::OptimizerError;
use super::part::{At, Change};
use crate::number::{Bound, Number, Numbers, single, whole};

#[derive(Clone, Copy)]
pub(super) struct Compensation {
    strength: f32,
    history: usize,
}

impl Change<0> for Compensation {
    const NAME: &'static str = "delay_compensation";
    const NUMBERS: &'static [Number] =
        &[Number::new("strength", Bound::NotNegative), Number::new("history", Bound::Versions)];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        let history = whole(numbers.double("history"));
        Ok(Self { strength: numbers.single("strength"), history })
    }

    fn history(self) -> usize {
        self.history
    }

    #[inline(always)]
    fn change(self, _: f32, g: f32, at: At, state: [f32; 0]) -> (f32, [f32; 0]) {
        (g * (1.0 + (self.strength * g) * (at.p - at.base)), state)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Adaptive {
    strength: f32,
    keep: f32,
    take: f32,
    eps: f32,
    history: usize,
}

impl Change<1> for Adaptive {
    const NAME: &'static str = "adaptive_delay_compensation";
    const NUMBERS: &'static [Number] = &[
        Number::new("strength", Bound::NotNegative),
        Number::new("decay", Bound::Fraction),
        Number::new("eps", Bound::Positive),
        Number::new("history", Bound::Versions),
    ];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        let decay = numbers.double("decay");
        Ok(Self {
            strength: numbers.single("strength"),
            keep: single(decay),
            take: single(1.0 - decay),
            eps: numbers.single("eps"),
            history: whole(numbers.double("history")),
        })
    }

    fn history(self) -> usize {
        self.history
    }

    #[inline(always)]
    fn change(self, _: f32, g: f32, at: At, [m]: [f32; 1]) -> (f32, [f32; 1]) {
        let m = self.keep * m + self.take * (g * g);
        let strength = self.strength / (m + self.eps).sqrt();
        (g * (1.0 + (strength * g) * (at.p - at.base)), [m])
    }
}
