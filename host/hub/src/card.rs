//! The model card, `README.md`: only what its front matter says of the licence.

/// The licence that a model card names, as it is written there.
///
/// The front matter is YAML between two lines of `---`; what is wanted of it is a plain value or a list of plain
/// values, so no parser is needed, and no surprise of one is met.
pub fn licence(card: &str) -> Option<String> {
    let mut lines = card.trim_start_matches('\u{feff}').lines().map(str::trim_end);
    if lines.next() != Some("---") {
        return None;
    }
    let front: Vec<&str> = lines.take_while(|line| *line != "---").take(10_000).collect();
    let value = |key: &str| -> Option<String> {
        let at =
            front.iter().position(|line| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':')))?;
        let inline = plain(&front[at][key.len() + 1..]);
        if !inline.is_empty() {
            return Some(inline);
        }
        let items = front[at + 1..].iter().map_while(|line| line.trim_start().strip_prefix("- "));
        let items: Vec<String> = items.map(plain).filter(|item| !item.is_empty()).collect();
        (!items.is_empty()).then(|| items.join(", "))
    };
    let licence = value("license")?;
    let of_its_own = licence == "other";
    Some(match (of_its_own, value("license_name"), value("license_link")) {
        (true, Some(name), Some(link)) => format!("{name} ({link})"),
        (true, Some(name), None) => name,
        (_, _, Some(link)) => format!("{licence} ({link})"),
        _ => licence,
    })
}

/// A value without quotes and brackets, safe to print.
fn plain(text: &str) -> String {
    let text = text.trim().trim_matches(['"', '\'', '[', ']']);
    crate::error::brief(text.trim())
}

#[cfg(test)]
mod tests {
    use super::licence;

    #[test]
    fn the_licence_stands_in_the_front_matter() {
        for (card, wanted) in [
            ("---\nlicense: apache-2.0\n---\n# M", Some("apache-2.0")),
            ("---\r\nlanguage: en\r\nlicense: \"mit\"\r\n---\r\n", Some("mit")),
            ("---\nlicense:\n- mit\n- apache-2.0\ntags:\n- x\n---", Some("mit, apache-2.0")),
            ("---\nlicense: other\nlicense_name: own\nlicense_link: LICENSE\n---", Some("own (LICENSE)")),
            ("---\nlicense: llama3\nlicense_link: https://x\n---", Some("llama3 (https://x)")),
            ("---\nlicense: a\u{1b}[2J\n---", Some("a [2J")),
            ("---\nlicense_name: own\n---", None),
            ("---\ntags: x\n---\nlicense: mit", None),
            ("license: mit", None),
            ("", None),
        ] {
            assert_eq!(licence(card).as_deref(), wanted, "{card:?}");
        }
    }
}
