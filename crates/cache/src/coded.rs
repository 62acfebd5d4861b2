//! Compressed forms of a stored content, each created once and kept with it for all requests.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use http::Coding;

use crate::held::{Account, HeldBytes};

/// Compressed forms of one content.
#[derive(Default)]
pub(crate) struct CodedForms {
    forms: Mutex<Vec<(Coding, FormState)>>,
    /// SHA-256 of the content, once it has been needed.
    pub(crate) hash: OnceLock<[u8; 32]>,
}

enum FormState {
    Running,
    /// Compressed successfully.
    Made {
        bytes: Arc<[u8]>,
        _held: HeldBytes,
    },
    Useless,
}

/// Result of looking up a content in a coding.
#[derive(Debug)]
pub enum CodedLookup {
    /// The compressed form exists.
    Ready(Arc<[u8]>),
    /// Not available: being compressed, not smaller, or too many jobs run.
    Unavailable,
    /// The caller is to compress the content, where blocking is allowed, and pass it to
    /// [`crate::Cache::add_coded`].
    Start(CodingJob),
}

/// A compressed form in progress. If it is dropped, the next request starts again.
pub struct CodingJob {
    forms: Arc<CodedForms>,
    coding: Coding,
    running: Arc<AtomicUsize>,
}

impl CodedForms {
    /// Returns the form in this coding, or starts a job if fewer than `jobs_max` are `running`.
    pub(crate) fn find(
        self: &Arc<Self>,
        coding: Coding,
        running: &Arc<AtomicUsize>,
        jobs_max: usize,
    ) -> CodedLookup {
        let mut forms = self.forms();
        match forms.iter().find(|(other, _)| *other == coding) {
            Some((_, FormState::Made { bytes, .. })) => return CodedLookup::Ready(bytes.clone()),
            Some(_) => return CodedLookup::Unavailable,
            None => {}
        }
        if running.fetch_add(1, Ordering::Relaxed) >= jobs_max {
            running.fetch_sub(1, Ordering::Relaxed);
            return CodedLookup::Unavailable;
        }
        forms.push((coding, FormState::Running));
        CodedLookup::Start(CodingJob { forms: self.clone(), coding, running: running.clone() })
    }

    /// Returns the bytes of all forms.
    pub(crate) fn held_bytes(&self) -> u64 {
        let bytes = |state: &FormState| match state {
            FormState::Made { bytes, .. } => bytes.len() as u64,
            _ => 0,
        };
        self.forms().iter().map(|(_, state)| bytes(state)).sum()
    }

    fn set(&self, coding: Coding, state: Option<FormState>) {
        let mut forms = self.forms();
        forms.retain(|(other, _)| *other != coding);
        forms.extend(state.map(|state| (coding, state)));
    }

    fn forms(&self) -> MutexGuard<'_, Vec<(Coding, FormState)>> {
        self.forms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CodingJob {
    /// Returns the coding.
    #[must_use]
    pub fn coding(&self) -> Coding {
        self.coding
    }

    /// Whether the job belongs to this content.
    pub(crate) fn is_of(&self, forms: &Arc<CodedForms>) -> bool {
        Arc::ptr_eq(&self.forms, forms)
    }

    /// Stores the compressed bytes; `None` if they are not smaller.
    pub(crate) fn store(&self, compressed: Option<Arc<[u8]>>, account: &Account) {
        let state = compressed.map_or(FormState::Useless, |bytes| {
            let _held = HeldBytes::new(account, bytes.len() as u64);
            FormState::Made { bytes, _held }
        });
        self.forms.set(self.coding, Some(state));
    }
}

impl Drop for CodingJob {
    fn drop(&mut self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
        let is_running = |(other, state): &(Coding, FormState)| {
            *other == self.coding && matches!(state, FormState::Running)
        };
        self.forms.forms().retain(|form| !is_running(form));
    }
}

impl fmt::Debug for CodedForms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.held_bytes())
    }
}

impl fmt::Debug for CodingJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CodingJob").field("coding", &self.coding).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use http::{Coding, Fields, Status};

    use super::CodedLookup;
    use crate::object::Object;
    use crate::object::tests::{freshness, object};
    use crate::store::tests::{MIB, cache, put};
    use crate::vary::RequestVariant;

    const JOBS_MAX: usize = 8;

    #[test]
    fn compressed_form_is_created_once_and_accounted() {
        let (cache, held) = cache(64 * MIB);
        put(&cache, "http://a/", object(&[], &"x".repeat(100_000))).unwrap();
        let object = cache.find(b"http://a/").unwrap().objects()[0].clone();
        let before = cache.stats().bytes;
        let CodedLookup::Start(job) = cache.coded(&object, Coding::Gzip) else { panic!() };
        assert!(matches!(cache.coded(&object, Coding::Gzip), CodedLookup::Unavailable), "under way");
        drop(job);
        let CodedLookup::Start(job) = cache.coded(&object, Coding::Gzip) else { panic!("begun again") };
        cache.add_coded(b"http://a/", &job, Some([1; 300][..].into()));
        drop(job);
        let CodedLookup::Start(job) = cache.coded(&object, Coding::Brotli) else { panic!() };
        cache.add_coded(b"http://a/", &job, None);
        drop(job);
        assert!(matches!(cache.coded(&object, Coding::Brotli), CodedLookup::Unavailable), "not smaller");
        let CodedLookup::Ready(made) = cache.coded(&object, Coding::Gzip) else { panic!() };
        assert_eq!((made.len(), cache.stats().bytes), (300, before + 300));
        assert_eq!(held.load(Ordering::Relaxed) as u64, before + 300);
        // The object updated by a 304 shares the content and its compressed forms.
        let variant = RequestVariant::default();
        let freshness = freshness(100, 10);
        let again = Object::new(Status::OK, Fields::new(), object.body.clone(), variant, freshness);
        put(&cache, "http://a/", again).unwrap();
        let again = cache.find(b"http://a/").unwrap().objects()[0].clone();
        assert!(matches!(cache.coded(&again, Coding::Gzip), CodedLookup::Ready(_)));
        drop(object);
        assert_eq!(held.load(Ordering::Relaxed) as u64, cache.stats().bytes);
        drop((again, made));
        cache.invalidate(b"http://a/", 100);
        drop(cache);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn concurrent_compression_jobs_are_limited() {
        let (cache, _) = cache(64 * MIB);
        let objects: Vec<Object> = (0..=JOBS_MAX).map(|_| object(&[], "x")).collect();
        let jobs: Vec<_> = objects.iter().map(|object| cache.coded(object, Coding::Gzip)).collect();
        let begun = jobs.iter().filter(|job| matches!(job, CodedLookup::Start(_))).count();
        assert_eq!(begun, JOBS_MAX);
        drop(jobs);
        assert!(matches!(cache.coded(&objects[JOBS_MAX], Coding::Gzip), CodedLookup::Start(_)));
    }
}
