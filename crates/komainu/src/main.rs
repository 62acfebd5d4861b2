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
use failure::Failure;
use process::sandbox;

use crate::check::reading;
use crate::cli::arguments::{Cli, Command};
use crate::cli::{ab, cache, cert, ctl, diff, hints, import, measure, sign_url, status, top};
use crate::terminal::sanitize;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let done = match hints::parse_arguments().command {
        Command::Run(run) => cli::serve::with_inherited_state(|taken| cli::run::serve_targets(&run, taken)),
        Command::Start(start) => {
            cli::serve::with_inherited_state(|taken| cli::start::serve_file(start.config.clone(), taken))
                .map_err(|failure| reading::place_failure(&start.config, failure))
        }
        Command::Kubernetes(arguments) => {
            cli::serve::with_inherited_state(|taken| cli::kubernetes::serve_cluster(&arguments, taken))
        }
        Command::Check(arguments) => cli::check::run_check(&arguments)
            .map_err(|failure| reading::place_failure(&arguments.config, failure)),
        Command::Import(arguments) => return exit_code(import::run_import(&arguments)),
        Command::Fmt(arguments) => diff::run_format(&arguments).and_then(|text| print(&text)),
        Command::Diff(arguments) => diff::run_diff(&arguments).and_then(|text| print(&text)),
        Command::Status(arguments) => status::run_status(&arguments).and_then(print_sanitized),
        Command::Ctl(arguments) => ctl::run_ctl(&arguments).and_then(print_sanitized),
        Command::Top(arguments) => top::run_top(&arguments),
        Command::Reload(arguments) => status::run_reload(&arguments).and_then(print_sanitized),
        Command::Cache(command) => cache::run_cache(&command).and_then(print_sanitized),
        Command::Cert(command) => cert::run_cert(&command).and_then(print_sanitized),
        Command::SignUrl(arguments) => sign_url::sign_url(&arguments).and_then(print_sanitized),
        Command::Trust(arguments) => cert::run_trust(&arguments).and_then(print_sanitized),
        Command::Upgrade(arguments) => status::run_upgrade(&arguments).and_then(print_sanitized),
        Command::Bench(arguments) => return exit_code(measure::run_bench(&arguments)),
        Command::Ab(arguments) => return exit_code(ab::run_ab(&arguments)),
        Command::Lab(arguments) => return exit_code(measure::run_lab(&arguments)),
        Command::Schema => print(&format!("{:#}\n", config::schema())),
        Command::Reference => print(&config::reference()),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "komainu", &mut script);
            print(&String::from_utf8_lossy(&script))
        }
        Command::Man => print_manual(),
        Command::Confine(arguments) => sandbox::confine(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            terminal::print_failure(&failure);
            ExitCode::FAILURE
        }
    }
}

/// Converts the outcome of a measurement or import: exit status 1 if it was not as expected, 2 if it failed.
fn exit_code(outcome: Result<bool, Failure>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            terminal::print_failure(&failure);
            ExitCode::from(2)
        }
    }
}

/// Prints text that may contain control characters from other sources.
fn print_sanitized(text: String) -> Result<(), Failure> {
    print(&sanitize(&text))
}

fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().write_all(text.as_bytes()) {
        // The reader has closed the pipe: `komainu schema | head`.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        done => done.map_err(Failure::from),
    }
}

fn print_manual() -> Result<(), Failure> {
    let mut page = Vec::new();
    let command = Cli::command();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let named = sub.clone().name(format!("komainu-{}", sub.get_name()));
        clap_mangen::Man::new(named).render(&mut page)?;
    }
    print(&String::from_utf8_lossy(&page))
}
