//! Purges that reach all servers of a set: a stream, from which each server reads from where it was.
//!
//! ```text
//! PREFIX:1:purges     the stream; its entries are encrypted like all values
//! PREFIX:1:trimmed    the last entry that was removed from it because there are too many
//! PREFIX:1:members    what each server has applied (`members`)
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connection::StoreConnection;
use crate::files::STATE;
use crate::members::{PurgeProgress, StreamId, exchange_members};
use crate::options::StoreOptions;
use crate::reply::{Reply, StoreError};

/// Entries of the stream that are kept for servers that are away.
const ENTRIES_MAX: &str = "10000";
/// Maximum entries that are read at once.
const ENTRIES_PER_READ: &str = "100";
/// Longest time that the store waits for a purge before it answers.
const READ_WAIT: Duration = Duration::from_secs(1);
/// Time for which orders that could not be applied count as one series: whoever asks for a purge does not wait longer.
const REFUSED_TIME: Duration = Duration::from_secs(60);
/// Name under which orders are encrypted.
const SEAL_NAME: &str = "purge";

const PUBLISH: &str = "
if redis.call('XLEN', KEYS[1]) >= tonumber(ARGV[3]) then
  redis.call('SET', KEYS[2], redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1][1])
end
return redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[3], '*', 'from', ARGV[1], 'order', ARGV[2])
";

/// Applies purges of other servers. Called on a thread that may block.
pub trait PurgeReceiver: Send + Sync {
    /// Applies an order, as another server has sent it.
    ///
    /// # Errors
    /// Reason why the order cannot be applied.
    fn apply(&self, order: &[u8]) -> Result<(), String>;

    /// Purges everything, because it is not known which orders this server has missed.
    fn apply_all(&self);
}

/// Which servers have applied a purge.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PurgeReport {
    /// Names of the servers that have applied it.
    pub applied: Vec<String>,
    /// Names of the servers that have not, within the time.
    pub missing: Vec<String>,
    /// Reason why the others are not known; the purge is sent as soon as the store is there.
    pub error: Option<String>,
}

/// Adds an order to the stream, and returns its identifier.
///
/// # Errors
/// The store does not answer as it must.
pub(crate) async fn publish(
    store: &mut StoreConnection,
    options: &StoreOptions,
    instance: &str,
    order: &[u8],
) -> Result<StreamId, StoreError> {
    let sealed = options.seal.seal(SEAL_NAME, order).map_err(StoreError::Invalid)?;
    let keys = [options.key("purges"), options.key("trimmed")];
    let arguments = [instance.as_bytes(), &sealed, ENTRIES_MAX.as_bytes()];
    let id = store.script(PUBLISH, &keys, &arguments).await?.text()?;
    StreamId::parse(&id).ok_or_else(|| StoreError::Invalid("its reply is no identifier".to_owned()))
}

/// Reads the stream and applies its orders.
pub(crate) struct PurgeListener {
    pub(crate) options: Arc<StoreOptions>,
    /// Random text of this process.
    pub(crate) instance: String,
    /// The last entry that was read; `None` until it is known.
    pub(crate) cursor: Option<StreamId>,
    /// The first and the last order of late that could not be applied, and when that was.
    pub(crate) refused: Option<(StreamId, StreamId, Instant)>,
    pub(crate) epoch: String,
    pub(crate) applied: u64,
}

/// An event of the listener.
#[derive(Debug)]
pub(crate) enum PurgeNews {
    /// Everything was purged, because orders may have been missed.
    PurgedAll,
    /// An order cannot be read or applied.
    Refused(String),
    /// Another server has the same name.
    SameName,
}

impl PurgeListener {
    /// Finds out where to read on, and purges everything if that is not known.
    ///
    /// # Errors
    /// The store does not answer as it must.
    pub(crate) async fn resume(
        &mut self,
        store: &mut StoreConnection,
        receiver: &Arc<dyn PurgeReceiver>,
        report: &dyn Fn(PurgeNews),
    ) -> Result<(), StoreError> {
        let options = self.options.clone();
        let keys = [options.key("epoch"), options.key("version")];
        let made = format!("{:032x}", fastrand::u128(..));
        let [epoch, _] = store.script(STATE, &keys, &[made.as_bytes()]).await?.array()?;
        let epoch = epoch.text()?;
        if self.cursor.is_some() && epoch != self.epoch {
            // A new store: all of its orders are new too.
            self.cursor = Some(StreamId::default());
        }
        self.epoch = epoch;
        let purges = options.key("purges");
        let command: [&[u8]; 6] = [b"XREVRANGE", purges.as_bytes(), b"+", b"-", b"COUNT", b"1"];
        let last = match store.command(&command).await?.list()?.into_iter().next() {
            Some(entry) => entry_of(entry)?.0,
            None => StreamId::default(),
        };
        let trimmed = store.command(&[b"GET", options.key("trimmed").as_bytes()]).await?.text()?;
        let trimmed = StreamId::parse(&trimmed).unwrap_or_default();
        let members = exchange_members(store, &options, None).await?;
        let own = members.iter().find(|member| member.name == options.name);
        if own.is_some_and(|own| own.is_live && own.instance != self.instance) && self.cursor.is_none() {
            report(PurgeNews::SameName);
        }
        let known = self.cursor.or(own.map(|own| own.purges.read));
        let is_complete = known.is_some_and(|known| known >= trimmed);
        if !is_complete && last != StreamId::default() {
            let receiver = receiver.clone();
            // A panic in it is reported by its thread.
            let _ = tokio::task::spawn_blocking(move || receiver.apply_all()).await;
            report(PurgeNews::PurgedAll);
            self.cursor = Some(last);
        } else {
            self.cursor = Some(known.unwrap_or_default());
        }
        exchange_members(store, &options, Some((&self.instance, self.progress()))).await?;
        Ok(())
    }

    fn progress(&self) -> PurgeProgress {
        let refused = self.refused.map(|(first, last, _)| (first, last));
        PurgeProgress { read: self.cursor.unwrap_or_default(), refused }
    }

    /// Records that an order could not be applied. Whoever asked for the purge is told so.
    fn refuse(&mut self, id: StreamId) {
        let now = Instant::now();
        let first = match self.refused {
            Some((first, _, at)) if now.duration_since(at) < REFUSED_TIME => first,
            _ => id,
        };
        self.refused = Some((first, id, now));
    }

    /// Waits for orders, applies them, and acknowledges them.
    ///
    /// # Errors
    /// The store does not answer as it must.
    pub(crate) async fn read(
        &mut self,
        store: &mut StoreConnection,
        receiver: &Arc<dyn PurgeReceiver>,
        report: &dyn Fn(PurgeNews),
    ) -> Result<(), StoreError> {
        let options = self.options.clone();
        let mut cursor = self.cursor.unwrap_or_default();
        let (purges, wait, from) =
            (options.key("purges"), READ_WAIT.as_millis().to_string(), cursor.to_string());
        let command: [&[u8]; 8] = [
            b"XREAD",
            b"COUNT",
            ENTRIES_PER_READ.as_bytes(),
            b"BLOCK",
            wait.as_bytes(),
            b"STREAMS",
            purges.as_bytes(),
            from.as_bytes(),
        ];
        let reply = store.command_within(&command, READ_WAIT + options.timeout).await?;
        let entries = match reply {
            Reply::Nil => Vec::new(),
            reply => {
                let [stream] = reply.array()?;
                let [_, entries] = stream.array()?;
                entries.list()?
            }
        };
        for entry in entries {
            let (id, from, order) = entry_of(entry)?;
            if id <= cursor {
                return Err(StoreError::Invalid("its stream is not in order".to_owned()));
            }
            if from != self.instance.as_bytes() {
                let order = options.seal.open(SEAL_NAME, &order);
                let receiver = receiver.clone();
                let applied =
                    tokio::task::spawn_blocking(move || order.and_then(|order| receiver.apply(&order)));
                match applied.await.unwrap_or_else(|error| Err(error.to_string())) {
                    Ok(()) => self.applied += 1,
                    Err(text) => {
                        self.refuse(id);
                        report(PurgeNews::Refused(text));
                    }
                }
            }
            cursor = id;
            self.cursor = Some(id);
        }
        exchange_members(store, &options, Some((&self.instance, self.progress()))).await?;
        Ok(())
    }
}

/// Returns the identifier of an entry, who wrote it, and the order.
fn entry_of(entry: Reply) -> Result<(StreamId, Vec<u8>, Vec<u8>), StoreError> {
    let invalid = || StoreError::Invalid("an entry of its stream is not one of this version".to_owned());
    let [id, fields] = entry.array()?;
    let id = StreamId::parse(&id.text()?).ok_or_else(invalid)?;
    let mut fields = fields.list()?.into_iter();
    let (mut from, mut order) = (Vec::new(), Vec::new());
    while let (Some(name), Some(value)) = (fields.next(), fields.next()) {
        match name.bytes()?.as_deref() {
            Some(b"from") => from = value.bytes()?.unwrap_or_default(),
            Some(b"order") => order = value.bytes()?.unwrap_or_default(),
            _ => {}
        }
    }
    Ok((id, from, order))
}
