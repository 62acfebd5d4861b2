//! A connection to the store that carries one command at a time.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::address::{StoreAddress, StoreEndpoint};
use crate::options::StoreOptions;
use crate::reply::{Reply, StoreError};
use crate::transport::{BoundedStream, ReceiveAllowance};

/// A connection to the store. After an error other than [`StoreError::Refused`] it must not be used again, because a
/// later reply could belong to an earlier command.
pub struct StoreConnection {
    connection: MultiplexedConnection,
    driver: AbortHandle,
    allowance: Arc<ReceiveAllowance>,
    timeout: Duration,
}

impl Drop for StoreConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl StoreConnection {
    /// Connects to the store, or to the primary that its Sentinels name, within the timeout of the options.
    ///
    /// # Errors
    /// The store cannot be reached in time, or refuses the user.
    pub async fn open(options: &StoreOptions) -> Result<StoreConnection, StoreError> {
        let deadline = Instant::now() + options.timeout;
        let opened = timeout_at(deadline, async {
            match &options.sentinel {
                None => {
                    let Some(address) = options.addresses.first() else {
                        return Err(StoreError::Unreachable("no address is configured".to_owned()));
                    };
                    StoreConnection::connect(address, options.password.as_deref(), options).await
                }
                Some(primary) => StoreConnection::open_primary(primary, options).await,
            }
        });
        opened.await.unwrap_or(Err(StoreError::TimedOut(options.timeout)))
    }

    /// Asks the Sentinels in turn for the primary, and connects to it.
    async fn open_primary(primary: &str, options: &StoreOptions) -> Result<StoreConnection, StoreError> {
        let mut failures = Vec::new();
        for sentinel in &options.addresses {
            match StoreConnection::open_by_sentinel(sentinel, primary, options).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failures.push(format!("{}: {error}", sentinel.text)),
            }
        }
        Err(StoreError::Unreachable(failures.join("; ")))
    }

    async fn open_by_sentinel(
        sentinel: &StoreAddress,
        primary: &str,
        options: &StoreOptions,
    ) -> Result<StoreConnection, StoreError> {
        // Each Sentinel gets its share of the time, so that one that is silent does not keep from the next.
        let share = options.timeout / (options.addresses.len() as u32 + 1);
        let ask = async {
            let plain = StoreAddress { user: None, database: 0, ..sentinel.clone() };
            let password = options.sentinel_password.as_deref();
            let mut connection = StoreConnection::connect(&plain, password, options).await?;
            connection.command(&[b"SENTINEL", b"get-master-addr-by-name", primary.as_bytes()]).await
        };
        let asked = tokio::time::timeout(share, ask).await.unwrap_or(Err(StoreError::TimedOut(share)))?;
        if asked == Reply::Nil {
            return Err(StoreError::Invalid(format!("it knows no primary {primary:?}")));
        }
        let [host, port] = asked.array()?;
        let port = u16::try_from(port.number()?)
            .map_err(|_| StoreError::Invalid("the port of the primary is no port".to_owned()))?;
        let is_tls = matches!(sentinel.endpoint, StoreEndpoint::Tcp { is_tls: true, .. });
        let host = host.text()?;
        let text = format!("{host}:{port}");
        let endpoint = StoreEndpoint::Tcp { host, port, is_tls };
        let address = StoreAddress { endpoint, text: text.clone(), ..sentinel.clone() };
        let opened = StoreConnection::connect(&address, options.password.as_deref(), options).await;
        let named = |error: StoreError| StoreError::Unreachable(format!("the primary {text}: {error}"));
        let mut connection = opened.map_err(named)?;
        // Right after a failover, Sentinels may still name the server that was the primary before.
        let role = connection.command(&[b"ROLE"]).await.map_err(named)?.list()?;
        match role.into_iter().next() {
            Some(Reply::Bytes(role)) if role == b"master" => Ok(connection),
            _ => Err(named(StoreError::Invalid("it is no primary".to_owned()))),
        }
    }

    async fn connect(
        address: &StoreAddress,
        password: Option<&str>,
        options: &StoreOptions,
    ) -> Result<StoreConnection, StoreError> {
        let (stream, allowance) = BoundedStream::connect(&address.endpoint, options.tls.as_ref()).await?;
        let mut info = RedisConnectionInfo::default().set_db(address.database.into()).set_skip_set_lib_name();
        if let Some(password) = password {
            info = info.set_password(password);
            if let Some(user) = &address.user {
                info = info.set_username(user);
            }
        }
        // The time of each command is limited here, because some commands wait on purpose.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (connection, driver) = MultiplexedConnection::new_with_config(&info, stream, config).await?;
        let driver = tokio::spawn(driver).abort_handle();
        Ok(StoreConnection { connection, driver, allowance, timeout: options.timeout })
    }

    /// Sends a command and returns its reply, within the timeout of the options.
    ///
    /// # Errors
    /// The reply is an error, too long or late.
    pub async fn command(&mut self, parts: &[&[u8]]) -> Result<Reply, StoreError> {
        self.command_within(parts, self.timeout).await
    }

    /// Sends a command that may take as long as `timeout`.
    ///
    /// # Errors
    /// Those of [`StoreConnection::command`].
    pub async fn command_within(&mut self, parts: &[&[u8]], timeout: Duration) -> Result<Reply, StoreError> {
        let mut command = redis::Cmd::new();
        parts.iter().for_each(|part| _ = command.arg(*part));
        self.allowance.renew();
        let sent = tokio::time::timeout(timeout, self.connection.send_packed_command(&command)).await;
        let value = sent.map_err(|_| StoreError::TimedOut(timeout))??;
        Reply::of_value(value)
    }

    /// Runs a script on the store.
    ///
    /// # Errors
    /// Those of [`StoreConnection::command`].
    pub async fn script(
        &mut self,
        script: &str,
        keys: &[String],
        arguments: &[&[u8]],
    ) -> Result<Reply, StoreError> {
        let count = keys.len().to_string();
        let mut parts: Vec<&[u8]> = vec![b"EVAL", script.as_bytes(), count.as_bytes()];
        parts.extend(keys.iter().map(String::as_bytes));
        parts.extend(arguments);
        self.command(&parts).await
    }
}
