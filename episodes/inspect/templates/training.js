// The curves of one or several runs, which follow the files that the runs write.

const COLOURS = ["#3b82f6", "#e0820a", "#16a34a", "#a855f7", "#0891b2", "#ec4899", "#65a30d", "#64748b"];
const FIRST = [
  "train/mean_return_100", "test/mean_return", "update/return", "update/loss", "update/policy_loss", "update/value_loss", "update/kl",
  "update/entropy", "update/explained_variance", "train/steps_per_second", "train/mean_length",
];
const TITLES = { "train/mean_return_100": "mean return of the newest 100 episodes", "train/mean_return": "mean return of the episodes of each sample" };
const MOST_PARTS = 6;  // of a metric that each agent or module has, above the fold
const WIDTH = 600, HEIGHT = 150, EDGE = 6, MOST_POINTS = 400;
let runs = [], groups = [], settings = {};
let version = null, received = 0, findingsHtml = "";
const state = { hidden: [], smooth: 0, at: null, x: "step", zoom: null, find: "", seeds: false };

const colourOf = (run) => COLOURS[run % COLOURS.length];

function save() {
  const query = new URLSearchParams();
  for (const name of state.hidden) query.append("hidden", name);
  if (state.smooth) query.set("smooth", state.smooth);
  if (state.x !== "step") query.set("x", state.x);
  if (state.zoom) query.set("zoom", state.zoom.join(","));
  if (state.find) query.set("find", state.find);
  if (state.seeds) query.set("seeds", "yes");
  history.replaceState(null, "", `#${query}`);
}

function load() {
  const query = new URLSearchParams(location.hash.slice(1));
  const zoom = (query.get("zoom") ?? "").split(",").map(Number), x = query.get("x");
  Object.assign(state, {
    hidden: query.getAll("hidden"), smooth: Number(query.get("smooth")) || 0, find: query.get("find") ?? "",
    seeds: query.has("seeds"), x: ["update", "time"].includes(x) ? x : "step",
    zoom: zoom.length === 2 && zoom[1] > zoom[0] ? zoom : null,
  });
  find("smooth").value = state.smooth;
  find("search").value = state.find;
  find("seeds").checked = state.seeds;
  find("x").value = state.x;
}

function smoothed(values) {
  let last = NaN;
  return Array.from(values, (value) => {
    if (Number.isNaN(value)) return NaN;
    last = Number.isNaN(last) ? value : state.smooth * last + (1 - state.smooth) * value;
    return last;
  });
}

function interpolate(xs, ys, x) {  // on a line through points with increasing xs; the first or last y beyond them
  let low = 0, high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1; else high = middle;
  }
  if (low === xs.length) return ys[low - 1];
  if (low === 0 || xs[low] === x) return ys[low];
  const share = (x - xs[low - 1]) / (xs[low] - xs[low - 1]);
  return ys[low - 1] * (1 - share) + ys[low] * share;
}

function placed(run, steps) {  // the steps on the axis; null if the run does not record what it shows
  if (state.x === "step") return Array.from(steps);
  const known = run.clock[state.x];
  if (!known?.length) return null;
  const [xs, ys] = run.clock.step[0] > 0 ? [[0, ...run.clock.step], [0, ...known]] : [run.clock.step, known];
  return Array.from(steps, (step) => interpolate(xs, ys, step));
}

function ticks(low, high, most) {  // round numbers from low to high
  if (!(high > low)) return Number.isFinite(low) ? [low] : [];
  const rough = (high / most - low / most), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough) ?? rough;
  const first = Math.ceil(low / step), count = Math.floor(high / step) - first + 1;
  if (!Number.isFinite(step) || !(count > 0) || count > 50) return [low, high];
  return Array.from({ length: count }, (_, i) => +((first + i) * step).toPrecision(12));
}

function short(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (Math.abs(value) >= size && Math.abs(value) < 1e12) return `${+(value / size).toPrecision(4)}${unit}`;
  return show(value);
}

function duration(seconds) {
  if (seconds < 120) return `${+seconds.toPrecision(3)} s`;
  return seconds < 7200 ? `${+(seconds / 60).toPrecision(3)} min` : `${+(seconds / 3600).toPrecision(3)} h`;
}

const place = (value) => (state.x === "time" ? duration(value) : short(value));

function line(xs, ys) {  // through all points with numbers: a row without a number is no point, such as a sample in which no episode ended
  const points = xs.map((x, i) => [x, ys[i]]).filter(([, y]) => !Number.isNaN(y)).map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`);
  return points.length ? `M${points.join("L")}${points.length === 1 ? "h0" : ""}` : "";
}

function shownRuns() {
  return runs.map((run, i) => ({ ...run, number: i, colour: colourOf(i) })).filter((run) => !state.hidden.includes(run.name));
}

function meanCurve(curves) {  // mean of curves, lowest and highest one, where all of them have numbers
  const parts = curves.map(({ xs, values }) => {
    const known = xs.map((_, i) => i).filter((i) => Number.isFinite(values[i]));
    return { xs: known.map((i) => xs[i]), values: known.map((i) => values[i]) };
  });
  const begin = Math.max(...parts.map(({ xs }) => xs[0] ?? Infinity)), end = Math.min(...parts.map(({ xs }) => xs[xs.length - 1] ?? -Infinity));
  let xs = [...new Set(parts.flatMap((part) => part.xs))].filter((x) => x >= begin && x <= end).sort((a, b) => a - b);
  if (xs.length > MOST_POINTS) xs = Array.from({ length: MOST_POINTS }, (_, i) => xs[Math.round(i * (xs.length - 1) / (MOST_POINTS - 1))]);
  const at = xs.map((x) => parts.map((part) => interpolate(part.xs, part.values, x)));
  const values = at.map((numbers) => numbers.reduce((sum, value) => sum + value / numbers.length, 0));
  return { xs, values, low: at.map((numbers) => Math.min(...numbers)), high: at.map((numbers) => Math.max(...numbers)) };
}

function curvesOf(name) {
  const curves = [];
  for (const run of shownRuns()) {
    const metric = run.metrics[name], xs = metric && placed(run, metric.step);
    if (xs) curves.push({ run, xs, low: metric.low, high: metric.high, values: smoothed(metric.mean), label: run.name, hasBand: !state.smooth });
  }
  if (!state.seeds) return curves;
  const members = Map.groupBy(curves, (curve) => groups[curve.run.number]);
  return [...members.values()].map((group) => (group.length === 1 ? group[0] : {
    ...meanCurve(group), run: group[0].run, hasBand: true, label: `${group.map((curve) => curve.label).join(", ")} (mean of ${group.length} seeds)`,
  }));
}

function domain() {  // of the x axis of all charts
  if (state.zoom) return state.zoom;
  let last = 0;
  for (const run of shownRuns()) for (const metric of Object.values(run.metrics)) last = Math.max(last, ...(placed(run, metric.step.slice(-1)) ?? []));
  return [0, last || 1];
}

function extent(curves, [from, to]) {
  let low = Infinity, high = -Infinity;
  for (const curve of curves) {
    curve.xs.forEach((x, i) => {
      if (x < from || x > to) return;
      for (const value of curve.hasBand ? [curve.low[i], curve.high[i]] : [curve.values[i]]) if (Number.isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); }
    });
  }
  return [low, high];
}

function chart(name, [from, to]) {
  const curves = curvesOf(name), [low, high] = extent(curves, [from, to]);
  const x = (value) => WIDTH * ((value - from) / (to - from)), y = (value) => height(value, low, high, EDGE, HEIGHT - EDGE);
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${name}, ${show(low)} to ${show(high)}` });
  const heights = ticks(low, high, 4).map((value) => ({ value, at: y(value) })), places = ticks(from, to, 5).map((value) => ({ value, at: x(value) }));
  for (const { at } of heights) svg.append(element("line", { class: "grid", x1: 0, x2: WIDTH, y1: at, y2: at }));
  for (const { at } of places) svg.append(element("line", { class: "grid", x1: at, x2: at, y1: 0, y2: HEIGHT }));
  for (const curve of curves) {
    const xs = curve.xs.map(x);
    if (curve.hasBand) {
      const known = xs.map((_, i) => i).filter((i) => !Number.isNaN(curve.low[i]));
      const top = known.map((i) => `${xs[i].toFixed(1)} ${y(curve.high[i]).toFixed(1)}`), bottom = known.reverse().map((i) => `${xs[i].toFixed(1)} ${y(curve.low[i]).toFixed(1)}`);
      if (top.length > 1) svg.append(element("path", { class: "band", d: `M${[...top, ...bottom].join("L")}Z`, fill: curve.run.colour }));
    }
    svg.append(element("path", { class: "curve", d: line(xs, curve.values.map((value) => (Number.isNaN(value) ? NaN : y(value)))), stroke: curve.run.colour, "stroke-linecap": "round" }));
  }
  const cursor = element("line", { class: "cursor", y1: 0, y2: HEIGHT }), drag = element("rect", { class: "drag", y: 0, height: HEIGHT, width: 0 });
  svg.append(cursor, drag);
  const values = element("p", { class: "values" });
  const range = low > high ? "no numbers" : low === high ? show(low) : `${show(low)} … ${show(high)}`;
  const left = element("div", { class: "heights" }, ...heights.map(({ value, at }) => element("span", { style: `top:${100 * at / HEIGHT}%` }, short(value))));
  const below = element("div", { class: "places" }, ...places.map(({ value, at }) => element("span", { style: `left:${100 * at / WIDTH}%` }, place(value))));
  const figure = element("figure", { class: "chart", "data-metric": name }, element("h2", { title: TITLES[name] }, name, element("span", {}, range)), element("div", { class: "plot" }, left, svg, below), values);
  Object.assign(figure, { curves, cursor, x, values });
  listen(svg, drag, (event) => {
    const box = svg.getBoundingClientRect();
    return from + (to - from) * Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  }, x);
  return figure;
}

function listen(svg, drag, at, x) {  // to the pointer: readings, and a zoom by dragging
  let begin = null;
  svg.addEventListener("pointerdown", (event) => { begin = at(event); svg.setPointerCapture(event.pointerId); });
  svg.addEventListener("pointermove", (event) => {
    state.at = at(event);
    if (begin !== null) {
      const ends = [x(begin), x(state.at)].sort((a, b) => a - b);
      drag.setAttribute("x", ends[0]);
      drag.setAttribute("width", ends[1] - ends[0]);
    }
    readings();
  });
  svg.addEventListener("pointerup", (event) => {
    const ends = [begin ?? at(event), at(event)].sort((a, b) => a - b);
    begin = null;
    drag.setAttribute("width", 0);
    if (Math.abs(x(ends[1]) - x(ends[0])) > WIDTH / 60) zoom(ends);
  });
  svg.addEventListener("pointerleave", () => { state.at = null; readings(); });
}

function zoom(ends) {
  state.zoom = ends;
  state.at = null;
  save();
  draw();
}

function readingOf(curve) {  // the value at the cursor, or the newest one
  const { xs, values } = curve, last = xs.length - 1;
  if (state.at === null) return values[values.findLastIndex((value) => !Number.isNaN(value))] ?? NaN;
  if (!(state.at >= xs[0] && state.at <= xs[last])) return NaN;
  const after = xs.findIndex((x) => x >= state.at), before = Math.max(after - 1, 0);
  return values[state.at - xs[before] < xs[after] - state.at ? before : after];
}

function readings() {
  document.querySelectorAll("figure").forEach((figure) => {
    const texts = figure.curves.map((curve) => {
      const value = readingOf(curve);
      return element("span", { style: `color:${curve.run.colour}`, title: curve.label }, `${Number.isNaN(value) ? "–" : show(value)} `);
    });
    const words = { step: () => `step ${Math.round(state.at).toLocaleString("en")}`, update: () => `update ${Math.round(state.at).toLocaleString("en")}`, time: () => duration(state.at) };
    figure.values.replaceChildren(...texts, state.at === null ? "" : words[state.x]());
    const x = state.at === null ? -1 : figure.x(state.at);
    figure.cursor.setAttribute("x1", x);
    figure.cursor.setAttribute("x2", x);
  });
}

function newest(run, ...names) {  // the newest number of the first of the metrics that the run has
  for (const name of names) {
    const value = run.metrics[name]?.mean.findLast((number) => Number.isFinite(number));
    if (value !== undefined) return value;
  }
  return NaN;
}

const isBad = (status) => /^(failed|killed|unreadable)/.test(status);

function table(heads, rows) {
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, ...rows));
}

function runTable() {
  const number = (value) => (Number.isNaN(value) ? "" : show(value));
  const varying = ["algorithm", "environment", "seed"].filter((name) => runs.some((run) => run[name] !== runs[0][name]));
  find("about").textContent = ["algorithm", "environment", "seed"].filter((name) => !varying.includes(name) && runs[0][name]).map((name) => `${name} ${runs[0][name]}`).join(", ");
  const rows = runs.map((run, i) => {
    const box = element("input", { type: "checkbox", "aria-label": run.name, ...(state.hidden.includes(run.name) ? {} : { checked: "" }) });
    box.addEventListener("change", () => {
      state.hidden = box.checked ? state.hidden.filter((name) => name !== run.name) : [...state.hidden, run.name];
      save();
      draw();
    });
    const status = element("td", { class: `text status${run.status === "running" ? " running" : isBad(run.status) ? " bad" : ""}` }, run.status);
    const cells = [number(newest(run, "train/mean_return_100", "train/mean_return")), number(run.best ?? NaN), run.steps.toLocaleString("en"), ...varying.map((name) => run[name])];
    const name = element("td", { class: "text" }, element("label", { style: `color:${colourOf(i)}` }, box, ` ${run.name}${run.problem ? ` (${run.problem})` : ""}`));
    return element("tr", {}, name, status, ...cells.map((cell) => element("td", {}, String(cell ?? ""))), element("td", { class: "age" }));
  });
  find("runs").replaceChildren(table(["run", "state", "return", "best test", "steps", ...varying, "last row"], rows));
  ages();
}

function ages() {  // of the last row of each run, and how many runs go on
  const passed = (performance.now() - received) / 1000;
  document.querySelectorAll("#runs .age").forEach((cell, i) => {
    cell.textContent = runs[i].age === null ? "no files yet" : duration(Math.round(runs[i].age + passed));
  });
  const ongoing = runs.filter((run) => run.status === "running").length;
  const ended = runs.filter((run) => isEnded(run.status)).length;
  find("live").className = ongoing ? "" : "ended";
  find("live").textContent = ongoing ? `${ongoing} running` : ended === runs.length ? "ended" : "no run is known to be running";
}

function settingsTable() {
  const names = Object.keys(settings), part = find("settings");
  part.hidden = !names.length;
  part.querySelector("summary").textContent = `${counted(names.length, "setting")} ${names.length === 1 ? "differs" : "differ"}`;
  const rows = names.map((name) => element("tr", {}, element("th", { scope: "row" }, name), ...settings[name].map((value) => element("td", {}, value))));
  part.querySelector("div").replaceChildren(table(["setting", ...runs.map((run) => run.name)], rows));
}

function episodeLists() {
  const parts = runs.flatMap((run, i) => Object.entries(run.episodes).flatMap(([set, lists]) => Object.entries(lists).map(([title, rows]) => {
    const links = rows.map((row) => {
      const address = `episodes/${i}/${encodeURIComponent(set)}/#${new URLSearchParams({ episode: JSON.stringify([row.id, row.t, row.agent, row.nth]) })}`;
      return element("li", {}, element("a", { href: address }, row.id), ` return ${show(row.return)}, ${counted(row.length, "step")}${row.kept ? `, ${row.kept}` : ""}`);
    });
    return element("div", { class: "chart" }, element("h2", { style: `color:${colourOf(i)}` }, `${title} episodes`, element("span", {}, `${run.name}/${set}`)), element("ul", {}, ...links));
  })));
  find("episodes").replaceChildren(...parts);
}

function chosenMetrics() {  // the names of the metrics that are shown, and of those below
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))].filter((name) => !/\/(step|run_seconds)$/.test(name)).sort();
  const words = state.find.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length) return [names.filter((name) => words.every((word) => name.toLowerCase().includes(word))), []];
  const first = names.includes("train/mean_return_100") ? FIRST : ["train/mean_return", ...FIRST];
  const shown = first.flatMap((metric) => {  // of several agents or modules, each has its own, such as "update/loss/module/a"
    const parts = names.filter((name) => name.startsWith(`${metric.replace(/_100$/, "")}/`));
    return [...names.filter((name) => name === metric), ...(parts.length <= MOST_PARTS ? parts : [])];
  });
  return [[...new Set(shown)], names.filter((name) => !shown.includes(name))];
}

function tools() {
  for (const option of find("x").options) option.disabled = option.value !== "step" && !runs.some((run) => run.clock[option.value]?.length);
  find("seeds-label").hidden = new Set(groups).size === groups.length;
  find("whole").hidden = !state.zoom;
}

function draw() {
  runTable();
  settingsTable();
  episodeLists();
  tools();
  const [first, rest] = chosenMetrics(), axis = domain();
  find("empty").textContent = first.length || rest.length ? "" : state.find ? "no metric has these words" : "no rows yet: waiting for the first epoch";
  find("curves").replaceChildren(...first.map((name) => chart(name, axis)));
  const more = find("more");
  more.hidden = !rest.length;
  more.querySelector("summary").textContent = counted(rest.length, "more metric");
  more.querySelector("div").replaceChildren(...(more.open ? rest.map((name) => chart(name, axis)) : []));
  readings();
}

async function poll() {
  try {
    const answer = await fetch(`runs?version=${version ?? ""}`);
    if (answer.status === 200) {
      const message = decode(await answer.arrayBuffer());
      ({ version, runs, groups, settings } = message);
      received = performance.now();
      draw();
    }
    ages();
  } catch {
    find("live").className = "lost";
    find("live").textContent = "the server is gone";
  }
  setTimeout(poll, 1000);
}

async function pollFindings() {  // the list is HTML of the server, which escapes all texts of runs
  const answer = await fetch("findings").catch(() => null), html = answer?.ok ? await answer.text() : null;
  if (html !== null && html !== findingsHtml) find("findings").innerHTML = findingsHtml = html;
  find("findings").dataset.ready = "yes";
  setTimeout(pollFindings, 5000);
}

function change(id, event, apply) {
  find(id).addEventListener(event, () => {
    apply(find(id));
    save();
    draw();
  });
}

change("smooth", "input", (input) => { state.smooth = Number(input.value); });
change("search", "input", (input) => { state.find = input.value.trim(); });
change("seeds", "change", (input) => { state.seeds = input.checked; });
change("x", "change", (input) => { [state.x, state.zoom, state.at] = [input.value, null, null]; });
find("tools").addEventListener("submit", (event) => event.preventDefault());
find("whole").addEventListener("click", () => zoom(null));
addEventListener("keydown", (event) => { if (event.key === "Escape" && state.zoom) zoom(null); });
find("more").addEventListener("toggle", draw);
load();
Promise.all([poll(), pollFindings()]).then(() => { document.body.dataset.ready = "yes"; });
