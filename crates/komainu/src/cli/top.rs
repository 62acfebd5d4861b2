//! `komainu top`: reads the status of a server periodically and displays the changes.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use clap::Args;
use failure::Failure;

use crate::cli::control_endpoint::ControlCredentials;
use crate::cli::status_fetch::{self, StatusSource};
use crate::cli::values::{parse_interval, parse_process_id};
use crate::cli::{control_client, status};

#[derive(Debug, Args)]
pub(crate) struct TopArguments {
    /// The control listener of a server: HOST:PORT, https://HOST:PORT or unix:PATH [default: the control socket of the server that runs]
    #[arg(value_name = "ADDR", conflicts_with = "pid")]
    pub(crate) address: Option<String>,
    #[command(flatten)]
    pub(crate) credentials: ControlCredentials,
    /// The server with this process id; not needed if only one runs
    #[arg(long, value_parser = parse_process_id)]
    pub(crate) pid: Option<u32>,
    /// The time between two looks, 250ms to 1m
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_interval)]
    pub(crate) every: Duration,
    /// Print what happens in one interval, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Print JSON, for programs: a line for each interval
    #[arg(long)]
    pub(crate) json: bool,
}

/// Follows a server in the terminal, or prints its activity per interval.
///
/// # Errors
/// The server does not exist or does not answer, or the terminal fails.
pub(crate) fn run_top(arguments: &TopArguments) -> Result<(), Failure> {
    let mut ask = status_source(arguments)?;
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if is_terminal && !arguments.once && !arguments.json {
        let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        return top::run_screen(ask, arguments.every, has_colour);
    }
    let mut before = ask()?;
    loop {
        std::thread::sleep(arguments.every);
        let now = ask()?;
        let sample = top::StatusInterval::new(now.clone(), Some(&before));
        let text =
            if arguments.json { format!("{}\n", top::to_json(&sample)) } else { top::format_text(&sample) };
        match io::stdout().write_all(text.as_bytes()) {
            // The reader has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        // Without a terminal, text is printed for one interval only; JSON continues.
        if arguments.once || !arguments.json {
            return Ok(());
        }
        before = now;
    }
}

fn status_source(arguments: &TopArguments) -> Result<StatusSource, Failure> {
    let Some(address) = &arguments.address else {
        arguments.credentials.refuse_without_address()?;
        let pid = status::select_pid(arguments.pid)?;
        return Ok(Box::new(move || control_client::send_command(pid, "status")));
    };
    status_fetch::source_for_address(address, &arguments.credentials)
}
