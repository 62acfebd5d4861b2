//! State that outlives a reload: counts, caches, queues, connections and threads that a new configuration
//! takes over from the one before.
//!
//! There is one way for all of them: a key says which state a part of a configuration wants, and a closure
//! makes it if the configuration before has none for that key.
//!
//! ```
//! # use reload::KeptState;
//! # use std::sync::{Arc, atomic::AtomicU64};
//! let mut first = KeptState::default();
//! let count = first.keep("site a", || Arc::new(AtomicU64::new(0)));
//!
//! let mut second = first.successor();
//! assert!(Arc::ptr_eq(&count, &second.keep("site a", || Arc::new(AtomicU64::new(0)))));
//! ```
//!
//! This crate owns the keys and the taking over. It never knows what the state is, and never takes anything
//! away from the configuration before, because that one stays in force if the new one fails.

use std::any::{Any, TypeId};
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::fmt;
use std::hash::Hash;

/// The state of one configuration, and what it may still take over from the one before.
#[derive(Default)]
pub struct KeptState {
    available: Shelves,
    in_use: Shelves,
}

/// Shelves by the types of their keys and values.
type Shelves = HashMap<TypeId, Box<dyn AnyShelf>>;

/// Values of one type by their keys, in the order in which they were added.
struct Shelf<K, V>(HashMap<K, VecDeque<V>>);

trait AnyShelf: Send + Sync {
    fn clone_shelf(&self) -> Box<dyn AnyShelf>;
    fn as_any(&mut self) -> &mut dyn Any;
}

/// Keys: compared, and kept beside their value.
pub trait Key: Eq + Hash + Clone + Send + Sync + 'static {}
impl<K: Eq + Hash + Clone + Send + Sync + 'static> Key for K {}

/// Values: shared by their clones, such as an `Arc`.
pub trait Shared: Clone + Send + Sync + 'static {}
impl<V: Clone + Send + Sync + 'static> Shared for V {}

impl<K: Key, V: Shared> AnyShelf for Shelf<K, V> {
    fn clone_shelf(&self) -> Box<dyn AnyShelf> {
        Box::new(Shelf(self.0.clone()))
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

impl fmt::Debug for KeptState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "KeptState({} available, {} in use)", self.available.len(), self.in_use.len())
    }
}

impl KeptState {
    /// Returns the state of the next configuration, which may take over all that this one has in use.
    #[must_use]
    pub fn successor(&self) -> KeptState {
        let available = self.in_use.iter().map(|(types, shelf)| (*types, shelf.clone_shelf())).collect();
        KeptState { available, in_use: Shelves::new() }
    }

    /// Drops what was not taken over.
    pub fn release_unused(&mut self) {
        self.available.clear();
    }

    /// Returns the value of `key` of the configuration before, or a new one. Each value is taken over once: a
    /// key that is asked for again gets the next value, or a new one.
    pub fn keep<K: Key, V: Shared>(&mut self, key: K, make: impl FnOnce() -> V) -> V {
        self.keep_if(key, |_| true, make)
    }

    /// Returns the first value of `key` that `fits`, as [`KeptState::keep`] does.
    pub fn keep_if<K: Key, V: Shared>(
        &mut self,
        key: K,
        fits: impl Fn(&V) -> bool,
        make: impl FnOnce() -> V,
    ) -> V {
        infallible(self.try_keep_if(key, fits, || Ok(make())))
    }

    /// Returns the first value of `key` that `fits`, as [`KeptState::keep`] does.
    ///
    /// # Errors
    /// Returns the error of `make`.
    pub fn try_keep_if<K: Key, V: Shared, E>(
        &mut self,
        key: K,
        fits: impl Fn(&V) -> bool,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E> {
        let value = self.take_if(&key, fits).map_or_else(make, Ok)?;
        Ok(self.put(key, value))
    }

    /// Returns the value of `key` as [`KeptState::keep`] does; all who ask for the same key share one.
    pub fn share<K: Key, V: Shared>(&mut self, key: K, make: impl FnOnce() -> V) -> V {
        infallible(self.try_share(key, || Ok(make())))
    }

    /// Returns the value of `key` as [`KeptState::share`] does.
    ///
    /// # Errors
    /// Returns the error of `make`.
    pub fn try_share<K: Key, V: Shared, E>(
        &mut self,
        key: K,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E> {
        if let Some(known) = shelf::<K, V>(&mut self.in_use).0.get(&key).and_then(VecDeque::front) {
            return Ok(known.clone());
        }
        self.try_keep_if(key, |_| true, make)
    }

    /// Takes the first value of `key` that `fits` from those of the configuration before, for a caller that
    /// decides whether to [put](KeptState::put) it back.
    pub fn take_if<K: Key, V: Shared>(&mut self, key: &K, fits: impl Fn(&V) -> bool) -> Option<V> {
        let values = shelf::<K, V>(&mut self.available).0.get_mut(key)?;
        let index = values.iter().position(fits)?;
        values.remove(index)
    }

    /// Adds a value to those of this configuration and returns it.
    pub fn put<K: Key, V: Shared>(&mut self, key: K, value: V) -> V {
        shelf::<K, V>(&mut self.in_use).0.entry(key).or_default().push_back(value.clone());
        value
    }
}

fn infallible<V>(result: Result<V, Infallible>) -> V {
    match result {
        Ok(value) => value,
        Err(never) => match never {},
    }
}

fn shelf<K: Key, V: Shared>(shelves: &mut Shelves) -> &mut Shelf<K, V> {
    let types = TypeId::of::<Shelf<K, V>>();
    let shelf = shelves.entry(types).or_insert_with(|| Box::new(Shelf::<K, V>(HashMap::new())));
    let shelf = shelf.as_mut().as_any().downcast_mut();
    shelf.unwrap_or_else(|| unreachable!("shelves are stored by their types"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// A value whose clones are told from others by their address.
    fn new() -> Arc<()> {
        Arc::new(())
    }

    fn is_same(one: &Arc<()>, other: &Arc<()>) -> bool {
        Arc::ptr_eq(one, other)
    }

    #[test]
    fn values_are_kept_by_key_and_type() {
        let mut first = KeptState::default();
        let a = first.keep("a", new);
        let b = first.keep("b", new);
        let number = first.keep("a", || 1_u8);
        let mut second = first.successor();
        assert!(is_same(&second.keep("b", new), &b));
        assert!(is_same(&second.keep("a", new), &a));
        assert!(!is_same(&second.keep("c", new), &a));
        assert_eq!(second.keep("a", || 2_u8), number);
    }

    #[test]
    fn equal_keys_keep_their_values_in_order() {
        let mut first = KeptState::default();
        let values = [first.keep("a", new), first.keep("a", new)];
        assert!(!is_same(&values[0], &values[1]));
        let mut second = first.successor();
        assert!(is_same(&second.keep("a", new), &values[0]));
        assert!(is_same(&second.keep("a", new), &values[1]));
        assert!(values.iter().all(|value| !is_same(&second.keep("a", new), value)));
    }

    #[test]
    fn shared_value_is_made_once_for_equal_keys() {
        let mut first = KeptState::default();
        let value = first.share("a", new);
        assert!(is_same(&first.share("a", new), &value));
        let mut second = first.successor();
        assert!(is_same(&second.share("a", new), &value));
        assert!(is_same(&second.share("a", new), &value));
        assert_eq!(second.try_share("b", || Err::<Arc<()>, _>("no")), Err("no"));
    }

    #[test]
    fn only_a_fitting_value_is_kept() {
        let mut first = KeptState::default();
        first.keep("a", || 1_u8);
        first.keep("a", || 2_u8);
        let mut second = first.successor();
        assert_eq!(second.keep_if("a", |value| *value == 2, || 3_u8), 2);
        assert_eq!(second.keep_if("a", |value| *value == 2, || 3_u8), 3);
    }

    #[test]
    fn value_that_was_not_taken_over_is_dropped() {
        let mut first = KeptState::default();
        let value = first.keep("a", new);
        let mut second = first.successor();
        drop(first);
        second.keep("b", new);
        assert_eq!(Arc::strong_count(&value), 2);
        second.release_unused();
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn configuration_in_force_keeps_its_state_if_the_next_one_fails() {
        let mut first = KeptState::default();
        let value = first.keep("a", new);
        let mut failed = first.successor();
        failed.keep("a", new);
        drop(failed);
        assert!(is_same(&first.successor().keep("a", new), &value));
    }
}
