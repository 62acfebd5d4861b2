//! `komainu kubernetes`: objects of the Kubernetes API to a configuration, and their status back.
//!
//! This crate owns the client of the API server, the objects that it has sent, their translation to the tree of a
//! configuration, and the status that is written to them. It never serves a request, and never writes a file: the caller
//! puts each finished configuration in force, as on a reload. Everything that the API server sends is bounded, and the
//! objects of one tenant affect neither those of others nor anything but values of the configuration.
//!
//! | Module | Owns |
//! |---|---|
//! | `policy_words` | which directives a KomainuPolicy has, and in which form |
//! | `policy_spec` | the specification of a KomainuPolicy as directives |
//! | `policy_definition` | the definition of KomainuPolicies for the API server |
//! | `packed` | JSON that is kept as text |
//! | `allowance` | what routes take of the memory, and how much a namespace may have |
//! | `objects` | the fields that are used of each kind, and the store of all objects |
//! | `escape` | values of objects as values of directives |
//! | `grants` | which namespaces may name which objects |
//! | `zones` | endpoints near this replica |
//! | `options` | settings of the translation, and conditions |
//! | `authorities` | certificates of authorities in ConfigMaps |
//! | `listeners` | Gateways and ListenerSets: addresses, conflicts, certificates |
//! | `backend_tls` | BackendTLSPolicies: TLS towards Services |
//! | `backends` | Services and their endpoints as groups of upstream servers |
//! | `policies` | targets, conflicts and references of KomainuPolicies |
//! | `http_route` | the rules of HTTPRoutes as routes |
//! | `grpc_route` | the rules of GRPCRoutes |
//! | `stream_route` | TLSRoutes, TCPRoutes and UDPRoutes as streams |
//! | `attach` | the listeners of a route, and its status |
//! | `ingress` | Ingresses, with the annotations of ingress-nginx |
//! | `gateway_services` | Services of Gateways, with the labels and annotations of their `infrastructure` |
//! | `config_reader` | the tree of a configuration, of which only what has changed is read |
//! | `changes` | what a new configuration changes |
//! | `translate` | changes of objects to a configuration and to statuses, without I/O and clocks |
//! | `status` | what a status becomes, and whether it has to be written |
//! | `events` | which warnings about objects are written as Events, and when |
//! | `controller_status` | the state that `komainu status` and metrics show |
//! | `account` | the address of the API server and the credentials |
//! | `client` | requests, lists and watches |
//! | `lease` | which of several replicas writes statuses |
//! | `tasks` | the Lease, Events, and statuses that wait to be written |
//! | `run` | the thread |
//!
//! Modules, from low to high; each imports only from those above it.

mod policy_words;
mod policy_spec;
pub mod policy_definition;
pub mod packed;
mod allowance;
pub mod objects;
mod escape;
mod grants;
pub mod zones;
pub mod options;
mod authorities;
mod listeners;
mod backend_tls;
mod backends;
mod policies;
mod http_route;
mod grpc_route;
mod stream_route;
mod attach;
pub mod ingress;
pub mod gateway_services;
pub mod config_reader;
pub mod changes;
pub mod translate;
mod status;
mod events;
pub mod controller_status;
pub mod account;
mod client;
mod lease;
mod tasks;
pub mod run;
