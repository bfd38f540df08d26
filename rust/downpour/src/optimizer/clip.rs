//! Clamp each element of the gradient to `[-max, max]`.

use super::OptimizerError;
use super::part::{At, Change};
use crate::number::{Bound, Number, Numbers};

#[derive(Clone, Copy)]
pub(super) struct Clip {
    max: f32,
}

impl Change<0> for Clip {
    const NAME: &'static str = "clip";
    const NUMBERS: &'static [Number] = &[Number::new("max", Bound::Positive)];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        Ok(Self { max: numbers.single("max") })
    }

    #[inline(always)]
    fn change(self, _: f32, g: f32, _: At, state: [f32; 0]) -> (f32, [f32; 0]) {
        let g = if g > self.max { self.max } else { g };
        (if g < -self.max { -self.max } else { g }, state)
    }
}
