//! From the configuration of releases to what routes do.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use config::{Action, Config};
use proxy::Group;

use crate::assemble::upstreams::GroupPlan;
use routing::router::Route;
use steps::release::{FaultRules, MirrorRule, MirrorShared, Release, SplitRule};
use telemetry::metrics::RouteLabels;
use telemetry::rule_counters::RuleCounters;

/// What becomes of a route's requests before its handler: faults, copies, a branch.
pub(crate) fn release(
    plan: &ReleasePlan,
    config: &Config,
    (shared, groups): (&GroupPlan, &[Group]),
    (site, index): (usize, usize),
) -> Option<Box<Release>> {
    let of_site = &config.sites[site];
    let route = &of_site.routes[index];
    let labels = RouteLabels::of(of_site, route);
    let counted = vec![("site", labels.site.clone()), ("route", labels.route.clone())];
    let faults = || FaultRules::new(&route.faults, plan.counters.counter("komainu_faults_injected", counted));
    let mirror = || {
        let mirror = route.mirror.as_ref()?;
        let way = shared.of(site, mirror.route)?;
        let proxy = groups.get(way.group)?.proxy(&way.options, None);
        let shared = plan.mirrors.get(&(labels.clone(), mirror.in_flight_max))?;
        Some(MirrorRule::new(mirror, shared.clone(), proxy))
    };
    let release = Release {
        faults: Some(&route.faults).filter(|faults| !faults.is_empty()).and_then(|_| faults()),
        mirror: mirror(),
        split: match &route.action {
            Action::Split(split) => Some(SplitRule::new(split)),
            _ => None,
        },
    };
    let has_some = release.faults.is_some() || release.mirror.is_some() || release.split.is_some();
    has_some.then(|| Box::new(release))
}

/// What the cores know together of mirrors, by route and the number of copies that it has at a time.
type SharedMirrors = HashMap<(RouteLabels, u32), Arc<MirrorShared>>;

/// What all cores know together of the releases of a configuration.
pub(crate) struct ReleasePlan {
    pub(crate) counters: RuleCounters,
    mirrors: SharedMirrors,
}

impl ReleasePlan {
    /// Makes it. What was there `before` keeps its counts.
    pub(crate) fn new(config: &Config, before: Option<&ReleasePlan>) -> ReleasePlan {
        let counters = before.map(|plan| plan.counters.clone()).unwrap_or_default();
        let mirrors = mirrors(config, before.map(|plan| &plan.mirrors), &counters);
        ReleasePlan { counters, mirrors }
    }
}

/// The mirrors of a configuration; one that was there `before` is the same one, with its copies on their way.
fn mirrors(config: &Config, before: Option<&SharedMirrors>, counters: &RuleCounters) -> SharedMirrors {
    let mut mirrors = SharedMirrors::new();
    for (site, route) in
        config.sites.iter().flat_map(|site| site.routes.iter().map(move |route| (site, route)))
    {
        let Some(mirror) = &route.mirror else { continue };
        let labels = RouteLabels::of(site, route);
        let of = (labels, mirror.in_flight_max);
        if mirrors.contains_key(&of) {
            continue;
        }
        let same = before.and_then(|before| before.get(&of)).cloned();
        let new = || Arc::new(MirrorShared::new(of.1, (&of.0.site, &of.0.route), counters));
        let shared = same.unwrap_or_else(new);
        mirrors.insert(of, shared);
    }
    mirrors
}

/// The routes of a site, of which those with a split have their branches.
pub(crate) fn with_branches(of: &[config::Route], routes: Vec<Route>) -> Vec<Rc<Route>> {
    let (mut made, count): (Vec<Rc<Route>>, usize) = (Vec::new(), routes.len());
    // From the end: branches stand behind the routes that have them.
    for (route, of) in routes.into_iter().zip(of).rev() {
        let branches = match &of.action {
            Action::Split(split) => {
                // What is made so far begins with the last route.
                let at = |branch: usize| made[count - 1 - (split.first_route + branch)].clone();
                (0..split.branches.len()).map(at).collect()
            }
            _ => Vec::new(),
        };
        made.push(Rc::new(Route { branches, ..route }));
    }
    made.reverse();
    made
}
