//! The handler that serves requests from the file system.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::ops::Range;
use std::rc::Rc;

use http::{Coding, Fields, Length, Method, Name, Reject, Status, range};
use net::offload::BlockingKind;
use net::{Core, Exchange, Fault};

use crate::dictionary::{self, DictionaryEffects};
use crate::entry::{FileEntry, Variant};
use crate::finder::{Finder, LookupResult};
use crate::folder;
use crate::listing::{self, ListingFormat, ListingStyle};
use crate::multipart::Multipart;
use crate::open::OpenError;
use crate::options::Options;
use crate::request_fields::{RequestFields, SendPlan};
use crate::script::FoundScript;
use crate::send::send;

/// Handler for the files below some roots. Each core has its own.
#[derive(Debug)]
pub struct Files {
    finder: Finder,
    random: RandomState,
    boundaries: Cell<u64>,
}

/// Result of [`Files::serve`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOutcome {
    /// A response was sent.
    Done,
    /// The path does not exist, and nothing was sent: another handler may respond, or the caller responds 404
    /// with this reason.
    Declined(&'static str),
}

impl FileOutcome {
    /// Whether a response was sent.
    #[must_use]
    pub fn is_done(self) -> bool {
        matches!(self, FileOutcome::Done)
    }
}

const MISSING: &str = "there is no such file";
const ALLOWED: &[u8] = b"GET, HEAD, OPTIONS";

impl Files {
    /// Opens the roots. Blocks; call it only at start.
    ///
    /// # Errors
    /// There is no root, a root cannot be opened, or a value is not valid in a header field.
    pub fn new(options: Options) -> io::Result<Files> {
        let invalid = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if options.files.root.is_empty() {
            return invalid("no folder to serve".into());
        }
        let cache_control = options.files.cache_control.iter().map(|(_, value)| value);
        for value in cache_control.chain(&options.files.charset) {
            if Fields::new().try_push(b"X", value.as_bytes()).is_err() {
                return invalid(format!("`{}` is not valid in a field", value.escape_debug()));
            }
        }
        Ok(Files { finder: Finder::new(options)?, random: RandomState::new(), boundaries: Cell::new(0) })
    }

    /// Responds with the file or folder at `path`, which is the request's path ([`net::Request::normal_path`]) without
    /// the prefix that the route strips. If empty segments are kept, no file has a path with an empty segment. Methods
    /// other than GET and HEAD get 405 (OPTIONS: 204) if the file exists, and are declined if it does not.
    ///
    /// # Errors
    /// Errors of the connection, and [`Fault::Io`] if the file system failed before anything was sent.
    pub async fn serve(&self, exchange: &mut Exchange<'_>, path: &[u8]) -> Result<FileOutcome, Fault> {
        let method = exchange.request().method();
        // A relative redirect would lead elsewhere if the path was rewritten, because the client's URL does
        // not end with the folder's name.
        let redirects = exchange.request().target() == exchange.request().sent_target();
        self.respond(exchange, path, method, redirects).await
    }

    /// Like [`Files::serve`], for any method: sends a file that an application names in place of its
    /// response.
    ///
    /// # Errors
    /// See [`Files::serve`].
    pub async fn send(&self, exchange: &mut Exchange<'_>, path: &[u8]) -> Result<FileOutcome, Fault> {
        let method = if exchange.request().method() == Method::Head { Method::Head } else { Method::Get };
        self.respond(exchange, path, method, false).await
    }

    /// Sends a response. `redirects`: a folder without a trailing slash is redirected instead of served with
    /// its index.
    async fn respond(
        &self,
        exchange: &mut Exchange<'_>,
        path: &[u8],
        method: Method,
        redirects: bool,
    ) -> Result<FileOutcome, Fault> {
        let reads = matches!(method, Method::Get | Method::Head);
        // If the route strips the entire path including its slash, the request is for the folder itself.
        let path = if path.is_empty() && exchange.request().path().ends_with(b"/") { b"/" } else { path };
        if path.windows(2).any(|pair| pair == b"//") {
            return Ok(FileOutcome::Declined(MISSING));
        }
        let found = match self.finder.find(path, reads, exchange.core()).await {
            Ok(LookupResult::MissingSlash) if !redirects => {
                // Boxed, because this is rare.
                Box::pin(self.finder.find(&[path, b"/"].concat(), reads, exchange.core())).await
            }
            found => found,
        };
        match found {
            Ok(LookupResult::Missing) => return Ok(FileOutcome::Declined(MISSING)),
            Ok(LookupResult::NoIndex) => {
                return Ok(FileOutcome::Declined(
                    "this folder has no index page, and its files are not listed",
                ));
            }
            Ok(LookupResult::Refused(reason)) => {
                self.finder.report_refusal(path, reason);
                exchange.refuse(Status::FORBIDDEN, reason).await?;
            }
            Ok(_) if !reads => self.refuse_method(exchange, method).await?,
            Ok(LookupResult::File(entry)) => self.send_file(exchange, &entry, method).await?,
            Ok(LookupResult::MissingSlash) => redirect(exchange).await?,
            Ok(LookupResult::Folder(folder)) => self.send_listing(exchange, folder).await?,
            Err(OpenError::Failed(error)) => return Err(Fault::Io(error)),
            Err(OpenError::NoDescriptors | OpenError::WouldBlock) => {
                let mut later = Fields::new();
                later.push(Name::RetryAfter, b"1");
                exchange.refuse_with(Status::SERVICE_UNAVAILABLE, "too many open files", &later).await?;
            }
        }
        Ok(FileOutcome::Done)
    }

    /// Returns the script that `path` or a prefix of it names; `path` as for [`Files::serve`].
    ///
    /// # Errors
    /// See [`Files::serve`].
    pub async fn script(&self, path: &[u8], core: &Core) -> Result<Option<Rc<FoundScript>>, Fault> {
        self.finder.script(path, core).await.map_err(|error| match error {
            OpenError::Failed(error) => Fault::Io(error),
            OpenError::NoDescriptors | OpenError::WouldBlock => {
                Reject::new(Status::SERVICE_UNAVAILABLE, "too many open files").into()
            }
        })
    }

    async fn refuse_method(&self, exchange: &mut Exchange<'_>, method: Method) -> Result<(), Fault> {
        let mut fields = Fields::new();
        fields.push(Name::Allow, ALLOWED);
        match method {
            Method::Options => exchange.reply(Status::NO_CONTENT, &fields, b"").await,
            _ => exchange.refuse_with(Status::METHOD_NOT_ALLOWED, "files can only be read", &fields).await,
        }
    }

    async fn send_file(
        &self,
        exchange: &mut Exchange<'_>,
        entry: &Rc<FileEntry>,
        method: Method,
    ) -> Result<(), Fault> {
        let dictionary = match &self.finder.options().dictionaries {
            // Boxed, because this is rare.
            Some(transport) => Box::pin(dictionary::evaluate(transport, exchange, entry)).await,
            None => DictionaryEffects::default(),
        };
        let chosen = {
            let request = exchange.request();
            let asked = RequestFields::of(request.fields().map(|(name, _, value)| (name, value)));
            let chosen = match dictionary.variant {
                Some(variant) => Some(variant),
                None => self.choose_variant(entry, &asked, exchange.core()).await,
            };
            chosen.map(|variant| {
                // Texts of a part are not replaced.
                let has_ranges =
                    variant.ranges && !(asked.has_range() && exchange.replaces_texts(&variant.fields));
                let ranges_max = if has_ranges { self.finder.options().files.ranges_max as usize } else { 0 };
                let plan = asked.plan(method, &variant.validators(), variant.length, ranges_max);
                (variant, plan)
            })
        };
        let Some((variant, plan)) = chosen else {
            return exchange
                .refuse(Status::NOT_ACCEPTABLE, "no content coding that the client accepts")
                .await;
        };
        match plan {
            SendPlan::Whole => {
                let mut fields = Cow::Borrowed(&variant.fields);
                if let Some(value) = &dictionary.value {
                    fields.to_mut().push(Name::UseAsDictionary, value);
                }
                exchange.begin(Status::OK, &fields, Length::Known(variant.length));
                if exchange.wants_content() {
                    send(exchange, &variant, 0..variant.length).await?;
                }
                Ok(())
            }
            SendPlan::Part(range) => send_part(exchange, &variant, range).await,
            SendPlan::Parts(ranges) => Box::pin(self.send_parts(exchange, &variant, ranges)).await,
            SendPlan::NotModified => {
                exchange.describe_not_modified(&variant.fields, Length::Known(variant.length));
                exchange.reply(Status::NOT_MODIFIED, &variant.fields_not_modified, b"").await
            }
            SendPlan::PreconditionFailed => {
                exchange.refuse(Status::PRECONDITION_FAILED, "the file is not what the client expects").await
            }
            SendPlan::Unsatisfiable => {
                let mut fields = Fields::new();
                fields.push(Name::ContentRange, range::unsatisfied_range(variant.length).as_bytes());
                exchange
                    .refuse_with(Status::RANGE_NOT_SATISFIABLE, "the file has no such range", &fields)
                    .await
            }
        }
    }

    /// Returns the representation for this client; `None` if it accepts none. Live compression may produce
    /// different bytes each time, so range requests get the uncompressed file.
    async fn choose_variant(
        &self,
        entry: &Rc<FileEntry>,
        asked: &RequestFields<'_>,
        core: &Core,
    ) -> Option<Rc<Variant>> {
        if entry.codings.is_empty() {
            return Some(entry.plain().clone());
        }
        let coding = asked.choose_coding(&entry.codings)?;
        if let Some(variant) = entry.variant(coding) {
            return Some(variant.clone());
        }
        let compressed =
            if asked.has_range() { None } else { self.finder.compressed(entry, coding, core).await };
        match compressed {
            Some(variant) => Some(variant),
            None => asked.choose_coding(&[Coding::Identity]).map(|_| entry.plain().clone()),
        }
    }

    async fn send_parts(
        &self,
        exchange: &mut Exchange<'_>,
        variant: &Variant,
        ranges: Vec<Range<u64>>,
    ) -> Result<(), Fault> {
        let count = self.boundaries.get();
        self.boundaries.set(count.wrapping_add(1));
        let seed = [self.random.hash_one((count, 0)), self.random.hash_one((count, 1))];
        let multipart = Multipart::new(ranges, &variant.content_type, variant.length, seed);
        let mut fields = variant.fields.clone();
        fields.remove(b"Content-Type");
        fields.push(Name::ContentType, multipart.content_type.as_bytes());
        exchange.begin(Status::PARTIAL_CONTENT, &fields, Length::Known(multipart.length));
        for (head, range) in multipart.parts {
            exchange.write(&head).await?;
            send(exchange, variant, range).await?;
        }
        exchange.write(&multipart.end).await
    }

    async fn send_listing(&self, exchange: &mut Exchange<'_>, folder: Vec<u8>) -> Result<(), Fault> {
        let request = exchange.request();
        let style = ListingStyle::of(request.query(), request.field(Name::Accept));
        let shown = request.normal_path()?.into_owned();
        let tree = self.finder.tree();
        let entries_max = self.finder.options().listing_entries_max;
        let made = exchange.core().offload_as(BlockingKind::Files, move || -> io::Result<String> {
            let mut folder = folder::read(&tree, &folder, entries_max)?;
            listing::sort(&mut folder.items, style);
            Ok(match style.format {
                ListingFormat::Html => listing::html(&shown, &folder, style),
                ListingFormat::Json => listing::json(&shown, &folder),
            })
        });
        let page = made.await.map_err(Fault::Io)?;
        let mut fields = Fields::new();
        fields.push(
            Name::ContentType,
            match style.format {
                ListingFormat::Html => b"text/html; charset=utf-8",
                ListingFormat::Json => b"application/json",
            },
        );
        fields.push(Name::Vary, b"Accept");
        fields.extend(&self.finder.options().fields);
        exchange.reply(Status::OK, &fields, page.as_bytes()).await
    }
}

async fn send_part(exchange: &mut Exchange<'_>, variant: &Variant, range: Range<u64>) -> Result<(), Fault> {
    let mut fields = variant.fields.clone();
    fields.push(Name::ContentRange, range::content_range(&range, variant.length).as_bytes());
    exchange.begin(Status::PARTIAL_CONTENT, &fields, Length::Known(range.end - range.start));
    send(exchange, variant, range).await
}

/// Redirects to this path with a trailing slash. The reference is relative and begins with `./`, so that it
/// cannot name another host and is correct behind a proxy that strips a prefix.
async fn redirect(exchange: &mut Exchange<'_>) -> Result<(), Fault> {
    let request = exchange.request();
    let path = request.normal_path()?;
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let mut location = format!("./{}/", http::path::encoded_segment(name)).into_bytes();
    if let Some(query) = request.encoded_query() {
        location.push(b'?');
        location.extend_from_slice(&query);
    }
    let mut fields = Fields::new();
    fields.push(Name::Location, &location);
    exchange.reply(Status::MOVED_PERMANENTLY, &fields, b"").await
}
