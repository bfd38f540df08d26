//! Learning-rate schedules: factors that depend on how far a fragment's training has come.
//!
//! ```text
//! warm_up     start + (1 - start) * min(1, t / over)
//! step_decay  factor^floor(b / every)
//! cosine      floor + (1 - floor) * (1 + cos(pi * min(1, b / over))) / 2
//! ```
//!
//! `b` is what came before this update and `t` the same with this update, counted in updates of the
//! fragment, or in the training samples behind them where `by_samples` is 1. A shard counts what it
//! applies, from all replicas together, so `t` is not a replica's step. Everything is f64, once an
//! update.
//!
//! Sources: warm-up, Goyal et al., "Accurate, Large Minibatch SGD", 2017, section 2.2; cosine,
//! Loshchilov, Hutter, "SGDR", ICLR 2017, equation 5, without restarts.

use super::OptimizerError;
use super::part::{Context, Schedule};
use crate::number::{Bound, Number, Numbers, power};

/// What progress counts.
#[derive(Clone, Copy)]
enum Counted {
    Updates,
    Samples,
}

const BY_SAMPLES: Number = Number::new("by_samples", Bound::Flag);

impl Counted {
    fn read(numbers: &Numbers) -> Self {
        if numbers.double("by_samples") > 0.5 { Self::Samples } else { Self::Updates }
    }

    fn before(self, context: Context) -> u64 {
        match self {
            Self::Updates => context.count - 1,
            Self::Samples => context.samples_before,
        }
    }

    fn after(self, context: Context) -> u64 {
        match self {
            Self::Updates => context.count,
            Self::Samples => context.samples,
        }
    }
}

pub(super) struct WarmUp {
    counted: Counted,
    over: f64,
    start: f64,
}

impl Schedule for WarmUp {
    const NAME: &'static str = "warm_up";
    const NUMBERS: &'static [Number] =
        &[Number::new("over", Bound::Whole), Number::new("start", Bound::Fraction), BY_SAMPLES];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        let [over, start] = ["over", "start"].map(|name| numbers.double(name));
        Ok(Self { counted: Counted::read(numbers), over, start })
    }

    fn factor(&self, context: Context) -> f64 {
        let way = (float(self.counted.after(context)) / self.over).min(1.0);
        self.start + (1.0 - self.start) * way
    }
}

pub(super) struct StepDecay {
    counted: Counted,
    every: f64,
    factor: f64,
}

impl Schedule for StepDecay {
    const NAME: &'static str = "step_decay";
    const NUMBERS: &'static [Number] =
        &[Number::new("every", Bound::Whole), Number::new("factor", Bound::Fraction), BY_SAMPLES];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        let [every, factor] = ["every", "factor"].map(|name| numbers.double(name));
        Ok(Self { counted: Counted::read(numbers), every, factor })
    }

    fn factor(&self, context: Context) -> f64 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, >= 1")]
        power(self.factor, self.counted.before(context) / self.every as u64)
    }
}

pub(super) struct Cosine {
    counted: Counted,
    over: f64,
    floor: f64,
}

impl Schedule for Cosine {
    const NAME: &'static str = "cosine";
    const NUMBERS: &'static [Number] =
        &[Number::new("over", Bound::Whole), Number::new("floor", Bound::Fraction), BY_SAMPLES];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        let [over, floor] = ["over", "floor"].map(|name| numbers.double(name));
        Ok(Self { counted: Counted::read(numbers), over, floor })
    }

    fn factor(&self, context: Context) -> f64 {
        let way = (float(self.counted.before(context)) / self.over).min(1.0);
        self.floor + (1.0 - self.floor) * (1.0 + cos_pi(way)) / 2.0
    }
}

#[allow(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(super) fn float(count: u64) -> f64 {
    count as f64
}

/// The cosine of `pi * x`, 0 <= x <= 1, from additions and products alone: the same bits on every
/// machine, which the platform's `cos` does not promise. Off by less than 1e-15.
fn cos_pi(x: f64) -> f64 {
    // cos(pi x) = -sin(pi (x - 1/2)), and the series of the sine converges fast within pi / 2.
    let y = std::f64::consts::PI * (x - 0.5);
    let square = y * y;
    let mut sum = 0.0;
    for n in (1..=11_u32).rev() {
        let (a, b) = (f64::from(2 * n), f64::from(2 * n + 1));
        sum = (1.0 - sum) * square / (a * b);
    }
    -(y * (1.0 - sum))
}

#[cfg(test)]
mod tests {
    use super::cos_pi;

    #[test]
    fn the_cosine_is_the_cosine() {
        for step in 0..=1000 {
            let x = f64::from(step) / 1000.0;
            let exact = (std::f64::consts::PI * x).cos();
            assert!((cos_pi(x) - exact).abs() < 1e-15, "{x}: {} {exact}", cos_pi(x));
        }
    }
}
