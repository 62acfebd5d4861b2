//! Assembly of compression dictionaries (RFC 9842) from the configuration.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use coding::{Dictionaries, DictionaryHash, DictionaryLimits, HashedContent};
use config::RouteSettings;
use config::matcher::RouteId;
use net::{CompressResponses, DictionaryTransport, MemoryBudget};
use reload::KeptState;

/// Divisor of `limits.memory` that gives the maximum memory for dictionaries.
const DICTIONARY_SHARE: u64 = 8;

/// Identity of a route's guards (`auth`, `allow`, `deny`): equal for routes that admit the same clients, also after a reload.
/// `None` without guards.
type GuardsIdentity = Option<DictionaryHash>;

/// Stores of dictionaries, by the guards of the routes that provide and use them. A response whose length depended on a
/// dictionary that its client may not read would reveal it.
pub(crate) type DictionaryStores = HashMap<GuardsIdentity, Arc<Dictionaries>>;

/// Returns the dictionary stores of the routes that provide dictionaries; those before if their limits are unchanged.
pub(crate) fn build_stores(
    config: &config::Config,
    kept: &mut KeptState,
    memory: &MemoryBudget,
) -> DictionaryStores {
    let ids = config.sites.iter().enumerate().flat_map(|(site, of)| {
        let provides = |route: &usize| !of.routes[*route].dictionaries.is_empty();
        (0..of.routes.len()).filter(provides).map(move |route| RouteId { site, route })
    });
    let identities: HashSet<GuardsIdentity> =
        ids.map(|id| guards_identity(&config.route_settings(id))).collect();
    let bytes_max = config.dictionaries.memory_bytes_max.min(memory.bytes_max() / DICTIONARY_SHARE);
    let limits = DictionaryLimits {
        bytes_max: bytes_max / identities.len().max(1) as u64,
        versions_max: config.dictionaries.versions_max as usize,
    };
    let store = |identity| {
        let memory = memory.clone();
        let account = Box::new(move |before, after| memory.change(before, after));
        let store = kept.share((limits, identity), || Arc::new(Dictionaries::new(limits, account)));
        (identity, store)
    };
    identities.into_iter().map(store).collect()
}

/// Returns the dictionary settings of a route; `None` if it neither provides dictionaries nor compresses with
/// those of its site.
pub(crate) fn route_transport(
    config: &config::Config,
    stores: &DictionaryStores,
    id: RouteId,
) -> Option<DictionaryTransport> {
    let routes = &config.sites[id.site].routes;
    let settings = config.route_settings(id);
    let own = &routes[id.route].dictionaries;
    let has_some = routes.iter().any(|route| !route.dictionaries.is_empty());
    if !has_some || own.is_empty() && settings.compress.is_none() {
        return None;
    }
    let usual = CompressResponses::default();
    let compress = settings.compress.unwrap_or(&usual);
    Some(DictionaryTransport {
        dictionaries: stores.get(&guards_identity(&settings))?.clone(),
        rules: own.as_slice().into(),
        effort: compress.effort,
        media: compress.types.clone(),
        allows_cleartext: config.dictionaries.without_tls,
    })
}

fn guards_identity(settings: &RouteSettings<'_>) -> GuardsIdentity {
    if settings.auth.is_none() && settings.allow.is_empty() && settings.deny.is_empty() {
        return None;
    }
    let text = format!("{:?}", (settings.auth, &settings.allow, &settings.deny));
    Some(HashedContent::new([text.as_bytes().into()].into()).hash)
}
