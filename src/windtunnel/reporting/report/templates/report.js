"use strict";
const byId = (id) => document.getElementById(id);

// Every text of the run is set as textContent: it cannot become markup.
function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Dark and light: the reader's choice, else the system's.
{
  const root = document.documentElement, button = byId("theme"), system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => { button.textContent = dark() ? "Light" : "Dark"; };
  try { const kept = localStorage.getItem("windtunnel-theme"); if (kept) root.dataset.theme = kept; } catch { /* storage is off */ }
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("windtunnel-theme", root.dataset.theme); } catch { /* storage is off */ }
    show();
  });
  system.addEventListener("change", show);
  show();
}
if (matchMedia("(max-width: 900px)").matches) document.querySelector("nav details").open = false;

// Numbers as numbers, where both begin with one; what is empty comes last either way.
function compare(a, b, up) {
  if (a === b) return 0;
  if (a === "" || b === "") return a === "" ? 1 : -1;
  const [x, y] = [parseFloat(a), parseFloat(b)];
  const order = Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y || a.localeCompare(b);
  return up ? order : -order;
}
function turn(th) {
  const up = th.getAttribute("aria-sort") !== "ascending";
  for (const other of th.parentNode.children) other.removeAttribute("aria-sort");
  th.setAttribute("aria-sort", up ? "ascending" : "descending");
  return up;
}
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("th").forEach((th, column) => th.firstChild.addEventListener("click", () => {
    const up = turn(th), value = (row) => row.cells[column].textContent.trim();
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => compare(value(a), value(b), up)));
  }));
}

// Charts: the value of the mark under the pointer, or the nearest point; arrow keys step through the values.
{
  const tip = byId("tip");
  let lit = null;
  const hide = () => { tip.hidden = true; if (lit) lit.classList.remove("on"); lit = null; };
  const light = (mark) => {
    hide();
    lit = mark;
    mark.classList.add("on");
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const box = mark.getBoundingClientRect();
    const left = Math.min(innerWidth - tip.offsetWidth - 6, Math.max(6, box.left + box.width / 2 - tip.offsetWidth / 2));
    tip.style.left = `${left}px`;
    tip.style.top = `${box.top > 40 ? box.top - tip.offsetHeight - 7 : box.bottom + 7}px`;
  };
  for (const svg of document.querySelectorAll("svg")) {
    const marks = [...svg.querySelectorAll("[data-tip]")], dots = marks.filter((m) => m.tagName === "circle");
    svg.addEventListener("pointermove", (event) => {
      if (event.target.dataset.tip) return light(event.target);
      const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
      const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
      const distance = (dot) => Math.hypot(dot.cx.baseVal.value - x, dot.cy.baseVal.value - y);
      const near = dots.reduce((best, dot) => (best && distance(best) <= distance(dot) ? best : dot), null);
      return near && distance(near) < 18 ? light(near) : hide();
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step || !marks.length) return;
      event.preventDefault();
      const at = marks.indexOf(lit);
      light(marks[at < 0 ? (step > 0 ? 0 : marks.length - 1) : (at + step + marks.length) % marks.length]);
    });
  }
  addEventListener("scroll", hide, { passive: true });
}

// Every sample: sorted, filtered and paged on the data; a page is 100 rows.
if (byId("sample-data")) {
  const data = JSON.parse(byId("sample-data").textContent), word = (i) => data.words[i];
  const rows = data.rows.map((cells, index) => ({ index, cells: cells.map(word) }));
  for (const row of rows) row.text = row.cells.join(" ").toLowerCase();
  const sprites = new Map(data.sprites.map((s) => [s.source, { ...s, place: new Map(s.slots.map((row, tile) => [row, tile])) }]));
  const PAGE = 100, body = byId("sample-table").tBodies[0];
  let shown = rows, limit = PAGE, open = 0;

  function thumbnail(source, index, size) {
    const sprite = sprites.get(source), tile = sprite && sprite.place.get(index);
    if (tile === undefined) return null;
    const [width, height] = sprite.tile, scale = size / Math.max(width, height), sheetRows = Math.ceil(sprite.slots.length / sprite.columns);
    const made = element("span", undefined, `thumb sprite-${source + 1}`);
    made.style.width = `${width * scale}px`;
    made.style.height = `${height * scale}px`;
    made.style.backgroundSize = `${width * scale * sprite.columns}px ${height * scale * sheetRows}px`;
    made.style.backgroundPosition = `-${(tile % sprite.columns) * width * scale}px -${Math.floor(tile / sprite.columns) * height * scale}px`;
    return made;
  }
  function line(row) {
    const tr = element("tr"), picture = element("td"), thumb = thumbnail(-1, row.index, 32);
    if (thumb) picture.append(thumb);
    tr.append(picture);
    row.cells.forEach((text, column) => {
      const td = element("td");
      if (column === 0) td.append(element("button", text, "name"));
      else if (column === 3 && text) td.append(element("span", text, `status ${text.split(" ")[0]}`));
      else td.textContent = text;
      tr.append(td);
    });
    tr.addEventListener("click", () => { open = shown.indexOf(row); detail(); });
    return tr;
  }
  function render() {
    body.replaceChildren(...shown.slice(0, limit).map(line));
    byId("count").textContent = `${shown.length} of ${rows.length} samples` + (shown.length > limit ? `, the first ${limit} shown` : "");
    byId("more").hidden = shown.length <= limit;
  }
  function filter() {
    const find = byId("find").value.trim().toLowerCase(), status = byId("status").value, target = byId("target").value;
    shown = rows.filter((r) => (!find || r.text.includes(find)) && (!status || r.cells[3] === status) && (!target || r.cells[1] === target));
    limit = PAGE;
    render();
  }
  function detail() {
    const row = shown[open], [name, target, clean, status, by, distance] = row.cells;
    byId("detail-name").textContent = name;
    byId("detail-status").textContent = `Label ${target}, clean prediction ${clean}. ` + (status ? `Status: ${status}` : "") + (by ? ` by ${by}` : "") + (distance ? ` at distance ${distance}` : "") + ".";
    const first = element("tr"), cell = element("td"), thumb = thumbnail(-1, row.index, 64);
    if (thumb) cell.append(thumb);
    first.append(cell, ...["clean", "", clean === target ? "correct" : "misclassified", clean, "", ""].map((t) => element("td", t)));
    const others = data.results[row.index].map((result, a) => {
      const tr = element("tr"), td = element("td"), changed = result && thumbnail(a, row.index, 64);
      if (changed) td.append(changed);
      const [assessment, region] = data.assessments[a], [verdict, answer, distance, who] = result ? result.map(word) : ["not among its samples", "", "", ""];
      tr.append(td, ...[assessment, region, verdict, answer, distance, who].map((t) => element("td", t)));
      return tr;
    });
    byId("detail-rows").replaceChildren(first, ...others);
    byId("previous").disabled = open === 0;
    byId("next").disabled = open === shown.length - 1;
    if (!byId("detail").open) byId("detail").showModal();
  }
  const step = (by) => { if (shown[open + by]) { open += by; detail(); } };
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  byId("detail").addEventListener("keydown", (event) => { if (event.key === "ArrowLeft") step(-1); if (event.key === "ArrowRight") step(1); });
  byId("detail").addEventListener("click", (event) => { if (event.target === byId("detail")) byId("detail").close(); });
  byId("more").addEventListener("click", () => { limit += PAGE; render(); });
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  for (const [id, column] of [["status", 3], ["target", 1]]) {
    const values = [...new Set(rows.map((r) => r.cells[column]))].filter(Boolean).sort((a, b) => compare(a, b, true));
    byId(id).append(...values.map((value) => { const option = element("option", value); option.value = value; return option; }));
    byId(id).addEventListener("change", filter);
  }
  byId("find").addEventListener("input", filter);
  byId("sample-table").querySelectorAll("th > button").forEach((button) => button.addEventListener("click", () => {
    const up = turn(button.parentNode), column = Number(button.dataset.column);
    rows.sort((a, b) => compare(a.cells[column], b.cells[column], up) || a.index - b.index);
    filter();
  }));
  addEventListener("beforeprint", () => { limit = 1000; render(); });
  addEventListener("afterprint", () => { limit = PAGE; render(); });
  render();
}

// What is folded away on screen belongs on paper.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
