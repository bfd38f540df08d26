//! Which instruction set to run, chosen at run time.

use super::Kernel;
#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512};

/// An instruction set this CPU has. Owning a value is the proof: the tokens inside can only be
/// made after asking the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Level {
    /// What the compilation target guarantees (SSE2 on `x86_64`).
    Baseline,
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

impl Level {
    /// Every level of this CPU, narrowest first. Never empty.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut levels = vec![Self::Baseline];
        #[cfg(target_arch = "aarch64")]
        levels.extend(Neon::new().map(Self::Neon));
        #[cfg(target_arch = "x86_64")]
        {
            levels.extend(Avx2::new().map(Self::Avx2));
            levels.extend(Avx512::new().map(Self::Avx512));
        }
        levels
    }

    /// The widest level of this CPU.
    #[must_use]
    pub fn best() -> Self {
        #[cfg(target_arch = "aarch64")]
        if let Some(token) = Neon::new() {
            return Self::Neon(token);
        }
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(token) = Avx512::new() {
                return Self::Avx512(token);
            }
            if let Some(token) = Avx2::new() {
                return Self::Avx2(token);
            }
        }
        Self::Baseline
    }

    /// The available level of this name; `None` if unknown or absent from this CPU.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::available().into_iter().find(|level| level.name() == name)
    }

    /// `baseline`, `neon`, `avx2` or `avx512`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
        }
    }

    /// Run a kernel compiled for this level.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Baseline => kernel.run(),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(token) => token.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(token) => token.run(kernel),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(token) => token.run(kernel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Level;

    #[test]
    fn names_find_their_level_and_best_is_last() {
        let levels = Level::available();
        assert_eq!(levels[0], Level::Baseline);
        assert_eq!(levels.last(), Some(&Level::best()));
        for level in levels {
            assert_eq!(Level::named(level.name()), Some(level));
        }
        assert_eq!(Level::named("mmx"), None);
    }
}
