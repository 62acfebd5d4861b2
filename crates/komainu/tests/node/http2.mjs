// HTTP/2 peers based on nghttp2: `serve KEY CERT` starts servers without and with TLS and prints their ports,
// `ask URL` is a client of a Komainu in front of both, `many URL PATH COUNT` sends COUNT concurrent requests,
// `upload URL PATH SIZE` sends a body.
import assert from "node:assert/strict";
import fs from "node:fs";
import http2 from "node:http2";
import { once } from "node:events";

const [mode, ...words] = process.argv.slice(2);
const { HTTP2_METHOD_CONNECT, NGHTTP2_NO_ERROR, NGHTTP2_PROTOCOL_ERROR, NGHTTP2_REFUSED_STREAM } = http2.constants;
let refused = 0;

// ---- the server ----

function answer(stream, headers) {
  const path = headers[":path"].replace(/^\/(clear|secure)/, "");
  stream.on("error", () => {});
  if (headers[":method"] === HTTP2_METHOD_CONNECT) {
    if (path === "/refused") return stream.respond({ ":status": 403 }, { endStream: true });
    assert.equal(headers["sec-websocket-key"], undefined);
    stream.respond({ ":status": 200, "x-protocol": headers[":protocol"], "x-from": headers["x-forwarded-for"] });
    if (path === "/cut") return stream.once("data", () => stream.close(http2.constants.NGHTTP2_CANCEL));
    return stream.pipe(stream);
  }
  if (path === "/hints") {
    stream.additionalHeaders({ ":status": 103, link: "</a.css>; rel=preload" });
    stream.respond({ ":status": 200 }, { waitForTrailers: true });
    stream.on("wantTrailers", () => stream.sendTrailers({ "x-sum": "7" }));
    return stream.end("hinted");
  }
  if (path === "/refuse-once" && refused++ === 0) return stream.close(NGHTTP2_REFUSED_STREAM);
  if (path === "/goaway") stream.session.goaway(NGHTTP2_NO_ERROR);
  if (headers.expect === "100-continue") stream.additionalHeaders({ ":status": 100 });
  let count = 0;
  let trailer = "none";
  stream.on("data", (piece) => (count += piece.length));
  stream.on("trailers", (fields) => (trailer = fields["x-sum"]));
  stream.on("end", () => {
    // With a delay, the maximum number of concurrent requests arrives before the first response.
    setTimeout(() => {
      if (stream.destroyed) return;
      stream.respond({ ":status": 200 });
      stream.end(path === "/large" ? Buffer.alloc(10 << 20, "x") : `${headers[":method"]} ${count} ${trailer}`);
    }, path === "/slow" ? 20 : 0);
  });
}

async function serve(key, cert) {
  const settings = { enableConnectProtocol: true, maxConcurrentStreams: 100 };
  const clear = http2.createServer({ settings });
  const secure = http2.createSecureServer({ settings, key: fs.readFileSync(key), cert: fs.readFileSync(cert) });
  for (const server of [clear, secure]) {
    server.on("stream", answer).on("sessionError", () => {}).listen(0, "127.0.0.1");
    await once(server, "listening");
  }
  console.log(`${clear.address().port} ${secure.address().port}`);
  process.stdin.on("end", () => process.exit(0)).resume(); // until the test ends
}

// ---- the client ----

async function connect(url) {
  // By default, a session with 10 MB of unsent content ends itself.
  const session = http2.connect(url, { settings: { enablePush: false }, maxSessionMemory: 100 });
  session.on("error", (error) => assert.fail(error));
  const [settings] = await once(session, "remoteSettings");
  assert.equal(settings.enableConnectProtocol, true);
  return session;
}

/** A request and all of its response. */
function ask(session, headers, body, trailers) {
  return new Promise((resolve, reject) => {
    const stream = session.request(headers, { waitForTrailers: trailers !== undefined });
    const got = { informational: [], text: "", trailers: {} };
    stream.on("wantTrailers", () => stream.sendTrailers(trailers));
    stream.on("headers", (head) => got.informational.push([head[":status"], head.link]));
    stream.on("continue", () => stream.end(body));
    stream.on("response", (head) => (got.status = head[":status"]));
    stream.on("trailers", (fields) => (got.trailers = fields));
    stream.setEncoding("latin1").on("data", (text) => (got.text += text));
    stream.on("error", (error) => (got.error = error.code));
    stream.on("close", () => resolve({ ...got, code: stream.rstCode }));
    if (!headers.expect) stream.end(body);
  });
}

function websocket(session, path, more = {}) {
  const stream = session.request({
    ":method": "CONNECT", ":protocol": "websocket", ":scheme": "http", ":path": path, ":authority": "site.test",
    "sec-websocket-version": "13", ...more,
  }, { endStream: false });
  stream.got = Buffer.alloc(0);
  stream.on("data", (piece) => { stream.got = Buffer.concat([stream.got, piece]); stream.emit("more"); });
  stream.on("end", () => { stream.over = true; stream.emit("more"); });
  stream.on("error", () => {});
  stream.on("close", () => { stream.over = true; stream.emit("more"); });
  return stream;
}

/** Closed, with an error or without. */
const closed = (stream) => new Promise((resolve) => stream.once("close", resolve));

async function take(stream, count) {
  while (stream.got.length < count) {
    assert.ok(!stream.over, `the stream ended after ${stream.got.length} of ${count} bytes`);
    await once(stream, "more");
  }
  const taken = stream.got.subarray(0, count);
  stream.got = stream.got.subarray(count);
  return taken;
}

function frame(kind, payload) {
  const mask = Buffer.from([7, 77, 177, 27]);
  const head = payload.length < 126 ? Buffer.from([0x80 | kind, 0x80 | payload.length]) : Buffer.alloc(10);
  if (payload.length >= 126) {
    head.set([0x80 | kind, 0xff]);
    head.writeBigUInt64BE(BigInt(payload.length), 2);
  }
  return Buffer.concat([head, mask, payload.map((byte, at) => byte ^ mask[at % 4])]);
}

async function next(stream) {
  const [first, second] = await take(stream, 2);
  let count = second;
  if (second === 126) count = (await take(stream, 2)).readUInt16BE();
  if (second === 127) count = Number((await take(stream, 8)).readBigUInt64BE());
  return [first, await take(stream, count)];
}

/** With a WebSocket's server behind it, over HTTP/1. */
async function converse(session) {
  const stream = websocket(session, "/h1/chat", { "sec-websocket-protocol": "echo" });
  const [head] = await once(stream, "response");
  assert.equal(head[":status"], 200);
  assert.equal(head["sec-websocket-protocol"], "echo");
  assert.equal(head["sec-websocket-accept"], undefined);
  const large = Buffer.alloc(1_000_000, "0123456789abcdef");
  for (const [kind, payload] of [[1, Buffer.from("hello")], [2, large], [9, Buffer.from("?")]]) {
    stream.write(frame(kind, payload));
    const [first, echoed] = await next(stream);
    assert.equal(first, 0x80 | (kind === 9 ? 10 : kind));
    assert.ok(echoed.equals(payload));
  }
  stream.write(frame(1, Buffer.from("bye")));
  const [first, close] = await next(stream);
  assert.deepEqual([first, close.readUInt16BE(), close.subarray(2).toString()], [0x88, 4321, "as you wish"]);
  stream.end(frame(8, close));
  while (!stream.over) await once(stream, "more");
}

/** With a server of HTTP/2 behind it: bytes as they are, and ends. */
async function tunnel(session, path) {
  const stream = websocket(session, `${path}/raw`);
  const [head] = await once(stream, "response");
  assert.deepEqual([head[":status"], head["x-protocol"], head["x-from"]], [200, "websocket", "127.0.0.1"]);
  const large = Buffer.alloc(3_000_000, "0123456789abcdef");
  stream.write("early");
  assert.equal((await take(stream, 5)).toString(), "early");
  stream.write(large);
  assert.ok((await take(stream, large.length)).equals(large));
  stream.end("the last");
  assert.equal((await take(stream, 8)).toString(), "the last");
  while (!stream.over) await once(stream, "more");
  // Resets and refusals by the server reach the client.
  const cut = websocket(session, `${path}/cut`);
  await once(cut, "response");
  const gone = closed(cut);
  cut.write("x");
  // nghttp2 may send END_STREAM before RST_STREAM: both must reach the client.
  await gone;
  const declined = websocket(session, `${path}/refused`);
  assert.equal((await once(declined, "response"))[0][":status"], 403);
}

async function messages(session, path) {
  const get = (more) => ({ ":path": path + more, ":authority": "site.test" });
  const post = (more, fields) => ({ ...get(more), ":method": "POST", ...fields });
  const hints = await ask(session, get("/hints"));
  assert.deepEqual([hints.status, hints.text, hints.trailers["x-sum"]], [200, "hinted", "7"]);
  assert.deepEqual(hints.informational, [[103, "</a.css>; rel=preload"]]);
  assert.equal((await ask(session, get("/large"))).text.length, 10 << 20);
  const body = Buffer.alloc(10 << 20, "y");
  assert.equal((await ask(session, post("/"), body)).text, `POST ${10 << 20} none`);
  // The upstream server answers `Expect: 100-continue` and receives the trailers.
  assert.equal((await ask(session, post("/", { expect: "100-continue" }), body)).text, `POST ${10 << 20} none`);
  assert.equal((await ask(session, post("/"), "abc", { "x-sum": "9" })).text, "POST 3 9");
  const refusedOnce = await ask(session, post("/refuse-once"), "abc");
  assert.deepEqual([refusedOnce.status, refusedOnce.text], [200, "POST 3 none"]);
  // A server that sends GOAWAY, also while many requests are in progress.
  for (let turn = 0; turn < 3; turn++) {
    const all = Array.from({ length: 60 }, (_, at) => ask(session, post(at === 20 ? "/goaway" : "/slow"), "abc"));
    for (const one of await Promise.all(all)) assert.deepEqual([one.status, one.text], [200, "POST 3 none"]);
  }
}

async function refusals(session) {
  const status = async (stream) => (await once(stream, "response"))[0][":status"];
  // A 2xx response would open a tunnel, which the file handler does not support: it does not run.
  assert.equal(await status(websocket(session, "/a")), 501);
  assert.equal(await status(websocket(session, "/absent")), 501);
  assert.equal(await status(websocket(session, "/a", { ":protocol": "connect-udp" })), 501);
  const connect = session.request({ ":method": "CONNECT", ":authority": "site.test:80" });
  assert.equal(await status(connect), 501);
  const malformed = websocket(session, "");
  await closed(malformed);
  assert.equal(malformed.rstCode, NGHTTP2_PROTOCOL_ERROR);
}

async function client(url) {
  const session = await connect(url);
  await refusals(session);
  await converse(session);
  for (const path of ["/clear", "/secure"]) {
    await tunnel(session, path);
    await messages(session, path);
  }
  session.close();
  console.log("all is as it should be");
}

/** Keeps as many requests in progress as the server allows; none may be refused. Prints the number of successes. */
async function many(url, path, count) {
  const session = await connect(url);
  const got = await Promise.all(Array.from({ length: count }, () => ask(session, { ":path": path })));
  const well = got.filter((one) => one.status === 200 && one.code === NGHTTP2_NO_ERROR).length;
  session.close();
  console.log(`${well} of ${count}`);
}

/** Sends a body whether or not there is an answer. Prints status, content and the code of the stream's end. */
async function upload(url, path, size) {
  const session = await connect(url);
  const got = await ask(session, { ":path": path, ":method": "POST" }, Buffer.alloc(size, "x"));
  session.close();
  console.log(`${got.status} ${got.text} ${got.code}`);
}

if (mode === "serve") await serve(...words);
else if (mode === "many") await many(words[0], words[1], Number(words[2]));
else if (mode === "upload") await upload(words[0], words[1], Number(words[2]));
else await client(words[0]);
