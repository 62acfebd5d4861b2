use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};

use super::*;

struct TestFolder(PathBuf);

impl TestFolder {
    fn new(name: &str) -> TestFolder {
        let path = std::env::temp_dir().join(format!("komainu-sink-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        TestFolder(path)
    }
}

impl Drop for TestFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn fifo_is_opened_without_a_reader_and_written_later() {
    let scratch = TestFolder::new("fifo");
    let path = scratch.0.join("fifo");
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let sink = LogSink::open(LogTarget::File(path.clone())).unwrap();
    sink.write(b"lost\n".to_vec());
    while sink.counts.waiting_bytes.load(Ordering::Relaxed) > 0 {
        std::thread::yield_now();
    }
    let mut reader = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(&path)
        .unwrap();
    sink.write(b"kept\n".to_vec());
    sink.close();
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "kept\n");
}

#[test]
fn lines_collected_before_a_rotation_go_to_the_old_file() {
    let scratch = TestFolder::new("rotation");
    let path = scratch.0.join("log");
    let old = scratch.0.join("log.1");
    let sink = LogSink::open(LogTarget::File(path.clone())).unwrap();
    let mut collector = sink.collector();
    std::fs::rename(&path, &old).unwrap();
    let theirs = sink.clone();
    let core = std::thread::spawn(move || {
        while theirs.counts.rotations.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        theirs.write(b"before\n".to_vec());
        collector.record_hand_over();
    });
    sink.reopen();
    sink.write(b"after\n".to_vec());
    core.join().unwrap();
    sink.close();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    assert_eq!((read(&old), read(&path)), ("before\n".into(), "after\n".into()));
}
