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
use super::number::{Bound, Number, Numbers};
use super::rule::{Correction, Rule};

#[derive(Clone, Copy)]
pub(super) struct Adagrad {
    lr: f32,
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
        let [lr, eps, initial] = ["lr", "eps", "initial"].map(|name| numbers.single(name));
        if eps <= 0.0 && initial <= 0.0 {
            let (part, first, second) = (Self::NAME, "eps", "initial");
            return Err(OptimizerError::BothZero { part, first, second });
        }
        Ok(Self { lr, eps, initial })
    }

    fn initial(self) -> [f32; 1] {
        [self.initial]
    }

    #[inline(always)]
    fn update(self, _: Correction, p: f32, g: f32, [s]: [f32; 1]) -> (f32, [f32; 1]) {
        let s = s + g * g;
        (p - (self.lr * g) / (s.sqrt() + self.eps), [s])
    }
}
