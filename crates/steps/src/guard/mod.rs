//! Rules of a site that precede all routes: maintenance and crawlers.

mod crawlers;
mod maintenance;

pub use crawlers::{CrawlerRule, CrawlerShared};
use http::{Fields, Name, Status};
pub use maintenance::{MaintenanceRule, MaintenanceShared};
use net::{Exchange, Fault};

use crate::flow::Flow;

/// Maintenance and crawler rules of a site, on one core.
#[derive(Default)]
pub struct SiteGuard {
    /// Maintenance mode.
    pub maintenance: Option<MaintenanceRule>,
    /// Crawler rules.
    pub crawlers: Option<CrawlerRule>,
}

impl SiteGuard {
    /// Applies the rules to a request.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn run(&self, exchange: &mut Exchange<'_>) -> Result<Flow, Fault> {
        if let Some(maintenance) = &self.maintenance
            && maintenance.answer(exchange).await?
        {
            return Ok(Flow::Answered);
        }
        match &self.crawlers {
            Some(crawlers) => crawlers.run(exchange).await,
            None => Ok(Flow::Continue),
        }
    }

    /// Sends the generated robots.txt; 404 if there is none.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn send_robots(&self, exchange: &mut Exchange<'_>) -> Result<(), Fault> {
        let Some(text) = self.crawlers.as_ref().and_then(CrawlerRule::robots) else {
            return exchange.refuse(Status::NOT_FOUND, "there is nothing at this address").await;
        };
        let mut fields = Fields::new();
        fields.push(Name::ContentType, b"text/plain; charset=utf-8");
        fields.push(Name::CacheControl, b"max-age=3600");
        exchange.reply(Status::OK, &fields, text.as_bytes()).await
    }
}
