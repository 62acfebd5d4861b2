//! Ingresses with the annotations of ingress-nginx.
//!
//! | Module | Owns |
//! |---|---|
//! | `faults` | what is wrong with an Ingress, and whether its paths are closed |
//! | `classes` | which Ingresses are served |
//! | `references` | Secrets, ConfigMaps and URLs that annotations name |
//! | `values` | values of annotations as values of directives |
//! | `guards` | annotations that may refuse requests |
//! | `settings` | all annotations of an Ingress |
//! | `paths` | paths, in the order of ingress-nginx |
//! | `services` | Services as groups of upstream servers |
//! | `site_set` | the Ingresses that are served, and the sites that their hosts become |
//! | `excess` | which Ingresses take more memory than their namespace may have |
//! | `host_claims` | which Ingress has which hosts |
//! | `host_routes` | the routes of hosts |
//! | `hosts` | the order in which Ingresses become hosts and routes |
//!
//! Modules, from low to high; each imports only from those above it.

mod faults;
mod classes;
mod references;
mod values;
mod guards;
mod settings;
mod paths;
mod services;
mod site_set;
mod excess;
mod host_claims;
mod host_routes;
mod hosts;

pub use faults::ObjectEvent;
pub(crate) use hosts::{judge_ingresses, oldest_ingress};
pub(crate) use site_set::{GatewayClaim, IngressSet, IngressState};
