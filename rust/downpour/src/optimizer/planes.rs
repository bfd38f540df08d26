//! Which memory one part of a chain works on, and what its loop has seen.

/// A run of elements within one stripe: old planes in, new planes out.
///
/// # Shapes
///
/// `old` and `new` hold whole planes of `stride` elements each, the parameters first. The run is
/// as many elements of each as the gradient has, from `start` on; the part's own state are the
/// planes from `state` on.
pub(super) struct Window<'a> {
    pub old: &'a [f32],
    pub new: &'a mut [f32],
    pub stride: usize,
    pub start: usize,
    pub state: usize,
    /// The parameters as they were in the version before, and in the gradient's base.
    pub before: [&'a [f32]; 2],
    /// Write the new planes past the caches.
    pub bypass: bool,
}

impl<'a> Window<'a> {
    /// The run, plane by plane. `len` is that of the gradient's slice, so that the loops need not
    /// check their indices.
    #[inline(always)]
    pub(super) fn split<const PLANES: usize>(self, len: usize) -> Split<'a, PLANES> {
        let from = self.start;
        let mut old = self.old.chunks_exact(self.stride);
        let mut new = self.new.chunks_exact_mut(self.stride);
        let p_old = &old.next().expect("old holds every plane")[from..][..len];
        let p_new = &mut new.next().expect("new holds every plane")[from..][..len];
        let (mut old, mut new) = (old.skip(self.state - 1), new.skip(self.state - 1));
        let s_old =
            std::array::from_fn(|_| &old.next().expect("old holds every plane")[from..][..len]);
        let s_new =
            std::array::from_fn(|_| &mut new.next().expect("new holds every plane")[from..][..len]);
        Split { p_old, p_new, s_old, s_new }
    }
}

/// One run of elements, plane by plane.
pub(super) struct Split<'a, const PLANES: usize> {
    pub p_old: &'a [f32],
    pub p_new: &'a mut [f32],
    pub s_old: [&'a [f32]; PLANES],
    pub s_new: [&'a mut [f32]; PLANES],
}

/// The largest magnitude bits seen: NaN and infinity are larger than every finite number's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Worst {
    pub(super) gradient: u32,
    pub(super) result: u32,
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

/// The bits of a number without its sign: ordered as magnitudes are, NaN last.
#[inline(always)]
pub(super) fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// The largest of all lanes.
#[inline(always)]
pub(super) fn largest<const N: usize>(lanes: [u32; N]) -> u32 {
    lanes.into_iter().fold(0, u32::max)
}
