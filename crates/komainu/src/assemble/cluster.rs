//! The set of servers of `[cluster]`.

use std::io;
use std::sync::Arc;

use ::cluster::{ClusterStore, ClusterTable, PEER_NAME, PeerOptions, SetPeer, StoreEvent, StoreOptions};
use logging::notice::ErrorLog;
use net::{ClientCertificates, ServerCertificate, TICKET_PERIOD_S, TicketKeys, TlsSite};
use process::config_files::ConfigFiles;
use proxy::options::{
    Forwarded, ProxyTimeouts, RequestOptions, ResponseOptions, Retry, Tls, UpstreamAddress, UpstreamProtocol,
    UpstreamServer,
};
use proxy::{CurrentGroup, GroupOptions, RouteOptions};
use reload::KeptState;
use times::Millis;

/// The servers of the set that share responses.
#[derive(Default)]
pub(crate) struct PeerPlan {
    /// As last seen, with this one.
    pub(crate) servers: Arc<Vec<SetPeer>>,
    /// The group of each; `None` for this server.
    pub(crate) groups: Vec<Option<Arc<CurrentGroup>>>,
    /// Options of requests to them.
    pub(crate) options: Arc<RouteOptions>,
    /// TLS of the listener for them; `None` if responses are not shared.
    pub(crate) tls: Option<TlsSite>,
}

impl PeerPlan {
    /// Returns the plan without groups.
    ///
    /// # Errors
    /// The certificate of the set cannot be used.
    pub(crate) fn new(table: Option<&ClusterTable>, store: Option<&ClusterStore>) -> io::Result<PeerPlan> {
        let Some((store, peers)) = store.and_then(|store| Some((store, store.peer_options()?))) else {
            return Ok(PeerPlan::default());
        };
        let (chain, key) = &peers.identity_pem;
        let certificate = ServerCertificate::from_pem(chain, key)
            .map_err(|_| io::Error::other("the certificate of the set cannot be used"))?;
        let client = ClientCertificates {
            authorities_pem: chain.clone(),
            is_required: true,
            ..ClientCertificates::default()
        };
        let tls = TlsSite { certificates: vec![certificate], client: Some(client), uses_store: false };
        let timeout = Millis::of(table.map_or(peers.timeout, |table| table.peer_timeout));
        let options = RouteOptions {
            timeouts: ProxyTimeouts { connect: timeout, head: timeout, ..ProxyTimeouts::default() },
            retry: Retry { attempts_max: 1, ..Retry::default() },
            request: RequestOptions {
                forwarded: Forwarded { x_forwarded: Some(false), via: None, ..Forwarded::default() },
                underscores: true,
                ..RequestOptions::default()
            },
            response: ResponseOptions { rewrite: false, ..ResponseOptions::default() },
            ..RouteOptions::default()
        };
        Ok(PeerPlan {
            servers: store.peers(),
            groups: Vec::new(),
            options: Arc::new(options),
            tls: Some(tls),
        })
    }

    /// Returns the options of the group of a server.
    pub(crate) fn group_options(peer: &SetPeer, options: &PeerOptions) -> GroupOptions {
        let (chain, key) = options.identity_pem.clone();
        let tls = Tls {
            name: Some(PEER_NAME.to_owned()),
            roots_pem: Some(chain.clone()),
            identity_pem: Some((chain, key)),
            ..Tls::default()
        };
        let at = UpstreamAddress::Tcp { host: peer.address.ip().to_string(), port: peer.address.port() };
        let server =
            UpstreamServer { tls: Some(tls), protocol: UpstreamProtocol::Http2, ..UpstreamServer::new(at) };
        GroupOptions { ejection: None, ..GroupOptions::new(vec![server]) }
    }
}

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
