//! Who may ask, in front of routes: by a user and a password, a token, the URL itself, or as a server says that is asked.
//!
//! What lets a request in may say who sends it: those fields of the request are the server's own then, never the client's.

mod basic;
mod ask;
mod jwt;
mod signed;

use std::io;
use std::sync::Arc;

use config::{Auth, AuthKind, Config};
use http::Fields;
use net::{Core, Exchange, Fault, MemoryBudget};
use proxy::Proxy;

use crate::auth::ask::{AskPlan, AskRoute};
use crate::auth::basic::{PasswordPlan, SharedPasswords};
use crate::auth::jwt::{JwtPlan, JwtRoute};
pub(crate) use crate::auth::signed::keys_of as url_keys;
use crate::auth::signed::{SignedPlan, SignedUrls};
use crate::config_files::ConfigFiles;
use crate::notice::ErrorLog;

/// What the routes of a configuration ask of clients, for all cores.
pub(crate) struct AuthPlan {
    passwords: PasswordPlan,
    asked: AskPlan,
    tokens: JwtPlan,
    signed: SignedPlan,
}

/// What a route asks of clients, on one core.
pub(crate) enum RouteAuth {
    Passwords(Arc<SharedPasswords>),
    Ask(Box<AskRoute>),
    Jwt(Box<JwtRoute>),
    Signed(Arc<SignedUrls>),
    /// Nothing, where the site asks for something: fields that would say who the client is are removed.
    Nothing(Vec<Vec<u8>>),
}

impl AuthPlan {
    /// Reads the files. What was named in the same way `before` keeps what it remembers.
    ///
    /// # Errors
    /// A file that cannot be read, or has a line that cannot be used, by name.
    pub(crate) fn new(
        config: &Config,
        before: Option<&AuthPlan>,
        place: (&ConfigFiles, &MemoryBudget, Option<&ErrorLog>),
        cores: usize,
    ) -> io::Result<AuthPlan> {
        let passwords = PasswordPlan::new(config, before.map(|plan| &plan.passwords), place, cores)?;
        let asked = AskPlan::new(config, before.map(|plan| &plan.asked), place.1)?;
        let tokens = JwtPlan::new(config, before.map(|plan| &plan.tokens), place)?;
        let signed = SignedPlan::new(config, place.0)?;
        Ok(AuthPlan { passwords, asked, tokens, signed })
    }

    /// That of a route; `proxy` is the way to the server that an `auth` asks.
    pub(crate) fn of_route(
        &self,
        config: &Config,
        (site, route): (usize, usize),
        proxy: impl FnOnce(&Auth) -> Option<Proxy>,
        (core, notices): (Option<&Core>, Option<&ErrorLog>),
    ) -> Option<RouteAuth> {
        let Some(auth) = config.settings(Some(site), Some(route)).auth else {
            let of_site = config.settings(Some(site), None).auth?;
            // Other servers than this one may be the judges of these.
            let is_proof = |name: &&str| matches!(*name, "authorization" | "cookie");
            let names = of_site.identity_fields().filter(|name| !is_proof(name));
            let names: Vec<Vec<u8>> = names.map(|name| name.as_bytes().to_vec()).collect();
            return (!names.is_empty()).then_some(RouteAuth::Nothing(names));
        };
        match auth.kind()? {
            AuthKind::Basic(_) => self.passwords.of(auth).map(RouteAuth::Passwords),
            AuthKind::Ask(server) => {
                let shared = self.asked.of(auth)?;
                let route = AskRoute::new(shared, server, proxy(auth), notices.cloned());
                Some(RouteAuth::Ask(Box::new(route)))
            }
            AuthKind::Jwt(jwt) => {
                let route = JwtRoute::new(self.tokens.of(auth)?, jwt, proxy(auth));
                if let Some(core) = core {
                    route.refresh(core, false);
                }
                Some(RouteAuth::Jwt(Box::new(route)))
            }
            AuthKind::Signed(_) => self.signed.of(auth).map(RouteAuth::Signed),
        }
    }
}

/// Asks what a route asks of clients. Returns whether the request may be served.
///
/// # Errors
/// The client is gone.
pub(crate) async fn admit(auth: Option<&RouteAuth>, x: &mut Exchange<'_>) -> Result<bool, Fault> {
    match auth {
        None => Ok(true),
        Some(RouteAuth::Passwords(auth)) => basic::admit(auth, x).await,
        // Boxed, as its future is large.
        Some(RouteAuth::Ask(auth)) => Box::pin(auth.admit(x)).await,
        Some(RouteAuth::Jwt(auth)) => Box::pin(auth.admit(x)).await,
        Some(RouteAuth::Signed(auth)) => auth.admit(x).await,
        Some(RouteAuth::Nothing(names)) => {
            x.amend(names, &Fields::new());
            Ok(true)
        }
    }
}
