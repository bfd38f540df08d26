//! The one loop that runs every rule.

use super::part::{Context, Rule, Terms};
use super::planes::{Split, Window, Worst, largest, magnitude};
use crate::kernel::{Bypass, Kernel, LANES, Level};

/// A rule behind one indirect call a run of elements.
pub(super) trait CompiledRule: Send + Sync {
    fn name(&self) -> &'static str;
    fn planes(&self) -> usize;
    fn initial(&self, plane: usize) -> f32;
    fn terms(&self, context: Context) -> Terms;
    /// `gradient` has as many elements as the window, and is multiplied by `scale` on the way.
    fn update(
        &self,
        level: Level,
        terms: Terms,
        window: Window<'_>,
        gradient: &[f32],
        scale: f32,
    ) -> Worst;
}

pub(super) fn compiled<const PLANES: usize, R: Rule<PLANES>>(rule: R) -> Box<dyn CompiledRule> {
    Box::new(Boxed::<PLANES, R>(rule))
}

struct Boxed<const PLANES: usize, R>(R);

impl<const PLANES: usize, R: Rule<PLANES>> CompiledRule for Boxed<PLANES, R> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn planes(&self) -> usize {
        PLANES
    }

    fn initial(&self, plane: usize) -> f32 {
        self.0.initial()[plane]
    }

    fn terms(&self, context: Context) -> Terms {
        self.0.terms(context)
    }

    fn update(
        &self,
        level: Level,
        terms: Terms,
        window: Window<'_>,
        gradient: &[f32],
        scale: f32,
    ) -> Worst {
        let rule = self.0;
        if window.bypass {
            level.run(Update::<'_, PLANES, true, R> { rule, terms, window, gradient, scale })
        } else {
            level.run(Update::<'_, PLANES, false, R> { rule, terms, window, gradient, scale })
        }
    }
}

/// The loop. Sixteen elements at a time are loaded, computed in local arrays (so that the compiler
/// need not prove that `old` and `new` do not overlap) and stored.
struct Update<'a, const PLANES: usize, const BYPASS: bool, R> {
    rule: R,
    terms: Terms,
    window: Window<'a>,
    gradient: &'a [f32],
    scale: f32,
}

impl<const PLANES: usize, const BYPASS: bool, R: Rule<PLANES>> Kernel
    for Update<'_, PLANES, BYPASS, R>
{
    type Output = Worst;

    #[inline(always)]
    fn run(self) -> Worst {
        let Self { rule, terms, window, gradient, scale } = self;
        let bypass = Bypass::<BYPASS>::new();
        let Split { p_old, p_new, s_old, s_new } = window.split::<PLANES>(gradient.len());
        let (g_chunks, g_tail) = gradient.as_chunks::<LANES>();
        let (p_chunks, p_tail) = p_old.as_chunks::<LANES>();
        let (p_out, p_out_tail) = p_new.as_chunks_mut::<LANES>();
        let s_chunks = s_old.map(|plane| plane.as_chunks::<LANES>());
        let s_out = s_new.map(|plane| plane.as_chunks_mut::<LANES>());
        let mut worst_gradient = [0_u32; LANES];
        let mut worst_result = [0_u32; LANES];
        let element = |g: f32, p: f32, state: [f32; PLANES]| {
            let g = g * scale;
            let (p_next, state) = rule.update(terms, p, g, state);
            let result = state.iter().fold(magnitude(p_next), |worst, s| worst.max(magnitude(*s)));
            (p_next, state, magnitude(g), result)
        };
        for index in 0..g_chunks.len() {
            let mut p_next = [0.0_f32; LANES];
            let mut s_next = [[0.0_f32; LANES]; PLANES];
            for lane in 0..LANES {
                let state = std::array::from_fn(|k| s_chunks[k].0[index][lane]);
                let (p, state, bad_g, bad_r) =
                    element(g_chunks[index][lane], p_chunks[index][lane], state);
                p_next[lane] = p;
                for k in 0..PLANES {
                    s_next[k][lane] = state[k];
                }
                worst_gradient[lane] = worst_gradient[lane].max(bad_g);
                worst_result[lane] = worst_result[lane].max(bad_r);
            }
            bypass.put(&mut p_out[index], p_next);
            for k in 0..PLANES {
                bypass.put(&mut s_out[k].0[index], s_next[k]);
            }
        }
        for lane in 0..g_tail.len() {
            let state = std::array::from_fn(|k| s_chunks[k].1[lane]);
            let (p, state, bad_g, bad_r) = element(g_tail[lane], p_tail[lane], state);
            p_out_tail[lane] = p;
            for k in 0..PLANES {
                s_out[k].1[lane] = state[k];
            }
            worst_gradient[lane] = worst_gradient[lane].max(bad_g);
            worst_result[lane] = worst_result[lane].max(bad_r);
        }
        Worst { gradient: largest(worst_gradient), result: largest(worst_result) }
    }
}
