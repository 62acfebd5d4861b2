//! Certificates of authorities in ConfigMaps, by which clients and servers are verified.

use std::collections::BTreeMap;

use net::ClientCertificates;

use crate::grants::{CrossReference, is_reference_allowed};
use crate::objects::{GATEWAY_GROUP, ObjectKey, ObjectReference, Objects};
use crate::options::MEMORY_FOLDER;

/// Why a reference to certificates of authorities is not resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuthorityFault {
    /// Another kind than ConfigMap.
    Kind,
    /// No ReferenceGrant allows it.
    NotPermitted,
    /// The ConfigMap does not exist, or has no valid certificates.
    Invalid,
}

/// Resolves the references of an object of `kind` in `namespace` to files in memory. Returns the files that are valid, and the first
/// fault.
pub(crate) fn resolve_authorities(
    objects: &Objects,
    (kind, namespace): (&str, &str),
    references: &[ObjectReference],
    files: &mut BTreeMap<String, Vec<u8>>,
) -> (Vec<String>, Option<(AuthorityFault, String)>) {
    let mut paths = Vec::new();
    let mut fault = None;
    for reference in references {
        match resolve_authority(objects, (kind, namespace), reference) {
            Ok((path, content)) => {
                files.insert(path.clone(), content);
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
            Err(found) => _ = fault.get_or_insert(found),
        }
    }
    (paths, fault)
}

fn resolve_authority(
    objects: &Objects,
    (kind, namespace): (&str, &str),
    reference: &ObjectReference,
) -> Result<(String, Vec<u8>), (AuthorityFault, String)> {
    let is_config_map = reference.group.as_deref().is_none_or(str::is_empty)
        && reference.kind.as_deref().is_none_or(|kind| kind == "ConfigMap");
    if !is_config_map {
        let text = format!(
            "{} is not supported: certificates of authorities are in ConfigMaps",
            reference.kind.as_deref().unwrap_or_default()
        );
        return Err((AuthorityFault::Kind, text));
    }
    let key = ObjectKey::new(reference.namespace.as_deref().unwrap_or(namespace), &reference.name);
    let cross = CrossReference {
        from_group: GATEWAY_GROUP,
        from_kind: kind,
        from_namespace: namespace,
        to_group: "",
        to_kind: "ConfigMap",
        to: &key,
    };
    // Asked first, so that a reference does not reveal whether the ConfigMap exists.
    if !is_reference_allowed(objects, &cross) {
        let text = format!(
            "no ReferenceGrant in the namespace {} allows this {kind} the ConfigMap {}",
            key.namespace, key.name
        );
        return Err((AuthorityFault::NotPermitted, text));
    }
    let invalid = |text: String| (AuthorityFault::Invalid, text);
    let found = objects.config_maps.get(&key).and_then(|map| map.data.get("ca.crt"));
    let pem = found.ok_or_else(|| invalid(format!("there is no ConfigMap {key} with a ca.crt")))?;
    ClientCertificates::check_authority(pem.as_bytes())
        .map_err(|error| invalid(format!("ca.crt of the ConfigMap {key}: {error}")))?;
    let folder = format!("{MEMORY_FOLDER}/configmap/{}/{}", key.namespace, key.name);
    Ok((format!("{folder}/{}/ca.crt", content_id(&[pem.as_bytes()])), pem.clone().into_bytes()))
}

/// A number of contents, for the names of files: what names a file then changes with its content. It tells states of one
/// object apart, not objects: FNV-1a.
pub(crate) fn content_id(contents: &[&[u8]]) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in contents.iter().flat_map(|content| content.iter().chain(&[0])) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("{hash:016x}")
}
