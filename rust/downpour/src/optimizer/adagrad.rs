//! Adagrad: a step size per element that shrinks with the gradients it has seen.
//!
//! ```text
//! s = s + g * g
//! p = p - (lr * g) / (sqrt(s) + eps)
//! ```
//!
//! Source: Duchi, Hazan, Singer, "Adaptive Subgradient Methods", JMLR 2011; used for Downpour SGD
//! by Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012, section 4.1. Deviation:
//! both have no `eps`; here, as in torch, it is added outside the root, and `s` starts at
//! `initial`.

use super::OptimizerError;
use super::part::{Context, Rule, Terms};
use crate::number::{Bound, Number, Numbers, single};

#[derive(Clone, Copy)]
pub(super) struct Adagrad {
    lr: f64,
    eps: f32,
    initial: f32,
}

impl Rule<1> for Adagrad {
    const NAME: &'static str = "adagrad";
    const NUMBERS: &'static [Number] = &[
        Number::new("lr", Bound::Positive),
        Number::new("eps", Bound::NotNegative),
        Number::new("initial", Bound::NotNegative),
    ];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        let [eps, initial] = ["eps", "initial"].map(|name| numbers.single(name));
        if eps <= 0.0 && initial <= 0.0 {
            let (part, first, second) = (Self::NAME, "eps", "initial");
            return Err(OptimizerError::BothZero { part, first, second });
        }
        Ok(Self { lr: numbers.double("lr"), eps, initial })
    }

    fn initial(self) -> [f32; 1] {
        [self.initial]
    }

    fn terms(self, context: Context) -> Terms {
        Terms { step: single(self.lr * context.rate), ..Terms::default() }
    }

    #[inline(always)]
    fn update(self, by: Terms, p: f32, g: f32, [s]: [f32; 1]) -> (f32, [f32; 1]) {
        let s = s + g * g;
        (p - (by.step * g) / (s.sqrt() + self.eps), [s])
    }
}
