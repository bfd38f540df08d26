//! AVX-512 (F, BW, DQ, VL): the token and the one `unsafe` call it allows.

use super::Kernel;

/// Proof that this CPU has AVX-512 (F, BW, DQ, VL). Made only by [`Avx512::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512(());

impl Avx512 {
    /// A token, if the CPU (and the operating system) support it.
    #[must_use]
    pub fn new() -> Option<Self> {
        let present = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512dq")
            && std::arch::is_x86_feature_detected!("avx512vl");
        present.then_some(Self(()))
    }

    #[inline]
    #[allow(clippy::unused_self, reason = "owning the token is what permits the call")]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
        fn shell<K: Kernel>(kernel: K) -> K::Output {
            kernel.run()
        }
        // SAFETY: `self` exists only if `new` found every feature that `shell` enables.
        unsafe { shell(kernel) }
    }
}
