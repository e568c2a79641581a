//! The flags that a command line gave, read and in their order.

use super::flags::{FlagSpec, flag};
use super::values::{FlagValue, UsageError, ValueKind};

/// One use of a flag.
#[derive(Clone, Debug)]
pub struct Given {
    /// The flag.
    pub flag: &'static FlagSpec,
    /// Its value as it was typed; empty for a switch.
    pub text: String,
    /// Its value as it was read.
    pub value: FlagValue,
}

impl Given {
    /// Whether it asks for nothing.
    pub fn is_neutral(&self) -> bool {
        self.flag.is_neutral(&self.value)
    }
}

/// Every flag of a command line. What was not given is not in here: absence
/// and a default that was typed are different things to a refusal.
#[derive(Clone, Debug, Default)]
pub struct GivenFlags {
    given: Vec<Given>,
}

impl GivenFlags {
    /// No flag at all.
    pub fn new() -> GivenFlags {
        GivenFlags::default()
    }

    /// Adds one use, in the order of the command line. `text` is what stood
    /// after the flag, or after its `=`; switches have none.
    pub fn push(&mut self, name: &str, text: Option<&str>) -> Result<(), UsageError> {
        let Some(flag) = flag(name) else {
            return Err(UsageError(format!("unrecognized arguments: {name}")));
        };
        let value = match (flag.value, text) {
            (ValueKind::Switch, None) => FlagValue::On,
            (_, None) => return Err(UsageError(format!("argument {name}: expected one argument"))),
            (kind, Some(text)) => kind.read(name, text)?,
        };
        self.given.push(Given { flag, text: text.unwrap_or_default().to_owned(), value });
        Ok(())
    }

    /// Reads pairs of a flag and its value: for tests and for other programs
    /// that build a request.
    pub fn from_pairs<'a>(
        pairs: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Result<GivenFlags, UsageError> {
        let mut flags = GivenFlags::new();
        for (name, text) in pairs {
            flags.push(name, text)?;
        }
        flags.check_together()?;
        Ok(flags)
    }

    /// What can only be judged once all flags are known: a rank outside its
    /// world, two different backends, a flag that needs another.
    pub fn check_together(&self) -> Result<(), UsageError> {
        let mut backends = self.all("--backend").filter_map(|given| given.value.as_text());
        if let Some(first) = backends.next()
            && let Some(other) = backends.find(|other| *other != first)
        {
            return Err(UsageError(format!(
                "argument --backend: one backend at a time, not '{first}' and '{other}'"
            )));
        }
        if self.has("--allow-fallback")
            && let Some(name) = self.text("--backend").filter(|name| *name != "auto")
        {
            return Err(UsageError(format!(
                "--allow-fallback goes with --backend auto: a backend that is named, such as {name}, is never replaced"
            )));
        }
        let world = self.world_size();
        if let Some(rank) = self.integer("--rank")
            && rank >= world
        {
            return Err(UsageError(format!("argument --rank: {rank} is not below --tp {world}")));
        }
        if self.has("--vision-urls") && !self.has("--vision") {
            return Err(UsageError("--vision-urls needs --vision".to_owned()));
        }
        Ok(())
    }

    /// Every use of every flag, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Given> {
        self.given.iter()
    }

    /// Every use of one flag, in order.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Given> {
        self.given.iter().filter(move |given| given.flag.name == name)
    }

    /// The use that counts: the last one.
    pub fn last(&self, name: &str) -> Option<&Given> {
        self.given.iter().rev().find(|given| given.flag.name == name)
    }

    /// Whether the flag was given.
    pub fn has(&self, name: &str) -> bool {
        self.last(name).is_some()
    }

    /// The text that counts for a flag.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.last(name)?.value.as_text()
    }

    /// The whole number that counts for a flag.
    pub fn integer(&self, name: &str) -> Option<i64> {
        self.last(name)?.value.as_integer()
    }

    /// The number that counts for a flag.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.last(name)?.value.as_number()
    }

    /// The texts of every use of a flag.
    pub fn texts<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.all(name).filter_map(|given| given.value.as_text())
    }

    /// Number of ranks that `--tp` asks for; 1 when it was not given.
    pub fn world_size(&self) -> i64 {
        self.integer("--tp").unwrap_or(1)
    }

    /// The drafter that was asked for by name: none for `auto`, `none`, an
    /// empty value, or beside `--no-drafts`, which makes `--drafter` moot.
    pub fn named_drafter(&self) -> Option<&str> {
        let drafter = self.last("--drafter")?;
        match drafter.is_neutral() || self.has("--no-drafts") {
            true => None,
            false => drafter.value.as_text(),
        }
    }

    /// Whether the template may think: the later of `--thinking` and
    /// `--no-thinking`, if either was given.
    pub fn thinking(&self) -> Option<bool> {
        self.given.iter().rev().find_map(|given| match given.flag.name {
            "--thinking" => Some(true),
            "--no-thinking" => Some(false),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(words: &[&str]) -> Result<GivenFlags, UsageError> {
        let pairs = words.iter().map(|word| match word.split_once('=') {
            Some((name, text)) => (name, Some(text)),
            None => (*word, None),
        });
        GivenFlags::from_pairs(pairs)
    }

    fn message(words: &[&str]) -> String {
        flags(words).expect_err("a usage error").to_string()
    }

    #[test]
    fn the_last_use_counts_unless_a_flag_repeats() {
        let flags = flags(&["--port=1", "--alias=a", "--port=2", "--alias=b"]).unwrap();
        assert_eq!(flags.integer("--port"), Some(2));
        assert_eq!(flags.texts("--alias").collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_command_line_that_can_not_be_read_is_refused_in_the_known_words() {
        assert_eq!(message(&["--colour=1"]), "unrecognized arguments: --colour");
        assert_eq!(message(&["--port"]), "argument --port: expected one argument");
        assert_eq!(message(&["--no-drafts=1"]), "argument --no-drafts: ignored explicit argument '1'");
        assert_eq!(message(&["--tp=2", "--rank=2"]), "argument --rank: 2 is not below --tp 2");
        assert_eq!(message(&["--rank=1"]), "argument --rank: 1 is not below --tp 1");
        assert_eq!(message(&["--tp=3"]), "argument --tp: invalid choice: '3'");
        assert_eq!(message(&["--vision-urls"]), "--vision-urls needs --vision");
        assert_eq!(
            message(&["--backend=cpu", "--backend=hip"]),
            "argument --backend: one backend at a time, not 'cpu' and 'hip'"
        );
        assert_eq!(
            message(&["--backend=hip", "--allow-fallback"]),
            "--allow-fallback goes with --backend auto: a backend that is named, such as hip, is never replaced"
        );
        assert!(flags(&["--backend=auto", "--allow-fallback"]).is_ok());
        assert!(flags(&["--allow-fallback"]).is_ok());
    }

    #[test]
    fn the_same_backend_may_be_said_twice() {
        assert_eq!(flags(&["--backend=cpu", "--backend=cpu"]).unwrap().text("--backend"), Some("cpu"));
    }

    #[test]
    fn only_a_name_asks_for_a_drafter() {
        let named = |words: &[&str]| flags(words).unwrap().named_drafter().map(str::to_owned);
        assert_eq!(named(&["--drafter=a/b"]), Some("a/b".to_owned()));
        for words in [
            &[] as &[&str],
            &["--drafter=auto"],
            &["--drafter=none"],
            &["--drafter="],
            &["--drafter=a/b", "--no-drafts"],
            &["--drafter=a/b", "--drafter=none"],
        ] {
            assert_eq!(named(words), None, "{words:?}");
        }
    }

    #[test]
    fn the_later_thinking_switch_counts() {
        assert_eq!(flags(&["--thinking", "--no-thinking"]).unwrap().thinking(), Some(false));
        assert_eq!(flags(&["--no-thinking", "--thinking"]).unwrap().thinking(), Some(true));
        assert_eq!(flags(&[]).unwrap().thinking(), None);
    }
}
