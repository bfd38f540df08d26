//! What a shard does with a gradient: a chain of parts, compiled once into one loop.
//!
//! A chain is any of `clip` and `weight_decay` (each at most once, in the order given), then
//! exactly one rule. Per element, with gradient `g`, parameter `p`, everything in f32:
//!
//! | part | numbers | what it does |
//! |---|---|---|
//! | `clip` | `max` | `g = min(max(g, -max), max)` |
//! | `weight_decay` | `rate` | `g = g + rate * p` |
//! | `sgd` | `lr` | `p = p - lr * g` |
//! | `momentum` | `lr momentum nesterov` | see [`momentum`] |
//! | `adagrad` | `lr eps initial` | see [`adagrad`] |
//! | `adam`, `adamw` | `lr beta1 beta2 eps` (`decay`) | see [`adam`], [`adamw`] |
//!
//! To add a rule, write one file with a type that implements [`rule::Rule`] and add its row to
//! [`RULES`]; the loop, the instruction sets, the checks and the shared tests come with it.
//!
//! # Numerics
//!
//! The order of operations is the one written in each rule's file, every operation rounds once
//! (no fused multiply-add, no approximate reciprocal), and numbers are rounded from f64 to f32
//! when the chain is compiled. Subnormals are kept.

mod adagrad;
mod adam;
mod adamw;
mod before;
mod momentum;
mod number;
mod rule;
mod sgd;

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use crate::kernel::Level;
use before::Before;
use number::Numbers;
use rule::{Compiled, Row};
pub(crate) use rule::{Correction, Stripe, Worst};

/// Every rule there is.
const RULES: &[Row] = &[
    Row::of::<0, sgd::Sgd>(),
    Row::of::<1, momentum::Momentum>(),
    Row::of::<1, adagrad::Adagrad>(),
    Row::of::<2, adam::Adam>(),
    Row::of::<2, adamw::AdamW>(),
];

/// Why a chain cannot be compiled.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum OptimizerError {
    #[error("the optimizer has no parts; give at least one rule ({known})")]
    Empty { known: String },
    #[error("part {part:?} is unknown; known are {known}")]
    UnknownPart { part: String, known: String },
    #[error("{part} has no number {name:?}; its numbers are {known}")]
    UnknownNumber { part: String, name: String, known: String },
    #[error("{part} needs the number {name:?} ({bound})")]
    MissingNumber { part: String, name: &'static str, bound: &'static str },
    #[error("{part}: {name} is {value}, must be {bound}")]
    OutOfRange { part: String, name: &'static str, value: f64, bound: &'static str },
    #[error("part {part:?} is given twice; merge the two")]
    Repeated { part: String },
    #[error("the last part is {last:?}; it must be a rule: {known}")]
    NoRule { last: String, known: String },
    #[error("rule {part:?} is followed by {next:?}; a rule must be the last part, and only one")]
    RuleNotLast { part: String, next: String },
    #[error(
        "{part}: {first} and {second} are both 0, so an element that never had a gradient \
             would become 0/0; make one of them positive"
    )]
    BothZero { part: &'static str, first: &'static str, second: &'static str },
}

/// A compiled chain: which loop to run, with which numbers, on which instruction set.
pub struct Optimizer {
    rule: Box<dyn Compiled>,
    before: Before,
    level: Level,
}

impl Optimizer {
    /// Compile parts, given as names with their numbers, for `simd` or the CPU's widest level.
    ///
    /// # Errors
    ///
    /// [`OptimizerError`] names the part, the number and its bound.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use downpour::optimizer::Optimizer;
    ///
    /// let numbers = BTreeMap::from([("lr".to_owned(), 0.1)]);
    /// let sgd = Optimizer::compile(&[("sgd".to_owned(), numbers)], None)?;
    /// assert_eq!(sgd.planes(), 0);
    /// # Ok::<(), downpour::optimizer::OptimizerError>(())
    /// ```
    pub fn compile(
        parts: &[(String, BTreeMap<String, f64>)],
        simd: Option<Level>,
    ) -> Result<Self, OptimizerError> {
        let Some(((last, numbers), earlier)) = parts.split_last() else {
            return Err(OptimizerError::Empty { known: known_rules() });
        };
        let mut before = Before::Nothing;
        for (index, (part, numbers)) in earlier.iter().enumerate() {
            if find(part).is_some() {
                let next = parts[index + 1].0.clone();
                return Err(OptimizerError::RuleNotLast { part: part.clone(), next });
            }
            before = before.then(part, numbers)?;
        }
        let Some(row) = find(last) else {
            let (last, known) = (last.clone(), known_rules());
            return Err(if before::NAMES.contains(&last.as_str()) {
                OptimizerError::NoRule { last, known }
            } else {
                OptimizerError::UnknownPart { part: last, known: known_parts() }
            });
        };
        let rule = (row.build)(&Numbers::read(row.name, row.numbers, numbers)?)?;
        Ok(Self { rule, before, level: simd.unwrap_or_else(Level::best) })
    }

    /// State planes beside the parameters: 0 for SGD, 1 for momentum and Adagrad, 2 for Adam.
    #[must_use]
    pub fn planes(&self) -> usize {
        self.rule.planes()
    }

    /// The instruction set it was compiled for.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// What state plane `plane` (from 0) holds before the first update.
    pub(crate) fn initial(&self, plane: usize) -> f32 {
        self.rule.initial(plane)
    }

    /// The numbers that depend on how many updates there have been, this one included.
    pub(crate) fn correction(&self, count: u64) -> Correction {
        self.rule.correction(count)
    }

    /// Compute new planes from old ones and a gradient; says whether all of it stayed finite.
    pub(crate) fn update(&self, stripe: Stripe<'_>) -> Worst {
        self.rule.update(self.level, self.before, stripe)
    }
}

impl fmt::Debug for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Optimizer")
            .field("rule", &self.rule.name())
            .field("before", &self.before)
            .field("level", &self.level)
            .finish()
    }
}

/// The names of all rules and what number each takes, for tests and help texts.
pub fn rules() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    RULES.iter().map(|row| (row.name, row.numbers.iter().map(|number| number.name).collect()))
}

fn find(name: &str) -> Option<&'static Row> {
    RULES.iter().find(|row| row.name == name)
}

fn known_rules() -> String {
    RULES.iter().map(|row| row.name).collect::<Vec<_>>().join(", ")
}

fn known_parts() -> String {
    format!("{}, {}", before::NAMES.join(", "), known_rules())
}
