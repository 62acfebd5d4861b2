//! Whether two states of an object have the same meaning.

use crate::objects::fields::{
    BackendTlsPolicy, ConfigMap, EndpointSlice, Gateway, GatewayClass, GrpcRoute, HttpRoute, Ingress,
    IngressClass, KomainuPolicy, ListenerSet, Namespace, ReferenceGrant, Secret, Service, StreamRoute,
};

/// Whether two states of an object have the same meaning: versions do not count.
pub(super) trait SameMeaning {
    fn has_same_meaning(&self, other: &Self) -> bool;

    /// Whether the parts of the status that the next translation reads are the same.
    fn has_same_read_status(&self, other: &Self) -> bool;
}

/// Fields that have a meaning, and behind `=>` the parts of the status that are read.
macro_rules! same_meaning {
    ($($type:ty: $($field:ident),+ $(=> $($part:literal),+)?;)*) => {
        $(impl SameMeaning for $type {
            fn has_same_meaning(&self, other: &Self) -> bool {
                self.metadata.uid == other.metadata.uid
                    && self.metadata.creation_timestamp == other.metadata.creation_timestamp
                    && self.metadata.generation == other.metadata.generation
                    && self.metadata.labels == other.metadata.labels
                    && self.metadata.annotations == other.metadata.annotations
                    $(&& self.$field == other.$field)+
            }

            #[allow(unused_variables, reason = "most kinds have no such part")]
            fn has_same_read_status(&self, other: &Self) -> bool {
                true $($(&& self.status.get($part) == other.status.get($part))+)?
            }
        })*
    };
}

same_meaning! {
    // Statuses have no meaning: they are written.
    GatewayClass: spec;
    Gateway: spec => "addresses", "attachedListenerSets";
    HttpRoute: spec;
    ListenerSet: spec;
    GrpcRoute: spec;
    StreamRoute: spec;
    BackendTlsPolicy: spec;
    KomainuPolicy: spec => "ancestors";
    ReferenceGrant: spec;
    Service: spec, status;
    EndpointSlice: address_type, endpoints, ports;
    Namespace: metadata;
    Secret: data, r#type;
    Ingress: spec;
    IngressClass: spec;
    ConfigMap: data;
}
