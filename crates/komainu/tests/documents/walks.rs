//! Pages whose examples are run as written, one after the other: files are written, commands run, servers
//! started and requests sent.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::commands::words;
use crate::hosted::{server, status};
use crate::pages::{Block, blocks, commands, file_name, page, root};
use crate::rig::{Folder, Rig, as_we_are, environment, eventually, search_path, text};

/// State of a page's examples while they are run.
struct Walk {
    folder: Folder,
    /// Current directory, as changed by `cd`.
    at: PathBuf,
    server: Option<Rig>,
    /// Number of responses that matched the page.
    answers: usize,
}

impl Walk {
    fn new() -> Walk {
        let folder = Folder::new();
        Walk { at: folder.path().to_owned(), folder, server: None, answers: 0 }
    }

    fn block(&mut self, block: &Block) {
        if let Some(name) = file_name(&block.text) {
            let file = self.at.join(name);
            let mut text =
                block.text.replace("127.0.0.1:8080", "127.0.0.1:0").replace("127.0.0.1:8443", "127.0.0.1:0");
            // A service drops its privileges; the test runs as the current user.
            if name.ends_with(".toml") && !text.contains("\nuser ") {
                text.insert_str(0, as_we_are());
            }
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        } else if block.language == "sh" {
            commands(block).into_iter().for_each(|line| self.line(line));
        }
    }

    /// Runs a line: a command and, after `#`, text that its output must contain.
    fn line(&mut self, line: &str) {
        eprintln!("$ {line}");
        let (command, expected) = line.split_once(" #").unwrap_or((line, ""));
        let command = command.trim();
        let expected = expected.trim();
        let is_server = ["komainu run ", "komainu start "].iter().any(|begin| command.starts_with(begin));
        if is_server {
            self.start(command);
            return;
        }
        let is_asked = command.starts_with("curl ");
        let output = if is_asked {
            self.ask(command, expected)
        } else {
            self.shell(&self.addressed(command), expected)
        };
        if is_asked {
            assert!(output.contains(expected), "{line}\n{output}");
            self.answers += 1;
        }
        if let Some((_, folder)) = command.rsplit_once("cd ") {
            self.at.push(folder);
        }
    }

    fn start(&mut self, command: &str) {
        self.server = None;
        let environment = environment();
        assert!(
            environment.exists(),
            "no virtual environment in {} (scripts/setup test)",
            environment.display()
        );
        let mut server = server();
        server.args(words(command).iter().skip(1));
        if command.starts_with("komainu run") {
            server.args(["--listen", "127.0.0.1:0"]);
        }
        server.current_dir(&self.at).env("VIRTUAL_ENV", environment);
        self.server = Some(Rig::start(server, Folder::new()));
    }

    /// Inserts the actual addresses of the server into a command, and selects the server by its process id.
    fn addressed(&self, command: &str) -> String {
        let Some(rig) = &self.server else { return command.to_owned() };
        let command = command.replace("127.0.0.1:8080", &rig.address.to_string());
        let is_order =
            ["reload", "status", "cache"].iter().any(|word| command.starts_with(&format!("komainu {word}")));
        // Shortens measurements to keep the test fast.
        let command = command.replace("-d 2s", "-d 500ms");
        if is_order { format!("{command} --pid {}", rig.child.id()) } else { command }
    }

    fn ask(&self, command: &str, expected: &str) -> String {
        let rig = self.server.as_ref().expect("a server before its client");
        let mut command = self.addressed(command).replacen("curl ", "curl -sS --max-time 30 ", 1);
        if let Some((_, host)) = command.split_once("https://") {
            let host = host.split_once(':').unwrap().0.to_owned();
            let urls = status(rig)["listen"].clone();
            let mut urls = urls.as_array().unwrap().iter().filter_map(|url| url.as_str());
            let url = urls.find(|url| url.starts_with("https://")).expect("an address with TLS").to_owned();
            let port = url.trim_end_matches('/').rsplit_once(':').unwrap().1.to_owned();
            command = command.replace(":8443", &format!(":{port}"))
                + &format!(" --resolve {host}:{port}:127.0.0.1");
        }
        let mut output = String::new();
        let root = "--cacert";
        // The certificate is obtained after the start, so the request is retried.
        let mut answer = || {
            output = self.shell(&command, "");
            output.contains(expected)
        };
        if command.contains(root) {
            eventually("the page is answered over HTTPS", answer)
        } else {
            _ = answer()
        }
        output
    }

    /// Runs a command and returns its output. The command must succeed unless the page shows output.
    fn shell(&self, command: &str, expected: &str) -> String {
        let own = Path::new(env!("CARGO_BIN_EXE_komainu")).parent().unwrap().to_owned();
        let path =
            std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&search_path()))).unwrap();
        let command = command.replace("workers/include", &root().join("workers/include").to_string_lossy());
        let done = Command::new("sh")
            .args(["-c", &command])
            .current_dir(&self.at)
            .env("PATH", path)
            .env("KOMAINU_WORKERS", crate::hosted::modules())
            .output()
            .unwrap();
        let output = text(&done.stdout) + &text(&done.stderr);
        let is_fine = done.status.success() || command.starts_with("curl ") || command.contains("broken");
        assert!(is_fine, "{command}\n{output}");
        assert!(output.contains(expected), "{command}\n{output}");
        output
    }
}

/// Runs the examples of a page in one directory or, unless `is_one`, each section in a directory of its own.
fn walk(name: &str, is_one: bool, answers: usize) {
    let page = page(name);
    let mut walk = Walk::new();
    let mut section = String::new();
    let mut seen = 0;
    for block in blocks(&page) {
        if !is_one && block.section != section {
            section.clone_from(&block.section);
            seen += walk.answers;
            walk = Walk::new();
        }
        walk.block(&block);
    }
    assert_eq!(seen + walk.answers, answers, "answers of {name}");
    drop(walk.folder);
}

#[test]
fn docs_readme_examples_run_as_written() {
    walk("README.md", true, 1);
}

#[test]
fn tutorial_examples_run_as_written() {
    walk("tutorial.md", true, 8);
}

#[test]
fn perl_and_ruby_examples_run_as_written() {
    walk("applications.md", false, 6);
}

#[test]
fn python_examples_run_as_written() {
    walk("python.md", false, 6);
}

#[test]
fn php_examples_run_as_written() {
    walk("php.md", false, 1);
}

#[test]
fn native_examples_run_as_written() {
    walk("native.md", false, 1);
}

#[test]
fn task_page_examples_run_as_written() {
    for (name, answers) in [
        ("django", 2),
        ("fastapi", 1),
        ("rails", 2),
        ("perl", 2),
        ("php", 0),
        ("https", 0),
        ("spa", 2),
        ("cache-api", 4),
        ("limit", 4),
    ] {
        walk(&format!("tasks/{name}.md"), true, answers);
    }
}
