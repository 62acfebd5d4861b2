//! Assembly of compression dictionaries (RFC 9842) from the configuration.

use std::sync::Arc;

use coding::{Dictionaries, DictionaryLimits};
use config::matcher::RouteId;
use net::{CompressResponses, DictionaryTransport, MemoryBudget};
use reload::KeptState;

/// Divisor of `limits.memory` that gives the maximum memory for dictionaries.
const DICTIONARY_SHARE: u64 = 8;

/// Returns the dictionary store if a route provides dictionaries; the one before if its limits are
/// unchanged.
pub(crate) fn build_store(
    config: &config::Config,
    kept: &mut KeptState,
    memory: &MemoryBudget,
) -> Option<Arc<Dictionaries>> {
    let mut routes = config.sites.iter().flat_map(|site| &site.routes);
    routes.find(|route| !route.dictionaries.is_empty())?;
    let limits = DictionaryLimits {
        bytes_max: config.dictionaries.memory_bytes_max.min(memory.bytes_max() / DICTIONARY_SHARE),
        versions_max: config.dictionaries.versions_max as usize,
    };
    let memory = memory.clone();
    let account = Box::new(move |before, after| memory.change(before, after));
    Some(kept.share(limits, || Arc::new(Dictionaries::new(limits, account))))
}

/// Returns the dictionary settings of a route; `None` if it neither provides dictionaries nor compresses with
/// those of its site.
pub(crate) fn route_transport(
    config: &config::Config,
    known: Option<&Arc<Dictionaries>>,
    id: RouteId,
) -> Option<DictionaryTransport> {
    let routes = &config.sites[id.site].routes;
    let compress = config.route_settings(id).compress;
    let own = &routes[id.route].dictionaries;
    let has_some = routes.iter().any(|route| !route.dictionaries.is_empty());
    if !has_some || own.is_empty() && compress.is_none() {
        return None;
    }
    let usual = CompressResponses::default();
    let compress = compress.unwrap_or(&usual);
    Some(DictionaryTransport {
        dictionaries: known?.clone(),
        rules: own.as_slice().into(),
        effort: compress.effort,
        media: compress.types.clone(),
        allows_cleartext: config.dictionaries.without_tls,
    })
}
