//! The fields of a parsed head, and the set of known names among them.

use std::ops::{Bound, Deref, RangeBounds};

use crate::name::{Name, NameSet};
use crate::span::Span;

/// One field line of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The known name of the field.
    pub id: Name,
    /// The name as sent.
    pub name: Span,
    /// The value without surrounding white space.
    pub value: Span,
}

/// The fields of a head, in order, with the set of known names among them, so that a lookup of an absent
/// field needs no search. Reused from head to head.
#[derive(Clone, Debug, Default)]
pub struct FieldList {
    fields: Vec<Field>,
    names: NameSet,
}

impl Deref for FieldList {
    type Target = [Field];

    #[inline]
    fn deref(&self) -> &[Field] {
        &self.fields
    }
}

impl FieldList {
    /// Appends a field.
    #[inline]
    pub fn push(&mut self, field: Field) {
        self.names = self.names.with(field.id);
        self.fields.push(field);
    }

    /// The set of names of the fields.
    #[must_use]
    #[inline]
    pub fn names(&self) -> NameSet {
        self.names
    }

    /// Whether there is a field of this name.
    #[must_use]
    #[inline]
    pub fn has(&self, id: Name) -> bool {
        self.names.has(id)
    }

    /// The fields of this name, in order.
    #[inline]
    pub fn named(&self, id: Name) -> impl DoubleEndedIterator<Item = &Field> {
        let fields = if self.has(id) { &self.fields[..] } else { &[] };
        fields.iter().filter(move |field| field.id == id)
    }

    /// The value of the first field of this name.
    #[must_use]
    #[inline]
    pub fn value<'b>(&self, buffer: &'b [u8], id: Name) -> Option<&'b [u8]> {
        self.named(id).next().map(|field| field.value.of(buffer))
    }

    /// Removes all fields; keeps the memory.
    pub fn clear(&mut self) {
        self.fields.clear();
        self.names = NameSet::default();
    }

    /// Replaces the field at index `at`.
    ///
    /// # Panics
    /// If `at` is out of bounds.
    pub fn replace(&mut self, at: usize, field: Field) {
        self.fields[at] = field;
        self.count_names();
    }

    /// Keeps only the fields for which `keeps` returns true.
    pub fn retain(&mut self, keeps: impl FnMut(&Field) -> bool) {
        self.fields.retain(keeps);
        self.count_names();
    }

    /// Removes the fields in a range.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub fn remove(&mut self, range: impl RangeBounds<usize>) {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        drop(self.fields.drain::<(Bound<usize>, Bound<usize>)>(bounds));
        self.count_names();
    }

    /// Memory held by the list, in bytes.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.fields.capacity() * size_of::<Field>()
    }

    fn count_names(&mut self) {
        self.names = self.fields.iter().fold(NameSet::default(), |names, field| names.with(field.id));
    }
}

impl<'l> IntoIterator for &'l FieldList {
    type Item = &'l Field;
    type IntoIter = std::slice::Iter<'l, Field>;

    fn into_iter(self) -> Self::IntoIter {
        self.fields.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[Name]) -> FieldList {
        let mut list = FieldList::default();
        for (at, &id) in names.iter().enumerate() {
            list.push(Field { id, name: Span::new(at, at + 1), value: Span::EMPTY });
        }
        list
    }

    #[test]
    fn name_set_stays_consistent_when_the_list_changes() {
        let check = |list: &FieldList, names: &[Name]| {
            assert_eq!(list.iter().map(|field| field.id).collect::<Vec<_>>(), names);
            for id in [Name::Other, Name::Accept, Name::Host, Name::Via, Name::XForwardedProto] {
                let count = names.iter().filter(|&&name| name == id).count();
                assert_eq!((list.has(id), list.named(id).count()), (count > 0, count), "{id:?} in {names:?}");
                assert_eq!(list.value(b"abc", id).is_some(), count > 0);
            }
        };
        let mut fields = list(&[Name::Host, Name::Other, Name::Via, Name::Other]);
        check(&fields, &[Name::Host, Name::Other, Name::Via, Name::Other]);
        assert!(fields.names().intersects(NameSet::of(&[Name::Via, Name::Accept])));
        assert!(!fields.names().intersects(NameSet::of(&[Name::Te, Name::Accept])));
        fields.replace(0, Field { id: Name::XForwardedProto, name: Span::EMPTY, value: Span::EMPTY });
        check(&fields, &[Name::XForwardedProto, Name::Other, Name::Via, Name::Other]);
        fields.retain(|field| field.id != Name::Via);
        check(&fields, &[Name::XForwardedProto, Name::Other, Name::Other]);
        fields.remove(..2);
        check(&fields, &[Name::Other]);
        fields.push(Field { id: Name::Via, name: Span::EMPTY, value: Span::EMPTY });
        fields.remove(0..=0);
        check(&fields, &[Name::Via]);
        fields.clear();
        check(&fields, &[]);
    }
}
