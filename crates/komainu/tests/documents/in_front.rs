//! The page "In front of your app": each of its examples is run as written.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::rig;
use crate::rig::{Folder, Rig, eventually, komainu, read_answer};

/// A code block of the page.
struct Block {
    /// Heading of the section that contains the block.
    section: String,
    language: String,
    text: String,
}

fn page() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/proxy.md")).unwrap()
}

fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut section = String::new();
    let mut open = None::<Block>;
    for line in page.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => {
                let section = section.clone();
                let language = language.to_owned();
                open = Some(Block { section, language, text: String::new() });
            }
            (None, Some(block)) => block.text.extend([line, "\n"]),
            (None, None) => {
                if let Some(heading) = line.strip_prefix("## ") {
                    heading.clone_into(&mut section);
                }
            }
        }
    }
    blocks
}

/// The file name in the first line of a file: `# app.py` or `// server.js`.
fn file_name(text: &str) -> Option<&str> {
    let (mark, name) = text.lines().next()?.split_once(' ')?;
    (matches!(mark, "#" | "//") && name.contains('.') && !name.contains(' ')).then_some(name)
}

/// A process group, killed on drop.
struct App(Child);

impl Drop for App {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.0.wait();
    }
}

/// Runs the example of a section and sends a request to it.
fn example(section: &str, program: &str, greeting: &str) {
    use std::os::unix::process::CommandExt;
    if rig::installed(program).is_none() {
        return;
    }
    let page = page();
    let folder = Folder::new();
    let blocks = blocks(&page);
    let mut config = String::new();
    let mut command = None;
    for block in blocks.iter().filter(|block| block.section.is_empty() || block.section == section) {
        match (block.language.as_str(), file_name(&block.text)) {
            (_, Some("komainu.toml")) => config.clone_from(&block.text),
            (_, Some(name)) => drop(folder.write(name, &block.text)),
            ("console", None) if block.section == section => {
                command = block.text.strip_prefix("$ ").map(str::trim_end);
            }
            _ => {}
        }
    }
    let command = command.expect("the section has a command");
    assert!(command.starts_with(program), "{command}");
    folder.write("public/hello.txt", "a file");
    let log = fs::File::create(folder.at("app.log")).unwrap();
    let mut app = Command::new("sh");
    app.args(["-c", &format!("exec {command}")])
        .current_dir(folder.path())
        .env("PATH", rig::search_path())
        .process_group(0);
    let _app = App(app.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    let reported = folder.at("app.log");
    eventually(&format!("{program} listens; its log is {}", reported.display()), || {
        UnixStream::connect(folder.at("app.sock")).is_ok()
    });
    assert!(config.contains("127.0.0.1:8080"));
    folder.write("komainu.toml", format!("{}{}", rig::as_we_are(), config.replace(":8080", ":0")));
    let mut server = komainu();
    server.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let rig = Rig::start(server, folder);
    let mut stream = rig.connect();
    for _ in 0..50 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n").unwrap();
        let answer = read_whole(&mut stream);
        assert_eq!(answer, format!("{greeting}, for 127.0.0.1 by http\n"));
    }
    rig.get("/hello.txt").expect(200, "a file");
    let posted =
        rig.send("POST /hello.txt HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc");
    posted.expect_status(200);
}

/// Reads a 200 response with either framing and returns its body.
fn read_whole(stream: &mut std::net::TcpStream) -> String {
    let answer = read_answer(stream);
    answer.expect_status(200);
    match answer.field("Transfer-Encoding") {
        None => answer.text(),
        Some(_) => {
            let mut body = String::new();
            loop {
                let size = read_line(stream);
                if size == "0" {
                    read_line(stream);
                    return body;
                }
                let mut chunk = vec![0; usize::from_str_radix(&size, 16).unwrap() + 2];
                std::io::Read::read_exact(stream, &mut chunk).unwrap();
                body.push_str(std::str::from_utf8(&chunk[..chunk.len() - 2]).unwrap());
            }
        }
    }
}

fn read_line(stream: &mut std::net::TcpStream) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\r\n") {
        std::io::Read::read_exact(stream, &mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

#[test]
fn starman_example_runs_behind_the_proxy() {
    example("Starman (Perl)", "starman", "Starman");
}

#[test]
fn puma_example_runs_behind_the_proxy() {
    example("Puma (Ruby)", "puma", "Puma");
}

#[test]
fn gunicorn_example_runs_behind_the_proxy() {
    example("gunicorn (Python)", "gunicorn", "gunicorn");
}

#[test]
fn node_example_runs_behind_the_proxy() {
    example("Node", "node", "Node");
}

#[test]
fn every_configuration_of_the_page_is_valid() {
    let page = page();
    let folder = Folder::new();
    folder.write("public/hello.txt", "");
    let tomls: Vec<Block> = blocks(&page).into_iter().filter(|block| block.language == "toml").collect();
    assert!(tomls.len() >= 2);
    folder.certify();
    for (made, named) in
        [("cert.pem", "proxy.pem"), ("key.pem", "proxy.key"), ("cert.pem", "internal-ca.pem")]
    {
        fs::copy(folder.at(made), folder.at(named)).unwrap();
    }
    for block in tomls {
        folder.write("komainu.toml", &block.text);
        let output = komainu().args(["check", "-c"]).arg(folder.at("komainu.toml")).output().unwrap();
        assert!(output.status.success(), "{}\n{}", block.text, rig::text(&output.stderr));
    }
}
