"use strict";
// The switch and the bench of the demo page. It asks this server alone.
const MODES = {
  file: ["A file", "sent by the server itself", 'path  = "/via/file/*"\nfiles = "public/via"'],
  proxy: ["A proxy", "the file, one HTTP hop away", `path  = "/via/proxy/*"\nproxy = "http://${location.host}"`],
  cache: ["A cache", "the proxy, asked once", `path  = "/via/cache/*"\nproxy = "http://${location.host}"\ncache = true`],
  native: ["C", "a native handler", '[apps.demo-native]\nhandler = "hello.so"'],
  psgi: ["Perl", "a PSGI application", '[apps.demo-psgi]\npsgi = "apps/hello.psgi"'],
  rack: ["Ruby", "a Rack application", '[apps.demo-rack]\nrack = "apps/config.ru"'],
  wsgi: ["Python, WSGI", "an application", '[apps.demo-wsgi]\nwsgi = "hello:wsgi"'],
  asgi: ["Python, ASGI", "in an event loop", '[apps.demo-asgi]\nasgi = "hello:asgi"'],
  php: ["PHP", "inside, without PHP-FPM", '[apps.demo-php]\nphp = "apps/php"'],
};
const part = (id) => document.getElementById(id);
const results = new Map();
let mode = "file";
let isMeasuring = false;

function element(name, content, attributes = {}) {
  const made = document.createElement(name);
  made.append(...[content].flat());
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

async function show(chosen) {
  mode = chosen;
  const [name, about, lines] = MODES[mode];
  part("name").textContent = name;
  part("about").textContent = about;
  part("lines").textContent = lines;
  const began = performance.now();
  try {
    const response = await fetch(`/via/${mode}/hello`, { cache: "no-store" });
    const body = await response.text();
    if (mode !== chosen) return;
    const fields = ["content-type", "content-length", "cache-status", "via", "etag"];
    const head = fields.filter((field) => response.headers.has(field)).map((field) => `${field}: ${response.headers.get(field)}`);
    part("took").textContent = `${response.status} after ${(performance.now() - began).toFixed(1)} ms`;
    part("answer").textContent = `${head.join("\n")}\n\n${body}`;
  } catch (error) {
    part("took").textContent = `no answer: ${error.message}`;
    part("answer").textContent = "";
  }
}

function draw() {
  const rows = [...results].sort(([, one], [, other]) => one.cpu_us_per_request - other.cpu_us_per_request);
  const most = Math.max(...rows.map(([, figures]) => figures.cpu_us_per_request));
  const file = results.get("file")?.cpu_us_per_request ?? 0;
  part("chart").hidden = rows.length === 0;
  part("key").hidden = !results.has("file") || rows.length < 2;
  part("chart").tBodies[0].replaceChildren(...rows.map(([name, figures]) => {
    const cpu = figures.cpu_us_per_request;
    const below = Math.min(file, cpu);
    const width = (us) => `width: ${(100 * us / most).toFixed(1)}%`;
    const bar = element("div", [
      element("i", [], { class: "file", style: width(below) }),
      ...(cpu > below ? [element("i", [], { class: "hop", style: width(cpu - below) })] : []),
    ], { class: "bar", "aria-hidden": "true" });
    return element("tr", [
      element("th", MODES[name][0], { scope: "row" }), element("td", bar),
      element("td", cpu.toFixed(1), { class: "number" }),
      element("td", Math.round(figures.requests_per_s).toLocaleString("en"), { class: "number" }),
      element("td", (figures.p50_us / 1000).toFixed(2), { class: "number late" }),
    ]);
  }));
}

async function measure(names) {
  if (isMeasuring) return;
  isMeasuring = true;
  for (const button of [part("one"), part("all")]) button.disabled = true;
  let failure = "";
  for (const [at, name] of names.entries()) {
    part("state").textContent = `Measuring ${MODES[name][0]} (${at + 1} of ${names.length}) …`;
    try {
      const response = await fetch(`/bench/${name}`, { method: "POST", headers: { "X-Demo": "bench" } });
      const figures = await response.json().catch(() => ({ error: `the bench is not there (${response.status}): it needs python3` }));
      if (!response.ok || figures.error) throw new Error(figures.error ?? `status ${response.status}`);
      if (typeof figures.cpu_us_per_request !== "number") throw new Error("the bench has seen no CPU time of the server");
      results.set(name, figures);
      draw();
    } catch (error) {
      failure = `${MODES[name][0]}: ${error.message}`;
      break;
    }
  }
  part("state").textContent = failure || (results.has("file") ? "" : "Measure the file too, to see what is on top of it.");
  for (const button of [part("one"), part("all")]) button.disabled = false;
  isMeasuring = false;
}

async function begin() {
  let names = ["file"];
  try {
    const response = await fetch("/modes.json");
    if (response.ok) names = (await response.json()).filter((name) => name in MODES);
  } catch { /* The page alone, without what scripts/demo puts beside it. */ }
  const list = document.querySelector(".modes");
  // As many columns as fill all rows, or leave the smallest hole.
  const hole = (columns) => (columns - (names.length % columns)) % columns;
  list.style.setProperty("--columns", [5, 4, 3].sort((one, other) => hole(one) - hole(other))[0]);
  for (const name of names) {
    const input = element("input", [], { type: "radio", name: "mode", value: name });
    input.checked = name === mode;
    input.addEventListener("change", () => show(name));
    list.append(element("label", [input, element("b", MODES[name][0]), element("span", MODES[name][1])]));
  }
  part("one").addEventListener("click", () => measure([mode]));
  part("all").addEventListener("click", () => measure(names));
  part("switch").hidden = false;
  await show(mode);
}

// Each command names the address that this page came from, and has a button that copies it.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a secure context: by a selection.
    const area = element("textarea", text);
    document.body.append(area);
    area.select();
    const isDone = document.execCommand("copy");
    area.remove();
    if (!isDone) throw new Error("the browser does not allow it");
  }
}
for (const code of document.querySelectorAll("section > code")) {
  const command = code.textContent.replaceAll("localhost:8080", location.host);
  // Lines end between words alone, not behind the hyphens of options.
  code.replaceChildren(...command.split(" ").flatMap((word, at) => [at ? " " : "", element("span", word)]));
  const button = element("button", "Copy", { type: "button", "aria-label": `Copy ${command}` });
  button.addEventListener("click", async () => {
    button.textContent = await copy(command).then(() => "Copied", () => "Not copied");
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  const box = element("div", [], { class: "command" });
  code.replaceWith(box);
  box.append(code, button);
}

begin();
