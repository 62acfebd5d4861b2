//! Changes of a random world: what is translated of each change is the same as a translation of all objects.

use std::collections::BTreeSet;

use fastrand::Rng;
use kubernetes::objects::{ChangedObjects, Kind, ObjectKey, Objects};
use kubernetes::options::{GatewayServiceOptions, TranslateOptions};
use kubernetes::translate::{ClusterConfig, Translator, translate};
use serde_json::{Value, json};

use crate::{put, random_objects, statuses};

/// Steps of a world.
const STEPS: usize = 150;

/// A cluster whose objects change at random.
struct World {
    random: Rng,
    objects: Objects,
    /// The newest document of each object.
    documents: Vec<Value>,
    translator: Translator,
    options: TranslateOptions,
    made: random_objects::RandomObjects,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Rng::with_seed(seed);
        let pool = (1..4).map(|at| format!("10.9.9.{at}").parse().unwrap());
        let options = TranslateOptions {
            pool: if random.bool() { pool.collect() } else { Vec::new() },
            status_addresses: vec!["192.0.2.1".to_owned()],
            // Room for a few routes, so that they push each other out.
            namespace_bytes: random.bool().then_some(64 << 10),
            gateway_services: random.bool().then(|| GatewayServiceOptions {
                kind: "ClusterIP".to_owned(),
                pods: Some(ObjectKey::new("one", "a")),
            }),
            ..TranslateOptions::default()
        };
        let (objects, documents, translator) = (Objects::default(), Vec::new(), Translator::with_trees());
        let mut world = World { random, objects, documents, translator, options, made: Default::default() };
        for document in world.made.lasting() {
            world.put(document);
        }
        for _ in 0..30 {
            let document = world.made.any(&mut world.random);
            world.put(document);
        }
        world
    }

    fn put(&mut self, document: Value) {
        let is_same = |known: &Value| {
            ["kind", "/metadata/namespace", "/metadata/name"].iter().all(|at| {
                let field = |value: &Value| value.get(*at).or_else(|| value.pointer(at)).cloned();
                field(known) == field(&document)
            })
        };
        self.documents.retain(|known| !is_same(known));
        put(&mut self.objects, document.clone());
        self.documents.push(document);
    }

    /// Changes an object or a few. Returns a text about it.
    fn step(&mut self) -> String {
        let mut texts = Vec::new();
        for _ in 0..self.random.usize(1..3) {
            let removable = self.documents.len() > self.made.lasting().len() && self.random.u8(0..4) == 0;
            if removable {
                let first = self.made.lasting().len();
                let at = self.random.usize(first..self.documents.len());
                let document = self.documents.remove(at);
                texts.push(format!("removed {}", name(&document)));
                let (kind, key) = parts(&document);
                self.objects.remove(kind, &key);
            } else {
                let document = self.made.any(&mut self.random);
                texts.push(format!("put {document}"));
                self.put(document);
            }
        }
        if self.random.u8(0..10) == 0 {
            let address = "udp:10.9.9.1:5353".to_owned();
            match self.options.unusable.remove(&address) {
                Some(_) => texts.push("address usable".to_owned()),
                None => _ = self.options.unusable.insert(address, "in use".to_owned()),
            }
        }
        texts.join("\n")
    }

    fn translate(&mut self) -> Result<ClusterConfig, String> {
        let changed = self.objects.take_changed();
        let translation = self.translator.translate(&self.objects, &changed, &self.options)?;
        Ok(self.translator.described(translation))
    }

    /// Writes some statuses and objects, as the controller does.
    fn write(&mut self, made: &ClusterConfig) {
        self.options.assigned.clone_from(&made.assigned);
        for wanted in made.wanted.iter() {
            if self.random.bool() {
                self.put(wanted.object.clone());
            }
        }
        for status in &made.statuses {
            if self.random.u8(0..4) > 0 {
                continue;
            }
            let of = |document: &&mut Value| parts(document) == (status.kind, status.key.clone());
            if let Some(document) = self.documents.iter_mut().find(of) {
                document["status"] = status.status.clone();
                let document = document.clone();
                put(&mut self.objects, document);
            }
        }
    }
}

fn parts(document: &Value) -> (Kind, ObjectKey) {
    let name = document["kind"].as_str().unwrap();
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name).unwrap();
    let text = |key: &str| document["metadata"][key].as_str().unwrap_or_default();
    (kind, ObjectKey::new(text("namespace"), text("name")))
}

fn name(document: &Value) -> String {
    let (kind, key) = parts(document);
    format!("{} {key}", kind.name())
}

/// Returns the first difference of two trees.
fn difference(one: &Value, other: &Value, at: &str) -> Option<String> {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            let none = Value::Null;
            keys.into_iter().find_map(|key| {
                let (one, other) = (one.get(key).unwrap_or(&none), other.get(key).unwrap_or(&none));
                difference(one, other, &format!("{at}/{key}"))
            })
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => one
            .iter()
            .zip(other)
            .enumerate()
            .find_map(|(index, (one, other))| difference(one, other, &format!("{at}/{index}"))),
        _ if one == other => None,
        _ => Some(format!("{at}: {one} instead of {other}")),
    }
}

fn assert_same(found: &ClusterConfig, expected: &ClusterConfig, about: &str) {
    assert_eq!(difference(&found.tree, &expected.tree, ""), None, "{about}");
    let (one, other) = (statuses(found), statuses(expected));
    let differing: Vec<_> =
        one.lines().zip(other.lines()).filter(|(one, other)| one != other).take(2).collect();
    assert_eq!((differing, one.lines().count()), (Vec::new(), other.lines().count()), "{about}");
    assert_eq!(found.statuses, expected.statuses, "{about}");
    assert_eq!(found.files, expected.files, "{about}");
    assert_eq!(found.addresses, expected.addresses, "{about}");
    assert_eq!(found.events, expected.events, "{about}");
    assert_eq!(found.wanted, expected.wanted, "{about}");
    assert_eq!(found.assigned, expected.assigned, "{about}");
    let hosts =
        |made: &ClusterConfig| made.config.sites.iter().map(|site| site.hosts.clone()).collect::<Vec<_>>();
    assert_eq!(hosts(found), hosts(expected), "{about}");
    assert_eq!(found.config.upstreams, expected.config.upstreams, "{about}");
    assert_eq!(found.config.streams.len(), expected.config.streams.len(), "{about}");
    let routes =
        |made: &ClusterConfig| made.config.sites.iter().map(|site| site.routes.clone()).collect::<Vec<_>>();
    for (found, expected) in routes(found).iter().zip(routes(expected)) {
        let (found, expected) = (format!("{found:?}"), format!("{expected:?}"));
        let at = found.bytes().zip(expected.bytes()).position(|(one, other)| one != other);
        let part = |text: &str| at.map(|at| text.chars().skip(at.saturating_sub(200)).take(400).collect());
        assert_eq!(part(&found), part(&expected) as Option<String>, "{about}");
        assert_eq!(found.len(), expected.len(), "{about}");
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    let mut about = "the beginning".to_owned();
    for step in 0..STEPS {
        let found = world.translate();
        let expected = translate(&world.objects, &world.options);
        let about_step = format!("seed {seed}, step {step}: {about}");
        match (found, expected) {
            (Ok(found), Ok(expected)) => {
                assert_same(&found, &expected, &about_step);
                world.write(&found);
            }
            (found, expected) => {
                assert_eq!(found.err(), expected.err(), "{about_step}");
            }
        }
        about = world.step();
    }
}

#[test]
fn changes_of_random_worlds_are_what_a_translation_of_all_objects_is() {
    // KOMAINU_SEEDS=FIRST..LAST: other worlds.
    let given = std::env::var("KOMAINU_SEEDS").unwrap_or_else(|_| "0..12".to_owned());
    let (first, last) = given.split_once("..").expect("KOMAINU_SEEDS=FIRST..LAST");
    for seed in first.parse().unwrap()..last.parse().unwrap() {
        run(seed);
    }
}

/// A Gateway with routes of hosts of their own, one Service for ten of them.
fn many_routes(count: usize) -> Objects {
    let mut objects = crate::objects(include_str!("cases/simple.yaml"));
    for at in 0..count {
        put(&mut objects, counted_route(at, "/"));
    }
    objects
}

fn counted_route(at: usize, path: &str) -> Value {
    json!({
        "kind": "HTTPRoute", "metadata": { "name": format!("r{at}"), "namespace": "shop" },
        "spec": {
            "parentRefs": [{ "name": "web", "namespace": "infra" }],
            "hostnames": [format!("h{at}.example.com")],
            "rules": [{ "matches": [{ "path": { "value": path } }], "backendRefs": [{ "name": "shop", "port": 80 }] }],
        },
    })
}

#[test]
fn a_change_reads_and_writes_what_it_concerns() {
    let mut objects = many_routes(200);
    let (mut translator, options) = (Translator::default(), TranslateOptions::default());
    let first = translator.translate(&objects, &ChangedObjects::new(), &options).unwrap();
    objects.take_changed();
    let before = translator.counts();
    assert!(translator.take_statuses().len() > 200);
    let mut change = |objects: &mut Objects, document: Value| {
        put(objects, document);
        let changed = objects.take_changed();
        let made = translator.translate(objects, &changed, &options).unwrap();
        let concerned: BTreeSet<String> = translator
            .take_statuses()
            .iter()
            .map(|(kind, key, _)| format!("{} {key}", kind.name()))
            .collect();
        (made, translator.counts(), concerned)
    };
    let (made, counts, concerned) = change(&mut objects, counted_route(7, "/other"));
    assert_eq!((counts.sites, counts.groups, counts.bases), (before.sites + 1, before.groups, before.bases));
    assert_eq!(concerned, BTreeSet::new(), "the status is as it was");
    let others = made.config.sites.iter().zip(&first.config.sites);
    assert_eq!(others.filter(|(one, other)| !std::sync::Arc::ptr_eq(one, other)).count(), 1);
    let broken = counted_route(9, "no path");
    let (_, counts, concerned) = change(&mut objects, broken);
    assert_eq!(concerned, BTreeSet::from(["HTTPRoute shop/r9".to_owned()]));
    assert!(counts.sites <= before.sites + 3, "{counts:?}");
    let (_, counts, concerned) = change(&mut objects, counted_route(200, "/"));
    let expected = ["Gateway infra/web", "HTTPRoute shop/r200"].map(str::to_owned);
    assert_eq!(concerned, BTreeSet::from(expected), "a new route, and its Gateway's attachedRoutes");
    assert!(counts.sites <= before.sites + 4, "{counts:?}");
    let endpoints = json!({
        "kind": "EndpointSlice",
        "metadata": { "name": "shop-new", "namespace": "shop", "labels": { "kubernetes.io/service-name": "shop" } },
        "addressType": "IPv4", "ports": [{ "name": "http", "port": 8080 }],
        "endpoints": [{ "addresses": ["10.7.7.7"] }],
    });
    let (_, after, concerned) = change(&mut objects, endpoints);
    assert_eq!((after.sites, after.groups), (counts.sites, counts.groups + 1));
    assert_eq!(concerned, BTreeSet::new());
}
