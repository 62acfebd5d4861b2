//! Tests on a real file system, each in a folder of its own.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use super::*;
use crate::scratch::ScratchFolder;

fn describe(root: &Root, path: &str) -> String {
    let look = |patience| match root.open_path(path.as_bytes(), patience) {
        Ok(OpenResult::File(file, stamp)) => {
            String::from_utf8(read(&file, stamp.size, BlockingMode::Blocking).unwrap()).unwrap()
        }
        Ok(OpenResult::Folder(_)) => "(folder)".into(),
        Ok(OpenResult::Missing) => "(missing)".into(),
        Ok(OpenResult::Refused(reason)) => reason.into(),
        Err(OpenError::WouldBlock) => "(would block)".into(),
        Err(trouble) => format!("{trouble:?}"),
    };
    let patient = look(BlockingMode::Blocking);
    let quick = look(BlockingMode::CacheOnly);
    assert!(quick == patient || quick == "(would block)", "{path}: {quick}, but {patient}");
    patient
}

fn root(scratch: &ScratchFolder, symlinks: Symlinks) -> Root {
    Root::open(&scratch.path("root"), symlinks).unwrap()
}

/// A file system that is mounted below the root may be remote.
#[test]
fn mounts_below_the_root_are_left_to_other_threads() {
    let root = Root::open(Path::new("/"), Symlinks::Follow).unwrap();
    for (path, quick) in [("/proc/version", false), ("/", true)] {
        let found = root.open_path(path.as_bytes(), BlockingMode::CacheOnly);
        assert_eq!(found.is_ok(), quick, "{path}");
        assert!(root.open_path(path.as_bytes(), BlockingMode::Blocking).is_ok());
    }
    assert!(matches!(root.has_file(b"/proc/version", BlockingMode::CacheOnly), Err(OpenError::WouldBlock)));
    assert!(root.has_file(b"/proc/version", BlockingMode::Blocking).unwrap());
}

#[test]
fn replaced_roots_are_opened_by_other_threads() {
    let scratch = ScratchFolder::new();
    scratch.write("root/a.txt", "a");
    let root = root(&scratch, Symlinks::Inside);
    assert!(matches!(root.recheck(BlockingMode::CacheOnly), Ok(RootChange::Same)));
    std::fs::rename(scratch.path("root"), scratch.path("before")).unwrap();
    scratch.write("root/a.txt", "b");
    let found = root.recheck(BlockingMode::CacheOnly);
    assert!(matches!(found, Err(OpenError::WouldBlock)), "{found:?}");
    assert!(matches!(root.recheck(BlockingMode::Blocking), Ok(RootChange::Replaced(_))));
}

const LEADS_OUT: &str = "a symbolic link leads out of the root";

#[test]
fn paths_lead_to_files_directories_or_nothing() {
    let scratch = ScratchFolder::new();
    scratch.write("root/a.txt", "a");
    scratch.write("root/folder/b.txt", "b");
    scratch.write("outside.txt", "secret");
    let root = root(&scratch, Symlinks::Inside);
    for (path, want) in [
        ("/a.txt", "a"),
        ("//a.txt", "a"),
        ("/folder/b.txt", "b"),
        ("/folder", "(folder)"),
        ("/folder/", "(folder)"),
        ("/", "(folder)"),
        ("", "(folder)"),
        ("/none", "(missing)"),
        ("/a.txt/", "(missing)"),
        ("/a.txt/b", "(missing)"),
        ("/folder/none/b", "(missing)"),
        ("/a.txt\0.png", "(missing)"),
        // Paths are normalised before; if one is not, the kernel still confines it to the root.
        ("/../outside.txt", LEADS_OUT),
        ("/folder/../../outside.txt", LEADS_OUT),
        ("/folder/../a.txt", "a"),
    ] {
        assert_eq!(describe(&root, path), want, "{path:?}");
    }
    let long = format!("/{}", "x".repeat(5000));
    assert_eq!(describe(&root, &long), "(missing)");
}

#[test]
fn symlinks_are_followed_by_policy() {
    let scratch = ScratchFolder::new();
    scratch.write("root/a.txt", "a");
    scratch.write("root/folder/b.txt", "b");
    scratch.write("outside/c.txt", "c");
    let link = |target: &str, at: &str| symlink(target, scratch.path(at)).unwrap();
    link("../a.txt", "root/folder/inside");
    link("folder", "root/inside-folder");
    link("../outside/c.txt", "root/out");
    link("../outside", "root/out-folder");
    link(scratch.path("root/a.txt").to_str().unwrap(), "root/absolute");
    link("/proc/self/root/etc/passwd", "root/magic");
    link("loop", "root/loop");
    link("gone", "root/dangling");
    link("../outside/chain", "root/chain");
    link("../root/out", "outside/chain");
    let cases = [
        ("/folder/inside", "a", "a"),
        ("/inside-folder/b.txt", "b", "b"),
        ("/out", LEADS_OUT, "c"),
        ("/out-folder/c.txt", LEADS_OUT, "c"),
        ("/out-folder/", LEADS_OUT, "(folder)"),
        ("/absolute", LEADS_OUT, "a"),
        ("/chain", LEADS_OUT, "c"),
        ("/loop", "symbolic links without end", "symbolic links without end"),
        ("/dangling", "(missing)", "(missing)"),
    ];
    let inside = root(&scratch, Symlinks::Inside);
    let follow = root(&scratch, Symlinks::Follow);
    let owner_match = root(&scratch, Symlinks::OwnerMatch);
    for (path, want_inside, want_others) in cases {
        assert_eq!(describe(&inside, path), want_inside, "inside {path}");
        assert_eq!(describe(&follow, path), want_others, "follow {path}");
        assert_eq!(describe(&owner_match, path), want_others, "owner-match {path}");
    }
    assert_eq!(describe(&inside, "/magic"), LEADS_OUT);
    assert_eq!(describe(&follow, "/magic"), "symbolic links without end");
}

#[test]
fn symlink_to_a_foreign_file_requires_the_follow_policy() {
    // The test owns the link; its target belongs to the owner of `/etc/passwd` or, as root, to an unused id.
    let scratch = ScratchFolder::new();
    scratch.write("root/a.txt", "a");
    let foreign = if rustix::process::geteuid().is_root() {
        scratch.write("foreign.txt", "f");
        let nobody = rustix::fs::Uid::from_raw(65534);
        rustix::fs::chown(scratch.path("foreign.txt"), Some(nobody), None).unwrap();
        scratch.path("foreign.txt")
    } else {
        std::path::PathBuf::from("/etc/passwd")
    };
    symlink(&foreign, scratch.path("root/foreign")).unwrap();
    symlink("foreign", scratch.path("root/twice")).unwrap();
    let want = std::fs::read_to_string(&foreign).unwrap();
    assert_eq!(describe(&root(&scratch, Symlinks::Follow), "/foreign"), want);
    for path in ["/foreign", "/twice"] {
        assert_eq!(describe(&root(&scratch, Symlinks::OwnerMatch), path), LEADS_OUT);
        assert_eq!(describe(&root(&scratch, Symlinks::Inside), path), LEADS_OUT);
    }
}

#[test]
fn special_files_are_refused_without_blocking() {
    let scratch = ScratchFolder::new();
    scratch.write("root/a.txt", "a");
    let mode = Mode::from_raw_mode(0o644);
    let fifo = scratch.path("root/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
    let _listener = UnixListener::bind(scratch.path("root/socket")).unwrap();
    symlink("/dev/null", scratch.path("root/device")).unwrap();
    let root = root(&scratch, Symlinks::Follow);
    for path in ["/fifo", "/socket", "/device"] {
        assert_eq!(describe(&root, path), "not a regular file", "{path}");
    }
}

#[test]
fn system_errors_are_interpreted() {
    let opened = |errno| format!("{:?}", interpret_error(errno));
    assert_eq!(opened(Errno::ACCESS), "Ok(Refused(\"no permission to read\"))");
    assert_eq!(opened(Errno::NOTDIR), "Ok(Missing)");
    assert_eq!(opened(Errno::MFILE), "Err(NoDescriptors)");
    assert!(opened(Errno::IO).starts_with("Err(Failed("));
}

#[test]
fn root_must_be_a_directory() {
    let scratch = ScratchFolder::new();
    scratch.write("file", "");
    for path in ["file", "none"] {
        let error = Root::open(&scratch.path(path), Symlinks::Inside).unwrap_err();
        assert!(error.to_string().starts_with("cannot serve "), "{error}");
    }
}

#[test]
fn truncated_file_yields_the_remaining_bytes() {
    let scratch = ScratchFolder::new();
    scratch.write("root/a.txt", "abc");
    let file = File::open(scratch.path("root/a.txt")).unwrap();
    assert_eq!(read(&file, 10, BlockingMode::Blocking).unwrap(), b"abc");
    assert!(matches!(read(&file, 10, BlockingMode::CacheOnly), Err(OpenError::WouldBlock)));
    assert_eq!(read(&file, 2, BlockingMode::CacheOnly).unwrap(), b"ab");
}
