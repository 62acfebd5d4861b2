//! Changes of the configuration by the control API.

use config::Config;
use engine::options;
use failure::Failure;
use operator::config_text::{ConfigEdit, ConfigText, EditError};
use operator::server_info::ReloadEffect;
use serde_json::{Value, json};

use crate::check::reading::ReadConfig;
use crate::check::{named_resources, reading};
use crate::run::lifecycle::{RunningServer, changes_requiring_restart};
use crate::run::staged_files::{StageError, StagedFiles};

impl RunningServer {
    /// Changes the configuration atomically, and writes it to its files if possible.
    pub(crate) fn edit(&self, edit: &ConfigEdit) -> Result<Value, EditError> {
        let Some(before) = self.current.active_text().filter(|text| text.joined == edit.base_text) else {
            return Err(EditError::new(412, "the configuration has changed meanwhile: read it again"));
        };
        let (path, Some((main, included))) = (before.path.clone(), edit.files.split_first()) else {
            return Err(EditError::new(409, "there is no configuration file"));
        };
        let joined = config::join_files(&main.1, included);
        let has_rights = self.link.is_some() || rustix::process::geteuid().is_root();
        if has_rights && !edit.is_by_root {
            named_resources::check_names_subset(&path, &edit.base_text, &joined)
                .map_err(|failure| EditError::new(403, failure.to_string()))?;
        }
        let (config, warnings) =
            reading::parse_for_api(&path, &joined).map_err(|document| EditError { status: 422, document })?;
        self.check_adoptable(&config)?;
        let (staged, why) = match self.stage_edit(&before, edit)? {
            Ok(staged) => (Some(staged), None),
            Err(why) => (None, Some(why.to_string())),
        };
        let text = Some(ConfigText { path: path.clone(), joined: joined.clone().into() });
        let prepared =
            self.prepare_config(ReadConfig { config, warnings, text, files: None }).map_err(|failure| {
                EditError { status: 422, document: reading::unusable_document(&path, &joined, &failure) }
            })?;
        let mut outcome = self.activate_config(prepared, false);
        outcome.warnings.extend(staged.iter().flat_map(StagedFiles::warnings).cloned());
        let written = staged.map(StagedFiles::commit);
        let why = match &written {
            Some(Err(error)) => Some(format!("it could not be written: {error}")),
            _ => why,
        };
        Ok(json!({
            "done": "the configuration is changed",
            "persisted": why.is_none(),
            "not_persisted": why,
            "incomplete": (outcome.effect != ReloadEffect::Active).then_some(outcome.message),
            "warnings": outcome.warnings,
        }))
    }

    /// Stages the files of a change; the inner error is the reason that they will not be written.
    fn stage_edit(
        &self,
        before: &ConfigText,
        edit: &ConfigEdit,
    ) -> Result<Result<StagedFiles, Failure>, EditError> {
        if edit.persist == Some(false) {
            return Ok(Err(Failure::new(
                "it was not to be written: it is in force until a reload or a restart",
            )));
        }
        // The supervisor acts on the file with root's rights, so a server without these must not be able to
        // write it.
        let supervised = "this server has given up root's rights and cannot write to the file: change it as root, and \
            reload; the change is in force until then";
        let staged = match &self.link {
            Some(_) => Err(Failure::new(supervised)),
            None => match StagedFiles::stage(&before.files(), &edit.files) {
                Ok(staged) => Ok(staged),
                Err(StageError::Changed(text)) => return Err(EditError::new(412, text)),
                Err(StageError::Unwritable(text)) => Err(Failure::new(text)),
            },
        };
        match staged {
            Err(why) if edit.persist == Some(true) => Err(EditError::new(403, why.to_string())),
            staged => Ok(staged),
        }
    }

    /// Refuses changes that the supervisor would have to make: it acts with root's rights, and only on the
    /// file that it has read itself.
    fn check_adoptable(&self, config: &Config) -> Result<(), EditError> {
        let plan = self.current.active_plan();
        let before = &plan.config;
        let of_users = |config: &Config| -> Vec<(String, apps::AppSettings)> {
            config.apps.iter().filter(|(_, app)| app.user.is_some()).cloned().collect()
        };
        let same = options::listen_options(before) == options::listen_options(config)
            && of_users(before) == of_users(config)
            && before.log == config.log
            && before.control == config.control;
        let late = changes_requiring_restart(before, config);
        if self.link.is_none() || same && late.is_empty() {
            return Ok(());
        }
        let message = if same {
            let (verb, is) = if late.len() == 1 { ("changes", "is") } else { ("change", "are") };
            let names = late.join(", ");
            format!(
                "{names} {verb} only at a restart and {is} root's to change: edit the file, and restart the server"
            )
        } else {
            "addresses, users, logs, `[control]` and applications of other users are root's to change: edit the file, and reload"
                .to_owned()
        };
        Err(EditError::new(403, message))
    }
}
