//! Importers of application servers: gunicorn, Puma, Starman and Passenger, as far as their configuration is
//! data.

mod options;

mod literal;

mod settings;

mod addresses;

mod command;

use std::path::Path;

use other_servers::GUNICORN;

use crate::data::{DataNode, DataValue, parse_json, read_file};
use crate::findings::{ImportError, ImportLedger, ImportResult};
use crate::kind::ImportKind;
use literal::{LiteralSetting, read_python, read_ruby};
use settings::{AppSettings, SettingSource};

/// Translates the configuration of an application server: its file, a Procfile, a systemd unit, or `command`,
/// a command line split into words.
///
/// # Errors
/// The file cannot be read or has no configuration of that server, or neither a file nor a command is given.
pub fn import(
    kind: ImportKind,
    file: Option<&Path>,
    command: &[String],
) -> Result<ImportResult, ImportError> {
    let ledger = ImportLedger::default();
    let mut app = AppSettings::new(&ledger, kind);
    let mut has_file = false;
    if let Some(file) = file {
        let (name, text) = read_file(file)?;
        let is_unit = text.lines().any(|line| line.trim_start().starts_with("ExecStart="));
        let base = file.parent().unwrap_or(Path::new("."));
        match kind {
            _ if is_unit || name.starts_with("Procfile") => {
                app.source = SettingSource::Command;
                command::read_file(&mut app, &name, &text)
                    .map_err(|reason| ImportError::new(&name, 0, reason.to_string()))?;
                read_named_file(&mut app, base)?;
            }
            ImportKind::Starman => {
                app.source = SettingSource::Command;
                // A file with a single command.
                let line =
                    text.lines().find(|line| !line.trim().is_empty() && !line.starts_with('#')).unwrap_or("");
                command::read_command(&mut app, &name, 1, &command::split_words(line));
            }
            _ => {
                has_file = true;
                read_settings(&mut app, &name, &text)?;
            }
        }
    }
    if !command.is_empty() {
        app.source = SettingSource::Command;
        command::read_command(&mut app, "command", 1, command);
        if !has_file {
            read_named_file(&mut app, Path::new("."))?;
        }
    }
    if file.is_none() && command.is_empty() {
        return Err(ImportError::new("", 0, "neither a file nor a command"));
    }
    let draft = app.into_draft();
    Ok(ImportResult {
        toml: draft.to_toml(),
        remarks: ledger.into_remarks(),
        general_differences: GUNICORN.differences,
    })
}

/// Reads the settings of a configuration file.
fn read_settings(app: &mut AppSettings<'_>, name: &str, text: &str) -> Result<(), ImportError> {
    app.source = SettingSource::File;
    match app.kind {
        ImportKind::Gunicorn => {
            for setting in read_python(app.ledger, name, text) {
                app.python_entries.push(setting.entry);
                app.add_setting(setting);
            }
        }
        ImportKind::Puma => {
            read_ruby(app.ledger, name, text).into_iter().for_each(|setting| app.add_setting(setting));
        }
        _ => {
            let mut data = parse_json(name, text)?;
            data.enter_in_ledger(app.ledger, name, "");
            read_passengerfile(app, &data);
        }
    }
    Ok(())
}

/// Reads the configuration file that a command names, or the one that the server reads by itself. `base` is the folder of
/// the command. A file that a command names and that cannot be read stays a setting, which closes the application.
fn read_named_file(app: &mut AppSettings<'_>, base: &Path) -> Result<(), ImportError> {
    let folder = app.working_folder.clone().map_or_else(|| base.to_owned(), |folder| base.join(folder));
    let is_config =
        |(_, setting): &(SettingSource, LiteralSetting)| setting.name == "config" && setting.code.is_none();
    if let Some(at) = app.pending.iter().rposition(is_config) {
        let text = app.pending[at].1.values.first().cloned().unwrap_or_default();
        let path = folder.join(text.strip_prefix("file:").unwrap_or(&text));
        let entry = app.pending[at].1.entry;
        if text == "-" {
            app.ledger.mark_not_needed(entry, "not needed: no file is read");
        } else if let Ok((name, text)) = read_file(&path) {
            app.ledger.mark_not_needed(entry, "its settings follow");
            read_settings(app, &name, &text)?;
        } else {
            return Ok(());
        }
        app.pending.remove(at);
        return Ok(());
    }
    let environment = app.pending.iter().find(|(_, setting)| setting.name == "environment");
    let environment =
        environment.and_then(|(_, setting)| setting.values.first().cloned()).unwrap_or_default();
    let names = match app.kind {
        ImportKind::Gunicorn => vec!["gunicorn.conf.py".to_owned()],
        ImportKind::Puma => vec![format!("config/puma/{environment}.rb"), "config/puma.rb".to_owned()],
        ImportKind::Passenger => vec!["Passengerfile.json".to_owned()],
        _ => return Ok(()),
    };
    if !folder.is_dir() {
        app.app.comment(format!(
            "CHECK: the server reads {} in its folder too, which is not on this machine: import it if it is there.",
            names.join(" or ")
        ));
    }
    for name in names {
        let path = folder.join(&name);
        if path.exists() {
            let (name, text) = read_file(&path)?;
            return read_settings(app, &name, &text);
        }
    }
    Ok(())
}

/// Reads the keys of a Passengerfile.json.
fn read_passengerfile(app: &mut AppSettings<'_>, data: &DataNode) {
    for (key, value) in data.entries() {
        match &value.value {
            DataValue::Table(entries) => {
                for (name, value) in entries {
                    if let (Some(entry), Some(text)) = (value.entry, value.text()) {
                        let values = vec![format!("{name}={text}")];
                        app.add_setting(LiteralSetting::new(entry, key.clone(), values));
                    }
                }
            }
            datum => {
                let values = match datum {
                    DataValue::Flag(flag) => vec![flag.to_string()],
                    _ => value.texts(),
                };
                if let Some(entry) = value.entry {
                    app.add_setting(LiteralSetting::new(entry, key.clone(), values));
                }
            }
        }
    }
}
