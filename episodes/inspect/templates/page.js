"use strict";
const columns = ["id", "length", "return", "ending", "from t", "agent"];
const endings = ["terminated", "truncated", "cut"];
const live = document.body.dataset.live === "yes";
const carried = JSON.parse(document.getElementById("carried").textContent);
let data = JSON.parse(document.getElementById("data").textContent);
let version = null;
let sorting = { column: -1, down: false };
let chosen = null;  // the row that is shown, by key
let episode = null;
let step = 0;
let playing = null;

const find = (id) => document.getElementById(id);
const keys = new WeakMap();  // of the rows: id, start and agent, and the count of earlier rows with the same
const nths = new WeakMap();
const kind = (row) => row[3].split(" ")[0];
const counted = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

function show(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return value;
  if (Math.abs(value) >= 1e12) return value.toExponential(3);
  return Number.isInteger(value) ? String(value) : String(+value.toPrecision(4));
}

function key(row) {
  return keys.get(row);
}

function take(found) {
  const times = new Map();
  for (const row of found.rows) {
    const name = JSON.stringify([row[0], row[4], row[5]]);
    times.set(name, (times.get(name) ?? 0) + 1);
    keys.set(row, `${name}${times.get(name)}`);
    nths.set(row, times.get(name) - 1);
  }
  data = found;
}

function height(value, low, high, top, bottom) {
  return high > low ? bottom - (bottom - top) * ((value / 2 - low / 2) / (high / 2 - low / 2)) : (top + bottom) / 2;
}

function element(name, attributes = {}, ...children) {
  const spaces = { svg: 1, path: 1, rect: 1, line: 1, title: 1 };
  const made = spaces[name] ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  made.append(...children);
  return made;
}

// --- overview ---------------------------------------------------------------------------------------------------

function dots(title, column) {
  const rows = data.rows.map((row, n) => [n, row[column], kind(row)]).filter((row) => typeof row[1] === "number");
  let low = Infinity, high = -Infinity;
  for (const row of rows) { low = Math.min(low, row[1]); high = Math.max(high, row[1]); }
  const svg = element("svg", { viewBox: "0 0 600 96", preserveAspectRatio: "none", role: "img", "aria-label": title });
  for (const ending of endings) {
    const cells = new Map();  // by x in whole units: the lowest and the highest
    for (const [n, value] of rows.filter((row) => row[2] === ending)) {
      const x = 4 + 592 * n / Math.max(data.rows.length - 1, 1), cell = rows.length > 2000 ? Math.round(x) : x;
      const [least, most] = cells.get(cell) ?? [value, value];
      cells.set(cell, [Math.min(least, value), Math.max(most, value)]);
    }
    let path = "";
    for (const [x, extremes] of cells) for (const value of new Set(extremes)) path += `M${x.toFixed(1)} ${height(value, low, high, 6, 90).toFixed(1)}h0`;
    if (path) svg.append(element("path", { d: path, stroke: `var(--${ending})`, "stroke-width": 5, "stroke-linecap": "round", fill: "none" }));
  }
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect();
    const n = Math.round((event.clientX - box.left) / box.width * (data.rows.length - 1));
    if (data.rows[n]) choose(data.rows[n]);
  });
  const range = rows.length ? `${show(low)} … ${show(high)}` : "none";
  return element("div", { class: "chart" }, element("h2", {}, title, element("span", {}, range)), svg);
}

function overview() {
  const steps = data.rows.reduce((sum, row) => sum + row[1], 0);
  const about = `${counted(data.rows.length, "episode")}, ${counted(steps, "step")}`;
  find("about").textContent = data.environment ? `${data.environment}: ${about}` : about;
  const bars = element("div", { class: "chart" }, element("h2", {}, "endings"));
  for (const ending of endings) {
    const count = data.rows.filter((row) => kind(row) === ending).length;
    const bar = element("i", { style: `width:${100 * count / Math.max(data.rows.length, 1)}%;background:var(--${ending})` });
    bars.append(element("div", { class: "bar" }, element("span", {}, ending), element("span", {}, bar), element("b", {}, String(count))));
  }
  find("overview").replaceChildren(dots("returns", 2), dots("lengths", 1), bars);
}

// --- table ------------------------------------------------------------------------------------------------------

function matches(row, words, ending) {
  if (ending && !row[3].includes(ending)) return false;
  const rule = /^(length|return|from t)\s*(<=|>=|<|>|=)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)$/.exec(words);
  if (!rule) return !words || row.some((cell) => String(cell).toLowerCase().includes(words));
  const value = row[columns.indexOf(rule[1])], bound = Number(rule[3]);
  if (typeof value !== "number") return false;
  return { "<": value < bound, ">": value > bound, "<=": value <= bound, ">=": value >= bound, "=": value === bound }[rule[2]];
}

function listed() {
  const words = find("words").value.trim().toLowerCase(), ending = find("ending").value;
  const rows = data.rows.filter((row) => matches(row, words, ending));
  const { column, down } = sorting;
  if (column < 0) return rows;
  const sign = down ? -1 : 1;
  return rows.sort((a, b) => {
    const [x, y] = [a[column], b[column]];
    if (column === 1 || column === 2) {
      const [odd, other] = [typeof x !== "number", typeof y !== "number"];
      if (odd || other) return odd - other;
    }
    return sign * (typeof x === "number" ? x - y : x.localeCompare(y));
  });
}

function table() {
  const rows = listed(), most = 500;
  find("count").textContent = rows.length > most ? `first ${most} of ${rows.length}` : `${rows.length} of ${data.rows.length}`;
  const body = document.querySelector("tbody");
  body.replaceChildren(...rows.slice(0, most).map((row) => {
    const cells = row.map((cell, i) => element("td", i === 3 ? { class: kind(row) } : {}, typeof cell === "string" ? cell : show(cell)));
    const line = element("tr", { tabindex: "0", "aria-selected": String(key(row) === chosen) }, ...cells);
    line.addEventListener("click", () => choose(row));
    line.addEventListener("keydown", (event) => {
      if (event.key === "Enter") choose(row);
      const next = { ArrowDown: line.nextSibling, ArrowUp: line.previousSibling }[event.key];
      if (next) { next.focus(); event.preventDefault(); }
      if (event.key.startsWith("Arrow")) event.stopPropagation();
    });
    return line;
  }));
}

function heads() {
  document.querySelector("thead tr").replaceChildren(...columns.map((name, i) => {
    const button = element("button", { type: "button" }, name);
    button.addEventListener("click", () => {
      sorting = { column: i, down: sorting.column === i ? !sorting.down : i === 1 || i === 2 };
      heads();
      table();
      document.querySelectorAll("th button")[i].focus();
    });
    const order = sorting.column !== i ? "none" : sorting.down ? "descending" : "ascending";
    return element("th", { scope: "col", "aria-sort": order }, button);
  }));
}

// --- one episode ------------------------------------------------------------------------------------------------

async function choose(row) {
  chosen = key(row);
  document.querySelectorAll("tbody tr").forEach((line) => line.setAttribute("aria-selected", "false"));
  table();
  const n = data.rows.findIndex((other) => key(other) === chosen);
  const asked = chosen;
  let found = carried[n];
  if (live) {
    const answer = await fetch(`episode?${new URLSearchParams({ id: row[0], t: row[4], agent: row[5], nth: nths.get(row) })}`);
    found = answer.ok ? await answer.json() : null;
  }
  if (asked !== chosen) return;
  episode = found;
  draw(row);
}

function place(track, cell) {  // the step of the first item of a cell
  return track.at ? track.at[cell] : cell * track.every - episode.lookback;
}

function lane(track) {
  const first = -episode.lookback, span = Math.max(episode.lookback + episode.length, 1);
  const [low, high] = track.range;
  const rows = track.values ? [track.values] : [track.low, track.high];
  let path = "", gap = true;
  rows[0].forEach((value, i) => {
    if (value === null) { gap = true; return; }
    rows.forEach((row, k) => {
      const x = 1000 * (place(track, i) + (track.every - 1) * k / 2 + (track.more ? 0 : 0.5) - first) / span;
      const y = height(row[i], low, high, 2, 28);
      path += `${gap ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}${gap && (rows[0][i + 1] ?? null) === null ? "h0" : ""}`;
      gap = false;
    });
  });
  const each = track.every > 1 ? `, lowest and highest of ${track.every} steps each` : "";
  const svg = element("svg", { viewBox: "0 0 1000 30", preserveAspectRatio: "none", role: "img", "aria-label": `${track.label}, ${show(low)} to ${show(high)}${each}` });
  if (episode.lookback) svg.append(element("rect", { class: "before", width: 1000 * episode.lookback / span, height: 30 }));
  svg.append(element("path", { d: path, stroke: `var(--${track.hue})`, "stroke-linecap": "round" }));
  const odd = track.odd.filter(([, words]) => /NaN|∞/.test(words)).map(([cell]) => `M${(1000 * (place(track, cell) + (track.more ? 0 : 0.5) - first) / span).toFixed(1)} 22v8`);
  svg.append(element("path", { d: odd.join(""), stroke: "var(--terminated)" }), element("line", { class: "cursor", y1: -2, y2: 32 }));
  const name = element("span", { style: `color:var(--${track.hue})`, title: track.label }, track.label);
  return element("div", { class: "lane" }, name, svg, element("b", {}));
}

function reading(track, at) {  // the value at a step, or the range of the cell that has it
  const cell = track.at ? track.at.findLastIndex((start) => start <= at) : Math.floor((at + episode.lookback) / track.every);
  if (cell < 0 || cell * track.every >= track.items) return "";
  const odd = track.odd.find(([n]) => n === cell)?.[1] ?? "";
  if (track.values) return odd || show(track.values[cell]);
  const begin = place(track, cell), range = track.low[cell] === null ? "" : `${show(track.low[cell])} … ${show(track.high[cell])}`;
  return `${[range, odd].filter(Boolean).join(", ")} (${begin}–${Math.min(begin + track.every, track.items - episode.lookback) - 1})`;
}

function draw(row) {
  const panel = find("episode");
  stop();
  const heading = element("h2", {}, row[0], element("small", {}, `${counted(row[1], "step")}, return ${show(row[2])}, `, element("i", { class: kind(row), style: "font-style:normal" }, row[3])));
  if (!episode) {
    panel.replaceChildren(heading, element("p", {}, "This page does not carry the tracks of this episode."));
    return;
  }
  const scrubber = element("input", { id: "step", type: "range", min: -episode.lookback, max: episode.length, value: 0, "aria-label": "step" });
  scrubber.addEventListener("input", () => move(Number(scrubber.value)));
  const play = element("button", { id: "play", type: "button" }, "play");
  play.addEventListener("click", () => playing ? stop() : start());
  const picture = episode.cameras.map((camera) => element("img", { class: "frame", title: camera.label, alt: "frame" }));
  const scrub = element("div", { id: "scrub" }, play, scrubber, element("span", { id: "now" }));
  panel.replaceChildren(heading, element("div", { class: "frames" }, ...picture), scrub, ...episode.lanes.map(lane));
  move(Math.max(Math.min(step, episode.length), -episode.lookback));
}

function move(to) {
  if (!episode) return;
  step = Math.max(-episode.lookback, Math.min(episode.length, to));
  const scrubber = find("step"), first = -episode.lookback, span = Math.max(episode.lookback + episode.length, 1);
  scrubber.value = step;
  find("now").textContent = `step ${step}` + (episode.started ? ` (t ${episode.started + step})` : "");
  document.querySelectorAll(".frame").forEach((picture, i) => {
    const { label, first: begin, every, images } = episode.cameras[i];
    const n = Math.min(images.length - 1, Math.max(0, Math.floor((step - begin) / every)));
    picture.src = images[n];
    picture.alt = `${label} at step ${begin + n * every}`;
  });
  document.querySelectorAll(".lane").forEach((line, i) => {
    const track = episode.lanes[i], x = 1000 * (step - first) / span;
    line.querySelector(".cursor").setAttribute("x1", x);
    line.querySelector(".cursor").setAttribute("x2", x);
    line.querySelector("b").textContent = reading(track, step);
  });
}

function start() {
  if (step >= episode.length) move(-episode.lookback);
  find("play").textContent = "stop";
  playing = setInterval(() => step < episode.length ? move(step + 1) : stop(), 50);
}

function stop() {
  clearInterval(playing);
  playing = null;
  if (find("play")) find("play").textContent = "play";
}

document.addEventListener("keydown", (event) => {
  if (!episode || /^(INPUT|SELECT|BUTTON)$/.test(event.target.tagName)) return;
  const far = Math.max(1, Math.round(episode.length / 10));
  const to = { ArrowRight: step + 1, ArrowLeft: step - 1, PageDown: step + far, PageUp: step - far, Home: -episode.lookback, End: episode.length }[event.key];
  if (to !== undefined) { move(to); event.preventDefault(); }
  if (event.key === " ") { playing ? stop() : start(); event.preventDefault(); }
});

// --- live -------------------------------------------------------------------------------------------------------

async function follow() {
  try {
    const answer = await fetch(`rows?version=${version ?? ""}`);
    if (answer.status === 200) {
      const found = await answer.json();
      version = found.version;
      take(found);
      overview();
      table();
    }
    find("live").className = "";
    find("live").textContent = "live";
  } catch {
    find("live").className = "lost";
    find("live").textContent = "the server is gone";
  }
  setTimeout(follow, 1000);
}

find("filters").addEventListener("submit", (event) => event.preventDefault());
find("words").addEventListener("input", table);
find("ending").addEventListener("input", table);
take(data);
overview();
heads();
table();
if (live) follow().then(() => data.rows.length && chosen === null && choose(data.rows[0]));
else if (data.rows.length) choose(data.rows[0]);
