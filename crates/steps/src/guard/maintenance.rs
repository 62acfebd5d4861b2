//! Maintenance mode of a site.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use admission::maintenance::Maintenance;
use engine::clients::proxies::peer_set;
use http::{Fields, Name, Status};
use net::offload::BlockingKind;
use net::{Exchange, Fault, Page, PeerSet};
use telemetry::rule_counters::RuleCounter;
use times::{AtomicMoment, Millis};

/// Interval at which the switch file is checked, in milliseconds.
const CHECK_INTERVAL: Millis = Millis(1_000);
const REASON: &str = "this site is under maintenance: try again later";

/// State of the switch file, shared by all cores.
#[derive(Debug, Default)]
pub struct MaintenanceShared {
    is_on: AtomicBool,
    /// Time of the next check of the file, in milliseconds of the cores' clock.
    check_at: AtomicMoment,
}

/// Maintenance rule of a site, on one core.
pub struct MaintenanceRule {
    shared: Arc<MaintenanceShared>,
    settings: Maintenance,
    page: Option<Page>,
    except: PeerSet,
    answered_counter: Arc<RuleCounter>,
}

impl MaintenanceRule {
    /// Creates the rule. `page` is the body of the answers; without it they are ordinary error responses.
    pub fn new(
        settings: &Maintenance,
        page: Option<Page>,
        shared: Arc<MaintenanceShared>,
        answered: Arc<RuleCounter>,
    ) -> MaintenanceRule {
        MaintenanceRule {
            shared,
            settings: settings.clone(),
            page,
            except: peer_set(&settings.except),
            answered_counter: answered,
        }
    }

    /// Answers a request during maintenance. Returns whether it has been answered.
    pub(super) async fn answer(&self, exchange: &mut Exchange<'_>) -> Result<bool, Fault> {
        if !self.is_on(exchange).await {
            return Ok(false);
        }
        let request = exchange.request();
        let path = request.route_path().unwrap_or_default();
        let is_excepted = self.except.contains(request.client().address)
            || self.settings.except_paths.iter().any(|pattern| pattern.matches(&path));
        if is_excepted {
            return Ok(false);
        }
        self.answered_counter.add(1);
        let mut fields = Fields::new();
        fields.push(Name::RetryAfter, self.settings.retry_after.as_secs().to_string().as_bytes());
        fields.push(Name::CacheControl, b"no-store");
        match &self.page {
            Some(page) if !exchange.request().is_grpc_call() => {
                fields.push(Name::ContentType, page.content_type.as_bytes());
                exchange.notes().refusal = Some(REASON);
                exchange.reply(Status::SERVICE_UNAVAILABLE, &fields, &page.body).await?;
            }
            _ => exchange.refuse_with(Status::SERVICE_UNAVAILABLE, REASON, &fields).await?,
        }
        Ok(true)
    }

    /// Whether maintenance is on. Once a second, one request waits for a check of the file; others use its
    /// last result.
    async fn is_on(&self, exchange: &Exchange<'_>) -> bool {
        let Some(file) = &self.settings.file else { return true };
        let shared = &self.shared;
        let now = exchange.core().now();
        let due = shared.check_at.load(Ordering::Relaxed);
        let is_due = now >= due;
        let claim = || {
            let next_at = now + CHECK_INTERVAL;
            shared.check_at.advance(due, next_at, Ordering::Relaxed)
        };
        if is_due && claim() {
            let file = file.clone();
            let found = exchange
                .core()
                .offload_as(BlockingKind::Files, move || std::fs::symlink_metadata(&file).map(drop))
                .await;
            match found {
                Ok(()) => shared.is_on.store(true, Ordering::Relaxed),
                // Other errors say nothing about whether the file exists: the state is kept.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    shared.is_on.store(false, Ordering::Relaxed);
                }
                Err(_) => {}
            }
        }
        shared.is_on.load(Ordering::Relaxed)
    }
}
