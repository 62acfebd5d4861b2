//! What a site does with requests before any of its routes does anything: the maintenance page, and crawlers. A site without them has none
//! of this.

mod crawlers;
mod maintenance;

use http::{Fields, Name, Status};
use net::{Exchange, Fault};

pub use crawlers::{CrawlerRule, CrawlerShared};
pub use maintenance::{MaintenanceRule, MaintenanceShared};

/// The rules of a site, on one core.
#[derive(Default)]
pub struct SiteGuard {
    /// The maintenance page.
    pub maintenance: Option<MaintenanceRule>,
    /// Limits of crawlers.
    pub crawlers: Option<CrawlerRule>,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardStep {
    /// The route serves.
    Serve,
    /// The robots.txt of the crawlers' rules is asked for: the site's own comes first.
    Robots,
    /// There is a response.
    Answered,
}

impl SiteGuard {
    /// Applies them.
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

    /// Sends robots.txt.
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
