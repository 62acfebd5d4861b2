//! Files that all servers of a set have: written to the store when they change, and from the store to the folder of
//! each server.
//!
//! ```text
//! PREFIX:1:epoch      a random text, made when the store is empty: another one means that it has lost its contents
//! PREFIX:1:version    number of changes so far
//! PREFIX:1:changes    the name of each file by the number of its last change
//! PREFIX:1:files      contents by name
//! PREFIX:1:times      time of writing by name, in milliseconds since 1970
//! PREFIX:1:fences     number of the last lease by its name
//! ```

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::connection::StoreConnection;
use crate::options::StoreOptions;
use crate::reply::{Reply, StoreError};

/// Maximum names that are asked for at once.
const NAMES_PER_PAGE: usize = 100;
/// Maximum pages of changes that are read before other work gets a turn.
const PAGES_MAX: usize = 100;
/// Maximum length of a name, in bytes.
const NAME_BYTES_MAX: usize = 400;
/// Maximum number of different files that the store may make this server write.
const FILES_MAX: usize = 50_000;
/// Maximum number of files about which a problem was reported.
const REPORTED_MAX: usize = 1_000;

/// Makes the epoch if there is none, and returns it with the number of changes.
pub(crate) const STATE: &str = "
redis.call('SET', KEYS[1], ARGV[1], 'NX')
return {redis.call('GET', KEYS[1]), redis.call('GET', KEYS[2]) or '0'}
";
/// Writes a file: always (`set`), if it is newer (`newer`), or if there is none (`absent`). Returns 1, or 0 if the store
/// has another one, or -1 if the lease under which it was made has been given to another server since.
const PUT: &str = "
local old = tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '-1') or -1
local time = redis.call('TIME')
local at = math.min(tonumber(ARGV[3]), time[1] * 1000 + 60000)
if ARGV[4] == 'newer' and old >= at then return 0 end
if ARGV[4] == 'absent' and redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 0 end
if ARGV[5] ~= '' and (tonumber(redis.call('HGET', KEYS[5], ARGV[5]) or '0') or 0) > tonumber(ARGV[6]) then return -1 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[1], string.format('%.0f', math.max(at, old + 1)))
redis.call('ZADD', KEYS[3], redis.call('INCR', KEYS[4]), ARGV[1])
return 1
";
const REMOVE: &str = "
if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then
  redis.call('HDEL', KEYS[2], ARGV[1])
  redis.call('ZADD', KEYS[3], redis.call('INCR', KEYS[4]), ARGV[1])
end
return 1
";

/// Files of a server that the other servers of its set have too.
pub trait SharedFiles: Send + Sync {
    /// Returns the names of all files, and when they were written.
    fn list(&self) -> Vec<(String, SystemTime)>;

    /// Returns the contents of a file and when it was written; `None` if there is none.
    fn read(&self, name: &str) -> Option<(Vec<u8>, SystemTime)>;

    /// Writes a file of another server. The name and the contents are not trusted. Returns `false` if the one of this
    /// server is newer, which is then sent to the store.
    ///
    /// # Errors
    /// Reason why the file is not accepted.
    fn accept(&self, name: &str, contents: &[u8], written: SystemTime) -> Result<bool, String>;

    /// Removes a file that another server has removed, if it is of a kind that is removed.
    fn remove(&self, name: &str);

    /// Whether the first file of this name is kept, rather than the last one.
    fn keeps_first(&self, name: &str) -> bool;
}

/// How a file is written to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PutMode {
    Always,
    IfNewer,
    IfAbsent,
}

/// A change that the store does not have yet.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LocalChange {
    /// The lease under which the file was made, with its number.
    Write(PutMode, Option<(String, u64)>),
    Remove,
}

/// Exchange of files with the store.
#[derive(Default)]
pub(crate) struct FileExchange {
    files: Option<Arc<dyn SharedFiles>>,
    changes: BTreeMap<String, LocalChange>,
    /// Number of the last change of the store that was read.
    cursor: u64,
    epoch: String,
    accepted: HashSet<String>,
    reported: HashSet<String>,
    pub(crate) received: u64,
    pub(crate) sent: u64,
    pub(crate) refused: u64,
}

/// News of an exchange for its owner.
#[derive(Debug, Default)]
pub(crate) struct ExchangeNews {
    /// Whether the store has lost its contents.
    pub(crate) is_new_epoch: bool,
    /// Problems that were not reported before.
    pub(crate) problems: Vec<String>,
}

impl FileExchange {
    /// Begins to exchange these files in place of those before.
    pub(crate) fn set_files(&mut self, files: Arc<dyn SharedFiles>) {
        self.files = Some(files);
        self.epoch.clear();
        self.changes.clear();
    }

    /// Notes that a file has changed; `lease` is the one under which it was made.
    pub(crate) fn note_written(&mut self, name: &str, lease: Option<(String, u64)>) {
        let is_first = self.files.as_ref().is_some_and(|files| files.keeps_first(name));
        let mode = if is_first { PutMode::IfAbsent } else { PutMode::Always };
        self.changes.insert(name.to_owned(), LocalChange::Write(mode, lease));
    }

    /// Notes that a file was removed.
    pub(crate) fn note_removed(&mut self, name: &str) {
        self.changes.insert(name.to_owned(), LocalChange::Remove);
    }

    /// Writes the changes of this server to the store, and those of others to the folder.
    ///
    /// # Errors
    /// The connection must be given up; what was not written is written the next time.
    pub(crate) async fn exchange(
        &mut self,
        store: &mut StoreConnection,
        options: &StoreOptions,
    ) -> Result<ExchangeNews, StoreError> {
        let mut news = ExchangeNews::default();
        let made = format!("{:032x}", fastrand::u128(..));
        let keys = [options.key("epoch"), options.key("version")];
        let [epoch, version] = store.script(STATE, &keys, &[made.as_bytes()]).await?.array()?;
        let (epoch, version) = (epoch.text()?, version.number()?);
        if epoch != self.epoch || version < self.cursor {
            news.is_new_epoch = !self.epoch.is_empty();
            self.cursor = 0;
            self.offer_all(store, options).await?;
            self.epoch = epoch;
        }
        if self.files.is_some() {
            self.send(store, options, &mut news).await?;
            if version > self.cursor {
                self.receive(store, options, &mut news).await?;
            }
        }
        Ok(news)
    }

    /// Offers all files of this server that the store has not, or older.
    async fn offer_all(
        &mut self,
        store: &mut StoreConnection,
        options: &StoreOptions,
    ) -> Result<(), StoreError> {
        let Some(files) = self.files.clone() else { return Ok(()) };
        let times = options.key("times");
        for page in files.list().chunks(NAMES_PER_PAGE) {
            let mut command = vec![&b"HMGET"[..], times.as_bytes()];
            command.extend(page.iter().map(|(name, _)| name.as_bytes()));
            let known = store.command(&command).await?.list()?;
            if known.len() != page.len() {
                return Err(StoreError::Invalid("its reply is not a time for each name".to_owned()));
            }
            for ((name, written), known) in page.iter().zip(known) {
                let is_absent = known == Reply::Nil;
                let is_first = files.keeps_first(name);
                let is_older = !is_first && known.number().is_ok_and(|known| known < unix_ms(*written));
                if is_absent || is_older {
                    let mode = if is_first { PutMode::IfAbsent } else { PutMode::IfNewer };
                    self.changes.entry(name.clone()).or_insert(LocalChange::Write(mode, None));
                }
            }
        }
        Ok(())
    }

    async fn send(
        &mut self,
        store: &mut StoreConnection,
        options: &StoreOptions,
        news: &mut ExchangeNews,
    ) -> Result<(), StoreError> {
        let Some(files) = self.files.clone() else { return Ok(()) };
        let keys = ["files", "times", "changes", "version", "fences"].map(|what| options.key(what));
        while let Some((name, change)) = self.changes.first_key_value() {
            let (name, change) = (name.clone(), change.clone());
            match change {
                LocalChange::Remove => _ = store.script(REMOVE, &keys, &[name.as_bytes()]).await?,
                LocalChange::Write(mode, lease) => {
                    if let Some((contents, written)) = files.read(&name) {
                        match options.seal.seal(&name, &contents) {
                            Err(text) => self.report(&name, &text, news),
                            Ok(value) => {
                                let at = unix_ms(written).to_string();
                                let mode = match mode {
                                    PutMode::Always => &b"set"[..],
                                    PutMode::IfNewer => b"newer",
                                    PutMode::IfAbsent => b"absent",
                                };
                                let (lease, fence) = lease.unwrap_or_default();
                                let fence = fence.to_string();
                                let arguments = [
                                    name.as_bytes(),
                                    &value,
                                    at.as_bytes(),
                                    mode,
                                    lease.as_bytes(),
                                    fence.as_bytes(),
                                ];
                                if store.script(PUT, &keys, &arguments).await? == Reply::Integer(1) {
                                    self.sent += 1;
                                } else {
                                    self.fetch(store, options, &name, news).await?;
                                }
                            }
                        }
                    }
                }
            }
            self.changes.remove(&name);
        }
        Ok(())
    }

    async fn receive(
        &mut self,
        store: &mut StoreConnection,
        options: &StoreOptions,
        news: &mut ExchangeNews,
    ) -> Result<(), StoreError> {
        let changes = options.key("changes");
        for _ in 0..PAGES_MAX {
            let from = format!("({}", self.cursor);
            let count = NAMES_PER_PAGE.to_string();
            let command: [&[u8]; 8] = [
                b"ZRANGEBYSCORE",
                changes.as_bytes(),
                from.as_bytes(),
                b"+inf",
                b"WITHSCORES",
                b"LIMIT",
                b"0",
                count.as_bytes(),
            ];
            let page = store.command(&command).await?.list()?;
            if page.is_empty() {
                return Ok(());
            }
            let mut page = page.into_iter();
            while let Some(name) = page.next() {
                let name = name.text()?;
                let number = page.next().unwrap_or(Reply::Nil).number()?;
                if number <= self.cursor || name.len() > NAME_BYTES_MAX {
                    return Err(StoreError::Invalid("its list of changes is not in order".to_owned()));
                }
                self.fetch(store, options, &name, news).await?;
                self.cursor = number;
            }
        }
        Ok(())
    }

    /// Reads a file from the store and writes it to the folder.
    async fn fetch(
        &mut self,
        store: &mut StoreConnection,
        options: &StoreOptions,
        name: &str,
        news: &mut ExchangeNews,
    ) -> Result<(), StoreError> {
        const GET: &str =
            "return {redis.call('HGET', KEYS[1], ARGV[1]), redis.call('HGET', KEYS[2], ARGV[1])}";
        let Some(files) = self.files.clone() else { return Ok(()) };
        let keys = [options.key("files"), options.key("times")];
        let [value, written] = store.script(GET, &keys, &[name.as_bytes()]).await?.array()?;
        let Some(value) = value.bytes()? else {
            // A change of this server that is still to be sent takes precedence.
            if !self.changes.contains_key(name) {
                files.remove(name);
                self.accepted.remove(name);
            }
            return Ok(());
        };
        let written = written.number().ok().and_then(|ms| {
            // Times beyond the year 9999 are not of any server.
            (ms < 253_402_300_799_000).then(|| SystemTime::UNIX_EPOCH + Duration::from_millis(ms))
        });
        let outcome = match (options.seal.open(name, &value), written) {
            (Err(text), _) => Err(text),
            (_, None) => Err("the time of its writing is not valid".to_owned()),
            _ if !self.accepted.contains(name) && self.accepted.len() >= FILES_MAX => {
                Err(format!("there are more than {FILES_MAX} files"))
            }
            (Ok(contents), Some(written)) => files.accept(name, &contents, written),
        };
        match outcome {
            Ok(false) => self.note_written(name, None),
            Ok(true) => {
                self.received += 1;
                self.reported.remove(name);
                self.accepted.insert(name.to_owned());
            }
            Err(text) => self.report(name, &text, news),
        }
        Ok(())
    }

    /// Reports a problem once for each file.
    fn report(&mut self, name: &str, text: &str, news: &mut ExchangeNews) {
        self.refused += 1;
        if self.reported.len() < REPORTED_MAX && self.reported.insert(name.to_owned()) {
            news.problems.push(format!("the value of {name:?} is not used: {text}"));
        }
    }
}

/// Returns the milliseconds since 1970.
pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
