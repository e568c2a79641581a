//! `OWNER/NAME[@REVISION]`: names that come from a user and become parts of paths and addresses.

use std::fmt;
use std::str::FromStr;

/// A text that names no repository or no revision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The repository.
    #[error(
        "'{text}' is not a Hugging Face repo id: owner/name, each of 1 to 96 letters, digits, '-', '_' or '.', \
         without '--' or '..'"
    )]
    Repository {
        /// What was given.
        text: String,
    },
    /// The revision.
    #[error(
        "'{text}' is not a revision: a branch, a tag or a commit, of letters, digits, '-', '_', '.' and '/', \
         without empty parts or '..'"
    )]
    Revision {
        /// What was given.
        text: String,
    },
}

/// `owner/name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RepoId {
    owner: String,
    name: String,
}

impl RepoId {
    /// The account or organisation.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The name, which is also the model's.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder's name in the cache. No two ids share one, since neither part can hold `--`.
    pub(crate) fn folder_name(&self) -> String {
        format!("models--{}--{}", self.owner, self.name)
    }
}

impl FromStr for RepoId {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<RepoId, Malformed> {
        let sound = |part: &str| {
            (1..=96).contains(&part.len())
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
                && part.bytes().any(|b| b != b'.')
                && !part.contains("--")
                && !part.contains("..")
        };
        match text.split_once('/') {
            Some((owner, name)) if sound(owner) && sound(name) => {
                Ok(RepoId { owner: owner.into(), name: name.into() })
            }
            _ => Err(Malformed::Repository { text: text.into() }),
        }
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.owner, self.name)
    }
}

/// A branch (`main`, `refs/pr/1`), a tag or a commit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Revision(String);

impl Revision {
    /// The branch that is meant where none is named.
    pub fn main() -> Revision {
        Revision("main".into())
    }

    /// As it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The commit, where it is spelt as one.
    pub fn commit(&self) -> Option<Commit> {
        Commit::parse(&self.0)
    }
}

impl FromStr for Revision {
    type Err = Malformed;

    /// Every part between slashes is a name that a folder of the cache can have: the revision is a path below `refs`.
    fn from_str(text: &str) -> Result<Revision, Malformed> {
        let sound = |part: &str| {
            !part.is_empty()
                && !part.starts_with('.')
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        let whole = text.len() <= 200 && !text.contains("..") && !text.starts_with('-');
        match whole && text.split('/').all(sound) {
            true => Ok(Revision(text.into())),
            false => Err(Malformed::Revision { text: text.into() }),
        }
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A commit: 40 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Commit(String);

impl Commit {
    /// A text of exactly 40 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Commit> {
        (text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())).then(|| Commit(text.into()))
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Commit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// `OWNER/NAME[@REVISION]`. Displayed as it was given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reference {
    /// The repository.
    pub repository: RepoId,
    /// The revision; `main` where none was named.
    pub revision: Revision,
    explicit: bool,
}

impl FromStr for Reference {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Reference, Malformed> {
        Ok(match text.split_once('@') {
            None => Reference { repository: text.parse()?, revision: Revision::main(), explicit: false },
            Some((repository, revision)) => {
                Reference { repository: repository.parse()?, revision: revision.parse()?, explicit: true }
            }
        })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.explicit {
            true => write!(formatter, "{}@{}", self.repository, self.revision),
            false => self.repository.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_owner_and_name() {
        for sound in ["a/b", "Qwen/Qwen3.8-27B", "o_1/n.2", &format!("{}/{}", "a".repeat(96), "b".repeat(96))]
        {
            assert_eq!(sound.parse::<RepoId>().unwrap().to_string(), sound);
        }
        let long = format!("{}/b", "a".repeat(97));
        for unsound in [
            "", "a", "/", "a/", "/b", "a/b/c", "../b", "a/..", "a/.", "a b/c", "a\\b/c", "a/b\0", "a--b/c",
            "a/b--c", "a/b..c", "~/b", "a/ü", "a/b\n", &long,
        ] {
            assert!(unsound.parse::<RepoId>().is_err(), "{unsound:?}");
        }
    }

    #[test]
    fn revisions_are_paths_that_stay_below_refs() {
        for sound in ["main", "v1.0", "refs/pr/1", "feature/x_y-z", &"a".repeat(40)] {
            assert_eq!(sound.parse::<Revision>().unwrap().as_str(), sound);
        }
        let long = "a".repeat(201);
        for unsound in [
            "", "/", "a//b", "/a", "a/", "..", "a/../b", ".", "./a", "a..b", ".git", "a/.lock", "a b",
            "a\\b", "a\0", "a%2f", "a?b", "a#b", "a@b", "-x", "ä", &long,
        ] {
            assert!(unsound.parse::<Revision>().is_err(), "{unsound:?}");
        }
    }

    #[test]
    fn a_reference_is_shown_as_it_was_given() {
        for text in ["o/n", "o/n@main", "o/n@refs/pr/1"] {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), text);
        }
        assert_eq!("o/n".parse::<Reference>().unwrap().revision, Revision::main());
        assert_eq!("o/n@".parse::<Reference>(), Err(Malformed::Revision { text: String::new() }));
        assert!("o@v/n".parse::<Reference>().is_err());
    }

    #[test]
    fn a_commit_has_forty_digits() {
        let digits = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(digits.parse::<Revision>().unwrap().commit(), Commit::parse(digits));
        for other in [&digits[1..], &format!("{digits}0"), &digits.replace('a', "g"), "main"] {
            assert_eq!(Commit::parse(other), None);
        }
    }
}
