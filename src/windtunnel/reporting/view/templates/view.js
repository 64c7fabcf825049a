"use strict";
const byId = (id) => document.getElementById(id);
const NONE = 65535; // a class that is not there
const SMALL = { folder: "sheets", samples: 256, across: 16 }, LARGE = { folder: "large", samples: 4, across: 2 };
// Pixels of a cell of the list and of the picture in it; rows of the table are as wide as the list.
const MODES = { "": { width: 52, height: 54, side: 44 }, large: { width: 148, height: 172, side: 128 }, table: { height: 54, side: 44 } };
const MARKS = { broken: "✕", certified: "✓", survived: "○", misclassified: "!", "not attacked": "–" };
let core = null, shown = null, position = -1, opened = -1, ticket = 0;
const columns = new Map(), waiting = new Map();

// Every text of the run is set as textContent: it cannot become markup.
function element(name, text, className) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}
function withChildren(node, ...children) { node.append(...children); return node; }
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
    for (const s of core.sources) s.key = s.run ? `${s.name}.${s.run}` : s.name;
    start();
  },
  column(index, data) {
    const numbers = {};
    for (const [words, text] of Object.entries(data.numbers)) numbers[words] = unpack(text, Float32Array);
    columns.set(index, { verdict: unpack(data.verdict, Uint8Array), answer: unpack(data.answer, Uint16Array), numbers });
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

const value = (id) => byId(id).value;
const className = (k) => core.classes[k] ?? String(k);
const numberId = (words) => words.toLowerCase().replace(/[^a-z]+/g, "-").replace(/-$/, "");
const runPrefix = (r) => (core.runs.length > 1 ? `${core.runs[r].label}: ` : "");
const sourceIn = (name, run) => core.sources.findIndex((s) => s.name === name && s.run === run);
const keyed = (key) => core.sources.findIndex((s) => s.key === key);
const sourceWanted = () => (value("source") ? keyed(value("source")) : -1);
// Without an assessment, predictions and numbers are those of the nearest examples.
const sourceRead = () => (value("source") ? keyed(value("source")) : sourceIn(core.nearest, 0));
const numberWords = () => [...new Set(core.sources.flatMap((s) => s.numbers))];

// The selection and the open sample are in the fragment, which no server sees: a link holds them and nothing else.
const fields = () => [...byId("filters").querySelectorAll("input, select"), byId("show"), byId("picture")];
const isSet = (field) => (field.type === "checkbox" ? field.checked : field.value !== "");
function writeFragment(isNew) {
  const pairs = fields().filter(isSet).map((f) => [f.id, f.type === "checkbox" ? "1" : f.value]);
  if (opened >= 0) pairs.push(["sample", core.names[opened]]);
  const fragment = new URLSearchParams(pairs).toString();
  if (fragment === location.hash.slice(1)) return;
  history[isNew ? "pushState" : "replaceState"](null, "", fragment ? `#${fragment}` : location.pathname);
}
function readFragment() {
  const pairs = new URLSearchParams(location.hash.slice(1));
  for (const field of fields()) {
    const text = pairs.get(field.id) ?? "";
    if (field.type === "checkbox") field.checked = text === "1";
    else if (field.tagName !== "SELECT" || [...field.options].some((o) => o.value === text)) field.value = text;
  }
  opened = pairs.has("sample") ? core.names.indexOf(pairs.get("sample")) : -1;
  byId("verdicts").open ||= [...byId("verdicts").querySelectorAll("select")].some(isSet);
}

function select(id, words, options, all = "all") {
  const node = element("select");
  node.id = id;
  for (const [key, text] of [["", all], ...options]) addOption(node, key, text);
  return withChildren(element("label", `${words} `), node);
}
function addOption(node, key, text) {
  const option = element("option", text);
  option.value = key;
  node.append(option);
}

function start() {
  const classes = (values) => [...new Set(values)].filter((k) => k !== NONE).sort((a, b) => a - b);
  document.title = `${core.title}: every sample`;
  byId("title").textContent = core.title;
  for (const id of ["target", "clean"]) for (const k of classes(id === "target" ? core.targets : core.clean)) addOption(byId(id), k, className(k));
  core.classes.forEach((words, k) => addOption(byId("answer"), k, words));
  for (const [s, source] of core.sources.entries()) {
    const words = `${runPrefix(source.run)}${source.name}`;
    addOption(byId("source"), source.key, `${words} (${source.region})`);
    if (source.name !== core.nearest) byId("verdicts").append(select(`verdict-${source.key}`, words, source.verdicts.filter(Boolean).map((v) => [v, core.verdicts[v]])));
  }
  for (const words of numberWords()) {
    const ends = [["low", "from"], ["high", "to"]].map(([end, placeholder]) => Object.assign(element("input"), { id: `${numberId(words)}-${end}`, type: "number", step: "any", placeholder, ariaLabel: `${words}, ${placeholder}` }));
    const range = withChildren(element("fieldset"), element("legend", words), ...ends);
    range.dataset.words = words;
    byId("ranges").append(range);
  }
  core.runs.forEach((run, r) => {
    const present = core.status_names.map((words, code) => [code, words]).filter(([, words]) => words);
    byId("statuses").append(select(`status-${r}`, core.runs.length > 1 ? `Status in ${run.label}` : "Status", present));
    byId("runs").append(runLine(run, r, present));
  });
  const sorts = [...core.runs.map((run, r) => [`status-${r}`, core.runs.length > 1 ? `status in ${run.label}` : "status"]), ["verdict", "verdict"], ["answer", "prediction under it"], ...numberWords().map((words) => [numberId(words), nameOf(words)])];
  for (const [key, text] of sorts) addOption(byId("sort"), key, text);
  byId("flip-label").hidden = core.runs.length < 2;
  byId("verdicts").hidden = core.sources.every((s) => s.name === core.nearest);
  byId("picture-label").hidden = !core.tile || !core.sources.some((s) => s.images);
  byId("panel").open = innerWidth > 900;
  if (!core.tile) byId("show").replaceChildren(byId("show").lastElementChild);  // a table is all there is without pictures
  readFragment();
  apply();
}
// A run in a line: what it is of, and a button per status that filters by it.
function runLine(run, r, present) {
  const counts = new Uint32Array(core.status_names.length);
  for (const code of core.statuses[r]) counts[code]++;
  const line = withChildren(element("div", undefined, "run"), withChildren(element("p"), element("b", run.label), ` ${run.about}`));
  for (const [code, words] of present) {
    const button = withChildren(element("button", undefined, counts[code] ? "count" : "count none"), mark(words), element("b", counts[code].toLocaleString("en")), ` ${words}`);
    button.type = "button";
    button.dataset.status = `status-${r}=${code}`;
    button.addEventListener("click", () => { const field = byId(`status-${r}`); field.value = field.value === String(code) ? "" : String(code); apply(); });
    line.append(button);
  }
  return line;
}
function mark(words) {
  const node = element("span", MARKS[words] ?? "", `mark ${words.split(" ")[0]}`);
  node.ariaHidden = "true";
  return node;
}

// A flip is a verdict that differs between the first run that has the assessment and another, or a status.
function flipPair(s) {
  const other = s < 0 ? -1 : core.sources.findIndex((o) => o.name === core.sources[s].name && o.run !== core.sources[s].run);
  return other < 0 ? null : [Math.min(s, other), Math.max(s, other)];
}
const isRobust = (verdict) => verdict === 2 || verdict === 3 || verdict === 7;
function flipCondition(pair) {
  const flip = value("flip"), first = core.statuses[0], last = core.statuses[core.statuses.length - 1];
  // Without an assessment the status counts: broken or misclassified is lost; of a sample not attacked nothing is known.
  const known = (s, i) => s[i] !== 0 && core.status_names[s[i]] !== "not attacked";
  const robustStatus = (s, i) => ["certified", "survived"].includes(core.status_names[s[i]]);
  const [a, b] = pair ? pair.map((s) => columns.get(s).verdict) : [first, last];
  return (i) => {
    if (pair ? !a[i] || !b[i] : !known(a, i) || !known(b, i)) return false;
    const [before, after] = pair ? [isRobust(a[i]), isRobust(b[i])] : [robustStatus(a, i), robustStatus(b, i)];
    return before !== after && !(flip === "lost" && !before) && !(flip === "gained" && before);
  };
}
// The conditions of the panel, each a function of a sample; `column`: of the assessment that is read.
function conditions(column, pair) {
  const list = [], find = value("find").trim().toLowerCase();
  const equal = (id, values) => { if (value(id) !== "") { const wanted = Number(value(id)); list.push((i) => values !== null && values !== undefined && values[i] === wanted); } };
  equal("target", core.targets);
  equal("clean", core.clean);
  core.statuses.forEach((values, r) => equal(`status-${r}`, values));
  core.sources.forEach((s, index) => { if (byId(`verdict-${s.key}`)) equal(`verdict-${s.key}`, columns.get(index)?.verdict); });
  if (sourceWanted() >= 0) list.push((i) => column.verdict[i] !== 0);
  equal("answer", column?.answer);
  for (const words of numberWords()) {
    const [low, high] = ["low", "high"].map((end) => value(`${numberId(words)}-${end}`)), values = column?.numbers[words];
    if (low !== "") list.push((i) => values && values[i] >= Number(low));
    if (high !== "") list.push((i) => values && values[i] <= Number(high));
  }
  if (value("flip")) list.push(flipCondition(pair));
  if (find) list.push((i) => core.names[i].toLowerCase().includes(find));
  return list;
}

async function apply() {
  writeFragment();
  const mine = ++ticket, source = sourceRead(), numbers = core.sources[source]?.numbers ?? [];
  for (const range of byId("ranges").children) {
    range.hidden = !numbers.includes(range.dataset.words);
    if (range.hidden) for (const input of range.querySelectorAll("input")) input.value = "";
  }
  for (const option of byId("sort").options) option.hidden = numberWords().some((words) => numberId(words) === option.value) && !numbers.map(numberId).includes(option.value);
  const ofColumn = value("sort") === "verdict" || value("sort") === "answer" || numbers.map(numberId).includes(value("sort"));
  const isAsked = value("show") === "table" || value("source") || value("answer") || ofColumn || [...byId("ranges").querySelectorAll("input")].some(isSet);
  const pair = value("flip") ? flipPair(sourceWanted()) : null;
  const wanted = core.sources.map((s, index) => index).filter((index) => { const field = byId(`verdict-${core.sources[index].key}`); return field && isSet(field); });
  const twins = value("show") === "table" && source >= 0 ? core.runs.map((_, r) => sourceIn(core.sources[source].name, r)).filter((s) => s >= 0) : [];
  await Promise.all([...wanted, ...twins, ...(pair || []), ...(isAsked && source >= 0 ? [source] : [])].map(load));
  if (mine !== ticket) return;
  const column = isAsked ? columns.get(source) : undefined, checks = conditions(column, pair), selected = new Uint32Array(core.n);
  let count = 0;
  for (let i = 0; i < core.n; i++) if (checks.every((holds) => holds(i))) selected[count++] = i;
  shown = sorted(selected.subarray(0, count), column);
  position = opened >= 0 ? shown.indexOf(opened) : -1;
  byId("count").textContent = `${count.toLocaleString("en")} of ${core.n.toLocaleString("en")} samples`;
  for (const button of byId("runs").querySelectorAll("button")) { const [id, code] = button.dataset.status.split("="); button.ariaPressed = String(value(id) === code); }
  byId("list").scrollTop = 0;
  draw();
  await showDetail();
}

function sorted(selected, column) {
  const by = value("sort"), sign = byId("down").checked ? -1 : 1;
  if (by === "name") return selected.slice().sort((a, b) => (core.names[a] < core.names[b] ? -sign : core.names[a] > core.names[b] ? sign : a - b));
  const run = by.startsWith("status-") ? Number(by.slice(7)) : -1, words = numberWords().find((w) => numberId(w) === by);
  const values = run >= 0 ? core.statuses[run] : { target: core.targets, clean: core.clean, verdict: column?.verdict, answer: column?.answer }[by] ?? column?.numbers[words];
  if (!values) return by || sign > 0 ? selected : selected.slice().reverse();
  const missing = by === "answer" || by === "clean" ? NONE : by === "verdict" || run >= 0 ? 0 : NaN;
  // What has no value comes last either way.
  const keys = new Float64Array(core.n);
  for (const i of selected) keys[i] = Object.is(values[i], missing) ? Infinity : sign * values[i];
  return selected.slice().sort((a, b) => (keys[a] === keys[b] ? a - b : keys[a] < keys[b] ? -1 : 1));
}

// A picture of a sample, cut out of a sheet. name: "clean", "3" or "3-change" as the files are called.
function tile(name, i, side, sheet = SMALL) {
  const node = element("span", undefined, "tile"), size = sheet === LARGE ? core.large.tile : core.tile;
  if (!size) return node;
  const [part, kind] = name.split("-"), block = Math.floor(i / sheet.samples), place = i % sheet.samples;
  const [width, height] = size.map((pixels) => (pixels * side) / Math.max(...size));
  Object.assign(node.style, {
    width: `${width}px`, height: `${height}px`, backgroundImage: `url("${sheet.folder}/${part}-${block}${kind ? `-${kind}` : ""}.png")`,
    backgroundSize: `${sheet.across * width}px auto`, backgroundPosition: `-${(place % sheet.across) * width}px -${Math.floor(place / sheet.across) * height}px`,
  });
  node.classList.toggle("photo", Boolean(core.large));
  return node;
}
function pictureName() {
  const read = sourceRead(), s = core.sources[read]?.images ? read : sourceIn(core.nearest, 0);
  if (!value("picture") || !core.sources[s]?.images) return "clean";
  return value("picture") === "difference" ? `${s}-change` : String(s);
}

const formatted = (number) => (Number.isFinite(number) ? String(Number(number.toPrecision(3))) : "");
// `confidence, %`: the name and the unit of a number.
const nameOf = (words) => words.split(", ")[0];
const withUnit = (words, number) => [formatted(number), Number.isFinite(number) && words.split(", ")[1]].filter(Boolean).join("\u00a0");
const answerOf = (column, i) => (column?.answer && column.answer[i] !== NONE ? className(column.answer[i]) : "");
const verdictOf = (column, i) => core.verdicts[column?.verdict[i]] ?? "";
const cleanOf = (i) => (core.clean[i] === NONE ? "" : className(core.clean[i]));
function statusChip(r, i) {
  const words = core.status_names[core.statuses[r][i]];
  return withChildren(element("span", undefined, `chip ${words.split(" ")[0]}`), mark(words), ` ${words}`);
}
// The columns of the table: head, key to sort by, and what stands in the row of a sample.
function tableColumns() {
  const source = sourceRead(), list = [
    { head: "", cell: (i) => tile(pictureName(), i, MODES.table.side), width: "48px" },
    { head: "sample", sort: "name", cell: (i) => core.names[i], width: "minmax(5rem, 1.6fr)" },
    { head: "class", sort: "target", cell: (i) => className(core.targets[i]), isWide: true },
    { head: "clean prediction", sort: "clean", cell: cleanOf, isWide: true },
    ...core.runs.map((run, r) => ({ head: `${runPrefix(r)}status`, sort: `status-${r}`, cell: (i) => statusChip(r, i), width: "minmax(6rem, 1fr)" })),
  ];
  if (source < 0) return list;
  core.runs.forEach((run, r) => {
    const s = sourceIn(core.sources[source].name, r), column = columns.get(s), isRead = s === source;
    if (!column) return;
    const numbers = core.sources[s].numbers, words = `${runPrefix(r)}${core.sources[s].name}`;
    if (core.runs.length > 1) {
      const small = (i) => element("small", [answerOf(column, i), column.numbers.distance?.[i] > 0 && formatted(column.numbers.distance[i])].filter(Boolean).join(" at "));
      list.push({ head: words, sort: isRead ? "verdict" : "", cell: (i) => withChildren(element("span", verdictOf(column, i)), small(i)), isWide: true, width: "minmax(7rem, 1.3fr)" });
      return;
    }
    if (core.sources[s].name !== core.nearest) list.push({ head: words, sort: "verdict", cell: (i) => verdictOf(column, i), isWide: true, width: "minmax(7rem, 1.2fr)" });
    list.push({ head: "prediction", sort: "answer", cell: (i) => answerOf(column, i), isWide: true });
    for (const number of numbers.slice(0, 3)) list.push({ head: nameOf(number), sort: numberId(number), cell: (i) => withUnit(number, column.numbers[number][i]), isWide: true });
  });
  return list;
}
function drawHeads(list) {
  const heads = byId("heads");
  heads.hidden = value("show") !== "table";
  if (heads.hidden) return;
  heads.replaceChildren(...list.map(({ head, sort, isWide }) => {
    if (!sort) return element("span", head, isWide ? "wide" : "");
    const isSorted = value("sort") === sort, button = element("button", isSorted ? `${head} ${byId("down").checked ? "↓" : "↑"}` : head, isWide ? "wide" : "");
    button.type = "button";
    button.title = `sort by ${head}`;
    button.addEventListener("click", () => { byId("down").checked = isSorted && !byId("down").checked; byId("sort").value = sort; apply(); });
    return button;
  }));
}

const across = () => (value("show") === "table" ? 1 : Math.max(1, Math.floor((byId("list").clientWidth - 16) / MODES[value("show")].width)));
function draw() {
  const list = byId("list"), mode = MODES[value("show")], perRow = across(), isTable = value("show") === "table";
  const first = Math.max(0, Math.floor(list.scrollTop / mode.height) - 2) * perRow, last = Math.min(shown.length, first + (Math.ceil(list.clientHeight / mode.height) + 5) * perRow);
  const table = isTable ? tableColumns() : [], cells = [], name = pictureName();
  drawHeads(table);
  byId("cells").className = isTable ? "table" : "grid";
  byId("cells").style.gridTemplateColumns = isTable ? "none" : `repeat(${perRow}, 1fr)`;
  const isNarrow = innerWidth <= 900;
  document.querySelector("main").style.setProperty("--columns", table.filter((c) => !isNarrow || !c.isWide).map((c) => c.width ?? "minmax(3.5rem, 1fr)").join(" "));
  for (let k = first; k < last; k++) {
    const i = shown[k], cell = element("div", undefined, isTable ? "row" : `cell ${value("show")}`);
    cell.id = `sample-${i}`;
    cell.setAttribute("role", "option");
    cell.setAttribute("aria-selected", String(k === position));
    cell.setAttribute("aria-setsize", shown.length);
    cell.setAttribute("aria-posinset", k + 1);
    cell.dataset.place = k;
    if (isTable) cell.append(...table.map((c) => withChildren(element("span", undefined, c.isWide ? "wide" : ""), c.cell(i))));
    else {
      const words = core.runs.map((_, r) => core.status_names[core.statuses[r][i]]);
      cell.title = `${core.names[i]}: ${words.map((text, r) => runPrefix(r) + text).join(", ")}`;
      cell.setAttribute("aria-label", cell.title);
      const picture = withChildren(element("span", undefined, `picture ${words[0].split(" ")[0]}`), tile(name, i, mode.side), ...(words.length > 1 ? [words[0], words.at(-1)] : words).map(mark));
      cell.append(picture, ...(value("show") === "large" ? [element("span", core.names[i], "name")] : []));
    }
    cells.push(cell);
  }
  byId("space").style.height = `${Math.ceil(shown.length / perRow) * mode.height}px`;
  byId("cells").style.transform = `translateY(${(first / perRow) * mode.height}px)`;
  byId("cells").replaceChildren(...cells);
  if (position >= 0) list.setAttribute("aria-activedescendant", `sample-${shown[position]}`);
  else list.removeAttribute("aria-activedescendant");
}
// Mark the sample at a place of the list, and show it where a sample is open.
function go(place) {
  if (!shown?.length) return;
  position = Math.max(0, Math.min(shown.length - 1, place));
  const list = byId("list"), height = MODES[value("show")].height, top = Math.floor(position / across()) * height;
  if (top < list.scrollTop) list.scrollTop = top;
  if (top + height > list.scrollTop + list.clientHeight) list.scrollTop = top + height - list.clientHeight;
  draw();
  if (opened >= 0) { opened = shown[position]; writeFragment(); showDetail(); }
}
function open(place) {
  go(place);
  opened = shown[position];
  writeFragment(true);
  showDetail();
}
function close() {
  opened = -1;
  writeFragment();
  showDetail();
  byId("list").focus();
}

async function showDetail() {
  const i = opened, main = document.querySelector("main");
  main.inert = i >= 0;
  if (i < 0) { byId("detail").hidden = true; return; }
  await Promise.all(core.sources.map((_, s) => load(s)));
  if (opened !== i) return;
  const wasHidden = byId("detail").hidden;
  byId("detail").hidden = false;
  byId("detail-name").textContent = core.names[i];
  byId("detail-words").replaceChildren(`Label ${className(core.targets[i])}, clean prediction ${cleanOf(i)}. `, ...core.runs.flatMap((_, r) => [` ${runPrefix(r)}`, statusChip(r, i)]));
  byId("previous").disabled = position <= 0;
  byId("next").disabled = position < 0 || position >= shown.length - 1;
  byId("figures").replaceChildren(...figures(i));
  detailTable(i);
  if (wasHidden) { byId("detail").scrollTop = 0; byId("detail").focus(); }
}
// Clean, then of each run the adversarial example and the difference: of the chosen assessment, else the nearest.
function figures(i) {
  const kinds = [];
  core.runs.forEach((_, r) => {
    const chosen = sourceWanted() >= 0 ? sourceIn(core.sources[sourceWanted()].name, r) : -1;
    const s = [chosen, sourceIn(core.nearest, r)].find((index) => index >= 0 && core.sources[index].images && answerOf(columns.get(index), i));
    if (s === undefined) return;
    const column = columns.get(s), distance = formatted(column.numbers.distance?.[i]);
    kinds.push([s, String(s), `${runPrefix(r)}${core.sources[s].name}: ${answerOf(column, i)}`, distance && `distance ${distance} (${core.sources[s].region})`]);
    kinds.push([s, `${s}-change`, `${runPrefix(r)}difference`, "red brighter, blue darker, on its own scale"]);
  });
  if (!core.tile) return [];
  const width = byId("detail").clientWidth - 28, perRow = width < 600 ? 2 : Math.max(3, kinds.length + 1);
  const side = Math.max(110, Math.min(288, width / perRow - 22));
  const figure = ([s, name, title, words]) => {
    const isLarge = core.large && (s < 0 || core.large.sources.includes(s));
    const caption = withChildren(element("figcaption", title), element("small", words));
    caption.style.maxWidth = `${side}px`;
    return withChildren(element("figure"), tile(name, i, side, isLarge ? LARGE : SMALL), caption);
  };
  return [figure([-1, "clean", `clean: ${cleanOf(i)}`, ""]), ...kinds.map(figure), ...(kinds.length ? [] : [element("p", "No adversarial example is known.")])];
}
// One row per assessment, one group of columns per run.
function detailTable(i) {
  const head = (text, span = 1) => Object.assign(element("th", text), { scope: span > 1 ? "colgroup" : "col", colSpan: span });
  const cell = (...parts) => withChildren(element("td"), ...parts), isPair = core.runs.length > 1;
  const words = ["image", "difference", "verdict", "prediction", ...(isPair ? ["distance, also known"] : ["distance", "also known"])];
  const heads = [withChildren(element("tr"), head("assessment"), ...core.runs.flatMap(() => words.map((w) => head(w))))];
  if (isPair) heads.unshift(withChildren(element("tr"), head(""), ...core.runs.map((run) => head(run.label, words.length))));
  byId("detail-heads").replaceChildren(...heads);
  const rows = [];
  for (const name of new Set([core.nearest, ...core.sources.map((s) => s.name)])) {
    const sources = core.runs.map((_, r) => sourceIn(name, r));
    if (sources.every((s) => s < 0 || !columns.get(s).verdict[i])) continue;
    const own = sources.find((s) => s >= 0), button = element("button", name, "link");
    button.type = "button";
    button.title = `pictures of ${name}`;
    button.addEventListener("click", () => { byId("source").value = core.sources[own].key; apply(); });
    const row = withChildren(element("tr"), cell(button, element("small", [...new Set(sources.filter((s) => s >= 0).map((s) => core.sources[s].region))].join(" / "))));
    row.ariaSelected = String(name === core.sources[sourceWanted()]?.name);
    for (const s of sources) {
      const column = columns.get(s);
      if (s < 0 || !column.verdict[i]) { row.append(...words.map(() => cell())); continue; }
      const answer = answerOf(column, i), hasImages = core.sources[s].images && answer, distance = formatted(column.numbers.distance?.[i]);
      const more = Object.entries(column.numbers).filter(([w, values]) => w !== "distance" && Number.isFinite(values[i])).map(([w, values]) => element("small", `${nameOf(w)} ${withUnit(w, values[i])}`));
      const pictures = hasImages ? [cell(tile(String(s), i, isPair ? 48 : 64)), cell(tile(`${s}-change`, i, isPair ? 48 : 64))] : [cell(), cell()];
      row.append(...pictures, cell(verdictOf(column, i)), cell(answer), ...(isPair ? [cell(distance, ...more)] : [cell(distance), cell(...more)]));
    }
    rows.push(row);
  }
  byId("detail-rows").replaceChildren(...rows);
}

let frame = 0;
document.addEventListener("input", (event) => { if (core && fields().includes(event.target)) { cancelAnimationFrame(frame); frame = requestAnimationFrame(apply); } });
byId("filters").addEventListener("reset", () => setTimeout(apply));
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("list").addEventListener("scroll", () => shown && draw(), { passive: true });
addEventListener("resize", () => { if (shown) { draw(); showDetail(); } });
byId("list").addEventListener("click", (event) => {
  const cell = event.target.closest("[data-place]");
  if (cell) open(Number(cell.dataset.place));
});
byId("close").addEventListener("click", close);
byId("previous").addEventListener("click", () => go(position - 1));
byId("next").addEventListener("click", () => go(position + 1));
addEventListener("keydown", (event) => {
  if (!core || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && opened >= 0) { close(); return; }
  if (event.target.matches("input:not([type=checkbox]), select") || (event.key === "Enter" && event.target.closest("button, summary"))) return;
  const rows = opened >= 0 ? {} : { ArrowDown: across(), ArrowUp: -across() };
  const step = { j: 1, ArrowRight: 1, k: -1, ArrowLeft: -1, ...rows }[event.key];
  if (step) { event.preventDefault(); go(position + step); }
  else if (event.key === "Enter" && position >= 0 && opened < 0) { event.preventDefault(); open(position); }
  else if (event.key === "Home" || event.key === "End") { event.preventDefault(); go(event.key === "Home" ? 0 : shown.length - 1); }
  else if (event.key === "/") { event.preventDefault(); byId("panel").open = true; byId("find").focus(); }
  else if (event.key === "t" && core.tile) { byId("show").value = value("show") === "table" ? "" : "table"; apply(); }
});
addEventListener("hashchange", () => { if (core) { readFragment(); apply(); } });
if ("served" in document.documentElement.dataset) read("core");
