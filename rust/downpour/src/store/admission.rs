//! What was decided about a push before its records came.

use thiserror::Error;

use crate::number::{raise, single};

/// How the records of one push are taken; the same for each of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Admission {
    /// Multiplies the gradient.
    pub scale: f32,
    /// The gradient is also divided by `max(1, staleness)` to this power; see
    /// [`factor`](Self::factor).
    pub staleness_power: f64,
    /// A record that is staler is not applied: `Some(0)` applies one only to the very version that
    /// it was computed from.
    pub staleness_max: Option<u64>,
    /// Training samples behind the push: what schedules by samples count.
    pub samples: u64,
    /// `None` applies each record as an update of its own.
    pub round: Option<Round>,
}

/// Records that become one update together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    pub number: u64,
    /// What this push's gradient counts for in the sum, and in the sum of weights.
    pub weight: f64,
}

/// An admission that makes no sense. Nothing was taken under it.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum AdmissionError {
    #[error("scale is {scale}, must be finite")]
    Scale { scale: f32 },
    #[error("staleness_power is {power}, must be 0 to {power_max}")]
    Power { power: f64, power_max: f64 },
    #[error("weight is {weight}, must be positive, and finite as f32 times the scale")]
    Weight { weight: f64 },
    #[error("round {round}: this shard has no accumulators; see start_accumulating()")]
    Accumulators { round: u64 },
    #[error("round {round} cannot be closed, so it cannot be opened")]
    Round { round: u64 },
}

impl Default for Admission {
    fn default() -> Self {
        Self { scale: 1.0, staleness_power: 0.0, staleness_max: None, samples: 0, round: None }
    }
}

impl From<f32> for Admission {
    fn from(scale: f32) -> Self {
        Self { scale, ..Self::default() }
    }
}

impl Admission {
    /// The largest power of the staleness: 2^64 to the power 8 is still a number.
    pub const POWER_MAX: f64 = 8.0;

    /// Check everything that can be known before a record comes.
    ///
    /// # Errors
    ///
    /// [`AdmissionError`] names the number and its bound.
    pub fn validate(&self, accumulates: bool) -> Result<(), AdmissionError> {
        let Self { scale, staleness_power: power, round, .. } = *self;
        if !scale.is_finite() {
            return Err(AdmissionError::Scale { scale });
        }
        if !(0.0..=Self::POWER_MAX).contains(&power) {
            return Err(AdmissionError::Power { power, power_max: Self::POWER_MAX });
        }
        let Some(Round { number: round, weight }) = round else {
            return Ok(());
        };
        if !accumulates {
            return Err(AdmissionError::Accumulators { round });
        }
        if weight <= 0.0 || !weight.is_finite() || !single(f64::from(scale) * weight).is_finite() {
            return Err(AdmissionError::Weight { weight });
        }
        if round == u64::MAX {
            return Err(AdmissionError::Round { round });
        }
        Ok(())
    }

    /// What a gradient of this staleness is multiplied by.
    ///
    /// ```text
    /// scale * weight / max(1, staleness)^power
    /// ```
    ///
    /// in f64, rounded to f32 once; the weight is 1 where records are applied one by one. The
    /// power is taken by squarings and square roots: the same bits on every machine.
    ///
    /// Sources: power 1, Zhang, Gupta, Lian, Liu, "Staleness-aware Async-SGD", IJCAI 2016,
    /// equation 6; any power, Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019,
    /// section 5.2, which adds 1 to the staleness.
    #[must_use]
    pub fn factor(&self, staleness: u64) -> f32 {
        let mut factor = f64::from(self.scale);
        if let Some(round) = self.round {
            factor *= round.weight;
        }
        if self.staleness_power > 0.0 && staleness > 1 {
            #[allow(clippy::cast_precision_loss, reason = "versions stay far below 2^53")]
            let staleness = staleness as f64;
            factor /= raise(staleness, self.staleness_power);
        }
        single(factor)
    }
}
