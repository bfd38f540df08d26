//! Factors of the learning rate that depend on what one update is made of.
//!
//! ```text
//! staleness_decay  1 / max(1, staleness)^power
//! linear_scaling   n / records
//! sqrt_scaling     sqrt(max(n, s) / batch)
//! ```
//!
//! `staleness` is that of the record, or the largest of a round's; `n` counts the records that the
//! update combines, and `s` the training samples behind it: each record counts for one at least, so
//! a job that tells none still has a rate. Everything is f64, once an update.
//!
//! A rule that divides by the size of the gradients it sees (Adam; Adagrad, mostly) undoes a factor
//! of the gradient, and not one of the learning rate.
//!
//! Sources: staleness, Zhang, Gupta, Lian, Liu, "Staleness-aware Async-SGD for Distributed Deep
//! Learning", IJCAI 2016, equation 6 (power 1); linear scaling, Goyal et al., "Accurate, Large
//! Minibatch SGD", 2017, section 2.1; the square root, Gupta, Zhang, Wang, "Model Accuracy and
//! Runtime Tradeoff in Distributed Deep Learning" (Rudra), 2015, the rate of hardsync.

use super::OptimizerError;
use super::part::{Context, Schedule};
use super::schedule::float;
use crate::number::{Bound, Number, Numbers, raise};

pub(super) struct StalenessDecay {
    power: f64,
}

impl Schedule for StalenessDecay {
    const NAME: &'static str = "staleness_decay";
    const NUMBERS: &'static [Number] = &[Number::new("power", Bound::NotNegative)];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        Ok(Self { power: numbers.double("power") })
    }

    fn factor(&self, context: Context) -> f64 {
        1.0 / raise(float(context.staleness.max(1)), self.power)
    }
}

pub(super) struct LinearScaling {
    records: f64,
}

impl Schedule for LinearScaling {
    const NAME: &'static str = "linear_scaling";
    const NUMBERS: &'static [Number] = &[Number::new("records", Bound::Positive)];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        Ok(Self { records: numbers.double("records") })
    }

    fn factor(&self, context: Context) -> f64 {
        float(context.round_count) / self.records
    }
}

pub(super) struct SqrtScaling {
    batch: f64,
}

impl Schedule for SqrtScaling {
    const NAME: &'static str = "sqrt_scaling";
    const NUMBERS: &'static [Number] = &[Number::new("batch", Bound::Positive)];

    fn new(numbers: &Numbers) -> Result<Self, OptimizerError> {
        Ok(Self { batch: numbers.double("batch") })
    }

    fn factor(&self, context: Context) -> f64 {
        let samples = context.samples - context.samples_before;
        (float(samples.max(context.round_count)) / self.batch).sqrt()
    }
}
