//! Rack: locating and loading of applications, process lifecycle hooks, and frameworks.

use std::path::Path;
use std::time::Duration;

use crate::rig::{Rig, modules, scratch, until};
use apps::{Options, Workers};

fn ruby(file: &Path, adapt: impl FnOnce(&mut Options)) -> Rig {
    let worker = modules("ruby").join("worker.rb");
    let mut options = Options::new("shop", vec!["ruby".into(), worker.into(), file.into()]);
    options.settings.timeouts.stop = Duration::from_millis(5_000);
    options.settings.show_errors = true;
    adapt(&mut options);
    Rig::start(options)
}

fn ours(file: &str) -> Rig {
    ruby(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ruby").join(file), |_| {})
}

#[test]
fn ruby_files_without_rack_are_served() {
    ours("handler.rb").get("/").expect(200, "handled, without Rack");
    ours("value.rb").get("/").expect(200, "the last value");
}

#[test]
fn ruby_load_error_is_reported() {
    let rig = ours("broken.ru");
    let answer = rig.get("/");
    assert_eq!(answer.status, 500);
    assert!(answer.text().contains("the database is not there"), "{}", answer.text());
    rig.logged("the database is not there");
}

#[test]
fn gemfile_next_to_the_application_is_used() {
    // Bundler writes the lock file beside the Gemfile.
    let folder = scratch("rack-bundle");
    for name in ["Gemfile", "config.ru"] {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ruby/bundle").join(name);
        std::fs::copy(from, folder.join(name)).unwrap();
    }
    ruby(&folder.join("config.ru"), |_| {}).get("/").expect(200, "bundled, sinatra not found");
    std::fs::write(folder.join("Gemfile"), "gem \"no-such-gem-anywhere\"\n").unwrap();
    let rig = ruby(&folder.join("config.ru"), |_| {});
    assert_eq!(rig.get("/").status, 500);
    rig.logged("no-such-gem-anywhere");
}

#[test]
fn process_lifecycle_hooks_are_called() {
    for (preload, loads, forks) in [(true, 1, 2), (false, 2, 0)] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ruby/hooks/config.ru");
        let rig = ruby(&file, |options| {
            options.settings.preload = preload;
            options.workers = Workers { min: 2, max: 2 };
        });
        let pids = rig.ready(2);
        let log = rig.log();
        assert_eq!(log.matches("loaded in").count(), loads, "{log}");
        assert_eq!(log.matches("and so did config.ru").count(), loads, "{log}");
        assert_eq!(log.matches("forking in").count(), forks, "{log}");
        for pid in &pids {
            assert!(log.contains(&format!("forked: {pid}")), "{log}");
        }
        rig.connect().post("/", b"body").expect(200, "falsebody");
        rig.app.reload();
        until("both to leave", || pids.iter().all(|pid| rig.log().contains(&format!("leaving: {pid}"))));
    }
}

#[test]
fn sinatra_runs() {
    let rig = ours("sinatra.ru");
    let mut client = rig.connect();
    client.get("/?name=J%C3%BCrgen+B").expect(200, "hello Jürgen B");
    client.get("/split/a/b%20c").expect(200, "a/b c");
    client.get("/stream").expect(200, "0\n1\n2\n");
    let file = client.get("/file");
    assert!(file.status == 200 && file.text().contains("class Shop < Sinatra::Base"));
    assert_eq!(file.field("content-length"), Some(file.body.len().to_string().as_str()));
    let form = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\nthe file\r\n--b--\r\n";
    client.send(format!(
        "POST /upload HTTP/1.1\r\nHost: a\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: {}\r\n\r\n{form}",
        form.len(),
    ));
    client.answer().expect(200, "a.txt the file");
    assert_eq!(client.get("/raise").status, 500);
    rig.logged("in Sinatra");
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET /?name=x HTTP/1.1\r\nHost: a\r\n\r\n");
    client.through("\r\n\r\n");
    client.answer().expect(200, "hello x");
}

#[test]
fn rails_runs() {
    let rig = ours("rails.ru");
    let mut client = rig.connect();
    client.get("/?name=J%C3%BCrgen+B").expect(
        200,
        "{\"name\":\"Jürgen B\",\"path\":\"/?name=J%C3%BCrgen+B\",\"host\":\"shop.example:8080\"}",
    );
    client.post("/echo", b"a=1&b=2").expect(200, "a=1&b=2");
    let file = client.get("/file");
    assert!(file.status == 200 && file.text().contains("class Shop < Rails::Application"));
    let cookies = client.get("/cookie");
    assert_eq!((cookies.status, cookies.head.matches("Set-Cookie: ").count()), (204, 2), "{}", cookies.head);
    assert_eq!(client.get("/raise").status, 500);
    rig.logged("on Rails");
    assert_eq!(client.get("/nowhere").status, 404);
}

/// The intermediate process of a double fork must not become a prototype or a worker.
#[test]
fn failed_second_fork_of_a_double_fork_is_retried() {
    let file = scratch("rack-half-a-fork").join("halves.rb");
    let text = r##"
OWNER = Process.pid
FAILURES = "#{__FILE__}.failures"
File.write(FAILURES, "")
Process.singleton_class.prepend(Module.new do
  def _fork
    if Process.pid != OWNER && File.size(FAILURES) < 3
      File.write(FAILURES, "x", mode: "a")
      raise Errno::EAGAIN
    end
    super
  end
end)
->(_) { [200, {}, ["forked"]] }
"##;
    std::fs::write(&file, text).unwrap();
    let rig = ruby(&file, |options| options.workers = Workers { min: 1, max: 1 });
    rig.logged("the prototype could not fork");
    rig.ready(1);
    until("an answer", || rig.get("/").status == 200);
}
