//! `komainu start`: serves with a configuration file.

use std::path::PathBuf;

use clap::Args;
use link::LinkRequest;
use operator::config_text::ConfigText;
use process::inherited;
use rights::privilege;
use rights::privilege::Rights;

use crate::check::{reading, start_checks};
use crate::cli::serve::{TakenOver, served, supervised};
use crate::run::start::Start;

#[derive(Debug, Args)]
pub(crate) struct StartArguments {
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = "komainu.toml")]
    pub(crate) config: PathBuf,
}

/// Runs `komainu start -c FILE`.
pub(crate) fn serve_file(path: PathBuf, taken: TakenOver) -> Result<(), String> {
    let TakenOver { inherited, predecessor, given } = taken;
    if let Some(text) = inherited.as_ref().map(|given| given.text.clone().unwrap_or_default()) {
        // The supervisor has printed the warnings.
        let config = reading::parse_silently(&path, &text)?;
        let in_force = ConfigText { path: path.clone(), joined: text.as_str().into() };
        let link = inherited.as_ref().map(|given| given.link.clone());
        let reread: reading::Reread = Box::new(move || {
            let packet = link.as_ref().map(|link| link.ask(&LinkRequest::Config, &[])).transpose();
            let packet = packet.map_err(|error| error.to_string())?.ok_or("there is no supervisor")?;
            reading::read_again(&path, inherited::text_of(packet).map_err(|error| error.to_string())?)
        });
        let text = Some(in_force);
        let start = Start {
            config,
            reread: Some(reread),
            text,
            watch: false,
            inherited,
            predecessor,
            given,
            warning: None,
        };
        return served(start);
    }
    let text = reading::read_text(&path)?;
    let config = reading::parse(&path, &text)?;
    match privilege::rights(&config, false).map_err(|error| format!("error: {error}"))? {
        Rights::Drop(identity) => {
            start_checks::files_are_open(&config, &identity)?;
            supervised(config, Some((path, text)), identity, (predecessor, given))
        }
        Rights::Keep(warning) => {
            let text = Some(ConfigText { path: path.clone(), joined: text.into() });
            let reread: reading::Reread =
                Box::new(move || reading::read_again(&path, reading::read_text(&path)?));
            let reread = Some(reread);
            served(Start { config, reread, text, watch: false, inherited: None, predecessor, given, warning })
        }
    }
}
