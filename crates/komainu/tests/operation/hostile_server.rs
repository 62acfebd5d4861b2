//! A server process under an attacker's control, and the requests that its supervisor, which keeps root
//! privileges, grants to it.
//!
//! The test stops the server and speaks over the server's end of the link.

use std::fs;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred, socket_type};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketType, recvmsg, sendmsg,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal};

use crate::hosted::{is_alive, kill, server, status};
use crate::line::Line;
use crate::privileges::{can_be_tested, of_user, start};
use crate::rig::{Folder, Rig, eventually};

/// The stopped server's end of the link.
struct Hostile {
    pid: u32,
    link: OwnedFd,
}

fn pidfd(pid: u32) -> OwnedFd {
    pidfd_open(Pid::from_raw(pid.cast_signed()).unwrap(), PidfdFlags::empty()).unwrap()
}

impl Hostile {
    fn of(rig: &Rig) -> Hostile {
        let pid = status(rig)["pid"].as_u64().unwrap() as u32;
        assert!(kill(pid, "-STOP"));
        eventually("it is stopped", || {
            fs::read_to_string(format!("/proc/{pid}/stat"))
                .unwrap()
                .rsplit(')')
                .next()
                .unwrap()
                .trim()
                .starts_with('T')
        });
        let process = pidfd(pid);
        let numbers = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        let mut numbers =
            numbers.map(|entry| entry.unwrap().file_name().to_string_lossy().parse::<i32>().unwrap());
        let link = numbers.find_map(|number| {
            let copy = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok()?;
            let is_link = socket_type(&copy).is_ok_and(|kind| kind == SocketType::SEQPACKET)
                && socket_peercred(&copy)
                    .is_ok_and(|peer| peer.pid.as_raw_pid().cast_unsigned() == rig.child.id());
            is_link.then_some(copy)
        });
        let link = link.expect("the server has its link");
        set_socket_timeout(&link, Timeout::Recv, Some(Duration::from_secs(20))).unwrap();
        Hostile { pid, link }
    }

    fn send(&self, text: &str, descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(128))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        // The supervisor may have closed the link.
        let _ = sendmsg(&self.link, &[IoSlice::new(text.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL);
    }

    /// Sends a request and returns the answer; `None` if the supervisor has closed the link.
    fn ask(&self, text: &str, descriptors: &[BorrowedFd<'_>]) -> Option<(String, Vec<OwnedFd>)> {
        self.send(text, descriptors);
        self.receive()
    }

    /// Receives a packet; `None` if the supervisor has closed the link.
    fn receive(&self) -> Option<(String, Vec<OwnedFd>)> {
        let mut bytes = vec![0; 65_536];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(128))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&self.link, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
                .ok()?;
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                descriptors.extend(more);
            }
        }
        let text = String::from_utf8_lossy(&bytes[..received.bytes]).into_owned();
        (received.bytes > 0).then_some((text, descriptors))
    }

    #[track_caller]
    fn assert_refused(&self, text: &str, descriptors: &[BorrowedFd<'_>]) {
        let (answer, got) = self.ask(text, descriptors).expect("the supervisor answers");
        assert!(
            answer.starts_with("error ") && got.is_empty(),
            "{text}: {answer} with {} descriptors",
            got.len()
        );
    }
}

/// Starts a server that runs as 65534 with an application that runs as 65533 and has a file, a log and a
/// socket open.
fn serving() -> Rig {
    serving_for(65533, "workers = 1")
}

/// Like [`serving`], with the application's user and its settings.
fn serving_for(user: u32, more: &str) -> Rig {
    let app = "open our $readable, '<', 'own.txt' or die; open our $written, '>', 'log.txt' or die; \
        use IO::Socket::INET; our $socket = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1') or die; \
        sub { [200, [], [join ' ', $$, map { fileno $_ } $readable, $written, $socket]] }";
    let rig = of_user(user, app, more);
    rig.folder.write("secret", "only root");
    rig
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lines = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lines
        .flat_map(|line| line.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>())
        .collect()
}

#[test]
fn hostile_server_gets_only_files_opened_by_applications() {
    if !can_be_tested() {
        return;
    }
    let rig = serving();
    let answer = rig.get("/").expect_status(200).text();
    let numbers: Vec<u32> = answer.split(' ').map(|number| number.parse().unwrap()).collect();
    let [worker, readable, written, socket] = numbers[..] else { panic!("{answer}") };
    let hostile = Hostile::of(&rig);
    let process = pidfd(worker);
    let app = "shop";
    let (answer, files) = hostile.ask(&format!("file {app} {readable}"), &[process.as_fd()]).unwrap();
    assert_eq!((answer.as_str(), files.len()), ("file", 1), "{answer}");
    let mut text = String::new();
    fs::File::from(files.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello");
    for number in [written, socket, 0, 1, 9_999] {
        hostile.assert_refused(&format!("file {app} {number}"), &[process.as_fd()]);
    }
    // Processes that do not belong to the application: the supervisor, its server, the test, and another one
    // of the application's user.
    let stranger = stranger(65533);
    for pid in [rig.child.id(), hostile.pid, std::process::id(), stranger.0] {
        for request in ["file shop 0", "usage shop"] {
            hostile.assert_refused(request, &[pidfd(pid).as_fd()]);
        }
        hostile.send(&format!("signal {app} 9"), &[pidfd(pid).as_fd()]);
    }
    hostile.assert_refused("file other 0", &[process.as_fd()]);
    hostile.assert_refused(&format!("usage {app}"), &[fs::File::open("/dev/null").unwrap().as_fd()]);
    for path in ["/etc/shadow", "secret", rig.folder.at("secret").to_str().unwrap(), "/proc/self/mem"] {
        for word in ["read", "open", "list", "control-file"] {
            hostile.assert_refused(&format!("{word} {path}"), &[]);
        }
    }
    assert!(is_alive(rig.child.id()) && is_alive(worker) && is_alive(stranger.0));
    let (answer, _) = hostile.ask("own-usage", &[]).unwrap();
    assert!(answer.starts_with("usage "), "{answer}");
    assert!(kill(hostile.pid, "-CONT"));
    rig.get("/").expect_status(200);
}

/// A process that is killed on drop.
struct Killed(u32);

impl Drop for Killed {
    fn drop(&mut self) {
        kill(self.0, "-KILL");
    }
}

/// Starts a process of this user that belongs to no server.
fn stranger(user: u32) -> Killed {
    let mut command = Command::new("sleep");
    let child = command.arg("600").uid(user).gid(user).spawn().unwrap();
    let pid = child.id();
    // Reaps it once it was killed.
    std::thread::spawn(move || child.wait_with_output());
    Killed(pid)
}

/// An application with the server's own user: the user ids of its processes are those of the server and of what
/// the server has started itself.
#[test]
fn hostile_server_gets_no_process_of_its_own_user() {
    if !can_be_tested() {
        return;
    }
    // Another application, which the server starts itself.
    let other = r#"
        workers = 1
        [apps.other]
        psgi = "own/app.psgi"
        workers = 1
        [[site]]
        hosts = "other.test"
        [[site.route]]
        app = "other"
    "#;
    let rig = serving_for(65534, other);
    let pid = |host: &str| -> u32 {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        rig.send(&request).expect_status(200).text().split(' ').next().unwrap().parse().unwrap()
    };
    let (worker, other) = (pid("localhost"), pid("other.test"));
    let hostile = Hostile::of(&rig);
    let stranger = stranger(65534);
    let user = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.lines().any(|line| line == "Uid:\t65534\t65534\t65534\t65534")
    };
    let (answer, _) = hostile.ask("usage shop", &[pidfd(worker).as_fd()]).unwrap();
    assert!(answer.starts_with("usage "), "{answer}");
    for pid in [hostile.pid, other, stranger.0] {
        assert!(user(pid), "{pid}");
        hostile.assert_refused("usage shop", &[pidfd(pid).as_fd()]);
        for number in 0..10 {
            hostile.assert_refused(&format!("file shop {number}"), &[pidfd(pid).as_fd()]);
        }
        hostile.send("signal shop 9", &[pidfd(pid).as_fd()]);
        // The supervisor has read the signal when it answers the next request.
        hostile.assert_refused("usage shop", &[pidfd(pid).as_fd()]);
        assert!(is_alive(pid), "{pid}");
    }
    assert!(kill(hostile.pid, "-CONT"));
    rig.get("/").expect_status(200);
}

#[test]
fn hostile_server_learns_only_how_application_processes_end() {
    if !can_be_tested() {
        return;
    }
    let rig = serving_for(65533, "workers = 1\npreload = false");
    let worker: u32 = rig.get("/").expect_status(200).text().split(' ').next().unwrap().parse().unwrap();
    let before = children(rig.child.id());
    let hostile = Hostile::of(&rig);
    assert!(kill(worker, "-KILL"));
    eventually("its end is known", || hostile.ask(&format!("ended {worker}"), &[]).unwrap().0 == "killed 9");
    for pid in [1, rig.child.id(), hostile.pid, std::process::id()] {
        hostile.assert_refused(&format!("ended {pid}"), &[]);
    }
    hostile.send("upgrade", &[]);
    let mut successor = None;
    eventually("there is a successor", || {
        successor = children(rig.child.id()).into_iter().find(|pid| !before.contains(pid));
        successor.is_some()
    });
    let successor = successor.unwrap();
    assert!(kill(successor, "-KILL"));
    // The supervisor resumes a server that is stopped for long.
    assert!(kill(hostile.pid, "-STOP"));
    let (order, _) = hostile.receive().unwrap();
    assert!(order.starts_with("upgrade-failed "), "{order}");
    hostile.assert_refused(&format!("ended {successor}"), &[]);
    assert!(kill(hostile.pid, "-CONT"));
    eventually("the server serves", || rig.get("/").status() == 200);
}

#[test]
fn hostile_server_gets_no_descriptors_of_its_successor() {
    if !can_be_tested() {
        return;
    }
    // Also an application whose user is that of the successor's server.
    for user in [65533, 65534] {
        successor_is_refused(serving_for(user, "workers = 1"));
    }
}

fn successor_is_refused(rig: Rig) {
    rig.get("/").expect_status(200);
    let before = children(rig.child.id());
    let hostile = Hostile::of(&rig);
    hostile.send("upgrade", &[]);
    let until = Instant::now() + Duration::from_secs(20);
    let mut tried = 0;
    // They would outlive the server that has started them.
    let mut successors: Vec<Killed> = Vec::new();
    // The supervisor resumes a server that is stopped for long.
    let stop = || {
        rustix::process::kill_process(
            Pid::from_raw(hostile.pid.cast_signed()).unwrap(),
            rustix::process::Signal::STOP,
        )
        .unwrap();
    };
    set_socket_timeout(&hostile.link, Timeout::Recv, Some(Duration::from_secs(2))).unwrap();
    // From the first moment of the successor, which starts with root privileges, until it serves: the server
    // is the successor's child, and the successor is the supervisor's.
    while Instant::now() < until && tried < 200 {
        stop();
        for successor in children(rig.child.id()).into_iter().filter(|pid| !before.contains(pid)) {
            if successors.iter().all(|known| known.0 != successor) {
                successors.push(Killed(successor));
            }
            for pid in [successor].into_iter().chain(children(successor)) {
                let Ok(process) = pidfd_open(Pid::from_raw(pid.cast_signed()).unwrap(), PidfdFlags::empty())
                else {
                    continue;
                };
                hostile.send("signal shop 19", &[process.as_fd()]);
                for number in [0, 3, 4, 5] {
                    if let Some((answer, got)) =
                        hostile.ask(&format!("file shop {number}"), &[process.as_fd()])
                    {
                        // A command of the supervisor may arrive in between.
                        assert!(got.is_empty() && !answer.starts_with("file"), "{answer}");
                    }
                }
                tried += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(tried > 0, "there is a successor");
    assert!(kill(hostile.pid, "-CONT"));
    eventually("it serves", || rig.get("/").status() == 200);
}

/// Overwrites a variable in the memory from which a process got its environment, as the process could itself.
fn overwrite_variable(pid: u32, known: &str, planted: &str) {
    assert!(planted.len() < known.len());
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // `env_start` is field 50 (proc_pid_stat(5)); the first after the name is field 3.
    let start: u64 = stat.rsplit(')').next().unwrap().split_whitespace().nth(47).unwrap().parse().unwrap();
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let at = environment.windows(known.len()).position(|part| part == known.as_bytes()).unwrap();
    let bytes: Vec<u8> = planted.bytes().chain(std::iter::repeat(0)).take(known.len()).collect();
    let memory = fs::OpenOptions::new().write(true).open(format!("/proc/{pid}/mem")).unwrap();
    memory.write_all_at(&bytes, start + at as u64).unwrap();
}

#[test]
fn hostile_server_does_not_choose_environment_of_its_successor() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    folder.write("www/a", "A").write(
        "komainu.toml",
        r#"
        listen = "127.0.0.1:0"
        user = "65534"
        group = "65534"
        [[route]]
        files = "www"
        "#,
    );
    let mut command = server();
    let known = format!("KOMAINU_TEST={}", "x".repeat(80));
    let (name, value) = known.split_once('=').unwrap();
    command.env("RUNTIME_DIRECTORY", folder.at("run")).env(name, value);
    command.arg("start").arg("-c").arg(folder.at("komainu.toml"));
    let mut line = Line::new(Rig::start(command, folder));
    let environment = |pid: u32| {
        let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap();
        String::from_utf8_lossy(&bytes).split('\0').map(str::to_owned).collect::<Vec<_>>()
    };
    let planted = format!("LD_PRELOAD={}", line.rig.folder.at("planted.so").display());
    let first = line.server().unwrap();
    overwrite_variable(first, &known, &planted);
    assert!(environment(first).contains(&planted), "the server has what it has planted");
    line.upgrade();
    let second = line.server().unwrap();
    assert_ne!(first, second);
    for pid in [line.pid, second] {
        let found = environment(pid);
        assert!(!found.iter().any(|one| one.starts_with("LD_")) && found.contains(&known), "{found:?}");
    }
    line.rig.get("/a").expect(200, "A");
    line.stop();
}

#[test]
fn server_that_sends_invalid_message_is_killed_and_replaced() {
    if !can_be_tested() {
        return;
    }
    let rig = serving();
    for text in ["start", "identity 0 0 0 root", "descriptor 0", "file shop 0"] {
        rig.get("/").expect_status(200);
        let hostile = Hostile::of(&rig);
        hostile.send(text, &[]);
        eventually("it is killed", || !is_alive(hostile.pid));
    }
    rig.get("/").expect_status(200);
    rig.expect_report("it is killed, as it may be under an attacker's control");
}

#[test]
fn supervisor_resumes_stopped_server() {
    if !can_be_tested() {
        return;
    }
    let rig = serving();
    let pid = status(&rig)["pid"].as_u64().unwrap() as u32;
    assert!(kill(pid, "-STOP"));
    eventually("it is continued", || {
        rig.reported().contains("was stopped by a signal for 5 s: it is continued")
    });
    rig.get("/").expect_status(200);
}

/// A log in a directory of the serving user, who replaces the directory by a symbolic link after the start.
#[test]
fn log_reopen_refuses_directory_replaced_by_symbolic_link() {
    if !can_be_tested() {
        return;
    }
    let folder = Folder::new();
    folder.write("www/a", "A").write("theirs/log/nothing", "").write("only-root/nothing", "");
    for path in ["theirs", "theirs/log"] {
        std::os::unix::fs::chown(folder.at(path), Some(65534), Some(65534)).unwrap();
    }
    let rig = start(
        folder,
        r#"
        listen = "127.0.0.1:0"
        user = "65534"
        group = "65534"
        [log]
        access = "combined"
        file = "theirs/log/access.log"
        [[route]]
        files = "www"
        "#,
    );
    rig.get("/a").expect(200, "A");
    let log = rig.folder.at("theirs/log");
    eventually("the log is there", || log.join("access.log").exists());
    fs::rename(&log, rig.folder.at("theirs/old")).unwrap();
    std::os::unix::fs::symlink("../only-root", &log).unwrap();
    rig.signal("-USR1");
    eventually("it is refused", || rig.reported().contains("symbolic link"));
    rig.get("/a").expect(200, "A");
    let found: Vec<_> =
        fs::read_dir(rig.folder.at("only-root")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(found, ["nothing"]);
}

#[test]
fn replaced_server_that_does_not_end_is_killed() {
    if !can_be_tested() {
        return;
    }
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        r#"
        user = "65534"
        group = "65534"
        listen = "127.0.0.1:0"
        timeouts = {{ drain = "5s" }}
        [[route]]
        path = "/wait"
        proxy = "http://{}"
        [[route]]
        respond = "yes"
        "#,
        silent.local_addr().unwrap()
    );
    let mut line = Line::start(Folder::new(), &config);
    let old = line.server().unwrap();
    let mut waiting = line.rig.connect();
    waiting.write_all(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let _asked = silent.accept().unwrap();
    line.upgrade();
    let process = pidfd(old);
    let has_ended = Arc::new(AtomicBool::new(false));
    // It follows no order: the supervisor continues it, which does not help.
    let stops = std::thread::spawn({
        let has_ended = has_ended.clone();
        move || {
            while !has_ended.load(Ordering::Relaxed) {
                let _ = pidfd_send_signal(&process, Signal::STOP);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    });
    eventually("it is killed", || !is_alive(old));
    has_ended.store(true, Ordering::Relaxed);
    stops.join().unwrap();
    assert_eq!(line.rig.get("/").status(), 200);
    line.stop();
}
