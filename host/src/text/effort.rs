//! Levels of reasoning effort.

/// How much a model should think.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// `minimal`
    Minimal,
    /// `low`
    Low,
    /// `medium`
    Medium,
    /// `high`
    High,
    /// `xhigh`
    ExtraHigh,
    /// `max`
    Maximum,
}

impl Effort {
    /// All levels, lowest first.
    pub const ALL: [Effort; 6] =
        [Effort::Minimal, Effort::Low, Effort::Medium, Effort::High, Effort::ExtraHigh, Effort::Maximum];

    /// As requests and templates spell it.
    pub fn name(self) -> &'static str {
        match self {
            Effort::Minimal => "minimal",
            Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High => "high",
            Effort::ExtraHigh => "xhigh",
            Effort::Maximum => "max",
        }
    }

    /// The level of this name.
    pub fn from_name(name: &str) -> Option<Effort> {
        Effort::ALL.into_iter().find(|level| level.name() == name)
    }

    /// The nearest of some levels; of two equally near, the higher.
    pub(super) fn nearest(self, levels: impl Iterator<Item = Effort>) -> Option<Effort> {
        levels.min_by_key(|level| ((*level as i8 - self as i8).abs(), std::cmp::Reverse(*level)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_level_is_taken_and_ties_go_up() {
        let named = [Effort::Low, Effort::Medium, Effort::ExtraHigh];
        for (asked, wanted) in [
            ("minimal", Effort::Low),
            ("low", Effort::Low),
            ("high", Effort::ExtraHigh),
            ("max", Effort::ExtraHigh),
        ] {
            let asked = Effort::from_name(asked).unwrap();
            assert_eq!(asked.nearest(named.into_iter()), Some(wanted));
        }
        assert_eq!(Effort::High.nearest(std::iter::empty()), None);
        assert_eq!(Effort::from_name("none"), None);
    }
}
