//! A disk that does not answer, below temporary files, cache and logs, delays only the requests that need it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use crate::origin::{Origin, answer};
use crate::rig::space::{FrozenDisk, on_disk, on_loop_disk};
use crate::rig::{self, Folder, Rig, eventually};

/// Number of slow clients: more than there are threads for blocking calls.
const SLOW: usize = 20;
const BYTES: usize = 4_000_000;

/// Number of threads in the server's mount namespace that wait for a disk.
fn blocked_threads(rig: &Rig) -> usize {
    let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
    let own = namespace(&Path::new("/proc").join(rig.child.id().to_string()));
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let threads =
        processes.filter(|process| own.is_some() && namespace(process) == own).flat_map(|process| {
            fs::read_dir(process.join("task")).into_iter().flatten().flatten().map(|entry| entry.path())
        });
    let waits = |thread: &std::path::PathBuf| {
        fs::read_to_string(thread.join("stat")).is_ok_and(|stat| stat.contains("(komainu-blockin) D"))
    };
    threads.filter(waits).count()
}

fn slow_client(rig: &Rig, path: &str) -> TcpStream {
    let mut client = rig.connect();
    write!(client, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    client
}

#[test]
fn frozen_disk_delays_only_requests_that_need_it() {
    for kind in rig::kinds() {
        let large = answer("200 OK", "Cache-Control: no-store\r\n", &"x".repeat(BYTES));
        let small = answer("200 OK", "Cache-Control: max-age=600\r\n", "small");
        let origin = Origin::start(
            move |ask| if ask.line().contains("/large") { large.clone() } else { small.clone() },
        );
        let folder = Folder::new();
        folder.write("www/a.txt", "a file");
        let config = format!(
            r#"
            threads = 1
            {kind}
            temp_path = "disk"
            [log]
            access = "combined"
            file = "disk/access.log"
            errors = "disk/errors.log"
            [cache]
            disk = {{ path = "disk/cache", size = "10MiB" }}
            [[route]]
            path = "/files/*"
            files = {{ root = "www", strip_prefix = "/files" }}
            [[route]]
            path = "/cached/*"
            cache = true
            proxy = "{url}"
            [[route]]
            proxy = "{url}"
            "#,
            url = origin.url
        );
        let Some(rig) = on_loop_disk(folder, &config) else { return };
        rig.get("/cached/before").expect(200, "small");
        eventually("it is cached", || rig.get("/cached/before").is_hit());
        eventually("it is on disk", || {
            fs::read_dir(on_disk(&rig, "cache")).is_ok_and(|files| files.flatten().count() > 3)
        });
        let frozen = FrozenDisk::new(&rig);
        // Removes what is stored on the disk.
        rig.send("POST /cached/before HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect_status(200);
        let mut slow: Vec<_> = (0..SLOW).map(|at| slow_client(&rig, &format!("/large/{at}"))).collect();
        eventually("threads wait for the disk", || blocked_threads(&rig) >= 8);
        for round in 0..10 {
            // A path not asked for before is looked up by another thread.
            rig.get(&format!("/files/none-{round}")).expect_status(404);
            rig.get("/files/a.txt").expect(200, "a file");
            rig.get(&format!("/small/{round}")).expect(200, "small");
            rig.get("/cached/before").expect(200, "small");
            rig.get(&format!("/cached/{round}")).expect(200, "small");
        }
        drop(frozen);
        for client in &mut slow {
            let mut response = Vec::new();
            client.read_to_end(&mut response).unwrap();
            assert!(response.ends_with(&[b'x'; 1000]) && response.len() > BYTES, "{}", response.len());
        }
        eventually("all are logged", || {
            let log = fs::read_to_string(on_disk(&rig, "access.log")).unwrap_or_default();
            (0..SLOW).all(|at| log.contains(&format!("/large/{at} "))) && log.contains("/cached/9 ")
        });
    }
}
