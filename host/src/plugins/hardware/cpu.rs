//! Processor features that code may use.
//!
//! A feature counts only when the operating system saves the registers it needs: the standard library's detection
//! asks `XGETBV` before it reports AVX, AVX-512 or AMX.

/// Declares the features that manifests may name, by the names of the standard library.
macro_rules! features {
    ($detect:ident: $($name:tt),* $(,)?) => {
        const KNOWN: &[&str] = &[$($name),*];

        /// The usable ones, in the order of the table.
        pub fn usable_features() -> Vec<&'static str> {
            let mut usable = Vec::new();
            $(if std::arch::$detect!($name) { usable.push($name); })*
            usable
        }
    };
}

#[cfg(target_arch = "x86_64")]
features! { is_x86_feature_detected:
    "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "lzcnt", "movbe",
    "aes", "pclmulqdq", "sha", "avxvnni", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512ifma",
    "avx512vbmi", "avx512vbmi2", "avx512vnni", "avx512bitalg", "avx512vpopcntdq", "avx512bf16", "avx512fp16",
    "gfni", "vaes", "vpclmulqdq",
}

#[cfg(target_arch = "aarch64")]
features! { is_aarch64_feature_detected:
    "neon", "fp16", "bf16", "dotprod", "i8mm", "sve", "sve2", "fhm", "rdm", "lse", "aes", "sha2",
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const KNOWN: &[&str] = &[];

/// The usable ones: none are known on this processor family.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub fn usable_features() -> Vec<&'static str> {
    Vec::new()
}

/// Whether this host can tell if the feature is usable.
pub fn is_known(name: &str) -> bool {
    KNOWN.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usable_features_are_known_ones() {
        let usable = usable_features();
        assert!(usable.iter().all(|name| is_known(name)));
        assert!(!is_known("avx2048"));
        #[cfg(target_arch = "x86_64")]
        assert!(!usable.contains(&"avx2") || usable.contains(&"avx"), "AVX2 implies AVX");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn wide_registers_count_only_where_the_system_saves_them() {
        use std::arch::x86_64::{__cpuid, _xgetbv};
        #[target_feature(enable = "xsave")]
        fn saved_registers() -> u64 {
            // SAFETY: register 0 exists wherever XGETBV does; the caller has looked at OSXSAVE.
            unsafe { _xgetbv(0) }
        }
        let leaf = __cpuid(1);
        let (has_xgetbv, has_avx) = (leaf.ecx & (1 << 27) != 0, leaf.ecx & (1 << 28) != 0);
        // SAFETY: called only where the operating system has switched XGETBV on.
        let saves = has_xgetbv && unsafe { saved_registers() } & 6 == 6;
        assert_eq!(usable_features().contains(&"avx"), has_avx && saves);
    }
}
