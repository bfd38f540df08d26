//! Adam with weight decay that does not pass through the moments.
//!
//! ```text
//! p = p - (lr * decay) * p       then Adam's update of p
//! ```
//!
//! `lr * decay` is computed in f64 and rounded to f32.
//!
//! Source: Loshchilov, Hutter, "Decoupled Weight Decay Regularization", ICLR 2019, algorithm 2;
//! the decay is multiplied by `lr` and comes first, as in torch.

use super::OptimizerError;
use super::adam::Adam;
use super::part::{Context, Rule, Terms};
use crate::number::{Bound, Number, Numbers, single};

#[derive(Clone, Copy)]
pub(super) struct AdamW {
    adam: Adam,
    rate: f64,
}

impl Rule<2> for AdamW {
    const NAME: &'static str = "adamw";
    const NUMBERS: &'static [Number] = &[
        Number::new("lr", Bound::Positive),
        Number::new("beta1", Bound::Fraction),
        Number::new("beta2", Bound::Fraction),
        Number::new("eps", Bound::Positive),
        Number::new("decay", Bound::NotNegative),
    ];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        let rate = numbers.double("lr") * numbers.double("decay");
        Ok(Self { adam: Adam::new(numbers)?, rate })
    }

    fn terms(self, context: Context) -> Terms {
        Terms { decay: single(self.rate * context.rate), ..self.adam.terms(context) }
    }

    #[inline(always)]
    fn update(self, by: Terms, p: f32, g: f32, state: [f32; 2]) -> (f32, [f32; 2]) {
        self.adam.update(by, p - by.decay * p, g, state)
    }
}
