//! The plugin is tried in a child process before its code runs in the server's own.

use tensorfold_plugin_api::vocabulary::GivenFlags;

use super::admission::Admitted;
use crate::cli::{Failure, hint};
use crate::plugins::probe::PROBE_LIMIT;
use crate::plugins::trial::{self, When};

/// Tries the plugin as `--probe` says: by default once for each build of it on this machine.
///
/// # Errors
/// What speaks against the plugin: it crashed, hung, ended the process, or said itself why it cannot start.
pub(super) fn run(admitted: &mut Admitted, flags: &GivenFlags) -> Result<(), Failure> {
    let when = match flags.text("--probe") {
        Some("never") => return Ok(()),
        Some("always") => When::Always,
        _ => When::Unknown,
    };
    let Some(image) = admitted.inspection.image.clone() else { return Ok(()) };
    let name = admitted.plugin_name().to_owned();
    let tried = trial::try_plugin(&mut admitted.catalog, admitted.index, &image, when, PROBE_LIMIT, &name);
    if let Err(error) = tried {
        // Nothing is known about the plugin then; what it does is the user's to see.
        hint(&format!("plugin {name} is not tried first: {error}"));
    }
    match admitted.catalog.refusal(admitted.index) {
        None => Ok(()),
        Some(finding) => Err(Box::new(finding.clone()).into()),
    }
}
