//! Gap-Aware: each element of the gradient divided by how far its parameter has moved since.
//!
//! ```text
//! c = decay * c + (1 - decay) * |p - last|
//! g = g / (|p - base| / (c * by + eps) + 1)        by = 1 / (1 - decay^(t - 1))
//! ```
//!
//! `base` is the parameter in the version that the gradient was computed from, or in the oldest of
//! the `history` versions that are remembered; `last` in the version before this update, so that
//! `c * by` is the running mean of the size of one update of this element, corrected for its start
//! at zero (`t` counts the updates of the fragment, this one included; `by` is computed in f64 and
//! rounded to f32, as is `1 - decay`; at the first update it is 1). Where nothing has moved, the
//! gradient is the same to the bit.
//!
//! Source: Barkai, Hakimi, Schuster, "Gap-Aware Mitigation of Gradient Staleness", ICLR 2020: the
//! gap of an element is the distance between the master's and the worker's parameter in units of
//! the mean step, plus 1. Deviations: the mean is of each element's own steps as they were made,
//! whatever rule made them; `eps` guards an element that has never moved.

use super::OptimizerError;
use super::part::{At, Change, Context};
use crate::number::{Bound, Number, Numbers, power, single, whole};

#[derive(Clone, Copy)]
pub(super) struct GapAware {
    decay: f64,
    keep: f32,
    take: f32,
    eps: f32,
    history: usize,
}

impl Change<1> for GapAware {
    const NAME: &'static str = "gap_aware";
    const NUMBERS: &'static [Number] = &[
        Number::new("decay", Bound::Fraction),
        Number::new("eps", Bound::Positive),
        Number::new("history", Bound::Versions),
    ];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        let decay = numbers.double("decay");
        Ok(Self {
            decay,
            keep: single(decay),
            take: single(1.0 - decay),
            eps: numbers.single("eps"),
            history: whole(numbers.double("history")),
        })
    }

    fn history(self) -> usize {
        self.history
    }

    fn term(self, context: Context) -> f32 {
        let steps = context.count - 1;
        if steps == 0 { 1.0 } else { single(1.0 / (1.0 - power(self.decay, steps))) }
    }

    #[inline(always)]
    fn change(self, by: f32, g: f32, at: At, [c]: [f32; 1]) -> (f32, [f32; 1]) {
        let c = self.keep * c + self.take * (at.p - at.last).abs();
        (g / ((at.p - at.base).abs() / (c * by + self.eps) + 1.0), [c])
    }
}
