//! The files of a configuration as one tree.

use serde_json::{Map, Value as Json};
use toml_edit::DocumentMut;

use crate::container::{TreeStep, container};
use crate::json::{TablePosition, table_to_json};
use crate::path::{TreeError, TreePath};

/// The segment for the position after the last item of a list.
const APPEND_SEGMENT: &str = "-";
/// The name of an item without any of the keys that name items.
const UNNAMED: &str = "*";

/// The files of a configuration as one tree; the first file includes the others. Their tables are merged, and
/// their lists of tables are concatenated.
#[derive(Clone, Debug)]
pub struct ConfigTree {
    files: Vec<(String, DocumentMut)>,
    /// Keys whose value, or first value, names an item of a list.
    naming_keys: &'static [&'static str],
    /// Top-level keys whose meaning only the first file may change.
    main_file_keys: &'static [&'static str],
}

/// The location of an item, or of a part of it.
#[derive(Clone, Debug)]
struct ItemLocation {
    file: usize,
    steps: Vec<TreeStep>,
    value: Json,
}

impl ConfigTree {
    /// Parses files, each with its name. `names` are the keys that name the items of a list; keys in `fixed`
    /// are top-level keys of the first file that cannot be changed here.
    ///
    /// # Errors
    /// A file is not valid TOML.
    pub fn parse(
        files: impl IntoIterator<Item = (String, String)>,
        names: &'static [&'static str],
        fixed: &'static [&'static str],
    ) -> Result<ConfigTree, TreeError> {
        let parsed = files.into_iter().map(|(name, text)| match text.parse::<DocumentMut>() {
            Ok(document) => Ok((name, document)),
            Err(error) => Err(TreeError::Invalid(format!("{name} is not TOML: {error}"))),
        });
        let files: Vec<_> = parsed.collect::<Result<_, _>>()?;
        Ok(ConfigTree { files, naming_keys: names, main_file_keys: fixed })
    }

    /// The name and text of each file.
    #[must_use]
    pub fn texts(&self) -> Vec<(String, String)> {
        self.files.iter().map(|(name, document)| (name.clone(), document.to_string())).collect()
    }

    /// Returns the item at a path.
    ///
    /// # Errors
    /// There is no such item.
    pub fn get(&self, path: &TreePath) -> Result<Json, TreeError> {
        let parts = self.locations(path)?;
        merge_values(&parts).ok_or_else(|| self.not_found(path))
    }

    /// Sets an item, whether or not it exists; the position after the last item of a list appends one.
    /// Missing tables on the path are created.
    ///
    /// # Errors
    /// A value that TOML cannot represent, a path through something other than tables and lists, or a key
    /// that cannot be changed.
    pub fn put(&mut self, path: &TreePath, value: &Json) -> Result<(), TreeError> {
        self.check_change(path, value)?;
        let parts = self.locations(path)?;
        match (parts.as_slice(), path.split_last()) {
            ([], Some((parent, last))) => self.add(&parent, last, value),
            ([part], Some(_)) => {
                let part = part.clone();
                self.set(part.file, &part.steps, value)
            }
            _ => self.put_at_locations(path, &merge_values(&parts).unwrap_or_default(), value),
        }
    }

    /// Applies a JSON merge patch (RFC 7396) to a table: keys with `null` are removed, tables are patched
    /// recursively, and other values are set.
    ///
    /// # Errors
    /// As for [`ConfigTree::put`].
    pub fn patch(&mut self, path: &TreePath, patch: &Json) -> Result<(), TreeError> {
        let Json::Object(entries) = patch else { return self.put(path, patch) };
        let parts = self.locations(path)?;
        // In one place and without removals, a single pass suffices, however many keys there are.
        if let ([part], false) = (parts.as_slice(), has_nulls(patch))
            && part.value.is_object()
        {
            let file = part.file;
            let steps = part.steps.clone();
            let value = apply_patch(part.value.clone(), patch);
            self.check_change(path, &value)?;
            let top = self.files[file].1.as_table_mut();
            let lost = || TreeError::Invalid("the path does not lead to a table".to_owned());
            return container(top, TablePosition::Top, &steps).ok_or_else(lost)?.replace_entries(&value);
        }
        let is_table = merge_values(&parts).is_some_and(|value| value.is_object());
        if !is_table {
            return self.put(path, &without_nulls(patch));
        }
        for (key, value) in entries {
            let path = path.join(key.as_str());
            match value {
                Json::Null if self.locations(&path)?.is_empty() => {}
                Json::Null => self.delete(&path)?,
                value => self.patch(&path, value)?,
            }
        }
        Ok(())
    }

    /// Removes an item.
    ///
    /// # Errors
    /// There is no such item.
    pub fn delete(&mut self, path: &TreePath) -> Result<(), TreeError> {
        self.check_change(path, &Json::Null)?;
        if path.is_root() {
            return Err(TreeError::Invalid("the whole configuration cannot be deleted".to_owned()));
        }
        let parts = self.locations(path)?;
        if parts.is_empty() {
            return Err(self.not_found(path));
        }
        for part in parts.iter().rev() {
            let Some((last, mut steps)) = part.steps.split_last() else { continue };
            let top = self.files[part.file].1.as_table_mut();
            let mut is_empty =
                container(top, TablePosition::Top, steps).is_some_and(|mut it| it.remove(last));
            // A container without a line of its own disappears once it is empty.
            while let (true, Some((key, above))) = (is_empty, steps.split_last()) {
                is_empty =
                    container(top, TablePosition::Top, above).is_some_and(|mut it| it.remove_implicit(key));
                steps = above;
            }
        }
        Ok(())
    }

    fn not_found(&self, path: &TreePath) -> TreeError {
        let mut path = path.clone();
        let wanted = path.to_string();
        while let Some((parent, last)) = path.split_last() {
            if let Ok(parts) = self.locations(&parent)
                && let Some(found) = merge_values(&parts)
            {
                let has = match &found {
                    Json::Object(entries) => entries.keys().cloned().collect::<Vec<_>>().join(", "),
                    Json::Array(items) => format!("{} items", items.len()),
                    _ => "a value".to_owned(),
                };
                let place = if parent.is_root() { "the top".to_owned() } else { format!("`{parent}`") };
                return TreeError::NotFound(format!("there is no `{last}` at {place}, which has: {has}"));
            }
            path = parent;
        }
        TreeError::NotFound(format!("there is no `{wanted}`"))
    }

    fn check_change(&self, path: &TreePath, value: &Json) -> Result<(), TreeError> {
        let first = path.segments().first();
        let changes = |key: &str| match first {
            Some(first) => first == key,
            None => {
                self.files
                    .first()
                    .and_then(|(_, document)| table_to_json(document.as_table()).get(key).cloned())
                    != value.get(key).cloned()
            }
        };
        match self.main_file_keys.iter().find(|key| changes(key)) {
            None => Ok(()),
            Some(key) => Err(TreeError::Conflict(format!("`{key}` can only be changed in the file"))),
        }
    }

    /// Locates the item at a path; several locations if several files have a part of it.
    fn locations(&self, path: &TreePath) -> Result<Vec<ItemLocation>, TreeError> {
        let mut parts: Vec<ItemLocation> = (self.files.iter().enumerate())
            .map(|(file, (_, document))| {
                let mut top = table_to_json(document.as_table());
                if file > 0 {
                    self.main_file_keys.iter().for_each(|key| _ = top.remove(*key));
                }
                ItemLocation { file, steps: Vec::new(), value: Json::Object(top) }
            })
            .collect();
        for segment in path.segments() {
            parts = if parts.iter().any(|part| part.value.is_array()) {
                self.find_item(parts, segment)?.into_iter().collect()
            } else {
                parts.into_iter().filter_map(|part| part.child(segment)).collect()
            };
        }
        Ok(parts)
    }

    /// Finds the item of a list, by number or name.
    fn find_item(&self, lists: Vec<ItemLocation>, segment: &str) -> Result<Option<ItemLocation>, TreeError> {
        let items = lists.into_iter().flat_map(ItemLocation::items);
        if let Ok(index) = segment.parse::<usize>() {
            return Ok(items.into_iter().nth(index));
        }
        let mut named = items.filter(|part| self.is_named(&part.value, segment));
        match (named.next(), named.next()) {
            (_, Some(_)) => Err(TreeError::Conflict(format!(
                "several items are named `{segment}`: write the number of one, from 0"
            ))),
            (found, None) => Ok(found),
        }
    }

    fn is_named(&self, item: &Json, wanted: &str) -> bool {
        let Json::Object(entries) = item else { return item.as_str() == Some(wanted) };
        match self.naming_keys.iter().find_map(|key| entries.get(*key)) {
            Some(Json::String(name)) => name == wanted,
            Some(Json::Array(names)) => names.first().and_then(Json::as_str) == Some(wanted),
            Some(_) => false,
            None => wanted == UNNAMED,
        }
    }

    /// Adds an item to the container at a path, which is created if it is missing.
    fn add(&mut self, parent: &TreePath, last: &str, value: &Json) -> Result<(), TreeError> {
        let parts = self.locations(parent)?;
        // A table is extended in the first file that has a part of it, a list at its end.
        let is_list = parts.iter().any(|part| part.value.is_array());
        let Some(part) = (if is_list { parts.last() } else { parts.first() }).cloned() else {
            return self.put(parent, &Json::Object(Map::from_iter([(last.to_owned(), value.clone())])));
        };
        let step = match &part.value {
            Json::Object(_) => TreeStep::Key(last.to_owned()),
            Json::Array(items) => {
                let count: usize = parts.iter().map(|part| part.value.as_array().map_or(0, Vec::len)).sum();
                if last != APPEND_SEGMENT && last.parse() != Ok(count) {
                    return Err(self.not_found(&parent.join(last)));
                }
                TreeStep::Index(items.len())
            }
            _ => return Err(TreeError::Invalid(format!("`{parent}` is neither a table nor a list"))),
        };
        let steps: Vec<TreeStep> = part.steps.into_iter().chain([step]).collect();
        self.set(part.file, &steps, value)
    }

    fn set(&mut self, file: usize, steps: &[TreeStep], value: &Json) -> Result<(), TreeError> {
        let lost = || TreeError::Invalid("the path does not lead to an item".to_owned());
        let (last, above) = steps.split_last().ok_or_else(lost)?;
        let top = self.files[file].1.as_table_mut();
        container(top, TablePosition::Top, above).ok_or_else(lost)?.set(last, value)
    }

    /// Sets an item that is spread over several locations, part by part.
    fn put_at_locations(&mut self, path: &TreePath, before: &Json, value: &Json) -> Result<(), TreeError> {
        match (before, value) {
            (Json::Object(before), Json::Object(entries)) => {
                for key in before.keys().filter(|key| !entries.contains_key(*key)) {
                    self.delete(&path.join(key.as_str()))?;
                }
                let changed = entries.iter().filter(|(key, value)| before.get(*key) != Some(value));
                changed.into_iter().try_for_each(|(key, value)| self.put(&path.join(key.as_str()), value))
            }
            (Json::Array(before), Json::Array(items)) => {
                for at in (items.len()..before.len()).rev() {
                    self.delete(&path.join(at.to_string()))?;
                }
                items.iter().enumerate().try_for_each(|(at, item)| self.put(&path.join(at.to_string()), item))
            }
            _ => Err(TreeError::Conflict(format!(
                "several files have a part of `{path}`: it cannot become something else"
            ))),
        }
    }
}

impl ItemLocation {
    fn child(self, key: &str) -> Option<ItemLocation> {
        let Json::Object(mut entries) = self.value else { return None };
        let value = entries.remove(key)?;
        let steps = self.steps.into_iter().chain([TreeStep::Key(key.to_owned())]).collect();
        Some(ItemLocation { file: self.file, steps, value })
    }

    fn items(self) -> Vec<ItemLocation> {
        let Json::Array(items) = self.value else { return Vec::new() };
        let item = |(at, value)| {
            let steps = self.steps.iter().cloned().chain([TreeStep::Index(at)]).collect();
            ItemLocation { file: self.file, steps, value }
        };
        items.into_iter().enumerate().map(item).collect()
    }
}

/// Merges the parts into one value; `None` if there are none.
fn merge_values(parts: &[ItemLocation]) -> Option<Json> {
    let mut parts = parts.iter().map(|part| part.value.clone());
    let first = parts.next()?;
    Some(parts.fold(first, merge))
}

fn merge(first: Json, more: Json) -> Json {
    match (first, more) {
        (Json::Object(mut first), Json::Object(more)) => {
            for (key, value) in more {
                let both = match first.remove(&key) {
                    Some(known) => merge(known, value),
                    None => value,
                };
                first.insert(key, both);
            }
            Json::Object(first)
        }
        (Json::Array(first), Json::Array(more)) => first.into_iter().chain(more).collect(),
        (first, _) => first,
    }
}

fn has_nulls(value: &Json) -> bool {
    match value {
        Json::Object(entries) => entries.values().any(has_nulls),
        value => value.is_null(),
    }
}

/// Applies a patch without removals to a value.
fn apply_patch(value: Json, patch: &Json) -> Json {
    match (value, patch) {
        (Json::Object(mut value), Json::Object(entries)) => {
            for (key, entry) in entries {
                let before = value.remove(key).unwrap_or_default();
                value.insert(key.clone(), apply_patch(before, entry));
            }
            Json::Object(value)
        }
        (_, patch) => patch.clone(),
    }
}

fn without_nulls(value: &Json) -> Json {
    match value {
        Json::Object(entries) => {
            let kept = entries.iter().filter(|(_, value)| !value.is_null());
            Json::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        other => other.clone(),
    }
}
