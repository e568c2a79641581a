//! The element types of tensors.

/// An element type, by its number in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GgmlType(pub u32);

/// Number, name, elements of a block, bytes of a block.
const KNOWN: &[(u32, &str, u64, u64)] = &[
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
];

impl GgmlType {
    /// 32-bit floats.
    pub const F32: GgmlType = GgmlType(0);
    /// 16-bit floats of IEEE.
    pub const F16: GgmlType = GgmlType(1);
    /// Blocks of 32: a scale, then codes of 4 bits around 8.
    pub const Q4_0: GgmlType = GgmlType(2);
    /// Blocks of 32: a scale, a minimum, then codes of 4 bits.
    pub const Q4_1: GgmlType = GgmlType(3);
    /// Blocks of 32: a scale, then signed bytes.
    pub const Q8_0: GgmlType = GgmlType(8);
    /// The upper halves of 32-bit floats.
    pub const BF16: GgmlType = GgmlType(30);

    /// Its name, as tools of this format spell it.
    pub fn name(self) -> String {
        self.known().map_or_else(|| format!("number {}", self.0), |(_, name, _, _)| (*name).to_owned())
    }

    /// Elements and bytes of a block; `None` for a type that is not known.
    pub fn block(self) -> Option<(u64, u64)> {
        self.known().map(|(_, _, elements, bytes)| (*elements, *bytes))
    }

    fn known(self) -> Option<&'static (u32, &'static str, u64, u64)> {
        KNOWN.iter().find(|(number, ..)| *number == self.0)
    }
}
