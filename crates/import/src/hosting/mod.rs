//! Importers of application servers: gunicorn, Puma, Starman and Passenger, as far as their configuration is
//! data.

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
use settings::AppSettings;

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
    if let Some(file) = file {
        let (name, text) = read_file(file)?;
        let is_unit = text.lines().any(|line| line.trim_start().starts_with("ExecStart="));
        match kind {
            _ if is_unit || name.starts_with("Procfile") => {
                command::read_file(&mut app, &name, &text)
                    .map_err(|reason| ImportError::new(&name, 0, reason.to_string()))?;
            }
            ImportKind::Gunicorn => {
                read_python(&ledger, &name, &text).into_iter().for_each(|one| app.translate_setting(one))
            }
            ImportKind::Puma => {
                read_ruby(&ledger, &name, &text).into_iter().for_each(|one| app.translate_setting(one))
            }
            ImportKind::Passenger => {
                let mut data = parse_json(&name, &text)?;
                data.enter_in_ledger(&ledger, &name, "");
                read_passengerfile(&mut app, &data);
            }
            _ => {
                // A file with a single command.
                let line =
                    text.lines().find(|line| !line.trim().is_empty() && !line.starts_with('#')).unwrap_or("");
                command::read_command(&mut app, &name, 1, &command::split_words(line));
            }
        }
    }
    if !command.is_empty() {
        command::read_command(&mut app, "command", 1, command);
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

/// Reads the keys of a Passengerfile.json.
fn read_passengerfile(app: &mut AppSettings<'_>, data: &DataNode) {
    for (key, value) in data.entries() {
        match &value.value {
            DataValue::Table(entries) => {
                for (name, value) in entries {
                    if let (Some(entry), Some(text)) = (value.entry, value.text()) {
                        let values = vec![format!("{name}={text}")];
                        app.translate_setting(LiteralSetting {
                            entry,
                            name: key.clone(),
                            values,
                            is_code: false,
                        });
                    }
                }
            }
            datum => {
                let values = match datum {
                    DataValue::Flag(flag) => vec![flag.to_string()],
                    _ => value.texts(),
                };
                if let Some(entry) = value.entry {
                    app.translate_setting(LiteralSetting {
                        entry,
                        name: key.clone(),
                        values,
                        is_code: false,
                    });
                }
            }
        }
    }
}
