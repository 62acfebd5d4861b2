#!/usr/bin/env node
// The memory of the cache while what it holds changes all the time.
//
//     node scripts/cache-churn.mjs target/release/komainu [SECONDS]
//
// An origin in this process answers each URL with a size of its own, 200 bytes to 1 MiB, small ones most. Clients ask for URLs
// that are mostly new. Each second: what the cache counts, and what the process takes of memory, with the file in
// memory that large responses are in. Fails where the cache counts more than its limit; it prints what it counted once it was
// full, and by how much the memory of the process grew beyond what it was at the start.

import { spawn, execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, readdirSync, readlinkSync, rmSync, statSync, writeFileSync } from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";

const [komainu, seconds = "600"] = process.argv.slice(2);
const MIB = 1 << 20;
const limit = 64 * MIB;
const folder = mkdtempSync(join(tmpdir(), "komainu-churn-"));
const piece = Buffer.alloc(MIB, "x");
const sizeOf = (n) => Math.floor(200 * Math.exp(((n * 7919) % 1000) / 1000 * Math.log(MIB / 200) * (n % 5 === 0 ? 1 : 0.6)));

const origin = http.createServer((request, response) => {
    const size = sizeOf(Number(request.url.slice(1)));
    response.writeHead(200, { "Cache-Control": "max-age=3600", "Content-Length": size, xkey: `t${size % 50}` });
    response.end(piece.subarray(0, size));
});
await new Promise((done) => origin.listen(0, "127.0.0.1", done));
const port = 20000 + (process.pid % 10000);
writeFileSync(join(folder, "komainu.toml"), `user = "root"
listen = "127.0.0.1:${port}"
[limits]
memory = "1GiB"
[cache]
memory = "64MiB"
[[route]]
proxy = "http://127.0.0.1:${origin.address().port}"
cache = true
`);
const environment = { ...process.env, RUNTIME_DIRECTORY: join(folder, "run") };
const server = spawn(komainu, ["start", "-c", join(folder, "komainu.toml")], { env: environment, stdio: ["ignore", "ignore", "inherit"] });
let failed = false;

const agent = new http.Agent({ keepAlive: true, maxSockets: 8 });
let next = 0;
let asked = 0;
const get = () => new Promise((done) => {
    const n = Math.random() < 0.7 ? next++ : Math.floor(Math.random() * next);
    http.get({ port, path: `/${n}`, agent }, (response) => {
        asked++;
        response.on("data", () => {}).on("end", done);
    }).on("error", () => setTimeout(done, 100));
});
let ended = false;
const client = async () => { while (!ended) await get(); };
const command = (...more) => execFileSync(komainu, ["cache", ...more, "--pid", `${server.pid}`], { env: environment }).toString();

/// Bytes that the process takes: its own, and those of the file in memory.
const taken = () => {
    const own = Number(/^RssAnon:\s+(\d+)/m.exec(readFileSync(`/proc/${server.pid}/status`, "utf8"))[1]) * 1024;
    const files = readdirSync(`/proc/${server.pid}/fd`).map((fd) => `/proc/${server.pid}/fd/${fd}`);
    const cache = files.filter((path) => readlinkSync(path).startsWith("/memfd:komainu-cache"));
    return own + cache.reduce((sum, path) => sum + statSync(path).blocks * 512, 0);
};

await new Promise((done) => setTimeout(done, 1000));
const before = taken();
const clients = Array.from({ length: 8 }, client);
let [least, most, high, low] = [Infinity, 0, 0, Infinity];
let isFull = false;
const began = Date.now();
while (Date.now() - began < Number(seconds) * 1000) {
    await new Promise((done) => setTimeout(done, 1000));
    const { bytes } = JSON.parse(command("stats", "--json"));
    const now = taken() - before;
    isFull ||= bytes > 0.98 * limit;
    if (isFull) {
        [least, most] = [Math.min(least, bytes), Math.max(most, bytes)];
        [low, high] = [Math.min(low, now), Math.max(high, now)];
    }
    if (bytes > limit) failed = true;
}
ended = true;
await Promise.all(clients);
command("purge", "--all");
await new Promise((done) => setTimeout(done, 2000));
const part = (bytes) => `${(bytes / MIB).toFixed(2)} MiB (${(100 * bytes / limit).toFixed(1)} %)`;
console.log(`${asked} requests, ${next} URLs in ${seconds} s; the limit is 64 MiB`);
console.log(`counted once full: ${part(least)} to ${part(most)}; memory of the process beyond its start: ${part(low)} to ${part(high)}`);
console.log(`after a purge of all: ${part(taken() - before)}`);
server.kill();
origin.close();
agent.destroy();
await new Promise((done) => server.on("exit", done));
rmSync(folder, { recursive: true });
process.exit(failed || !isFull ? 1 : 0);
