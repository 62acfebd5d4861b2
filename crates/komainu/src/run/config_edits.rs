//! Changes of the configuration by the control API.

use config::Config;
use engine::options;
use operator::config_text::{ConfigEdit, ConfigText, EditError};
use serde_json::{Value, json};

use crate::check::reading::ReadConfig;
use crate::check::{named_things, reading};
use crate::run::lifecycle::{RunningServer, late_changes};
use crate::run::staged_files::{StageError, StagedFiles};

impl RunningServer {
    /// Changes the configuration atomically, and writes it to its files if possible.
    pub(crate) fn edit(&self, edit: &ConfigEdit) -> Result<Value, EditError> {
        let Some(before) = self.current.text().filter(|text| text.joined == edit.before) else {
            return Err(EditError::new(412, "the configuration has changed meanwhile: read it again"));
        };
        let (path, Some((main, included))) = (before.path.clone(), edit.files.split_first()) else {
            return Err(EditError::new(409, "there is no configuration file"));
        };
        let joined = config::joined(&main.1, included);
        let has_rights = self.link.is_some() || rustix::process::geteuid().is_root();
        if has_rights && !edit.by_root {
            named_things::names_no_more((&path, &edit.before), &joined)
                .map_err(|text| EditError::new(403, text))?;
        }
        let (config, warnings) =
            reading::judged(&path, &joined).map_err(|document| EditError { status: 422, document })?;
        self.may_adopt(&config)?;
        let (staged, why) = match self.staged(&before, edit)? {
            Ok(staged) => (Some(staged), None),
            Err(why) => (None, Some(why)),
        };
        let text = ConfigText { path: path.clone(), joined: joined.clone().into() };
        let prepared = self.prepare(ReadConfig { config, warnings, text }).map_err(|error| EditError {
            status: 422,
            document: reading::unusable(&path, &joined, &error),
        })?;
        let mut outcome = self.adopt(prepared, false);
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
            "incomplete": outcome.reported.err(),
            "warnings": outcome.warnings,
        }))
    }

    /// Stages the files of a change; the inner error is the reason that they will not be written.
    fn staged(
        &self,
        before: &ConfigText,
        edit: &ConfigEdit,
    ) -> Result<Result<StagedFiles, String>, EditError> {
        if edit.persist == Some(false) {
            return Ok(Err("it was not to be written: it is in force until a reload or a restart".into()));
        }
        // The supervisor acts on the file with root's rights, so a server without these must not be able to
        // write it.
        let supervised = "this server has given up root's rights and cannot write to the file: change it as root, and \
            reload; the change is in force until then";
        let staged = match &self.link {
            Some(_) => Err(supervised.to_owned()),
            None => match StagedFiles::stage(&before.files(), &edit.files) {
                Ok(staged) => Ok(staged),
                Err(StageError::Changed(text)) => return Err(EditError::new(412, text)),
                Err(StageError::Unwritable(text)) => Err(text),
            },
        };
        match staged {
            Err(text) if edit.persist == Some(true) => Err(EditError::new(403, text)),
            staged => Ok(staged),
        }
    }

    /// Refuses changes that the supervisor would have to make: it acts with root's rights, and only on the
    /// file that it has read itself.
    fn may_adopt(&self, config: &Config) -> Result<(), EditError> {
        let plan = self.current.plan();
        let before = &plan.config;
        let of_users = |config: &Config| -> Vec<(String, config::App)> {
            config.apps.iter().filter(|(_, app)| app.user.is_some()).cloned().collect()
        };
        let same = options::listens(before) == options::listens(config)
            && of_users(before) == of_users(config)
            && before.log == config.log
            && before.control == config.control
            && late_changes(before, config).is_empty();
        match self.link.is_none() || same {
            true => Ok(()),
            false => Err(EditError::new(
                403,
                "addresses, users, logs, `[control]`, limits and applications of other users are root's to change: edit the file, and reload",
            )),
        }
    }
}
