//! Which sites of a configuration are those of the one before.

use std::collections::HashMap;
use std::sync::Arc;

use config::{Config, Site};

/// Places at which a site is looked for, from the one behind the site before it.
const WINDOW: usize = 8;

/// Returns the places that the sites of a configuration have in the one before, as far as they are the same objects
/// ([`Config::join`]). Most sites are found next to the one before them, so that a change of few sites costs a comparison for each of
/// the others.
pub(crate) fn site_places(config: &Config, before: &Config) -> Vec<Option<usize>> {
    let (sites, known) = (&config.sites, &before.sites);
    let mut places = vec![None; sites.len()];
    let mut missing = Vec::new();
    let mut next = 0;
    for (index, site) in sites.iter().enumerate() {
        let end = known.len().min(next + WINDOW);
        match (next..end).find(|at| Arc::ptr_eq(&known[*at], site)) {
            Some(at) => {
                places[index] = Some(at);
                next = at + 1;
            }
            None => missing.push(index),
        }
    }
    if missing.len() <= WINDOW {
        for index in missing {
            places[index] = known.iter().position(|site| Arc::ptr_eq(site, &sites[index]));
        }
    } else {
        let by_address: HashMap<*const Site, usize> =
            known.iter().enumerate().map(|(at, site)| (Arc::as_ptr(site), at)).collect();
        missing
            .into_iter()
            .for_each(|index| places[index] = by_address.get(&Arc::as_ptr(&sites[index])).copied());
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_found_wherever_they_are() {
        let sites: Vec<Arc<Site>> = (0..40).map(|_| Arc::default()).collect();
        let config = |at: &[usize]| Config {
            sites: at.iter().map(|at| sites[*at].clone()).collect(),
            ..Config::default()
        };
        let all: Vec<usize> = (0..20).collect();
        let check = |now: &[usize]| {
            let expected: Vec<Option<usize>> =
                now.iter().map(|at| all.iter().position(|one| one == at)).collect();
            assert_eq!(site_places(&config(now), &config(&all)), expected, "{now:?}");
        };
        check(&all);
        check(&[]);
        for at in 0..20 {
            let mut other = all.clone();
            other[at] = 30;
            check(&other);
            other.remove(at);
            check(&other);
            other.insert(at, 31);
            other.insert(at, 32);
            check(&other);
        }
        check(&all.iter().rev().copied().collect::<Vec<_>>());
        check(&(10..30).collect::<Vec<_>>());
        check(&(20..40).chain(0..20).collect::<Vec<_>>());
    }
}
