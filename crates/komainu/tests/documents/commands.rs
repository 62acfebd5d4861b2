//! Every command on the pages is accepted by the program.

use std::time::{Duration, Instant};

use crate::pages::{blocks, commands, pages};
use crate::rig::{komainu, text};

/// Shell syntax that ends the command's own arguments.
const SHELL: [&str; 6] = [" > ", " 2> ", " | ", " && ", " #", " &"];

/// The words of a command, as a shell splits them.
pub(crate) fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = None::<String>;
    let mut quote = None;
    for letter in command.chars() {
        match quote {
            Some(open) if letter == open => quote = None,
            None if matches!(letter, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            None if letter == ' ' => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    words
}

#[test]
fn every_documented_command_is_accepted() {
    let mut count = 0;
    for (name, page) in pages() {
        let blocks = blocks(&page);
        for line in blocks.iter().flat_map(commands).filter_map(|line| line.strip_prefix("komainu ")) {
            let end = SHELL.iter().filter_map(|mark| line.find(mark)).min().unwrap_or(line.len());
            let line = line[..end].trim();
            // Arguments before `--help` are parsed before the help is shown, and the command is not run.
            let mut command = komainu();
            // Behind `--` it would be one of the arguments of another program.
            let own = line.split(" -- ").next().unwrap_or(line);
            command.args(words(own)).arg("--help").stdin(std::process::Stdio::null());
            let mut child = command
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            let until = Instant::now() + Duration::from_secs(30);
            while child.try_wait().unwrap().is_none() {
                if Instant::now() > until {
                    child.kill().unwrap();
                    panic!("{name}: `komainu {line}` does something in place of its help");
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{name}: komainu {line}\n{}", text(&output.stderr));
            assert!(text(&output.stdout).contains("Usage"), "{name}: komainu {line}");
            count += 1;
        }
    }
    assert!(count > 60, "{count} commands were found");
}
