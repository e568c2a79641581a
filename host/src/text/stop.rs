//! Stop strings, matched across pieces of text.
//!
//! Text that may still become a stop string is held back. The match that is
//! complete first counts, so the result does not depend on how the text was
//! cut into pieces.

/// Watches a text for stop strings.
#[derive(Clone, Debug, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    matched: Option<usize>,
}

impl StopMatcher {
    /// A matcher for some stop strings; empty ones never match.
    pub fn new(stops: impl IntoIterator<Item = String>) -> StopMatcher {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        StopMatcher { stops, held: String::new(), matched: None }
    }

    /// The text that is certain not to belong to a stop string. After a match
    /// there is none.
    pub fn push(&mut self, text: &str) -> String {
        if self.matched.is_some() {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_owned();
        }
        self.held.push_str(text);
        if let Some((start, index)) = self.first_match() {
            self.matched = Some(index);
            let mut held = std::mem::take(&mut self.held);
            held.truncate(start);
            return held;
        }
        let certain = self.certain();
        let rest = self.held.split_off(certain);
        std::mem::replace(&mut self.held, rest)
    }

    /// The text that was held back, at the end of the reply.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The stop string that was found.
    pub fn matched(&self) -> Option<&str> {
        self.matched.map(|index| self.stops[index].as_str())
    }

    /// Start and stop string of the match that ends first; of several that end
    /// together, the longest.
    fn first_match(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        found.min().map(|(_, start, index)| (start, index))
    }

    /// How much of the held text cannot begin a stop string.
    fn certain(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let first = self.held.len().saturating_sub(longest.saturating_sub(1));
        (first..self.held.len())
            .filter(|&at| self.held.is_char_boundary(at))
            .find(|&at| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..])))
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<String>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|stop| (*stop).to_owned()));
        let mut told: Vec<String> = pieces.iter().map(|piece| matcher.push(piece)).collect();
        told.push(matcher.finish());
        (told, matcher.matched().map(str::to_owned))
    }

    #[test]
    fn a_stop_string_is_found_across_pieces_and_left_out() {
        let (told, matched) = run(&["END"], &["one E", "N", "D two", "three"]);
        assert_eq!((told.concat().as_str(), matched.as_deref()), ("one ", Some("END")));
        assert_eq!(told[0], "one ");
    }

    #[test]
    fn text_that_only_looked_like_a_stop_string_is_told() {
        let (told, matched) = run(&["END"], &["E", "N", "E", "N"]);
        assert_eq!((told.concat().as_str(), matched), ("ENEN", None));
        assert_eq!(&told[..3], ["", "", "EN"]);
    }

    #[test]
    fn the_match_that_is_complete_first_counts() {
        let (told, matched) = run(&["abcd", "bc"], &["xabcd"]);
        assert_eq!((told.concat().as_str(), matched.as_deref()), ("xa", Some("bc")));
        let (told, matched) = run(&["c", "bc"], &["abc"]);
        assert_eq!((told.concat().as_str(), matched.as_deref()), ("a", Some("bc")));
    }

    #[test]
    fn empty_stop_strings_never_match() {
        assert_eq!(run(&[""], &["a", "b"]).1, None);
        assert_eq!(run(&[], &["a", "b"]).0.concat(), "ab");
    }

    proptest! {
        #[test]
        fn the_cut_into_pieces_does_not_matter(
            text in "[abé]{0,30}", stops in prop::collection::vec("[abé]{1,4}", 0..4), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let mut whole = StopMatcher::new(stops.clone());
            let mut expected = whole.push(&text);
            expected.push_str(&whole.finish());

            let mut boundaries: Vec<usize> = (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect();
            let mut at: Vec<usize> = cuts.iter().map(|cut| boundaries[cut.index(boundaries.len())]).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            boundaries.clear();
            let mut matcher = StopMatcher::new(stops.clone());
            let mut told = String::new();
            for pair in at.windows(2) {
                told.push_str(&matcher.push(&text[pair[0]..pair[1]]));
                prop_assert!(stops.iter().all(|stop| !told.contains(stop.as_str())));
            }
            told.push_str(&matcher.finish());
            prop_assert_eq!(&told, &expected);
            prop_assert_eq!(matcher.matched(), whole.matched());
            prop_assert_eq!(matcher.matched().is_some(), stops.iter().any(|stop| text.contains(stop.as_str())));
        }
    }
}
