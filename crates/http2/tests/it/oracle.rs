//! This machine at one end and the `h2` crate at the other: many concurrent requests with bodies, trailers
//! and resets, through pipes that cut the bytes anywhere.

use std::collections::HashMap;

use bytes::Bytes;
use http::{Fields, Status};
use http_types::{HeaderMap, Method, Request, Response};
use http2::{ErrorCode, Event, Machine, Options, RequestLine};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

/// Number of requests of one connection.
const REQUESTS: usize = 60;

/// One exchange, derived from a seed: both sides know the expected messages.
#[derive(Clone, Debug)]
struct Plan {
    path: String,
    fields: Vec<(String, String)>,
    request: Vec<u8>,
    response: Vec<u8>,
    status: u16,
    interim: bool,
    /// Trailers of both messages.
    trailers: Option<String>,
    /// Whether the client resets the stream instead of ending its request.
    resets: bool,
}

impl Plan {
    fn new(random: &mut fastrand::Rng, number: usize) -> Plan {
        let mut bytes = |sizes: &[usize]| -> Vec<u8> {
            let len = sizes[random.usize(..sizes.len())];
            let len = random.usize(..=len);
            let first = random.u8(..);
            (0..len).map(|at| first.wrapping_add(at as u8)).collect()
        };
        let request = bytes(&[0, 10, 1000, 100_000]);
        let response = bytes(&[0, 10, 1000, 300_000]);
        let text = |random: &mut fastrand::Rng| -> String {
            (0..random.usize(..40)).map(|_| random.alphanumeric()).collect()
        };
        Plan {
            path: format!("/{number}?{}", text(random)),
            fields: (0..random.usize(..6))
                .map(|at| (format!("x-{at}-{}", random.u8(..4)), text(random)))
                .collect(),
            status: [200, 201, 299, 404, 500][random.usize(..5)],
            interim: random.u8(..5) == 0,
            trailers: random.bool().then(|| text(random)),
            resets: random.u8(..8) == 0,
            request,
            response,
        }
    }

    fn all(seed: u64) -> Vec<Plan> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..REQUESTS).map(|number| Plan::new(&mut random, number)).collect()
    }
}

/// A machine with its pipe: content that waits for windows is sent when they open.
struct Connection {
    machine: Machine,
    is_server: bool,
    pipe: DuplexStream,
    input: Vec<u8>,
    out: Vec<u8>,
    pending: HashMap<u32, (Vec<u8>, Option<String>)>,
    random: fastrand::Rng,
}

impl Connection {
    fn new(machine: Machine, is_server: bool, pipe: DuplexStream, seed: u64) -> Connection {
        let random = fastrand::Rng::with_seed(seed);
        Connection { machine, is_server, pipe, input: vec![], out: vec![], pending: HashMap::new(), random }
    }

    /// The next event; `None` at the end of the pipe.
    async fn next(&mut self) -> Option<(Event, Vec<u8>)> {
        loop {
            let (consumed, event) = match self.machine.feed(&self.input, 0) {
                Ok(fed) => fed,
                Err(error) => panic!("{}", error.reason),
            };
            if event != Event::NeedMore {
                let content = match event {
                    Event::Data { data, .. } => data.of(&self.input).to_vec(),
                    _ => vec![],
                };
                self.input.drain(..consumed);
                return Some((event, content));
            }
            self.input.drain(..consumed);
            self.send();
            if self.pipe.write_all(&std::mem::take(&mut self.out)).await.is_err() {
                return None;
            }
            let mut piece = vec![0; [1, 7, 100, 5000, 70_000][self.random.usize(..5)]];
            match self.pipe.read(&mut piece).await {
                Ok(len @ 1..) => self.input.extend_from_slice(&piece[..len]),
                _ => return None,
            }
        }
    }

    /// Sends as much as the windows allow.
    fn send(&mut self) {
        let mut ended = Vec::new();
        for (&stream, (content, trailers)) in &mut self.pending {
            let sent = self.machine.data(stream, content, trailers.is_none(), &mut self.out);
            content.drain(..sent);
            if content.is_empty() {
                if let Some(text) = trailers {
                    let mut fields = Fields::new();
                    fields.try_push(b"X-Trailer", text.as_bytes()).unwrap();
                    self.machine.send_trailers(stream, &fields, &mut self.out);
                }
                ended.push(stream);
            }
        }
        for stream in ended {
            self.pending.remove(&stream);
            if self.is_server {
                self.machine.release(stream);
            }
        }
        self.machine.flush(&mut self.out);
    }
}

fn number_of(path: &[u8]) -> usize {
    let digits = path[1..].split(|&byte| byte == b'?').next().unwrap();
    std::str::from_utf8(digits).unwrap().parse().unwrap()
}

/// This server: answers as planned and checks the received messages.
async fn our_server(pipe: DuplexStream, plans: Vec<Plan>, options: Options, seed: u64) {
    let mut connection = Connection::new(Machine::server(options), true, pipe, seed);
    let mut bodies: HashMap<u32, (usize, Vec<u8>)> = HashMap::new();
    while let Some((event, content)) = connection.next().await {
        let mut ended = None;
        match event {
            Event::Head { stream, ended: is_end } => {
                let head = &connection.machine.head;
                let bytes = connection.machine.head_bytes();
                let number = number_of(head.target.whole.of(bytes));
                let plan = &plans[number];
                assert_eq!(head.target.whole.of(bytes), plan.path.as_bytes());
                let fields: Vec<_> =
                    head.fields.iter().filter(|field| field.name.of(bytes).starts_with(b"x-")).collect();
                for (field, (name, value)) in fields.iter().zip(&plan.fields) {
                    assert_eq!(
                        (field.name.of(bytes), field.value.of(bytes)),
                        (name.as_bytes(), value.as_bytes())
                    );
                }
                assert_eq!(fields.len(), plan.fields.len());
                bodies.insert(stream, (number, vec![]));
                ended = is_end.then_some(stream);
            }
            Event::Data { stream, ended: is_end, .. } => {
                bodies.get_mut(&stream).unwrap().1.extend_from_slice(&content);
                connection.machine.grant(stream, content.len());
                ended = is_end.then_some(stream);
            }
            Event::Trailers { stream } => {
                let plan = &plans[bodies[&stream].0];
                let trailer = connection.machine.trailers.first(b"x-trailer").map(<[u8]>::to_vec);
                assert_eq!(trailer, plan.trailers.clone().map(String::into_bytes));
                ended = Some(stream);
            }
            Event::Reset { stream, code } => {
                assert_eq!(code, ErrorCode::CANCEL);
                bodies.remove(&stream);
                connection.pending.remove(&stream);
                connection.machine.release(stream);
            }
            Event::Aborted { reason, .. } => panic!("{reason}"),
            _ => {}
        }
        let Some(stream) = ended else { continue };
        let (number, body) = &bodies[&stream];
        let plan = &plans[*number];
        assert!(!plan.resets && *body == plan.request, "{} of {} bytes", body.len(), plan.request.len());
        if plan.interim {
            let hints = connection.machine.respond(stream, Status::EARLY_HINTS, false, &mut connection.out);
            hints.unwrap().field(b"Link", b"</a>; rel=preload");
        }
        let status = Status::of(plan.status).unwrap();
        let mut head = connection.machine.respond(stream, status, false, &mut connection.out).unwrap();
        head.lines(b"Server: komainu\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
        plan.fields.iter().for_each(|(name, value)| head.field(name.as_bytes(), value.as_bytes()));
        if number % 2 == 0 {
            head.content_length(plan.response.len() as u64);
        }
        drop(head);
        connection.pending.insert(stream, (plan.response.clone(), plan.trailers.clone()));
    }
}

fn headers(fields: &[(String, String)]) -> HeaderMap {
    let pairs = fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    pairs.collect::<Vec<(http_types::HeaderName, http_types::HeaderValue)>>().into_iter().fold(
        HeaderMap::new(),
        |mut map, (name, value)| {
            map.append(name, value);
            map
        },
    )
}

fn trailer(text: &str) -> HeaderMap {
    headers(&[("x-trailer".to_owned(), text.to_owned())])
}

/// Compares all values of the names in the plan, name by name: a map does not keep the order of different
/// names.
fn same_fields(map: &HeaderMap, fields: &[(String, String)]) {
    for (name, _) in fields {
        let expected: Vec<&str> =
            fields.iter().filter(|(other, _)| other == name).map(|(_, value)| &value[..]).collect();
        let found: Vec<&str> = map.get_all(name).iter().map(|value| value.to_str().unwrap()).collect();
        assert_eq!(found, expected);
    }
}

async fn body_of(mut body: h2::RecvStream) -> Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
    let mut content = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        content.extend_from_slice(&piece);
        body.flow_control().release_capacity(piece.len())?;
    }
    Ok((content, body.trailers().await?))
}

async fn h2_request(mut client: h2::client::SendRequest<Bytes>, plan: Plan) {
    let method = if plan.request.is_empty() && plan.trailers.is_none() { Method::GET } else { Method::POST };
    let uri = format!("http://a.test{}", plan.path);
    let mut request = Request::builder().method(method).uri(uri).body(()).unwrap();
    *request.headers_mut() = headers(&plan.fields);
    let ends = plan.request.is_empty() && plan.trailers.is_none() && !plan.resets;
    let (response, mut send) = client.send_request(request, ends).unwrap();
    if plan.resets {
        send.send_data(Bytes::from(plan.request), false).unwrap();
        tokio::task::yield_now().await;
        send.send_reset(h2::Reason::CANCEL);
        assert!(response.await.is_err());
        return;
    }
    if !ends {
        send.send_data(Bytes::from(plan.request), plan.trailers.is_none()).unwrap();
        if let Some(text) = &plan.trailers {
            send.send_trailers(trailer(text)).unwrap();
        }
    }
    let response = response.await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["server"]),
        (plan.status, &"komainu".parse().unwrap())
    );
    same_fields(response.headers(), &plan.fields);
    let (content, trailers) = body_of(response.into_body()).await.unwrap();
    assert!(content == plan.response, "{} of {} bytes", content.len(), plan.response.len());
    assert_eq!(trailers, plan.trailers.map(|text| trailer(&text)));
}

fn options(seed: u64) -> Options {
    let small = Options {
        stream_window: 3000,
        connection_window: 65_535,
        table_bytes_max: 100,
        streams_max: 100,
        ..Options::default()
    };
    let large =
        Options { stream_window: 1 << 20, connection_window: 4 << 20, table_bytes_max: 16_384, ..small };
    [Options::default(), small, large][seed as usize % 3]
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[test]
fn server_interoperates_with_the_client_of_the_h2_crate() {
    for seed in 0..12 {
        runtime().block_on(async {
            let (ours, theirs) = duplex([64, 4096, 1 << 20][seed as usize % 3]);
            let plans = Plan::all(seed);
            let server = tokio::spawn(our_server(ours, plans.clone(), options(seed), seed));
            let (client, connection) = h2::client::Builder::new()
                .initial_window_size([65_535, 1000, 1 << 20][seed as usize / 3 % 3])
                .header_table_size([4096, 0, 200][seed as usize % 3])
                .handshake(theirs)
                .await
                .unwrap();
            let connection = tokio::spawn(connection);
            let mut requests = tokio::task::JoinSet::new();
            for plan in plans {
                let client = client.clone().ready().await.unwrap();
                requests.spawn(h2_request(client, plan));
            }
            while let Some(request) = requests.join_next().await {
                request.unwrap();
            }
            drop(client);
            connection.await.unwrap().unwrap();
            server.await.unwrap();
        });
    }
}

async fn h2_server(pipe: DuplexStream, plans: Vec<Plan>, window: u32) {
    let mut builder = h2::server::Builder::new();
    builder.initial_window_size(window).max_concurrent_streams(20);
    let mut connection = builder.handshake::<_, Bytes>(pipe).await.unwrap();
    while let Some(request) = connection.accept().await {
        let (request, respond) = request.unwrap();
        let plan = plans[number_of(request.uri().path().as_bytes())].clone();
        tokio::spawn(h2_answer(request, respond, plan));
    }
}

async fn h2_answer(
    request: Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    plan: Plan,
) {
    assert_eq!(request.uri().path_and_query().unwrap().as_str(), plan.path);
    same_fields(request.headers(), &plan.fields);
    match body_of(request.into_body()).await {
        Ok((content, trailers)) => {
            assert!(!plan.resets && content == plan.request);
            assert_eq!(trailers, plan.trailers.as_ref().map(|text| trailer(text)));
        }
        Err(error) => {
            assert!(plan.resets && error.reason() == Some(h2::Reason::CANCEL), "{error}");
            return;
        }
    }
    let mut response = Response::builder().status(plan.status).body(()).unwrap();
    *response.headers_mut() = headers(&plan.fields);
    let mut send = respond.send_response(response, false).unwrap();
    send.send_data(Bytes::from(plan.response), plan.trailers.is_none()).unwrap();
    if let Some(text) = &plan.trailers {
        send.send_trailers(trailer(text)).unwrap();
    }
}

/// This client: opens streams as the server allows, until every plan is done.
async fn our_client(pipe: DuplexStream, plans: Vec<Plan>, options: Options, seed: u64) {
    let mut connection = Connection::new(Machine::client(options), false, pipe, seed);
    let mut waiting: Vec<usize> = (0..plans.len()).rev().collect();
    let mut done = 0;
    // A stream above the server's limit would be refused, and h2 treats its trailers in flight as an error.
    while !matches!(connection.next().await, Some((Event::Settings, _))) {}
    let mut bodies: HashMap<u32, (usize, Vec<u8>)> = HashMap::new();
    while done < plans.len() {
        while connection.machine.can_request().is_ok()
            && let Some(next) = waiting.pop()
        {
            let plan = &plans[next];
            let line = RequestLine {
                method: b"POST",
                scheme: b"http",
                authority: b"a.test",
                path: plan.path.as_bytes(),
                protocol: None,
            };
            let (stream, mut head) = connection.machine.request(&line, false, &mut connection.out).unwrap();
            plan.fields.iter().for_each(|(name, value)| head.field(name.as_bytes(), value.as_bytes()));
            drop(head);
            if plan.resets {
                connection.machine.data(stream, &plan.request, false, &mut connection.out);
                connection.machine.reset(stream, ErrorCode::CANCEL);
                connection.machine.release(stream);
                done += 1;
            } else {
                bodies.insert(stream, (next, vec![]));
                connection.pending.insert(stream, (plan.request.clone(), plan.trailers.clone()));
            }
        }
        if done == plans.len() {
            break;
        }
        let (event, content) = connection.next().await.expect("the server stays");
        let ended = match event {
            Event::Head { stream, ended } => {
                let plan = &plans[bodies[&stream].0];
                assert_eq!(connection.machine.status.code(), plan.status);
                let bytes = connection.machine.head_bytes();
                let fields = connection.machine.head.fields.iter();
                let mut found: Vec<_> = fields
                    .filter(|field| field.name.of(bytes).starts_with(b"x-"))
                    .map(|field| (field.name.of(bytes), field.value.of(bytes)))
                    .collect();
                let mut expected: Vec<_> =
                    plan.fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
                found.sort_by_key(|field| field.0);
                expected.sort_by_key(|field| field.0);
                assert_eq!(found, expected);
                ended.then_some(stream)
            }
            Event::Data { stream, ended, .. } => {
                bodies.get_mut(&stream).unwrap().1.extend_from_slice(&content);
                connection.machine.grant(stream, content.len());
                ended.then_some(stream)
            }
            Event::Trailers { stream } => {
                let trailer = connection.machine.trailers.first(b"x-trailer").map(<[u8]>::to_vec);
                assert_eq!(trailer, plans[bodies[&stream].0].trailers.clone().map(String::into_bytes));
                Some(stream)
            }
            // h2 counts recently reset streams: a refused request is sent again.
            Event::Reset { stream, code: ErrorCode::REFUSED_STREAM } => {
                waiting.push(bodies.remove(&stream).unwrap().0);
                connection.pending.remove(&stream);
                connection.machine.release(stream);
                None
            }
            Event::Reset { .. } | Event::Aborted { .. } | Event::GoAway { .. } => panic!("{event:?}"),
            _ => None,
        };
        if let Some(stream) = ended {
            let (number, content) = bodies.remove(&stream).unwrap();
            assert!(content == plans[number].response);
            connection.machine.release(stream);
            done += 1;
        }
    }
    connection.machine.shutdown();
    connection.send();
    let _ = connection.pipe.write_all(&connection.out).await;
    assert_eq!(connection.machine.stream_count(), 0);
}

#[test]
fn client_interoperates_with_the_server_of_the_h2_crate() {
    for seed in 100..112 {
        runtime().block_on(async {
            let (ours, theirs) = duplex([64, 4096, 1 << 20][seed as usize % 3]);
            let plans = Plan::all(seed);
            let server = tokio::spawn(h2_server(
                theirs,
                plans.clone(),
                [65_535, 1000, 1 << 20][seed as usize / 3 % 3],
            ));
            our_client(ours, plans, options(seed), seed).await;
            server.abort();
            if let Err(error) = server.await {
                assert!(error.is_cancelled(), "{error}");
            }
        });
    }
}
