//! Request bodies that are read completely before a server is chosen. Servers of the CGI family need this:
//! one process serves one request, and the variables include the length.

use std::sync::Arc;

use http::{BodySize, Reject, Status};
use net::{Exchange, Fault, SpillFile, SpillQuota};

use super::{Attempts, BoundProxy};
use crate::dial::with_deadline;

/// Size of the blocks that are written to a file.
const BLOCK_BYTES: usize = 128 * 1024;
const NO_ROOM: Reject = Reject::new(Status::SERVICE_UNAVAILABLE, "there is no room for the request's body");

impl BoundProxy {
    /// Reads the body, up to `read_ahead_bytes` into memory and beyond that into a temporary file. Without
    /// space for it, a body of known length is left unread on the client's connection.
    pub(super) async fn store_body(
        &self,
        exchange: &mut Exchange<'_>,
        attempts: &mut Attempts<'_>,
    ) -> Result<(), Fault> {
        let deadline = attempts.deadline;
        let stored = Box::pin(self.store(exchange, attempts));
        with_deadline(&self.group.core, deadline, stored).await.unwrap_or(Err(Fault::Timeout))
    }

    async fn store(&self, exchange: &mut Exchange<'_>, attempts: &mut Attempts<'_>) -> Result<(), Fault> {
        let kept = &mut attempts.replay;
        while let Some(bytes) = exchange.read().await? {
            kept.append_unlimited(bytes);
            if kept.bytes.len() > self.rules.options.read_ahead_bytes {
                let bytes = std::mem::take(&mut kept.bytes);
                match self.spill_body(exchange, bytes).await? {
                    Ok(file) => {
                        kept.file = Some(Box::new(file));
                        break;
                    }
                    Err(bytes) => {
                        kept.bytes = bytes;
                        return Ok(());
                    }
                }
            }
        }
        exchange.hold(kept.bytes.capacity());
        kept.end();
        Ok(())
    }

    /// Reads the rest of the body into a file that begins with `bytes`. Returns `bytes` if there is no space
    /// and the rest may stay unread.
    async fn spill_body(
        &self,
        exchange: &mut Exchange<'_>,
        mut bytes: Vec<u8>,
    ) -> Result<Result<SpillFile, Vec<u8>>, Fault> {
        let core = exchange.core().clone();
        let body = exchange.request().body();
        let announced = match body {
            BodySize::Known(length) => length,
            BodySize::Unknown | BodySize::None => bytes.len() as u64,
        };
        let created = match self.quota() {
            Some(quota) => SpillFile::create(&core, quota, announced).await.ok(),
            None => None,
        };
        let Some(mut file) = created else {
            return match body {
                BodySize::Known(_) => Ok(Err(bytes)),
                BodySize::Unknown | BodySize::None => Err(NO_ROOM.into()),
            };
        };
        let mut is_read = false;
        while !is_read {
            while bytes.len() < BLOCK_BYTES && !is_read {
                match exchange.read().await? {
                    Some(piece) => bytes.extend_from_slice(piece),
                    None => is_read = true,
                }
            }
            let (written, _, result) = file.append(&core, std::mem::take(&mut bytes), 0).await;
            result.map_err(|_| NO_ROOM)?;
            bytes = written;
            bytes.clear();
        }
        Ok(Ok(file))
    }

    fn quota(&self) -> Option<&Arc<SpillQuota>> {
        self.rules.spill.as_ref()
    }
}
