//! The licence that a model's card names: `README.md` begins with a block of
//! `key: value` lines between two lines `---`.

use std::io::Read as _;

use super::folder::Folder;

/// The block stands first; what lies behind this many bytes is not looked at.
const READ: u64 = 64 << 10;

/// The longest name that is believed.
const LONGEST: usize = 100;

/// The licence that the card in a folder names; `None` where no card can be
/// read or it names none. Nothing depends on it: it is shown, not judged.
pub fn licence(folder: &Folder) -> Option<String> {
    let (file, _) = folder.open_file("README.md").ok()??;
    let mut bytes = Vec::new();
    file.take(READ).read_to_end(&mut bytes).ok()?;
    of_card(&String::from_utf8_lossy(&bytes))
}

/// The licence that a card's text names. `license_name` counts where `license`
/// is `other`, for which it was made.
fn of_card(text: &str) -> Option<String> {
    let mut lines = text.lines();
    lines.next().filter(|line| line.trim_end() == "---")?;
    let block: Vec<&str> = lines.take_while(|line| line.trim_end() != "---").collect();
    let value = |key: &str| {
        let given = block.iter().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        let given = given.split(" #").next().unwrap_or_default().trim();
        let given = given.trim_matches(['"', '\'']);
        let plain = given.chars().all(|letter| letter.is_ascii_graphic() || letter == ' ');
        (plain && !given.is_empty() && given.len() <= LONGEST).then(|| given.to_owned())
    };
    match value("license").as_deref() {
        Some("other") => value("license_name").or(Some("other".into())),
        found => found.map(str::to_owned),
    }
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
