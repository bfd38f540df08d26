//! What the pieces of a chain are: rules, changes of the gradient, and learning-rate schedules.

use super::OptimizerError;
use super::rule::{self, CompiledRule};
use super::{change, change::CompiledChange};
use crate::number::{Number, Numbers};

/// What is known of an update beside its elements; the same for a whole fragment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Context {
    /// Updates of the fragment, this one included.
    pub count: u64,
    /// What the learning rate is multiplied with: the product of the chain's schedules.
    pub rate: f64,
    /// Updates of the fragment between the fetch and the apply; the largest of a round's records.
    pub staleness: u64,
    /// Records that this update combines: 1 where each is applied by itself.
    pub round_count: u64,
    /// Training samples behind the fragment's updates before this one.
    pub samples_before: u64,
    /// The same, this update's included.
    pub samples: u64,
}

/// Numbers that a part computes once an update, in f64, from its [`Context`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Terms {
    /// Step size.
    pub step: f32,
    /// Factor of the root of the second moment.
    pub root: f32,
    /// Factor of the parameter that decays.
    pub decay: f32,
}

/// An update rule with `PLANES` numbers of state per parameter: the last part of every chain.
///
/// A rule is plain arithmetic on one element; it must not branch on data (selects are fine) so
/// that the loop vectorises.
pub(super) trait Rule<const PLANES: usize>: Copy + Send + Sync + 'static {
    const NAME: &'static str;
    const NUMBERS: &'static [Number];

    /// Round and combine numbers that were read and are within their bounds.
    fn new(numbers: &Numbers) -> Result<Self, OptimizerError>;

    /// What each state plane holds before the first update.
    fn initial(self) -> [f32; PLANES] {
        [0.0; PLANES]
    }

    /// The learning rate at this update, and what else is the same for all elements.
    fn terms(self, context: Context) -> Terms;

    /// New parameter and state of one element.
    fn update(self, by: Terms, p: f32, g: f32, state: [f32; PLANES]) -> (f32, [f32; PLANES]);
}

/// Where an element's parameter is, was just now, and was for whom the gradient comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub p: f32,
    /// In the version before: what the last update began with.
    pub last: f32,
    /// In the version that the gradient was computed from, or the oldest that is kept.
    pub base: f32,
}

/// A change of the gradient before the rule sees it, with `PLANES` numbers of state of its own.
///
/// As a rule it is plain arithmetic on one element.
pub(super) trait Change<const PLANES: usize>: Copy + Send + Sync + 'static {
    const NAME: &'static str;
    const NUMBERS: &'static [Number];

    /// Round and combine numbers that were read and are within their bounds.
    fn new(numbers: &Numbers) -> Result<Self, OptimizerError>;

    /// What each state plane holds before the first update.
    fn initial(self) -> [f32; PLANES] {
        [0.0; PLANES]
    }

    /// A number that is the same for all elements of an update.
    fn term(self, _: Context) -> f32 {
        1.0
    }

    /// The plane of its state whose mean replicas are told, if there is one.
    fn told(self) -> Option<usize> {
        None
    }

    /// Versions of the parameters, before the newest, that it must be shown; 0: it looks at none.
    fn history(self) -> usize {
        0
    }

    /// New gradient and state of one element.
    fn change(self, by: f32, g: f32, at: At, state: [f32; PLANES]) -> (f32, [f32; PLANES]);
}

/// A factor of the learning rate that depends on how far training has come.
pub(super) trait Schedule: Send + Sync + 'static {
    const NAME: &'static str;
    const NUMBERS: &'static [Number];

    /// Combine numbers that were read and are within their bounds.
    fn new(numbers: &Numbers) -> Result<Self, OptimizerError>
    where
        Self: Sized;

    /// The factor at this update; its `rate` is that of the schedules before.
    fn factor(&self, context: Context) -> f64;
}

/// A schedule of any kind.
pub(super) trait CompiledSchedule: Send + Sync {
    fn factor(&self, context: Context) -> f64;
}

impl<S: Schedule> CompiledSchedule for S {
    fn factor(&self, context: Context) -> f64 {
        Schedule::factor(self, context)
    }
}

/// A part, compiled.
pub(super) enum Piece {
    Rule(Box<dyn CompiledRule>),
    Change(Box<dyn CompiledChange>),
    Schedule(Box<dyn CompiledSchedule>),
}

/// A row of the table of parts.
pub(super) struct Row {
    pub name: &'static str,
    pub numbers: &'static [Number],
    pub is_rule: bool,
    pub build: fn(&Numbers) -> Result<Piece, OptimizerError>,
}

impl Row {
    pub(super) const fn rule<const PLANES: usize, R: Rule<PLANES>>() -> Self {
        Self {
            name: R::NAME,
            numbers: R::NUMBERS,
            is_rule: true,
            build: |numbers| Ok(Piece::Rule(rule::compiled::<PLANES, R>(R::new(numbers)?))),
        }
    }

    pub(super) const fn change<const PLANES: usize, C: Change<PLANES>>() -> Self {
        Self {
            name: C::NAME,
            numbers: C::NUMBERS,
            is_rule: false,
            build: |numbers| Ok(Piece::Change(change::compiled::<PLANES, C>(C::new(numbers)?))),
        }
    }

    pub(super) const fn schedule<S: Schedule>() -> Self {
        Self {
            name: S::NAME,
            numbers: S::NUMBERS,
            is_rule: false,
            build: |numbers| Ok(Piece::Schedule(Box::new(S::new(numbers)?))),
        }
    }
}
