//! A small API server: lists, watches with versions, patches of statuses with conflicts, Leases. It can drop watches, forget
//! old versions, be away, and lie.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // test helpers are test code too

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

/// Namespace and name by plural.
type Objects = BTreeMap<(String, String, String), Value>;

#[derive(Default)]
struct State {
    version: u64,
    objects: Objects,
    /// Version, plural, type and object.
    events: Vec<(u64, String, &'static str, Value)>,
    /// Versions below this one are forgotten.
    oldest: u64,
    /// Watches begun before this number are ended.
    watch_epoch: u64,
    is_away: bool,
    /// Patches to refuse as conflicts.
    conflicts: usize,
    patches: Vec<(String, Value)>,
    lists: BTreeMap<String, usize>,
    /// Bytes that answer the list of a plural, over and over.
    lie: Option<(String, Vec<u8>, Vec<u8>, Duration)>,
    /// A line that each watch begins with.
    false_event: Option<Vec<u8>>,
    connections: usize,
}

#[derive(Clone)]
pub struct ApiServer {
    pub address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

const KINDS: [(&str, &str); 12] = [
    ("GatewayClass", "gatewayclasses"),
    ("Gateway", "gateways"),
    ("HTTPRoute", "httproutes"),
    ("KomainuPolicy", "komainupolicies"),
    ("ReferenceGrant", "referencegrants"),
    ("Service", "services"),
    ("EndpointSlice", "endpointslices"),
    ("Namespace", "namespaces"),
    ("Secret", "secrets"),
    ("Ingress", "ingresses"),
    ("IngressClass", "ingressclasses"),
    ("ConfigMap", "configmaps"),
];

impl ApiServer {
    pub fn start() -> ApiServer {
        let listener = crate::rig::listener();
        let server = ApiServer { address: listener.local_addr().unwrap(), state: Arc::default() };
        server.lock().version = 10;
        let theirs = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = theirs.clone();
                server.lock().connections += 1;
                std::thread::spawn(move || server.serve(stream));
            }
        });
        server
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.state.1.notify_all();
    }

    /// Creates an object, or replaces it; its status stays.
    pub fn apply(&self, mut object: Value) {
        self.change(|state| {
            let kind = object["kind"].as_str().unwrap();
            let plural = KINDS.iter().find(|(name, _)| *name == kind).unwrap().1;
            let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
            let key = (plural.to_owned(), text("namespace"), text("name"));
            let known = state.objects.get(&key);
            let generation =
                known.and_then(|known| known["metadata"]["generation"].as_i64()).unwrap_or(0) + 1;
            if let Some(status) = known.map(|known| known["status"].clone()).filter(Value::is_object) {
                object["status"] = status;
            }
            object["metadata"]["generation"] = json!(generation);
            object["metadata"]["uid"] = json!(format!("{plural}-{}", key.2));
            let kind = if known.is_some() { "MODIFIED" } else { "ADDED" };
            state.store(key, object, kind);
        });
    }

    /// Applies each document of a YAML text.
    pub fn apply_yaml(&self, text: &str) {
        import::parse_yaml("objects.yaml", text).unwrap().into_iter().for_each(|object| self.apply(object));
    }

    pub fn delete(&self, plural: &str, namespace: &str, name: &str) {
        self.change(|state| {
            let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
            let mut object = state.objects.remove(&key).unwrap();
            state.version += 1;
            object["metadata"]["resourceVersion"] = json!(state.version.to_string());
            state.events.push((state.version, plural.to_owned(), "DELETED", object));
        });
    }

    pub fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.lock().objects.get(&key).cloned()
    }

    pub fn status(&self, plural: &str, namespace: &str, name: &str) -> Value {
        let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.lock().objects.get(&key).map(|object| object["status"].clone()).unwrap_or_default()
    }

    pub fn set_status(&self, plural: &str, namespace: &str, name: &str, status: Value) {
        self.change(|state| {
            let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
            let mut object = state.objects[&key].clone();
            object["status"] = status;
            state.store(key, object, "MODIFIED");
        });
    }

    /// Ends all watches.
    pub fn drop_watches(&self) {
        self.change(|state| state.watch_epoch += 1);
    }

    /// Forgets all versions before the present one, so that watches have to list again.
    pub fn forget_versions(&self) {
        self.change(|state| {
            state.version += 1;
            state.oldest = state.version;
            state.events.clear();
            state.watch_epoch += 1;
        });
    }

    pub fn set_away(&self, is_away: bool) {
        self.change(|state| {
            state.is_away = is_away;
            state.watch_epoch += 1;
        });
    }

    pub fn refuse_patches(&self, count: usize) {
        self.change(|state| state.conflicts = count);
    }

    /// Answers lists of this plural with the first bytes, and then with the others for ever.
    pub fn lie(&self, plural: &str, first: &[u8], more: &[u8], pause: Duration) {
        self.change(|state| state.lie = Some((plural.to_owned(), first.to_vec(), more.to_vec(), pause)));
    }

    pub fn be_honest(&self) {
        self.change(|state| {
            state.lie = None;
            state.false_event = None;
            state.watch_epoch += 1;
        });
    }

    /// Begins each watch with this line.
    pub fn send_false_event(&self, line: &[u8]) {
        self.change(|state| {
            state.false_event = Some(line.to_vec());
            state.watch_epoch += 1;
        });
    }

    pub fn patches(&self) -> Vec<(String, Value)> {
        self.lock().patches.clone()
    }

    pub fn connections(&self) -> usize {
        self.lock().connections
    }

    pub fn list_count(&self, plural: &str) -> usize {
        self.lock().lists.get(plural).copied().unwrap_or(0)
    }

    /// Answers the requests of a connection.
    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        while self.serve_request(&mut reader, &mut stream)? {}
        None
    }

    /// Answers a request. Returns whether another one may follow.
    fn serve_request(&self, reader: &mut BufReader<TcpStream>, stream: &mut TcpStream) -> Option<bool> {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut length = 0;
        loop {
            let mut field = String::new();
            reader.read_line(&mut field).ok()?;
            if field.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = field.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        if self.lock().is_away {
            return None;
        }
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let parts: Vec<&str> = path.split('/').collect();
        let parameter =
            |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        // Everything behind the version of the API.
        let rest = if parts[1] == "api" { &parts[3..] } else { &parts[4..] };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let plural = rest[0].to_owned();
        if plural == "leases" {
            let answer = self.serve_lease(&method, namespace, rest.get(1), &body);
            return answer_json(stream, answer.0, &answer.1).map(|()| true);
        }
        let answered = match (method.as_str(), rest) {
            ("GET", [_]) if parameter("watch").is_some() => {
                let since = parameter("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
                self.serve_watch(
                    stream.try_clone().ok()?,
                    &plural,
                    since,
                    &TypeSelector::of(parameter("fieldSelector")),
                )?;
                return None;
            }
            ("GET", [_]) => {
                let selector = TypeSelector::of(parameter("fieldSelector"));
                self.serve_list(stream.try_clone().ok()?, &plural, namespace, &selector)
            }
            ("POST", ["events"]) => {
                let (status, answer) = self.create_event(namespace, body);
                answer_json(stream, status, &answer)
            }
            // Applied as a whole.
            ("PATCH", [_, _]) if parameter("fieldManager").is_some() => {
                self.apply(body.clone());
                answer_json(stream, 200, &body)
            }
            ("PATCH", [_, name, "status"]) => {
                let (status, answer) = self.patch(&plural, namespace, name, &body);
                answer_json(stream, status, &answer)
            }
            _ => answer_json(stream, 404, &json!({ "kind": "Status", "message": "not found" })),
        };
        answered.map(|()| true)
    }

    fn serve_list(
        &self,
        mut stream: TcpStream,
        plural: &str,
        namespace: &str,
        selector: &TypeSelector,
    ) -> Option<()> {
        let (list, lie) = {
            let mut state = self.lock();
            *state.lists.entry(plural.to_owned()).or_default() += 1;
            let of_kind = state
                .objects
                .iter()
                .filter(|((kind, of, _), _)| kind == plural && (namespace.is_empty() || of == namespace));
            let items: Vec<&Value> =
                of_kind.map(|(_, object)| object).filter(|object| selector.selects(object)).collect();
            let list =
                json!({ "metadata": { "resourceVersion": state.version.to_string() }, "items": items });
            (list, state.lie.clone().filter(|(kind, ..)| kind == plural))
        };
        let Some((_, first, more, pause)) = lie else { return answer_json(&mut stream, 200, &list) };
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").ok()?;
        stream.write_all(&first).ok()?;
        while self.lock().lie.is_some() {
            stream.write_all(&more).ok()?;
            std::thread::sleep(pause);
        }
        None
    }

    fn serve_watch(
        &self,
        mut stream: TcpStream,
        plural: &str,
        mut since: u64,
        selector: &TypeSelector,
    ) -> Option<()> {
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
            .ok()?;
        let mut state = self.lock();
        let epoch = state.watch_epoch;
        if let Some(line) = state.false_event.clone() {
            drop(state);
            send_chunk(&mut stream, &line)?;
            state = self.lock();
        }
        if since < state.oldest {
            let error =
                json!({ "type": "ERROR", "object": { "kind": "Status", "code": 410, "message": "too old" } });
            drop(state);
            send_chunk(&mut stream, format!("{error}\n").as_bytes())?;
            return stream.write_all(b"0\r\n\r\n").ok();
        }
        loop {
            if state.watch_epoch != epoch {
                return None;
            }
            // Versions ascend.
            let first = state.events.partition_point(|(version, ..)| *version <= since);
            let new: Vec<(u64, Value)> = state.events[first..]
                .iter()
                .filter(|(_, kind, _, object)| kind == plural && selector.selects(object))
                .map(|(version, _, kind, object)| (*version, json!({ "type": kind, "object": object })))
                .collect();
            if new.is_empty() {
                since = since.max(state.version);
                state = self.state.1.wait(state).unwrap();
                continue;
            }
            drop(state);
            for (version, event) in new {
                since = version;
                send_chunk(&mut stream, format!("{event}\n").as_bytes())?;
            }
            let bookmark = json!({ "type": "BOOKMARK", "object": { "metadata": { "resourceVersion": since.to_string() } } });
            send_chunk(&mut stream, format!("{bookmark}\n").as_bytes())?;
            state = self.lock();
        }
    }

    fn patch(&self, plural: &str, namespace: &str, name: &str, patch: &Value) -> (u16, Value) {
        let mut answer = (404, json!({ "message": "not found" }));
        self.change(|state| {
            let key = (plural.to_owned(), namespace.to_owned(), name.to_owned());
            let Some(mut object) = state.objects.get(&key).cloned() else { return };
            let is_stale = patch["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"];
            if is_stale || state.conflicts > 0 {
                state.conflicts = state.conflicts.saturating_sub(1);
                answer = (409, json!({ "message": "the object has been modified" }));
                return;
            }
            state.patches.push((format!("{plural}/{namespace}/{name}"), patch["status"].clone()));
            object["status"] = patch["status"].clone();
            answer = (200, state.store(key, object, "MODIFIED"));
        });
        answer
    }

    fn create_event(&self, namespace: &str, event: Value) -> (u16, Value) {
        let mut answer = (409, json!({ "message": "already exists" }));
        self.change(|state| {
            let name = event["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            let key = ("events".to_owned(), namespace.to_owned(), name);
            if !state.objects.contains_key(&key) {
                answer = (201, state.store(key, event, "ADDED"));
            }
        });
        answer
    }

    /// Reasons and notes of the Events about an object.
    pub fn events_about(&self, namespace: &str, name: &str) -> Vec<(String, String)> {
        let state = self.lock();
        let events =
            state.objects.iter().filter(|((plural, of, _), _)| plural == "events" && of == namespace);
        let about = events.filter(|(_, event)| event["regarding"]["name"] == name).map(|(_, event)| {
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            (text("reason"), text("note"))
        });
        about.collect()
    }

    fn serve_lease(&self, method: &str, namespace: &str, name: Option<&&str>, body: &Value) -> (u16, Value) {
        let mut answer = (404, json!({ "message": "no lease" }));
        self.change(|state| {
            let name = name.map_or_else(
                || body["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                |name| (*name).to_owned(),
            );
            let key = ("leases".to_owned(), namespace.to_owned(), name);
            let known = state.objects.get(&key).cloned();
            answer = match (method, known) {
                ("GET", Some(known)) => (200, known),
                ("POST", None) => (201, state.store(key, body.clone(), "ADDED")),
                ("PUT", Some(known))
                    if known["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"] =>
                {
                    (200, state.store(key, body.clone(), "MODIFIED"))
                }
                ("POST" | "PUT", _) => (409, json!({ "message": "conflict" })),
                _ => return,
            };
        });
        answer
    }

    /// The replica that holds the Lease.
    pub fn lease_holder(&self) -> Option<String> {
        let state = self.lock();
        let lease = state.objects.iter().find(|((plural, ..), _)| plural == "leases")?.1;
        lease["spec"]["holderIdentity"].as_str().map(str::to_owned)
    }
}

/// Conditions of a Secret's type: `type=TYPE` and `type!=TYPE`.
struct TypeSelector(Vec<(bool, String)>);

impl TypeSelector {
    fn of(parameter: Option<&str>) -> TypeSelector {
        let text = parameter.unwrap_or_default().replace("%3D", "=").replace("%2F", "/");
        let conditions = text.split(',').filter_map(|condition| {
            let (name, kind) = condition.split_once('=')?;
            Some((name == "type", kind.to_owned()))
        });
        TypeSelector(conditions.collect())
    }

    fn selects(&self, object: &Value) -> bool {
        let kind = object["type"].as_str().unwrap_or("Opaque");
        self.0.iter().all(|(is_wanted, of)| (kind == of) == *is_wanted)
    }
}

impl State {
    fn store(&mut self, key: (String, String, String), mut object: Value, kind: &'static str) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.events.push((self.version, key.0.clone(), kind, object.clone()));
        self.objects.insert(key, object.clone());
        object
    }
}

fn send_chunk(stream: &mut TcpStream, bytes: &[u8]) -> Option<()> {
    stream.write_all(format!("{:x}\r\n", bytes.len()).as_bytes()).ok()?;
    stream.write_all(bytes).ok()?;
    stream.write_all(b"\r\n").ok()
}

fn answer_json(stream: &mut TcpStream, status: u16, value: &Value) -> Option<()> {
    let text = value.to_string();
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(text.as_bytes()).ok()
}
