//! Plain stochastic gradient descent: `p = p - lr * g`.

use super::OptimizerError;
use super::number::{Bound, Number, Numbers};
use super::rule::{Correction, Rule};

#[derive(Clone, Copy)]
pub(super) struct Sgd {
    lr: f32,
}

impl Rule<0> for Sgd {
    const NAME: &'static str = "sgd";
    const NUMBERS: &'static [Number] = &[Number::new("lr", Bound::Positive)];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        Ok(Self { lr: numbers.single("lr") })
    }

    #[inline(always)]
    fn update(self, _: Correction, p: f32, g: f32, state: [f32; 0]) -> (f32, [f32; 0]) {
        (p - self.lr * g, state)
    }
}
