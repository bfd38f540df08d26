//! AVX2: the token and the one `unsafe` call it allows.

use super::Kernel;

/// Proof that this CPU has AVX2. Made only by [`Avx2::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

impl Avx2 {
    /// A token, if the CPU (and the operating system) support it.
    #[must_use]
    pub fn new() -> Option<Self> {
        let present = std::arch::is_x86_feature_detected!("avx2");
        present.then_some(Self(()))
    }

    #[inline]
    #[allow(clippy::unused_self, reason = "owning the token is what permits the call")]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2")]
        fn shell<K: Kernel>(kernel: K) -> K::Output {
            kernel.run()
        }
        // SAFETY: `self` exists only if `new` found every feature that `shell` enables.
        unsafe { shell(kernel) }
    }
}
