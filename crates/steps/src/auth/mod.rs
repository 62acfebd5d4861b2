//! Authentication of the requests of a route: by user name and password, by token, by signed URL, or by
//! asking an authentication server.
//!
//! A successful check may set request fields that identify the client. These fields always come from this
//! server: values sent by the client are removed.

mod resources;
mod basic;
mod auth_server;
mod jwt;
mod signed;

use std::io;
use std::sync::Arc;

use admission::auth::{Auth, AuthKind, FieldScope};
use http::{Fields, Name, Status};
use logging::notice::ErrorLog;
use net::{Core, Exchange, Fault, Request};
use proxy::Proxy;
use reload::KeptState;

use crate::auth::auth_server::{AuthServerPlan, RouteAuthServer};
use crate::auth::basic::{PasswordPlan, SharedPasswords};
use crate::auth::jwt::{JwtPlan, JwtRoute};
pub use crate::auth::resources::AuthResources;
pub use crate::auth::signed::parse_keys as url_keys;
use crate::auth::signed::{SignedPlan, SignedUrls};
use crate::flow::Flow;

/// Authentication state of a configuration, shared by all cores.
pub struct AuthPlan {
    passwords: PasswordPlan,
    auth_servers: AuthServerPlan,
    tokens: JwtPlan,
    signed: SignedPlan,
    /// Names of the fields that identify clients, by site.
    identity_fields: Vec<Vec<Vec<u8>>>,
}

/// Authentication of one route on one core.
pub struct RouteAuth {
    /// Fields that identify clients in any route of the site. They are removed from the client's request.
    removed_fields: Vec<Vec<u8>>,
    check: Option<AuthCheck>,
}

/// Method of authentication of a route.
enum AuthCheck {
    Passwords(Arc<SharedPasswords>),
    Server(Box<RouteAuthServer>),
    Jwt(Box<JwtRoute>),
    Signed(Arc<SignedUrls>),
}

impl RouteAuth {
    /// Whether a request that has passed `other` need not be checked by this one too.
    pub fn is_covered_by(&self, other: Option<&RouteAuth>) -> bool {
        let Some(check) = &self.check else { return true };
        match (check, other.and_then(|other| other.check.as_ref())) {
            (AuthCheck::Passwords(one), Some(AuthCheck::Passwords(other))) => Arc::ptr_eq(one, other),
            (AuthCheck::Server(one), Some(AuthCheck::Server(other))) => one.is_same(other),
            (AuthCheck::Jwt(one), Some(AuthCheck::Jwt(other))) => one.is_same(other),
            (AuthCheck::Signed(one), Some(AuthCheck::Signed(other))) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl AuthPlan {
    /// Reads the files of keys and passwords. `sites` has the `auth` of each site and of its routes. Methods
    /// that are configured as before keep their state.
    ///
    /// # Errors
    /// A file cannot be read or contains an invalid line; the message names the file.
    pub fn new(
        sites: &[Vec<&Auth>],
        kept: &mut KeptState,
        resources: AuthResources<'_>,
        cores: usize,
    ) -> io::Result<AuthPlan> {
        let auths = &sites.concat();
        let passwords = PasswordPlan::new(auths, kept, resources, cores)?;
        let asked = AuthServerPlan::new(auths, kept, resources.memory)?;
        let tokens = JwtPlan::new(auths, kept, resources)?;
        let signed = SignedPlan::new(auths, resources.files)?;
        let of_site = |auths: &Vec<&Auth>| {
            identity_fields(auths.iter().copied().filter(|auth| auth.remove_from == FieldScope::Site))
        };
        let identity_fields = sites.iter().map(of_site).collect();
        Ok(AuthPlan { passwords, auth_servers: asked, tokens, signed, identity_fields })
    }

    /// Returns the authentication of a route of a site, which has this `auth`. `proxy` makes the proxy for the server of an `auth` directive.
    pub fn of_route(
        &self,
        site: usize,
        auth: Option<&Auth>,
        proxy: impl FnOnce(&Auth) -> Option<Proxy>,
        core: Option<&Core>,
        notices: Option<&ErrorLog>,
    ) -> Option<RouteAuth> {
        let mut removed = self.identity_fields.get(site).cloned().unwrap_or_default();
        removed
            .extend(identity_fields(auth.into_iter().filter(|auth| auth.remove_from == FieldScope::Route)));
        let check = auth.and_then(|auth| self.check(auth, proxy, core, notices));
        (check.is_some() || !removed.is_empty()).then_some(RouteAuth { removed_fields: removed, check })
    }

    fn check(
        &self,
        auth: &Auth,
        proxy: impl FnOnce(&Auth) -> Option<Proxy>,
        core: Option<&Core>,
        notices: Option<&ErrorLog>,
    ) -> Option<AuthCheck> {
        match auth.kind()? {
            AuthKind::Basic(_) => self.passwords.of(auth).map(AuthCheck::Passwords),
            AuthKind::Server(server) => {
                let shared = self.auth_servers.of(auth)?;
                let route = RouteAuthServer::new(shared, server, proxy(auth), notices.cloned());
                Some(AuthCheck::Server(Box::new(route)))
            }
            AuthKind::Jwt(_) => {
                let route = JwtRoute::new(self.tokens.of(auth)?, proxy(auth));
                if let Some(core) = core {
                    route.refresh(core, false);
                }
                Some(AuthCheck::Jwt(Box::new(route)))
            }
            AuthKind::Signed(_) => self.signed.of(auth).map(AuthCheck::Signed),
        }
    }
}

/// Returns the names of the fields that identify clients in a site or one of its routes, by these `auth`. `authorization` and
/// `cookie` are not included: they may also carry credentials for other servers, so the check itself replaces
/// them.
fn identity_fields<'a>(auths: impl Iterator<Item = &'a Auth>) -> Vec<Vec<u8>> {
    let names = auths
        .flat_map(|auth| auth.identity_fields())
        .filter(|name| !matches!(*name, "authorization" | "cookie"));
    let mut names: Vec<Vec<u8>> = names.map(|name| name.as_bytes().to_vec()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Reason given when a request is refused for several `Authorization` fields.
pub const SEVERAL_AUTHORIZATIONS: &str = "there are several fields `Authorization`: send one";

/// Whether a request has several `Authorization` fields. This server and the application might use different
/// ones.
pub fn has_several_authorizations(request: &Request<'_>) -> bool {
    request.head().values(Name::Authorization).nth(1).is_some()
}

impl RouteAuth {
    /// Authenticates a request.
    ///
    /// # Errors
    /// The client is gone.
    pub async fn run(&self, exchange: &mut Exchange<'_>) -> Result<Flow, Fault> {
        let RouteAuth { removed_fields: removed, check } = self;
        if !removed.is_empty() {
            exchange.amend(removed, &Fields::new());
        }
        let Some(check) = check else { return Ok(Flow::Continue) };
        if !matches!(check, AuthCheck::Signed(_)) && has_several_authorizations(&exchange.request()) {
            exchange.refuse(Status::BAD_REQUEST, SEVERAL_AUTHORIZATIONS).await?;
            return Ok(Flow::Answered);
        }
        let is_admitted = match check {
            AuthCheck::Passwords(auth) => basic::authenticate(auth, exchange).await?,
            // Boxed because the future is large.
            AuthCheck::Server(auth) => Box::pin(auth.authenticate(exchange)).await?,
            AuthCheck::Jwt(auth) => Box::pin(auth.authenticate(exchange)).await?,
            AuthCheck::Signed(auth) => auth.authenticate(exchange).await?,
        };
        Ok(Flow::of_admission(is_admitted))
    }
}
