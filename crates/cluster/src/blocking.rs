//! A connection for threads that may block.

use std::io;

use tokio::runtime::Runtime;

use crate::connection::StoreConnection;
use crate::options::StoreOptions;
use crate::reply::{Reply, StoreError};

/// A connection to the store whose commands block.
pub struct BlockingConnection {
    // Before the runtime, on which it is driven.
    connection: StoreConnection,
    runtime: Runtime,
}

impl BlockingConnection {
    /// Connects, as [`StoreConnection::open`] does.
    ///
    /// # Errors
    /// Those of [`StoreConnection::open`], or there are no descriptors for the runtime.
    pub fn open(options: &StoreOptions) -> Result<BlockingConnection, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error: io::Error| StoreError::Unreachable(error.to_string()))?;
        let connection = runtime.block_on(StoreConnection::open(options))?;
        Ok(BlockingConnection { connection, runtime })
    }

    /// Runs a script on the store.
    ///
    /// # Errors
    /// Those of [`StoreConnection::command`].
    pub fn script(
        &mut self,
        script: &str,
        keys: &[String],
        arguments: &[&[u8]],
    ) -> Result<Reply, StoreError> {
        self.runtime.block_on(self.connection.script(script, keys, arguments))
    }
}
