//! The servers of a set: each writes that it is there, and up to which purge it has applied them.

use std::net::SocketAddr;

use crate::connection::StoreConnection;
use crate::options::StoreOptions;
use crate::reply::StoreError;

/// Seconds without a sign of life after which a server is no longer waited for.
const SILENT_S_MAX: u64 = 10;
/// Maximum number of servers of a set.
const MEMBERS_MAX: usize = 1_000;

/// Writes a sign of life, forgets servers of which there was none for an hour, and returns the time and all servers.
const HEARTBEAT: &str = "
local time = redis.call('TIME')
if ARGV[1] ~= '' then redis.call('HSET', KEYS[1], ARGV[1], time[1] .. ' ' .. ARGV[2]) end
local all = redis.call('HGETALL', KEYS[1])
for index = 1, #all, 2 do
  local seen = tonumber(string.match(all[index + 1], '^%d+') or '0')
  if seen + 3600 < tonumber(time[1]) then redis.call('HDEL', KEYS[1], all[index]) end
end
return {time[1], all}
";

/// Identifier of an entry of a stream: milliseconds and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct StreamId(pub(crate) u64, pub(crate) u64);

impl StreamId {
    /// Parses `MILLISECONDS-NUMBER`.
    pub(crate) fn parse(text: &str) -> Option<StreamId> {
        let (ms, number) = text.split_once('-')?;
        Some(StreamId(ms.parse().ok()?, number.parse().ok()?))
    }
}

impl std::fmt::Display for StreamId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

/// How far a server has come with purges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PurgeProgress {
    /// The last purge that it has read.
    pub(crate) read: StreamId,
    /// The first and the last purge of late that it could not apply.
    pub(crate) refused: Option<(StreamId, StreamId)>,
}

impl PurgeProgress {
    /// Whether a purge has been applied.
    pub(crate) fn has_applied(&self, id: StreamId) -> bool {
        self.read >= id && self.refused.is_none_or(|(first, last)| id < first || id > last)
    }
}

/// A server of the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetMember {
    pub(crate) name: String,
    /// Random text of the process.
    pub(crate) instance: String,
    /// How far it has come with purges.
    pub(crate) purges: PurgeProgress,
    /// Whether it gave a sign of life lately.
    pub(crate) is_live: bool,
    /// Address at which it answers other servers of the set.
    pub(crate) address: Option<SocketAddr>,
}

/// State that a server publishes of itself.
#[derive(Default)]
struct MemberSign {
    instance: String,
    purges: PurgeProgress,
    address: Option<SocketAddr>,
}

impl MemberSign {
    fn parse(text: &str) -> Option<MemberSign> {
        let mut words = text.split(' ');
        let instance = words.next()?.to_owned();
        let read = words.next().and_then(StreamId::parse)?;
        let address = words.next().and_then(|address| address.parse().ok());
        let mut refused = words.map_while(StreamId::parse);
        let refused = refused.next().zip(refused.next());
        Some(MemberSign { instance, purges: PurgeProgress { read, refused }, address })
    }
}

/// Returns the name under which that state is encrypted, so that no server can speak for another.
fn seal_name(name: &str) -> String {
    format!("member {name}")
}

/// Returns all servers; with `own` (name and instance, and the last purge that was applied), also says that this one is
/// there.
///
/// # Errors
/// The store does not answer as it must.
pub(crate) async fn exchange_members(
    store: &mut StoreConnection,
    options: &StoreOptions,
    own: Option<(&str, PurgeProgress)>,
) -> Result<Vec<SetMember>, StoreError> {
    let (name, sign) = match own {
        Some((instance, progress)) => {
            let address = options.peers.as_ref().map_or("-".to_owned(), |peers| peers.address.to_string());
            let mut sign = format!("{instance} {} {address}", progress.read);
            if let Some((first, last)) = progress.refused {
                sign += &format!(" {first} {last}");
            }
            let sealed = options.seal.seal(&seal_name(&options.name), sign.as_bytes());
            (options.name.as_str(), sealed.map_err(StoreError::Invalid)?)
        }
        None => ("", Vec::new()),
    };
    let keys = [options.key("members")];
    let reply = store.script(HEARTBEAT, &keys, &[name.as_bytes(), &sign]).await?;
    let [now, all] = reply.array()?;
    let (now, all) = (now.number()?, all.list()?);
    if all.len() > 2 * MEMBERS_MAX {
        return Err(StoreError::Invalid(format!("its list of servers has more than {MEMBERS_MAX}")));
    }
    let mut members = Vec::new();
    let mut all = all.into_iter();
    while let (Some(name), Some(sign)) = (all.next(), all.next()) {
        let (name, sign) = (name.text()?, sign.bytes()?.unwrap_or_default());
        let mut parts = sign.splitn(2, |byte| *byte == b' ');
        let seen = parts.next().and_then(|seen| str::from_utf8(seen).ok()?.parse::<u64>().ok());
        let Some(seen) = seen else { continue };
        let is_live = now.saturating_sub(seen) <= SILENT_S_MAX;
        let opened = options.seal.open(&seal_name(&name), parts.next().unwrap_or_default());
        let sign = opened.ok().and_then(|sign| MemberSign::parse(str::from_utf8(&sign).ok()?));
        // One with another key cannot read what this one writes.
        let MemberSign { instance, purges, address } = sign.unwrap_or_default();
        members.push(SetMember { name, instance, purges, is_live, address });
    }
    Ok(members)
}
