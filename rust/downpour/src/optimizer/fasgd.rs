//! FASGD: each element of the gradient divided by its own deviation and by its staleness.
//!
//! ```text
//! n = gamma * n + (1 - gamma) * (g * g)
//! b = gamma * b + (1 - gamma) * g
//! v = beta * v + (1 - beta) * sqrt(max(0, n - b * b) + eps)
//! g = g / (v * max(1, staleness))
//! ```
//!
//! `n` and `b` start at zero, `v` at `initial`. `1 - gamma` and `1 - beta` are computed in f64 and
//! rounded to f32.
//!
//! Source: Odena, "Faster Asynchronous SGD", 2016, section 2. Deviations: its equation averages
//! the inverse of the deviation and divides by that, against its own text, and does not train; here
//! `v` is the average of the deviation, as the text says. It does not say what `v` starts from, nor
//! what becomes of a staleness of 0, which is taken as 1.

use super::OptimizerError;
use super::part::{At, Change, Context};
use super::schedule::float;
use crate::number::{Bound, Number, Numbers, single};

#[derive(Clone, Copy)]
pub(super) struct Fasgd {
    keep_moments: f32,
    take_moments: f32,
    keep_deviation: f32,
    take_deviation: f32,
    eps: f32,
    initial: f32,
}

impl Change<3> for Fasgd {
    const NAME: &'static str = "fasgd";
    const NUMBERS: &'static [Number] = &[
        Number::new("gamma", Bound::Fraction),
        Number::new("beta", Bound::Fraction),
        Number::new("eps", Bound::Positive),
        Number::new("initial", Bound::Positive),
    ];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        let [gamma, beta] = ["gamma", "beta"].map(|name| numbers.double(name));
        Ok(Self {
            keep_moments: single(gamma),
            take_moments: single(1.0 - gamma),
            keep_deviation: single(beta),
            take_deviation: single(1.0 - beta),
            eps: numbers.single("eps"),
            initial: numbers.single("initial"),
        })
    }

    fn initial(self) -> [f32; 3] {
        [0.0, 0.0, self.initial]
    }

    /// `v`: what decides whether a fetch or a push is worth its bytes.
    fn told(self) -> Option<usize> {
        Some(2)
    }

    fn term(self, context: Context) -> f32 {
        single(float(context.staleness.max(1)))
    }

    #[inline(always)]
    fn change(self, by: f32, g: f32, _: At, [n, b, v]: [f32; 3]) -> (f32, [f32; 3]) {
        let n = self.keep_moments * n + self.take_moments * (g * g);
        let b = self.keep_moments * b + self.take_moments * g;
        let variance = n - b * b;
        let variance = if variance > 0.0 { variance } else { 0.0 };
        let v = self.keep_deviation * v + self.take_deviation * (variance + self.eps).sqrt();
        (g / (v * by), [n, b, v])
    }
}
