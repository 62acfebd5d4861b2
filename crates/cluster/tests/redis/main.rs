//! The store of a set of servers against real Redis servers, and against a hostile one.
#![allow(clippy::unwrap_used, missing_docs, reason = "test helpers are test code too")]

#[path = "../../../certificates/tests/pebble/mod.rs"]
mod pebble;
mod redis_server;

mod hostile;
mod partition;
mod sets;
mod transports;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use cluster::address::StoreAddress;
use cluster::{ClusterStore, ClusterTable, PurgeReceiver, SharedFiles, StoreEvent, StoreOptions};

const PATIENCE: Duration = Duration::from_secs(60);

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Options of a server of the set.
fn options(name: &str, store: &str, change: impl FnOnce(&mut ClusterTable)) -> StoreOptions {
    let mut table = ClusterTable {
        store: vec![StoreAddress::parse(store).unwrap()],
        name: Some(name.to_owned()),
        timeout: Duration::from_secs(20),
        purge_timeout: Duration::from_secs(20),
        ..ClusterTable::default()
    };
    change(&mut table);
    StoreOptions::of_table(&table, &|path| std::fs::read(path)).unwrap()
}

/// Files in memory.
#[derive(Default)]
struct MemoryFiles(Mutex<BTreeMap<String, (Vec<u8>, SystemTime)>>);

impl MemoryFiles {
    fn text(&self, name: &str) -> Option<String> {
        Some(String::from_utf8(self.0.lock().unwrap().get(name)?.0.clone()).unwrap())
    }

    fn put(&self, name: &str, text: &str) {
        let file = (text.as_bytes().to_vec(), SystemTime::now());
        self.0.lock().unwrap().insert(name.to_owned(), file);
    }
}

impl SharedFiles for MemoryFiles {
    fn list(&self) -> Vec<(String, SystemTime)> {
        self.0.lock().unwrap().iter().map(|(name, (_, at))| (name.clone(), *at)).collect()
    }

    fn read(&self, name: &str) -> Option<(Vec<u8>, SystemTime)> {
        self.0.lock().unwrap().get(name).cloned()
    }

    fn accept(&self, name: &str, contents: &[u8], written: SystemTime) -> Result<bool, String> {
        if name.contains("refused") {
            return Err("it is not wanted".to_owned());
        }
        self.0.lock().unwrap().insert(name.to_owned(), (contents.to_vec(), written));
        Ok(true)
    }

    fn remove(&self, name: &str) {
        self.0.lock().unwrap().remove(name);
    }

    fn keeps_first(&self, name: &str) -> bool {
        name.starts_with("first")
    }
}

/// Purges that were applied.
#[derive(Default)]
struct Purges(Mutex<Vec<String>>);

impl PurgeReceiver for Purges {
    fn apply(&self, order: &[u8]) -> Result<(), String> {
        let order = String::from_utf8(order.to_vec()).map_err(|_| "it is not text".to_owned())?;
        self.0.lock().unwrap().push(order);
        Ok(())
    }

    fn apply_all(&self) {
        self.0.lock().unwrap().push("everything".to_owned());
    }
}

/// A server of the set.
struct Server {
    store: ClusterStore,
    files: Arc<MemoryFiles>,
    purges: Arc<Purges>,
    events: Arc<Mutex<Vec<StoreEvent>>>,
}

impl Server {
    fn start(options: StoreOptions) -> Server {
        let events = Arc::new(Mutex::new(Vec::new()));
        let theirs = events.clone();
        let report = move |event| theirs.lock().unwrap().push(event);
        let store = ClusterStore::start(options, Box::new(report)).unwrap();
        let (files, purges) = (Arc::new(MemoryFiles::default()), Arc::new(Purges::default()));
        store.share_files(files.clone());
        store.receive_purges(purges.clone());
        Server { store, files, purges, events }
    }

    fn write(&self, name: &str, text: &str) {
        self.files.put(name, text);
        self.store.note_written(name, None);
    }

    fn purged(&self) -> Vec<String> {
        self.purges.0.lock().unwrap().clone()
    }

    fn count(&self, is_wanted: impl Fn(&StoreEvent) -> bool) -> usize {
        self.events.lock().unwrap().iter().filter(|event| is_wanted(event)).count()
    }

    fn problems(&self) -> Vec<String> {
        let text = |event: &StoreEvent| match event {
            StoreEvent::Problem(text) => Some(text.clone()),
            _ => None,
        };
        self.events.lock().unwrap().iter().filter_map(text).collect()
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
