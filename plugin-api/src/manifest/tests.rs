use super::*;
use crate::vocabulary::{Code, DrafterKind};

/// The sample of a GPU plugin, with everything in it.
const SAMPLE: &str = r#"
manifest = 1
requires = []

[plugin]
id = "backend-hip"
variant = "gfx1151"
version = "0.4.2"
engine_name = "HIP"
platform_name = "ROCm"
backend = "hip"
aliases = ["rocm"]
library = "libtensorfold_backend_hip_gfx1151.so"
vendor = "Example"
license = "Apache-2.0"
report = "https://example.org/issues"
panics = "unwind"

[abi]
major = 1
minor = 2
min_host_minor = 0
host = ">=0.3, <0.5"
interfaces = ["tensorfold.backend/1", "tensorfold.engine/1", "tensorfold.mtp/1"]
host_interfaces = ["tensorfold.host/1"]

[target]
os = "linux"
arch = "x86_64"
libc = "gnu"
libc_min = "2.35"
cpu = ["avx2", "fma"]

[[device]]
kind = "gpu"
vendor = "amd"
archs = ["gfx1151"]
memory = ["unified", "dedicated"]

[[runtime]]
name = "hip"
soname = ["libamdhip64.so.7", "libamdhip64.so.6"]
how = "dlopen"
need = "required"
[[runtime]]
name = "rocblas"
soname = ["librocblas.so.5"]
need = "recommended"

[driver]
amdgpu = "6.10"

[caps]
worlds = [1, 2, 4, 8]
formats = ["mlx-q4", "mlx-q8"]
kv_dtypes = ["bf16"]
features = ["prompt-cache", "cancel-in-prefill"]
serve_flags = ["--policy"]
limits = { lanes = 64, context = 262144, verify_rows = 16 }

[drafters.mtp]
revision = { min = 1, max = 1 }
depth_max = 3
worlds = [1, 2, 4, 8]
weights = ["in-checkpoint"]
batched = true

[unsupported]
dflash2 = "not qualified on hardware yet"

[[family]]
model_type = "qwen3_5"
drafters = ["mtp"]
formats = ["mlx-q4g64"]

[[family]]
model_type = "qwen3"

[options.threads]
type = "integer"
default = 0
least = 0
most = 1024
help = "threads; 0 is one for each core"

[distro]
package = 3
"#;

/// The smallest manifest.
const LEAST: &str = r#"
manifest = 1
[plugin]
id = "backend-x"
version = "1.0.0"
engine_name = "X"
backend = "x1"
library = "libx.so"
[abi]
major = 0
minor = 1
interfaces = ["tensorfold.backend/1"]
[target]
os = "linux"
arch = "x86_64"
"#;

fn parse(text: &str) -> Parsed {
    Manifest::parse(text.as_bytes(), "test.toml").unwrap_or_else(|errors| {
        panic!("{:#?}", errors.iter().map(ToString::to_string).collect::<Vec<_>>());
    })
}

fn errors(text: &str) -> Vec<String> {
    let errors = Manifest::parse(text.as_bytes(), "test.toml").expect_err("a refusal");
    errors.iter().map(ToString::to_string).collect()
}

fn code(text: &str) -> Code {
    Manifest::parse(text.as_bytes(), "test.toml").expect_err("a refusal").first().code
}

/// `text` with one piece replaced, which must stand in it once.
fn with(text: &str, old: &str, new: &str) -> String {
    assert_eq!(text.matches(old).count(), 1, "{old}");
    text.replace(old, new)
}

#[test]
fn everything_in_a_manifest_is_read() {
    let parsed = parse(SAMPLE);
    assert_eq!(parsed.notes, []);
    let manifest = parsed.manifest;
    assert_eq!(manifest.plugin.version, Version::new(0, 4, 2));
    assert_eq!(manifest.plugin.platform_name(), "ROCm");
    assert_eq!((manifest.abi.major, manifest.abi.minor, manifest.abi.min_host_minor), (1, 2, 0));
    assert_eq!(manifest.target.libc_min, DottedNumber::parse("2.35"));
    assert_eq!(manifest.devices[0].archs, BTreeSet::from(["gfx1151".to_owned()]));
    assert_eq!(manifest.runtimes[0].soname, ["libamdhip64.so.7", "libamdhip64.so.6"]);
    assert_eq!(manifest.runtimes[1].need, RuntimeNeed::Recommended);
    assert_eq!(manifest.drivers["amdgpu"].to_string(), "6.10");
    assert_eq!(manifest.capabilities.limits.context, Some(262_144));
    let mtp = manifest.mtp().expect("an own head");
    assert_eq!((mtp.depth_max, mtp.batched, mtp.confidence), (3, true, true));
    assert_eq!(manifest.unsupported["dflash2"], "not qualified on hardware yet");
    assert_eq!(manifest.options["threads"].default, Some(OptionValue::Integer(0)));
}

#[test]
fn what_is_left_out_has_its_documented_meaning() {
    let manifest = parse(LEAST).manifest;
    assert_eq!(manifest.abi.min_host_minor, 1);
    assert_eq!(manifest.abi.host, None);
    assert_eq!(manifest.target.libc, "none");
    assert_eq!(manifest.capabilities.worlds, BTreeSet::from([1]));
    assert_eq!(manifest.capabilities.limits, Limits::default());
    assert_eq!(manifest.plugin.panics, Panics::Unwind);
    assert_eq!(manifest.plugin.platform_name(), "X");
    assert!(manifest.drafters.is_empty() && manifest.families.is_empty() && manifest.options.is_empty());
}

#[test]
fn every_required_key_is_missed_by_name_and_line() {
    for (line, key, path) in [
        ("manifest = 1\n", "manifest", "test.toml: manifest"),
        ("id = \"backend-x\"\n", "plugin.id", "test.toml:3: plugin.id"),
        ("version = \"1.0.0\"\n", "plugin.version", "test.toml:3: plugin.version"),
        ("engine_name = \"X\"\n", "plugin.engine_name", "test.toml:3: plugin.engine_name"),
        ("backend = \"x1\"\n", "plugin.backend", "test.toml:3: plugin.backend"),
        ("library = \"libx.so\"\n", "plugin.library", "test.toml:3: plugin.library"),
        ("major = 0\n", "abi.major", "test.toml:9: abi.major"),
        ("os = \"linux\"\n", "target.os", "test.toml:13: target.os"),
    ] {
        let found = errors(&with(LEAST, line, ""));
        assert_eq!(found.len(), 1, "{key}: {found:?}");
        assert!(found[0].starts_with(&format!("{path}: found nothing; allowed: ")), "{found:?}");
    }
    assert_eq!(errors("manifest = 1\n").len(), 3, "three tables are missing");
}

#[test]
fn a_wrong_value_is_named_with_line_key_found_and_allowed() {
    let cases: &[(&str, &str, &str)] = &[
        (
            "id = \"backend-x\"",
            "id = \"Backend\"",
            "test.toml:4: plugin.id: found \"Backend\"; allowed: a name of the form [a-z][a-z0-9-]{1,31}",
        ),
        (
            "version = \"1.0.0\"",
            "version = \"1.0\"",
            "test.toml:5: plugin.version: found \"1.0\"; allowed: a semantic version such as \"1.2.3\"",
        ),
        (
            "engine_name = \"X\"",
            "engine_name = \"X\\u001b[31m\"",
            "test.toml:6: plugin.engine_name: found \"X\\u{1b}[31m\"; allowed: one line of text, 1 to 32 bytes",
        ),
        (
            "backend = \"x1\"",
            "backend = \"auto\"",
            "test.toml:7: plugin.backend: found \"auto\"; allowed: another name: this one lets the host choose",
        ),
        (
            "library = \"libx.so\"",
            "library = \"../libx.so\"",
            "test.toml:8: plugin.library: found \"../libx.so\"; allowed: a file name without folder",
        ),
        (
            "major = 0",
            "major = 65536",
            "test.toml:10: abi.major: found 65536; allowed: a whole number from 0 to 65535",
        ),
        (
            "major = 0",
            "major = -1",
            "test.toml:10: abi.major: found -1; allowed: a whole number from 0 to 65535",
        ),
        (
            "minor = 1",
            "minor = 1\nmin_host_minor = 2",
            "test.toml:12: abi.min_host_minor: found 2; allowed: at most the `minor` it was built against, 1",
        ),
        (
            "interfaces = [\"tensorfold.backend/1\"]",
            "interfaces = [\"tensorfold.backend\"]",
            "test.toml:12: abi.interfaces: found \"tensorfold.backend\"; allowed: interface ids such as \
             \"tensorfold.engine/1\"",
        ),
        (
            "interfaces = [\"tensorfold.backend/1\"]",
            "interfaces = [\"a/1\",\n\"a/1\"]",
            "test.toml:13: abi.interfaces: found \"a/1\" twice; allowed: each item once",
        ),
        (
            "arch = \"x86_64\"",
            "arch = 64",
            "test.toml:15: target.arch: found 64; allowed: \"x86_64\" or \"aarch64\" or another word of at most 64 \
             bytes",
        ),
    ];
    for (old, new, wanted) in cases {
        assert_eq!(errors(&with(LEAST, old, new)), [*wanted]);
    }
}

#[test]
fn what_contradicts_itself_is_refused() {
    for (old, new, wanted) in [
        ("worlds = [1, 2, 4, 8]\nformats", "worlds = [2, 4]\nformats", "caps.worlds"),
        ("revision = { min = 1, max = 1 }", "revision = { min = 2, max = 1 }", "drafters.mtp.revision"),
        ("dflash2 = \"not", "mtp = \"not", "unsupported.mtp"),
        ("drafters = [\"mtp\"]", "drafters = [\"mtp\", \"dflash2\"]", "family[1].drafters"),
        ("model_type = \"qwen3\"\n", "model_type = \"qwen3_5\"\n", "family[2].model_type"),
        ("aliases = [\"rocm\"]", "aliases = [\"hip\"]", "plugin.aliases"),
        ("default = 0", "default = 2000", "options.threads.default"),
        ("default = 0", "default = \"0\"", "options.threads.default"),
        ("most = 1024", "most = -1", "options.threads.most"),
        ("type = \"integer\"", "type = \"string\"", "options.threads.least"),
        ("soname = [\"librocblas.so.5\"]", "soname = []", "runtime[2].soname"),
        ("depth_max = 3", "depth_max = 0", "drafters.mtp.depth_max"),
        ("amdgpu = \"6.10\"", "amdgpu = \"6.x\"", "driver.amdgpu"),
    ] {
        let found = Manifest::parse(with(SAMPLE, old, new).as_bytes(), "f").expect_err(new);
        let error =
            found.iter().find(|error| error.key == wanted).unwrap_or_else(|| panic!("{new}: {found}"));
        assert_eq!(error.code, Code::ManifestField);
        assert!(error.line.is_some(), "{error}");
    }
}

#[test]
fn all_errors_are_reported_in_the_order_of_the_lines() {
    let text =
        with(&with(SAMPLE, "depth_max = 3", "depth_max = \"3\""), "libc_min = \"2.35\"", "libc_min = 2.35");
    let found = errors(&text);
    assert_eq!(found.len(), 2);
    assert!(found[0].contains("target.libc_min: found the number 2.35"), "{found:?}");
    assert!(found[1].contains("drafters.mtp.depth_max: found \"3\""), "{found:?}");
}

#[test]
fn a_key_that_stands_twice_is_an_error_with_its_line() {
    let text = with(LEAST, "major = 0", "major = 0\nmajor = 0");
    assert_eq!(code(&text), Code::ManifestSyntax);
    assert_eq!(errors(&text), ["test.toml:11: found duplicate key; allowed: TOML without repeated keys"]);
}

#[test]
fn text_that_is_not_toml_is_an_error_with_its_line() {
    let errors = Manifest::parse(b"manifest = 1\n[plugin\n", "test.toml").unwrap_err();
    assert_eq!(errors.first().code, Code::ManifestSyntax);
    assert_eq!(errors.first().line, Some(2));
}

#[test]
fn bytes_that_are_not_text_and_files_that_are_too_large_are_refused() {
    let errors = Manifest::parse(b"manifest = 1\n#\xff", "f").unwrap_err();
    assert_eq!(errors.to_string(), "f: found a byte at offset 14 that is not UTF-8; allowed: UTF-8 text");
    let mut large = LEAST.as_bytes().to_vec();
    large.resize(MANIFEST_BYTES_MAX, b'\n');
    assert!(Manifest::parse(&large, "f").is_ok());
    large.push(b'\n');
    let errors = Manifest::parse(&large, "f").unwrap_err();
    assert_eq!(errors.to_string(), "f: found 65537 bytes; allowed: a manifest of at most 65536 bytes");
    assert_eq!(errors.first().code, Code::ManifestSyntax);
}

#[test]
fn deep_nesting_is_refused_and_does_not_end_the_process() {
    let deep = format!("a = {}{}", "[".repeat(30_000), "]".repeat(30_000));
    assert_eq!(code(&deep), Code::ManifestSyntax);
}

#[test]
fn a_later_format_is_its_own_error_whatever_else_is_in_the_file() {
    let text = with(&with(LEAST, "manifest = 1", "manifest = 2"), "major = 0", "major = \"new\"");
    assert_eq!(code(&text), Code::ManifestTooNew);
    assert_eq!(
        errors(&text),
        ["test.toml:2: manifest: found format 2; allowed: up to format 1; a later tensorfold reads it"]
    );
}

#[test]
fn an_unknown_requirement_is_its_own_error() {
    let text = with(LEAST, "manifest = 1", "manifest = 1\nrequires = [\"options\", \"teleport\"]");
    assert_eq!(code(&text), Code::RequiresUnknown);
    let known = with(LEAST, "manifest = 1", "manifest = 1\nrequires = [\"options\", \"numerics\"]");
    assert!(parse(&known).manifest.requires.contains("options"));
}

#[test]
fn unknown_names_are_noted_and_only_the_strict_reading_refuses_them() {
    let text = with(SAMPLE, "engine_name = \"HIP\"", "engine_name = \"HIP\"\nalias = 3");
    let text = with(&text, "\"mlx-q4\", \"mlx-q8\"", "\"mlx-q4\", \"mlx-q8\", \"mlx-q9\", \"x-acme-q5\"");
    let text = with(&text, "\"--policy\"", "\"--policy\", \"--mtp-drafts\"") + "\n[drafter.mtp]\na = 1\n";
    let text = text + "[drafters.medusa]\nanything = true\n[drafters.x-acme-lookahead]\n";
    let parsed = parse(&text);
    let notes: Vec<String> = parsed.notes.iter().map(ToString::to_string).collect();
    assert_eq!(notes.len(), 7, "{notes:#?}");
    assert!(
        notes[0]
            .ends_with("`alias`: a key unknown to this host, ignored; the nearest known name is `aliases`")
    );
    assert!(parsed.manifest.capabilities.formats.contains("mlx-q9"), "kept");
    assert_eq!(parsed.manifest.drafters["medusa"], Drafter::Unknown);

    let strict = parsed.strict().expect_err("unknown names");
    let strict: Vec<String> = strict.iter().map(ToString::to_string).collect();
    assert_eq!(strict.len(), 5, "{strict:#?}");
    let wanted = "found the unknown key `alias`; allowed: known names, of which `aliases` is nearest, or x-<vendor>-...";
    assert!(strict[0].ends_with(wanted), "{strict:#?}");
    assert!(
        strict
            .iter()
            .any(|line| line.contains("`--mtp-drafts`; allowed: flags that no other key answers for"))
    );
    assert!(
        strict
            .iter()
            .any(|line| line
                .contains("the unknown table `drafter`; allowed: known names, of which `drafters`"))
    );
    assert!(!strict.iter().any(|line| line.contains("acme")));
}

#[test]
fn a_manifest_without_unknown_names_passes_the_strict_reading() {
    assert_eq!(parse(SAMPLE).strict(), Ok(()));
    assert_eq!(parse(LEAST).strict(), Ok(()));
}

#[test]
fn copies_differ_only_where_their_meaning_differs() {
    let first = parse(SAMPLE).manifest;
    let rewritten = SAMPLE
        .replace("worlds = [1, 2, 4, 8]\nformats", "worlds = [8, 0x4, 2, 1] # the same\nformats")
        .replace("libtensorfold_backend_hip_gfx1151.so", "libother.so\"\nsha256 = \"aa".to_owned().as_str())
        .replace("sha256 = \"aa\"", &format!("sha256 = \"{}\"", "ab".repeat(32)))
        .replace("need = \"required\"\n", "")
        .replace("package = 3", "package = \"other\"")
        .replace("libc_min = \"2.35\"", "libc_min = \"2.35.0\"")
        + "\n[unheard-of]\nkey = 1\n";
    let second = parse(&rewritten).manifest;
    assert_ne!(first.plugin.library, second.plugin.library);
    assert_eq!(first.first_difference(&second), None);
    assert!(first.means_the_same_as(&second));
}

#[test]
fn the_first_differing_key_is_named_with_both_values() {
    let first = parse(SAMPLE).manifest;
    for (old, new, wanted) in [
        ("depth_max = 3", "depth_max = 4", "drafters.mtp.depth_max: 3 here, 4 there"),
        ("variant = \"gfx1151\"\n", "", "plugin.variant: \"gfx1151\" here, nothing there"),
        (
            "soname = [\"libamdhip64.so.7\", \"libamdhip64.so.6\"]",
            "soname = [\"libamdhip64.so.6\", \"libamdhip64.so.7\"]",
            "runtime[1].soname: [\"libamdhip64.so.7\",\"libamdhip64.so.6\"] here, \
             [\"libamdhip64.so.6\",\"libamdhip64.so.7\"] there",
        ),
        ("[drafters.mtp]", "[drafters.copy]\n[drafters.mtp]", "drafters.copy: nothing here, a table there"),
        ("most = 1024", "most = 8", "options.threads.most: 1024 here, 8 there"),
        ("[[family]]\nmodel_type = \"qwen3\"\n", "", "family[2]: a table here, nothing there"),
    ] {
        let second = parse(&with(SAMPLE, old, new)).manifest;
        let difference = first.first_difference(&second).expect(new);
        assert_eq!(difference.to_string(), wanted);
        let back = second.first_difference(&first).expect(new);
        assert_eq!((back.key, back.left, back.right), (difference.key, difference.right, difference.left));
    }
}

#[test]
fn a_family_replaces_what_it_names_and_takes_the_rest_as_it_is() {
    let manifest = parse(SAMPLE).manifest;
    assert!(manifest.reads_format("qwen3_5", "mlx-q4g64"));
    assert!(!manifest.reads_format("qwen3_5", "mlx-q8g64"), "replaced, not merged");
    assert!(manifest.reads_format("qwen3", "mlx-q8g64"));
    assert!(manifest.reads_format("qwen3", "mlx-q4g32"), "any group");
    assert!(!manifest.reads_format("llama", "mlx-q4g64"), "not listed");
    assert!(manifest.drafts_for("qwen3", DrafterKind::Mtp), "every listed kind");
    assert!(!manifest.drafts_for("llama", DrafterKind::Mtp));
    assert_eq!(manifest.drafters_for("qwen3_5"), [DrafterKind::Mtp]);
    assert_eq!(manifest.limits_for("qwen3_5").and_then(|limits| limits.lanes), Some(64));
    assert_eq!(manifest.limits_for("llama"), None);
    assert_eq!(manifest.external_kinds().count(), 0);
}

#[test]
fn an_empty_list_of_a_family_means_nothing_and_not_the_default() {
    let manifest = parse(&with(SAMPLE, "drafters = [\"mtp\"]", "drafters = []")).manifest;
    assert_eq!(manifest.drafters_for("qwen3_5"), []);
    assert_eq!(manifest.drafters_for("qwen3"), [DrafterKind::Mtp]);
}

#[test]
fn a_plugin_answers_to_its_names_and_to_no_other() {
    let plugin = parse(SAMPLE).manifest.plugin;
    for name in ["hip", "rocm", "backend-hip", "backend-hip/gfx1151"] {
        assert!(plugin.answers_to(name), "{name}");
    }
    for name in ["HIP", "auto", "backend-hip/", "backend-hip/gfx1100", "hip/gfx1151", ""] {
        assert!(!plugin.answers_to(name), "{name}");
    }
    assert_eq!(plugin.spoken_name(), "rocm");
}

#[test]
fn dotted_numbers_are_compared_by_number() {
    let number = |text: &str| DottedNumber::parse(text).expect(text);
    assert!(number("2.9") < number("2.35"));
    assert_eq!(number("6.10"), number("6.10.0"));
    assert!(number("550.54.14") > number("550.54"));
    for wrong in ["", ".", "2.", "2.x", "+2", "-1", "99999999999", "1.1.1.1.1.1.1.1.1"] {
        assert!(DottedNumber::parse(wrong).is_none(), "{wrong}");
    }
}

#[test]
fn numbers_may_be_written_as_toml_allows() {
    let text = with(SAMPLE, "context = 262144", "context = 262_144");
    assert_eq!(parse(&text).manifest.capabilities.limits.context, Some(262_144));
}

proptest::proptest! {
    #[test]
    fn random_bytes_are_read_or_refused(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        let _ = Manifest::parse(&bytes, "f");
    }

    #[test]
    fn a_damaged_sample_is_read_or_refused_by_name(
        edits in proptest::collection::vec((0..SAMPLE.len(), proptest::prelude::any::<u8>()), 1..4),
        end in 0..=SAMPLE.len(),
    ) {
        let mut bytes = SAMPLE.as_bytes().to_vec();
        for (place, byte) in edits {
            bytes[place] = byte;
        }
        for bytes in [&bytes[..], &bytes[..end]] {
            if let Err(errors) = Manifest::parse(bytes, "f") {
                proptest::prop_assert!(errors.iter().all(|error| !error.found.is_empty() && !error.allowed.is_empty()));
                proptest::prop_assert!(!errors.to_string().contains(|letter: char| letter.is_control()));
            }
        }
    }
}

#[test]
fn a_sample_with_any_line_dropped_is_read_or_refused_by_name() {
    let lines: Vec<&str> = SAMPLE.lines().collect();
    for dropped in 0..lines.len() {
        let text: Vec<&str> =
            lines.iter().enumerate().filter(|(index, _)| *index != dropped).map(|(_, line)| *line).collect();
        if let Err(errors) = Manifest::parse(text.join("\n").as_bytes(), "f") {
            for error in errors.iter() {
                assert!(!error.found.is_empty() && !error.allowed.is_empty(), "{error}");
                assert!(!error.key.is_empty() || error.code == Code::ManifestSyntax, "{error}");
            }
        }
    }
}

#[test]
fn a_drafter_needs_the_interface_that_drives_it() {
    const EXTERNAL: &str = "revision = { min = 1, max = 1 }\nblock_max = 8\n";
    for (text, table) in [
        (with(SAMPLE, ", \"tensorfold.mtp/1\"", ""), "drafters.mtp"),
        (
            with(SAMPLE, "[drafters.mtp]", &format!("[drafters.dflash]\n{EXTERNAL}[drafters.mtp]")),
            "drafters.dflash",
        ),
    ] {
        let refused = Manifest::parse(text.as_bytes(), "m.toml").unwrap_err().to_string();
        let wanted = format!("{table}: found no interface that drives it");
        assert!(refused.contains(&wanted), "{refused}");
        assert!(refused.contains("among abi.interfaces"), "{refused}");
    }
    // What no interface drives yet needs none.
    let eagle = format!("[drafters.eagle3]\n{EXTERNAL}[drafters.mtp]");
    parse(&with(SAMPLE, "[drafters.mtp]", &eagle));
}
