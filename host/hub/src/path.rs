//! A file's path in a repository: a stranger's word that becomes a path on this disk.

use std::fmt;
use std::path::PathBuf;

/// A relative path that stays where it is put: plain names between slashes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoPath(String);

impl RepoPath {
    /// The path, if it is one that stays below the folder it is joined to.
    pub fn parse(text: &str) -> Option<RepoPath> {
        let sound = |part: &str| {
            (1..=255).contains(&part.len())
                && part != "."
                && part != ".."
                && !part.contains(['\\', '\0'])
                && !part.chars().any(char::is_control)
        };
        (text.len() <= 1024 && text.split('/').all(sound)).then(|| RepoPath(text.into()))
    }

    /// With slashes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The names, from the outermost folder to the file.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// The file's own name.
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// Whether it lies in a folder of the repository.
    pub fn is_nested(&self) -> bool {
        self.0.contains('/')
    }

    /// What a link at this path of a snapshot holds to reach a blob: up to the repository's folder, then down.
    pub(crate) fn link_to_blob(&self, blob: &str) -> PathBuf {
        // snapshots/COMMIT, and one more for every folder that the path itself has.
        let levels = 2 + self.parts().count() - 1;
        let mut target: PathBuf = std::iter::repeat_n("..", levels).collect();
        target.push("blobs");
        target.push(blob);
        target
    }
}

impl fmt::Display for RepoPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_their_folder_are_none() {
        for sound in ["config.json", "a/b/c.json", "..a", "a..", ".gitattributes", "ü b.txt"] {
            assert_eq!(RepoPath::parse(sound).unwrap().as_str(), sound);
        }
        let long = "a".repeat(256);
        let deep = "a/".repeat(512) + "a";
        for unsound in [
            "",
            "/",
            "/etc/passwd",
            "a/",
            "a//b",
            ".",
            "..",
            "../a",
            "a/../b",
            "a/./b",
            "a/..",
            "a\\b",
            "..\\a",
            "a\0",
            "a\nb",
            "\u{1b}[2J",
            &long,
            &deep,
        ] {
            assert_eq!(RepoPath::parse(unsound), None, "{unsound:?}");
        }
    }

    #[test]
    fn a_link_climbs_out_of_every_folder_it_is_in() {
        for (path, wanted) in
            [("a", "../../blobs/x"), ("a/b", "../../../blobs/x"), ("a/b/c", "../../../../blobs/x")]
        {
            assert_eq!(RepoPath::parse(path).unwrap().link_to_blob("x"), PathBuf::from(wanted));
        }
    }
}
