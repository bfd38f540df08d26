//! Parts that change the gradient before the rule sees it.

use std::collections::BTreeMap;

use super::OptimizerError;
use super::number::{Bound, Number, Numbers};

pub(super) const NAMES: &[&str] = &["clip", "weight_decay"];
const CLIP: &[Number] = &[Number::new("max", Bound::Positive)];
const WEIGHT_DECAY: &[Number] = &[Number::new("rate", Bound::NotNegative)];

/// One change of a gradient element, inlined into the rule's loop.
pub(super) trait Change: Copy {
    fn change(self, g: f32, p: f32) -> f32;
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Nothing;

/// Clamp each element to `[-max, max]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Clip {
    max: f32,
}

/// L2 regularisation: add `rate * p` to the gradient (not decoupled; see `adamw` for that).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Decay {
    rate: f32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Both<A, B>(pub A, pub B);

impl Change for Nothing {
    #[inline(always)]
    fn change(self, g: f32, _p: f32) -> f32 {
        g
    }
}

impl Change for Clip {
    #[inline(always)]
    fn change(self, g: f32, _p: f32) -> f32 {
        let g = if g > self.max { self.max } else { g };
        if g < -self.max { -self.max } else { g }
    }
}

impl Change for Decay {
    #[inline(always)]
    fn change(self, g: f32, p: f32) -> f32 {
        g + self.rate * p
    }
}

impl<A: Change, B: Change> Change for Both<A, B> {
    #[inline(always)]
    fn change(self, g: f32, p: f32) -> f32 {
        self.1.change(self.0.change(g, p), p)
    }
}

/// Every combination there is: each becomes its own loop, without a branch inside.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Before {
    Nothing,
    Clip(Clip),
    Decay(Decay),
    ClipDecay(Clip, Decay),
    DecayClip(Decay, Clip),
}

impl Before {
    /// This, followed by the part `name`.
    pub(super) fn then(
        self,
        name: &str,
        numbers: &BTreeMap<String, f64>,
    ) -> Result<Self, OptimizerError> {
        let part = || name.to_owned();
        match name {
            "clip" => {
                let clip = Clip { max: Numbers::read(name, CLIP, numbers)?.single("max") };
                match self {
                    Self::Nothing => Ok(Self::Clip(clip)),
                    Self::Decay(decay) => Ok(Self::DecayClip(decay, clip)),
                    _ => Err(OptimizerError::Repeated { part: part() }),
                }
            }
            "weight_decay" => {
                let rate = Numbers::read(name, WEIGHT_DECAY, numbers)?.single("rate");
                let decay = Decay { rate };
                match self {
                    Self::Nothing => Ok(Self::Decay(decay)),
                    Self::Clip(clip) => Ok(Self::ClipDecay(clip, decay)),
                    _ => Err(OptimizerError::Repeated { part: part() }),
                }
            }
            _ => Err(OptimizerError::UnknownPart { part: part(), known: super::known_parts() }),
        }
    }
}
