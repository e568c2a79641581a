//! The reference pages of the book, printed from the tables.
//!
//! `docs/src/reference/manifest.md` and `options.md` are the output of these
//! functions; a test compares them, and rewrites them when
//! `TENSORFOLD_WRITE_REFERENCE` is set.

use std::fmt::Write as _;

use super::flags::{AnsweredBy, FlagGroup, FlagSpec, Neutral, Support};
use super::keys::{KeyKind, TABLES, TableShape, TableSpec};
use super::names::Words;
use super::{Code, FLAGS};
use crate::manifest::{MANIFEST_BYTES_MAX, MANIFEST_FORMAT, allowed};

const WORD_LISTS: &[(Words, &str)] = &[
    (Words::Formats, "Weight formats"),
    (Words::KvDtypes, "Types of the key/value cache"),
    (Words::Drafters, "Drafter kinds"),
    (Words::Features, "Features"),
    (Words::Numerics, "Numerics"),
    (Words::DeviceKinds, "Device kinds"),
    (Words::DeviceVendors, "Device vendors"),
    (Words::CpuFeatures, "Processor features"),
    (Words::Requirable, "What `requires` may name"),
];

/// The page about manifests.
pub fn manifest_page() -> String {
    let mut page = format!(
        "# Manifest reference\n\nPrinted from the vocabulary of `tensorfold-plugin-api`; do not edit by hand. The \
         [vendor guide](../vendor/manifest.md) explains how to write a manifest.\n\nThis is format \
         {MANIFEST_FORMAT}: TOML in UTF-8, at most {MANIFEST_BYTES_MAX} bytes. Lists are sets unless an order is \
         named; a key or an item that stands twice is an error. A name that this page does not have is kept, never \
         matches, and is an error only for `tensorfold plugins check --strict`, unless it begins with \
         `x-<vendor>-`.\n"
    );
    for table in TABLES {
        table_section(&mut page, table);
    }
    page.push_str("\n## Words\n");
    for (words, title) in WORD_LISTS {
        let _ = write!(page, "\n### {title}\n\n| word | meaning |\n| --- | --- |\n");
        for word in words.words() {
            let _ = writeln!(page, "| `{}` | {} |", word.name, cell(word.meaning));
        }
        if *words == Words::Formats {
            page.push_str(
                "\nAn affine name may end in a group size: `mlx-q4g64` is one of `g32`, `g64`, `g128`. Without it \
                 every group is meant. Names of the form `gguf-<type>` are known as well.\n",
            );
        }
    }
    page.push_str(
        "\n## Codes\n\nWhat can end a plugin's way to serving, in the order of its states. Documents name the code \
         and the state.\n\n| code | state | status |\n| --- | --- | --- |\n",
    );
    for code in Code::ALL {
        let _ = writeln!(page, "| `{code}` | {} | {} |", code.state(), code.exit_code());
    }
    page
}

fn table_section(page: &mut String, table: &TableSpec) {
    let _ = write!(page, "\n## {}\n", table.heading);
    if !table.meaning.is_empty() {
        let required = if table.required { " Required." } else { "" };
        let _ = write!(page, "\n{}{required}\n", table.meaning);
    }
    match table.shape {
        TableShape::Free(kind) => {
            let _ = write!(page, "\nEach value is {}.\n", allowed(kind));
        }
        TableShape::Ignored => {}
        _ => {
            page.push_str("\n| key | holds | when absent | meaning |\n| --- | --- | --- | --- |\n");
            for key in table.keys {
                let absent = if key.required { "refused" } else { key.default };
                let holds = cell(&holds(key.kind));
                let _ = writeln!(page, "| `{}` | {holds} | {absent} | {} |", key.name, cell(key.meaning));
            }
        }
    }
}

/// What a key holds; long lists of words stand at the end of the page.
fn holds(kind: KeyKind) -> String {
    let list = |words: Words| WORD_LISTS.iter().find(|(listed, _)| *listed == words).map(|(_, title)| *title);
    match kind {
        KeyKind::Word(words) => match list(words) {
            Some(title) => format!("a word of \"{title}\""),
            None => allowed(kind),
        },
        KeyKind::WordSet(Words::ServeFlags) => "a list of flags, see [options](options.md)".to_owned(),
        KeyKind::WordSet(words) => match list(words) {
            Some(title) => format!("words of \"{title}\""),
            None => {
                let known: Vec<String> =
                    words.words().iter().map(|word| format!("`{}`", word.name)).collect();
                match known.is_empty() {
                    true => allowed(kind),
                    false => format!("words: {}", known.join(", ")),
                }
            }
        },
        other => allowed(other),
    }
}

/// The page about the flags of `serve`.
pub fn options_page() -> String {
    let mut page = "# Options of `serve`\n\nPrinted from the vocabulary of `tensorfold-plugin-api`; do not edit by \
                    hand.\n\nEvery flag is here, also those that are refused so far. A flag that nobody serves ends \
                    the command with status 2 and one line; its neutral value, the one that asks for nothing, is \
                    accepted with every backend.\n\nThe column *answered by* says who decides: the host, or a key of \
                    the [manifest](manifest.md) of the chosen backend.\n"
        .to_owned();
    for group in FlagGroup::ALL {
        let flags: Vec<&FlagSpec> = FLAGS.iter().filter(|flag| flag.group == *group).collect();
        if flags.is_empty() {
            continue;
        }
        let _ = write!(
            page,
            "\n## {}\n\n| flag | meaning | default | neutral | answered by | now |\n| --- | --- | --- | --- | --- | \
             --- |\n",
            group.heading()
        );
        for flag in flags {
            let _ = writeln!(page, "{}", flag_row(flag));
        }
    }
    page
}

fn flag_row(flag: &FlagSpec) -> String {
    let name = match flag.value_name {
        "" => format!("`{}`", flag.name),
        value => format!("`{} {}`", flag.name, cell(value)),
    };
    let repeats = if flag.repeats { "; may be repeated" } else { "" };
    let choices = match flag.choices() {
        [] => String::new(),
        choices => format!("; one of `{}`", choices.join("`, `")),
    };
    let neutral = match flag.neutral {
        Neutral::None => String::new(),
        Neutral::Itself => "the flag itself".to_owned(),
        Neutral::Values(values) => {
            let shown = values.iter().map(|value| match *value {
                "" => "an empty value".to_owned(),
                value => format!("`{value}`"),
            });
            shown.collect::<Vec<_>>().join(", ")
        }
    };
    let answered_by = match (flag.answered_by, flag.answered_by.manifest_key()) {
        (AnsweredBy::Host, _) | (_, None) => "host".to_owned(),
        (_, Some(key)) => format!("`{key}`"),
    };
    let now = match flag.support {
        Support::Acts => "served",
        Support::HandsOn => "handed on",
        Support::NothingToDo => "accepted",
        Support::NotYet => "refused",
    };
    format!(
        "| {name} | {}{choices}{repeats} | {} | {neutral} | {answered_by} | {now} |",
        cell(flag.help),
        cell(flag.default)
    )
}

/// Text that does not end a cell of a table, and is not taken for a tag.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(name: &str, wanted: &str) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/src/reference").join(name);
        if std::env::var_os("TENSORFOLD_WRITE_REFERENCE").is_some() {
            std::fs::write(&path, wanted).expect("the page can be written");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == wanted,
            "{name} is not what the vocabulary prints; rewrite it with\n  TENSORFOLD_WRITE_REFERENCE=1 cargo test -p \
             tensorfold-plugin-api reference"
        );
    }

    #[test]
    fn the_manifest_page_is_what_the_vocabulary_prints() {
        compare("manifest.md", &manifest_page());
    }

    #[test]
    fn the_options_page_is_what_the_vocabulary_prints() {
        compare("options.md", &options_page());
    }

    #[test]
    fn every_flag_and_every_key_is_on_its_page() {
        let (manifest, options) = (manifest_page(), options_page());
        for flag in FLAGS {
            assert!(
                options.contains(&format!("| `{}`", flag.name))
                    || options.contains(&format!("| `{} ", flag.name)),
                "{}",
                flag.name
            );
        }
        for table in TABLES {
            assert!(manifest.contains(&format!("\n## {}\n", table.heading)), "{}", table.name);
            for key in table.keys {
                assert!(manifest.contains(&format!("| `{}` |", key.name)), "{}", key.name);
            }
        }
    }

    #[test]
    fn rows_have_as_many_cells_as_their_heading() {
        for page in [manifest_page(), options_page()] {
            let mut cells = 0;
            for line in page.lines() {
                match line.starts_with('|') {
                    false => cells = 0,
                    true => {
                        let here = line.replace("\\|", "").matches('|').count();
                        assert!(cells == 0 || cells == here, "{line}");
                        cells = here;
                    }
                }
            }
        }
    }
}
