//! The header fields of requests, as conditions see them.

/// The header fields of a request.
pub trait ConditionFields {
    /// Whether a field of this name, which is in lower case, has a value that fits. There may be several of the name.
    fn any_value(&self, name: &str, fits: &mut dyn FnMut(&[u8]) -> bool) -> bool;
}

/// Fields, each name at most once.
impl<'h, F: Fn(&str) -> Option<&'h [u8]>> ConditionFields for F {
    fn any_value(&self, name: &str, fits: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self(name).is_some_and(fits)
    }
}
