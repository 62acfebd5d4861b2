//! Lookup of the file for a request's path, through the cache.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use coding::Effort;
use http::{Coding, Template, TemplatePart, Variable};
use net::Core;
use net::client::LocalNotify;
use net::offload::BlockingKind;
use times::{Millis, Moment};

use crate::entry::{CompressedState, FileEntry, Variant};
use crate::open::{self, BlockingMode, OpenError, RootChange, Stamp};
use crate::options::{Options, RootReport, RootState};
use crate::script::{FoundScript, KnownScripts};
use crate::store::Store;
use crate::tree::{Content, FileTree, FoundEntry, LoadedFile};

/// Cached lookup of the file for a path.
#[derive(Debug)]
pub struct Finder {
    options: Options,
    tree: RefCell<Arc<FileTree>>,
    /// Time of the last check of the roots' paths, by the core's clock.
    roots_checked_at: Cell<Moment>,
    candidates: Vec<PathCandidate>,
    store: Rc<RefCell<Store<FileEntry>>>,
    scripts: KnownScripts,
}

/// Result of a lookup.
#[derive(Debug)]
pub enum LookupResult {
    /// A file.
    File(Rc<FileEntry>),
    /// A redirect to this path with a trailing slash.
    MissingSlash,
    /// The listing of the folder at this path.
    Folder(Vec<u8>),
    /// A folder without an index that must not be listed.
    NoIndex,
    /// The path does not exist.
    Missing,
    /// 403 with the reason.
    Refused(&'static str),
}

/// A path to try.
#[derive(Debug)]
enum PathCandidate {
    /// The request's path between these texts.
    FromRequest(Vec<String>),
    /// A fixed path, and a key in the cache that differs from every request's path.
    Fixed { path: Vec<u8>, key: Vec<u8> },
}

impl PathCandidate {
    /// Whether the candidate ends in a slash if the request's path does.
    fn ends_with_path(&self) -> bool {
        matches!(self, PathCandidate::FromRequest(pieces) if pieces.last().is_some_and(String::is_empty))
    }

    fn of(template: &Template) -> io::Result<PathCandidate> {
        let invalid = || {
            let why = format!("`{template}` is not a path below the root");
            io::Error::new(io::ErrorKind::InvalidInput, why)
        };
        let mut pieces = vec![String::new()];
        for part in template.parts() {
            match part {
                TemplatePart::Text(text) => pieces.last_mut().expect("one at least").push_str(text),
                TemplatePart::Variable(Variable::Path) => pieces.push(String::new()),
                TemplatePart::Variable(_) => return Err(invalid()),
            }
        }
        let is_rooted = pieces[0].starts_with('/') || (pieces[0].is_empty() && pieces.len() > 1);
        if !is_rooted || !is_below_root(&pieces.join("path")) {
            return Err(invalid());
        }
        match pieces.as_slice() {
            [path] => PathCandidate::fixed(path),
            _ => Ok(PathCandidate::FromRequest(pieces)),
        }
    }

    fn fixed(path: &str) -> io::Result<PathCandidate> {
        if !path.starts_with('/') || !is_below_root(path) {
            let why = format!("`{path}` is not a path below the root");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Ok(PathCandidate::Fixed { path: path.into(), key: [b"\0", path.as_bytes()].concat() })
    }
}

/// Whether a path has no `..` segment and no NUL.
fn is_below_root(path: &str) -> bool {
    !path.contains('\0') && path.split('/').all(|segment| segment != "..")
}

impl Finder {
    /// Opens the roots.
    ///
    /// # Errors
    /// A root cannot be opened, or a candidate is not a valid path.
    pub fn new(options: Options) -> io::Result<Finder> {
        let mut candidates =
            options.files.candidates.iter().map(PathCandidate::of).collect::<io::Result<Vec<_>>>()?;
        if let Some(fallback) = &options.files.fallback {
            candidates.push(PathCandidate::fixed(fallback)?);
        }
        Ok(Finder {
            scripts: KnownScripts::default(),
            tree: RefCell::new(Arc::new(FileTree::open(&options)?)),
            roots_checked_at: Cell::new(Moment::ZERO),
            candidates,
            store: Rc::new(RefCell::new(Store::new(options.cache.entries_max, options.cache.bytes_max))),
            options,
        })
    }

    /// Returns the options that the finder was created with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the roots, for use on a thread that may block.
    #[must_use]
    pub fn tree(&self) -> Arc<FileTree> {
        self.tree.borrow().clone()
    }

    /// Reports that a path was refused because this process lacks read permission.
    pub fn report_refusal(&self, path: &[u8], reason: &str) {
        if let (open::NO_PERMISSION, Some(RootReport(report))) = (reason, &self.options.root_report) {
            report(self.tree().roots()[0].path(), RootState::PermissionDenied(path.to_vec()));
        }
    }

    /// Whether the roots' paths were checked less than `revalidate_after` ago.
    fn are_roots_fresh(&self, now: Moment) -> bool {
        now < self.roots_checked_at.get() + self.options.cache.revalidate_after
    }

    /// Checks whether the roots' paths name other folders, after a release was switched or a folder was
    /// renamed. If so, all cache entries of the old folders are dropped.
    async fn check_roots(&self, core: &Core) {
        // Other requests use the current roots while this request checks them.
        self.roots_checked_at.set(core.now());
        let tree = self.tree();
        let mut changes = tree.recheck(BlockingMode::CacheOnly);
        if matches!(changes, Err(OpenError::WouldBlock)) {
            let tree = tree.clone();
            changes =
                core.offload_as(BlockingKind::Files, move || tree.recheck(BlockingMode::Blocking)).await;
        }
        for (at, change) in changes.into_iter().flatten().enumerate() {
            let report = self.options.root_report.as_ref();
            let report = |state| _ = report.map(|RootReport(report)| report(tree.roots()[at].path(), state));
            let root = match change {
                RootChange::Same => continue,
                RootChange::Unknown(error) => {
                    report(RootState::Unknown(error));
                    continue;
                }
                RootChange::Replaced(root) => {
                    report(RootState::Replaced(root.id()));
                    root
                }
                RootChange::Missing(root, error) => {
                    report(RootState::Missing(error));
                    root
                }
            };
            let changed = self.tree().with_root(at, root);
            self.tree.replace(Arc::new(changed));
            self.store.borrow_mut().clear();
        }
    }

    /// Returns the cached file for a path if it was checked recently. Needs no system call.
    #[must_use]
    pub fn find_fresh(&self, path: &[u8], core: &Core) -> Option<Rc<FileEntry>> {
        let now = core.now();
        let entry = self.store.borrow_mut().find(path, now)?;
        let is_fresh = now < entry.checked_at.get() + self.options.cache.revalidate_after;
        (is_fresh && self.are_roots_fresh(now)).then_some(entry)
    }

    /// Looks up `path`. Unless `fixed` is set, candidates without `$path` are skipped.
    ///
    /// # Errors
    /// [`OpenError`], except [`OpenError::WouldBlock`].
    pub async fn find(&self, path: &[u8], fixed: bool, core: &Core) -> Result<LookupResult, OpenError> {
        let skips = !fixed && self.candidates.iter().any(|one| matches!(one, PathCandidate::Fixed { .. }));
        // What is found without them is not what other requests for the path get. No path begins with a NUL.
        let key = if skips { Cow::Owned([b"\0", path].concat()) } else { Cow::Borrowed(path) };
        let key = key.as_ref();
        if let Some(entry) = self.find_fresh(key, core) {
            return Ok(LookupResult::File(entry));
        }
        if !self.are_roots_fresh(core.now()) {
            self.check_roots(core).await;
            if let Some(entry) = self.find_fresh(key, core) {
                return Ok(LookupResult::File(entry));
            }
        }
        self.claim_check(key, core);
        let mut nothing = LookupResult::Missing;
        let is_page_missing = |found: &LookupResult| {
            matches!(found, LookupResult::NoIndex) && !self.options.files.falls_back_for_folders
        };
        for candidate in &self.candidates {
            let answer = match candidate {
                PathCandidate::FromRequest(pieces) => {
                    let file = match pieces.as_slice() {
                        [before, after] if before.is_empty() && after.is_empty() => path,
                        pieces => &pieces.iter().map(String::as_bytes).collect::<Vec<_>>().join(path),
                    };
                    if self.tree().is_hidden(file) {
                        LookupResult::Missing
                    } else {
                        self.look_up(file, key, core).await?
                    }
                }
                PathCandidate::Fixed { .. } if !fixed || is_page_missing(&nothing) => continue,
                PathCandidate::Fixed { path, key } => match self.find_fresh(key, core) {
                    Some(entry) => LookupResult::File(entry),
                    None => {
                        self.claim_check(key, core);
                        self.look_up(path, key, core).await?
                    }
                },
            };
            match answer {
                LookupResult::Missing => {}
                LookupResult::NoIndex => nothing = LookupResult::NoIndex,
                LookupResult::MissingSlash if !candidate.ends_with_path() => {}
                answer => return Ok(answer),
            }
        }
        self.store.borrow_mut().remove(key);
        Ok(nothing)
    }

    /// Returns the script that `path` or a prefix of it names; `None` if there is none. Files that are not
    /// served are not scripts.
    ///
    /// # Errors
    /// [`OpenError`], except [`OpenError::WouldBlock`].
    pub async fn script(&self, path: &[u8], core: &Core) -> Result<Option<Rc<FoundScript>>, OpenError> {
        let now = core.now();
        let fresh_since = now + Millis(1) - self.options.cache.revalidate_after;
        if let Some(found) = self.scripts.find_since(path, fresh_since) {
            return Ok(Some(found));
        }
        if !self.are_roots_fresh(now) {
            self.check_roots(core).await;
        }
        let tree = self.tree();
        let mut found = tree.script(path, BlockingMode::CacheOnly);
        if matches!(found, Err(OpenError::WouldBlock)) {
            let path = path.to_vec();
            found = core
                .offload_as(BlockingKind::Files, move || tree.script(&path, BlockingMode::Blocking))
                .await;
        }
        let Some(found) = found?.map(Rc::new) else { return Ok(None) };
        self.scripts.add(path, now, &found);
        Ok(Some(found))
    }

    /// Marks the entry as checked, so that other requests use it while this request checks the file.
    fn claim_check(&self, key: &[u8], core: &Core) {
        if let Some(stale) = self.store.borrow_mut().find(key, core.now()) {
            stale.checked_at.set(core.now());
        }
    }

    async fn look_up(&self, path: &[u8], key: &[u8], core: &Core) -> Result<LookupResult, OpenError> {
        let tree = self.tree();
        let mut found = tree.find(path, BlockingMode::CacheOnly);
        if matches!(found, Err(OpenError::WouldBlock)) {
            let tree = tree.clone();
            let path = path.to_vec();
            found =
                core.offload_as(BlockingKind::Files, move || tree.find(&path, BlockingMode::Blocking)).await;
        }
        if matches!(found, Err(OpenError::NoDescriptors)) {
            // Out of descriptors: close the cached files to make room for the requested one.
            self.store.borrow_mut().clear();
            let tree = tree.clone();
            let path = path.to_vec();
            found =
                core.offload_as(BlockingKind::Files, move || tree.find(&path, BlockingMode::Blocking)).await;
        }
        let found = found?;
        if !matches!(found, FoundEntry::File(_)) {
            self.store.borrow_mut().remove(key);
        }
        Ok(match found {
            // The root was replaced during the lookup: the result is valid for this request, but is not
            // cached.
            FoundEntry::File(loaded) if !Arc::ptr_eq(&tree, &self.tree.borrow()) => {
                let entry = FileEntry::new(key, &loaded, &self.options, core.unix_s(), core.now());
                LookupResult::File(Rc::new(entry))
            }
            FoundEntry::File(loaded) => LookupResult::File(self.reuse_or_insert(key, &loaded, core)),
            FoundEntry::MissingSlash => LookupResult::MissingSlash,
            FoundEntry::Folder => LookupResult::Folder(path.to_vec()),
            FoundEntry::NoIndex => LookupResult::NoIndex,
            FoundEntry::Missing => LookupResult::Missing,
            FoundEntry::Refused(reason) => LookupResult::Refused(reason),
        })
    }

    /// Returns the entry for a file just opened: the cached one if nothing has changed.
    fn reuse_or_insert(&self, key: &[u8], loaded: &LoadedFile, core: &Core) -> Rc<FileEntry> {
        let now = core.now();
        let entry = FileEntry::new(key, loaded, &self.options, core.unix_s(), now);
        let mut store = self.store.borrow_mut();
        if let Some(known) = store.find(key, now)
            && known.is_same_as(&entry)
        {
            known.checked_at.set(now);
            return known;
        }
        let entry = Rc::new(entry);
        store.drop_unused(now - self.options.cache.idle_max);
        store.insert(key, entry.clone(), entry.memory_bytes(), now);
        entry
    }

    /// Returns the file compressed with a coding, if the result is smaller and no other request is
    /// compressing it.
    pub async fn compressed(
        &self,
        entry: &Rc<FileEntry>,
        coding: Coding,
        core: &Core,
    ) -> Option<Rc<Variant>> {
        match entry.compressed_state(coding) {
            Some(CompressedState::Ready(variant)) => return Some(variant),
            Some(CompressedState::Running | CompressedState::Useless) => return None,
            None => {}
        }
        let effort = self.options.files.compress.as_ref()?.effort;
        entry.set_compressed_state(coding, Some(CompressedState::Running));
        let bell = Rc::new(LocalNotify::new(core));
        let work = CompressionJob { entry: entry.clone(), coding, completion: bell.clone() };
        // A separate task, which continues if the client disconnects. Otherwise every early disconnect would
        // restart the compression.
        core.spawn(work.run(effort, self.store.clone(), core.clone()));
        bell.notified().await;
        match entry.compressed_state(coding) {
            Some(CompressedState::Ready(variant)) => Some(variant),
            _ => None,
        }
    }
}

/// Compression in progress.
struct CompressionJob {
    entry: Rc<FileEntry>,
    coding: Coding,
    /// Notified at the end, whether successful or not.
    completion: Rc<LocalNotify>,
}

impl CompressionJob {
    async fn run(self, effort: Effort, store: Rc<RefCell<Store<FileEntry>>>, core: Core) {
        let entry = &self.entry;
        let coding = self.coding;
        let content = entry.plain().content.clone();
        let stamp = entry.stamp();
        // Memory of the file's bytes and of the compressed bytes.
        let _held =
            core.memory().charge(usize::try_from(stamp.size).unwrap_or(usize::MAX / 4).saturating_mul(2));
        match core.offload(move || compress_file(&content, &stamp, coding, effort)).await {
            Ok(Some(bytes)) if (bytes.len() as u64) < entry.plain().length => {
                let variant = Rc::new(entry.compressed(coding, bytes));
                entry.set_compressed_state(coding, Some(CompressedState::Ready(variant.clone())));
                let mut store = store.borrow_mut();
                if store.find(&entry.key, core.now()).is_some_and(|kept| Rc::ptr_eq(&kept, entry)) {
                    store.grow(&entry.key, variant.memory_bytes());
                }
            }
            Ok(Some(_)) => entry.set_compressed_state(coding, Some(CompressedState::Useless)),
            // The file changed meanwhile, or could not be read; sending it uncompressed reports the error.
            Ok(None) | Err(_) => {}
        }
    }
}

impl Drop for CompressionJob {
    fn drop(&mut self) {
        if matches!(self.entry.compressed_state(self.coding), Some(CompressedState::Running)) {
            self.entry.set_compressed_state(self.coding, None);
        }
        self.completion.notify();
    }
}

/// Returns the file's bytes in a coding; `None` if the file no longer has this stamp. Blocks.
fn compress_file(
    content: &Content,
    stamp: &Stamp,
    coding: Coding,
    effort: Effort,
) -> io::Result<Option<Vec<u8>>> {
    match read_content(content, stamp)? {
        Some(bytes) => coding::compress(coding, effort, &bytes).map(Some),
        None => Ok(None),
    }
}

/// Returns all bytes of a file; `None` if the file no longer has this stamp. Blocks.
pub(crate) fn read_content(content: &Content, stamp: &Stamp) -> io::Result<Option<Arc<[u8]>>> {
    match content {
        Content::Memory(bytes) => Ok(Some(bytes.clone())),
        Content::File(file) => {
            let Ok(bytes) = open::read(file, stamp.size, BlockingMode::Blocking) else { return Ok(None) };
            let is_same = Stamp::of(file)? == *stamp && bytes.len() as u64 == stamp.size;
            Ok(is_same.then(|| bytes.into()))
        }
    }
}
