//! Management of the TXT records of DNS-01 challenges (RFC 8555 section 8.4).

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use failure::Failure;

use crate::dns_update::DnsServer;
use crate::hook;
use crate::schedule::Intervals;

/// Provider of the TXT records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsRecords {
    /// A command with its arguments.
    Hook(Vec<OsString>),
    /// A DNS server, by dynamic update.
    Update(DnsServer),
}

impl DnsRecords {
    /// Maximum time for adding and removing a record.
    pub(crate) fn time_max(&self, intervals: &Intervals) -> Duration {
        match self {
            DnsRecords::Hook(_) => 2 * intervals.hook_max,
            DnsRecords::Update(server) => 2 * intervals.request_max + server.wait,
        }
    }

    /// Adds a record; completes when the authority can see it. Returns the stderr output of a hook.
    ///
    /// # Errors
    /// Reason why it could not be added.
    pub(crate) async fn add(
        &self,
        name: &str,
        value: &str,
        now: SystemTime,
        intervals: &Intervals,
    ) -> Result<String, Failure> {
        match self {
            DnsRecords::Hook(words) => hook::run(words, "add", name, value, intervals.hook_max).await,
            DnsRecords::Update(server) => {
                server.change(true, name, value, now, intervals.request_max).await?;
                if server.wait > Duration::ZERO {
                    tokio::time::sleep(server.wait).await;
                }
                Ok(String::new())
            }
        }
    }

    /// Removes a record. Returns the stderr output of a hook.
    ///
    /// # Errors
    /// Reason why it could not be removed.
    pub(crate) async fn remove(
        &self,
        name: &str,
        value: &str,
        now: SystemTime,
        intervals: &Intervals,
    ) -> Result<String, Failure> {
        match self {
            DnsRecords::Hook(words) => hook::run(words, "remove", name, value, intervals.hook_max).await,
            DnsRecords::Update(server) => {
                server.change(false, name, value, now, intervals.request_max).await?;
                Ok(String::new())
            }
        }
    }
}
