//! Which of several replicas writes statuses: the one that holds a Lease.

use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::client::{ApiClient, ApiError};

/// Name of the Lease.
const LEASE_NAME: &str = "komainu-gateway-controller";
/// Time after which a Lease that is not renewed is free.
pub(crate) const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Time between two renewals.
pub(crate) const RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// Returns the present time as the API writes it.
pub(crate) fn now_text() -> String {
    let now = OffsetDateTime::now_utc().replace_nanosecond(0).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    now.format(&Rfc3339).unwrap_or_default()
}

fn now_micros() -> String {
    now_text().replace('Z', ".000000Z")
}

/// The Lease, as this replica has seen it. Clocks of other machines are not compared: a Lease is free if it has stayed the same for
/// as long as it lasts.
pub(crate) struct LeaseHolder {
    client: ApiClient,
    namespace: String,
    identity: String,
    seen: Option<(String, Instant)>,
}

impl LeaseHolder {
    pub(crate) fn new(client: ApiClient, namespace: &str, identity: &str) -> LeaseHolder {
        LeaseHolder { client, namespace: namespace.to_owned(), identity: identity.to_owned(), seen: None }
    }

    /// Acquires or renews the Lease. Returns whether this replica holds it.
    pub(crate) async fn acquire(&mut self) -> Result<bool, ApiError> {
        let folder = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.namespace);
        let path = format!("{folder}/{LEASE_NAME}");
        let present = match self.client.request(Method::GET, &path, None).await {
            Ok(lease) => lease,
            Err(ApiError::Status(404, _)) => {
                let lease = self.lease(&json!({}), 0);
                let made =
                    self.client.request(Method::POST, &folder, Some(("application/json", &lease))).await;
                return is_won(made);
            }
            Err(error) => return Err(error),
        };
        let text = |name: &str| present.pointer(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let holder = text("/spec/holderIdentity");
        let version = text("/metadata/resourceVersion");
        if holder != self.identity && !holder.is_empty() {
            let now = Instant::now();
            match &self.seen {
                Some((seen, since)) if *seen == version && now.duration_since(*since) >= LEASE_DURATION => {}
                Some((seen, _)) if *seen == version => return Ok(false),
                _ => {
                    self.seen = Some((version, now));
                    return Ok(false);
                }
            }
        }
        let transitions = present.pointer("/spec/leaseTransitions").and_then(Value::as_i64).unwrap_or(0);
        let transitions = transitions.saturating_add(i64::from(holder != self.identity));
        let lease = self.lease(present.get("metadata").unwrap_or(&Value::Null), transitions);
        is_won(self.client.request(Method::PUT, &path, Some(("application/json", &lease))).await)
    }

    fn lease(&self, metadata: &Value, transitions: i64) -> Value {
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": LEASE_NAME,
                "namespace": self.namespace,
                "resourceVersion": metadata.get("resourceVersion"),
            },
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": LEASE_DURATION.as_secs(),
                "leaseTransitions": transitions,
                "renewTime": now_micros(),
                "acquireTime": now_micros(),
            },
        })
    }
}

/// A conflict is another replica that was faster.
fn is_won(outcome: Result<Value, ApiError>) -> Result<bool, ApiError> {
    match outcome {
        Ok(_) => Ok(true),
        Err(ApiError::Status(409, _)) => Ok(false),
        Err(error) => Err(error),
    }
}
