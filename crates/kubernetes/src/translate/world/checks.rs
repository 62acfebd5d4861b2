//! The configuration's own checks, and what becomes of objects with faults.

use std::collections::BTreeMap;

use config::{Finding, Severity};
use serde_json::Value;
use settings::node::Node;

use crate::config_reader::ConfigReader;
use crate::objects::Objects;
use crate::translate::known_routes::{PieceState, RouteNumber};
use crate::translate::known_sites::SitePiece;
use crate::translate::known_streams::{STREAM_KINDS, StreamBuilder, excess_of_streams};
use crate::translate::news::News;
use crate::translate::world::{ChangedParts, World, backend_source};

/// Findings with the objects that they concern.
type PlacedFindings = Vec<(Option<SitePiece>, Finding)>;

impl World {
    /// Reads what has changed, and replaces what has faults, until there is none.
    pub(super) fn read(
        &mut self,
        objects: &Objects,
        news: &News<'_>,
        work: &mut ChangedParts,
        reader: &mut ConfigReader,
    ) -> Result<(), String> {
        if news.is_first {
            let base = Node::from(Value::Object(self.options.base.clone()));
            reader.read_base(base).map_err(|findings| join(&findings))?;
        }
        loop {
            let mut findings = PlacedFindings::new();
            if work.streams {
                self.settle_streams(work);
                findings.extend(self.read_streams(reader));
                work.streams = !findings.is_empty();
            }
            self.read_groups(objects, work, reader).map_err(|findings| join(&findings))?;
            self.sites.settle_costs(&self.routes);
            for id in self.sites.take_reconsidered() {
                work.routes.touched.insert(id);
                // What was found when it was read may not be found again: at fewer places, nothing of it may be read.
                if self.routes.get(id).state != PieceState::Whole {
                    self.judge_anew(id, work);
                }
            }
            findings.extend(self.sites.refresh(&self.routes, reader));
            let of_ingresses = self.ingresses.refresh(&self.options.unusable, reader);
            findings
                .extend(of_ingresses.into_iter().map(|(at, finding)| (at.map(SitePiece::Ingress), finding)));
            if findings.is_empty() {
                self.sites.settle();
                return Ok(());
            }
            if !self.reject(&findings, work) {
                let findings: Vec<Finding> = findings.into_iter().map(|(_, finding)| finding).collect();
                return Err(join(&findings));
            }
        }
    }

    /// Finds out which streams fit.
    fn settle_streams(&mut self, work: &mut ChangedParts) {
        let Some(limit) = self.options.namespace_bytes else { return };
        let excess = excess_of_streams(&self.gateways, &self.routes, limit);
        let before = std::mem::replace(&mut self.stream_excess, excess);
        let differs = |id: &RouteNumber| before.contains(id) != self.stream_excess.contains(id);
        let others: Vec<RouteNumber> =
            self.routes.of_kinds(&STREAM_KINDS).map(|(id, _)| id).filter(differs).collect();
        for id in others {
            work.routes.touched.insert(id);
            if self.routes.get(id).state != PieceState::Whole {
                self.judge_anew(id, work);
            }
        }
    }

    fn read_streams(&mut self, reader: &mut ConfigReader) -> PlacedFindings {
        let addresses = self.ingresses.set.as_ref().map(|set| set.addresses()).unwrap_or_default();
        let builder = StreamBuilder {
            gateways: &self.gateways,
            routes: &self.routes,
            sites: &self.sites,
            ingress_addresses: &addresses,
            excess: &self.stream_excess,
        };
        let of_gateways = builder.streams();
        let of_ingresses = self.ingresses.streams(&self.options.unusable);
        let of_ingresses = of_ingresses
            .into_iter()
            .map(|node| (SitePiece::Ingress(node.span.start.saturating_sub(1)), node));
        let (pieces, nodes): (Vec<SitePiece>, Vec<Node>) =
            of_gateways.into_iter().chain(of_ingresses).unzip();
        let nodes: Vec<Node> = nodes.into_iter().enumerate().map(|(at, node)| node.at(at + 1)).collect();
        if self.keeps_trees {
            self.streams.clone_from(&nodes);
        }
        let found = reader.read_streams(nodes).err().unwrap_or_default();
        let piece = |finding: &Finding| Some(*pieces.get(finding.span.start.checked_sub(1)?)?);
        found.into_iter().map(|finding| (piece(&finding), finding)).collect()
    }

    fn read_groups(
        &mut self,
        objects: &Objects,
        work: &mut ChangedParts,
        reader: &mut ConfigReader,
    ) -> Result<(), Vec<Finding>> {
        let source =
            backend_source(objects, &self.endpoints, &self.tls_policies, &self.options, &self.own_addresses);
        let changed = self.groups.take_changed(&source);
        let changed = changed.into_iter().map(|(name, table)| (name, table.map(Node::from)));
        let others = reader.read_groups(changed.collect())?;
        if others.is_empty() {
            return Ok(());
        }
        self.sites.note_groups(&others);
        self.ingresses.note_groups(&others);
        let faulty: Vec<RouteNumber> = self
            .routes
            .all()
            .filter(|(_, route)| route.state != PieceState::Whole && !route.groups.is_disjoint(&others))
            .map(|(id, _)| id)
            .collect();
        faulty.into_iter().for_each(|id| self.judge_anew(id, work));
        Ok(())
    }

    /// Replaces the objects with faults. Returns whether there was something to replace.
    fn reject(&mut self, findings: &PlacedFindings, work: &mut ChangedParts) -> bool {
        let mut faults: BTreeMap<SitePiece, &Finding> = BTreeMap::new();
        for (piece, finding) in findings.iter().filter(|(_, finding)| finding.severity == Severity::Error) {
            if let Some(piece) = piece {
                faults.entry(*piece).or_insert(finding);
            }
        }
        let (mut is_changed, mut has_other_listeners) = (false, false);
        for (piece, finding) in faults {
            let fault = finding.one_line();
            match piece {
                SitePiece::Ingress(at) => {
                    is_changed |= self.ingresses.reject(at, &fault);
                    (work.ingresses, work.streams) = (true, true);
                }
                SitePiece::Route(id) => {
                    let route = self.routes.route_mut(id);
                    if route.state != PieceState::Absent {
                        route.state = route.state.next();
                        route.attached.rejected.get_or_insert(fault);
                        is_changed = true;
                        self.note_state(id, work);
                    }
                }
                SitePiece::Listener((gateway, listener)) => {
                    let rejected = &mut self.gateways.gateways[gateway].listeners[listener].rejected;
                    has_other_listeners |= rejected.is_none();
                    rejected.get_or_insert(fault);
                }
            }
        }
        if has_other_listeners {
            (work.listeners, work.streams) = (true, true);
            self.sites.renew(&self.gateways, &self.policies, &self.routes);
        }
        is_changed || has_other_listeners
    }
}

fn join(findings: &[Finding]) -> String {
    findings.iter().map(Finding::one_line).collect::<Vec<_>>().join("; ")
}
