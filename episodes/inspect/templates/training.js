// The curves of one or several runs, which follow the files that the runs write.

const COLOURS = ["#3b82f6", "#e0820a", "#16a34a", "#a855f7", "#ef4444", "#0891b2", "#ec4899", "#65a30d"];
const FIRST = [
  "train/mean_return", "test/mean_return", "update/loss", "update/policy_loss", "update/value_loss", "update/kl",
  "update/entropy", "update/explained_variance", "train/steps_per_second", "train/mean_length",
];
const WIDTH = 600, HEIGHT = 150;
let runs = [];
let version = null;
const state = { hidden: [], smooth: 0, at: null };

const colourOf = (run) => COLOURS[run % COLOURS.length];

function save() {
  const query = new URLSearchParams();
  for (const name of state.hidden) query.append("hidden", name);
  if (state.smooth) query.set("smooth", state.smooth);
  history.replaceState(null, "", `#${query}`);
}

function load() {
  const query = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, { hidden: query.getAll("hidden"), smooth: Number(query.get("smooth")) || 0 });
  find("smooth").value = state.smooth;
}

function smoothed(values) {
  let last = NaN;
  return Array.from(values, (value) => {
    if (Number.isNaN(value)) return last;
    last = Number.isNaN(last) ? value : state.smooth * last + (1 - state.smooth) * value;
    return last;
  });
}

function line(xs, ys) {
  let text = "", gap = true;
  xs.forEach((x, i) => {
    if (Number.isNaN(ys[i])) { gap = true; return; }
    text += `${gap ? "M" : "L"}${x.toFixed(1)} ${ys[i].toFixed(1)}`;
    gap = false;
  });
  return xs.length === 1 ? `${text}h0` : text;
}

function shownRuns() {
  return runs.map((run, i) => ({ ...run, colour: colourOf(i) })).filter((run) => !state.hidden.includes(run.name));
}

function chart(name) {
  const curves = shownRuns().filter((run) => run.metrics[name]).map((run) => ({ run, ...run.metrics[name], values: smoothed(run.metrics[name].mean) }));
  let low = Infinity, high = -Infinity, last = 1;
  for (const curve of curves) {
    const parts = state.smooth ? [curve.values] : [curve.low, curve.high];
    for (const part of parts) for (const value of part) if (Number.isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); }
    last = Math.max(last, curve.step[curve.step.length - 1]);
  }
  const x = (step) => WIDTH * step / last, y = (value) => height(value, low, high, 6, HEIGHT - 6);
  const svg = element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${name}, ${show(low)} to ${show(high)}` });
  for (const curve of curves) {
    const xs = Array.from(curve.step, x);
    if (!state.smooth) {
      const known = xs.map((_, i) => i).filter((i) => !Number.isNaN(curve.low[i]));
      const top = known.map((i) => `${xs[i].toFixed(1)} ${y(curve.high[i]).toFixed(1)}`), bottom = known.reverse().map((i) => `${xs[i].toFixed(1)} ${y(curve.low[i]).toFixed(1)}`);
      if (top.length > 1) svg.append(element("path", { class: "band", d: `M${[...top, ...bottom].join("L")}Z`, fill: curve.run.colour }));
    }
    svg.append(element("path", { class: "curve", d: line(xs, curve.values.map((value) => (Number.isNaN(value) ? NaN : y(value)))), stroke: curve.run.colour, "stroke-linecap": "round" }));
  }
  const cursor = element("line", { class: "cursor", y1: 0, y2: HEIGHT });
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    state.at = last * Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
    readings();
  });
  svg.addEventListener("pointerleave", () => { state.at = null; readings(); });
  const values = element("p", { class: "values" });
  const range = low > high ? "no numbers" : low === high ? show(low) : `${show(low)} … ${show(high)}`;
  const figure = element("figure", { class: "chart", "data-metric": name }, element("h2", {}, name, element("span", {}, range)), svg, values);
  Object.assign(figure, { curves, cursor, x, values });
  return figure;
}

function readings() {  // the value of each curve at the cursor, or its newest one
  document.querySelectorAll("figure").forEach((figure) => {
    const texts = figure.curves.map((curve) => {
      let i = curve.step.length - 1;
      if (state.at !== null) while (i > 0 && curve.step[i - 1] >= state.at) i--;
      return element("span", { style: `color:${curve.run.colour}` }, `${show(curve.values[i])} `);
    });
    figure.values.replaceChildren(...texts, state.at === null ? "" : `step ${Math.round(state.at).toLocaleString("en")}`);
    const x = state.at === null ? -1 : figure.x(state.at);
    figure.cursor.setAttribute("x1", x);
    figure.cursor.setAttribute("x2", x);
  });
}

function runTable() {
  const newest = (run, name) => { const metric = run.metrics[name]; return metric ? metric.mean[metric.mean.length - 1] : NaN; };
  const best = (run, name) => { const metric = run.metrics[name]; return metric ? metric.high.reduce((a, b) => (b > a || Number.isNaN(a) ? b : a), NaN) : NaN; };
  const ages = (seconds) => (seconds < 120 ? `${Math.round(seconds)} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`);
  const rows = runs.map((run, i) => {
    const box = element("input", { type: "checkbox", "aria-label": run.name, ...(state.hidden.includes(run.name) ? {} : { checked: "" }) });
    box.addEventListener("change", () => {
      state.hidden = box.checked ? state.hidden.filter((name) => name !== run.name) : [...state.hidden, run.name];
      save();
      draw();
    });
    const number = (value) => (Number.isNaN(value) ? "" : show(value));
    const cells = [run.algorithm, run.environment, run.seed, run.steps.toLocaleString("en"), number(newest(run, "train/mean_return")), number(best(run, "test/mean_return")), run.age === null ? "no files yet" : ages(run.age)];
    const name = element("td", { class: "text" }, element("label", { style: `color:${colourOf(i)}` }, box, ` ${run.name}${run.problem ? ` (${run.problem})` : ""}`));
    return element("tr", {}, name, ...cells.map((cell) => element("td", {}, String(cell ?? ""))));
  });
  const heads = ["run", "algorithm", "environment", "seed", "steps", "return", "best test", "last row"];
  find("runs").replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)))), element("tbody", {}, ...rows)));
}

function episodeLists() {
  const parts = runs.flatMap((run, i) => Object.entries(run.episodes).map(([title, rows]) => {
    const links = rows.map((row) => {
      const address = `episodes/${i}/#${new URLSearchParams({ episode: JSON.stringify([row.id, row.t, row.agent, row.nth]) })}`;
      return element("li", {}, element("a", { href: address }, row.id), ` return ${show(row.return)}, ${counted(row.length, "step")}`);
    });
    return element("div", { class: "chart" }, element("h2", { style: `color:${colourOf(i)}` }, `${title} episodes`, element("span", {}, run.name)), element("ul", {}, ...links));
  }));
  find("episodes").replaceChildren(...parts);
}

function draw() {
  runTable();
  episodeLists();
  const names = new Set(runs.flatMap((run) => Object.keys(run.metrics)));
  const first = FIRST.filter((name) => names.has(name)), rest = [...names].filter((name) => !FIRST.includes(name) && !name.endsWith("/step")).sort();
  find("empty").textContent = names.size ? "" : "no rows yet: waiting for the first epoch";
  find("curves").replaceChildren(...first.map(chart));
  const more = find("more");
  more.hidden = !rest.length;
  more.querySelector("summary").textContent = counted(rest.length, "more metric");
  more.querySelector("div").replaceChildren(...(more.open ? rest.map(chart) : []));
  readings();
}

async function poll() {
  try {
    const answer = await fetch(`runs?version=${version ?? ""}`);
    if (answer.status === 200) {
      const message = decode(await answer.arrayBuffer());
      [version, runs] = [message.version, message.runs];
      draw();
    }
    find("live").className = "";
    find("live").textContent = "live";
  } catch {
    find("live").className = "lost";
    find("live").textContent = "the server is gone";
  }
  document.body.dataset.ready = "yes";
  setTimeout(poll, 1000);
}

find("smooth").addEventListener("input", () => {
  state.smooth = Number(find("smooth").value);
  save();
  draw();
});
find("more").addEventListener("toggle", draw);
load();
poll();
