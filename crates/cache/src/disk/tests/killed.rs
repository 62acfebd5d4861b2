//! Tests with a process that is killed while it stores.

use super::*;

/// Stores responses until it is killed; run as a separate process by the test below.
#[test]
#[ignore = "the process that is killed"]
fn stores_until_it_is_killed() {
    let Some(path) = std::env::var_os("KOMAINU_DISK_KILLED") else { return };
    // Owned by the process that kills this one.
    let folder = std::mem::ManuallyDrop::new(Folder(path.into()));
    let rig = rig_with(options(&folder, 8 << 30));
    for n in 0.. {
        rig.put(&format!("http://a/{n}"), &[], &content(n));
        while rig.disk().shared.queued_bytes.load(Ordering::Relaxed) > 16 * MIB {
            std::thread::yield_now();
        }
    }
}

/// Kills a storing process after it has written `count` responses, and compares every byte of its files.
fn survives_kill_9_while_storing(count: usize) {
    let folder = Folder::new();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "disk::tests::killed::stores_until_it_is_killed"])
        .env("KOMAINU_DISK_KILLED", &folder.0)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while !folder.0.join("run").exists() || folder.files().len() < count {
        assert!(child.try_wait().unwrap().is_none(), "it stores until it is killed");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let files = folder.files().len();
    let second = rig_with(options(&folder, 8 << 30));
    assert_eq!((second.reported(), second.disk().stats().files), (vec!["Opened".to_owned()], files as u64));
    for n in 0..files {
        assert!(
            second.body(&format!("http://a/{n}")).is_some_and(|body| body == content(n)),
            "{n} of {files}"
        );
    }
    assert_eq!((second.body(&format!("http://a/{files}")), second.disk().stats().dropped), (None, 0));
}

#[test]
fn kill_9_while_storing_loses_no_written_response() {
    survives_kill_9_while_storing(300);
}

#[test]
#[ignore = "100,000 files"]
fn kill_9_while_storing_100000_responses_loses_none() {
    survives_kill_9_while_storing(100_000);
}
