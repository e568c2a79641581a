//! What a library file says about itself, read without loading it.
//!
//! Nothing in this file maps a library, and no byte of it is trusted: sizes and counts are bounded, offsets are
//! checked, and any malformed file ends in an [`ImageError`]. Only the file's headers, its dynamic tables and the
//! manifest are read, whatever the size of the library.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use object::Endianness;
use object::elf;
use object::read::elf::{FileHeader, NoteIterator, ProgramHeader as _, SectionHeader as _, Sym as _};
use object::read::{ReadCache, ReadCacheOps, ReadRef};
use serde::{Deserialize, Serialize};

pub use tensorfold_plugin_api::abi::{DESCRIPTOR_SYMBOL, MANIFEST_SECTION, MANIFEST_SYMBOL};

/// Largest manifest, in bytes.
pub const MANIFEST_MAX: u64 = 64 << 10;

/// Largest table of any kind that is read from a library, in bytes.
const TABLE_MAX: u64 = 32 << 20;
const SECTIONS_MAX: u32 = 1 << 16;
const SEGMENTS_MAX: u32 = 1 << 12;
const SYMBOLS_MAX: usize = 1 << 18;
const ENTRIES_MAX: usize = 1 << 12;
const DLOPEN_NOTE_TYPE: u32 = 0x407c_0c0a;

/// Which file it was: the same file changed in place, or replaced, has another identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileIdentity {
    /// Device number.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of content, in nanoseconds.
    pub modified_ns: i128,
    /// Time of the last change of inode, in nanoseconds.
    pub changed_ns: i128,
}

impl FileIdentity {
    /// From what `stat` says.
    pub fn of(metadata: &std::fs::Metadata) -> Self {
        let nanoseconds = |seconds: i64, part: i64| i128::from(seconds) * 1_000_000_000 + i128::from(part);
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified_ns: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// What the header of the file says it was built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    /// 32 or 64.
    pub bits: u8,
    /// Least significant byte first.
    pub little_endian: bool,
    /// The number of the processor family (`e_machine`).
    pub machine: u16,
    /// The number of the operating system (`EI_OSABI`).
    pub os_abi: u8,
}

impl Target {
    /// The processor's name as manifests and Rust spell it, or its number.
    pub fn arch(&self) -> String {
        match (elf::Machine(self.machine), self.bits) {
            (elf::EM_X86_64, 64) => "x86_64".into(),
            (elf::EM_AARCH64, _) => "aarch64".into(),
            (elf::EM_RISCV, 64) => "riscv64".into(),
            (elf::EM_386, _) => "x86".into(),
            (elf::EM_ARM, _) => "arm".into(),
            (elf::EM_PPC64, _) => "powerpc64".into(),
            (elf::EM_S390, _) => "s390x".into(),
            (elf::EM_LOONGARCH, _) => "loongarch64".into(),
            (machine, bits) => format!("machine {} ({bits} bit)", machine.0),
        }
    }

    /// Whether a library with this header can run in this process.
    pub fn is_native(&self) -> bool {
        let native_os = [elf::ELFOSABI_NONE.0, elf::ELFOSABI_GNU.0].contains(&self.os_abi);
        self.bits == 64
            && self.little_endian == cfg!(target_endian = "little")
            && self.arch() == std::env::consts::ARCH
            && native_os
    }
}

/// A library that may be opened at run time, as the file's notes for packagers state it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DlopenNote {
    /// Names tried in order.
    pub soname: Vec<String>,
    /// What it is for.
    #[serde(default)]
    pub feature: Option<String>,
    /// What it is for, as a sentence.
    #[serde(default)]
    pub description: Option<String>,
    /// `required`, `recommended` or `suggested`.
    #[serde(default)]
    pub priority: Option<String>,
}

/// Everything read from a library file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Image {
    /// Which file it was.
    pub identity: FileIdentity,
    /// What it was built for.
    pub target: Target,
    /// A shared object, and not a program or an object file.
    pub shared_object: bool,
    /// The bytes of the manifest section.
    #[serde(skip)]
    pub manifest: Option<Vec<u8>>,
    /// The manifest symbol is exported.
    pub manifest_symbol: bool,
    /// The descriptor symbol is exported.
    pub descriptor_symbol: bool,
    /// Size of the descriptor symbol in bytes.
    pub descriptor_bytes: u64,
    /// Every exported symbol, sorted.
    pub exports: Vec<String>,
    /// `DT_SONAME`.
    pub soname: Option<String>,
    /// `DT_NEEDED`, in order.
    pub needed: Vec<String>,
    /// `DT_RPATH`.
    pub rpath: Option<String>,
    /// `DT_RUNPATH`.
    pub runpath: Option<String>,
    /// Asks for an executable stack, by saying so or by saying nothing.
    pub executable_stack: bool,
    /// Has relocations in its code.
    pub text_relocations: bool,
    /// Uses static thread-local storage.
    pub static_tls: bool,
    /// All symbols are bound when it is loaded.
    pub bind_now: bool,
    /// Versions needed from each library: `libc.so.6` needs `GLIBC_2.34`, ...
    pub versions: BTreeMap<String, Vec<String>>,
    /// The notes about libraries opened at run time.
    pub dlopen_notes: Vec<DlopenNote>,
}

impl Image {
    /// The newest glibc version that the library asks for, as numbers.
    pub fn glibc_needed(&self) -> Option<(u32, u32)> {
        self.versions
            .values()
            .flatten()
            .filter_map(|version| parse_dotted(version.strip_prefix("GLIBC_")?))
            .max()
    }
}

/// `2.36` or `2.2.5` as its first two numbers.
pub fn parse_dotted(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next().map_or(Some(0), |part| part.parse().ok())?;
    Some((major, minor))
}

/// Why a library file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The system refused.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// Not a regular file.
    #[error("not a regular file")]
    NotAFile,
    /// Does not begin as an ELF file.
    #[error("not a shared library (no ELF header)")]
    NotElf,
    /// An ELF file for another kind of machine; the rest was not read.
    #[error("built for {}", .0.arch())]
    Foreign(Target),
    /// Damaged, or made to look so.
    #[error("damaged library file: {0}")]
    Malformed(String),
}

fn malformed(what: &str) -> impl FnOnce(object::read::Error) -> ImageError + '_ {
    move |error| ImageError::Malformed(format!("{what}: {error}"))
}

/// Reads the library file at `path` with ordinary reads.
///
/// # Errors
/// [`ImageError`]; [`ImageError::Foreign`] carries what the file was built for.
pub fn read(path: &Path) -> Result<Image, ImageError> {
    // Not blocking, so that a pipe put in place of a library cannot hang the host.
    let file =
        std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(ImageError::NotAFile);
    }
    parse(file, FileIdentity::of(&metadata))
}

/// Reads a library from memory, for tests and tools.
///
/// # Errors
/// As [`read`].
pub fn parse_bytes(bytes: &[u8], identity: FileIdentity) -> Result<Image, ImageError> {
    parse(std::io::Cursor::new(bytes), identity)
}

fn parse(reader: impl ReadCacheOps, identity: FileIdentity) -> Result<Image, ImageError> {
    let cache = ReadCache::new(reader);
    let data = &cache;
    let ident = data.read_bytes_at(0, 20).map_err(|()| ImageError::NotElf)?;
    if ident[..4] != elf::ELFMAG {
        return Err(ImageError::NotElf);
    }
    let bits = match ident[4] {
        1 => 32,
        2 => 64,
        other => return Err(ImageError::Malformed(format!("class {other}"))),
    };
    let little_endian = match ident[5] {
        1 => true,
        2 => false,
        other => return Err(ImageError::Malformed(format!("byte order {other}"))),
    };
    let machine = [ident[18], ident[19]];
    let machine = if little_endian { u16::from_le_bytes(machine) } else { u16::from_be_bytes(machine) };
    let target = Target { bits, little_endian, machine, os_abi: ident[7] };
    if bits != 64 {
        return Err(ImageError::Foreign(target));
    }
    read_tables(data, identity, target)
}

type Header = elf::FileHeader64<Endianness>;

fn read_tables<'data, R: ReadRef<'data>>(
    data: R,
    identity: FileIdentity,
    target: Target,
) -> Result<Image, ImageError> {
    let header = Header::parse(data).map_err(malformed("header"))?;
    let endian = header.endian().map_err(malformed("header"))?;
    let count = header.shnum(endian, data).map_err(malformed("sections"))?;
    bounded("sections", u64::from(count), u64::from(SECTIONS_MAX))?;
    let count = header.phnum(endian, data).map_err(malformed("segments"))?;
    bounded("segments", u64::from(count), u64::from(SEGMENTS_MAX))?;
    let sections = header.sections(endian, data).map_err(malformed("sections"))?;
    let segments = header.program_headers(endian, data).map_err(malformed("segments"))?;

    // One place checks the size of every table that may be read as a whole.
    for section in sections.iter() {
        let kind = section.sh_type(endian);
        if [elf::SHT_DYNAMIC, elf::SHT_DYNSYM, elf::SHT_GNU_VERNEED, elf::SHT_NOTE, elf::SHT_SYMTAB_SHNDX]
            .contains(&kind)
        {
            bounded("table", section.sh_size(endian), TABLE_MAX)?;
        }
    }

    let mut image = Image {
        identity,
        target,
        shared_object: header.e_type(endian) == elf::ET_DYN,
        manifest: None,
        manifest_symbol: false,
        descriptor_symbol: false,
        descriptor_bytes: 0,
        exports: Vec::new(),
        soname: None,
        needed: Vec::new(),
        rpath: None,
        runpath: None,
        // Without a statement about the stack the dynamic linker takes the old default, an executable one.
        executable_stack: true,
        text_relocations: false,
        static_tls: false,
        bind_now: false,
        versions: BTreeMap::new(),
        dlopen_notes: Vec::new(),
    };

    for segment in segments {
        if segment.p_type(endian) == elf::PT_GNU_STACK {
            image.executable_stack = segment.p_flags(endian).contains(elf::PF_X);
        }
    }

    if let Some((_, section)) = sections.section_by_name(endian, MANIFEST_SECTION.as_bytes()) {
        bounded("manifest", section.sh_size(endian), MANIFEST_MAX)?;
        let bytes = section.data(endian, data).map_err(malformed("manifest section"))?;
        image.manifest = Some(bytes.to_vec());
    }

    read_exports(&mut image, endian, data, &sections)?;
    read_dynamic(&mut image, endian, data, &sections)?;
    read_versions(&mut image, endian, data, &sections)?;
    read_notes(&mut image, endian, data, &sections)?;
    Ok(image)
}

type Sections<'data, R> = object::read::elf::SectionTable<'data, Header, R>;

fn read_exports<'data, R: ReadRef<'data>>(
    image: &mut Image,
    endian: Endianness,
    data: R,
    sections: &Sections<'data, R>,
) -> Result<(), ImageError> {
    let symbols = sections.symbols(endian, data, elf::SHT_DYNSYM).map_err(malformed("symbols"))?;
    bounded("symbols", symbols.len() as u64, SYMBOLS_MAX as u64)?;
    for symbol in symbols.iter() {
        let local = symbol.st_bind() == elf::STB_LOCAL;
        if local || symbol.is_undefined(endian) || symbol.st_name(endian) == 0 {
            continue;
        }
        let name = symbol.name(endian, symbols.strings()).map_err(malformed("symbol name"))?;
        image.manifest_symbol |= name == MANIFEST_SYMBOL.as_bytes();
        if name == DESCRIPTOR_SYMBOL.as_bytes() {
            image.descriptor_symbol = true;
            image.descriptor_bytes = symbol.st_size(endian);
        }
        image.exports.push(text(name));
    }
    image.exports.sort_unstable();
    Ok(())
}

fn read_dynamic<'data, R: ReadRef<'data>>(
    image: &mut Image,
    endian: Endianness,
    data: R,
    sections: &Sections<'data, R>,
) -> Result<(), ImageError> {
    let table = sections.dynamic_table(endian, data).map_err(malformed("dynamic table"))?;
    for entry in &table {
        let string = || table.string(entry).map(text).map_err(malformed("dynamic string"));
        match entry.tag {
            elf::DT_NEEDED => {
                bounded("needed libraries", image.needed.len() as u64, ENTRIES_MAX as u64)?;
                image.needed.push(string()?);
            }
            elf::DT_SONAME => image.soname = Some(string()?),
            elf::DT_RPATH => image.rpath = Some(string()?),
            elf::DT_RUNPATH => image.runpath = Some(string()?),
            elf::DT_TEXTREL => image.text_relocations = true,
            elf::DT_BIND_NOW => image.bind_now = true,
            elf::DT_FLAGS => {
                image.text_relocations |= entry.val & elf::DF_TEXTREL.0 != 0;
                image.static_tls |= entry.val & elf::DF_STATIC_TLS.0 != 0;
                image.bind_now |= entry.val & elf::DF_BIND_NOW.0 != 0;
            }
            elf::DT_FLAGS_1 => image.bind_now |= entry.val & elf::DF_1_NOW.0 != 0,
            _ => {}
        }
    }
    Ok(())
}

fn read_versions<'data, R: ReadRef<'data>>(
    image: &mut Image,
    endian: Endianness,
    data: R,
    sections: &Sections<'data, R>,
) -> Result<(), ImageError> {
    let Some((mut needs, link)) = sections.gnu_verneed(endian, data).map_err(malformed("version needs"))?
    else {
        return Ok(());
    };
    let strings = sections.strings(endian, data, link).map_err(malformed("version names"))?;
    // An entry may point back at itself, so the count is bounded and not only the size.
    let mut seen = 0_usize;
    while let Some((need, mut versions)) = needs.next().map_err(malformed("version needs"))? {
        let library = text(need.file(endian, strings).map_err(malformed("version names"))?);
        while let Some(version) = versions.next().map_err(malformed("version needs"))? {
            seen += 1;
            bounded("version needs", seen as u64, ENTRIES_MAX as u64)?;
            let name = text(version.name(endian, strings).map_err(malformed("version names"))?);
            image.versions.entry(library.clone()).or_default().push(name);
        }
        seen += 1;
        bounded("version needs", seen as u64, ENTRIES_MAX as u64)?;
    }
    for names in image.versions.values_mut() {
        names.sort_unstable();
        names.dedup();
    }
    Ok(())
}

fn read_notes<'data, R: ReadRef<'data>>(
    image: &mut Image,
    endian: Endianness,
    data: R,
    sections: &Sections<'data, R>,
) -> Result<(), ImageError> {
    for section in sections.iter() {
        if section.sh_type(endian) != elf::SHT_NOTE {
            continue;
        }
        let bytes = section.data(endian, data).map_err(malformed("notes"))?;
        let Ok(mut notes) = NoteIterator::<Header>::new(endian, section.sh_addralign(endian), bytes) else {
            continue;
        };
        // Other tools' notes may be odd; only ours are required to be readable.
        while let Ok(Some(note)) = notes.next() {
            if note.name() != b"FDO" || note.n_type(endian).0 != DLOPEN_NOTE_TYPE {
                continue;
            }
            let json = note.desc().split(|byte| *byte == 0).next().unwrap_or_default();
            let list: Vec<DlopenNote> = serde_json::from_slice(json)
                .map_err(|error| ImageError::Malformed(format!(".note.dlopen: {error}")))?;
            bounded("notes", (image.dlopen_notes.len() + list.len()) as u64, ENTRIES_MAX as u64)?;
            image.dlopen_notes.extend(list);
        }
    }
    Ok(())
}

fn bounded(what: &str, found: u64, most: u64) -> Result<(), ImageError> {
    if found <= most {
        Ok(())
    } else {
        Err(ImageError::Malformed(format!("{what}: wanted at most {most}, found {found}")))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Library, manifest_bytes};
    use super::*;
    use proptest::prelude::*;
    use std::sync::OnceLock;

    const IDENTITY: FileIdentity =
        FileIdentity { device: 1, inode: 2, size: 3, modified_ns: 4, changed_ns: 5 };

    /// The bytes of one real plugin library, built once.
    fn plugin_bytes() -> &'static [u8] {
        static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
        BYTES.get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let path = Library::new("backend-test").build(folder.path());
            std::fs::read(path).unwrap()
        })
    }

    #[test]
    fn a_plugin_is_read_without_loading_it() {
        let image = parse_bytes(plugin_bytes(), IDENTITY).unwrap();
        assert!(image.target.is_native() && image.shared_object);
        assert_eq!(image.manifest.as_deref(), Some(manifest_bytes("backend-test").as_slice()));
        assert!(image.manifest_symbol && image.descriptor_symbol);
        assert!(image.exports.iter().any(|name| name == DESCRIPTOR_SYMBOL));
        assert!(!image.executable_stack && !image.text_relocations && !image.static_tls);
        assert!(image.needed.iter().any(|name| name.starts_with("libc.so")), "{:?}", image.needed);
        assert!(image.glibc_needed().is_none_or(|version| version >= (2, 2)));
    }

    #[test]
    fn a_library_without_entry_points_is_seen_as_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = Library::new("x").source("int nothing(void) { return 0; }").build(folder.path());
        let image = read(&path).unwrap();
        assert!(image.manifest.is_none() && !image.manifest_symbol && !image.descriptor_symbol);
        assert_eq!(image.exports, ["nothing"]);
    }

    #[test]
    fn what_cannot_work_here_is_seen_before_loading() {
        let folder = tempfile::tempdir().unwrap();
        let path = Library::new("x")
            .source(
                "__thread int t __attribute__((tls_model(\"initial-exec\"))); int *f(void) { return &t; }",
            )
            .flags(&[
                "-Wl,-z,execstack",
                "-Wl,-rpath,/nowhere",
                "-Wl,--enable-new-dtags",
                "-Wl,-soname,libx.so.3",
            ])
            .build(folder.path());
        let image = read(&path).unwrap();
        assert!(image.executable_stack && image.static_tls);
        assert_eq!(image.runpath.as_deref(), Some("/nowhere"));
        assert_eq!(image.soname.as_deref(), Some("libx.so.3"));
    }

    #[test]
    fn notes_for_packagers_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let json = r#"[{"soname":["libamdhip64.so.7"],"priority":"required","feature":"hip"}]"#;
        let padded = (json.len() + 1).next_multiple_of(4);
        let source = format!(
            "struct {{ unsigned n, d, t; char name[4]; char desc[{padded}]; }} note \
             __attribute__((section(\".note.dlopen\"), aligned(4), used)) = {{ 4, {padded}, 0x407c0c0a, \"FDO\", {json:?} }};"
        );
        let image = read(&Library::new("x").source(&source).build(folder.path())).unwrap();
        assert_eq!(image.dlopen_notes.len(), 1, "{image:?}");
        assert_eq!(image.dlopen_notes[0].soname, ["libamdhip64.so.7"]);
        assert_eq!(image.dlopen_notes[0].priority.as_deref(), Some("required"));
    }

    #[test]
    fn the_running_test_program_is_readable_though_large() {
        let image = read(&std::env::current_exe().unwrap()).unwrap();
        assert!(image.manifest.is_none());
        assert!(image.glibc_needed().unwrap() >= (2, 17));
    }

    #[test]
    fn another_processor_is_told_from_damage() {
        let mut bytes = plugin_bytes().to_vec();
        bytes[18..20].copy_from_slice(&243_u16.to_le_bytes());
        let image = parse_bytes(&bytes, IDENTITY).unwrap();
        assert_eq!(image.target.arch(), "riscv64");
        assert!(!image.target.is_native());
        bytes[4] = 1;
        assert!(
            matches!(parse_bytes(&bytes, IDENTITY), Err(ImageError::Foreign(target)) if target.bits == 32)
        );
    }

    #[test]
    fn what_is_no_library_is_refused() {
        for bytes in [&b""[..], b"\x7fELF", b"#!/bin/sh\necho this is a script and not a library\n"] {
            assert!(matches!(parse_bytes(bytes, IDENTITY), Err(ImageError::NotElf)), "{bytes:?}");
        }
        assert!(matches!(read(Path::new("/dev/null")), Err(ImageError::NotAFile)));
        assert!(matches!(read(Path::new("/nonexistent")), Err(ImageError::Io(_))));
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path()).is_err());
    }

    #[test]
    fn a_manifest_that_is_too_large_is_refused_without_reading_it() {
        let folder = tempfile::tempdir().unwrap();
        let source = "char m[70000] __attribute__((section(\".tensorfold.manifest\"), used)) = {1};";
        let path = Library::new("x").source(source).build(folder.path());
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("65536") && error.contains("70000"), "{error}");
    }

    #[test]
    fn every_truncation_ends_in_an_answer() {
        let bytes = plugin_bytes();
        for length in (0..bytes.len().min(1024)).chain((0..bytes.len()).step_by(61)) {
            let _ = parse_bytes(&bytes[..length], IDENTITY);
        }
    }

    #[test]
    fn every_changed_header_byte_ends_in_an_answer() {
        let mut bytes = plugin_bytes().to_vec();
        let tables = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
        // The file header, the program headers and every section header.
        for index in (0..1024.min(bytes.len())).chain(tables..bytes.len()) {
            let kept = bytes[index];
            for value in [0, 0x7f, 0x80, 0xff, kept ^ 1] {
                bytes[index] = value;
                let _ = parse_bytes(&bytes, IDENTITY);
            }
            bytes[index] = kept;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn random_damage_ends_in_an_answer(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        ) {
            let mut bytes = plugin_bytes().to_vec();
            for (index, value) in damage {
                let at = index.index(bytes.len());
                bytes[at] = value;
            }
            let _ = parse_bytes(&bytes, IDENTITY);
        }
    }

    #[test]
    fn dotted_versions_are_numbers() {
        assert_eq!(parse_dotted("2.36"), Some((2, 36)));
        assert_eq!(parse_dotted("2.2.5"), Some((2, 2)));
        assert_eq!(parse_dotted("2"), Some((2, 0)));
        assert_eq!(parse_dotted("PRIVATE"), None);
        assert!(parse_dotted("2.9") < parse_dotted("2.10"));
    }
}
