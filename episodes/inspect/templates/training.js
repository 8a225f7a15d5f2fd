// The curves of one or several runs, which follow the files that the runs write.

const NUM_COLOURS = 8;  // in the style
const FIRST = [
  "train/mean_return_100", "test/mean_return", "update/return", "update/loss", "update/policy_loss", "update/value_loss", "update/kl",
  "update/entropy", "update/explained_variance", "train/steps_per_second", "train/mean_length",
];
const AS_LOGGED = "mean over minibatches of all epochs, as logged";
const MEANINGS = {
  "train/mean_return_100": "mean return of the newest 100 episodes", "train/mean_return": "mean return of the episodes that ended in each sample",
  "train/num_episodes": "episodes that ended in each sample", "test/mean_return": "mean return of the episodes of a test", "update/return": "mean return of the episodes of an update",
  "update/loss": `what gradient steps minimize, ${AS_LOGGED}; it need not fall while a policy improves`,
  "update/policy_loss": `part of the loss of the policy, ${AS_LOGGED}; near 0, and no measure of progress`, "update/value_loss": `mean squared error of the values, before its coefficient, ${AS_LOGGED}`,
  "update/kl": `estimate of how far the policy moved from the one that acted, ${AS_LOGGED}`, "update/entropy": `mean entropy of the actions' distributions: 0 if they are certain, ${AS_LOGGED}`,
  "update/explained_variance": "of the values that the value targets were computed with, before the first gradient step, all rows: 1 if they predict the targets, 0 if no better than a constant",
  "train/steps_per_second": "environment steps by second of sampling", "train/mean_length": "mean number of steps of the episodes that ended in each sample",
  "update/clip_fraction": `fraction of rows that the clip limits, ${AS_LOGGED}; of PPO, those whose ratio left the clip range on either side`, "update/gradient_norm": "norm of the gradient before it is clipped",
};
const MOST_PARTS = 6;  // of a metric that each agent or module has, above the fold
const WIDTH = 600, HEIGHT = 150, EDGE = 6, MOST_POINTS = 400, MOST_DOTS = 60;
const SCOPES = { train: "Sampling", test: "Tests", update: "Updates", info: "Other" };
const KEY = `episodes ${location.pathname}`;  // of the state in the storage of the tab, for links back to this page
let runs = [], groups = [], settings = {}, marked = {}, differing = 0;
let version = null, received = 0, findingsHtml = "";
let marks = [], pages = [];  // updates of findings, and by run the updates that have a page: [number, module]
const state = { hidden: [], smooth: 0, at: null, x: "step", zoom: null, find: "", seeds: false, large: [], log: [], zero: [] };
const LISTS = ["hidden", "large", "log", "zero"];

const meaningOf = (name) => MEANINGS[name.replace(/\/(agent|module)(\/.*)?$/, "")] ?? "";  // of agents and modules, the same
const colourOf = (run) => `var(--run-${run % NUM_COLOURS})`;

function save() {
  const query = new URLSearchParams();
  for (const list of LISTS) for (const name of state[list]) query.append(list, name);
  if (state.smooth) query.set("smooth", state.smooth);
  if (state.x !== "step") query.set("x", state.x);
  if (state.zoom) query.set("zoom", state.zoom.join(","));
  if (state.find) query.set("find", state.find);
  if (state.seeds) query.set("seeds", "yes");
  history.replaceState(null, "", `#${query}`);
  sessionStorage.setItem(KEY, String(query));
}

function load() {
  const query = new URLSearchParams(location.hash.slice(1) || (sessionStorage.getItem(KEY) ?? ""));
  const zoom = (query.get("zoom") ?? "").split(",").map(Number), x = query.get("x");
  Object.assign(state, {
    ...Object.fromEntries(LISTS.map((list) => [list, query.getAll(list)])), smooth: Number(query.get("smooth")) || 0, find: query.get("find") ?? "",
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

function axisTicks(low, high, most) {  // at least two, unless all is one value
  for (let count = most; count <= 4 * most; count *= 2) {
    const values = ticks(low, high, count);
    if (values.length > 1) return values;
  }
  return ticks(low, high, most);
}

function logTicks(low, high) {  // exponents between those of the ends: powers of ten, or other round numbers within few of them
  const powers = Array.from({ length: Math.max(Math.floor(high) - Math.ceil(low) + 1, 0) }, (_, i) => Math.ceil(low) + i);
  if (powers.length > 2) return powers.filter((_, i) => i % Math.ceil(powers.length / 6) === 0);
  return axisTicks(10 ** low, 10 ** high, 4).filter((value) => value > 0).map(Math.log10);
}

function short(value) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (Math.abs(value) >= size && Math.abs(value) < 1e12) return `${+(value / size).toPrecision(4)}${unit}`;
  return show(value);
}

function grouped(value) {  // as text, with commas between thousands
  const text = show(value);
  return /^-?\d{5,}$/.test(text) ? Number(text).toLocaleString("en") : text;
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

function partsOf(names) {  // of one run, the curves of all agents or modules of a metric share a chart, such as "train/mean_return/agent"
  const joint = (name) => name.replace(/\/(agent|module)\/.*$/, "/$1");
  const count = (name) => names.filter((other) => joint(other) === joint(name)).length;
  return [...new Set(names.map((name) => (runs.length === 1 && count(name) > 1 && count(name) <= NUM_COLOURS ? joint(name) : name)))];
}

function curvesOf(name) {
  const curves = [];
  for (const run of shownRuns()) {
    const isJoint = !run.metrics[name] && runs.length === 1;
    const members = isJoint ? Object.keys(run.metrics).filter((other) => other.startsWith(`${name}/`)).sort() : [name];
    members.forEach((member, i) => {
      const metric = run.metrics[member], xs = metric && placed(run, metric.step);
      const [label, colour] = isJoint ? [member.slice(name.length + 1), colourOf(i)] : [run.name, run.colour];
      if (xs) curves.push({ run, colour, xs, steps: metric.step, low: metric.low, high: metric.high, values: smoothed(metric.mean), raw: state.smooth ? metric.mean : null, label, hasBand: !state.smooth });
    });
  }
  if (!state.seeds) return curves;
  const members = Map.groupBy(curves, (curve) => groups[curve.run.number]);
  return [...members.values()].map((group) => (group.length === 1 ? group[0] : {
    ...meanCurve(group), run: group[0].run, colour: group[0].colour, hasBand: true, label: `${group.map((curve) => curve.label).join(", ")} (mean of ${group.length} seeds)`,
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
      for (const value of curve.hasBand ? [curve.low[i], curve.high[i]] : [curve.values[i], curve.raw?.[i] ?? NaN]) if (Number.isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); }
    });
  }
  return [low, high];
}

function toExponents(curve) {  // of numbers above 0; others have no place on a logarithmic axis
  const exponents = (values) => values && Array.from(values, (value) => (value > 0 ? Math.log10(value) : NaN));
  return { ...curve, values: exponents(curve.values), raw: exponents(curve.raw), low: exponents(curve.low), high: exponents(curve.high) };
}

function drawCurve(svg, curve, x, y) {
  const xs = curve.xs.map(x), heights = (values) => Array.from(values, (value) => (Number.isNaN(value) ? NaN : y(value)));
  const style = (part) => `${part}:${curve.colour}`;
  if (curve.hasBand) {
    const known = xs.map((_, i) => i).filter((i) => !Number.isNaN(curve.low[i]) && !Number.isNaN(curve.high[i]));
    const top = known.map((i) => `${xs[i].toFixed(1)} ${y(curve.high[i]).toFixed(1)}`), bottom = known.reverse().map((i) => `${xs[i].toFixed(1)} ${y(curve.low[i]).toFixed(1)}`);
    if (top.length > 1) svg.append(element("path", { class: "band", d: `M${[...top, ...bottom].join("L")}Z`, style: style("fill") }));
  }
  if (curve.raw) svg.append(element("path", { class: "raw", d: line(xs, heights(curve.raw)), style: style("stroke") }));
  svg.append(element("path", { class: "curve", d: line(xs, heights(curve.values)), style: style("stroke"), "stroke-linecap": "round" }));
  const dots = xs.map((at, i) => [at, heights(curve.values)[i]]).filter(([at, value]) => at >= 0 && at <= WIDTH && !Number.isNaN(value));
  if (dots.length <= MOST_DOTS) svg.append(element("path", { class: "points", d: dots.map(([at, value]) => `M${at.toFixed(1)} ${value.toFixed(1)}h0`).join(""), style: style("stroke") }));
}

function marksOn(svg, [from, to], x) {  // thin lines at the updates of findings
  for (const { run, update, title } of marks) {
    const shown = shownRuns().find((one) => one.number === run), clock = shown?.clock;
    if (!clock?.update?.length) continue;
    const [at] = placed(shown, [interpolate(clock.update, clock.step, update)]) ?? [];
    if (at >= from && at <= to) svg.append(element("line", { class: "found", x1: x(at), x2: x(at), y1: 0, y2: HEIGHT }, element("title", {}, `${runs.length > 1 ? `${shown.name}, ` : ""}update ${update}: ${title}`)));
  }
}

const figureOf = (name) => document.querySelector(`figure[data-metric="${CSS.escape(name)}"]`);

function toggle(list, name) {
  state[list] = state[list].includes(name) ? state[list].filter((other) => other !== name) : [...state[list], name];
  save();
  draw();
  const figure = figureOf(name);
  figure?.querySelector(`.${list}`)?.focus();
  figure?.scrollIntoView({ block: "nearest" });
}

function heading(name, range, isLarge) {  // a button that opens the chart large, where it has a switch of its scale
  const open = element("button", { type: "button", class: "large", "aria-expanded": isLarge, title: meaningOf(name) }, name);
  open.addEventListener("click", () => toggle("large", name));
  if (!isLarge) return element("h2", {}, open, element("span", {}, range));
  const switches = [["log", " logarithmic"], ["zero", " from 0"]].map(([list, words]) => {
    const box = element("input", { type: "checkbox", class: list, ...(state[list].includes(name) ? { checked: "" } : {}) });
    box.addEventListener("change", () => toggle(list, name));
    return element("label", {}, box, words);
  });
  return element("h2", {}, open, element("span", {}, range), ...switches);
}

function chart(name, [from, to]) {
  const isLarge = state.large.includes(name), isLog = isLarge && state.log.includes(name);
  const curves = curvesOf(name), onAxis = isLog ? curves.map(toExponents) : curves, ends = extent(curves, [from, to]);
  let [low, high] = extent(onAxis, [from, to]);
  if (isLarge && !isLog && state.zero.includes(name) && low <= high) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  if (low === high) [low, high] = [low - (Math.abs(low) / 10 || 1), high + (Math.abs(high) / 10 || 1)];  // a line in the middle
  const x = (value) => WIDTH * ((value - from) / (to - from)), y = (value) => height(value, low, high, EDGE, HEIGHT - EDGE);
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "group", tabindex: 0, "aria-label": `${name}, ${show(ends[0])} to ${show(ends[1])}; arrow keys read its numbers${opensPages() ? ", Enter opens the update" : ""}` });
  const heights = (isLog ? logTicks(low, high) : axisTicks(low, high, isLarge ? 8 : 4)).map((value) => ({ value: isLog ? +(10 ** value).toPrecision(4) : value, at: y(value) }));
  const places = axisTicks(from, to, 5).map((value) => ({ value, at: x(value) }));
  for (const { at, value } of heights) svg.append(element("line", { class: value === 0 ? "grid zero" : "grid", x1: 0, x2: WIDTH, y1: at, y2: at }));
  for (const { at } of places) svg.append(element("line", { class: "grid", x1: at, x2: at, y1: 0, y2: HEIGHT }));
  marksOn(svg, [from, to], x);
  for (const curve of onAxis) drawCurve(svg, curve, x, y);
  const cursor = element("line", { class: "cursor", y1: 0, y2: HEIGHT }), drag = element("rect", { class: "drag", y: 0, height: HEIGHT, width: 0 });
  svg.append(cursor, drag);
  const values = element("span", { role: "status" });
  const range = ends[0] > ends[1] ? "no numbers" : ends[0] === ends[1] ? grouped(ends[0]) : `${grouped(ends[0])} … ${grouped(ends[1])}`;
  const left = element("div", { class: "heights" }, ...heights.map(({ value, at }) => element("span", { style: `top:${100 * at / HEIGHT}%` }, short(value))));
  const below = element("div", { class: "places" }, ...places.map(({ value, at }) => element("span", { style: `left:${100 * at / WIDTH}%` }, place(value))));
  const figure = element("figure", { class: `chart${isLarge ? " wide" : ""}`, "data-metric": name }, heading(name, range, isLarge), element("div", { class: "plot" }, left, svg, below), element("p", { class: "values" }, roomFor(curves), values));
  if (meaningOf(name)) figure.append(element("p", { class: "meaning" }, `${meaningOf(name)}.`));
  if (isLog && ends[0] <= 0) figure.append(element("p", { class: "meaning" }, "Numbers that are not above 0 have no place on this scale."));
  Object.assign(figure, { curves, cursor, x, values, from, to });
  listen(figure, svg, drag, (event) => {
    const box = svg.getBoundingClientRect();
    return from + (to - from) * Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  }, x);
  return figure;
}

function listen(figure, svg, drag, at, x) {  // to the pointer and keys: readings, a zoom by dragging, and the page of the update at a point
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
    const isClick = begin !== null, ends = [begin ?? at(event), at(event)].sort((a, b) => a - b);
    begin = null;
    drag.setAttribute("width", 0);
    if (Math.abs(x(ends[1]) - x(ends[0])) > WIDTH / 60) zoom(ends);
    else if (isClick && event.pointerType !== "touch") openUpdate(figure);  // a touch reads the number
  });
  const leave = () => { state.at = null; readings(); };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Enter") openUpdate(figure);
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const xs = pointsOf(figure).map((point) => point.x), last = xs.length - 1;
    const place = state.at === null ? (move > 0 ? -1 : last + 1) : xs.indexOf(nearest(figure).x);
    if (last >= 0) state.at = xs[Math.max(0, Math.min(last, place + move))];
    readings();
  });
}

function zoom(ends) {
  state.zoom = ends;
  state.at = null;
  save();
  draw();
}

function escape() {  // shows the whole run, or else closes the large charts
  if (state.zoom) return zoom(null);
  if (!state.large.length) return;
  const name = state.large[state.large.length - 1];
  state.large = [];
  save();
  draw();
  figureOf(name)?.querySelector(".large")?.focus();
}

const opensPages = () => shownRuns().some((run) => pages[run.number]?.length && run.clock.update?.length);  // of updates

function pointsOf(figure) {  // that are shown and have numbers, by x; a figure is made again when they change
  if (figure.points) return figure.points;
  const points = figure.curves.flatMap((curve) => curve.xs.map((x, i) => ({ x, i, curve })).filter(({ x, i }) => x >= figure.from && x <= figure.to && !Number.isNaN(curve.values[i])));
  figure.points = points.sort((a, b) => a.x - b.x).filter((point, i, all) => !i || point.x > all[i - 1].x);
  return figure.points;
}

function nearest(figure, at = state.at) {  // of its points to a place; undefined without any
  return pointsOf(figure).reduce((best, point) => (best && Math.abs(best.x - at) <= Math.abs(point.x - at) ? best : point), undefined);
}

function readingOf(curve, figure, at) {  // the point next to the one at the cursor, or the newest one that is shown; none beyond the ends
  const known = curve.xs.map((x, i) => ({ x, value: curve.values[i] })).filter(({ x, value }) => !Number.isNaN(value) && (at !== undefined || x <= figure.to));
  if (at === undefined) return known[known.length - 1];
  if (!known.length || at < known[0].x || at > known[known.length - 1].x) return undefined;
  return known.reduce((best, point) => (Math.abs(point.x - at) < Math.abs(best.x - at) ? point : best));
}

function updateAt({ curve, i }) {  // number of the update of a point of a curve, NaN if it is not known
  const { update, step } = curve.run.clock;
  return update?.length && curve.steps ? interpolate(step, update, curve.steps[i]) : NaN;
}

function pageAt(figure) {  // address of the page of the update next to the point at the cursor, and its number; undefined if there is none
  const point = state.at === null ? undefined : nearest(figure), at = point ? updateAt(point) : NaN;
  const module = figure.dataset.metric.match(/\/module\/(.+)$/)?.[1] ?? (/\/module$/.test(figure.dataset.metric) ? point?.curve.label : undefined);
  const among = (pages[point?.curve.run.number] ?? []).filter(([, name]) => module === undefined || name === module);
  if (Number.isNaN(at) || !among.length) return undefined;
  const [update, name] = among.reduce((best, page) => (Math.abs(page[0] - at) < Math.abs(best[0] - at) ? page : best));
  return { update, run: point.curve.run.name, address: `updates/${point.curve.run.number}/${update}${name ? `?${new URLSearchParams({ module: name })}` : ""}` };
}

function openUpdate(figure) {
  const page = pageAt(figure);
  if (page) location.assign(page.address);
}

function readingElement(curve, name, words) {
  return element("span", { style: `color:${curve.colour}`, title: curve.label }, element("i", {}, name), words);
}

function roomFor(curves) {  // the longest readings, which are hidden and keep the place, so that nothing moves while one reads
  const texts = curves.map((curve) => readingElement(curve, curves.length > 1 ? `${curve.label} ` : "", `-88888.88${curves.length > 1 ? ` (at ${place(888888)})` : ""} `));
  return element("span", { class: "room", "aria-hidden": "true" }, ...texts, element("small", {}));
}

function readings() {
  const wordsOf = { step: (x) => `step ${Math.round(x).toLocaleString("en")}`, update: (x) => `update ${+x.toPrecision(6)}`, time: duration };
  document.querySelectorAll("figure.chart").forEach((figure) => {
    const point = state.at === null ? undefined : nearest(figure), at = point?.x;
    const texts = figure.curves.map((curve) => {
      const reading = readingOf(curve, figure, at), name = figure.curves.length > 1 ? `${curve.label} ` : "";
      const isApart = at !== undefined && reading && Math.abs(reading.x - at) > (figure.to - figure.from) / 200;
      const words = `${reading ? grouped(reading.value) : "–"}${isApart ? ` (at ${place(reading.x)})` : ""} `;
      return readingElement(curve, name, words);
    });
    const update = point && state.x !== "update" ? updateAt(point) : NaN, page = pageAt(figure);
    const parts = [point ? wordsOf[state.x](at) : state.zoom ? "last one shown" : "newest", Number.isInteger(update) ? `update ${update}` : "", state.smooth ? "smoothed" : "", page ? `click opens update ${page.update}${runs.length > 1 ? ` of ${page.run}` : ""}` : ""];
    figure.values.replaceChildren(...texts, element("small", {}, texts.length ? parts.filter(Boolean).join(", ") : ""));
    figure.classList.toggle("opens", Boolean(page));
    const x = point ? figure.x(at) : -1;
    figure.cursor.setAttribute("x1", x);
    figure.cursor.setAttribute("x2", x);
  });
}

const RETURNS = {  // metrics of the run table, and what they are
  "train/mean_return_100": "mean return of the newest 100 episodes", "train/mean_return": "mean return of the newest sample", "update/return": "mean return of the newest update",
};

function newestReturn(run) {  // the newest number of the first of these metrics that the run has, and its name
  for (const name of Object.keys(RETURNS)) {
    const value = run.metrics[name]?.mean.findLast((number) => Number.isFinite(number));
    if (value !== undefined) return [value, name];
  }
  return [NaN, ""];
}

const isBad = (status) => /^(failed|killed|unreadable)/.test(status);

const HEADS = {  // columns whose names need a word more
  "logged steps": "as the logger of the run counts them, such as sampled tokens", "environment steps": "of all environments together; each agent of a game has its own",
  "mean return": "of the newest 100 episodes, or of the newest sample or update if that is not logged; a cell names it", "best test": "highest mean return of a test", "last row": "when the files of the run have grown last",
};

function table(heads, rows) {
  return element("table", {}, element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col", title: HEADS[text] }, text)))), element("tbody", {}, ...rows));
}

const UNKNOWN = "not recorded";  // state of a run without a status

function switchOf(run, i) {  // shows or hides a run; one run alone is always shown
  const words = `${run.name}${run.problem ? ` (${run.problem})` : ""}`;
  const swatch = element("i", { class: "swatch", style: `background:${colourOf(i)}` });
  if (runs.length === 1) return element("span", {}, words);
  const box = element("input", { type: "checkbox", "aria-label": run.name, ...(state.hidden.includes(run.name) ? {} : { checked: "" }) });
  box.addEventListener("change", () => {
    state.hidden = box.checked ? state.hidden.filter((name) => name !== run.name) : [...state.hidden, run.name];
    save();
    draw();
    find("runs").querySelectorAll("input")[i].focus();
  });
  return element("label", { title: "show or hide the curves of this run" }, box, " ", swatch, ` ${words}`);
}

function runTable() {
  const number = (value) => (Number.isNaN(value) ? "–" : grouped(value));
  const varying = ["algorithm", "environment", "seed"].filter((name) => runs.some((run) => run[name] !== runs[0][name]));
  find("about").textContent = ["algorithm", "environment", "seed"].filter((name) => !varying.includes(name) && runs[0][name]).map((name) => `${name} ${runs[0][name]}`).join(", ");
  const places = [...new Map(shownRuns().filter((run) => run.environment).map((run) => [run.place, run.environment])).values()];
  find("unlike").textContent = places.length > 1 ? `${places.length} environments: ${places.join("; ")}: returns are not comparable` : "";
  const units = [...new Set(runs.map((run) => run.unit))];
  const returns = runs.map(newestReturn), kinds = new Set(returns.map(([, name]) => name).filter(Boolean));
  const head = kinds.size === 1 ? RETURNS[[...kinds][0]] : "mean return", hasTests = runs.some((run) => Number.isFinite(run.best ?? NaN));
  const rows = runs.map((run, i) => {
    const status = element("td", { class: `text status${run.status === "running" ? " running" : isBad(run.status) ? " bad" : ""}` }, run.status || UNKNOWN);
    const steps = `${run.steps.toLocaleString("en")}${units.length > 1 ? ` ${run.unit}` : ""}`;
    const cells = [...(hasTests ? [number(run.best ?? NaN)] : []), steps, ...varying.map((name) => run[name])];
    return element("tr", {}, element("td", { class: "text" }, switchOf(run, i)), status, element("td", { title: RETURNS[returns[i][1]] }, number(returns[i][0])), ...cells.map((cell) => element("td", {}, String(cell ?? ""))), element("td", { class: "age" }));
  });
  find("runs").replaceChildren(table(["run", "state", head, ...(hasTests ? ["best test"] : []), units.length > 1 ? "steps" : units[0], ...varying, "last row"], rows));
  ages();
}

function ages() {  // of the last row of each run, and how many runs go on
  const passed = (performance.now() - received) / 1000;
  const age = (run) => `${duration(Math.round(run.age + passed))} ago`;
  document.querySelectorAll("#runs .age").forEach((cell, i) => {
    cell.textContent = runs[i].age === null ? "no files yet" : age(runs[i]);
  });
  const ongoing = runs.filter((run) => run.status === "running").length;
  const ended = runs.filter((run) => isEnded(run.status)).length;
  const ages = runs.filter((run) => run.age !== null).sort((a, b) => a.age - b.age);
  find("live").className = ongoing ? "" : "ended";
  find("live").textContent = ongoing ? `${ongoing} running` : ended === runs.length ? "ended" : `no run is known to be running${ages.length ? `, newest row ${age(ages[0])}` : ""}`;
}

function settingsTable() {
  const names = Object.keys(settings), part = find("settings");
  part.hidden = !names.length;
  const differ = `${counted(differing, "setting")} ${differing === 1 ? "differs" : "differ"}`;
  const without = runs.filter((_, i) => names.every((name) => settings[name][i] === "")).map((run) => run.name);
  const all = counted(names.length, "setting");
  part.querySelector("summary").textContent = without.length ? `${all}; of ${without.join(", ")} none is recorded` : runs.length > 1 ? `${differ}, of ${names.length}` : all;
  const words = part.querySelector("input").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = names.filter((name) => words.every((word) => `${name} ${settings[name].join(" ")}`.toLowerCase().includes(word)));
  const isDifferent = new Set(names.slice(0, differing));
  const rows = shown.map((name) => element("tr", isDifferent.has(name) ? { class: "differs" } : {}, element("th", { scope: "row" }, name), ...settings[name].map((value, i) => element("td", {}, ...(marked[name]?.[i] ?? [[value, false]]).map(([text, differs]) => (differs ? element("mark", {}, text) : text))))));
  part.querySelector("div").replaceChildren(shown.length ? table(["setting", ...runs.map((run) => run.name)], rows) : element("p", { class: "note" }, "no setting has these words"));
}

function episodeLists() {
  const parts = runs.flatMap((run, i) => Object.entries(run.episodes).flatMap(([set, lists]) => Object.entries(lists).map(([title, rows]) => {
    const links = rows.map((row) => {
      const address = `episodes/${i}/${encodeURIComponent(set)}/#${new URLSearchParams({ episode: JSON.stringify([row.id, row.t, row.agent, row.nth]) })}`;
      return element("li", {}, element("a", { href: address, title: row.id }, shortId(row.id)), ` return ${grouped(row.return)}, ${counted(row.length, "step")}${row.at === null ? "" : `, at step ${row.at.toLocaleString("en")}`}`);
    });
    return element("div", { class: "chart" }, element("h2", {}, `Episodes: ${title}`, element("span", {}, `${run.name}/${set}`)), element("ul", {}, ...links));
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
  find("opens").hidden = !opensPages();
}

function sections(names, axis) {  // charts below the names of their tables
  const groups = [...Map.groupBy(names, (name) => name.split("/")[0])];
  return groups.map(([scope, members]) => element("section", { "aria-label": SCOPES[scope] ?? scope }, element("h2", { class: "scope" }, SCOPES[scope] ?? scope), element("div", { class: "curves" }, ...members.map((name) => chart(name, axis)))));
}

function draw() {
  runTable();
  settingsTable();
  episodeLists();
  tools();
  const [first, rest] = chosenMetrics().map(partsOf), axis = domain(), focused = document.activeElement?.closest?.("svg") && document.activeElement.closest("figure.chart")?.dataset.metric, at = state.at;
  const areHidden = runs.length > 0 && !shownRuns().length;
  find("empty").textContent = areHidden ? "All runs are hidden: check one in the table above." : first.length || rest.length ? "" : state.find ? "no metric has these words" : "no rows yet: waiting for the first epoch";
  find("curves").replaceChildren(...(areHidden ? [] : sections(first, axis)));
  const more = find("more");
  more.hidden = !rest.length || areHidden;
  more.querySelector("summary").textContent = counted(rest.length, "more metric");
  more.querySelector("div").replaceChildren(...(more.open ? sections(rest, axis) : []));
  if (focused) {
    figureOf(focused)?.querySelector("svg")?.focus({ preventScroll: true });
    state.at = at;  // which the chart before had forgotten as it lost the focus
  }
  readings();
}

async function poll() {
  try {
    const answer = await fetch(`runs?version=${version ?? ""}`);
    if (answer.status === 200) {
      const message = decode(await answer.arrayBuffer());
      ({ version, runs, groups, settings, marked, differing } = message);
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
  if (html !== null && html !== findingsHtml) {
    find("findings").innerHTML = findingsHtml = html;
    const lists = [...find("findings").querySelectorAll("[data-run]")];
    pages = Object.fromEntries(lists.map((list) => [list.dataset.run, JSON.parse(list.dataset.updates)]));
    marks = lists.flatMap((list) => [...list.querySelectorAll("[data-update]")].map(({ dataset }) => ({ run: Number(list.dataset.run), update: Number(dataset.update), title: dataset.title })));
    if (version !== null) draw();
  }
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
addEventListener("keydown", (event) => { if (event.key === "Escape") escape(); });
find("settings").querySelector("input").addEventListener("input", settingsTable);
find("more").addEventListener("toggle", draw);
load();
Promise.all([poll(), pollFindings()]).then(() => { document.body.dataset.ready = "yes"; });
