//! Converts the configuration of maintenance and crawlers to the guards of sites.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use admission::auth::Auth;
use admission::crawlers::Crawlers;
use admission::limits::RateLimit;
use config::Config;
use net::MemoryBudget;
use reload::KeptState;
use routing::pages;
use routing::route::{Handler, Route, RouteGuardSet};
use shapes::network::TrustedSource;
use shapes::pattern::PathPattern;
use steps::guard::{CrawlerRule, CrawlerShared, MaintenanceRule, MaintenanceShared, SiteGuard};
use telemetry::metrics::RouteLabels;
use telemetry::rule_counters::RuleCounters;

/// State of the guards that is shared by all cores, by site.
pub(crate) struct GuardPlan {
    maintenance: Vec<Arc<MaintenanceShared>>,
    crawlers: Vec<Option<SharedCrawlers>>,
}

#[derive(Clone)]
struct SharedCrawlers {
    rules: Crawlers,
    shared: Arc<CrawlerShared>,
}

impl GuardPlan {
    /// Creates the plan. The state of crawlers is kept if their rules are unchanged.
    pub(crate) fn new(
        config: &Config,
        kept: &mut KeptState,
        memory: &MemoryBudget,
        counters: &RuleCounters,
    ) -> GuardPlan {
        let crawlers = |site: usize| {
            let rules = config.settings(Some(site), None).crawlers?;
            let label = RouteLabels::of_site(&config.sites[site]);
            let make = || SharedCrawlers {
                rules: rules.clone(),
                shared: Arc::new(CrawlerShared::new(rules, &label, memory, counters)),
            };
            Some(kept.keep_if(label.clone(), |known: &SharedCrawlers| known.rules == *rules, make))
        };
        GuardPlan {
            maintenance: config.sites.iter().map(|_| Arc::default()).collect(),
            crawlers: (0..config.sites.len()).map(crawlers).collect(),
        }
    }

    /// Returns one core's guard of a site; `None` if the site has no such rules.
    ///
    /// # Errors
    /// A page that cannot be read, by name.
    pub(crate) fn site_guard(
        &self,
        config: &Config,
        site: usize,
        counters: &RuleCounters,
    ) -> io::Result<Option<Rc<SiteGuard>>> {
        let of_site = &config.sites[site];
        let mut guard = SiteGuard::default();
        if let Some(maintenance) = config.settings(Some(site), None).maintenance {
            let page = maintenance.page.as_deref().map(pages::read).transpose()?;
            let labels = vec![("site", RouteLabels::of_site(of_site))];
            let answered = counters.counter("komainu_maintenance_responses", labels);
            let shared = self.maintenance[site].clone();
            guard.maintenance = Some(MaintenanceRule::new(maintenance, page, shared, answered));
        }
        if let Some(crawlers) = &self.crawlers[site] {
            let is_robots = |path: &PathPattern| path.as_str() == "/robots.txt";
            let has_robots = of_site.routes.iter().any(|route| route.path.iter().any(is_robots));
            guard.crawlers = Some(CrawlerRule::new(&crawlers.rules, has_robots, crawlers.shared.clone()));
        }
        let has_some = guard.maintenance.is_some() || guard.crawlers.is_some();
        Ok(has_some.then(|| Rc::new(guard)))
    }
}

/// A directive by which a route refuses some requests.
#[derive(PartialEq)]
enum RouteGuard<'c> {
    Allow(&'c [TrustedSource]),
    Deny(&'c [TrustedSource]),
    Auth(&'c Auth),
    Limit(&'c RateLimit),
}

/// Numbers the guards of a site's routes, if it has routes of PHP or CGI: for paths with a script or program on them, the
/// guards of two routes are compared.
pub(crate) fn number_guards(config: &Config, site: usize, routes: &mut [Route]) {
    if !routes.iter().any(|route| matches!(route.handler, Handler::Php(_)) || route.programs.is_some()) {
        return;
    }
    let mut known: Vec<RouteGuard<'_>> = Vec::new();
    for (index, route) in routes.iter_mut().enumerate() {
        let settings = config.settings(Some(site), Some(index));
        let guards = settings.allow.into_iter().map(RouteGuard::Allow);
        let guards = guards.chain(settings.deny.into_iter().map(RouteGuard::Deny));
        let guards = guards.chain(settings.auth.map(RouteGuard::Auth));
        let guards = guards.chain(config.sites[site].routes[index].limit.iter().map(RouteGuard::Limit));
        let number = |guard| guard_number(&mut known, guard);
        route.guards = RouteGuardSet::new(guards.map(number).collect());
    }
}

/// Returns the place of a guard among those that are known, to which it is added.
fn guard_number<'c>(known: &mut Vec<RouteGuard<'c>>, guard: RouteGuard<'c>) -> usize {
    known.iter().position(|other| *other == guard).unwrap_or_else(|| {
        known.push(guard);
        known.len() - 1
    })
}
