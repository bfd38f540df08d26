//! Plain stochastic gradient descent: `p = p - lr * g`.

use super::OptimizerError;
use super::part::{Context, Rule, Terms};
use crate::number::{Bound, Number, Numbers, single};

#[derive(Clone, Copy)]
pub(super) struct Sgd {
    lr: f64,
}

impl Rule<0> for Sgd {
    const NAME: &'static str = "sgd";
    const NUMBERS: &'static [Number] = &[Number::new("lr", Bound::Positive)];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        Ok(Self { lr: numbers.double("lr") })
    }

    fn terms(self, context: Context) -> Terms {
        Terms { step: single(self.lr * context.rate), ..Terms::default() }
    }

    #[inline(always)]
    fn update(self, by: Terms, p: f32, g: f32, state: [f32; 0]) -> (f32, [f32; 0]) {
        (p - by.step * g, state)
    }
}
