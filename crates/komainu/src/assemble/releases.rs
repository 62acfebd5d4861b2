//! Converts the configuration of releases to the rules of routes.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use config::matcher::RouteId;
use config::{Action, Config};
use reload::KeptState;
use routing::route::Route;
use steps::release::{FaultRules, MirrorRule, MirrorShared, Release, SplitRule};
use telemetry::metrics::RouteLabels;
use telemetry::rule_counters::RuleCounters;

use crate::assemble::upstreams::{CoreGroups, GroupPlan};

/// Returns the rules applied before a route's handler: faults, mirroring and traffic splits; `None` if it has
/// none.
pub(crate) fn build_release(
    plan: &ReleasePlan,
    config: &Config,
    shared: &GroupPlan,
    groups: &CoreGroups,
    RouteId { site, route }: RouteId,
) -> Option<Box<Release>> {
    let of_site = &config.sites[site];
    let route = &of_site.routes[route];
    let labels = RouteLabels::of(of_site, route);
    let counted = vec![("site", labels.site.clone()), ("route", labels.route.clone())];
    let faults = || FaultRules::new(&route.faults, plan.counters.counter("komainu_faults_injected", counted));
    let mirror = |(index, mirror): (usize, &config::Mirror)| {
        let way = shared.upstream_route(RouteId { site, route: mirror.route })?;
        let proxy = groups.of(&way.group)?.proxy(&way.options, None);
        let shared = plan.mirrors.get(&(labels.clone(), index, mirror.in_flight_max))?;
        Some(MirrorRule::new(mirror, shared.clone(), proxy))
    };
    let release = Release {
        faults: Some(&route.faults).filter(|faults| !faults.is_empty()).and_then(|_| faults()),
        mirrors: route.mirrors.iter().enumerate().filter_map(mirror).collect(),
        split: match &route.action {
            Action::Split(split) => Some(SplitRule::new(split)),
            _ => None,
        },
    };
    let has_some = release.faults.is_some() || !release.mirrors.is_empty() || release.split.is_some();
    has_some.then(|| Box::new(release))
}

/// State of mirrors shared by the cores, by route, position in it, and maximum number of copies in flight.
type SharedMirrors = HashMap<(RouteLabels, usize, u32), Arc<MirrorShared>>;

/// State of a configuration's releases that is shared by all cores.
pub(crate) struct ReleasePlan {
    pub(crate) counters: RuleCounters,
    mirrors: SharedMirrors,
}

impl ReleasePlan {
    /// Creates the plan. Counters and mirrors are kept.
    pub(crate) fn new(config: &Config, kept: &mut KeptState) -> ReleasePlan {
        let counters = kept.share((), RuleCounters::default);
        let mirrors = build_mirrors(config, kept, &counters);
        ReleasePlan { counters, mirrors }
    }
}

/// Returns the mirrors of a configuration. Unchanged mirrors are kept with their copies in flight.
fn build_mirrors(config: &Config, kept: &mut KeptState, counters: &RuleCounters) -> SharedMirrors {
    let mut mirrors = SharedMirrors::new();
    for (site, route) in
        config.sites.iter().flat_map(|site| site.routes.iter().map(move |route| (site, route)))
    {
        for (index, mirror) in route.mirrors.iter().enumerate() {
            let key = (RouteLabels::of(site, route), index, mirror.in_flight_max);
            let make = || Arc::new(MirrorShared::new(key.2, &key.0.site, &key.0.route, counters));
            let shared = kept.share(key.clone(), make);
            mirrors.insert(key, shared);
        }
    }
    mirrors
}

/// Links the routes of a site that have a split to their branches.
pub(crate) fn link_branches(configs: &[config::Route], routes: Vec<Route>) -> Vec<Rc<Route>> {
    let (mut made, count): (Vec<Rc<Route>>, usize) = (Vec::new(), routes.len());
    // Iterate backwards, because branches follow the routes that have them.
    for (route, of) in routes.into_iter().zip(configs).rev() {
        let branches = match &of.action {
            Action::Split(split) => {
                // `made` is in reverse order: it begins with the last route.
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
