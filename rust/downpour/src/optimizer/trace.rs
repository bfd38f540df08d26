//! A decaying sum of gradients in place of the gradient: momentum before any rule.
//!
//! ```text
//! b = decay * b + g
//! g = b
//! ```
//!
//! Before `sgd` it is heavy-ball momentum, to the bit. Before an adaptive rule, the rule adapts to
//! the sums.
//!
//! Source: Polyak, "Some methods of speeding up the convergence of iteration methods", 1964, in the
//! form whose sum is not scaled by the learning rate.

use super::OptimizerError;
use super::part::{At, Change};
use crate::number::{Bound, Number, Numbers};

#[derive(Clone, Copy)]
pub(super) struct Trace {
    decay: f32,
}

impl Change<1> for Trace {
    const NAME: &'static str = "trace";
    const NUMBERS: &'static [Number] = &[Number::new("decay", Bound::Fraction)];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        Ok(Self { decay: numbers.single("decay") })
    }

    #[inline(always)]
    fn change(self, _: f32, g: f32, _: At, [b]: [f32; 1]) -> (f32, [f32; 1]) {
        let b = self.decay * b + g;
        (b, [b])
    }
}
