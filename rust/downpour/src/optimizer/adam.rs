//! Adam, with both moments corrected for their start at zero.
//!
//! ```text
//! m = beta1 * m + (1 - beta1) * g
//! v = beta2 * v + (1 - beta2) * (g * g)
//! p = p - (step * m) / (sqrt(v) * root + eps)
//! step = lr / (1 - beta1^t)      root = 1 / sqrt(1 - beta2^t)
//! ```
//!
//! `t` counts the updates of the fragment, this one included. `step`, `root` and the powers (by
//! repeated squaring) are computed in f64 once a record and rounded to f32; so are `1 - beta1` and
//! `1 - beta2`.
//!
//! Source: Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1, with
//! the corrections moved out of the loop as at the end of its section 2; `eps` is added to the
//! corrected root, as in algorithm 1 and torch.

use super::OptimizerError;
use super::part::{Context, Rule, Terms};
use crate::number::{Bound, Number, Numbers, power, single};

#[derive(Clone, Copy)]
pub(super) struct Adam {
    lr: f64,
    beta1: f64,
    beta2: f64,
    keep1: f32,
    keep2: f32,
    take1: f32,
    take2: f32,
    eps: f32,
}

impl Rule<2> for Adam {
    const NAME: &'static str = "adam";
    const NUMBERS: &'static [Number] = &[
        Number::new("lr", Bound::Positive),
        Number::new("beta1", Bound::Fraction),
        Number::new("beta2", Bound::Fraction),
        Number::new("eps", Bound::Positive),
    ];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        let [lr, beta1, beta2] = ["lr", "beta1", "beta2"].map(|name| numbers.double(name));
        Ok(Self {
            lr,
            beta1,
            beta2,
            keep1: single(beta1),
            keep2: single(beta2),
            take1: single(1.0 - beta1),
            take2: single(1.0 - beta2),
            eps: numbers.single("eps"),
        })
    }

    fn terms(self, Context { count, rate, .. }: Context) -> Terms {
        Terms {
            step: single(self.lr * rate / (1.0 - power(self.beta1, count))),
            root: single(1.0 / (1.0 - power(self.beta2, count)).sqrt()),
            decay: 0.0,
        }
    }

    #[inline(always)]
    fn update(self, by: Terms, p: f32, g: f32, [m, v]: [f32; 2]) -> (f32, [f32; 2]) {
        let m = self.keep1 * m + self.take1 * g;
        let v = self.keep2 * v + self.take2 * (g * g);
        (p - (by.step * m) / (v.sqrt() * by.root + self.eps), [m, v])
    }
}
