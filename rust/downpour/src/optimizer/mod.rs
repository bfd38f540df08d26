//! What a shard does with a gradient: a chain of parts, compiled once.
//!
//! A chain is any number of parts in any order, then exactly one rule. Per element, with gradient
//! `g`, parameter `p`, everything in f32:
//!
//! | part | numbers | what it does |
//! |---|---|---|
//! | `clip` | `max` | `g = min(max(g, -max), max)` |
//! | `weight_decay` | `rate` | `g = g + rate * p` |
//! | `trace` | `decay` | see [`trace`] |
//! | `fasgd` | `gamma beta eps initial` | see [`fasgd`] |
//! | `delay_compensation` | `strength history` | see [`delay`] |
//! | `adaptive_delay_compensation` | `strength decay eps history` | see [`delay`] |
//! | `gap_aware` | `decay eps history` | see [`gap`] |
//! | `warm_up`, `step_decay`, `cosine` | | factors of `lr`, see [`schedule`] |
//! | `staleness_decay`, `linear_scaling`, `sqrt_scaling` | | factors of `lr`, see [`scaling`] |
//! | `sgd` | `lr` | `p = p - lr * g` |
//! | `momentum` | `lr momentum nesterov` | see [`momentum`] |
//! | `adagrad` | `lr eps initial` | see [`adagrad`] |
//! | `adam`, `adamw` | `lr beta1 beta2 eps` (`decay`) | see [`adam`], [`adamw`] |
//!
//! To add a part, write one file with a type that implements [`part::Rule`], [`part::Change`] or
//! [`part::Schedule`] and add its row to [`PARTS`]; the loop, the instruction sets, the checks and
//! the shared tests come with it.
//!
//! # Composition
//!
//! Each part has planes of its own beside the parameters, in the chain's order. A rule alone runs
//! as one loop over a stripe. Where changes come before it, the chain runs over a stripe in pieces
//! of [`PIECE`] elements, part by part, on a gradient that stays in the nearest cache: any order of
//! any parts, without a loop compiled for each combination.
//!
//! # Numerics
//!
//! The order of operations is the one written in each rule's file, every operation rounds once
//! (no fused multiply-add, no approximate reciprocal), and numbers are rounded from f64 to f32
//! when the chain is compiled. Subnormals are kept.

mod adagrad;
mod adam;
mod adamw;
mod change;
mod clip;
mod delay;
mod fasgd;
mod gap;
mod local;
mod momentum;
mod part;
mod planes;
mod rule;
mod scaling;
mod schedule;
mod sgd;
mod trace;
mod weight_decay;

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;

use crate::kernel::{Level, sum};
use crate::number::{NumberError, Numbers};
use change::{CompiledChange, scaled};
pub use local::Local;
pub(crate) use part::Context;
use part::{CompiledSchedule, Piece, Row, Terms};
use planes::Window;
pub(crate) use planes::Worst;
use rule::CompiledRule;

/// Every part there is.
const PARTS: &[Row] = &[
    Row::change::<0, clip::Clip>(),
    Row::change::<0, weight_decay::WeightDecay>(),
    Row::change::<1, trace::Trace>(),
    Row::change::<3, fasgd::Fasgd>(),
    Row::change::<0, delay::Compensation>(),
    Row::change::<1, delay::Adaptive>(),
    Row::change::<1, gap::GapAware>(),
    Row::schedule::<schedule::WarmUp>(),
    Row::schedule::<schedule::StepDecay>(),
    Row::schedule::<schedule::Cosine>(),
    Row::schedule::<scaling::StalenessDecay>(),
    Row::schedule::<scaling::LinearScaling>(),
    Row::schedule::<scaling::SqrtScaling>(),
    Row::rule::<0, sgd::Sgd>(),
    Row::rule::<1, momentum::Momentum>(),
    Row::rule::<1, adagrad::Adagrad>(),
    Row::rule::<2, adam::Adam>(),
    Row::rule::<2, adamw::AdamW>(),
];

/// Elements that a chain with changes is worked through at a time: 4 KiB, and a multiple of what a
/// vector holds.
const PIECE: usize = 1024;

/// Why a chain cannot be compiled.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum OptimizerError {
    #[error("the optimizer has no parts; give at least one rule ({known})")]
    Empty { known: String },
    #[error("part {part:?} is unknown; known are {known}")]
    UnknownPart { part: String, known: String },
    #[error(transparent)]
    Number(#[from] NumberError),
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

/// One stripe's update: old planes and gradient in, new planes out.
///
/// # Shapes
///
/// `old` and `new` hold `1 + planes` planes of `stride` elements each, the parameters first.
/// `gradient` covers the first `gradient.len() <= stride` elements of each plane; `new` beyond it
/// is left alone.
pub(crate) struct Stripe<'a> {
    pub old: &'a [f32],
    pub new: &'a mut [f32],
    pub stride: usize,
    pub gradient: &'a [f32],
    pub scale: f32,
    /// Parameters as long as a plane: of the version before, and of that which the gradient was
    /// computed from. Where [`Optimizer::history`] is 0, nobody looks at them.
    pub before: [&'a [f32]; 2],
    /// Write the new planes past the caches.
    pub bypass: bool,
}

/// An update that is about to be computed: what its parts may know, and what its rule made of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared {
    context: Context,
    terms: Terms,
}

/// A compiled chain, for one instruction set.
pub struct Optimizer {
    schedules: Vec<Box<dyn CompiledSchedule>>,
    changes: Vec<Placed<dyn CompiledChange>>,
    rule: Placed<dyn CompiledRule>,
    level: Level,
}

/// A part and the first plane of its state.
struct Placed<T: ?Sized> {
    part: Box<T>,
    state: usize,
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
        let Some((last, _)) = parts.last() else {
            return Err(OptimizerError::Empty { known: known(|row| row.is_rule) });
        };
        let (mut schedules, mut changes, mut state) = (Vec::new(), Vec::new(), 1);
        for (index, (name, numbers)) in parts.iter().enumerate() {
            let Some(row) = PARTS.iter().find(|row| row.name == name) else {
                let (part, known) = (name.clone(), known(|_| true));
                return Err(OptimizerError::UnknownPart { part, known });
            };
            match (row.build)(&Numbers::read(row.name, row.numbers, numbers)?)? {
                Piece::Schedule(schedule) => schedules.push(schedule),
                Piece::Change(part) => {
                    let planes = part.planes();
                    changes.push(Placed { part, state });
                    state += planes;
                }
                Piece::Rule(part) => {
                    if let Some((next, _)) = parts.get(index + 1) {
                        let (part, next) = (name.clone(), next.clone());
                        return Err(OptimizerError::RuleNotLast { part, next });
                    }
                    let rule = Placed { part, state };
                    let level = simd.unwrap_or_else(Level::best);
                    return Ok(Self { schedules, changes, rule, level });
                }
            }
        }
        let (last, known) = (last.clone(), known(|row| row.is_rule));
        Err(OptimizerError::NoRule { last, known })
    }

    /// State planes beside the parameters: 0 for SGD, 1 for momentum and Adagrad, 2 for Adam, and
    /// those of the parts before the rule.
    #[must_use]
    pub fn planes(&self) -> usize {
        self.rule.state - 1 + self.rule.part.planes()
    }

    /// The plane whose mean replicas are told: 1 is the first of the state.
    #[must_use]
    pub fn told(&self) -> Option<usize> {
        let told = |placed: &Placed<dyn CompiledChange>| Some(placed.state + placed.part.told()?);
        self.changes.iter().find_map(told)
    }

    /// The sum of that plane over the first `len` elements of a stripe; added up as
    /// [`update`](Self::update) does.
    pub(crate) fn sum_told(&self, planes: &[f32], stride: usize, len: usize) -> f64 {
        let Some(plane) = self.told() else {
            return 0.0;
        };
        let pieces = planes[plane * stride..][..len].chunks(PIECE);
        pieces.fold(0.0, |total, piece| total + sum(self.level, piece))
    }

    /// Versions of the parameters, before the newest, that a store must remember for its parts.
    #[must_use]
    pub fn history(&self) -> usize {
        self.changes.iter().map(|placed| placed.part.history()).max().unwrap_or(0)
    }

    /// The instruction set it was compiled for.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// What state plane `plane` (from 0) holds before the first update.
    pub(crate) fn initial(&self, plane: usize) -> f32 {
        let plane = plane + 1;
        if plane >= self.rule.state {
            return self.rule.part.initial(plane - self.rule.state);
        }
        let owner = self.changes.iter().rev().find(|placed| placed.state <= plane);
        let owner = owner.expect("planes before the rule's belong to changes");
        owner.part.initial(plane - owner.state)
    }

    /// What an update of a fragment computes once for all its elements.
    pub(crate) fn prepare(&self, context: Context) -> Prepared {
        self.prepare_since(context, context.count)
    }

    /// The same, where the state is younger than what schedules count: `count` updates old.
    fn prepare_since(&self, mut context: Context, count: u64) -> Prepared {
        for schedule in &self.schedules {
            context.rate *= schedule.factor(context);
        }
        context.count = count;
        Prepared { context, terms: self.rule.part.terms(context) }
    }

    /// Compute new planes from old ones and a gradient; says whether all of it stayed finite, and
    /// the sum of the plane that is told, while it is in the nearest cache.
    pub(crate) fn update(&self, prepared: Prepared, stripe: Stripe<'_>) -> (Worst, f64) {
        let Prepared { context, terms } = prepared;
        let Stripe { old, new, stride, gradient, scale, before, bypass } = stripe;
        if self.changes.is_empty() {
            let state = self.rule.state;
            let window = Window { old, new, stride, start: 0, state, before, bypass };
            return (self.rule.part.update(self.level, terms, window, gradient, scale), 0.0);
        }
        let mut buffer = [0.0_f32; PIECE];
        let mut worst = Worst::default();
        let (told, mut total) = (self.told(), 0.0);
        for (index, source) in gradient.chunks(PIECE).enumerate() {
            let start = index * PIECE;
            let piece = &mut buffer[..source.len()];
            worst.gradient = worst.gradient.max(scaled(self.level, source, scale, piece));
            for Placed { part, state } in &self.changes {
                let window = Window { old, new, stride, start, state: *state, before, bypass };
                worst.result = worst.result.max(part.change(self.level, context, window, piece));
            }
            let state = self.rule.state;
            let window = Window { old, new, stride, start, state, before, bypass };
            let by_rule = self.rule.part.update(self.level, terms, window, piece, 1.0);
            worst.result = worst.result.max(by_rule.result);
            if let Some(plane) = told {
                total += sum(self.level, &new[plane * stride + start..][..piece.len()]);
            }
        }
        (worst, total)
    }
}

impl fmt::Debug for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let changes: Vec<_> = self.changes.iter().map(|placed| placed.part.name()).collect();
        f.debug_struct("Optimizer")
            .field("schedules", &self.schedules.len())
            .field("changes", &changes)
            .field("rule", &self.rule.part.name())
            .field("level", &self.level)
            .finish()
    }
}

/// The names of all parts, whether each is a rule, and what numbers it takes, for tests and help
/// texts.
pub fn parts() -> impl Iterator<Item = (&'static str, bool, Vec<&'static str>)> {
    let numbers = |row: &Row| row.numbers.iter().map(|number| number.name).collect();
    PARTS.iter().map(move |row| (row.name, row.is_rule, numbers(row)))
}

fn known(wanted: fn(&Row) -> bool) -> String {
    PARTS.iter().filter(|row| wanted(row)).map(|row| row.name).collect::<Vec<_>>().join(", ")
}
