//! How a shard's elements are cut into stripes and fragments.

use std::ops::Range;

use super::StoreError;

/// Elements that stripes are cut in multiples of: one cache line of f32.
pub(super) const UNIT: usize = 16;

/// Elements a store can hold: stripe indices must fit in 32 bits even for the smallest stripes.
pub(super) const LEN_MAX: usize = (u32::MAX as usize / 8) * UNIT;

/// Lengths in elements. A stripe is the unit of publishing, a fragment (whole stripes) the unit of
/// a record; the last of each may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub len: usize,
    pub stripe_len: usize,
    pub fragment_len: usize,
}

impl Geometry {
    pub(super) fn validate(self) -> Result<Self, StoreError> {
        let Self { len, stripe_len, fragment_len } = self;
        if len == 0 || len > LEN_MAX {
            return Err(StoreError::Len { len, len_max: LEN_MAX });
        }
        if stripe_len == 0 || !stripe_len.is_multiple_of(UNIT) {
            return Err(StoreError::StripeLen { stripe_len, unit: UNIT });
        }
        if fragment_len == 0 || !fragment_len.is_multiple_of(stripe_len) {
            return Err(StoreError::FragmentLen { fragment_len, stripe_len });
        }
        Ok(self)
    }

    #[must_use]
    pub fn stripes(&self) -> usize {
        self.len.div_ceil(self.stripe_len)
    }

    #[must_use]
    pub fn fragments(&self) -> usize {
        self.len.div_ceil(self.fragment_len)
    }

    /// Elements of one stripe, as indices into the shard.
    #[must_use]
    pub fn stripe_range(&self, stripe: usize) -> Range<usize> {
        self.cut(stripe, self.stripe_len)
    }

    /// Elements of one fragment, as indices into the shard.
    #[must_use]
    pub fn fragment_range(&self, fragment: usize) -> Range<usize> {
        self.cut(fragment, self.fragment_len)
    }

    /// The stripes of one fragment.
    #[must_use]
    pub fn fragment_stripes(&self, fragment: usize) -> Range<usize> {
        let range = self.fragment_range(fragment);
        range.start / self.stripe_len..range.end.div_ceil(self.stripe_len)
    }

    /// Elements a block reserves per plane: a whole stripe, or less if the store has only one.
    pub(super) fn stride(&self) -> usize {
        self.stripe_len.min(self.len.next_multiple_of(UNIT))
    }

    fn cut(&self, index: usize, piece: usize) -> Range<usize> {
        let start = index.saturating_mul(piece).min(self.len);
        start..start.saturating_add(piece).min(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::{Geometry, LEN_MAX};
    use crate::store::StoreError;

    #[test]
    fn the_last_stripe_and_fragment_are_shorter() {
        let geometry = Geometry { len: 100, stripe_len: 16, fragment_len: 48 };
        assert_eq!((geometry.stripes(), geometry.fragments()), (7, 3));
        assert_eq!(geometry.stripe_range(6), 96..100);
        assert_eq!(geometry.fragment_range(2), 96..100);
        assert_eq!(geometry.fragment_stripes(1), 3..6);
        assert_eq!(geometry.fragment_stripes(2), 6..7);
        assert_eq!(geometry.stride(), 16);
        assert_eq!(Geometry { len: 5, ..geometry }.stride(), 16);
    }

    #[test]
    fn impossible_cuts_are_named() {
        let good = Geometry { len: 100, stripe_len: 16, fragment_len: 48 };
        assert_eq!(good.validate(), Ok(good));
        for len in [0, LEN_MAX + 1] {
            let refused = Geometry { len, ..good }.validate();
            assert_eq!(refused, Err(StoreError::Len { len, len_max: LEN_MAX }));
        }
        for stripe_len in [0, 24] {
            let refused = Geometry { stripe_len, ..good }.validate();
            assert_eq!(refused, Err(StoreError::StripeLen { stripe_len, unit: 16 }));
        }
        for fragment_len in [0, 40] {
            let refused = Geometry { fragment_len, ..good }.validate();
            assert_eq!(refused, Err(StoreError::FragmentLen { fragment_len, stripe_len: 16 }));
        }
    }
}
