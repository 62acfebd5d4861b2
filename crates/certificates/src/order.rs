//! A single certificate order from one directory (RFC 8555).

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use cluster::ClusterStore;
use failure::Failure;
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, AuthorizedIdentifier, ChallengeHandle, ChallengeType,
    Error, ExternalAccountKey, Identifier, NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair, SanType};

use crate::certificate::KeyedChain;
use web_client::WebClient;

use crate::directives::{AcmeChallenge, AcmeDirectory};
use crate::directory_client::{AcmeViolation, DirectoryClient};
use crate::dns_records::DnsRecords;
use crate::problem::{PROBLEM, describe, one_line, problem};
use crate::schedule::{FailureKind, Intervals};
use crate::sink::{CertificateSink, HttpChallenges};
use crate::state_folder::{StateFolder, at, is_token, unix_s};
use crate::subject::Subject;

/// Maximum number of authorizations of an order, which has a single name.
const AUTHORIZATIONS_MAX: usize = 4;
/// Maximum number of items of a directory that a message lists.
const LISTED_MAX: usize = 10;

impl AcmeChallenge {
    fn of_acme(self) -> ChallengeType {
        match self {
            AcmeChallenge::Http01 => ChallengeType::Http01,
            AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
            AcmeChallenge::Dns01 => ChallengeType::Dns01,
        }
    }

    fn name(self) -> &'static str {
        match self {
            AcmeChallenge::Http01 => "http-01",
            AcmeChallenge::TlsAlpn01 => "tls-alpn-01",
            AcmeChallenge::Dns01 => "dns-01",
        }
    }

    /// Whether the challenge is possible for a subject: wildcards require DNS-01 (section 7.1.3), which is
    /// not possible for addresses (RFC 8738).
    fn supports(self, subject: &Subject) -> bool {
        match subject {
            Subject::Ip(_) => self != AcmeChallenge::Dns01,
            Subject::Dns(_) => !subject.is_wildcard() || self == AcmeChallenge::Dns01,
        }
    }
}

impl Subject {
    /// Whether an authorization is for the subject. That of a wildcard is for the domain, and marked (RFC 8555
    /// section 7.1.4).
    fn is_identifier(&self, authorized: &AuthorizedIdentifier<'_>) -> bool {
        let is_wildcard = authorized.wildcard;
        match (self, authorized.identifier) {
            (Subject::Dns(own), Identifier::Dns(name)) => {
                is_wildcard == self.is_wildcard() && self.base().eq_ignore_ascii_case(name)
                    || self.is_wildcard() && own.eq_ignore_ascii_case(name)
            }
            (Subject::Ip(own), Identifier::Ip(address)) => own == address && !is_wildcard,
            _ => false,
        }
    }

    /// Returns why control over the subject cannot be proved with these challenges, and the remedy; `None` if
    /// it can.
    pub fn missing_challenge(&self, kinds: &[AcmeChallenge]) -> Option<&'static str> {
        if kinds.iter().any(|kind| kind.supports(self)) {
            return None;
        }
        Some(if self.is_wildcard() {
            "a wildcard needs dns-01: set `dns` or `dns_hook` in `[acme]`; or list each host, or let `ask` confirm them"
        } else {
            "no challenge can be answered: it takes a listener on port 80 for http-01, one with TLS on port 443 for \
                 tls-alpn-01, or `dns` or `dns_hook` in `[acme]` for dns-01"
        })
    }
}

/// Options for obtaining certificates.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Directories in order of preference; each is tried if those before it fail.
    pub directories: Vec<AcmeDirectory>,
    /// Contact address of the account.
    pub email: Option<String>,
    /// Challenges in order of preference; after each failure the next one is used.
    pub challenges: Vec<AcmeChallenge>,
    /// Provider of the TXT records of DNS-01 challenges.
    pub dns: Option<DnsRecords>,
    /// URL that confirms names which clients request and the configuration does not list; `None` to disable
    /// on-demand certificates.
    pub ask: Option<String>,
    /// State folder.
    pub state_folder: PathBuf,
    /// Store of the set of servers that have the files of the state folder together.
    pub cluster: Option<ClusterStore>,
    /// Certificates trusted for directories in addition to the system's, as PEM text.
    pub roots_pem: Vec<u8>,
}

impl Options {
    /// Returns the challenge for a subject after this number of failures.
    pub(crate) fn challenge(
        &self,
        subject: &Subject,
        failures: u32,
        is_shared: bool,
    ) -> Result<AcmeChallenge, Failure> {
        let mut kinds: Vec<AcmeChallenge> =
            self.challenges.iter().copied().filter(|kind| kind.supports(subject)).collect();
        // The authority may connect to any server that shares the state folder; only the token is available
        // to all of them.
        if is_shared && kinds.iter().any(|kind| *kind != AcmeChallenge::TlsAlpn01) {
            kinds.retain(|kind| *kind != AcmeChallenge::TlsAlpn01);
        }
        if let Some(text) = subject.missing_challenge(&kinds) {
            return Err(text.into());
        }
        match kinds.as_slice() {
            [] => Err("no challenge can be answered".into()),
            kinds => Ok(kinds[failures as usize % kinds.len()]),
        }
    }
}

/// Reason why an order failed.
#[derive(Debug, Clone)]
pub(crate) struct OrderFailure {
    pub(crate) kind: FailureKind,
    pub(crate) text: String,
    /// Wait requested by the directory.
    pub(crate) wait: Option<Duration>,
}

impl OrderFailure {
    pub(crate) fn refused(reason: impl std::fmt::Display) -> OrderFailure {
        OrderFailure { kind: FailureKind::Refused, text: reason.to_string(), wait: None }
    }
}

/// One lock per directory URL, so that a single order creates the account while others wait. Holds the last
/// failure and its time.
pub(crate) type AccountLocks = HashMap<String, tokio::sync::Mutex<Option<(Instant, OrderFailure)>>>;

/// Context shared by all orders.
pub(crate) struct OrderContext<'a> {
    pub(crate) options: &'a Options,
    pub(crate) intervals: &'a Intervals,
    pub(crate) client: &'a WebClient,
    pub(crate) accounts: &'a AccountLocks,
    pub(crate) store: &'a StateFolder,
    pub(crate) sink: &'a dyn CertificateSink,
    pub(crate) challenges: &'a HttpChallenges,
    pub(crate) is_shared: bool,
    /// Clock.
    pub(crate) now: &'a (dyn Fn() -> SystemTime + Send + Sync),
}

/// A challenge response that is available until this is dropped.
enum ChallengeResponse<'a> {
    Token(&'a OrderContext<'a>, String),
    ServerName(&'a OrderContext<'a>, String),
    /// The record's name and value. Removed explicitly before the order ends, because that takes a command or
    /// a request.
    Record(String, String),
}

impl Drop for ChallengeResponse<'_> {
    fn drop(&mut self) {
        match self {
            ChallengeResponse::Token(context, token) => {
                context.challenges.remove(token);
                context.store.remove_token(token);
            }
            ChallengeResponse::ServerName(context, name) => context.sink.remove_challenge(name),
            ChallengeResponse::Record(..) => {}
        }
    }
}

/// Retries a step while the directory rejects its nonce, which can happen at any time (RFC 8555 section 6.5).
async fn with_nonce<T>(mut step: impl AsyncFnMut() -> Result<T, Error>) -> Result<T, Error> {
    const ATTEMPTS_MAX: usize = 12;
    for _ in 1..ATTEMPTS_MAX {
        match step().await {
            Err(error) if problem(&error) == Some("badNonce") => {}
            done => return done,
        }
    }
    step().await
}

impl<'a> OrderContext<'a> {
    /// Converts the error of a step to a failure, including the directory's `Retry-After`.
    fn failure(&self, error: Error) -> OrderFailure {
        let asked = self.client.take_retry_after();
        let (kind, wait) = match &error {
            Error::Api(problem) => {
                let name =
                    problem.r#type.as_deref().and_then(|name| name.strip_prefix(PROBLEM)).unwrap_or_default();
                let own = problem.status.is_some_and(|status| status >= 500)
                    || matches!(name, "serverInternal" | "badNonce");
                (if own { FailureKind::Unreachable } else { FailureKind::Refused }, asked)
            }
            Error::Timeout(next) => {
                let wait = next.map(|at| at.saturating_duration_since(Instant::now()));
                (FailureKind::Unreachable, wait.or(asked))
            }
            Error::Unsupported(_) | Error::Crypto | Error::KeyRejected | Error::Str(_) => {
                (FailureKind::Refused, asked)
            }
            Error::Other(reason) if reason.is::<AcmeViolation>() => (FailureKind::Refused, asked),
            _ => (FailureKind::Unreachable, asked),
        };
        let text = match error {
            Error::Api(problem) => describe(&problem),
            Error::Json(error) => format!("the authority's response is not what ACME has there: {error}"),
            other => other.to_string(),
        };
        OrderFailure { kind, text: one_line(&text), wait }
    }

    /// Returns the account at a directory: the stored one, or a new one. An account that the authority has
    /// `forgotten` is not reused.
    async fn account(
        &self,
        directory: &AcmeDirectory,
        forgotten: Option<&str>,
    ) -> Result<Account, OrderFailure> {
        let asked = Instant::now();
        let lock = self.accounts.get(&directory.url).expect("each directory of the options has a lock");
        let mut failure = lock.lock().await;
        let stored =
            self.store.account(&directory.url).map_err(|error| OrderFailure::refused(error.to_string()))?;
        let stored = stored.filter(|text| {
            forgotten.is_none_or(|id| {
                serde_json::from_str::<serde_json::Value>(text).is_ok_and(|account| account["id"] != id)
            })
        });
        let credentials = stored.and_then(|text| serde_json::from_str::<AccountCredentials>(&text).ok());
        if let Some(credentials) = credentials {
            drop(failure);
            let builder = Account::builder_with_http(Box::new(self.client_of(directory)));
            return builder.from_credentials(credentials).await.map_err(|error| self.failure(error));
        }
        // An order that waited for a failed attempt of another one does not retry it.
        if let Some((_, known)) = failure.as_ref().filter(|(at, _)| *at >= asked) {
            return Err(known.clone());
        }
        let made = self.create_account(directory).await;
        *failure = made.as_ref().err().map(|error| (Instant::now(), error.clone()));
        made
    }

    fn client_of(&self, directory: &AcmeDirectory) -> DirectoryClient {
        let Intervals { order_max, request_max, .. } = *self.intervals;
        let dns_max = self.options.dns.as_ref().map_or(Duration::ZERO, |dns| dns.time_max(self.intervals));
        // An account and an order, its challenges, its validation and its issuance.
        let time_max = 4 * request_max + dns_max * AUTHORIZATIONS_MAX as u32 + 2 * order_max;
        DirectoryClient::new(self.client.clone(), &directory.url, time_max)
    }

    async fn create_account(&self, directory: &AcmeDirectory) -> Result<Account, OrderFailure> {
        let external = directory.eab.as_ref().map(|one| ExternalAccountKey::new(one.id.clone(), &one.key.0));
        let contact = self.options.email.as_ref().map(|email| format!("mailto:{email}"));
        let contact: Vec<&str> = contact.as_deref().into_iter().collect();
        let terms =
            NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let made = with_nonce(async || {
            let builder = Account::builder_with_http(Box::new(self.client_of(directory)));
            builder.create(&terms, directory.url.clone(), external.as_ref()).await
        });
        let (account, credentials) = made.await.map_err(|error| self.failure(error))?;
        let text =
            serde_json::to_string(&credentials).map_err(|error| OrderFailure::refused(error.to_string()))?;
        let written = self.store.write_account(&directory.url, &text);
        written.map_err(|error| OrderFailure::refused(format!("the account cannot be stored: {error}")))?;
        self.sink.info(&format!("certificates: made an account at {}", directory.url));
        Ok(account)
    }

    /// Obtains a certificate and returns it with its key.
    ///
    /// # Errors
    /// Reason of the failure, and whether the directory can be asked again soon.
    pub(crate) async fn obtain(
        &'a self,
        directory: &AcmeDirectory,
        subject: &Subject,
        kind: AcmeChallenge,
        replaces: Option<&KeyedChain>,
    ) -> Result<KeyedChain, OrderFailure> {
        // Discard the value of an earlier step.
        let _ = self.client.take_retry_after();
        let mut account = self.account(directory, None).await?;
        let mut made = self.new_order(&account, directory, subject, replaces).await;
        if made.as_ref().is_err_and(|error| problem(error) == Some("accountDoesNotExist")) {
            // The authority has deleted the account.
            account = self.account(directory, Some(account.id())).await?;
            made = self.new_order(&account, directory, subject, replaces).await;
        }
        let mut order = made.map_err(|error| self.failure(error))?;
        let mut shown = Vec::new();
        let validated = self.validate(&mut order, subject, kind, &mut shown).await;
        for one in &shown {
            let (ChallengeResponse::Record(name, value), Some(dns)) = (one, &self.options.dns) else {
                continue;
            };
            match dns.remove(name, value, (self.now)(), self.intervals).await {
                Ok(said) => self.log_hook_output(subject, &said),
                Err(error) => {
                    self.sink.warn(&format!("certificates: {subject}: the record {name} stays: {error}"));
                }
            }
        }
        drop(shown);
        validated?;
        self.finish(&mut order, subject).await
    }

    /// Logs the stderr output of the DNS hook.
    fn log_hook_output(&self, subject: &Subject, text: &str) {
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            self.sink.info(&format!("certificates: {subject}: the DNS hook: {line}"));
        }
    }

    async fn new_order(
        &self,
        account: &Account,
        directory: &AcmeDirectory,
        subject: &Subject,
        replaces: Option<&KeyedChain>,
    ) -> Result<Order, Error> {
        let identifier = match subject {
            Subject::Dns(name) => Identifier::Dns(name.clone()),
            Subject::Ip(address) => Identifier::Ip(*address),
        };
        let identifiers = [identifier];
        let profiles: Vec<&str> = account.profiles().map(|profile| profile.name).collect();
        let profile = match &directory.profile {
            Some(name) if !profiles.contains(&name.as_str()) => {
                let text = match profiles.as_slice() {
                    [] => format!("{} has no profiles: remove `profile` from `[acme]`", directory.url),
                    some => format!("{} has no profile {name:?}: it has {}", directory.url, some.join(", ")),
                };
                return Err(Error::Api(instant_acme::Problem {
                    r#type: None,
                    detail: Some(text),
                    status: None,
                    subproblems: Vec::new(),
                }));
            }
            Some(name) => Some(name.as_str()),
            // Let's Encrypt issues certificates for addresses only with this profile.
            None => {
                Some("shortlived").filter(|name| matches!(subject, Subject::Ip(_)) && profiles.contains(name))
            }
        };
        let plain = || {
            let order = NewOrder::new(&identifiers);
            profile.into_iter().fold(order, NewOrder::profile)
        };
        if let Some(identifier) = replaces.and_then(KeyedChain::identifier) {
            let made =
                with_nonce(async || account.new_order(&plain().replaces(identifier.clone())).await).await;
            match made {
                // The directory has no ARI, or the certificate was already replaced or is from another
                // authority: create an ordinary order.
                Err(Error::Unsupported(_)) => {}
                Err(Error::Api(problem))
                    if problem.r#type.as_deref() != Some(&format!("{PROBLEM}rateLimited")) => {}
                done => return done,
            }
        }
        with_nonce(async || account.new_order(&plain()).await).await
    }

    /// Completes the order's authorizations.
    async fn validate(
        &'a self,
        order: &mut Order,
        subject: &Subject,
        kind: AcmeChallenge,
        shown: &mut Vec<ChallengeResponse<'a>>,
    ) -> Result<(), OrderFailure> {
        let all = order.state().authorizations.len();
        if all > AUTHORIZATIONS_MAX {
            return Err(OrderFailure::refused(format!(
                "the order has {all} authorizations for one name: at most {AUTHORIZATIONS_MAX} are proved"
            )));
        }
        let mut count = 0;
        loop {
            // Created again in each round because it borrows the order; fetched data is kept.
            let mut authorizations = order.authorizations();
            let mut next = authorizations.next().await;
            for _ in 0..count {
                next = authorizations.next().await;
            }
            let mut authorization = match next {
                None => break,
                Some(Err(error)) if problem(&error) == Some("badNonce") => continue,
                Some(next) => next.map_err(|error| self.failure(error))?,
            };
            count += 1;
            if !subject.is_identifier(&authorization.identifier()) {
                let text =
                    format!("the authorization is for {}, not for {subject}", authorization.identifier());
                return Err(OrderFailure::refused(one_line(&text)));
            }
            match authorization.status {
                AuthorizationStatus::Valid => continue,
                AuthorizationStatus::Pending => {}
                other => return Err(OrderFailure::refused(format!("the authorization is {other:?}"))),
            }
            let offered = authorization.challenges.iter().take(LISTED_MAX);
            let offered: Vec<String> = offered.map(|challenge| format!("{:?}", challenge.r#type)).collect();
            let Some(mut challenge) = authorization.challenge(kind.of_acme()) else {
                let text = format!("the directory offers no {}, but {}", kind.name(), offered.join(", "));
                return Err(OrderFailure::refused(one_line(&text)));
            };
            self.present_challenge(&challenge, subject, kind, shown).await.map_err(OrderFailure::refused)?;
            with_nonce(async || challenge.set_ready().await).await.map_err(|error| self.failure(error))?;
        }
        let policy = self.policy();
        match with_nonce(async || order.poll_ready(&policy).await).await {
            Ok(OrderStatus::Ready) => Ok(()),
            Ok(_) => {
                let text = self.reason(order).await;
                Err(OrderFailure::refused(format!("{}: {text}", kind.name())))
            }
            Err(error) => {
                let failure = self.failure(error);
                Err(OrderFailure { text: format!("{}: {}", kind.name(), failure.text), ..failure })
            }
        }
    }

    fn policy(&self) -> RetryPolicy {
        RetryPolicy::new().initial_delay(self.intervals.poll).backoff(1.5).timeout(self.intervals.order_max)
    }

    /// Makes the response to a challenge available.
    async fn present_challenge(
        &'a self,
        challenge: &ChallengeHandle<'_>,
        subject: &Subject,
        kind: AcmeChallenge,
        shown: &mut Vec<ChallengeResponse<'a>>,
    ) -> Result<(), Failure> {
        if !is_token(&challenge.token) {
            let shown: String = challenge.token.chars().take(50).collect();
            return Err(Failure::new(format!(
                "the challenge's token {shown:?} is not 1 to 200 characters of base64url (RFC 8555 section 8.1)"
            )));
        }
        let response = challenge.key_authorization();
        match kind {
            AcmeChallenge::Http01 => {
                let token = challenge.token.clone();
                let written = self.store.write_token(&token, response.as_str());
                written.map_err(|error| format!("the token cannot be stored: {error}"))?;
                self.challenges.insert(token.clone(), response.as_str().to_owned());
                shown.push(ChallengeResponse::Token(self, token));
                if self.is_shared {
                    tokio::time::sleep(self.intervals.token_read_time).await;
                }
            }
            AcmeChallenge::TlsAlpn01 => {
                let made = challenge_certificate(subject, response.digest().as_ref());
                let (certificate, key) = made.map_err(Failure::new)?;
                let name = subject.server_name();
                self.sink.set_challenge(&name, &(certificate.pem() + &key.serialize_pem()))?;
                shown.push(ChallengeResponse::ServerName(self, name));
            }
            AcmeChallenge::Dns01 => {
                let dns = self.options.dns.as_ref().ok_or("neither `dns` nor `dns_hook` is set")?;
                let name = format!("_acme-challenge.{}", subject.base());
                let value = response.dns_value();
                // Registered even if this fails, because a request without an answer may have been executed.
                shown.push(ChallengeResponse::Record(name.clone(), value.clone()));
                let said = dns.add(&name, &value, (self.now)(), self.intervals).await?;
                self.log_hook_output(subject, &said);
            }
        }
        Ok(())
    }

    /// Returns why the authorizations of an order are invalid.
    async fn reason(&self, order: &mut Order) -> String {
        let mut reasons = Vec::new();
        let mut authorizations = order.authorizations();
        for _ in 0..AUTHORIZATIONS_MAX {
            let Some(Ok(mut authorization)) = authorizations.next().await else { break };
            // Without a fresh state there is no reason to report.
            let _ = with_nonce(async || authorization.refresh().await.map(drop)).await;
            let errors = authorization.challenges.iter().filter_map(|challenge| challenge.error.as_ref());
            reasons.extend(errors.take(LISTED_MAX).map(describe));
        }
        if reasons.is_empty() { "the directory did not say why".into() } else { reasons.join("; ") }
    }

    /// Finalizes the order, waits for the certificate and checks it.
    async fn finish(&self, order: &mut Order, subject: &Subject) -> Result<KeyedChain, OrderFailure> {
        let made = KeyPair::generate()
            .and_then(|key| Ok((certificate_params(subject)?.serialize_request(&key)?, key)));
        let (request, key) = made.map_err(|error| OrderFailure::refused(error.to_string()))?;
        let policy = self.policy();
        with_nonce(async || order.finalize_csr(request.der()).await)
            .await
            .map_err(|error| self.failure(error))?;
        let chain = with_nonce(async || order.poll_certificate(&policy).await).await;
        let chain = chain.map_err(|error| self.failure(error))?;
        KeyedChain::issued(&chain, &key, subject, (self.now)()).map_err(|reason| {
            OrderFailure::refused(one_line(&format!("the issued certificate is refused: {reason}")))
        })
    }

    /// Returns the renewal window that the authority suggests, and the time until the next query.
    pub(crate) async fn renewal_info(
        &self,
        directory: &AcmeDirectory,
        certificate: &KeyedChain,
    ) -> Result<Option<((SystemTime, SystemTime), Duration)>, OrderFailure> {
        let Some(identifier) = certificate.identifier() else { return Ok(None) };
        let account = self.account(directory, None).await?;
        match account.renewal_info(&identifier).await {
            Ok((info, again)) => {
                let window = info.suggested_window;
                // In whole seconds, as it is stored.
                let moment = |moment: SystemTime| at(unix_s(moment));
                Ok(Some(((moment(window.start.into()), moment(window.end.into())), again)))
            }
            Err(Error::Unsupported(_)) => Ok(None),
            Err(error) => Err(self.failure(error)),
        }
    }
}

/// Returns the parameters of a certificate request with the subject as its only name.
fn certificate_params(subject: &Subject) -> Result<CertificateParams, rcgen::Error> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters.subject_alt_names = vec![match subject {
        Subject::Dns(name) => SanType::DnsName(name.as_str().try_into()?),
        Subject::Ip(address) => SanType::IpAddress(*address),
    }];
    Ok(parameters)
}

/// Returns the certificate of a TLS-ALPN-01 challenge (RFC 8737 section 3).
fn challenge_certificate(
    subject: &Subject,
    digest: &[u8],
) -> Result<(rcgen::Certificate, KeyPair), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut parameters = certificate_params(subject)?;
    parameters.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    Ok((parameters.self_signed(&key)?, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(challenges: &[AcmeChallenge]) -> Options {
        Options {
            directories: Vec::new(),
            email: None,
            challenges: challenges.to_vec(),
            dns: None,
            ask: None,
            state_folder: PathBuf::new(),
            cluster: None,
            roots_pem: Vec::new(),
        }
    }

    #[test]
    fn authorization_is_for_the_ordered_name_alone() {
        let dns = |name: &str| Identifier::Dns(name.to_owned());
        for (ordered, identifier, is_wildcard, is_for_it) in [
            ("a.com", dns("a.com"), false, true),
            ("a.com", dns("A.com"), false, true),
            ("a.com", dns("a.com"), true, false),
            ("a.com", dns("b.com"), false, false),
            ("a.com", dns("*.a.com"), false, false),
            ("*.a.com", dns("a.com"), true, true),
            ("*.a.com", dns("*.a.com"), false, true),
            ("*.a.com", dns("a.com"), false, false),
            ("*.a.com", dns("b.com"), true, false),
            ("192.0.2.1", Identifier::Ip([192, 0, 2, 1].into()), false, true),
            ("192.0.2.1", Identifier::Ip([192, 0, 2, 2].into()), false, false),
            ("192.0.2.1", dns("192.0.2.1"), false, false),
        ] {
            let subject = Subject::parse(ordered).unwrap();
            let found = subject.is_identifier(&identifier.authorized(is_wildcard));
            assert_eq!(found, is_for_it, "{ordered}: {identifier:?}, {is_wildcard}");
        }
    }

    #[test]
    fn next_challenge_type_is_tried_after_a_failure() {
        use AcmeChallenge::{Dns01 as Dns, Http01 as Http, TlsAlpn01 as TlsAlpn};
        let of = |challenges: &[AcmeChallenge], name: &str, failures, is_shared| {
            options(challenges).challenge(&Subject::parse(name).unwrap(), failures, is_shared).ok()
        };
        let all = [Http, TlsAlpn, Dns];
        assert_eq!(
            [0, 1, 2, 3].map(|n| of(&all, "a.com", n, false)),
            [Some(Http), Some(TlsAlpn), Some(Dns), Some(Http)]
        );
        assert_eq!([0, 1].map(|n| of(&all, "a.com", n, true)), [Some(Http), Some(Dns)]);
        assert_eq!([0, 1].map(|n| of(&all, "*.a.com", n, false)), [Some(Dns), Some(Dns)]);
        assert_eq!([0, 2].map(|n| of(&all, "192.0.2.1", n, false)), [Some(Http), Some(Http)]);
        assert_eq!(of(&[Http, TlsAlpn], "*.a.com", 0, false), None);
        assert_eq!(of(&[TlsAlpn], "a.com", 0, true), Some(TlsAlpn));
    }
}
