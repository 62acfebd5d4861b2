//! The sites of Ingresses, which are judged together.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use config::{Finding, Site};
use settings::node::Node;

use crate::backends::{BackendGroup, BackendReads};
use crate::config_reader::{ConfigReader, ReadSite};
use crate::ingress::{GatewayClaim, IngressSet, IngressState};
use crate::listeners::{JudgedListener, ListenerProtocol};
use crate::translate::known_routes::PieceState;

/// All Ingresses, with their sites.
#[derive(Default)]
pub(super) struct KnownIngresses {
    pub(super) set: Option<IngressSet>,
    groups: BTreeSet<String>,
    /// Objects that were looked up.
    pub(super) reads: BackendReads,
    /// Addresses and hosts that Gateways want.
    claims: BTreeMap<(String, String), GatewayClaim>,
    states: Vec<PieceState>,
    sites: Vec<ReadSite>,
    trees: Vec<Node>,
    is_due: bool,
}

impl KnownIngresses {
    /// Whether there are Ingresses.
    pub(super) fn has_any(&self) -> bool {
        self.set.as_ref().is_some_and(|set| set.len() > 0)
    }

    /// Whether connections are passed to endpoints, which the streams name then.
    pub(super) fn passes_through(&self) -> bool {
        self.set.as_ref().is_some_and(IngressSet::passes_through)
    }

    /// Takes over Ingresses that were judged.
    pub(super) fn replace(&mut self, set: IngressSet, reads: BackendReads) {
        (self.set, self.reads, self.is_due) = (Some(set), reads, true);
    }

    /// Takes over the groups that Ingresses use. Returns those before.
    pub(super) fn replace_groups(&mut self, groups: &BTreeMap<String, BackendGroup>) -> BTreeSet<String> {
        std::mem::replace(&mut self.groups, groups.keys().cloned().collect())
    }

    /// Notes that groups are others to the sites that name them.
    pub(super) fn note_groups(&mut self, groups: &BTreeSet<String>) {
        self.is_due |= self.sites.iter().any(|site| site.names_any(groups));
    }

    /// Whether the sites have to be made anew.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// Leaves out the hosts that Gateways have. `claims` are those that they want, `are_others` is whether the listeners are others.
    pub(super) fn yield_hosts<'l>(
        &mut self,
        claims: BTreeMap<(String, String), GatewayClaim>,
        listeners: impl Iterator<Item = &'l JudgedListener>,
        are_others: bool,
    ) {
        let is_same = !are_others && !self.is_due && self.claims == claims;
        let Some(set) = self.set.as_mut().filter(|_| !is_same) else { return };
        let listeners = listeners.filter(|listener| listener.takes_address()).flat_map(taken_addresses);
        set.yield_hosts(&claims, listeners);
        self.claims = claims;
        self.states = vec![PieceState::Whole; set.len()];
        self.is_due = true;
    }

    /// Makes and reads the sites, if they are due. Returns findings with the number of the Ingress.
    pub(super) fn refresh(
        &mut self,
        unusable: &BTreeMap<String, String>,
        reader: &mut ConfigReader,
    ) -> Vec<(Option<usize>, Finding)> {
        let Some(set) = self.set.as_ref().filter(|_| self.is_due) else { return Vec::new() };
        let known: HashMap<[u64; 2], &ReadSite> = self.sites.iter().map(|site| (site.id(), site)).collect();
        let trees = set.sites(1, &self.ingress_states(), unusable);
        let (mut sites, mut findings) = (Vec::new(), Vec::new());
        for tree in &trees {
            let find = |_, id| known.get(&id).map(|site| (*site).clone());
            for read in reader.read_sites(vec![tree.clone()], &find) {
                match read {
                    Ok(site) => sites.push(site),
                    Err(found) => findings.extend(
                        found.into_iter().map(|finding| (finding.span.start.checked_sub(1), finding)),
                    ),
                }
            }
        }
        self.is_due = !findings.is_empty();
        if findings.is_empty() {
            (self.sites, self.trees) = (sites, trees);
        }
        findings
    }

    /// Returns the streams, each at the place of its Ingress: 1 and up.
    pub(super) fn streams(&self, unusable: &BTreeMap<String, String>) -> Vec<Node> {
        let set = self.set.as_ref();
        set.map(|set| set.streams(1, &self.ingress_states(), unusable)).unwrap_or_default()
    }

    fn ingress_states(&self) -> Vec<IngressState> {
        let state = |state: &PieceState| match state {
            PieceState::Whole => IngressState::Whole,
            PieceState::Failing => IngressState::Failing,
            PieceState::Absent => IngressState::Absent,
        };
        self.states.iter().map(state).collect()
    }

    /// Notes a fault in the sites of an Ingress. Returns whether something of it is left that can be served otherwise.
    pub(super) fn reject(&mut self, at: usize, fault: &str) -> bool {
        let Some(state) = self.states.get_mut(at).filter(|state| **state != PieceState::Absent) else {
            return false;
        };
        *state = state.next();
        self.is_due = true;
        if let Some(set) = &mut self.set {
            set.reject(at, fault);
        }
        true
    }

    /// Returns the sites.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Site>> {
        self.sites.iter().map(|site| &site.site)
    }

    /// Returns the trees of the sites.
    pub(super) fn trees(&self) -> &[Node] {
        &self.trees
    }
}

/// Returns the address of a listener, with whether it speaks TLS there; both for what is neither TLS nor HTTP.
fn taken_addresses(listener: &JudgedListener) -> Vec<(String, bool)> {
    let tls: &[bool] = match listener.protocol {
        ListenerProtocol::Http => &[false],
        ListenerProtocol::Https | ListenerProtocol::Tls { .. } => &[true],
        // Its datagrams are those of HTTP/3.
        ListenerProtocol::Udp => &[false],
        ListenerProtocol::Tcp | ListenerProtocol::Other => &[false, true],
    };
    tls.iter().map(|is_tls| (listener.address.clone(), *is_tls)).collect()
}
