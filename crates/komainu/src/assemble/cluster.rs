//! The set of servers of `[cluster]`.

use std::io;

use cluster::{ClusterStore, ClusterTable, StoreEvent, StoreOptions};
use logging::notice::ErrorLog;
use net::{TICKET_PERIOD_S, TicketKeys};
use process::config_files::ConfigFiles;
use reload::KeptState;

/// Returns the store of the set, which is kept if its options have not changed. `None` if the configuration has none or
/// is only being checked.
///
/// # Errors
/// A file cannot be read or used.
pub(crate) fn open(
    table: Option<&ClusterTable>,
    kept: &mut KeptState,
    files: &ConfigFiles,
    notices: Option<&ErrorLog>,
) -> io::Result<Option<ClusterStore>> {
    let Some(table) = table else { return Ok(None) };
    let options = StoreOptions::of_table(table, &|path| files.read(path)).map_err(io::Error::other)?;
    // Only a running server exchanges anything; without `notices` the configuration is only being checked.
    let Some(notices) = notices else { return Ok(None) };
    let notices = notices.clone();
    let store = options.describe();
    let report = move |event| match event {
        StoreEvent::Away(why) => notices.warn(&format!(
            "`[cluster]`: the store {store} is away ({why}): until it is back, this server continues by \
             itself"
        )),
        StoreEvent::Back => notices.info(&format!("`[cluster]`: the store {store} is back")),
        StoreEvent::Problem(text) => notices.warn(&format!("`[cluster]`: {text}")),
    };
    let is_unchanged = |before: &ClusterStore| before.options().is_same(&options);
    let start = || ClusterStore::start(options.clone(), Box::new(report));
    let store = kept.try_keep_if((), is_unchanged, start)?;
    let keys = kept.share((), TicketKeys::random);
    store.receive_ticket_secrets(
        TICKET_PERIOD_S,
        Box::new(move |period, secret| keys.set_period_secret(period, secret)),
    );
    Ok(Some(store))
}
