"use strict";
const byId = (id) => document.getElementById(id);
const ROW = 56, BLOCK = 256, ACROSS = 16, NONE = 65535;
let core = null, shown = null, at = -1, pending = 0;
const columns = new Map(), waiting = new Map();

// Every text of the run is set as textContent: it cannot become markup.
function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
function unpack(text, Kind) {
  if (!text) return null;
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Kind(bytes.buffer);
}

const windtunnel = {
  core(data) {
    core = { ...data, names: data.names.split("\n"), targets: unpack(data.targets, Uint16Array), clean: unpack(data.clean, Uint16Array), statuses: data.statuses.map((s) => unpack(s, Uint8Array)) };
    core.n = core.names.length;
    start();
  },
  column(index, data) {
    const extras = {};
    for (const [i, text] of Object.entries(data.extras)) extras[i] = unpack(text, Float32Array);
    columns.set(index, { verdict: unpack(data.verdict, Uint8Array), answer: unpack(data.answer, Uint16Array), distance: unpack(data.distance, Float32Array), confidence: unpack(data.confidence, Uint16Array), extras });
    for (const done of waiting.get(index) || []) done();
    waiting.delete(index);
  },
};

// The columns of an assessment come when they are first asked for.
function load(index) {
  if (columns.has(index)) return Promise.resolve();
  return new Promise((done) => {
    if (waiting.has(index)) return waiting.get(index).push(done);
    waiting.set(index, [done]);
    read(`column-${index}`);
  });
}
// `windtunnel view` serves JSON; a page on disk can only load scripts.
async function read(name) {
  if ("served" in document.documentElement.dataset) {
    const answer = await fetch(`${name}.json`);
    if (!answer.ok) { byId("count").textContent = await answer.text(); return; }
    const [method, ...values] = await answer.json();
    windtunnel[method](...values);
    return;
  }
  const script = element("script");
  script.src = `${name}.js`;
  document.body.append(script);
}
// The selection is in the fragment, which no server sees: a link holds it and nothing else.
const fields = () => [...byId("filters").querySelectorAll("input, select")];
function writeFragment() {
  const chosen = fields().filter((f) => (f.type === "checkbox" ? f.checked : f.value !== (f.id === "run" ? "0" : ""))).map((f) => [f.id, f.type === "checkbox" ? "1" : f.value]);
  const fragment = new URLSearchParams(chosen).toString();
  if (fragment !== location.hash.slice(1)) history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname);
}
function readFragment() {
  const chosen = new URLSearchParams(location.hash.slice(1));
  for (const field of fields()) {
    const value = chosen.get(field.id);
    if (field.type === "checkbox") field.checked = value === "1";
    else if (value !== null && (field.tagName !== "SELECT" || [...field.options].some((o) => o.value === value))) field.value = value;
  }
}

const className = (k) => core.classes[k] ?? String(k);
const option = (select, value, text) => { const made = element("option", text); made.value = value; select.append(made); };

function start() {
  const numbers = (values) => [...new Set(values)].sort((a, b) => a - b);
  for (const k of numbers(core.targets)) option(byId("target"), k, className(k));
  for (const k of numbers(core.clean)) option(byId("clean"), k, className(k));
  for (let k = 0; k < core.classes.length; k++) option(byId("answer"), k, className(k));
  core.runs.forEach((run, i) => option(byId("run"), i, run));
  core.status_names.forEach((words, i) => { if (words) option(byId("status"), i, words); });
  core.sources.forEach((s, i) => option(byId("source"), i, (core.runs.length > 1 ? `${core.runs[s.run]}: ` : "") + `${s.name} (${s.region})`));
  for (const [code, words] of Object.entries(core.verdicts)) option(byId("verdict"), code, words);
  byId("run-label").hidden = byId("flip-label").hidden = core.runs.length < 2;
  readFragment();
  apply();
}

const number = (id) => (byId(id).value === "" ? null : Number(byId(id).value));
const chosen = (id) => (byId(id).value === "" ? null : Number(byId(id).value));

// The same assessment of another run: a flip is a verdict that differs between the first run that has it and the last.
function flipPair(index) {
  const of = (s) => core.sources.findIndex((o) => o.name === core.sources[s].name && o.run !== core.sources[s].run);
  if (index !== null) { const other = of(index); return other < 0 ? null : [Math.min(index, other), Math.max(index, other)]; }
  return null;
}
const held = (v) => v === 2 || v === 3 || v === 7;

async function apply() {
  writeFragment();
  const ticket = ++pending, source = chosen("source"), flip = byId("flip").value, pair = flip ? flipPair(source) : null;
  const needed = [...(source === null ? [] : [source]), ...(pair || [])];
  await Promise.all(needed.map(load));
  if (ticket !== pending) return;
  const find = byId("find").value.trim().toLowerCase(), target = chosen("target"), clean = chosen("clean"), status = chosen("status"), verdict = chosen("verdict"), answer = chosen("answer");
  const [low, high, sure, most] = ["distance-low", "distance-high", "confidence-low", "confidence-high"].map(number);
  const run = Number(byId("run").value || 0), states = core.statuses[run], column = source === null ? null : columns.get(source);
  const first = core.statuses[0], last = core.statuses[core.statuses.length - 1];
  const found = new Uint32Array(core.n);
  let count = 0;
  for (let i = 0; i < core.n; i++) {
    if (target !== null && core.targets[i] !== target) continue;
    if (clean !== null && core.clean[i] !== clean) continue;
    if (status !== null && states[i] !== status) continue;
    if (column) {
      const v = column.verdict[i];
      if (v === 0) continue;
      if (verdict !== null && v !== verdict) continue;
      if (answer !== null && !(column.answer && column.answer[i] === answer)) continue;
      if (low !== null && !(column.distance && column.distance[i] >= low)) continue;
      if (high !== null && !(column.distance && column.distance[i] <= high)) continue;
      if ((sure !== null || most !== null)) {
        const c = column.confidence ? column.confidence[i] : NONE;
        if (c === NONE || (sure !== null && c < sure * 10) || (most !== null && c > most * 10)) continue;
      }
    }
    if (flip) {
      // Without an assessment the status counts: broken or misclassified is lost; of a sample not attacked nothing is known.
      const known = (s) => s[i] !== 0 && core.status_names[s[i]] !== "not attacked";
      const [a, b] = pair ? pair.map((s) => held(columns.get(s).verdict[i])) : [first, last].map((s) => ["certified", "survived"].includes(core.status_names[s[i]]));
      if (pair ? columns.get(pair[0]).verdict[i] === 0 || columns.get(pair[1]).verdict[i] === 0 : !known(first) || !known(last)) continue;
      if (a === b || (flip === "lost" && !a) || (flip === "gained" && a)) continue;
    }
    if (find && !core.names[i].toLowerCase().includes(find)) continue;
    found[count++] = i;
  }
  shown = sorted(found.subarray(0, count), column, states);
  at = -1;
  byId("count").textContent = `${count.toLocaleString("en")} of ${core.n.toLocaleString("en")} samples` + (column === null && (verdict !== null || answer !== null || low !== null || high !== null || sure !== null || most !== null) ? "; choose an assessment to filter by its verdict, answer, distance or confidence" : "");
  byId("space").style.height = `${count * ROW}px`;
  byId("list").scrollTop = 0;
  draw();
}

function sorted(found, column, states) {
  const by = byId("sort").value, sign = byId("down").checked ? -1 : 1;
  const value = { target: (i) => core.targets[i], status: (i) => states[i], distance: column && column.distance && ((i) => column.distance[i]), confidence: column && column.confidence && ((i) => (column.confidence[i] === NONE ? NaN : column.confidence[i])) }[by];
  if (by === "name") return found.slice().sort((a, b) => (core.names[a] < core.names[b] ? -sign : core.names[a] > core.names[b] ? sign : a - b));
  if (!value) return by || sign > 0 ? found : found.slice().reverse();
  // What has no value comes last either way.
  const keys = new Float64Array(core.n);
  for (const i of found) { const v = value(i); keys[i] = Number.isNaN(v) ? Infinity : sign * v; }
  return found.slice().sort((a, b) => (keys[a] === keys[b] ? a - b : keys[a] < keys[b] ? -1 : 1));
}

function tile(sheet, i, side) {
  const made = element("span", undefined, "tile");
  if (!core.tile) return made;
  const [width, height] = core.tile, scale = side / Math.max(width, height), place = i % BLOCK;
  made.style.width = `${width * scale}px`;
  made.style.height = `${height * scale}px`;
  made.style.backgroundImage = `url("${sheet}")`;
  made.style.backgroundSize = `${ACROSS * width * scale}px auto`;
  made.style.backgroundPosition = `-${(place % ACROSS) * width * scale}px -${Math.floor(place / ACROSS) * height * scale}px`;
  return made;
}
const block = (i) => Math.floor(i / BLOCK);

function draw() {
  const list = byId("list"), from = Math.max(0, Math.floor(list.scrollTop / ROW) - 3), to = Math.min(shown.length, from + Math.ceil(list.clientHeight / ROW) + 7);
  const source = chosen("source"), column = source === null ? null : columns.get(source), states = core.statuses[Number(byId("run").value || 0)];
  const rows = [];
  for (let k = from; k < to; k++) {
    const i = shown[k], row = element("div", undefined, k === at ? "row at" : "row");
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(k === at));
    row.dataset.place = k;
    const words = core.status_names[states[i]];
    const right = core.targets[i] === core.clean[i] ? className(core.targets[i]) : `${className(core.targets[i])} → ${className(core.clean[i])}`;
    row.append(tile(`sheets/clean-${block(i)}.png`, i, 44), element("span", core.names[i]), element("span", right), element("span", words, words.split(" ")[0]), element("span", column ? inWords(column, i) : ""));
    rows.push(row);
  }
  byId("rows").style.transform = `translateY(${from * ROW}px)`;
  byId("rows").replaceChildren(...rows);
}
function inWords(column, i) {
  const parts = [core.verdicts[column.verdict[i]] || "not among its samples"];
  if (column.answer && column.answer[i] !== NONE) parts.push(`→ ${className(column.answer[i])}`);
  if (column.distance && Number.isFinite(column.distance[i])) parts.push(column.distance[i].toPrecision(3));
  if (column.confidence && column.confidence[i] !== NONE) parts.push(`${(column.confidence[i] / 10).toFixed(1)} %`);
  return parts.join(" · ");
}

async function open(k) {
  if (!shown || k < 0 || k >= shown.length) return;
  at = k;
  const i = shown[k], list = byId("list");
  if (k * ROW < list.scrollTop) list.scrollTop = k * ROW;
  if ((k + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (k + 1) * ROW - list.clientHeight;
  draw();
  if (byId("detail").hidden) return;
  await Promise.all(core.sources.map((_, s) => load(s)));
  if (at !== k) return;
  byId("detail-name").textContent = core.names[i];
  byId("detail-words").textContent = `Label ${className(core.targets[i])}, clean prediction ${className(core.clean[i])}. ` + core.runs.map((run, r) => `${core.runs.length > 1 ? `${run}: ` : ""}${core.status_names[core.statuses[r][i]]}`).join("; ");
  const line = (cells) => { const tr = element("tr"); for (const cell of cells) { const td = element("td"); td.append(...(Array.isArray(cell) ? cell : [cell])); tr.append(td); } return tr; };
  const rows = [line(["clean", tile(`sheets/clean-${block(i)}.png`, i, 72), "", core.targets[i] === core.clean[i] ? "right" : "misclassified", className(core.clean[i]), "", ""])];
  core.sources.forEach((s, index) => {
    const column = columns.get(index), v = column.verdict[i];
    if (v === 0) return;
    const has = s.images && column.answer && column.answer[i] !== NONE;
    const also = Object.entries(column.extras).filter(([, values]) => Number.isFinite(values[i])).map(([e, values]) => element("small", `${core.extras[e]} ${Number(values[i].toPrecision(3))}`));
    const sure = column.confidence && column.confidence[i] !== NONE ? [element("small", `${(column.confidence[i] / 10).toFixed(1)} % sure`)] : [];
    rows.push(line([
      [s.name, element("small", (core.runs.length > 1 ? `${core.runs[s.run]}, ` : "") + s.region)],
      has ? tile(`sheets/${index}-${block(i)}.png`, i, 72) : "", has ? tile(`sheets/${index}-${block(i)}-change.png`, i, 72) : "",
      core.verdicts[v], [column.answer && column.answer[i] !== NONE ? className(column.answer[i]) : "", ...sure],
      column.distance && Number.isFinite(column.distance[i]) ? column.distance[i].toPrecision(3) : "", also,
    ]));
  });
  byId("detail-rows").replaceChildren(...rows);
}

let soon = 0;
byId("filters").addEventListener("input", () => { cancelAnimationFrame(soon); soon = requestAnimationFrame(apply); });
byId("filters").addEventListener("reset", () => setTimeout(apply));
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("list").addEventListener("scroll", () => draw(), { passive: true });
addEventListener("resize", () => shown && draw());
byId("list").addEventListener("click", (event) => {
  const row = event.target.closest(".row");
  if (!row) return;
  byId("detail").hidden = false;
  open(Number(row.dataset.place));
});
byId("close").addEventListener("click", () => { byId("detail").hidden = true; });
addEventListener("keydown", (event) => {
  if (event.key === "Escape") { byId("detail").hidden = true; byId("list").focus(); return; }
  if (event.target.matches("input:not([type=checkbox]), select")) return;
  const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[event.key];
  if (step) { event.preventDefault(); open(Math.max(0, Math.min(shown.length - 1, at + step))); }
  if (event.key === "Enter" && at >= 0) { byId("detail").hidden = false; open(at); }
  if (event.key === "/") { event.preventDefault(); byId("find").focus(); }
});
addEventListener("hashchange", () => { if (core) { byId("filters").reset(); readFragment(); } });
if ("served" in document.documentElement.dataset) read("core");
