//! `komainu start`: serves with a configuration file.

use std::path::PathBuf;

use clap::Args;
use failure::Failure;
use link::LinkRequest;
use operator::config_text::ConfigText;
use process::inherited;
use rights::privilege;
use rights::privilege::RightsDecision;

use crate::check::{reading, start_checks};
use crate::cli::serve::{InheritedState, run_server, run_supervisor};
use crate::run::start::ServerStart;

#[derive(Debug, Args)]
pub(crate) struct StartArguments {
    /// The configuration file
    #[arg(long, short, value_name = "FILE", default_value = "komainu.toml")]
    pub(crate) config: PathBuf,
}

/// Runs `komainu start -c FILE`.
pub(crate) fn serve_file(path: PathBuf, inherited_state: InheritedState) -> Result<(), Failure> {
    let InheritedState { inherited, predecessor, inherited_sockets: given } = inherited_state;
    if let Some(text) = inherited.as_ref().map(|given| given.text.clone().unwrap_or_default()) {
        // The supervisor has printed the warnings.
        let config = reading::parse_silently(&path, &text)?;
        let in_force = ConfigText { path: path.clone(), joined: text.as_str().into() };
        let link = inherited.as_ref().map(|given| given.link.clone());
        let reread: reading::RereadConfig = Box::new(move || {
            let packet = link.as_ref().map(|link| link.ask(&LinkRequest::Config, &[])).transpose();
            let packet = packet?.ok_or("there is no supervisor")?;
            reading::reparse_text(&path, inherited::read_text(packet)?)
        });
        let text = Some(in_force);
        let start = ServerStart {
            config,
            reread: Some(reread),
            text,
            watch: false,
            inherited,
            predecessor,
            inherited_sockets: given,
            warning: None,
            source: None,
            source_status: None,
        };
        return run_server(start);
    }
    let text = reading::read_text(&path)?;
    let config = reading::parse(&path, &text)?;
    match privilege::decide_rights(config.user.as_deref(), config.group.as_deref(), false)? {
        RightsDecision::Drop(identity) => {
            start_checks::check_file_access(&config, &identity)?;
            run_supervisor(config, Some((path, text)), identity, predecessor, given)
        }
        RightsDecision::Keep(warning) => {
            let text = Some(ConfigText { path: path.clone(), joined: text.into() });
            let reread: reading::RereadConfig =
                Box::new(move || reading::reparse_text(&path, reading::read_text(&path)?));
            let reread = Some(reread);
            run_server(ServerStart {
                config,
                reread,
                text,
                watch: false,
                inherited: None,
                predecessor,
                inherited_sockets: given,
                warning,
                source: None,
                source_status: None,
            })
        }
    }
}
