//! The thread that exchanges counts.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use data_encoding::HEXLOWER;
use net::clock::Clock;

use crate::connection::{RedisAddress, RedisConnection};

/// Keys of one command: Redis answers nobody else while it runs.
const KEYS_MAX: usize = 500;
/// How long after a failure the server is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Adds what was spent to each key's time at which it owes nothing any more, and returns how far that lies ahead, in microseconds. The clock is that
/// of Redis, so those of the servers need not agree.
const SCRIPT: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ahead = {}
for index, key in ipairs(KEYS) do
  local full_at = math.max(tonumber(redis.call('GET', key) or '0') or 0, now) + tonumber(ARGV[index])
  if full_at > now then
    redis.call('SET', key, string.format('%.3f', full_at), 'PX', math.ceil((full_at - now) / 1000) + 1000)
    ahead[index] = math.floor(full_at - now)
  else
    redis.call('DEL', key)
    ahead[index] = 0
  end
end
return ahead
";

/// Where counts are exchanged, and how often.
#[derive(Clone, PartialEq, Eq)]
pub struct SharingOptions {
    /// `redis://[USER@]HOST[:PORT][/DATABASE]`, or `unix:PATH`.
    pub address: String,
    /// Its password.
    pub password: Option<String>,
    /// What names of keys begin with.
    pub prefix: String,
    /// How often counts are exchanged.
    pub interval: Duration,
    /// How long an answer is waited for.
    pub timeout: Duration,
}

impl fmt::Debug for SharingOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharingOptions").field("address", &self.address).finish_non_exhaustive()
    }
}

/// What a key has spent here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedChange {
    /// The table's own number of the key.
    pub key: u64,
    /// The key's name, which is the same in all servers.
    pub name: [u8; 16],
    /// By how much its time is later than before: negative for what was given back.
    pub spent_ns: i64,
}

/// A table of keys that several servers share.
pub trait SharedTable: Send + Sync {
    /// What was spent since the last call.
    fn take(&self) -> Vec<SharedChange>;
    /// What all servers together have spent of a key: at `now_ns` of the engine's clock it lay `ahead_ns` ahead.
    fn settle(&self, key: u64, now_ns: u64, ahead_ns: u64);
}

/// What there is to say to operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharingEvent {
    /// The server is away, for this reason.
    Away(String),
    /// It is back.
    Back,
}

/// What the thread and its owner share.
#[derive(Default)]
struct SharingState {
    tables: Mutex<Vec<Weak<dyn SharedTable>>>,
    is_away: AtomicBool,
    exchanges: AtomicU64,
}

/// The exchange of counts, which ends when this is dropped.
pub struct Sharing {
    options: SharingOptions,
    state: Arc<SharingState>,
    _ends: Sender<()>,
}

impl Sharing {
    /// Starts the thread. `report` is called on it.
    ///
    /// # Errors
    /// An address that cannot be understood; the system has no thread.
    pub fn start(options: SharingOptions, report: Box<dyn Fn(SharingEvent) + Send>) -> io::Result<Sharing> {
        let address = RedisAddress::parse(&options.address)?;
        let state = Arc::new(SharingState::default());
        let (ends, ended) = channel();
        let exchange = CountExchange { address, options: options.clone(), state: state.clone(), link: None };
        std::thread::Builder::new().name("sharing".into()).spawn(move || exchange.run(&ended, &*report))?;
        Ok(Sharing { options, state, _ends: ends })
    }

    /// What it was started with.
    #[must_use]
    pub fn options(&self) -> &SharingOptions {
        &self.options
    }

    /// Exchanges the counts of these tables from now on, for as long as somebody else holds them; others that it has stay.
    pub fn add(&self, tables: impl IntoIterator<Item = Weak<dyn SharedTable>>) {
        let mut all = self.state.tables();
        for table in tables {
            if !all.iter().any(|other| other.ptr_eq(&table)) {
                all.push(table);
            }
        }
    }

    /// Whether the server cannot be reached: each limit is this server's own.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.state.is_away.load(Ordering::Relaxed)
    }

    /// How many exchanges there were.
    #[must_use]
    pub fn exchanges(&self) -> u64 {
        self.state.exchanges.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharing").field("options", &self.options).finish_non_exhaustive()
    }
}

impl SharingState {
    fn tables(&self) -> MutexGuard<'_, Vec<Weak<dyn SharedTable>>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct CountExchange {
    address: RedisAddress,
    options: SharingOptions,
    state: Arc<SharingState>,
    link: Option<RedisConnection>,
}

impl CountExchange {
    fn run(mut self, ended: &Receiver<()>, report: &dyn Fn(SharingEvent)) {
        loop {
            let exchanged = self.connect().and_then(|()| self.exchange());
            let pause = match &exchanged {
                Ok(()) => self.options.interval,
                Err(_) => RETRY,
            };
            let was_away = self.state.is_away.swap(exchanged.is_err(), Ordering::Relaxed);
            match exchanged {
                Ok(()) if was_away => report(SharingEvent::Back),
                Err(error) if !was_away => report(SharingEvent::Away(error.to_string())),
                Ok(()) | Err(_) => {}
            }
            if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Makes a connection, unless there is one.
    fn connect(&mut self) -> io::Result<()> {
        if self.link.is_some() {
            return Ok(());
        }
        // What was counted while it was away is of this server's own limits.
        self.live().iter().for_each(|table| drop(table.take()));
        let (password, timeout) = (self.options.password.as_deref(), self.options.timeout);
        self.link = Some(RedisConnection::open(&self.address, password, timeout)?);
        Ok(())
    }

    fn live(&self) -> Vec<Arc<dyn SharedTable>> {
        let mut tables = self.state.tables();
        tables.retain(|table| table.strong_count() > 0);
        tables.iter().filter_map(Weak::upgrade).collect()
    }

    fn exchange(&mut self) -> io::Result<()> {
        for table in self.live() {
            let changes = table.take();
            for part in changes.chunks(KEYS_MAX) {
                let now_ns = Clock::new().now_us().saturating_mul(1_000);
                let ahead_us = self.ask(part)?;
                for (change, ahead_us) in part.iter().zip(ahead_us) {
                    table.settle(change.key, now_ns, ahead_us.saturating_mul(1_000));
                }
                self.state.exchanges.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// One round trip. A connection that has become useless since the last one is made again, once.
    fn ask(&mut self, changes: &[SharedChange]) -> io::Result<Vec<u64>> {
        let mut command = vec!["EVAL".to_owned(), SCRIPT.to_owned(), changes.len().to_string()];
        let names = changes.iter().map(|change| HEXLOWER.encode(&change.name));
        command.extend(names.map(|name| format!("{}:{name}", self.options.prefix)));
        // In microseconds: those since 1970, in nanoseconds, are more than Lua's numbers hold exactly.
        command.extend(changes.iter().map(|change| format!("{:.3}", change.spent_ns as f64 / 1_000.0)));
        match self.query(&command, changes.len()) {
            Err(error) if is_closed(&error) => {
                self.connect()?;
                self.query(&command, changes.len())
            }
            asked => asked,
        }
    }

    fn query(&mut self, command: &[String], count: usize) -> io::Result<Vec<u64>> {
        let Some(link) = &mut self.link else { return Err(io::ErrorKind::NotConnected.into()) };
        let answer = link.numbers(command, count);
        if answer.is_err() {
            // What comes on it next may be the answer to this.
            self.link = None;
        }
        answer
    }
}

/// Whether the other side has closed the connection, as a server may that was not asked for a while.
fn is_closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}
