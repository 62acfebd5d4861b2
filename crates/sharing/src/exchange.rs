//! Thread that exchanges counts with Redis.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use cluster::{BlockingConnection, StoreError, StoreOptions};
use data_encoding::HEXLOWER;
use net::clock::Clock;

use crate::shared_limits::SharedLimits;

/// Maximum keys per command, because Redis serves no other client while a script runs.
const KEYS_MAX: usize = 500;
/// Pause after a failure before the server is tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Pause between two looks for tables while there are none.
const IDLE_PAUSE: Duration = Duration::from_millis(100);
/// Adds the spending to the time at which each key's bucket is full, and returns how far that time is ahead,
/// in microseconds. Uses the clock of Redis, so that the servers' clocks need not agree.
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

/// Spending of a key on this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedChange {
    /// The table's number of the key.
    pub key: u64,
    /// Name of the key, equal on all servers.
    pub name: [u8; 16],
    /// Change of the time at which the key's bucket is full; negative if requests were refunded.
    pub spent_ns: i64,
}

/// A table of keys that several servers share.
pub trait SharedTable: Send + Sync {
    /// Takes the spending since the last call.
    fn take(&self) -> Vec<SharedChange>;
    /// Sets the total spending of all servers for a key: at `now_ns` of the engine's clock, the key was
    /// `ahead_ns` ahead.
    fn set_total(&self, key: u64, now_ns: u64, ahead_ns: u64);
}

/// An event for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharingEvent {
    /// Redis cannot be reached, for this reason.
    Unreachable(String),
    /// Redis can be reached again.
    Reachable,
}

/// State shared by the thread and its owner.
#[derive(Default)]
struct SharingState {
    tables: Mutex<Vec<Weak<dyn SharedTable>>>,
    is_unreachable: AtomicBool,
    exchanges: AtomicU64,
}

/// The exchange of counts; dropping it ends its thread.
pub struct Sharing {
    server: SharedLimits,
    store: StoreOptions,
    state: Arc<SharingState>,
    _ends: Sender<()>,
}

impl Sharing {
    /// Starts the thread, which also calls `report`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        server: SharedLimits,
        store: StoreOptions,
        report: Box<dyn Fn(SharingEvent) + Send>,
    ) -> io::Result<Sharing> {
        let store = store.with_timeout(server.timeout);
        let state = Arc::new(SharingState::default());
        let (ends, ended) = channel();
        let exchange = CountExchange {
            store: store.clone(),
            server: server.clone(),
            state: state.clone(),
            connection: None,
        };
        std::thread::Builder::new().name("sharing".into()).spawn(move || exchange.run(&ended, &*report))?;
        Ok(Sharing { server, store, state, _ends: ends })
    }

    /// Whether counts are exchanged with this store in this way.
    #[must_use]
    pub fn is_with(&self, server: &SharedLimits, store: &StoreOptions) -> bool {
        self.server == *server && self.store.is_same(store)
    }

    /// Adds tables whose counts are exchanged for as long as they are referenced elsewhere.
    pub fn add(&self, tables: impl IntoIterator<Item = Weak<dyn SharedTable>>) {
        let mut all = self.state.tables();
        for table in tables {
            if !all.iter().any(|other| other.ptr_eq(&table)) {
                all.push(table);
            }
        }
    }

    /// Whether Redis cannot be reached, so that each limit applies to this server alone.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.state.is_unreachable.load(Ordering::Relaxed)
    }

    /// Returns the number of exchanges.
    #[must_use]
    pub fn exchanges(&self) -> u64 {
        self.state.exchanges.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sharing").field("store", &self.store).finish_non_exhaustive()
    }
}

impl SharingState {
    fn tables(&self) -> MutexGuard<'_, Vec<Weak<dyn SharedTable>>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct CountExchange {
    store: StoreOptions,
    server: SharedLimits,
    state: Arc<SharingState>,
    connection: Option<BlockingConnection>,
}

impl CountExchange {
    fn run(mut self, ended: &Receiver<()>, report: &dyn Fn(SharingEvent)) {
        loop {
            if self.live_tables().is_empty() {
                // Nothing is shared, or not yet: no connection is needed.
                self.connection = None;
                if ended.recv_timeout(IDLE_PAUSE) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                continue;
            }
            let exchanged = self.connect().and_then(|()| self.exchange());
            let pause = match &exchanged {
                Ok(()) => self.server.interval,
                Err(_) => RETRY_PAUSE,
            };
            let was_away = self.state.is_unreachable.swap(exchanged.is_err(), Ordering::Relaxed);
            match exchanged {
                Ok(()) if was_away => report(SharingEvent::Reachable),
                Err(error) if !was_away => report(SharingEvent::Unreachable(error.to_string())),
                Ok(()) | Err(_) => {}
            }
            if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Connects, unless there is a connection.
    fn connect(&mut self) -> Result<(), StoreError> {
        if self.connection.is_some() {
            return Ok(());
        }
        // Counts from the time without a connection apply to this server's own limits only.
        self.live_tables().iter().for_each(|table| drop(table.take()));
        self.connection = Some(BlockingConnection::open(&self.store)?);
        Ok(())
    }

    fn live_tables(&self) -> Vec<Arc<dyn SharedTable>> {
        let mut tables = self.state.tables();
        tables.retain(|table| table.strong_count() > 0);
        tables.iter().filter_map(Weak::upgrade).collect()
    }

    fn exchange(&mut self) -> Result<(), StoreError> {
        for table in self.live_tables() {
            let changes = table.take();
            for part in changes.chunks(KEYS_MAX) {
                let now_ns = Clock::new().now_us().saturating_mul(1_000);
                let ahead_us = self.query_with_reconnect(part)?;
                for (change, ahead_us) in part.iter().zip(ahead_us) {
                    table.set_total(change.key, now_ns, ahead_us.saturating_mul(1_000));
                }
                self.state.exchanges.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Sends one command and reads the reply. Reconnects once if the connection was closed since the last
    /// one.
    fn query_with_reconnect(&mut self, changes: &[SharedChange]) -> Result<Vec<u64>, StoreError> {
        match self.query(changes) {
            Err(StoreError::Unreachable(_)) => {
                self.connect()?;
                self.query(changes)
            }
            asked => asked,
        }
    }

    fn query(&mut self, changes: &[SharedChange]) -> Result<Vec<u64>, StoreError> {
        let gone = || StoreError::Unreachable("there is no connection".to_owned());
        // Given back only after a valid reply: a later one on this connection could belong to this command.
        let mut connection = self.connection.take().ok_or_else(gone)?;
        let names = changes.iter().map(|change| HEXLOWER.encode(&change.name));
        let keys: Vec<String> = names.map(|name| format!("{}:{name}", self.server.prefix)).collect();
        // Microseconds, because nanoseconds since 1970 exceed the integers that Lua's numbers represent
        // exactly.
        let spent = changes.iter().map(|change| format!("{:.3}", change.spent_ns as f64 / 1_000.0));
        let spent: Vec<String> = spent.collect();
        let spent: Vec<&[u8]> = spent.iter().map(String::as_bytes).collect();
        let ahead = connection.script(SCRIPT, &keys, &spent)?.list()?;
        if ahead.len() != changes.len() {
            return Err(StoreError::Invalid("its reply is not a number for each key".to_owned()));
        }
        let ahead = ahead.into_iter().map(|ahead| ahead.number()).collect::<Result<_, _>>()?;
        self.connection = Some(connection);
        Ok(ahead)
    }
}
