//! L2 regularisation: add `rate * p` to the gradient (not decoupled; see `adamw` for that).

use super::OptimizerError;
use super::part::{At, Change};
use crate::number::{Bound, Number, Numbers};

#[derive(Clone, Copy)]
pub(super) struct WeightDecay {
    rate: f32,
}

impl Change<0> for WeightDecay {
    const NAME: &'static str = "weight_decay";
    const NUMBERS: &'static [Number] = &[Number::new("rate", Bound::NotNegative)];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        Ok(Self { rate: numbers.single("rate") })
    }

    #[inline(always)]
    fn change(self, _: f32, g: f32, at: At, state: [f32; 0]) -> (f32, [f32; 0]) {
        (g + self.rate * at.p, state)
    }
}
