//! Features of other Rack servers beyond the Rack specification.

use crate::hosted::{Client, folder, logged, only, ready, start};
use crate::rig::{Rig, eventually};

fn ruby(text: &str) -> Rig {
    let app = only("rack = \"app.rb\"\nworkers = 1");
    let rig = start(folder("app.rb", text), &format!("threads = 1\n{app}"));
    ready(&rig, 1);
    rig
}

#[test]
fn rack_after_reply_callables_run_once_after_the_response() {
    let rig = ruby(
        "lambda do |env|\n  case env['PATH_INFO']\n  when '/one'\n    \
         env['rack.after_reply'] << -> { sleep 0.01 until File.exist?('gate'); warn 'the first ran' }\n    \
         env['rack.after_reply'] << -> { raise 'on purpose' } << -> { warn 'the last ran' }\n  \
         when '/own' then env['rack.after_reply'] = [-> { warn 'its own ran' }]\n  \
         when '/frozen' then env['rack.after_reply'].freeze\n  \
         when '/nil' then env['rack.after_reply'] = nil\n  end\n  \
         [200, {}, [env['rack.after_reply'].inspect.size < 5 ? 'empty' : 'filled']]\nend\n",
    );
    let mut client = Client::new(rig.address);
    assert_eq!(client.get("/one"), (200, "filled".into()));
    assert!(!rig.reported().contains("ran"), "{}", rig.reported());
    rig.folder.write("gate", "");
    logged(&rig, "the last ran");
    for path in ["/frozen", "/nil", "/own", "/", "/one", "/"] {
        assert_eq!(client.get(path).0, 200, "{path}");
    }
    assert_eq!(client.get("/"), (200, "empty".into()));
    // Log lines may arrive after the response.
    eventually("the last line is logged", || rig.reported().matches("the last ran").count() == 2);
    let log = rig.reported();
    for (text, count) in [("the first ran", 2), ("on purpose", 2), ("the last ran", 2), ("its own ran", 1)] {
        assert_eq!(log.matches(text).count(), count, "{text}: {log}");
    }
}

#[test]
fn small_request_body_is_rewindable_with_rack_3() {
    let app = "lambda do |env|\n  input = env['rack.input']\n  first = input.read\n  \
               next [200, {}, [\"no rewind of #{first.size}\"]] unless input.respond_to?(:rewind)\n  \
               input.rewind\n  [200, {}, [first + input.read]]\nend\n";
    let rig = ruby(&format!("module Rack; RELEASE = '3.1.0'; end\n{app}"));
    let mut client = Client::new(rig.address);
    assert_eq!(client.post("/", "one"), (200, "oneone".into()));
    assert_eq!(client.post("/", ""), (200, String::new()));
    assert_eq!(client.post("/", &"x".repeat(100_000)), (200, "x".repeat(200_000)));
    assert_eq!(client.post("/", &"x".repeat(300_000)), (200, "no rewind of 300000".into()));
    // `rewindable_input = false` applies to every request body.
    let folder = folder("app.rb", &format!("module Rack; RELEASE = '3.1.0'; end\n{app}"));
    folder.write("komainu.rb", "Komainu.rewindable_input = false\n");
    let rig = start(folder, &format!("threads = 1\n{}", only("rack = \"app.rb\"\nworkers = 1")));
    assert_eq!(Client::new(rig.address).post("/", "one"), (200, "no rewind of 3".into()));
}
