//! The one loop that runs every change of the gradient, and the scaling that comes before all.

use super::part::{At, Change, Context};
use super::planes::{Split, Window, magnitude};
use crate::kernel::{Kernel, Level};

/// A change behind one indirect call a run of elements.
pub(super) trait CompiledChange: Send + Sync {
    fn name(&self) -> &'static str;
    fn planes(&self) -> usize;
    fn initial(&self, plane: usize) -> f32;
    fn told(&self) -> Option<usize>;
    fn history(&self) -> usize;
    /// Change the gradient in place; returns the largest magnitude bits of the new state.
    fn change(
        &self,
        level: Level,
        context: Context,
        window: Window<'_>,
        gradient: &mut [f32],
    ) -> u32;
}

pub(super) fn compiled<const PLANES: usize, C: Change<PLANES>>(
    change: C,
) -> Box<dyn CompiledChange> {
    Box::new(Boxed::<PLANES, C>(change))
}

struct Boxed<const PLANES: usize, C>(C);

impl<const PLANES: usize, C: Change<PLANES>> CompiledChange for Boxed<PLANES, C> {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn planes(&self) -> usize {
        PLANES
    }

    fn initial(&self, plane: usize) -> f32 {
        self.0.initial()[plane]
    }

    fn told(&self) -> Option<usize> {
        self.0.told()
    }

    fn history(&self) -> usize {
        self.0.history()
    }

    fn change(
        &self,
        level: Level,
        context: Context,
        window: Window<'_>,
        gradient: &mut [f32],
    ) -> u32 {
        let (change, term) = (self.0, self.0.term(context));
        level.run(InPlace::<'_, PLANES, C> { change, term, window, gradient })
    }
}

/// A plain loop: there is so little in it that chunks, as in a rule's loop, would only tempt the
/// compiler to vectorise across them.
struct InPlace<'a, const PLANES: usize, C> {
    change: C,
    term: f32,
    window: Window<'a>,
    gradient: &'a mut [f32],
}

impl<const PLANES: usize, C: Change<PLANES>> Kernel for InPlace<'_, PLANES, C> {
    type Output = u32;

    #[inline(always)]
    fn run(self) -> u32 {
        let Self { change, term, window, gradient } = self;
        let len = gradient.len();
        let [last, base] = window.before.map(|plane| &plane[window.start..][..len]);
        let Split { p_old, s_old, s_new, .. } = window.split::<PLANES>(len);
        let mut worst = 0;
        for index in 0..len {
            let state = std::array::from_fn(|k| s_old[k][index]);
            let at = At { p: p_old[index], last: last[index], base: base[index] };
            let (g, state) = change.change(term, gradient[index], at, state);
            gradient[index] = g;
            for k in 0..PLANES {
                s_new[k][index] = state[k];
                worst = worst.max(magnitude(state[k]));
            }
        }
        worst
    }
}

/// `target = source * scale`; returns the largest magnitude bits of the products.
pub(super) fn scaled(level: Level, source: &[f32], scale: f32, target: &mut [f32]) -> u32 {
    level.run(Scale { source, factor: scale, target })
}

struct Scale<'a> {
    source: &'a [f32],
    factor: f32,
    target: &'a mut [f32],
}

impl Kernel for Scale<'_> {
    type Output = u32;

    #[inline(always)]
    fn run(self) -> u32 {
        let mut worst = 0;
        for (target, source) in self.target.iter_mut().zip(self.source) {
            *target = source * self.factor;
            worst = worst.max(magnitude(*target));
        }
        worst
    }
}
