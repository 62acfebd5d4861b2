"use strict";
// Shows a document of /docs/, which is Markdown, at the same path below /read/. Nothing of it is taken for HTML.
function element(name, content, attributes = {}) {
  const made = document.createElement(name);
  made.append(...[content].flat());
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// Code, links, and what is bold or slanted, in this order.
const INLINE = /(`+)(.+?)\1|\[((?:[^[\]]|\[[^\]]*\])*)\]\(([^()\s]*)\)|\*\*(.+?)\*\*|(?<![\w*])\*([^*\s][^*]*?)\*(?![\w*])|<(https?:[^>\s]+)>/s;
function inline(text) {
  const found = INLINE.exec(text);
  if (!found) return text ? [text.replace(/\\([\\`*_[\]|<>])/g, "$1")] : [];
  const [whole, ticks, code, label, target, bold, slanted, url] = found;
  const made = ticks ? element("code", code.trim()) : label !== undefined ? element("a", inline(label), { href: address(target) })
    : url ? element("a", url, { href: url }) : bold ? element("b", inline(bold)) : element("i", inline(slanted));
  return [...inline(text.slice(0, found.index)), made, ...inline(text.slice(found.index + whole.length))];
}
// Other documents are shown as this one is, and their other files as they are.
function address(target) {
  const url = new URL(target, location.href);
  if (!/^https?:$/.test(url.protocol)) return "#";
  if (url.origin === location.origin && !url.pathname.endsWith(".md")) url.pathname = url.pathname.replace(/^\/read\//, "/docs/");
  return url.href;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|(?=(?:[^`]*`[^`]*`)*[^`]*$)/).map((cell) => cell.trim().replaceAll("\\|", "|"));
const anchors = new Map();
function heading(level, text) {
  const made = element(`h${level}`, inline(text));
  const name = made.textContent.toLowerCase().replace(/[^\p{L}\p{N} _-]/gu, "").replaceAll(" ", "-");
  const count = anchors.get(name) || 0;
  anchors.set(name, count + 1);
  made.id = count ? `${name}-${count}` : name;
  return made;
}
const ITEM = /^( *)([-*]|\d+\.) +/;
function blocks(lines) {
  const made = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at];
    const fence = /^(```+|~~~+)/.exec(line);
    const title = /^(#{1,4}) +(.*)$/.exec(line);
    const item = ITEM.exec(line);
    if (!line.trim()) at += 1;
    else if (fence) {
      let end = at + 1;
      while (end < lines.length && !lines[end].startsWith(fence[1])) end += 1;
      made.push(element("pre", element("code", lines.slice(at + 1, end).join("\n"))));
      at = end + 1;
    } else if (title) {
      made.push(heading(title[1].length, title[2]));
      at += 1;
    } else if (line.startsWith("|")) {
      let end = at;
      while (end < lines.length && lines[end].startsWith("|")) end += 1;
      const row = (name) => (text) => element("tr", cells(text).map((cell) => element(name, inline(cell))));
      made.push(element("div", element("table", [row("th")(line), ...lines.slice(at + 2, end).map(row("td"))]), { class: "scroll", tabindex: "0" }));
      at = end;
    } else if (line.startsWith(">")) {
      let end = at;
      while (end < lines.length && lines[end].startsWith(">")) end += 1;
      made.push(element("blockquote", blocks(lines.slice(at, end).map((text) => text.replace(/^> ?/, "")))));
      at = end;
    } else if (item) {
      const list = element(/\d/.test(item[2]) ? "ol" : "ul", []);
      while (at < lines.length && ITEM.exec(lines[at])?.[1].length === item[1].length) {
        const indent = ITEM.exec(lines[at])[0].length;
        const own = [lines[at].slice(indent)];
        const isOwn = (text) => (text.trim() ? text.startsWith(" ".repeat(item[1].length + 2)) : true);
        for (at += 1; at < lines.length && isOwn(lines[at]); at += 1) own.push(lines[at].slice(Math.min(indent, lines[at].search(/\S|$/))));
        const content = blocks(own);
        list.append(element("li", content[0]?.tagName === "P" ? [...content[0].childNodes, ...content.slice(1)] : content));
        while (at < lines.length && !lines[at].trim()) at += 1;
      }
      made.push(list);
    } else {
      let end = at + 1;
      while (end < lines.length && lines[end].trim() && !/^(#{1,4} |```|~~~|\||>)/.test(lines[end]) && !ITEM.test(lines[end])) end += 1;
      made.push(element("p", inline(lines.slice(at, end).join("\n"))));
      at = end;
    }
  }
  return made;
}

async function show() {
  const source = location.pathname.replace(/^\/read\//, "/docs/");
  document.getElementById("source").href = source;
  const page = document.getElementById("page");
  const response = await fetch(source);
  if (!response.ok) {
    page.replaceChildren(element("h1", "Not here"), element("p", [`There is no document ${source}. `, element("a", "All documents", { href: "/read/SUMMARY.md" })]));
    return;
  }
  page.replaceChildren(...blocks((await response.text()).split("\n")));
  document.title = `${page.querySelector("h1")?.textContent ?? "Documents"} · Komainu`;
  if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

show();
