//! Momentum and Nesterov momentum, as torch defines them (no dampening):
//!
//! ```text
//! b = momentum * b + g
//! p = p - lr * b                     nesterov = 0
//! p = p - lr * (g + momentum * b)    nesterov = 1
//! ```
//!
//! The first `b` is `g`, because `b` starts at zero.
//!
//! Source: Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum in
//! deep learning", ICML 2013. Deviation: `lr` multiplies the buffer when it is used, not when it
//! is filled, so that changing `lr` acts at once.

use super::OptimizerError;
use super::part::{Context, Rule, Terms};
use crate::number::{Bound, Number, Numbers, single};

#[derive(Clone, Copy)]
pub(super) struct Momentum {
    lr: f64,
    keep: f32,
    nesterov: bool,
}

impl Rule<1> for Momentum {
    const NAME: &'static str = "momentum";
    const NUMBERS: &'static [Number] = &[
        Number::new("lr", Bound::Positive),
        Number::new("momentum", Bound::Fraction),
        Number::new("nesterov", Bound::Flag),
    ];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        Ok(Self {
            lr: numbers.double("lr"),
            keep: numbers.single("momentum"),
            nesterov: numbers.double("nesterov") > 0.5,
        })
    }

    fn terms(self, context: Context) -> Terms {
        Terms { step: single(self.lr * context.rate), ..Terms::default() }
    }

    #[inline(always)]
    fn update(self, by: Terms, p: f32, g: f32, [b]: [f32; 1]) -> (f32, [f32; 1]) {
        let b = self.keep * b + g;
        let direction = if self.nesterov { g + self.keep * b } else { b };
        (p - by.step * direction, [b])
    }
}
