//! Rules of a site that precede all routes: maintenance and crawlers.

mod crawlers;
mod maintenance;

pub use crawlers::{CrawlerRule, CrawlerShared};
use http::{Fields, Name, Status};
pub use maintenance::{MaintenanceRule, MaintenanceShared};
use net::{Exchange, Fault};

/// Maintenance and crawler rules of a site, on one core.
#[derive(Default)]
pub struct SiteGuard {
    /// Maintenance mode.
    pub maintenance: Option<MaintenanceRule>,
    /// Crawler rules.
    pub crawlers: Option<CrawlerRule>,
}

/// Outcome of [`SiteGuard::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardStep {
    /// The request goes to its route.
    Serve,
    /// The generated robots.txt is requested. A file of the site's own takes precedence.
    Robots,
    /// The request has been answered.
    Answered,
}

impl SiteGuard {
    /// Applies the rules to a request.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn begin(&self, x: &mut Exchange<'_>) -> Result<GuardStep, Fault> {
        if let Some(maintenance) = &self.maintenance
            && maintenance.answer(x).await?
        {
            return Ok(GuardStep::Answered);
        }
        match &self.crawlers {
            Some(crawlers) => crawlers.begin(x).await,
            None => Ok(GuardStep::Serve),
        }
    }

    /// Sends the generated robots.txt; 404 if there is none.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn send_robots(&self, x: &mut Exchange<'_>) -> Result<(), Fault> {
        let Some(text) = self.crawlers.as_ref().and_then(CrawlerRule::robots) else {
            return x.refuse(Status::NOT_FOUND, "there is nothing at this address").await;
        };
        let mut fields = Fields::new();
        fields.push(Name::ContentType, b"text/plain; charset=utf-8");
        fields.push(Name::CacheControl, b"max-age=3600");
        x.reply(Status::OK, &fields, text.as_bytes()).await
    }
}
