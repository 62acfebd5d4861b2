//! Reloads applications when their code changes, for development.

use std::collections::HashMap;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use logging::notice::ErrorLog;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::workers::Hosting;

/// Time without changes before a reload, because an editor or a checkout writes several files.
const QUIET_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Maximum delay of a reload: an application's own data may change continuously.
const DELAY_MAX: Duration = Duration::from_secs(2);
const FOLDERS_MAX: usize = 10_000;
/// Suffixes of code, templates and settings. Changes of an application's data must not reload it.
const SUFFIXES: [&str; 35] = [
    "psgi", "pl", "pm", "ru", "rb", "rake", "py", "php", "phtml", "so", "toml", "yml", "yaml", "json", "ini",
    "conf", "cfg", "env", "html", "htm", "xml", "erb", "haml", "slim", "tt", "tt2", "ep", "mt", "tx",
    "jinja", "jinja2", "j2", "mustache", "liquid", "lock",
];
/// Names of directories that contain no code of the application.
const IGNORED_FOLDERS: [&str; 5] = ["node_modules", "__pycache__", "log", "tmp", "public"];

/// Watches the directories of applications, given by name, on a separate thread.
///
/// # Errors
/// The system's limit on watches is reached, or the thread cannot be started.
pub fn watch(
    folders: Vec<(String, PathBuf)>,
    hosting: Arc<Hosting>,
    notices: ErrorLog,
) -> std::io::Result<()> {
    let mut watch = FolderWatch { inotify: inotify::init(CreateFlags::CLOEXEC)?, watched: HashMap::new() };
    for (app, folder) in &folders {
        watch.add(app, folder)?;
    }
    std::thread::Builder::new().name("watch".into()).spawn(move || {
        loop {
            match watch.wait_for_changes() {
                Ok(changed) => changed.into_iter().for_each(|(app, file)| {
                    notices.warn(&format!("{} has changed: loading {app} again", file.display()));
                    hosting.reload(&app);
                }),
                Err(error) => {
                    return notices.error(&format!("cannot watch for changed files any more: {error}"));
                }
            }
        }
    })?;
    Ok(())
}

struct FolderWatch {
    inotify: OwnedFd,
    /// Application and directory by watch descriptor.
    watched: HashMap<i32, (String, PathBuf)>,
}

impl FolderWatch {
    /// Watches a directory and its subdirectories.
    fn add(&mut self, app: &str, folder: &Path) -> Result<(), Errno> {
        let flags = WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::ONLYDIR;
        let id = match inotify::add_watch(&self.inotify, folder, flags) {
            Ok(id) => id,
            // The directory was removed meanwhile, or cannot be read.
            Err(Errno::NOENT | Errno::ACCESS) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.watched.insert(id, (app.to_owned(), folder.to_owned()));
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder
                && is_watched_folder(&entry.file_name().to_string_lossy())
                && self.watched.len() < FOLDERS_MAX
            {
                self.add(app, &entry.path())?;
            }
        }
        Ok(())
    }

    /// Waits for changes and until they stop; returns the applications, each with a changed file.
    fn wait_for_changes(&mut self) -> Result<HashMap<String, PathBuf>, Errno> {
        let mut changed = HashMap::new();
        let mut first = None;
        loop {
            if first.is_some_and(|first: Instant| first.elapsed() >= DELAY_MAX) {
                return Ok(changed);
            }
            let timeout = (!changed.is_empty()).then_some(&QUIET_TIME);
            let mut polled = [PollFd::new(&self.inotify, PollFlags::IN)];
            match poll(&mut polled, timeout) {
                Ok(0) => return Ok(changed),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            }
            for (id, name, is_folder) in self.read_events()? {
                let Some((app, folder)) = self.watched.get(&id).cloned() else { continue };
                let path = folder.join(&name);
                if is_folder && is_watched_folder(&name) {
                    self.add(&app, &path)?;
                } else if !is_folder && is_code(&name) {
                    first.get_or_insert_with(Instant::now);
                    changed.insert(app, path);
                }
            }
        }
    }

    /// Reads events: the watch descriptor, the name, and whether it is a directory.
    fn read_events(&self) -> Result<Vec<(i32, String, bool)>, Errno> {
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut space);
        let mut events = Vec::new();
        loop {
            match reader.next() {
                Ok(event) => {
                    let name =
                        event.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
                    events.push((event.wd(), name, event.events().contains(ReadFlags::ISDIR)));
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            if reader.is_buffer_empty() {
                return Ok(events);
            }
        }
    }
}

fn is_watched_folder(folder: &str) -> bool {
    !folder.starts_with('.') && !IGNORED_FOLDERS.contains(&folder)
}

fn is_code(file: &str) -> bool {
    let suffix = Path::new(file).extension().and_then(|suffix| suffix.to_str());
    matches!(file, "Gemfile" | "Rakefile" | "cpanfile" | ".env")
        || !file.starts_with('.') && suffix.is_some_and(|suffix| SUFFIXES.contains(&suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_files_are_distinguished_from_data() {
        for name in ["app.psgi", "Shop.pm", "config.ru", "views.py", "page.html.erb", "Gemfile", ".env"] {
            assert!(is_code(name), "{name}");
        }
        for name in ["shop.sqlite3", "access.log", ".app.psgi.swp", "app.psgi~", "4913", "README", ""] {
            assert!(!is_code(name), "{name}");
        }
        assert!(is_watched_folder("lib") && !is_watched_folder(".git") && !is_watched_folder("node_modules"));
    }

    #[test]
    fn constantly_written_data_does_not_delay_reload() {
        let folder = std::env::temp_dir().join(format!("komainu-watch-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut watch =
            FolderWatch { inotify: inotify::init(CreateFlags::CLOEXEC).unwrap(), watched: HashMap::new() };
        watch.add("app", &folder).unwrap();
        fs::write(folder.join("app.pl"), "1").unwrap();
        let began = std::time::Instant::now();
        let data = folder.join("data.sqlite3");
        let writer = std::thread::spawn(move || {
            while began.elapsed() < std::time::Duration::from_secs(6) {
                fs::write(&data, "more").unwrap();
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        let changed = watch.wait_for_changes().unwrap();
        let took = began.elapsed();
        writer.join().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(changed.into_keys().collect::<Vec<_>>(), ["app"]);
        assert!(took < std::time::Duration::from_secs(5), "{took:?}");
    }
}
