//! The ELF note that tells packagers which libraries a plugin opens at run time.
//!
//! Libraries that are opened rather than linked are invisible to the tools that work out a
//! package's dependencies. The note `.note.dlopen` makes them visible; debhelper and rpm have
//! generators that read it. Format: the UAPI group's "ELF metadata for dlopen() dependencies".

/// Type of the note.
const NOTE_TYPE: u32 = 0x407c_0c0a;

/// One note with room for `N` bytes of JSON, its terminating zero and padding included.
#[repr(C, align(4))]
pub struct DlopenNote<const N: usize> {
    name_size: u32,
    description_size: u32,
    kind: u32,
    name: [u8; 4],
    description: [u8; N],
}

/// Bytes that a note needs for `json`: with a zero, rounded up to a multiple of 4.
pub const fn padded(json: &str) -> usize {
    (json.len() + 1).next_multiple_of(4)
}

impl<const N: usize> DlopenNote<N> {
    /// The note for a JSON array. `N` must be [`padded`] of it.
    pub const fn new(json: &str) -> DlopenNote<N> {
        assert!(N == padded(json), "the note's size does not follow from its text");
        let mut description = [0; N];
        let mut at = 0;
        while at < json.len() {
            description[at] = json.as_bytes()[at];
            at += 1;
        }
        DlopenNote { name_size: 4, description_size: N as u32, kind: NOTE_TYPE, name: *b"FDO\0", description }
    }
}

/// States, for packagers, a library that the plugin opens at run time. It should say what the
/// manifest's `[[runtime]]` says. `priority` is `required`, `recommended` or `suggested`.
///
/// ```
/// tensorfold_plugin_api::dlopen_note! {
///     feature: "cuda",
///     description: "NVIDIA's driver",
///     priority: "required",
///     soname: ["libcuda.so.1"],
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! dlopen_note {
    (
        feature: $feature:literal,
        description: $description:literal,
        priority: $priority:literal,
        soname: [$first:literal $(, $more:literal)* $(,)?] $(,)?
    ) => {
        #[cfg(target_os = "linux")]
        const _: () = {
            use $crate::plugin::__private::{DlopenNote, padded};

            const JSON: &str = concat!(
                "[{\"feature\":\"", $feature,
                "\",\"description\":\"", $description,
                "\",\"priority\":\"", $priority,
                "\",\"soname\":[\"", $first, "\"", $(",\"", $more, "\"",)* "]}]",
            );

            #[used]
            #[unsafe(link_section = ".note.dlopen")]
            static NOTE: DlopenNote<{ padded(JSON) }> = DlopenNote::new(JSON);
        };
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_padded_and_ends_with_a_zero() {
        const JSON: &str = "[{\"soname\":[\"a\"]}]";
        let note = DlopenNote::<{ padded(JSON) }>::new(JSON);
        assert_eq!(note.description_size as usize, JSON.len() + 2);
        assert_eq!(&note.description[..JSON.len()], JSON.as_bytes());
        assert!(note.description[JSON.len()..].iter().all(|&byte| byte == 0));
        assert_eq!(size_of_val(&note) % 4, 0);
        assert_eq!((note.name_size, &note.name, note.kind), (4, b"FDO\0", NOTE_TYPE));
    }
}
