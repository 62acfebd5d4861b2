//! Endurance tests of applications: long runs, large bodies, and killed workers. Each has a short form, which
//! always runs, and a full form, which prints its figures:
//! `cargo test --release -p komainu --test apps_endurance -- --ignored --nocapture --test-threads 1`
#![allow(clippy::print_stderr, clippy::unwrap_used)] // test helpers are test code too

mod hosted;
mod rig;

use std::fs;
use std::io::Read;
use std::time::{Duration, Instant};

use hosted::{Client, Load, kill, processes, ready, start, status, workers};
use rig::{Folder, Rig, eventually, komainu, text};
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Languages of the application: `/hold?NAME` waits for the file NAME.go, `/count` counts the bytes of the
/// body, `/download?MIB` sends that many MiB, `/sleep?S` sleeps; other paths are answered at once.
#[derive(Clone, Copy, Debug)]
enum Language {
    Perl,
    Ruby,
}

const LANGUAGES: [Language; 2] = [Language::Perl, Language::Ruby];

const PERL: &str = r#"
sub {
    my ($env) = @_;
    my ($path, $query) = @{$env}{qw(PATH_INFO QUERY_STRING)};
    if ($path eq '/hold') {
        open my $held, '>', "$query.held" or die;
        close $held;
        select undef, undef, undef, 0.01 until -e "$query.go";
    } elsif ($path eq '/sleep') {
        select undef, undef, undef, $query;
    } elsif ($path eq '/count') {
        my $length = 0;
        while (my $got = $env->{'psgi.input'}->read(my $piece, 65536)) { $length += $got }
        return [200, [], [$length]];
    } elsif ($path eq '/download') {
        return sub {
            my $writer = $_[0]->([200, []]);
            my $piece = 'x' x 65536;
            $writer->write($piece) for 1 .. 16 * $query;
            $writer->close;
        };
    }
    return [200, [], ["answered"]];
}
"#;

const RUBY: &str = r##"
run lambda { |env|
  path, query = env["PATH_INFO"], env["QUERY_STRING"]
  case path
  when "/hold"
    File.write("#{query}.held", "")
    sleep 0.01 until File.exist?("#{query}.go")
  when "/sleep" then sleep query.to_f
  when "/count"
    length, piece = 0, String.new
    length += piece.bytesize while env["rack.input"].read(65536, piece)
    return [200, {}, [length.to_s]]
  when "/download"
    piece = "x" * 65536
    return [200, {}, Enumerator.new { |out| (16 * query.to_i).times { out << piece } }]
  end
  [200, {}, ["answered"]]
}
"##;

impl Language {
    /// Starts a server with the application and these settings.
    fn serve(self, settings: &str) -> Rig {
        let folder = Folder::new();
        let body = "[limits]\nbody = \"8GiB\"\n";
        let kind = match self {
            Language::Perl => ("app.psgi", PERL, "psgi"),
            Language::Ruby => ("config.ru", RUBY, "rack"),
        };
        folder.write(kind.0, kind.1);
        let app = format!("{} = \"{}\"\n{settings}", kind.2, kind.0);
        start(folder, &format!("threads = 1\n{body}{}", hosted::only(&app)))
    }
}

/// Peak resident memory of a process, in MiB.
fn memory_mib_max(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// Kills workers ten times a second under load.
fn killing(language: Language, time: Duration) {
    let rig = language.serve("workers = 4\nqueue = 16");
    ready(&rig, 4);
    let load = Load::start(&rig, 16, "/");
    let mut killed = 0;
    let mut random = fastrand::Rng::with_seed(12_345);
    let until = Instant::now() + time;
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(100));
        let there = workers(&rig);
        let Some(victim) = random.choice(&there) else { continue };
        killed += usize::from(kill(*victim, "-KILL"));
    }
    load.wait_for_good(100);
    let good = load.good();
    // No client hangs.
    let bad = load.finish();
    let lost = bad.iter().filter(|status| **status == 502).count();
    eprintln!("{language:?}: {killed} workers killed, {good} answers, {lost} lost");
    assert!(killed > 5 && bad.len() <= killed && lost == bad.len(), "{killed} killed: {bad:?}");
    all_slots_are_there(&rig);
}

/// Checks that all workers and queue slots can be occupied without a refused request.
fn all_slots_are_there(rig: &Rig) {
    ready(rig, 4);
    let mut clients: Vec<Client> = (0..4)
        .map(|at| {
            let mut client = Client::new(rig.address);
            client.send(format!("GET /hold?{at} HTTP/1.1\r\nHost: a\r\n\r\n"));
            eventually("a worker has it", || rig.folder.at(&format!("{at}.held")).exists());
            client
        })
        .collect();
    for _ in 0..16 {
        let mut client = Client::new(rig.address);
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        clients.push(client);
    }
    for at in 0..4 {
        rig.folder.write(&format!("{at}.go"), "");
    }
    clients.iter_mut().for_each(|client| assert_eq!(client.answer(), (200, "answered".to_owned())));
    assert!(processes(rig).iter().all(|process| process.state != "killed"));
}

#[test]
fn killed_workers_are_replaced_under_load() {
    LANGUAGES.into_iter().for_each(|language| killing(language, Duration::from_secs(3)));
}

#[test]
#[ignore = "a minute"]
fn killed_workers_are_replaced_under_load_in_full() {
    LANGUAGES.into_iter().for_each(|language| killing(language, Duration::from_secs(30)));
}

/// Transfers `mib` MiB in each direction and checks that neither server nor worker grows.
fn large_bodies(language: Language, mib: u64) {
    let rig = language.serve("workers = 1");
    let worker = ready(&rig, 1)[0];
    let mut client = Client::new(rig.address);
    let piece = vec![b'x'; MIB as usize];
    let upload = |client: &mut Client, mib: u64| {
        client.send(format!("POST /count HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", mib * MIB));
        (0..mib).for_each(|_| client.send(&piece));
        assert_eq!(client.answer(), (200, (mib * MIB).to_string()));
    };
    let download = |client: &mut Client, mib: u64| {
        client.send(format!("GET /download?{mib} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let head = client.head();
        let mut bytes = 0;
        client.body(&head, |piece| bytes += piece.len() as u64);
        assert_eq!(bytes, mib * MIB);
    };
    // Memory of the first transfers is allocated only once.
    upload(&mut client, 16);
    download(&mut client, 16);
    let memory = || (memory_mib_max(rig.child.id()), memory_mib_max(worker));
    let before = memory();
    let begun = Instant::now();
    upload(&mut client, mib);
    let up = begun.elapsed();
    let between = Instant::now();
    download(&mut client, mib);
    let down = between.elapsed();
    let after = memory();
    eprintln!(
        "{language:?}: {mib} MiB up in {up:.1?}, down in {down:.1?}; at most {} MiB in the server and {} MiB in the \
         worker, {} and {} before",
        after.0, after.1, before.0, before.1
    );
    assert!(after.0 <= before.0 + 8 && after.1 <= before.1 + 8, "{before:?} MiB became {after:?}");
}

#[test]
fn large_bodies_do_not_increase_memory() {
    LANGUAGES.into_iter().for_each(|language| large_bodies(language, 256));
}

#[test]
#[ignore = "a minute"]
fn large_bodies_do_not_increase_memory_in_full() {
    LANGUAGES.into_iter().for_each(|language| large_bodies(language, 5 * 1024));
}

/// Keeps `clients` connections open on 4 workers, with occasional requests.
fn many_clients(language: Language, clients: u32, arguments: &[&str]) -> Value {
    let rig = language.serve("workers = 4");
    ready(&rig, 4);
    let mut bench = komainu();
    bench.args(["bench", "--format", "json", "-q", "-c", &clients.to_string()]).args(arguments);
    let done = bench.args(["--expect", "errors = 0"]).arg(rig.url("/")).output().unwrap();
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
    let requests: u64 = processes(&rig).iter().map(|process| process.requests).sum();
    assert!(requests >= u64::from(clients), "{requests} requests of {clients} clients");
    let server = memory_mib_max(rig.child.id());
    eprintln!("{language:?}: {clients} clients, {requests} requests, at most {server} MiB in the server");
    assert!(server < 64, "{server} MiB");
    assert_eq!(status(&rig)["apps"][0]["processes"].as_array().unwrap().len(), 5);
    serde_json::from_slice(&done.stdout).unwrap()
}

#[test]
fn few_workers_serve_many_connections() {
    for language in LANGUAGES {
        many_clients(language, 500, &["-n", "1500", "--think", "100ms"]);
    }
}

#[test]
#[ignore = "a minute; wants 20,000 descriptors"]
fn few_workers_serve_many_connections_in_full() {
    for language in LANGUAGES {
        let reported = many_clients(
            language,
            10_000,
            &["-d", "20s", "--ramp", "5s", "--warm-up", "6s", "--think", "5s", "--expect", "p99 < 50ms"],
        );
        let of = |key: &str| reported["figures"][key].as_f64().unwrap();
        eprintln!("{language:?}: {:.0} requests/s, 99 % within {:.0} µs", of("requests_per_s"), of("p99_us"));
    }
}

/// Quick requests are answered while any worker is free, however long other requests take.
#[test]
fn quick_requests_do_not_wait_behind_slow_ones() {
    for language in LANGUAGES {
        let rig = language.serve("workers = 8");
        ready(&rig, 8);
        let mut slow: Vec<Client> = Vec::new();
        for at in 0..7 {
            let mut client = Client::new(rig.address);
            client.send(format!("GET /hold?{at} HTTP/1.1\r\nHost: a\r\n\r\n"));
            eventually("a worker has it", || rig.folder.at(&format!("{at}.held")).exists());
            slow.push(client);
            let load = Load::start(&rig, 8, "/");
            load.wait_for_good(200);
            assert_eq!(load.finish(), [0u16; 0]);
        }
        for at in 0..7 {
            rig.folder.write(&format!("{at}.go"), "");
        }
        slow.iter_mut().for_each(|client| assert_eq!(client.answer().0, 200));
    }
}

/// A tenth of the requests sleep for a second, on 8 workers; 20 clients pause for about a second between
/// requests.
#[test]
#[ignore = "half a minute"]
fn quick_requests_do_not_wait_behind_slow_ones_in_full() {
    for language in LANGUAGES {
        let rig = language.serve("workers = 8");
        ready(&rig, 8);
        let until = Instant::now() + Duration::from_secs(15);
        let clients = (0..20_u64).map(|number| {
            let address = rig.address;
            std::thread::spawn(move || {
                let mut client = Client::new(address);
                let mut random = fastrand::Rng::with_seed(number);
                let mut times = Vec::new();
                while Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(random.u64(500..1500)));
                    if random.u8(..10) == 0 {
                        assert_eq!(client.get("/sleep?1").0, 200);
                        continue;
                    }
                    let begun = Instant::now();
                    assert_eq!(client.get("/").0, 200);
                    times.push(begun.elapsed());
                }
                times
            })
        });
        let clients: Vec<_> = clients.collect();
        let mut times: Vec<Duration> =
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        eprintln!(
            "{language:?}: {} quick requests: median {:.1?}, 99 % within {:.1?}, the longest {:.1?}",
            times.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
        assert!(at(0.99) < Duration::from_millis(100));
    }
}

/// While the client reads nothing, the server buffers enough to free the worker, but not the whole response.
#[test]
fn stalled_client_uses_bounded_server_memory() {
    for language in LANGUAGES {
        let rig = language.serve("workers = 2");
        ready(&rig, 2);
        let mut stream = rig.connect();
        std::io::Write::write_all(
            &mut stream,
            b"GET /download?256 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        )
        .unwrap();
        let mut first = [0; 1];
        stream.read_exact(&mut first).unwrap();
        let mut client = Client::new(rig.address);
        (0..200).for_each(|_| assert_eq!(client.get("/").0, 200));
        assert!(memory_mib_max(rig.child.id()) < 64);
        let taken = std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
        assert!(taken > 256 * MIB);
    }
}
