//! The state folder: accounts, certificates with their keys, and renewal state.
//!
//! ```text
//! accounts/NAME.json             an account at a directory, with its key
//! certificates/SUBJECT.pem       a chain and its key, in one file
//! certificates/SUBJECT.json      the renewal time, and the reason of the last failure
//! challenges/TOKEN               a response to an HTTP-01 challenge, for all servers that share the folder
//! local/authority.pem            the local authority with its key; local/root.crt without the key
//! locks/                         locks of orders in progress, and of the folder's users
//! ```
//!
//! Each file is readable by its owner only, and replaced atomically: written to a temporary file,
//! synchronised, renamed.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use cluster::ClusterStore;
use failure::IoFailure;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde_json::{Value, json};

use crate::subject::Subject;

pub(crate) const CERTIFICATES: &str = "certificates";
pub(crate) const ACCOUNTS: &str = "accounts";
pub(crate) const CHALLENGES: &str = "challenges";
const LOCKS: &str = "locks";
pub(crate) const LOCAL: &str = "local";
/// Maximum size of a file that is read, in bytes.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of tokens that are read from the folder.
const TOKENS_MAX: usize = 1_000;
/// Age after which a token is removed, because the server that wrote it has ended.
const TOKEN_AGE_MAX: Duration = Duration::from_secs(3_600);

/// The state folder, with a lock that marks it as used by this server.
#[derive(Debug)]
pub struct StateFolder {
    path: PathBuf,
    /// Lock file, locked in shared mode while this server runs.
    user_lock: Option<File>,
    /// Store of the set of servers, which is told of changes.
    cluster: Option<ClusterStore>,
}

/// An exclusive lock, held until it is dropped.
#[derive(Debug)]
pub(crate) struct FolderLock(#[allow(dead_code, reason = "its drop ends the lock")] File);

/// Renewal state of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct CertificateRecord {
    /// The directory that issued the certificate.
    pub(crate) directory: Option<String>,
    /// Serial number of the certificate to which `renew_at` applies.
    pub(crate) serial: Option<String>,
    /// Time at which the certificate was received.
    pub(crate) obtained_at: Option<SystemTime>,
    /// Time of the renewal.
    pub(crate) renew_at: Option<SystemTime>,
    /// Renewal window last suggested by the authority.
    pub(crate) window: Option<(SystemTime, SystemTime)>,
    /// Number of failed orders since the last success.
    pub(crate) failures: u32,
    /// Earliest time of the next attempt.
    pub(crate) retry_at: Option<SystemTime>,
    /// Time and reason of the last failure.
    pub(crate) last_error: Option<(SystemTime, String)>,
}

impl CertificateRecord {
    fn to_json(&self) -> Value {
        let window = self.window.map(|(start, end)| [unix_s(start), unix_s(end)]);
        let error = self.last_error.as_ref();
        json!({
            "directory": self.directory,
            "serial": self.serial,
            "obtained_at": self.obtained_at.map(unix_s),
            "renew_at": self.renew_at.map(unix_s),
            "window": window,
            "failures": self.failures,
            "retry_at": self.retry_at.map(unix_s),
            "last_error": error.map(|(_, text)| text),
            "last_error_at": error.map(|(at, _)| unix_s(*at)),
        })
    }

    fn of_json(value: &Value) -> CertificateRecord {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        let moment = |value: &Value| value.as_u64().map(at);
        let window = &value["window"];
        CertificateRecord {
            directory: text("directory"),
            serial: text("serial"),
            obtained_at: moment(&value["obtained_at"]),
            renew_at: moment(&value["renew_at"]),
            window: moment(&window[0]).zip(moment(&window[1])),
            failures: value["failures"].as_u64().unwrap_or(0).try_into().unwrap_or(u32::MAX),
            retry_at: moment(&value["retry_at"]),
            last_error: moment(&value["last_error_at"]).zip(text("last_error")),
        }
    }
}

/// Converts a time to whole seconds since 1970.
pub(crate) fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Converts seconds since 1970 to a time, limited to the end of the year 9999.
pub(crate) fn at(unix_s: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(unix_s.min(253_402_300_799))
}

/// Returns the topmost folder on a path that this process may not enter.
fn inaccessible_folder(path: &Path) -> Option<&Path> {
    let is_closed = |folder: &&Path| {
        let entered = fs::metadata(folder.join("."));
        entered.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    path.ancestors().skip(1).filter(is_closed).last()
}

/// Returns the name of this process's user, or its id if the user has no name.
fn user_name() -> String {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let list = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name_of = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid).then(|| name.to_owned())
    };
    list.lines().find_map(name_of).unwrap_or(uid)
}

impl StateFolder {
    /// Opens the folder; creates it and its subfolders if missing.
    ///
    /// # Errors
    /// Names the folder that cannot be created or written, the user, and the remedy.
    pub fn open(path: &Path) -> io::Result<StateFolder> {
        let refused = |error: io::Error| {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            let user = user_name();
            let remedy = match inaccessible_folder(&path) {
                Some(closed) => format!("let the user enter {0} (`chmod o+x {0}`)", closed.display()),
                None => format!("make it with `install -d -m 700 -o {user} {}`", path.display()),
            };
            let text = format!(
                "the state folder {} cannot be written by user {user}: {error}; {remedy}, or name another one in `[acme] state`",
                path.display()
            );
            io::Error::new(error.kind(), text).about(path)
        };
        for name in ["", ACCOUNTS, CERTIFICATES, CHALLENGES, LOCKS, LOCAL] {
            let folder = path.join(name);
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
            made.map_err(refused)?;
        }
        let users = lock_file(&path.join(LOCKS).join("servers")).map_err(refused)?;
        flock(&users, FlockOperation::NonBlockingLockShared).or_else(|error| match error {
            // Another server is testing whether it is the only user.
            Errno::WOULDBLOCK => flock(&users, FlockOperation::LockShared),
            error => Err(error),
        })?;
        let folder = StateFolder { path: path.to_owned(), user_lock: Some(users), cluster: None };
        folder.write(&path.join(LOCKS).join("probe"), b"").map_err(refused)?;
        Ok(folder)
    }

    /// Opens the existing folder for reading only.
    pub fn existing(path: &Path) -> StateFolder {
        StateFolder { path: path.to_owned(), user_lock: None, cluster: None }
    }

    /// Tells the store of a set of servers of all changes from now on.
    pub(crate) fn of_cluster(mut self, cluster: Option<ClusterStore>) -> StateFolder {
        self.cluster = cluster;
        self
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether other servers use the folder as well, or have its files through a store.
    pub(crate) fn is_shared(&self) -> bool {
        if self.cluster.is_some() {
            return true;
        }
        let Some(users) = &self.user_lock else { return false };
        let alone = flock(users, FlockOperation::NonBlockingLockExclusive).is_ok();
        let _ = flock(users, FlockOperation::LockShared);
        !alone
    }

    fn certificate_path(&self, subject: &Subject, extension: &str) -> PathBuf {
        self.path.join(CERTIFICATES).join(format!("{}.{extension}", subject.file_stem()))
    }

    /// Returns the stored chain with its key, and the modification time of the file.
    pub(crate) fn certificate(&self, subject: &Subject) -> io::Result<Option<(String, SystemTime)>> {
        let path = self.certificate_path(subject, "pem");
        let Some(pem) = read(&path)? else { return Ok(None) };
        Ok(Some((pem, self.certificate_time(subject).unwrap_or(SystemTime::UNIX_EPOCH))))
    }

    /// Returns the modification time of the certificate's file; `None` if there is none.
    pub(crate) fn certificate_time(&self, subject: &Subject) -> Option<SystemTime> {
        fs::metadata(self.certificate_path(subject, "pem")).and_then(|found| found.modified()).ok()
    }

    pub(crate) fn write_certificate(&self, subject: &Subject, pem: &str) -> io::Result<()> {
        self.write(&self.certificate_path(subject, "pem"), pem.as_bytes())
    }

    /// Returns the record; an empty one if there is none or it cannot be parsed.
    pub(crate) fn record(&self, subject: &Subject) -> CertificateRecord {
        let text = read(&self.certificate_path(subject, "json")).ok().flatten().unwrap_or_default();
        serde_json::from_str(&text)
            .map_or_else(|_| CertificateRecord::default(), |value| CertificateRecord::of_json(&value))
    }

    pub(crate) fn write_record(&self, subject: &Subject, record: &CertificateRecord) -> io::Result<()> {
        let text = format!("{:#}\n", record.to_json());
        self.write(&self.certificate_path(subject, "json"), text.as_bytes())
    }

    /// Returns all subjects with a certificate or a record, sorted.
    pub(crate) fn subjects(&self) -> io::Result<Vec<Subject>> {
        let mut subjects = Vec::new();
        let entries = fs::read_dir(self.path.join(CERTIFICATES)).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound && self.path.is_dir() {
                io::Error::new(error.kind(), "it is not a state folder: it has no folder `certificates`")
            } else {
                error
            }
        })?;
        for entry in entries {
            let name = entry?.file_name();
            let name = name.to_str().unwrap_or_default();
            let stem = name.strip_suffix(".pem").or_else(|| name.strip_suffix(".json"));
            subjects.extend(stem.and_then(Subject::of_file_stem));
        }
        subjects.sort();
        subjects.dedup();
        Ok(subjects)
    }

    /// Locks the orders for a subject; `None` if another server holds the lock.
    pub(crate) fn lock(&self, subject: &Subject) -> io::Result<Option<FolderLock>> {
        let file = lock_file(&self.path.join(LOCKS).join(subject.file_stem()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(FolderLock(file))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn account_path(&self, directory: &str) -> PathBuf {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, directory.as_bytes());
        let digest: String = digest.as_ref()[..6].iter().map(|byte| format!("{byte:02x}")).collect();
        let host = directory.split("://").nth(1).unwrap_or_default();
        let host: String = host
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'))
            .take(100)
            .collect();
        self.path.join(ACCOUNTS).join(format!("{host}-{digest}.json"))
    }

    /// Returns the stored account at a directory.
    pub(crate) fn account(&self, directory: &str) -> io::Result<Option<String>> {
        read(&self.account_path(directory))
    }

    pub(crate) fn write_account(&self, directory: &str, json: &str) -> io::Result<()> {
        self.write(&self.account_path(directory), json.as_bytes())
    }

    pub(crate) fn write_token(&self, token: &str, response: &str) -> io::Result<()> {
        if !is_token(token) {
            return Err(io::Error::other("it is not a token (RFC 8555 section 8.1)"));
        }
        self.write(&self.path.join(CHALLENGES).join(token), response.as_bytes())
    }

    pub(crate) fn remove_token(&self, token: &str) {
        if is_token(token) {
            // The file may be gone already.
            let _ = fs::remove_file(self.path.join(CHALLENGES).join(token));
            if let Some(cluster) = &self.cluster {
                cluster.note_removed(&format!("{CHALLENGES}/{token}"));
            }
        }
    }

    /// Returns the modification time of the token folder.
    pub(crate) fn tokens_time(&self) -> Option<SystemTime> {
        fs::metadata(self.path.join(CHALLENGES)).and_then(|found| found.modified()).ok()
    }

    /// Returns all tokens with their responses. Tokens of servers that have ended are removed.
    pub(crate) fn tokens(&self, now: SystemTime) -> Vec<(String, String)> {
        let entries = fs::read_dir(self.path.join(CHALLENGES)).into_iter().flatten().flatten();
        let token = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().ok().filter(|name| is_token(name))?;
            let age = entry
                .metadata()
                .and_then(|found| found.modified())
                .ok()
                .and_then(|at| now.duration_since(at).ok());
            if age.is_some_and(|age| age > TOKEN_AGE_MAX) {
                self.remove_token(&name);
                return None;
            }
            Some((name, read(&entry.path()).ok().flatten()?))
        };
        entries.filter_map(token).take(TOKENS_MAX).collect()
    }

    /// Returns the local authority with its key.
    pub(crate) fn authority(&self) -> io::Result<Option<String>> {
        read(&self.authority_path())
    }

    pub(crate) fn write_authority(&self, pem: &str, certificate: &str) -> io::Result<()> {
        self.write(&self.authority_path(), pem.as_bytes())?;
        self.write(&self.root_path(), certificate.as_bytes())
    }

    /// Acquires the lock for creating the local authority; blocks until it is available.
    pub(crate) fn lock_authority(&self) -> io::Result<FolderLock> {
        let file = lock_file(&self.path.join(LOCKS).join("local-authority"))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(FolderLock(file))
    }

    /// Path of the local authority with its key.
    pub(crate) fn authority_path(&self) -> PathBuf {
        self.path.join(LOCAL).join("authority.pem")
    }

    /// Path of the local authority's certificate without its key.
    pub fn root_path(&self) -> PathBuf {
        self.path.join(LOCAL).join("root.crt")
    }

    /// Atomically replaces a file, and tells the store of the set.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.write_here(path, bytes)?;
        let name = path.strip_prefix(&self.path).ok().and_then(Path::to_str);
        if let (Some(cluster), Some(name)) = (&self.cluster, name)
            && is_shared_name(name)
        {
            // What belongs to a certificate is made under the lease of its subject.
            let lease = path.file_stem().and_then(|stem| stem.to_str());
            cluster.note_written(name, lease.filter(|_| name.starts_with(CERTIFICATES)));
        }
        Ok(())
    }

    /// Atomically replaces a file, readable by its owner only.
    pub(crate) fn write_here(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let folder = path.parent().unwrap_or(&self.path);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let beside = folder.join(format!(".{}.{number}.new", std::process::id()));
        // May be left over from an earlier process with this id.
        let _ = fs::remove_file(&beside);
        let written =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside).and_then(|mut file| {
                file.write_all(bytes)?;
                file.sync_all()?;
                fs::rename(&beside, path)
            });
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        written?;
        File::open(folder)?.sync_all()
    }
}

/// Whether other servers of a set have the file of this name in the folder too.
pub(crate) fn is_shared_name(name: &str) -> bool {
    let Some((folder, file)) = name.split_once('/') else { return false };
    let subject = |stem: &str| Subject::of_file_stem(stem).is_some_and(|subject| subject.file_stem() == stem);
    let is_account = |stem: &str| {
        (1..=200).contains(&stem.len())
            && !stem.starts_with('.')
            && stem.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
    };
    match folder {
        CERTIFICATES => {
            file.rsplit_once('.').is_some_and(|(stem, kind)| matches!(kind, "pem" | "json") && subject(stem))
        }
        ACCOUNTS => file.strip_suffix(".json").is_some_and(is_account),
        CHALLENGES => is_token(file),
        LOCAL => file == "authority.pem",
        _ => false,
    }
}

/// Whether the text is a token: base64url (RFC 8555 section 8.1), which excludes path separators.
pub(crate) fn is_token(token: &str) -> bool {
    (1..=200).contains(&token.len())
        && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Returns the text of a file; `None` if it does not exist.
pub(crate) fn read(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(Some(text))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Returns a new temporary folder for a test.
    pub(crate) fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("komainu-control-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn files_are_private_and_replaced_atomically() {
        let path = scratch("modes");
        let folder = StateFolder::open(&path).unwrap();
        let subject = Subject::parse("*.example.com").unwrap();
        assert_eq!(folder.certificate(&subject).unwrap(), None);
        for text in ["first", "second"] {
            folder.write_certificate(&subject, text).unwrap();
            assert_eq!(folder.certificate(&subject).unwrap().unwrap().0, text);
        }
        folder.write_account("https://acme.test:14000/dir", "{}").unwrap();
        folder.write_token("a-token", "a-token.thumb").unwrap();
        assert_eq!(folder.subjects().unwrap(), [subject]);
        let mut files = 0;
        for inner in ["", ACCOUNTS, CERTIFICATES, CHALLENGES, LOCKS, LOCAL] {
            assert_eq!(mode(&path.join(inner)), 0o700, "{inner}");
            for entry in fs::read_dir(path.join(inner))
                .unwrap()
                .map(Result::unwrap)
                .filter(|entry| entry.path().is_file())
            {
                assert_eq!(mode(&entry.path()), 0o600, "{:?}", entry.path());
                assert!(!entry.file_name().to_string_lossy().ends_with(".new"));
                files += 1;
            }
        }
        assert!(files >= 4);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn record_is_read_back_unchanged() {
        let path = scratch("records");
        let folder = StateFolder::open(&path).unwrap();
        let subject = Subject::parse("a.test").unwrap();
        let record = CertificateRecord {
            directory: Some("https://x/dir".into()),
            serial: Some("ab".into()),
            obtained_at: Some(at(4)),
            renew_at: Some(at(5)),
            window: Some((at(1), at(2))),
            failures: 3,
            retry_at: Some(at(9)),
            last_error: Some((at(8), "no \"reason\"".into())),
        };
        folder.write_record(&subject, &record).unwrap();
        assert_eq!(folder.record(&subject), record);
        for broken in ["", "{", "[1]", "{\"renew_at\": -1, \"window\": [1], \"failures\": 99999999999}"] {
            folder.write(&folder.certificate_path(&subject, "json"), broken.as_bytes()).unwrap();
            assert_eq!(
                CertificateRecord { failures: 0, ..folder.record(&subject) },
                CertificateRecord::default()
            );
        }
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn servers_sharing_a_state_directory_see_each_other() {
        let path = scratch("shared");
        let subject = Subject::parse("a.test").unwrap();
        let one = StateFolder::open(&path).unwrap();
        // A child that another test starts holds this test's descriptors until it calls exec.
        let until_alone = |folder: &StateFolder| {
            let until = std::time::Instant::now() + Duration::from_secs(30);
            while folder.is_shared() {
                assert!(std::time::Instant::now() < until);
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        until_alone(&one);
        let two = StateFolder::open(&path).unwrap();
        assert!(one.is_shared() && two.is_shared());
        let held = one.lock(&subject).unwrap().unwrap();
        assert!(two.lock(&subject).unwrap().is_none());
        drop(held);
        drop(two.lock(&subject).unwrap());
        one.write_token("token", "response").unwrap();
        assert_eq!(two.tokens(SystemTime::now()), [("token".to_owned(), "response".to_owned())]);
        assert_eq!(two.tokens(SystemTime::now() + 2 * TOKEN_AGE_MAX), []);
        assert_eq!(one.tokens(SystemTime::now()), []);
        for wrong in ["", "..", "a/b", "a.b", &"a".repeat(201)] {
            assert!(one.write_token(wrong, "x").is_err(), "{wrong}");
        }
        drop(two);
        until_alone(&one);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn uncreatable_state_directory_is_reported_with_a_remedy() {
        let path = scratch("file");
        fs::write(&path, "").unwrap();
        let error = StateFolder::open(&path).unwrap_err().to_string();
        let remedy = format!("`install -d -m 700 -o {} {}`", user_name(), path.display());
        assert!(error.contains(&remedy), "{error}");
        fs::remove_file(path).unwrap();
    }
}
