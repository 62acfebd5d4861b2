//! A list of connections of one core, which know their indices in it.

use std::cell::RefCell;

/// Entries with stable indices. The index of a removed entry is reused.
#[derive(Debug)]
pub(crate) struct ConnectionSlab<T>(pub(crate) RefCell<SlabEntries<T>>);

#[derive(Debug)]
pub(crate) struct SlabEntries<T> {
    pub(crate) entries: Vec<Option<T>>,
    pub(crate) free: Vec<u32>,
}

impl<T> Default for SlabEntries<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Default for ConnectionSlab<T> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<T> ConnectionSlab<T> {
    /// Adds an entry; returns its index.
    pub(crate) fn add(&self, entry: T) -> u32 {
        let mut places = self.0.borrow_mut();
        if let Some(place) = places.free.pop() {
            places.entries[place as usize] = Some(entry);
            return place;
        }
        places.entries.push(Some(entry));
        // Fits, because there are fewer descriptors than that.
        (places.entries.len() - 1) as u32
    }

    /// Changes an entry.
    pub(crate) fn change(&self, place: u32, change: impl FnOnce(&mut T)) {
        if let Some(entry) = &mut self.0.borrow_mut().entries[place as usize] {
            change(entry);
        }
    }

    /// Removes an entry. Releases the list's memory with the last one.
    pub(crate) fn remove(&self, place: u32) {
        let mut places = self.0.borrow_mut();
        places.entries[place as usize] = None;
        places.free.push(place);
        if places.free.len() == places.entries.len() {
            *places = SlabEntries::default();
        }
    }
}
