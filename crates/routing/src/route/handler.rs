//! Handlers of routes.

use std::rc::Rc;

use files::{FileOutcome, Files};
use hosting::workers::MountedApp;
use http::{Fields, Status, Template, Variable};
use net::{Exchange, Fault, pin_in_place};
use proxy::Proxy;

use crate::edits::template_values;
use crate::pages;
use crate::php::{PhpRoute, PhpTarget, ScriptRunner};
use crate::request_path::{PathPrefix, RequestPath};
use crate::templates::TemplateResponse;

/// Treatment of paths by a route.
pub struct RoutePaths {
    /// Prefix removed from the path for files.
    pub strip: PathPrefix,
    /// Part of the route's path before the final `*`, for `$rest`.
    pub prefix: Vec<u8>,
    /// Whether paths with encoded slashes are accepted. Files never accept them.
    pub keeps_encoded_slashes: bool,
}

impl RoutePaths {
    /// Serves the file of a request, if there is one.
    ///
    /// # Errors
    /// The client is gone, or the file cannot be read.
    pub(super) async fn serve_file(
        &self,
        files: &Files,
        exchange: &mut Exchange<'_>,
        path: &RequestPath,
    ) -> Result<FileOutcome, Fault> {
        files.serve(exchange, self.strip.strip_from(&path.copy_for_handler(exchange, false))).await
    }
}

/// Handler of a route.
pub enum Handler {
    /// Files of a directory.
    Files(Box<Files>),
    /// Upstream servers.
    Proxy(Proxy),
    /// PHP scripts.
    Php(Box<PhpRoute>),
    /// A hosted application.
    App(MountedApp),
    /// A redirect.
    Redirect {
        /// Value of `Location`.
        to: Template,
        /// Redirect status (3xx).
        status: Status,
    },
    /// A fixed response.
    Respond {
        /// Status of the response.
        status: Status,
        /// Header fields of the response.
        fields: Fields,
        /// Body of the response.
        body: Vec<u8>,
    },
    /// A fixed response with variables in its body.
    RespondTemplate(Box<TemplateResponse>),
}

impl Handler {
    /// Returns the files that the handler serves, if any.
    pub(super) fn files(&self) -> Option<&Files> {
        match self {
            Handler::Files(files) => Some(files),
            Handler::Php(php) => Some(&php.files),
            _ => None,
        }
    }

    /// Whether an upstream server or application responds: its responses may be stored, and may name files.
    #[must_use]
    pub fn is_backend(&self) -> bool {
        matches!(self, Handler::Proxy(_) | Handler::Php(_) | Handler::App(_))
    }

    /// Whether the handler can answer an extended CONNECT with this protocol (RFC 8441) otherwise than a GET. The proxy
    /// decides itself what it passes on.
    pub(super) fn may_switch_to(&self, protocol: &[u8]) -> bool {
        match self {
            Handler::Proxy(_) | Handler::Redirect { .. } => true,
            Handler::App(_) => protocol.eq_ignore_ascii_case(b"websocket"),
            Handler::Files(_) | Handler::Php(_) | Handler::Respond { .. } | Handler::RespondTemplate(_) => {
                self.is_refusal()
            }
        }
    }

    /// Whether every request is refused.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            Handler::Respond { status, .. } => status.code() >= 400,
            Handler::RespondTemplate(answer) => answer.status.code() >= 400,
            _ => false,
        }
    }

    /// Whether a response is cancelled if its client leaves.
    pub(super) fn cancels_on_disconnect(&self) -> bool {
        match self {
            Handler::Proxy(proxy) => proxy.cancels_on_disconnect(),
            Handler::Php(php) => {
                matches!(&php.runner, ScriptRunner::Server(proxy) if proxy.cancels_on_disconnect())
            }
            _ => false,
        }
    }

    /// Serves a request. `path` has the script of a PHP route that has been found already.
    ///
    /// # Errors
    /// The client is gone, or a response in progress cannot be completed.
    pub(super) async fn serve(
        &self,
        exchange: &mut Exchange<'_>,
        paths: &RoutePaths,
        path: &RequestPath,
    ) -> Result<(), Fault> {
        match self {
            Handler::Proxy(proxy) => proxy.serve(exchange).await,
            Handler::App(app) => {
                app.serve(exchange, &path.copy_for_handler(exchange, paths.keeps_encoded_slashes)).await
            }
            // Boxed, because it would make the future of every other request larger.
            Handler::Php(php) => pin_in_place(|| php.serve(exchange, paths, path)).await,
            Handler::Files(files) => match paths.serve_file(files, exchange, path).await? {
                FileOutcome::Done => Ok(()),
                FileOutcome::Declined(reason) => exchange.refuse(Status::NOT_FOUND, reason).await,
            },
            Handler::Redirect { to, status } => redirect(exchange, to, *status, &paths.prefix).await,
            Handler::Respond { status, body, .. } if status.code() >= 400 && body.is_empty() => {
                exchange.refuse(*status, pages::respond_text(*status)).await
            }
            Handler::Respond { status, fields, body } => exchange.reply(*status, fields, body).await,
            Handler::RespondTemplate(response) => response.serve(exchange, &paths.prefix).await,
        }
    }
}

async fn redirect(
    exchange: &mut Exchange<'_>,
    to: &Template,
    status: Status,
    prefix: &[u8],
) -> Result<(), Fault> {
    let mut location = Vec::new();
    to.write(&mut location, &template_values(exchange, prefix));
    // `$rest` may begin with a slash if empty segments are kept. A leading `//` would be read as a host name.
    if !to.literal_prefix().starts_with("//") && location.starts_with(b"//") {
        let slashes = location.iter().take_while(|&&byte| byte == b'/').count();
        location.drain(..slashes - 1);
    }
    let mut fields = Fields::new();
    let nameless = to.uses(&Variable::Host) && exchange.request().authority().is_empty();
    if nameless || fields.try_push(b"Location", &location).is_err() {
        let reason = "the redirect target for this address is not valid";
        return exchange.refuse(Status::BAD_REQUEST, reason).await;
    }
    exchange.refuse_with(status, "the page is at another address", &fields).await
}

/// Outcome of [`PhpRoute::find_script`].
pub(super) enum PhpServed {
    /// The request has been answered.
    Done,
    /// The script of this path is to be run.
    Script(RequestPath),
}

impl PhpRoute {
    /// Sends the file of a request, or returns the script that is to be run.
    ///
    /// # Errors
    /// The client is gone, or a file cannot be read.
    pub(super) async fn find_script(
        &self,
        exchange: &mut Exchange<'_>,
        paths: &RoutePaths,
        path: &RequestPath,
    ) -> Result<PhpServed, Fault> {
        let kept = path.copy_for_handler(exchange, false);
        match self.find(exchange, paths.strip.strip_from(&kept), !path.has_encoded_slash).await? {
            PhpTarget::Done => Ok(PhpServed::Done),
            PhpTarget::Missing(reason) => {
                exchange.refuse(Status::NOT_FOUND, reason).await?;
                Ok(PhpServed::Done)
            }
            PhpTarget::Script(mut script) => {
                if paths.keeps_encoded_slashes {
                    script.info = path.suffix_like(&script.info, &exchange.request()).to_vec();
                }
                Ok(PhpServed::Script(RequestPath { script: Some(Rc::new(script)), ..path.clone() }))
            }
        }
    }

    async fn serve(
        &self,
        exchange: &mut Exchange<'_>,
        paths: &RoutePaths,
        path: &RequestPath,
    ) -> Result<(), Fault> {
        if path.script.is_some() {
            return self.run(exchange, path.script.as_deref()).await;
        }
        match self.find_script(exchange, paths, path).await? {
            PhpServed::Done => Ok(()),
            PhpServed::Script(path) => self.run(exchange, path.script.as_deref()).await,
        }
    }
}
