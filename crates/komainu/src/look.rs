//! `komainu top`: where the status of the server comes from, and where the figures go.

use std::io::{self, IsTerminal, Write};

use crate::cli::Top;
use crate::control_client;
use crate::status;
use crate::status_fetch::{self, StatusSource};

/// Follows a server in the terminal, or prints what happens within an interval.
///
/// # Errors
/// There is no such server, or it does not answer; the terminal fails.
pub(crate) fn top(arguments: &Top) -> Result<(), String> {
    let mut ask = source(arguments)?;
    let is_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if is_terminal && !arguments.once && !arguments.json {
        let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        return top::screen(ask, arguments.every, has_colour);
    }
    let mut before = ask()?;
    loop {
        std::thread::sleep(arguments.every);
        let now = ask()?;
        let sample = top::StatusInterval::new(now.clone(), Some(&before));
        let text = match arguments.json {
            true => format!("{}\n", top::json(&sample)),
            false => top::text(&sample),
        };
        match io::stdout().write_all(text.as_bytes()) {
            // Who reads has enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(|error| error.to_string())?,
        }
        // Without a terminal text is printed once: nobody reads pages of it.
        if arguments.once || !arguments.json {
            return Ok(());
        }
        before = now;
    }
}

fn source(arguments: &Top) -> Result<StatusSource, String> {
    let Some(address) = &arguments.address else {
        arguments.credentials.refuse_without_address()?;
        let pid = status::one(arguments.pid)?;
        return Ok(Box::new(move || control_client::ask(pid, "status")));
    };
    status_fetch::by_address(address, &arguments.credentials)
}
