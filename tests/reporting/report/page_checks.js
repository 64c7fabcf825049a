// Run by test_browser.py in the page of a report; each returns what it finds wrong.
// A drawing for another size of screen is in the page, but not shown.
const shownDrawings = () => [...document.querySelectorAll('svg')].filter((svg) => svg.getClientRects().length);
const overlaps = () => {
const bad = [];
for (const svg of shownDrawings()) {
  const boxes = [...svg.querySelectorAll('text')].filter((t) => t.textContent.trim()).map((t) => [t.textContent, t.getBBox()]);
  for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
    const [a, b] = [boxes[i][1], boxes[j][1]];
    const across = Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x), down = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y);
    if (across > 1.5 && down > 3) bad.push([svg.getAttribute('aria-label').slice(0, 40), boxes[i][0], boxes[j][0]]);
  }
}
return bad;
};
const unreadable = () => {
const parse = (c) => { const m = c.match(/[0-9.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
const ground = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] > 0.99) return c; } return [255, 255, 255, 1]; };
const bad = [];
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.getClientRects().length || e.closest('svg, script, style, .skip, #tip')) continue;
  const style = getComputedStyle(e), size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  const found = ratio(parse(style.color), ground(e));
  if (found < (large ? 3 : 4.5)) bad.push([e.tagName, e.className, e.textContent.trim().slice(0, 30), found.toFixed(2)]);
}
for (const svg of shownDrawings()) {
  const rects = [...svg.querySelectorAll('rect')].map((r) => [r.getBBox(), parse(getComputedStyle(r).fill)]);
  for (const t of svg.querySelectorAll('text')) {
    if (!t.textContent.trim()) continue;
    const b = t.getBBox(), [x, y] = [b.x + b.width / 2, b.y + b.height / 2];
    const under = rects.filter(([r]) => r.x <= b.x + 1 && b.x + b.width <= r.x + r.width + 1 && r.y <= y && y <= r.y + r.height).pop();
    const found = ratio(parse(getComputedStyle(t).fill), under ? under[1] : ground(svg));
    if (found < 4.5) bad.push(['text', svg.getAttribute('aria-label').slice(0, 30), t.textContent, found.toFixed(2)]);
  }
}
return bad;
};
return { overlaps, unreadable }[arguments[0]]();
