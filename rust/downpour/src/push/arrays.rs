//! Arrays laid end to end.

use crate::kernel::{self, Check, DType, Gradient, Level};

/// One array's elements.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    Values(Gradient<'a>),
    /// So many zeros: an array that has no gradient.
    Zeros(usize),
}

impl<'a> Source<'a> {
    fn len(&self) -> usize {
        match self {
            Self::Values(values) => values.len(),
            Self::Zeros(len) => *len,
        }
    }

    fn slice(&self, start: usize, stop: usize) -> Source<'a> {
        match self {
            Self::Values(values) => Self::Values(values.slice(start, stop)),
            Self::Zeros(_) => Self::Zeros(stop - start),
        }
    }
}

/// Arrays, each of its own element type, as one run of elements.
#[derive(Clone, Debug, Default)]
pub struct Arrays<'a> {
    sources: Vec<Source<'a>>,
    /// Where each begins.
    starts: Vec<usize>,
    len: usize,
}

impl<'a> FromIterator<Source<'a>> for Arrays<'a> {
    fn from_iter<I: IntoIterator<Item = Source<'a>>>(sources: I) -> Self {
        let mut arrays = Self::default();
        for source in sources {
            arrays.starts.push(arrays.len);
            arrays.len += source.len();
            arrays.sources.push(source);
        }
        arrays
    }
}

impl Arrays<'_> {
    /// Elements of all of them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Call `body` with each piece of `start..stop`, in order, and its place in that range.
    fn each(&self, start: usize, stop: usize, mut body: impl FnMut(usize, Source<'_>)) {
        // The last array that begins at or before `start`; those behind it are looked at in turn.
        let mut index = self.starts.partition_point(|&at| at <= start).saturating_sub(1);
        let mut at = start;
        while at < stop {
            let (first, source) = (self.starts[index], &self.sources[index]);
            let end = stop.min(first + source.len());
            if end > at {
                body(at - start, source.slice(at - first, end - first));
                at = end;
            }
            index += 1;
        }
    }

    /// Elements `start..start + target.len()` as f32.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    pub fn read(&self, level: Level, start: usize, target: &mut [f32]) {
        assert!(start + target.len() <= self.len, "elements beyond the arrays");
        self.each(start, start + target.len(), |at, source| {
            let target = &mut target[at..at + source.len()];
            match source {
                Source::Values(values) => kernel::widen(level, values, target),
                Source::Zeros(_) => target.fill(0.0),
            }
        });
    }

    /// Look at all elements as f32, a fragment at a time: see [`kernel::check`]. The sums of the
    /// fragments are added in their order.
    #[must_use]
    pub fn check(&self, level: Level, fragment_len: usize) -> Check {
        let mut scratch = vec![0.0; fragment_len.min(self.len)];
        let mut found = Check::default();
        for start in (0..self.len).step_by(fragment_len.max(1)) {
            let values = &mut scratch[..fragment_len.min(self.len - start)];
            self.read(level, start, values);
            found.add(start, kernel::check(level, Gradient::F32(values)));
        }
        found
    }

    /// `target += elements`, or `target = elements` when `overwrite`.
    ///
    /// # Errors
    ///
    /// [`kernel::KernelError::Length`] if the lengths differ; nothing is written then.
    pub fn accumulate(
        &self,
        level: Level,
        target: &mut [f32],
        overwrite: bool,
    ) -> Result<(), kernel::KernelError> {
        self.over(target, |target, source| match source {
            Source::Values(values) => kernel::accumulate(level, target, values, overwrite),
            Source::Zeros(_) => {
                if overwrite {
                    target.fill(0.0);
                }
                Ok(())
            }
        })
    }

    /// `target -= rate * elements`.
    ///
    /// # Errors
    ///
    /// [`kernel::KernelError::Length`] if the lengths differ; nothing is written then.
    pub fn step(
        &self,
        level: Level,
        target: &mut [f32],
        rate: f32,
    ) -> Result<(), kernel::KernelError> {
        self.over(target, |target, source| match source {
            Source::Values(values) => kernel::step(level, target, values, rate),
            Source::Zeros(_) => Ok(()),
        })
    }

    fn over(
        &self,
        target: &mut [f32],
        mut body: impl FnMut(&mut [f32], Source<'_>) -> Result<(), kernel::KernelError>,
    ) -> Result<(), kernel::KernelError> {
        let (source_len, target_len) = (self.len, target.len());
        if source_len != target_len {
            return Err(kernel::KernelError::Length { source_len, target_len });
        }
        for (start, source) in self.starts.iter().zip(&self.sources) {
            body(&mut target[*start..start + source.len()], *source)?;
        }
        Ok(())
    }
}

/// The type that arrays are gathered as.
pub(super) const GATHERED: DType = DType::F32;

#[cfg(test)]
mod tests {
    use super::{Arrays, Source};
    use crate::kernel::{Gradient, Level};

    #[test]
    fn any_range_is_what_lies_end_to_end() {
        let (a, b) = ([1.0_f32, 2.0, 3.0], [5.0_f64, 6.0]);
        let arrays: Arrays<'_> = [
            Source::Values(Gradient::F32(&a)),
            Source::Values(Gradient::F32(&[])),
            Source::Zeros(2),
            Source::Values(Gradient::F64(&b)),
        ]
        .into_iter()
        .collect();
        let whole = [1.0_f32, 2.0, 3.0, 0.0, 0.0, 5.0, 6.0];
        assert_eq!(arrays.len(), whole.len());
        for start in 0..=whole.len() {
            for stop in start..=whole.len() {
                let mut read = vec![9.0; stop - start];
                arrays.read(Level::best(), start, &mut read);
                assert_eq!(read, whole[start..stop]);
            }
        }
        let mut target = whole;
        arrays.accumulate(Level::best(), &mut target, false).unwrap();
        assert_eq!(target.to_vec(), whole.map(|value| 2.0 * value).to_vec());
        arrays.step(Level::best(), &mut target, 1.0).unwrap();
        assert_eq!(target.to_vec(), whole.to_vec());
        arrays.accumulate(Level::best(), &mut target, true).unwrap();
        assert_eq!(target.to_vec(), whole.to_vec());
        assert!(arrays.step(Level::best(), &mut target[1..], 1.0).is_err());
    }

    #[test]
    fn what_is_not_finite_is_counted_over_all_arrays() {
        let (a, b) = ([1.0_f32, f32::NAN, 3.0], [1e300_f64, 2.0]);
        let sources = [Source::Values(Gradient::F32(&a)), Source::Values(Gradient::F64(&b))];
        let arrays: Arrays<'_> = sources.into_iter().collect();
        for fragment_len in 1..=8 {
            let found = arrays.check(Level::best(), fragment_len);
            assert_eq!((found.count, found.first_index), (2, Some(1)));
            assert!((found.sum_of_squares - 14.0).abs() < 1e-12);
        }
    }
}
