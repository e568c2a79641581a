//! The drafter that `--drafter` names: found, looked at, and held against the model before a weight of either is read.

use std::collections::BTreeSet;
use std::path::Path;

use tensorfold_plugin_api::manifest::Manifest;
use tensorfold_plugin_api::model_spec::ModelSpec;
use tensorfold_plugin_api::vocabulary::GivenFlags;

use crate::checkpoint::HubCache;
use crate::cli::Failure;
use crate::cli::hub::{self, Located};
use crate::drafter::{self, Drafter, DrafterFiles, Fault, Survey, Target};
use crate::plugins::admit::{self, DrafterFacts};

/// The only revision of each kind that there is.
const REVISION: u32 = 1;

/// A drafter that was named, by the user or by `auto`, and looked at.
pub(in crate::cli) struct NamedDrafter {
    /// As it was given.
    argument: String,
    /// Whether the user named it, so that it is this one or none at all.
    by_user: bool,
    located: Located,
    survey: Survey,
    facts: DrafterFacts,
}

impl NamedDrafter {
    /// Looks at the drafter that was named; `None` where none was, or where the plugin runs none of any kind, so that
    /// it is refused whatever it is.
    ///
    /// # Errors
    /// When it cannot be found, or is of a kind that no plugin could list.
    pub(in crate::cli) fn find(
        flags: &GivenFlags,
        manifest: &Manifest,
    ) -> Result<Option<NamedDrafter>, Failure> {
        match flags.named_drafter() {
            Some(argument) if admit::wants_drafter_facts(manifest, flags) => {
                NamedDrafter::look(argument).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn look(argument: &str) -> Result<NamedDrafter, Failure> {
        let about = |message: &str| Failure::new(format!("--drafter {argument}: {message}"));
        let path = HubCache::from_environment().expand(Path::new(argument));
        // Of a model's it is said how to convert it; a drafter's cannot be.
        if path.is_file() && path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf")) {
            return Err(about("a GGUF file, of which drafters are not read; take its safetensors version"));
        }
        let located = hub::locate(argument)
            .map_err(|failure| Failure { message: format!("--drafter: {}", failure.message), ..failure })?;
        let survey = drafter::survey(located.directory());
        let survey = survey.map_err(|error| about(&located.spoken(&error.to_string())))?;
        match drafter_facts(&survey) {
            Some(facts) => {
                Ok(NamedDrafter { argument: argument.into(), by_user: true, located, survey, facts })
            }
            None => Err(about(&drafter::one_line(&survey.faults()))),
        }
    }

    /// One that nobody named, looked at already.
    pub(super) fn found(
        repository: &str,
        located: Located,
        survey: Survey,
        facts: DrafterFacts,
    ) -> NamedDrafter {
        NamedDrafter { argument: repository.into(), by_user: false, located, survey, facts }
    }

    /// Whether the user named it.
    pub(super) fn is_by_user(&self) -> bool {
        self.by_user
    }

    /// What a manifest decides by.
    pub(in crate::cli) fn facts(&self) -> &DrafterFacts {
        &self.facts
    }

    /// Refuses a drafter of a kind that manifests can list and this host does not read.
    ///
    /// # Errors
    /// One line.
    pub(in crate::cli) fn check_kind(&self) -> Result<(), Failure> {
        match self.survey.refusal() {
            Some(fault) => Err(self.unfit(std::slice::from_ref(fault))),
            None => Ok(()),
        }
    }

    /// Holds it against the model that it is to draft for.
    ///
    /// # Errors
    /// All faults in one line.
    pub(in crate::cli) fn check_fit(&self, model: &ModelSpec) -> Result<(), Failure> {
        match self.survey.faults_with(Target::of(model), None) {
            faults if faults.is_empty() => Ok(()),
            faults => Err(self.unfit(&faults)),
        }
    }

    /// What the user should know of it beside a model, one line each.
    pub(in crate::cli) fn lines(&self, model: &Located) -> Vec<String> {
        let other = model.repository().and_then(|model| self.made_for_another(model));
        let warnings = self.survey.warnings.iter().chain(&other);
        warnings.map(|warning| format!("warning: --drafter {}: {warning}", self.argument)).collect()
    }

    /// Equal sizes do not make a match. Where the card tells which model a drafter is of, and the model that is served
    /// is called otherwise, it probably drafts little of use.
    fn made_for_another(&self, model: &str) -> Option<String> {
        let bases = &self.survey.base_models;
        let served = letters(model);
        let is_served = |base: &String| served.contains(&letters(base.rsplit('/').next().unwrap_or(base)));
        (!bases.is_empty() && !bases.iter().any(is_served))
            .then(|| format!("its card says that it is of {}, and the model is {model}", bases.join(" or ")))
    }

    /// Whether it has to be downloaded.
    pub(in crate::cli) fn is_remote(&self) -> bool {
        matches!(self.located, Located::There(_))
    }

    /// Lets go of metadata that is here for the moment.
    pub(in crate::cli) fn forget_metadata(&mut self) {
        if let Located::There(remote) = &mut self.located {
            remote.forget_metadata();
        }
    }

    /// Downloads it where it is not here, and maps its weights.
    ///
    /// # Errors
    /// When it cannot be had, or is not what its metadata said.
    pub(in crate::cli) fn open(self) -> Result<DrafterFiles, Failure> {
        let directory = match self.located {
            Located::Here(found) => found.directory,
            Located::There(remote) => remote.download()?,
        };
        let opened = Drafter::open(&directory);
        let opened = opened.map_err(|error| Failure::new(format!("--drafter {}: {error}", self.argument)))?;
        Ok(DrafterFiles::new(opened))
    }

    fn unfit(&self, faults: &[Fault]) -> Failure {
        let faults = self.located.spoken(&drafter::one_line(faults));
        Failure::new(format!("--drafter {}: {faults}", self.argument))
    }
}

/// A name without what people spell differently.
pub(super) fn letters(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}

/// What a manifest decides by; `None` of what is of no kind that manifests list.
pub(in crate::cli) fn drafter_facts(survey: &Survey) -> Option<DrafterFacts> {
    Some(DrafterFacts {
        kind: survey.class.external_kind()?,
        revision: REVISION,
        block: survey.block_size(),
        taps: survey.taps(),
        dtypes: survey.formats.iter().cloned().collect::<BTreeSet<String>>(),
        pruned_vocabulary: survey.pruned_vocabulary,
    })
}
