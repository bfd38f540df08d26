//! What a rule is, and the one loop that runs every rule.

use super::OptimizerError;
use super::before::{Before, Both, Change, Nothing};
use super::number::{Number, Numbers};
use crate::kernel::{Bypass, Kernel, LANES, Level};

/// An update rule with `PLANES` numbers of state per parameter.
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

    /// Numbers that depend on the count of updates (this one included), once a record, in f64.
    fn correction(self, _count: u64) -> Correction {
        Correction::default()
    }

    /// New parameter and state of one element.
    fn update(
        self,
        correction: Correction,
        p: f32,
        g: f32,
        state: [f32; PLANES],
    ) -> (f32, [f32; PLANES]);
}

/// See [`Rule::correction`]; a rule that has none ignores it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Correction {
    /// Step size.
    pub step: f32,
    /// Factor of the root of the second moment.
    pub root: f32,
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
    pub correction: Correction,
    /// Write the new planes past the caches.
    pub bypass: bool,
}

/// The largest magnitude bits seen: NaN and infinity are larger than every finite number's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Worst {
    gradient: u32,
    result: u32,
}

impl Worst {
    const INFINITE: u32 = 0x7f80_0000;

    pub(crate) fn gradient_finite(self) -> bool {
        self.gradient < Self::INFINITE
    }

    pub(crate) fn result_finite(self) -> bool {
        self.result < Self::INFINITE
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self { gradient: self.gradient.max(other.gradient), result: self.result.max(other.result) }
    }
}

/// A rule behind one indirect call a stripe.
pub(super) trait Compiled: Send + Sync {
    fn name(&self) -> &'static str;
    fn planes(&self) -> usize;
    fn initial(&self, plane: usize) -> f32;
    fn correction(&self, count: u64) -> Correction;
    fn update(&self, level: Level, before: Before, stripe: Stripe<'_>) -> Worst;
}

/// A row of the table of rules.
pub(super) struct Row {
    pub name: &'static str,
    pub numbers: &'static [Number],
    pub build: fn(&Numbers) -> Result<Box<dyn Compiled>, OptimizerError>,
}

impl Row {
    pub(super) const fn of<const PLANES: usize, R: Rule<PLANES>>() -> Self {
        Self {
            name: R::NAME,
            numbers: R::NUMBERS,
            build: |numbers| Ok(Box::new(Boxed::<PLANES, R>(R::new(numbers)?))),
        }
    }
}

struct Boxed<const PLANES: usize, R>(R);

impl<const PLANES: usize, R: Rule<PLANES>> Compiled for Boxed<PLANES, R> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn planes(&self) -> usize {
        PLANES
    }

    fn initial(&self, plane: usize) -> f32 {
        self.0.initial()[plane]
    }

    fn correction(&self, count: u64) -> Correction {
        self.0.correction(count)
    }

    fn update(&self, level: Level, before: Before, stripe: Stripe<'_>) -> Worst {
        match before {
            Before::Nothing => self.launch(level, Nothing, stripe),
            Before::Clip(clip) => self.launch(level, clip, stripe),
            Before::Decay(decay) => self.launch(level, decay, stripe),
            Before::ClipDecay(clip, decay) => self.launch(level, Both(clip, decay), stripe),
            Before::DecayClip(decay, clip) => self.launch(level, Both(decay, clip), stripe),
        }
    }
}

impl<const PLANES: usize, R: Rule<PLANES>> Boxed<PLANES, R> {
    fn launch<C: Change>(&self, level: Level, change: C, stripe: Stripe<'_>) -> Worst {
        let rule = self.0;
        if stripe.bypass {
            level.run(Update::<'_, PLANES, true, R, C> { rule, change, stripe })
        } else {
            level.run(Update::<'_, PLANES, false, R, C> { rule, change, stripe })
        }
    }
}

/// The loop. Sixteen elements at a time are loaded, computed in local arrays (so that the compiler
/// need not prove that `old` and `new` do not overlap) and stored.
struct Update<'a, const PLANES: usize, const BYPASS: bool, R, C> {
    rule: R,
    change: C,
    stripe: Stripe<'a>,
}

impl<const PLANES: usize, const BYPASS: bool, R: Rule<PLANES>, C: Change> Kernel
    for Update<'_, PLANES, BYPASS, R, C>
{
    type Output = Worst;

    #[inline(always)]
    fn run(self) -> Worst {
        let Stripe { old, new, stride, gradient, scale, correction, .. } = self.stripe;
        let bypass = Bypass::<BYPASS>::new();
        let len = gradient.len();
        let mut old = old.chunks_exact(stride);
        let mut new = new.chunks_exact_mut(stride);
        let mut read = || &old.next().expect("old holds every plane")[..len];
        let mut write = || &mut new.next().expect("new holds every plane")[..len];
        let (p_old, p_new) = (read(), write());
        let s_old: [&[f32]; PLANES] = std::array::from_fn(|_| read());
        let s_new: [&mut [f32]; PLANES] = std::array::from_fn(|_| write());

        let (g_chunks, g_tail) = gradient.as_chunks::<LANES>();
        let (p_chunks, p_tail) = p_old.as_chunks::<LANES>();
        let (p_out, p_out_tail) = p_new.as_chunks_mut::<LANES>();
        let s_chunks = s_old.map(|plane| plane.as_chunks::<LANES>());
        let s_out = s_new.map(|plane| plane.as_chunks_mut::<LANES>());
        let mut worst_gradient = [0_u32; LANES];
        let mut worst_result = [0_u32; LANES];
        let element = |g: f32, p: f32, state: [f32; PLANES]| {
            let g = g * scale;
            let (p_next, state) = self.rule.update(correction, p, self.change.change(g, p), state);
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
        let worst = |lanes: [u32; LANES]| lanes.into_iter().fold(0, u32::max);
        Worst { gradient: worst(worst_gradient), result: worst(worst_result) }
    }
}

#[inline(always)]
fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}
