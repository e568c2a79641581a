//! What a model's card says: `README.md` begins with a block of `key: value`
//! lines between two lines `---`. Nothing of it is judged.

use std::io::Read as _;

use super::folder::Folder;

/// The block stands first; what lies behind this many bytes is not looked at.
const READ: u64 = 64 << 10;

/// The longest name that is believed.
const LONGEST: usize = 100;

/// The most names of a list that are looked at.
const MOST: usize = 16;

/// The licence that the card in a folder names; `None` where no card can be
/// read or it names none.
pub fn licence(folder: &Folder) -> Option<String> {
    of_card(&read(folder)?)
}

/// The models that the card in a folder says this one was made from or for.
pub fn base_models(folder: &Folder) -> Vec<String> {
    read(folder).map_or_else(Vec::new, |text| bases_of_card(&text))
}

fn read(folder: &Folder) -> Option<String> {
    let (file, _) = folder.open_file("README.md").ok()??;
    let mut bytes = Vec::new();
    file.take(READ).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The lines of a card's block.
fn block(text: &str) -> Vec<&str> {
    let mut lines = text.lines();
    match lines.next() {
        Some(first) if first.trim_end() == "---" => {
            lines.take_while(|line| line.trim_end() != "---").collect()
        }
        _ => Vec::new(),
    }
}

/// A value without quotes and comment. A name that could paint or fill a terminal is none.
fn plain(given: &str) -> Option<String> {
    let given = given.split(" #").next().unwrap_or_default().trim();
    let given = given.trim_matches(['"', '\'']);
    let plain = given.chars().all(|letter| letter.is_ascii_graphic() || letter == ' ');
    (plain && !given.is_empty() && given.len() <= LONGEST).then(|| given.to_owned())
}

fn value<'a>(block: &[&'a str], key: &str) -> Option<&'a str> {
    block.iter().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
}

/// The licence that a card's text names. `license_name` counts where `license`
/// is `other`, for which it was made.
fn of_card(text: &str) -> Option<String> {
    let block = block(text);
    let value = |key: &str| plain(value(&block, key)?);
    match value("license").as_deref() {
        Some("other") => value("license_name").or(Some("other".into())),
        found => found.map(str::to_owned),
    }
}

/// One name behind the key, or a list below it.
fn bases_of_card(text: &str) -> Vec<String> {
    const KEY: &str = "base_model:";
    let block = block(text);
    let Some(place) = block.iter().position(|line| line.starts_with(KEY)) else { return Vec::new() };
    if let Some(single) = plain(&block[place][KEY.len()..]) {
        return vec![single];
    }
    let items = block[place + 1..].iter().map_while(|line| line.trim_start().strip_prefix("- "));
    items.take(MOST).filter_map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_matter_names_the_licence() {
        let card = |block: &str| of_card(&format!("---\n{block}\n---\nlicense: not-this\n"));
        assert_eq!(card("language: en\nlicense: apache-2.0").as_deref(), Some("apache-2.0"));
        assert_eq!(card("license: \"mit\" # sic").as_deref(), Some("mit"));
        assert_eq!(card("license: other\nlicense_name: qwen").as_deref(), Some("qwen"));
        assert_eq!(card("license: other").as_deref(), Some("other"));
        assert_eq!(card("license_link: x"), None);
        assert_eq!(card("license:\n- mit"), None);
        assert_eq!(of_card("license: mit\n"), None);
        assert_eq!(of_card("# Title\n---\nlicense: mit\n---\n"), None);
    }

    #[test]
    fn one_base_or_several_are_named() {
        let card = |block: &str| bases_of_card(&format!("---\n{block}\n---\nbase_model: not/this\n"));
        assert_eq!(card("license: mit\nbase_model: Qwen/Qwen3.8-27B # sic"), ["Qwen/Qwen3.8-27B"]);
        assert_eq!(card("base_model:\n- a/b\n  - 'c/d'\ntags:\n- e"), ["a/b", "c/d"]);
        assert_eq!(card("base_model:\n- a/\u{1b}[31m\n- c/d"), ["c/d"]);
        assert_eq!(card(&format!("base_model:\n{}", "- a/b\n".repeat(99))).len(), MOST);
        for none in ["license: mit", "base_model:", "base_model_relation: quantized"] {
            assert!(card(none).is_empty(), "{none}");
        }
    }

    #[test]
    fn a_name_that_could_paint_or_fill_a_terminal_is_none() {
        assert_eq!(of_card("---\nlicense: \u{1b}[31mred\n---\n"), None);
        assert_eq!(of_card(&format!("---\nlicense: {}\n---\n", "x".repeat(LONGEST + 1))), None);
    }

    #[test]
    fn a_large_card_is_read_at_its_beginning() {
        let root = tempfile::tempdir().unwrap();
        let card = format!("---\nlicense: mit\n---\n{}", "x".repeat(1 << 20));
        std::fs::write(root.path().join("README.md"), card).unwrap();
        assert_eq!(licence(&Folder::open(root.path()).unwrap()).as_deref(), Some("mit"));
        std::fs::remove_file(root.path().join("README.md")).unwrap();
        assert_eq!(licence(&Folder::open(root.path()).unwrap()), None);
    }
}
