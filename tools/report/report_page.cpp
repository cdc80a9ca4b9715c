#include "tools/report/report_page.hpp"

namespace ho::analyzer::detail {

// Content-Security-Policy forbids all requests, so a mistake is an error in the console and not a
// request. The script inserts names only through textContent, never as markup.
const std::string_view kReportPageHead = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>HyperOffload report</title>
<style>
:root { --bg:#f6f7f9; --card:#fff; --ink:#1b2430; --soft:#667285; --line:#dfe3ea; --grid:#e9ecf1;
  --plan:#2563c9; --planfill:#2563c926; --limitfill:#c2410c1c; --bare:#8a94a6; --budget:#c2410c; --in:#0d8f7b; --out:#a35bc9;
  --stall:#d92d3a; --c0:#5b7fb8; --c1:#c08a3e; --c2:#6a9a58; --c3:#9a6fb0; --c4:#b8646f; --c5:#4c98a6; }
@media (prefers-color-scheme: dark) { :root { --bg:#12161c; --card:#1a2029; --ink:#e4e9f0; --soft:#93a0b3;
  --line:#2c3542; --grid:#242c37; --plan:#6ea4ff; --planfill:#6ea4ff2e; --limitfill:#fb8b4b24; --bare:#7c889b; --budget:#fb8b4b;
  --in:#36c5ad; --out:#c890e8; --stall:#ff5f6b; --c0:#6f93cf; --c1:#cf9c53; --c2:#7fb26c; --c3:#b288c8;
  --c4:#cf7d87; --c5:#61b0bf; } }
* { box-sizing:border-box }
body { margin:0; background:var(--bg); color:var(--ink); font:14px/1.45 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif }
main { max-width:1280px; margin:0 auto; padding:22px 22px 48px }
h1 { font-size:21px; margin:0; font-weight:650; overflow-wrap:anywhere }
h2 { font-size:15px; margin:0 0 8px; font-weight:650 }
.sub { color:var(--soft); margin:2px 0 16px }
.tiles { display:grid; grid-template-columns:repeat(auto-fit,minmax(190px,1fr)); gap:12px; margin-bottom:14px }
.tile,.card { background:var(--card); border:1px solid var(--line); border-radius:10px; padding:13px 15px }
.card { margin-bottom:14px }
.tile .k { color:var(--soft); font-size:12.5px } .tile .v { font-size:21px; font-weight:650; margin:1px 0; font-variant-numeric:tabular-nums }
.tile .n { color:var(--soft); font-size:12.5px }
.legend { display:flex; flex-wrap:wrap; gap:4px 16px; color:var(--soft); font-size:12.5px; margin:0 0 8px }
.legend i { display:inline-block; width:11px; height:11px; border-radius:3px; margin-right:5px; vertical-align:-1px }
.legend i.dash { height:0; width:16px; border-top:2px dashed; border-radius:0; vertical-align:3px }
canvas { display:block; width:100%; touch-action:none; cursor:grab }
canvas:active { cursor:grabbing }
.hint { color:var(--soft); font-size:12.5px; margin:8px 0 0; display:flex; justify-content:space-between; gap:12px; flex-wrap:wrap }
button { font:inherit; font-size:12.5px; color:var(--ink); background:var(--bg); border:1px solid var(--line); border-radius:6px; padding:2px 10px; cursor:pointer }
.scroll { overflow-x:auto }
table { border-collapse:collapse; width:100%; font-size:13px }
th { text-align:left; color:var(--soft); font-weight:550; border-bottom:1px solid var(--line); padding:5px 10px 5px 0; white-space:nowrap }
td { border-bottom:1px solid var(--grid); padding:5px 10px 5px 0; vertical-align:top; overflow-wrap:anywhere }
td.r,th.r { text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap }
td.name { font-weight:550; min-width:120px } td.why { min-width:280px; color:var(--soft) }
td.nw { white-space:nowrap }
#tip { position:fixed; z-index:9; max-width:420px; background:var(--card); color:var(--ink); border:1px solid var(--line); border-radius:8px;
  box-shadow:0 6px 22px #0004; padding:8px 11px; font-size:12.5px; pointer-events:none; display:none; overflow-wrap:anywhere; white-space:pre-line }
#tip b { display:block } .none { color:var(--soft) }
</style></head><body><main>
<h1 id="title"></h1><p class="sub" id="sub"></p>
<div class="tiles" id="tiles"></div>
<div class="card" id="runs" hidden><h2>Runs</h2><div class="scroll"><table id="runtable"></table></div></div>
<div class="card"><h2>Device memory over one step</h2><div class="legend" id="memlegend"></div><canvas id="mem" height="230"></canvas></div>
<div class="card"><h2>Timeline</h2><div class="legend" id="lanelegend"></div><canvas id="lanes" height="200"></canvas>
<p class="hint"><span id="note"></span><span>Wheel: zoom &middot; drag: move &middot; <button id="all">whole step</button></span></p></div>
<div class="card"><h2>Longest stalls</h2><div class="scroll"><table id="stalls"></table></div></div>
<div class="card"><h2>Largest moved tensors</h2><div class="scroll"><table id="moved"></table></div></div>
<div class="card" id="keptcard" hidden><h2>Largest tensors that stay</h2><div class="scroll"><table id="kept"></table></div></div>
</main><div id="tip"></div>
<script id="data" type="application/json">)html";

const std::string_view kReportPageTail = R"html(</script>
<script>
"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
const el = (tag, cls, text) => { const e = document.createElement(tag); if (cls) e.className = cls;
  if (text !== undefined) e.textContent = text; return e; };
const digits = x => x >= 99.95 ? x.toFixed(0) : x >= 9.995 ? x.toFixed(1) : x.toFixed(2);
function bytes(b) { const u = ["B","KiB","MiB","GiB","TiB","PiB"]; let i = 0;
  while (b >= 1024 && i < 5) { b /= 1024; i++; } return (i ? digits(b) : b) + " " + u[i]; }
function time(ns) { if (ns < 1e3) return Math.round(ns) + " ns"; if (ns < 1e6) return digits(ns/1e3) + " \u00b5s";
  if (ns < 1e9) return digits(ns/1e6) + " ms"; return digits(ns/1e9) + " s"; }
const percent = x => (x*100).toFixed(Math.abs(x) < 0.1 ? 2 : 1) + " %";
const signed = x => (x >= 0 ? "+" : "\u2212") + percent(Math.abs(x));
document.title = D.graph + " \u2013 HyperOffload";
$("title").textContent = D.graph;
$("sub").textContent = `${D.ops.toLocaleString("en")} ops, ${D.storages.toLocaleString("en")} tensors, planned for ${D.hardware || "the given machine"} with ${bytes(D.budget)} of device memory`;
for (const [k, v, n] of [
  ["Device memory", bytes(D.arena), `${D.unmanaged ? percent(D.arena/D.unmanaged) : "0 %"} of ${bytes(D.unmanaged)} without the plan`],
  ["Step time", time(D.step), D.compute ? `${signed(D.step/D.compute-1)} over compute alone` : ""],
  ["Stall per step", time(D.stall), D.stall ? percent(D.stall/D.step) + " of the step" : "every transfer is hidden"],
  ["Moved per step", bytes(D.prefetch + D.store), `${bytes(D.prefetch)} in, ${bytes(D.store)} out`],
  ...(D.bound ? [["Lower bound", time(D.bound), `the plan is at ${(D.step/D.bound).toFixed(3)}\u00d7` +
    (D.order ? `; program order ${time(D.order.bound)}, refined ${time(D.order.refined_bound)}` : "")]] : []),
  ...(D.limit ? [["Limit", `${Math.round(100*D.limit.busy)} % busy`, D.limit.text.replace(/, [0-9]+ % busy/, "")]] : []),
  ...(D.order ? [["Program order", D.order.step ? time(D.order.step) : "no plan", `${D.order.moved} ops moved, ${D.order.again} run again; live bytes peak at ${bytes(D.order.refined_live)} instead of ${bytes(D.order.live)}`]] : []),
  ...(D.margin > 0 ? [["Margin", `${digits(D.margin)}\u00d7 bandwidth`, `or ops ${digits(D.margin_ops)}\u00d7 as long: stalls stay below 2 %`]] : []),
  ...(D.first_step ? [["First step", time(D.first_step), `fills the device; ${time(D.epilogue)} after the last step until all values are home`]] : []),
  ...(D.measured ? [["Measured step", time(D.measured.step), `${signed(D.measured.step/D.step-1)} against the prediction; stall ${time(D.measured.stall)}`]] : [])
]) { const t = el("div", "tile"); t.append(el("div","k",k), el("div","v",v), el("div","n",n)); $("tiles").append(t); }
function table(node, head, rows, empty) {
  if (!rows.length) { const tr = el("tr"); tr.append(el("td", "none", empty)); node.append(tr); return; }
  const h = el("tr"); for (const [t, c] of head) h.append(el("th", c, t)); node.append(h);
  for (const [r, notes] of rows) { const tr = el("tr"); r.forEach((t, i) => tr.append(el("td", head[i][1], t))); node.append(tr);
    if (notes && notes.length) { const more = "Considered:" + notes.map(c => "\n\u2022 " + c).join("");
      tr.addEventListener("pointermove", e => tip(e, r[0], more)); tr.addEventListener("pointerleave", e => tip(e, null)); } }
}
if (D.runs.length) { $("runs").hidden = false;
  table($("runtable"), [["run","name"],["peak device memory","r"],["step","r"],["overhead","r"],["stall","r"],["moved per step","r"]],
    D.runs.map(r => [[r.label, bytes(r.peak), time(r.step_ms*1e6), signed(r.overhead), time(r.stall_ms*1e6), bytes(r.moved)]]), ""); }
table($("stalls"), [["op","name"],["at","r"],["waits","r"],["for","why"]],
  D.stalls.map(s => [[s.op, time(s.at), time(s.ns), s.why]]), "No op waits in the predicted step.");
table($("moved"), [["tensor","name"],["kind","nw"],["size","r"],["moved per step","r"],["choice","nw"],["reason","why"]],
  D.moved.map(m => [[m.name, m.kind, bytes(m.size), bytes(m.bytes), m.choice, m.reason], m.considered]), "Nothing moves: everything fits.");
if (D.kept.length) { $("keptcard").hidden = false;
  table($("kept"), [["tensor","name"],["kind","nw"],["size","r"],["choice","nw"],["reason","why"]],
    D.kept.map(m => [[m.name, m.kind, bytes(m.size), m.choice, m.reason], m.considered]), ""); }
$("note").textContent = D.merged ? "Adjacent items that are too short to be visible are drawn as one." : "";

const sets = [["predicted", D.predicted]].concat(D.measured ? [["measured", D.measured]] : []);
const end = Math.max(1, ...sets.map(([, s]) => s.end));
let view = [0, end];
const color = {};
function readColors() { const s = getComputedStyle(document.documentElement);
  for (const k of ["bg","card","ink","soft","line","grid","plan","planfill","limitfill","bare","budget","in","out","stall","c0","c1","c2","c3","c4","c5"]) color[k] = s.getPropertyValue("--" + k).trim(); }
const LEFT = sets.length > 1 ? 152 : 122, ROW = 22, GAP = 12, TOP = 20;
const lanes = []; let limitY = 0;
{ let y = TOP; const names = ["compute", ...D.channels];
  names.forEach((name, n) => { for (const [label, s] of sets) {
      lanes.push({ name, label, y, items: n ? s.channels[n-1] : s.compute, compute: !n }); y += ROW + 2; } y += GAP; });
  if (D.limit) { limitY = y; y += ROW + GAP; }
  $("lanes").height = y; $("lanes").style.height = y + "px"; $("mem").style.height = "230px"; }
const key = (node, c, text, dash) => { const s = el("span"); const i = el("i", dash ? "dash" : "");
  i.style[dash ? "borderTopColor" : "background"] = `var(--${c})`; s.append(i, text); node.append(s); };
key($("memlegend"), "plan", "with the plan (predicted)"); key($("memlegend"), "bare", "without the plan (all resident)", true); key($("memlegend"), "budget", "budget", true);
D.phases.forEach((p, i) => { if (i < 6) key($("lanelegend"), "c" + i, p || "compute"); });
key($("lanelegend"), "in", "toward the device"); key($("lanelegend"), "out", "away from it"); key($("lanelegend"), "stall", "stall");
if (D.limit) key($("lanelegend"), "budget", "the stretch that gives the lower bound");
function setup(c) { const r = window.devicePixelRatio || 1, w = c.clientWidth, h = c.clientHeight;
  if (c.width !== Math.round(w*r) || c.height !== Math.round(h*r)) { c.width = Math.round(w*r); c.height = Math.round(h*r); }
  const g = c.getContext("2d"); g.setTransform(r,0,0,r,0,0); g.clearRect(0,0,w,h); g.font = '11.5px system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif'; return [g,w,h]; }
const xOf = (t, w) => LEFT + (t - view[0]) / (view[1] - view[0]) * (w - LEFT - 8);
const tOf = (x, w) => view[0] + (x - LEFT) / (w - LEFT - 8) * (view[1] - view[0]);
function niceStep(span, n) { const raw = span / n, p = 10 ** Math.floor(Math.log10(raw)); for (const m of [1,2,5,10]) if (raw <= m*p) return m*p; return 10*p; }
function tick(t, s) { const [u, n] = view[1] < 1e3 ? [1,"ns"] : view[1] < 1e6 ? [1e3,"\u00b5s"] : view[1] < 1e9 ? [1e6,"ms"] : [1e9,"s"];
  return (t/u).toFixed(Math.min(9, Math.max(0, Math.ceil(-Math.log10(s/u) - 1e-9)))) + " " + n; }
function timeGrid(g, w, h, labelY) { const s = niceStep(view[1]-view[0], Math.max(2, (w-LEFT)/130)); g.strokeStyle = color.grid; g.fillStyle = color.soft; g.textAlign = "center";
  for (let t = Math.ceil(view[0]/s)*s; t <= view[1]; t += s) { const x = Math.round(xOf(t,w)) + .5; g.beginPath(); g.moveTo(x, 14); g.lineTo(x, h); g.stroke();
    if (x > LEFT + 16 && x < w - 24) g.fillText(tick(t, s), x, labelY); } g.textAlign = "left"; }
function first(items, t) { let a = 0, b = items.length; while (a < b) { const m = (a+b) >> 1; if (items[m][1] < t) a = m+1; else b = m; } return a; }
function curve(g, points, y, w, last) { g.beginPath(); let prev = null; const from = Math.max(0, firstPoint(points, view[0]) - 1);
  for (let i = from; i < points.length; i++) { const [t, b] = points[i]; const x = Math.max(LEFT, Math.min(w-8, xOf(t,w)));
    if (prev === null) g.moveTo(x, y(b)); else { g.lineTo(x, y(prev)); g.lineTo(x, y(b)); } prev = b; if (t > view[1]) break; }
  if (prev !== null) g.lineTo(Math.max(LEFT, Math.min(w-8, xOf(last,w))), y(prev)); }
function firstPoint(points, t) { let a = 0, b = points.length; while (a < b) { const m = (a+b) >> 1; if (points[m][0] < t) a = m+1; else b = m; } return a; }
function drawMemory() { const [g,w,h] = setup($("mem")); const max = Math.max(D.unmanaged, D.budget, D.arena, 1) * 1.06, bottom = h - 8;
  const y = b => bottom - b / max * (bottom - 22); timeGrid(g, w, h - 8, 10);
  const unit = 1024 ** Math.floor(Math.log(max) / Math.log(1024)); const s = niceStep(max/unit, 5) * unit;
  g.textAlign = "right"; for (let b = 0; b <= max; b += s) { g.strokeStyle = color.grid; g.beginPath(); g.moveTo(LEFT, Math.round(y(b))+.5); g.lineTo(w-8, Math.round(y(b))+.5); g.stroke();
    g.fillStyle = color.soft; g.fillText(bytes(b), LEFT - 8, y(b) + 4); } g.textAlign = "left";
  const P = D.predicted; g.save(); g.beginPath(); g.rect(LEFT, 12, w-8-LEFT, h); g.clip();
  if (P.memory.length) { curve(g, P.memory, y, w, P.end); g.strokeStyle = color.plan; g.lineWidth = 1.6; g.stroke();
    const x0 = Math.max(LEFT, xOf(P.memory[0][0], w)), x1 = Math.min(w-8, xOf(P.end, w)); g.lineTo(x1, bottom); g.lineTo(x0, bottom); g.closePath(); g.fillStyle = color.planfill; g.fill(); }
  curve(g, D.unmanagedCurve, y, w, P.end); g.strokeStyle = color.bare; g.lineWidth = 1.4; g.setLineDash([4,3]); g.stroke();
  g.beginPath(); g.moveTo(LEFT, y(D.budget)); g.lineTo(w-8, y(D.budget)); g.strokeStyle = color.budget; g.lineWidth = 1.6; g.setLineDash([7,4]); g.stroke(); g.restore(); g.setLineDash([]); g.lineWidth = 1; }
// Beyond the end of the step the stretch goes on at its start.
function drawLimit(g, w) { const L = D.limit, P = D.predicted.end; g.fillStyle = color.ink; g.fillText("limit", 0, limitY + 15);
  g.save(); g.beginPath(); g.rect(LEFT, 12, w-LEFT-8, limitY + ROW); g.clip();
  const parts = L.to > P ? [[L.from, P], [0, L.to - P]] : [[L.from, L.to]];
  for (const [a, b] of parts) { const x0 = xOf(a, w), x1 = xOf(b, w); g.fillStyle = color.limitfill; g.fillRect(x0, 14, x1-x0, limitY - 14);
    g.fillStyle = color.budget; g.fillRect(x0, limitY, Math.max(1.5, x1-x0), ROW); }
  const [a, b] = parts.reduce((p, q) => q[1]-q[0] > p[1]-p[0] ? q : p), x0 = Math.max(LEFT, xOf(a, w)), x1 = Math.min(w-8, xOf(b, w));
  const text = L.text, wide = g.measureText(text).width; g.fillStyle = "#fff";
  if (wide + 10 <= x1 - x0) g.fillText(text, x0 + 5, limitY + 15);
  else { g.fillStyle = color.ink; g.fillText(text, x1 + 5 + wide < w - 8 ? x1 + 5 : Math.max(LEFT, x0 - 5 - wide), limitY + 15); }
  g.restore(); }
function drawLanes() { const [g,w,h] = setup($("lanes")); timeGrid(g, w, h, 10);
  for (const lane of lanes) { g.fillStyle = color.ink; if (lane.label === "predicted") g.fillText(lane.name, 0, lane.y + 15);
    if (sets.length > 1) { g.fillStyle = color.soft; g.textAlign = "right"; g.fillText(lane.label === "predicted" ? "plan" : "real", LEFT - 8, lane.y + 15); g.textAlign = "left"; }
    g.fillStyle = color.grid; g.fillRect(LEFT, lane.y, w - LEFT - 8, ROW);
    g.save(); g.beginPath(); g.rect(LEFT, lane.y, w-LEFT-8, ROW); g.clip();
    let drawn = -1;
    for (let i = first(lane.items, view[0]); i < lane.items.length; i++) { const it = lane.items[i]; if (it[0] - (lane.compute ? it[3] : 0) > view[1]) break;
      const x0 = xOf(it[0], w), x1 = Math.max(xOf(it[1], w), x0 + .7);
      if (lane.compute && it[3] > 0) { const xs = xOf(it[0]-it[3], w); g.fillStyle = color.stall; g.fillRect(xs, lane.y, Math.max(1.5, x0-xs), ROW); }
      if (x1 <= drawn && x1 - x0 < 1) continue; drawn = x1;
      g.fillStyle = lane.compute ? color["c" + it[2] % 6] : color[it[2] ? "out" : "in"]; g.fillRect(x0, lane.y + 1, x1 - x0 > 3 ? x1 - x0 - .6 : x1 - x0, ROW - 2);
      if (x1 - x0 > 46) { g.save(); g.beginPath(); g.rect(x0, lane.y, x1-x0-3, ROW); g.clip(); g.fillStyle = "#fff"; g.fillText(nameOf(lane, it), Math.max(x0, LEFT) + 5, lane.y + 15); g.restore(); } }
    g.restore(); }
  if (D.limit) drawLimit(g, w); }
function nameOf(lane, it) { return it[4] > 1 ? it[4] + (lane.compute ? " ops" : " transfers") : lane.compute ? D.opNames[it[5]] : D.tensors[it[5]].name; }
let pending = 0;
function redraw() { if (!pending) pending = requestAnimationFrame(() => { pending = 0; drawMemory(); drawLanes(); }); }
function zoom(t, f) { const span = Math.min(end, Math.max(end * 1e-7, (view[1]-view[0]) * f)), r = (t - view[0]) / (view[1]-view[0]);
  let a = t - r * span; a = Math.max(0, Math.min(end - span, a)); view = [a, a + span]; redraw(); }
function tip(e, title, text) { const t = $("tip"); if (title === null) { t.style.display = "none"; return; }
  t.replaceChildren(el("b", "", title), document.createTextNode(text)); t.style.display = "block";
  t.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - t.offsetWidth - 8)) + "px";
  t.style.top = (e.clientY + 18 + t.offsetHeight > innerHeight ? Math.max(4, e.clientY - t.offsetHeight - 12) : e.clientY + 18) + "px"; }
function hoverLanes(e, x, yy, w) { const lane = lanes.find(l => yy >= l.y && yy < l.y + ROW); if (!lane || x < LEFT) return tip(e, null);
  const t = tOf(x, w), slack = (view[1]-view[0]) / (w-LEFT) * 1.5; let i = first(lane.items, t - slack);
  for (; i < lane.items.length && i >= 0; i++) { const it = lane.items[i]; const s = lane.compute ? it[3] : 0; if (it[0] - s - slack > t) break; if (t > it[1] + slack) continue;
    const head = nameOf(lane, it); let text = `${lane.label}: ${time(it[0])} to ${time(it[1])} (${time(it[1]-it[0])})`;
    if (lane.compute) { if (it[4] === 1 && D.phases[it[2]]) text += "\nphase " + D.phases[it[2]]; if (s) text += `\nwaited ${time(s)}` + (it[4] === 1 && D.opWaits[it[5]] && lane.label === "predicted" ? ` for ${D.opWaits[it[5]]}` : " for transfers"); }
    else if (it[4] === 1) { const n = D.tensors[it[5]]; const ns = it[1]-it[0]; text += `\n${verb(lane, it)} of ${bytes(n.size)}` + (ns ? ` at ${digits(n.size/ns)} GB/s` : "") + (n.reason ? `\n${n.choice}: ${n.reason}` + n.considered.map(c => "\n\u2022 " + c).join("") : ""); }
    return tip(e, head, text); } tip(e, null); }
function verb(lane, it) { return lane.name.startsWith("flash") ? it[2] ? "stage out" : "stage in" : it[2] ? "store" : "prefetch"; }
function valueAt(points, t) { const i = firstPoint(points, t + 1e-9) - 1; return i >= 0 ? points[i][1] : 0; }
function attach(c, hover) { let drag = null;
  c.addEventListener("wheel", e => { e.preventDefault(); zoom(tOf(Math.max(LEFT, e.offsetX), c.clientWidth), Math.exp(Math.max(-1, Math.min(1, e.deltaY/300)))); }, { passive: false });
  c.addEventListener("pointerdown", e => { drag = [e.clientX, view[0]]; c.setPointerCapture(e.pointerId); });
  c.addEventListener("pointerup", () => { drag = null; }); c.addEventListener("pointercancel", () => { drag = null; });
  c.addEventListener("pointerleave", e => tip(e, null));
  c.addEventListener("pointermove", e => { const w = c.clientWidth;
    if (drag) { const span = view[1]-view[0]; const a = Math.max(0, Math.min(end-span, drag[1] - (e.clientX-drag[0]) / (w-LEFT-8) * span)); view = [a, a+span]; redraw(); }
    hover(e, e.offsetX, e.offsetY, w); }); }
attach($("lanes"), hoverLanes);
attach($("mem"), (e, x, y, w) => { const t = tOf(x, w); if (x < LEFT || t > D.predicted.end) return tip(e, null);
  tip(e, time(t), `with the plan ${bytes(valueAt(D.predicted.memory, t))}\nwithout ${bytes(valueAt(D.unmanagedCurve, t))}\nbudget ${bytes(D.budget)}`); });
$("all").addEventListener("click", () => { view = [0, end]; redraw(); });
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColors(); redraw(); });
readColors(); redraw();
</script></body></html>
)html";

std::string_view report_style() {
  constexpr std::string_view kBegin = "<style>";
  const auto begin = kReportPageHead.find(kBegin) + kBegin.size();
  return kReportPageHead.substr(begin, kReportPageHead.find("</style>") - begin);
}

}  // namespace ho::analyzer::detail
