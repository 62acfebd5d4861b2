//! The command-line program: arguments, assembly of the configuration into handlers, and the supervisor.
//!
//! The program owns the process: signals, logs, descriptors and exit codes. It never parses HTTP or touches a
//! connection.
//!
//! Modules, from low to high; a module uses only those above it.

mod terminal;
mod assemble;
mod check;
mod run;
mod cli;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use process::sandbox;

use crate::check::reading;
use crate::cli::arguments::{Cli, Command};
use crate::cli::{ab, cache, cert, ctl, diff, hints, import, measure, sign_url, status, top};
use crate::terminal::printable;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let done = match hints::parsed().command {
        Command::Run(run) => cli::serve::taking_over(|taken| cli::run::serve_targets(&run, taken)),
        Command::Start(start) => {
            cli::serve::taking_over(|taken| cli::start::serve_file(start.config.clone(), taken))
                .map_err(|error| reading::placed(&start.config, error))
        }
        Command::Check(arguments) => {
            cli::check::check(&arguments).map_err(|error| reading::placed(&arguments.config, error))
        }
        Command::Import(arguments) => return judged(import::import(&arguments)),
        Command::Fmt(arguments) => diff::format(&arguments).and_then(|text| print(&text)),
        Command::Diff(arguments) => diff::diff(&arguments).and_then(|text| print(&text)),
        Command::Status(arguments) => status::status(&arguments).and_then(report),
        Command::Ctl(arguments) => ctl::ctl(&arguments).and_then(report),
        Command::Top(arguments) => top::top(&arguments),
        Command::Reload(arguments) => status::reload(&arguments).and_then(report),
        Command::Cache(command) => cache::cache(&command).and_then(report),
        Command::Cert(command) => cert::cert(&command).and_then(report),
        Command::SignUrl(arguments) => sign_url::sign_url(&arguments).and_then(report),
        Command::Trust(arguments) => cert::trust(&arguments).and_then(report),
        Command::Upgrade(arguments) => status::upgrade(&arguments).and_then(report),
        Command::Bench(arguments) => return judged(measure::bench(&arguments)),
        Command::Ab(arguments) => return judged(ab::ab(&arguments)),
        Command::Lab(arguments) => return judged(measure::lab(&arguments)),
        Command::Schema => print(&format!("{:#}\n", config::schema())),
        Command::Reference => print(&config::reference()),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "komainu", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
        Command::Man => manual(),
        Command::Confine(arguments) => sandbox::confine(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::complain_of_error(&error);
            ExitCode::FAILURE
        }
    }
}

/// Converts the outcome of a measurement or import: exit status 1 if it was not as expected, 2 if it failed.
fn judged(outcome: Result<bool, String>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            terminal::complain(&format!("error: {error}"));
            ExitCode::from(2)
        }
    }
}

/// Prints text that may contain control characters from other sources.
fn report(text: String) -> Result<(), String> {
    print(&printable(&text))
}

fn print(text: &str) -> Result<(), String> {
    match io::stdout().write_all(text.as_bytes()) {
        // The reader has closed the pipe: `komainu schema | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.map_err(|error| error.to_string()),
    }
}

fn manual() -> Result<(), String> {
    let mut page = Vec::new();
    let command = Cli::command();
    clap_mangen::Man::new(command.clone()).render(&mut page).map_err(|error| error.to_string())?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let named = sub.clone().name(format!("komainu-{}", sub.get_name()));
        clap_mangen::Man::new(named).render(&mut page).map_err(|error| error.to_string())?;
    }
    print(&String::from_utf8_lossy(&page))
}
