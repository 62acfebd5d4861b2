//! Secrets of session tickets that all servers of a set have, one for each period.

use crate::connection::StoreConnection;
use crate::options::StoreOptions;
use crate::reply::StoreError;

/// Size of a secret, in bytes.
const SECRET_BYTES: usize = 32;

/// Adds the secrets of the present and the next period if there are none, forgets old ones, and returns those of the last,
/// present and next period. Periods are those of the store's clock, so that a server whose clock is wrong removes nothing.
const ROTATE: &str = "
local period = math.floor(redis.call('TIME')[1] / tonumber(ARGV[1]))
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  if (tonumber(name) or 0) < period - 1 then redis.call('HDEL', KEYS[1], name) end
end
for index = 2, #ARGV, 2 do
  local at = tonumber(ARGV[index])
  if math.abs(at - period) <= 1 then redis.call('HSETNX', KEYS[1], ARGV[index], ARGV[index + 1]) end
end
local first = tonumber(ARGV[2])
return redis.call('HMGET', KEYS[1], first - 1, first, first + 1)
";

/// Receives the secret of a period.
pub(crate) type SecretReceiver = Box<dyn Fn(u64, Vec<u8>) + Send + Sync>;

/// Takes part in the rotation: `period` is the present one of `period_s` seconds. Returns the problems of single secrets.
///
/// # Errors
/// The store does not answer as it must.
pub(crate) async fn rotate(
    store: &mut StoreConnection,
    options: &StoreOptions,
    (period_s, period): (u64, u64),
    receive: &SecretReceiver,
) -> Result<Vec<String>, StoreError> {
    let period_s = period_s.to_string();
    let mut arguments: Vec<Vec<u8>> = vec![period_s.into_bytes()];
    for at in [period, period + 1] {
        let mut secret = [0; SECRET_BYTES];
        let failed = || StoreError::Invalid("there are no random numbers".to_owned());
        aws_lc_rs::rand::fill(&mut secret).map_err(|_| failed())?;
        arguments.push(at.to_string().into_bytes());
        arguments.push(options.seal.seal(&name(at), &secret).map_err(StoreError::Invalid)?);
    }
    let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
    let reply = store.script(ROTATE, &[options.key("tickets")], &arguments).await?;
    let secrets: [_; 3] = reply.array()?;
    let mut problems = Vec::new();
    for (at, sealed) in (period.saturating_sub(1)..).zip(secrets) {
        let Some(sealed) = sealed.bytes()? else { continue };
        match options.seal.open(&name(at), &sealed) {
            Ok(secret) if secret.len() == SECRET_BYTES => receive(at, secret),
            Ok(_) => problems.push("the secret of session tickets has another length".to_owned()),
            Err(text) => problems.push(format!("the secret of session tickets is not used: {text}")),
        }
    }
    Ok(problems)
}

fn name(period: u64) -> String {
    format!("ticket {period}")
}
