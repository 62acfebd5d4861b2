//! Certificates of listeners, and those that they ask clients for.

use std::collections::BTreeMap;

use crate::authorities::{AuthorityFault, content_id, resolve_authorities};
use crate::grants::{CrossReference, is_reference_allowed};
use crate::listeners::judged::{
    ClientCertificate, ConditionFault, JudgedListener, ListenerOwner, ListenerVerification, is_insecure,
};
use crate::objects::{
    GATEWAY_GROUP, Gateway, GatewayListener, ObjectKey, ObjectReference, Objects, TLS_SECRET,
};
use crate::options::MEMORY_FOLDER;

/// Resolves the certificates of a listener that decrypts TLS.
pub(super) fn resolve_certificates(
    objects: &Objects,
    owner: &ListenerOwner<'_>,
    listener: &GatewayListener,
    state: &mut JudgedListener,
    files: &mut BTreeMap<String, Vec<u8>>,
) {
    let tls = listener.tls.clone().unwrap_or_default();
    if tls.mode.as_deref().is_some_and(|mode| mode != "Terminate") {
        state.refused =
            Some(("UnsupportedValue", "an HTTPS listener terminates TLS: `mode: Terminate`".to_owned()));
        return;
    }
    if tls.certificate_refs.is_empty() {
        state.unresolved = Some((
            "InvalidCertificateRef",
            "the listener names no certificate (`certificateRefs`)".to_owned(),
        ));
    }
    for reference in &tls.certificate_refs {
        match resolve_certificate(objects, (owner.kind, &owner.key.namespace), reference, files) {
            Ok(key) if !state.certificates.contains(&key) => state.certificates.push(key),
            Ok(_) => {}
            Err(fault) => state.unresolved = Some(fault),
        }
    }
}

/// Resolves the verification of the clients of an HTTPS listener: that of its port, or the Gateway's default.
pub(super) fn resolve_client_verification(
    objects: &Objects,
    owner: &ListenerOwner<'_>,
    state: &mut JudgedListener,
    files: &mut BTreeMap<String, Vec<u8>>,
) {
    let Some(frontend) = owner.gateway.spec.tls.as_ref().and_then(|tls| tls.frontend.as_ref()) else {
        return;
    };
    let of_port = frontend.per_port.iter().find(|one| one.port == state.port).map(|one| &one.tls);
    let Some(validation) = &of_port.unwrap_or(&frontend.default).validation else { return };
    let namespace = &owner.gateway.metadata.namespace;
    let (authorities, fault) =
        resolve_authorities(objects, ("Gateway", namespace), &validation.authorities, files);
    if let Some((kind, message)) = fault {
        let reason = match kind {
            AuthorityFault::Kind => "InvalidCACertificateKind",
            AuthorityFault::NotPermitted => "RefNotPermitted",
            AuthorityFault::Invalid => "InvalidCACertificateRef",
        };
        state.unresolved.get_or_insert((reason, message));
    }
    if authorities.is_empty() {
        // Clients are not served unverified because of a missing authority.
        let text = "no authority of client certificates is valid: see `ResolvedRefs`".to_owned();
        state.refused.get_or_insert(("NoValidCACertificate", text));
    }
    state.client = Some(ListenerVerification { authorities, is_optional: is_insecure(validation) });
}

/// Resolves the certificate that a Gateway shows to servers.
pub(super) fn client_certificate(
    objects: &Objects,
    key: &ObjectKey,
    gateway: &Gateway,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> Option<Result<ClientCertificate, ConditionFault>> {
    let backend = gateway.spec.tls.as_ref()?.backend.as_ref()?;
    let reference = backend.client_certificate_ref.as_ref()?;
    let mut own = BTreeMap::new();
    let found = resolve_certificate(objects, ("Gateway", &key.namespace), reference, &mut own);
    let found = found.map(|secret| {
        // Of its own, because a changed certificate changes the groups of servers that name it.
        let contents: Vec<&[u8]> = own.values().map(Vec::as_slice).collect();
        let folder = format!("{MEMORY_FOLDER}/client/{}/{}", secret.namespace, secret.name);
        let folder = format!("{folder}/{}", content_id(&contents));
        let (chain_path, key_path) = certificate_paths(&secret);
        let made = ClientCertificate {
            certificate: format!("{folder}/tls.crt"),
            key: format!("{folder}/tls.key"),
            secret,
        };
        for (path, from) in [(&made.certificate, chain_path), (&made.key, key_path)] {
            files.insert(path.clone(), own.remove(&from).unwrap_or_default());
        }
        made
    });
    Some(found.map_err(|(reason, message)| {
        let reason = if reason == "InvalidCertificateRef" { "InvalidClientCertificateRef" } else { reason };
        (reason, message)
    }))
}

/// Names by which the configuration finds the certificate of a Secret, and its key.
pub(crate) fn certificate_paths(secret: &ObjectKey) -> (String, String) {
    let folder = format!("{MEMORY_FOLDER}/secret/{}/{}", secret.namespace, secret.name);
    (format!("{folder}/tls.crt"), format!("{folder}/tls.key"))
}

/// Resolves a certificate that an object of a kind and namespace names, and puts it among the files.
fn resolve_certificate(
    objects: &Objects,
    (from_kind, from_namespace): (&str, &str),
    reference: &ObjectReference,
    files: &mut BTreeMap<String, Vec<u8>>,
) -> Result<ObjectKey, ConditionFault> {
    let key = ObjectKey::new(reference.namespace.as_deref().unwrap_or(from_namespace), &reference.name);
    let (group, kind) = (reference.group.as_deref(), reference.kind.as_deref());
    let invalid = |text: String| ("InvalidCertificateRef", text);
    if group.is_some_and(|group| !group.is_empty()) || kind.is_some_and(|kind| kind != "Secret") {
        return Err(invalid(format!(
            "{} is not supported: certificates are in Secrets",
            kind.unwrap_or_default()
        )));
    }
    let cross = CrossReference {
        from_group: GATEWAY_GROUP,
        from_kind,
        from_namespace,
        to_group: "",
        to_kind: "Secret",
        to: &key,
    };
    // Asked first, so that a reference does not reveal whether the Secret exists.
    if !is_reference_allowed(objects, &cross) {
        let text = format!(
            "no ReferenceGrant in the namespace {} allows this {from_kind} the Secret {}",
            key.namespace, key.name
        );
        return Err(("RefNotPermitted", text));
    }
    let secret = objects.secrets.get(&key).filter(|secret| secret.r#type == TLS_SECRET);
    let secret =
        secret.ok_or_else(|| invalid(format!("there is no Secret {key} of the type kubernetes.io/tls")))?;
    let (chain, private_key) = secret.certificate().map_err(invalid)?;
    let (chain_path, key_path) = certificate_paths(&key);
    files.insert(chain_path, chain);
    files.insert(key_path, private_key);
    Ok(key)
}
