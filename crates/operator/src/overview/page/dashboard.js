// Displays /v1/status and /v1/events. Data from the server is only inserted as text, never as HTML.
const EVERY_MS = 2000, LINES_MAX = 200;
const byId = (id) => document.getElementById(id);
const token = () => sessionStorage.getItem("token") || "";
// Names of the applications whose processes are shown.
const opened = new Set();
let paused = false, before = null, previous = null, history = [], known = null, lines = [], newest = 0, groups = null;

function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "onclick") element.addEventListener("click", value);
    else element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}
function setText(element, text) { if (element.textContent !== text) element.textContent = text; }
function say(text, bad) { byId("said").className = bad ? "bad" : ""; setText(byId("said"), text); }

// Figures
const nothing = "–";
const whole = (n) => n.toLocaleString("en-US", { maximumFractionDigits: 0 });
function number(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return nothing;
  if (n === 0) return "0";
  return n < 10 ? n.toFixed(n < 0.1 ? 2 : 1) : whole(n);
}
function bytes(n) {
  if (n === null || n === undefined) return nothing;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${at === 0 ? Math.round(n) : n.toPrecision(3)} ${units[at]}`;
}
function time(ms) {
  if (ms === null || ms === undefined) return nothing;
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 100) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${ms.toFixed(0)} ms`;
  return age(ms);
}
function age(ms) {
  const s = ms / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.floor(s)} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}
const percent = (share) => (share === null ? nothing : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`);

// Returns the quantile `share`, interpolated linearly within its class; if all samples are in one class, only its upper bound.
function latency(bounds, classes, share) {
  const count = classes.reduce((sum, n) => sum + n, 0);
  if (count === 0) return { ms: null, text: nothing };
  let left = share * count, lower = 0;
  for (let at = 0; at < bounds.length; at += 1) {
    if (left <= classes[at]) {
      if (at === 0 || classes[at] === count) return { ms: bounds[at], text: `≤ ${time(bounds[at])}` };
      const ms = lower + ((bounds[at] - lower) * left) / Math.max(classes[at], 1);
      return { ms, text: time(ms) };
    }
    left -= classes[at];
    lower = bounds[at];
  }
  return { ms: lower, text: `> ${time(lower)}` };
}
function difference(now, old) {
  return now.classes.map((n, at) => Math.max(0, n - ((old && old.classes[at]) || 0)));
}
const add = (sums, classes) => (classes.length ? classes.map((n, at) => n + (sums[at] || 0)) : sums);

// Tables. Row elements are reused, so that the focus is kept.
class Table {
  constructor(section, columns, sort, none) {
    this.columns = columns;
    this.sort = sort;
    this.down = true;
    this.rows = new Map();
    this.none = make("p", { class: "empty" }, none);
    const head = make("tr");
    this.heads = columns.map((column, at) => {
      const th = make("th", { scope: "col", class: column.kind || "" });
      if (column.by) th.append(make("button", { type: "button", onclick: () => this.choose(at) }, column.name));
      else th.append(column.name || make("span", { class: "skip" }, "Action"));
      head.append(th);
      return th;
    });
    this.body = make("tbody");
    this.table = make("table", { "aria-label": document.querySelector(`#${section} h2`).textContent }, make("thead", null, head), this.body);
    document.querySelector(`#${section} .wide`).append(this.table, this.none);
  }
  choose(at) {
    this.down = this.sort === at ? !this.down : true;
    this.sort = at;
    if (this.last) this.show(this.last);
  }
  // Each item has a key. Items with a `heading` span the table; sorting keeps them before the items that follow.
  show(items) {
    this.last = items;
    this.table.hidden = items.length === 0;
    this.none.hidden = items.length > 0;
    this.table.classList.toggle("closed", items.every((item) => item.heading));
    const sorted = [];
    let part = [];
    const flush = () => {
      if (this.sort !== null) {
        const by = this.columns[this.sort].by;
        const sign = this.down ? -1 : 1;
        part.sort((a, b) => {
          const [x, y] = [by(a), by(b)];
          if (typeof x === "string") return -sign * x.localeCompare(y);
          return sign * ((x ?? -1) - (y ?? -1));
        });
      }
      sorted.push(...part);
      part = [];
    };
    for (const item of items) {
      if (item.heading) { flush(); sorted.push(item); } else part.push(item);
    }
    flush();
    this.heads.forEach((th, at) => {
      if (at === this.sort) {
        const up = typeof (items.find((item) => !item.heading) ? this.columns[at].by(items.find((item) => !item.heading)) : 0) === "string";
        th.setAttribute("aria-sort", this.down !== up ? "descending" : "ascending");
      } else th.removeAttribute("aria-sort");
    });
    const seen = new Set();
    sorted.forEach((item, place) => {
      seen.add(item.key);
      let row = this.rows.get(item.key);
      if (!row) {
        row = item.heading ? this.group() : this.row();
        this.rows.set(item.key, row);
      }
      if (item.heading) item.heading(row.cells[0]);
      else this.columns.forEach((column, at) => column.show(item, row.cells[at]));
      if (this.body.children[place] !== row) this.body.insertBefore(row, this.body.children[place] || null);
    });
    for (const [key, row] of this.rows) {
      if (!seen.has(key)) { row.remove(); this.rows.delete(key); }
    }
  }
  row() {
    const cells = this.columns.map((column) => make("td", { class: column.kind || "", "data-label": column.name }));
    return make("tr", null, ...cells);
  }
  group() {
    return make("tr", { class: "group" }, make("th", { colspan: this.columns.length, scope: "colgroup" }));
  }
}
const figure = (name, of, shown = number) => ({ name, kind: "number", by: of, show: (item, cell) => setText(cell, shown(of(item))) });
const duration = (name, key, kind = "number") => ({ name, kind, by: (item) => item[key].ms, show: (item, cell) => setText(cell, item[key].text) });
const less = (column) => ({ ...column, kind: `${column.kind} less` });
const text = (name, of, kind = "text") => ({ name, kind, by: of, show: (item, cell) => setText(cell, of(item)) });
const chip = (name, of, tone) => ({
  name, kind: "plain", by: of,
  show: (item, cell) => {
    if (!cell.firstChild) cell.append(make("span", { class: "chip" }));
    cell.firstChild.className = `chip ${tone(item)}`;
    setText(cell.firstChild, of(item));
  },
});
function action(show) {
  return {
    name: "", kind: "action",
    show: (item, cell) => {
      const wanted = show(item);
      if (!wanted) return cell.replaceChildren();
      if (!cell.firstChild) cell.append(make("button", { type: "button" }));
      const button = cell.firstChild;
      setText(button, wanted.name);
      button.setAttribute("aria-label", wanted.label);
      button.onclick = wanted.act;
    },
  };
}
const tones = { up: "good", ready: "good", serving: "good", probe: "warn", starting: "warn", recycling: "warn", leaving: "warn", draining: "warn", drain: "warn", ejected: "bad", down: "bad", crashed: "bad", killed: "bad" };

// Returns the mean CPU time per request in ms, of the requests measured since `then`, or of all if there were none.
function eachMs(now, then) {
  if (!now || !now.requests) return null;
  const requests = now.requests - (then ? then.requests : 0);
  return requests > 0 ? (now.us - (then ? then.us : 0)) / requests / 1000 : now.us / now.requests / 1000;
}

const routes = new Table("routes", [
  { name: "Route", kind: "text", by: (route) => `${route.site} ${route.route}`,
    show: (route, cell) => {
      if (!cell.firstChild) cell.append(make("b"), make("span"));
      setText(cell.children[0], route.route || "none");
      setText(cell.children[1], route.site && route.site !== "*" ? route.site : "");
    } },
  text("Handler", (route) => route.handler || nothing),
  figure("Requests/s", (route) => route.rate),
  figure("4xx/s", (route) => route.rate4),
  figure("5xx/s", (route) => route.rate5),
  duration("p50", "p50"),
  less(duration("p90", "p90")),
  duration("p99", "p99"),
  figure("CPU", (route) => eachMs(route.cpu, route.then && route.then.cpu), time),
  less(figure("Worker CPU", (route) => eachMs(route.worker_cpu, route.then && route.then.worker_cpu), time)),
  less(figure("Out/s", (route) => route.out, bytes)),
  figure("Requests", (route) => route.requests, whole),
], 2, "No routes.");
const upstreams = new Table("upstreams", [
  text("Server", (server) => server.url),
  chip("State", (server) => server.shown, (server) => tones[server.state] || ""),
  figure("Active", (server) => server.active, whole),
  figure("Requests/s", (server) => server.rate),
  figure("5xx/s", (server) => server.rate5),
  figure("Failed/s", (server) => server.failed),
  duration("p50", "p50"),
  duration("p99", "p99"),
  figure("Ejections", (server) => server.ejections, whole),
  action((server) => server.group && {
    name: server.admin === "ready" ? "Drain" : "Set ready",
    label: `${server.admin === "ready" ? "Drain" : "Set ready"} ${server.url}`,
    act: () => drain(server),
  }),
], null, "No upstream servers.");
const workers = new Table("applications", [
  text("Worker", (worker) => (worker.worker ? `worker ${worker.worker}` : "prototype"), "plain"),
  figure("PID", (worker) => worker.pid, String),
  chip("State", (worker) => worker.state, (worker) => tones[worker.state] || ""),
  figure("Memory", (worker) => worker.pss, bytes),
  figure("CPU", (worker) => worker.cpu, percent),
  figure("Requests/s", (worker) => worker.rate),
  figure("Requests", (worker) => worker.requests, whole),
  figure("Age", (worker) => worker.age_ms, age),
  { name: "Current request", kind: "text code", by: (worker) => (worker.current[0] ? worker.current[0].age_ms : -1),
    show: (worker, cell) => setText(cell, worker.current.map((one) => `${one.method} ${one.target} (${age(one.age_ms)})`).join("\n")) },
], null, "No applications.");
const certificates = new Table("certificates", [
  text("Name", (one) => one.name || nothing),
  text("Issuer", (one) => one.issuer || nothing),
  chip("Expires", (one) => (one.expires_in_s === null ? "not obtained yet" : one.expires_in_s < 0 ? "expired" : `in ${age(one.expires_in_s * 1000)}`),
    (one) => (one.expires_in_s === null || one.expires_in_s < 86400 ? "bad" : one.expires_in_s < 7 * 86400 - 3600 && !one.renew_at ? "warn" : "good")),
  text("Renewal", (one) => (one.file ? `by hand: ${one.file}` : one.renew_at ? new Date(one.renew_at * 1000).toLocaleString() : nothing)),
  text("Last error", (one) => one.last_error || ""),
], null, "No certificates.");

// Tiles, each with a chart of the maximum per bin. The window is the shortest that contains all points.
const HOUR_MS = 3600000, CHART = 40;
const WINDOWS = [[300000, 5000], [900000, 5000], [HOUR_MS, 15000]].map(([span, bin]) => ({ span, bin, count: span / bin }));
let frame = WINDOWS[0];
const tiles = new Map();
const svgPart = (name, attributes) => {
  const part = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) part.setAttribute(key, value);
  return part;
};
function chooseWindow() {
  const first = history.length ? Date.now() - history[0].at : 0;
  frame = WINDOWS.find((one) => first <= one.span) || WINDOWS[WINDOWS.length - 1];
}
function bins(key) {
  const values = new Array(frame.count).fill(null);
  const last = Math.floor(Date.now() / frame.bin);
  for (const point of history) {
    const at = frame.count - 1 - (last - Math.floor(point.at / frame.bin));
    const value = point[key];
    if (at >= 0 && at < frame.count && value !== null && value !== undefined) values[at] = Math.max(values[at] ?? 0, value);
  }
  return values;
}
function draw(parts) {
  const { values } = parts;
  const top = Math.max(...values.map((value) => value ?? 0), 1e-9);
  let line = "", area = "", from = null, last = null;
  for (let at = 0; at <= values.length; at += 1) {
    const value = at < values.length ? values[at] : null;
    // Points are not exactly one bin apart, so a single empty bin is not a gap.
    if (value === null && from !== null && at + 1 < values.length && values[at + 1] !== null) continue;
    if (value !== null) {
      const y = (CHART - 1 - ((CHART - 3) * value) / top).toFixed(1);
      line += `${from === null ? "M" : "L"}${at} ${y}`;
      area += from === null ? `M${at} ${CHART}L${at} ${y}` : `L${at} ${y}`;
      from ??= at;
      last = at;
    } else if (from !== null) {
      if (from === last) line += "h.01";
      area += `L${last} ${CHART}Z`;
      from = null;
    }
  }
  parts.svg.setAttribute("viewBox", `0 0 ${values.length - 1} ${CHART}`);
  parts.line.setAttribute("d", line);
  parts.area.setAttribute("d", area);
}
function scale(parts) {
  const value = parts.pointed === null ? null : parts.values[parts.pointed];
  const ago = parts.pointed === null ? 0 : (parts.values.length - 1 - parts.pointed) * frame.bin;
  setText(parts.from, parts.pointed === null ? `last ${frame.span === HOUR_MS ? "hour" : age(frame.span)}` : ago === 0 ? "now" : `${age(ago)} ago`);
  const known = parts.values.filter((one) => one !== null);
  if (parts.pointed !== null && value === null) return setText(parts.to, nothing);
  setText(parts.to, parts.pointed === null ? (known.length ? `peak ${parts.shown(Math.max(...known))}` : "") : parts.shown(value));
}
function tile(name, key, shown, now, more) {
  let parts = tiles.get(name);
  if (!parts) {
    const svg = svgPart("svg", { preserveAspectRatio: "none", "aria-hidden": "true" });
    parts = { svg, figure: make("p", { class: "figure" }), more: make("p", { class: "more" }), from: make("span"), to: make("span"), shown, pointed: null,
      line: svgPart("path", { class: "line" }), area: svgPart("path", { class: "area" }) };
    svg.append(parts.area, parts.line);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      parts.pointed = Math.min(parts.values.length - 1, Math.max(0, Math.round(((event.clientX - box.left) / box.width) * (parts.values.length - 1))));
      scale(parts);
    });
    svg.addEventListener("pointerleave", () => { parts.pointed = null; scale(parts); });
    byId("tiles").append(make("div", { class: "tile" }, make("h2", null, name), parts.figure, parts.more, svg, make("p", { class: "scale" }, parts.from, parts.to)));
    tiles.set(name, parts);
  }
  setText(parts.figure, now);
  setText(parts.more, more);
  parts.values = bins(key);
  draw(parts);
  scale(parts);
}
// Loads the history before this page was opened. The last point is taken as now, as the clocks may differ.
function remember(told) {
  const count = told.requests.length;
  const keys = { requests: "requests", errors: "errors", p99: "p99_ms", waiting: "waiting", connections: "connections", cpu: "cpu", memory: "memory_bytes", held: "held_bytes" };
  history = told.requests.map((_, at) => {
    const point = { at: Date.now() - (count - at) * told.step_s * 1000 };
    for (const [key, name] of Object.entries(keys)) point[key] = told[name][at];
    return point;
  });
}

// The shares of HTTP/2 and HTTP/3, if there are any.
function protocolShares(connections) {
  const share = (count) => `${Math.round((100 * count) / connections.requests)} %`;
  return [["HTTP/2", connections.http2_requests], ["HTTP/3", connections.http3_requests]]
    .filter(([, count]) => count > 0)
    .map(([name, count]) => `, ${share(count)} ${name}`)
    .join("");
}

function show(status, earlier = before) {
  const old = earlier && earlier.pid === status.pid ? earlier : null;
  const seconds = old ? Math.max((status.age_ms - old.age_ms) / 1000, 0.001) : Math.max(status.age_ms / 1000, 0.001);
  const rate = (now, then) => Math.max(0, (now || 0) - (then || 0)) / seconds;
  const bounds = status.class_bounds_ms || [];
  setText(byId("version"), status.version);
  setText(byId("state"), status.state);
  byId("state").className = `chip ${tones[status.state] || ""}`;
  setText(byId("about"), `${status.listen.join("  ")} · process ${status.pid} · up ${age(status.age_ms)}`);
  document.title = `Komainu: ${status.listen[0] || status.pid}`;

  let all = [], requests = 0, errors = 0;
  const keyOf = (route) => JSON.stringify([route.site, route.route, route.handler]);
  const oldRoutes = new Map((old ? old.routes : []).map((route) => [keyOf(route), route]));
  routes.show((status.routes || []).map((route) => {
    const then = oldRoutes.get(keyOf(route));
    const classes = difference(route.duration, then && then.duration);
    all = add(classes, all);
    const of = (name) => rate(route.statuses[name], then && then.statuses[name]);
    const item = { ...route, then, key: keyOf(route), rate: rate(route.requests, then && then.requests), rate4: of("4xx"), rate5: of("5xx"),
      out: rate(route.response_bytes, then && then.response_bytes) };
    for (const [name, share] of [["p50", 0.5], ["p90", 0.9], ["p99", 0.99]]) item[name] = latency(bounds, classes, share);
    requests += item.rate;
    errors += item.rate5;
    return item;
  }));

  let waiting = 0;
  const servers = [];
  const administered = new Map((groups || []).flatMap((group) => group.servers.map((server) => [`${group.name} ${server.url}`, [group, server]])));
  (status.upstreams || []).forEach((group, number) => {
    waiting += group.waiting;
    const oldGroup = old && old.upstreams[number];
    const name = group.name || (groups && groups[number] && groups[number].name) || `group ${number + 1}`;
    servers.push({ key: `group ${number}`, heading: (cell) => {
      if (!cell.firstChild) cell.append(make("b"), make("span"));
      setText(cell.children[0], name);
      setText(cell.children[1], group.waiting ? `${whole(group.waiting)} requests wait` : "");
    } });
    group.servers.forEach((server, at) => {
      const then = oldGroup && oldGroup.servers[at] && oldGroup.servers[at].url === server.url ? oldGroup.servers[at] : null;
      const classes = difference(server.response, then && then.response);
      const sum = (counts) => Object.values(counts || {}).reduce((total, n) => total + n, 0);
      const known = administered.get(`${name} ${server.url}`);
      servers.push({ ...server, key: `${number} ${server.url} ${at}`, group: known && known[0].name, admin: known && known[1].state,
        state: known && known[1].state !== "ready" ? known[1].state : server.state,
        shown: known && known[1].state !== "ready" ? known[1].state : server.back_in_ms ? `${server.state}, ${age(server.back_in_ms)}` : server.state,
        rate: rate(server.requests, then && then.requests), rate5: rate(server.statuses["5xx"], then && then.statuses["5xx"]),
        failed: rate(sum(server.failures), sum(then && then.failures)),
        p50: latency(bounds, classes, 0.5), p99: latency(bounds, classes, 0.99) });
    });
  });
  upstreams.show(servers);

  const processes = [];
  let memory = (status.usage && status.usage.pss_bytes) || 0;
  const oldProcesses = new Map((old ? old.apps : []).flatMap((app) => app.processes.map((one) => [one.pid, one])));
  for (const app of status.apps) {
    waiting += app.queue.waiting;
    const own = [];
    let appCpu = null, appRate = 0, appMemory = 0;
    for (const one of app.processes) {
      const then = oldProcesses.get(one.pid);
      const usage = one.usage || {};
      memory += usage.pss_bytes || 0;
      own.push({ ...one, key: `${app.name} ${one.pid}`, pss: usage.pss_bytes, current: one.current || [],
        cpu: then && then.usage && one.usage ? rate(usage.cpu_ms, then.usage.cpu_ms) / 1000 : null,
        rate: rate(one.requests, then && then.requests) });
      const last = own[own.length - 1];
      appMemory += usage.pss_bytes || 0;
      appRate += last.rate;
      if (last.cpu !== null) appCpu = (appCpu || 0) + last.cpu;
    }
    const states = new Map();
    for (const one of app.processes) if (one.worker) states.set(one.state, (states.get(one.state) || 0) + 1);
    processes.push({ key: `app ${app.name}`, heading: (cell) => {
      if (!cell.firstChild) {
        const toggle = make("button", { type: "button", class: "toggle", "aria-expanded": "false", onclick: () => {
          if (!opened.delete(app.name)) opened.add(app.name);
          if (before) show(before, previous);
        } }, make("b"));
        cell.append(make("div", null, toggle, make("span", { class: "states" }), make("span", { class: "sum" }),
          make("button", { type: "button", "aria-label": `Restart ${app.name}`, onclick: () => restart(app.name) }, "Restart")));
      }
      const [toggle, chips, sum] = cell.firstChild.children;
      toggle.setAttribute("aria-expanded", String(opened.has(app.name)));
      setText(toggle.firstChild, app.name);
      const wanted = [...states].map(([state, count]) => `${count} ${state}`);
      if (chips.textContent !== wanted.join("")) {
        chips.replaceChildren(...[...states].map(([state], at) => make("span", { class: `chip ${tones[state] || ""}` }, wanted[at])));
      }
      setText(sum, `${number(appRate)} requests/s · CPU ${percent(appCpu)} · ${bytes(appMemory)} · ${whole(app.queue.claimed)} in work, ${whole(app.queue.waiting)} waiting`);
    } });
    if (opened.has(app.name)) processes.push(...own);
  }
  workers.show(processes);

  certificates.show((status.certificates || []).map((one, at) => ({ ...one, key: `${at} ${one.name}` })));

  const connections = status.connections || {};
  const usage = status.usage || {};
  const cpu = old && old.usage && status.usage ? rate(usage.cpu_ms, old.usage.cpu_ms) / 1000 : null;
  const [p50, p99] = [0.5, 0.99].map((share) => latency(bounds, all, share));
  const held = status.memory.held_bytes;
  // The first status has counts since the start only, and no rates of an interval.
  if (old) history.push({ at: Date.now(), requests, errors, p99: p99.ms, waiting, connections: connections.open || 0, cpu, memory, held });
  history = history.filter((point) => point.at > Date.now() - HOUR_MS);
  chooseWindow();
  tile("Requests a second", "requests", number, number(requests), `${whole(connections.requests || 0)} since the start${protocolShares(connections)}`);
  tile("Errors a second", "errors", number, number(errors), requests > 0 ? `${percent(errors / requests)} of all, status 5xx` : "status 5xx");
  tile("99th percentile", "p99", time, p99.text, `of all routes; median ${p50.text}`);
  tile("Waiting in queues", "waiting", whole, whole(waiting), "for a worker or an upstream server");
  tile("Connections", "connections", whole, whole(connections.open || 0), `${number(rate(connections.accepted, old && old.connections.accepted))} new a second`);
  tile("CPU of the server", "cpu", percent, percent(cpu), "of one core");
  tile("Memory", "memory", bytes, bytes(memory), `${bytes(usage.pss_bytes)} of it the server's own`);
  tile("Held for clients", "held", bytes, bytes(held), `of at most ${bytes(status.memory.budget_bytes)}`);

  const cache = status.cache;
  const facts = [];
  if (cache) {
    const then = (old && old.cache) || {};
    const [hits, misses] = [cache.hits - (then.hits || 0), cache.misses - (then.misses || 0)];
    const served = cache.hits + cache.stale + cache.revalidated + cache.coalesced;
    facts.push(["Hit rate now", hits + misses > 0 ? percent(hits / (hits + misses)) : nothing],
      ["Hit rate since the start", served + cache.misses > 0 ? percent(served / (served + cache.misses)) : nothing],
      ["Memory", `${bytes(cache.bytes)} of ${bytes(cache.bytes_max)}`], ["Responses", whole(cache.objects)],
      ["Hits", whole(cache.hits)], ["Stale", whole(cache.stale)], ["Misses", whole(cache.misses)], ["Waited together", whole(cache.coalesced)],
      ["Validated", whole(cache.revalidated)], ["Passed", whole(cache.passed)], ["Evicted", whole(cache.evicted)], ["Purged", whole(cache.purged)]);
  } else facts.push(["No cache.", ""]);
  const list = byId("cache-facts");
  if (list.children.length !== facts.length) list.replaceChildren(...facts.map(() => make("div", null, make("dt"), make("dd"))));
  facts.forEach(([name, value], at) => {
    setText(list.children[at].children[0], name);
    setText(list.children[at].children[1], value);
  });
  [before, previous] = [status, earlier];
}

// Events
const levels = { error: 1, app: 1, warn: 2, info: 3 };
function shownLines() {
  const most = Number(byId("level").value);
  const wanted = byId("filter").value.toLowerCase();
  return lines.filter((line) => (levels[line.level] || 3) <= most && line.text.toLowerCase().includes(wanted));
}
function lineItem(line) {
  const at = new Date(line.unix_ms);
  const tone = { error: "bad", warn: "warn" }[line.level] || "";
  return make("li", null, make("time", { datetime: at.toISOString() }, at.toLocaleTimeString("en-GB")),
    make("span", { class: `chip ${tone}` }, line.level), make("span", { class: "code" }, line.text));
}
// Oldest first, so that tracebacks are readable. The view follows the newest line unless it was scrolled up.
function showLines() {
  const list = byId("lines");
  const follows = list.scrollHeight - list.scrollTop - list.clientHeight < 24;
  const shown = shownLines().map(lineItem);
  list.replaceChildren(...(shown.length ? shown : [make("li", { class: "empty" }, "No lines.")]));
  if (follows) list.scrollTop = list.scrollHeight;
}
function take(line) {
  if (line.number <= newest) return;
  newest = line.number;
  lines.push(line);
  if (lines.length > LINES_MAX) lines.shift();
  if (!paused) showLines();
}

// The server
// If a token is required, no requests are sent until there is one. A wrong token is not sent again, because the server counts these.
let locked = false;
function lock() {
  locked = true;
  sessionStorage.removeItem("token");
  setText(byId("state"), "token needed");
  byId("state").className = "chip bad";
  if (!document.querySelector("dialog[open]")) open("token-dialog");
}
async function ask(method, path, body) {
  const headers = { Accept: "application/json" };
  if (token()) headers.Authorization = `Bearer ${token()}`;
  if (method !== "GET") headers["Content-Type"] = "application/json";
  const response = await fetch(path, { method, headers, body: method === "GET" ? undefined : JSON.stringify(body || {}), cache: "no-store", credentials: "same-origin" });
  const answer = await response.text();
  let document = null;
  try { document = JSON.parse(answer); } catch { /* not JSON */ }
  if (!response.ok) {
    const why = ((document && (document.detail || document.error || document.title)) || answer.slice(0, 400)).trim().replace(/\.$/, "");
    const hint = response.status === 401 ? " Give a token with the button Token." : response.status === 403 && token() ? " The token's role does not allow it." : "";
    const error = new Error(`${response.status}: ${why}.${hint}`);
    error.status = response.status;
    throw error;
  }
  return document;
}
async function refresh() {
  if (paused || locked || document.hidden) return;
  try {
    const status = await ask("GET", "/v1/status");
    if (known !== status.pid) {
      history = [];
      // Without the history, the charts begin now.
      try { remember(await ask("GET", "/v1/history")); } catch (error) { if (error.status === 401) throw error; }
      known = status.pid;
    }
    try {
      const answer = await ask("GET", "/v1/upstreams");
      groups = Array.isArray(answer) ? answer : (answer && (answer.groups || answer.upstreams)) || null;
    } catch (error) { groups = null; }
    show(status);
    if (byId("said").dataset.lost) { delete byId("said").dataset.lost; say("The server answers again."); }
  } catch (error) {
    if (error.status === 401) {
      lock();
      say(error.message, true);
      return;
    }
    setText(byId("state"), "no answer");
    byId("state").className = "chip bad";
    byId("said").dataset.lost = "yes";
    say(`The server does not answer: ${error.message}`, true);
  }
}
async function follow() {
  for (;;) {
    if (locked) return;
    try {
      const headers = newest ? { "Last-Event-ID": String(newest) } : {};
      if (token()) headers.Authorization = `Bearer ${token()}`;
      const response = await fetch("/v1/events", { headers, cache: "no-store" });
      if (response.status === 401) lock();
      if (response.ok) {
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = "", isFirst = true;
        for (;;) {
          const { value, done } = await reader.read();
          if (done) break;
          const blocks = (rest + value).split("\n\n");
          rest = blocks.pop();
          for (const block of blocks) {
            const data = block.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
            if (!data) continue;
            const line = JSON.parse(data);
            // A new server process numbers its lines from 1 again, and sends its last ones.
            if (isFirst && line.number <= newest) { newest = 0; lines = []; }
            isFirst = false;
            take(line);
          }
        }
      }
    } catch { /* retried below */ }
    await new Promise((done) => setTimeout(done, 3000));
  }
}

// Actions
let asked = 0;
function confirmed(title, explained) {
  setText(byId("ask-title"), title);
  setText(byId("ask-text"), explained);
  setText(byId("ask-yes"), title.split(" ")[0]);
  const dialog = byId("ask");
  dialog.returnValue = "no";
  dialog.showModal();
  // The close event of an earlier dialog may arrive after this one was opened.
  const number = ++asked;
  return new Promise((done) => {
    const closed = () => {
      if (number === asked && dialog.open) return;
      dialog.removeEventListener("close", closed);
      done(number === asked && dialog.returnValue === "yes");
    };
    dialog.addEventListener("close", closed);
  });
}
async function act(title, explained, method, path, body) {
  if (!(await confirmed(title, explained))) return;
  say(`${title} …`);
  try {
    const answer = await ask(method, path, body);
    const warnings = ((answer && answer.warnings) || []).map((warning) => `\nwarning: ${warning}`).join("");
    say(`${title}: ${(answer && (answer.done || answer.message)) || "done"}${warnings}`);
  } catch (error) {
    say(`${title}: ${error.message}`, true);
  }
  refresh();
}
const reload = () => act("Reload the configuration", "The server reads its configuration file again. If the file is not valid, nothing changes.", "POST", "/v1/reload");
const restart = (name) => act(`Restart ${name}`, "New workers take over when they are ready; no request is lost.", "POST", `/v1/applications/${encodeURIComponent(name)}/restart`);
function drain(server) {
  const state = server.admin === "ready" ? "drain" : "ready";
  const explained = state === "drain" ? "The server gets no new requests; requests under way finish." : "The server gets requests again.";
  return act(`${state === "drain" ? "Drain" : "Set"} ${server.url}${state === "ready" ? " ready" : ""}`, explained, "PATCH",
    `/v1/upstreams/${encodeURIComponent(server.group)}/${encodeURIComponent(server.url)}`, { state });
}
function pause() {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  setText(byId("pause"), paused ? "Continue" : "Pause");
  if (!paused) { showLines(); refresh(); }
}
function open(id) { byId(id).returnValue = "no"; byId(id).showModal(); }
byId("pause").addEventListener("click", pause);
byId("reload").addEventListener("click", reload);
byId("help").addEventListener("click", () => open("keys"));
byId("token").addEventListener("click", () => { byId("token-value").value = token(); open("token-dialog"); });
// Not a submit button, because Enter would activate it.
byId("token-cancel").addEventListener("click", () => byId("token-dialog").close("no"));
byId("token-dialog").addEventListener("close", () => {
  if (byId("token-dialog").returnValue !== "yes") return;
  sessionStorage.setItem("token", byId("token-value").value.trim());
  location.reload();
});
byId("level").addEventListener("change", showLines);
byId("filter").addEventListener("input", showLines);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
  if (event.target.matches("input, select, textarea")) return;
  const sections = ["routes", "upstreams", "applications", "certificates", "cache", "events"];
  if (event.key === "p") pause();
  else if (event.key === "r") reload();
  else if (event.key === "?") open("keys");
  else if (event.key === "/") byId("filter").focus();
  else if (sections[Number(event.key) - 1]) {
    const section = byId(sections[Number(event.key) - 1]);
    section.scrollIntoView();
    section.focus({ preventScroll: true });
  } else return;
  event.preventDefault();
});
showLines();
refresh();
setInterval(refresh, EVERY_MS);
document.addEventListener("visibilitychange", refresh);
follow();
