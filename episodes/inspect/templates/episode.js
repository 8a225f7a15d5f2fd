// One episode, or two to compare: lanes of numbers over a common time axis, frames of all cameras, texts as turns.

const SHOWN_LANES = 24, MOST_TURNS = 400, MOST_MARKS = 300;
let shown = null;  // the episode
let other = null;  // the episode to compare with
let playing = null;

const firstStep = (episode) => -episode.lookback;
const span = () => {
  const episodes = [shown, other].filter(Boolean);
  return [Math.min(...episodes.map(firstStep)), Math.max(...episodes.map((episode) => episode.length), firstStep(shown) + 1)];
};
const view = () => {
  const whole = span();
  return state.view && state.view[0] < whole[1] ? state.view : whole;
};
const xOf = (at) => { const [a, b] = view(); return 1000 * (at - a) / (b - a); };

function startOf(episode, track, cell) {  // the step of the first item of a cell
  return track.at ? track.at[cell] : track.begin + cell * track.every - episode.lookback;
}

function cellOf(episode, track, step) {
  const place = Math.floor(step) + episode.lookback;
  const cell = track.at ? track.at.findLastIndex((start) => start <= step) : Math.floor((place - track.begin) / track.every);
  const num = (track.values ?? track.low).length;
  return cell >= 0 && cell < num && place < track.items ? cell : -1;
}

function reading(episode, track, step) {  // the number of a step, or the range of the cell that has the step
  const cell = cellOf(episode, track, step);
  if (cell < 0) return "";
  const found = (from, to) => [...new Set((track.marks ?? []).filter(([at]) => from <= at && at <= to).map(([, text]) => text))].slice(0, 3);
  const odd = track.odd[cell] ?? "";
  if (track.values) return [odd || show(track.values[cell]), ...found(step, step)].join(", ");
  const begin = startOf(episode, track, cell), end = Math.min(begin + track.every, track.items - episode.lookback) - 1;
  const range = Number.isNaN(track.low[cell]) ? "" : `${show(track.low[cell])} … ${show(track.high[cell])}`;
  return `${[range, odd, ...found(begin, end)].filter(Boolean).join(", ")} (${begin}–${end})`;
}

function path(episode, track, low, high) {
  const rows = track.values ? [track.values] : [track.low, track.high], [a, b] = view();
  let text = "", gap = true, width = track.every;
  for (let i = 0; i < rows[0].length; i++) {
    const start = startOf(episode, track, i) + (track.more ? 0 : 0.5);
    if (start + width < a || start - width > b) continue;
    if (Number.isNaN(rows[0][i])) { gap = true; continue; }
    rows.forEach((row, k) => {
      const x = xOf(start + (width - 1) * k / 2), y = height(row[i], low, high, 2, 28);
      const isAlone = gap && rows.length === 1 && !(i + 1 < row.length && !Number.isNaN(row[i + 1]));
      text += `${gap ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}${isAlone ? "h0" : ""}`;
      gap = false;
    });
  }
  return text;
}

function rangeOf(track) {  // of the whole track
  if (!track.range) {
    track.range = [Infinity, -Infinity];
    for (const value of track.values) if (!Number.isNaN(value)) track.range = [Math.min(track.range[0], value), Math.max(track.range[1], value)];
  }
  return track.range;
}

function partner(track) {
  return other?.lanes.find((lane) => lane.label === track.label) ?? null;
}

function differences(track) {  // the steps at which the numbers of both episodes differ, as far as both are exact
  const second = partner(track), steps = [];
  if (!second) return steps;
  const end = Math.max(shown.length, other.length);
  for (let step = Math.max(firstStep(shown), firstStep(other)); step <= end; step++) {
    if (reading(shown, track, step) !== reading(other, second, step)) steps.push(step);
  }
  return steps;
}

function lane(track) {
  const second = partner(track);
  const ranges = [track, second].filter(Boolean).map(rangeOf).filter((range) => range[0] <= range[1]);
  const low = Math.min(...ranges.map((range) => range[0])), high = Math.max(...ranges.map((range) => range[1]));
  const each = track.every > 1 ? `; each point is the lowest and the highest of ${track.every} steps` : "";
  const svg = element("svg", { viewBox: "0 0 1000 30", preserveAspectRatio: "none", role: "img", "aria-label": `${track.label}, ${show(low)} to ${show(high)}${each}` });
  if (shown.lookback) svg.append(element("rect", { class: "before", x: xOf(firstStep(shown)), width: Math.max(xOf(0) - xOf(firstStep(shown)), 0), height: 30 }));
  const mid = (episode, one, cell) => startOf(episode, one, cell) + (one.more ? 0 : 0.5);
  const odd = Object.entries(track.odd).filter(([, words]) => /NaN|∞/.test(words)).map(([cell]) => `M${xOf(mid(shown, track, Number(cell))).toFixed(1)} 22v8`);
  svg.append(element("path", { class: "odd", d: odd.join("") }));
  const found = (track.marks ?? []).map(([at]) => `M${xOf(at + (track.more ? 0 : 0.5)).toFixed(1)} 0v7`);
  if (found.length) svg.append(element("path", { class: "found", d: found.join("") }));
  if (second) {
    svg.append(element("path", { class: "second", d: path(other, second, low, high), stroke: `var(--${track.hue})` }));
    const steps = differences(track), every = Math.ceil(steps.length / MOST_MARKS) || 1;
    svg.append(element("path", { class: "odd", d: steps.filter((_, i) => i % every === 0).map((step) => `M${xOf(step + (track.more ? 0 : 0.5)).toFixed(1)} 0v4`).join("") }));
  }
  svg.append(element("path", { d: path(shown, track, low, high), stroke: `var(--${track.hue})`, "stroke-linecap": "round" }));
  svg.append(element("rect", { class: "drag", height: 30, width: 0 }), element("line", { class: "cursor", y1: -2, y2: 32 }));
  drags(svg);
  const name = element("span", { class: "name", style: `color:var(--${track.hue})`, title: track.label + each }, track.label);
  const scale = element("span", { class: "scale" }, element("span", {}, ranges.length ? show(high) : ""), element("span", {}, ranges.length && low !== high ? show(low) : ""));
  const line = element("div", { class: "lane" }, name, scale, svg, element("b", {}));
  line.track = track;
  return line;
}

function drags(svg) {  // dragging zooms, a click chooses a step
  const at = (event) => {
    const box = svg.getBoundingClientRect(), [a, b] = view();
    return a + (b - a) * Math.max(0, Math.min(1, (event.clientX - box.left) / box.width));
  };
  let from = null;
  svg.addEventListener("pointerdown", (event) => { from = at(event); svg.setPointerCapture(event.pointerId); event.preventDefault(); });
  svg.addEventListener("pointermove", (event) => {
    const to = at(event), rect = svg.querySelector(".drag");
    if (from === null) { if (!playing) move(Math.round(to), false); return; }
    rect.setAttribute("x", xOf(Math.min(from, to)));
    rect.setAttribute("width", Math.abs(xOf(to) - xOf(from)));
  });
  svg.addEventListener("pointerup", (event) => {
    const to = at(event), start = from;
    from = null;
    if (start === null) return;
    if (Math.abs(xOf(to) - xOf(start)) > 8) zoom(Math.round(Math.min(start, to)), Math.round(Math.max(start, to)));
    else { svg.querySelector(".drag").setAttribute("width", 0); move(Math.round(to)); }
  });
  svg.addEventListener("dblclick", () => zoom());
}

async function zoom(a, b) {
  const [first, last] = shown ? span() : [0, 1];
  const [from, to] = [Math.max(a, first), Math.min(Math.max(b, a + 1), last)];
  state.view = from < to && !(from === first && to === last) ? [from, to] : null;
  save();
  await refine();
  drawLanes();
}

async function refine() {  // with a server, a window of a long episode has exact numbers again
  if (!live || !shown || !shown.lanes.some((track) => track.every > 1)) return;
  const episode = shown, answer = await fetchEpisode(state.episode, state.view);
  if (answer && shown === episode) shown = answer;
}

function axis() {
  const [a, b] = view(), rail = element("div", { class: "rail" });
  const left = (step) => `left:${xOf(step) / 10}%`;
  const mark = (step, name, title) => step >= a && step <= b && rail.append(element("span", { class: `mark ${name}`, style: left(step), title }));
  if (shown.lookback && a < 0) rail.append(element("span", { class: "past", style: `${left(a)};width:${xOf(0) / 10}%`, title: "lookback" }));
  const most = Math.max(find("episode").clientWidth - 380, 120) / 60, size = 10 ** Math.floor(Math.log10((b - a) / most));
  const every = Math.max(1, Math.round([1, 2, 5, 10].map((unit) => unit * size).find((unit) => (b - a) / unit <= most)));
  for (let step = Math.ceil(a / every) * every; step <= b; step += every) rail.append(element("i", { style: left(step) }, String(step + shown.started)));
  if (shown.started === 0) mark(0, "reset", "reset observation");
  else if (shown.started - shown.lookback === 0) mark(-shown.lookback, "reset", "reset observation");
  for (const word of shown.ending.split(" and ")) mark(shown.length, word, word);
  for (const one of findingsOf(state.episode)) mark(one.step, "found", `${one.kind}: ${one.evidence}`);
  const whole = element("button", { type: "button", id: "whole", ...(state.view ? {} : { disabled: "" }) }, "whole");
  whole.addEventListener("click", () => zoom());
  return element("div", { class: "lane axis" }, element("span", { class: "name" }, "env step"), whole, rail, element("b", {}));
}

function chosenLanes() {
  const labels = state.lanes;
  return labels ? shown.lanes.filter((track) => labels.includes(track.label)) : shown.lanes.slice(0, SHOWN_LANES);
}

function drawLanes() {
  find("lanes").replaceChildren(axis(), ...chosenLanes().map(lane));
  move(state.step, false);
}

function picker() {
  const tracks = shown.lanes, chosen = new Set(chosenLanes().map((track) => track.label));
  const boxes = tracks.map((track) => {
    const box = element("input", { type: "checkbox", value: track.label, ...(chosen.has(track.label) ? { checked: "" } : {}) });
    box.addEventListener("change", () => {
      state.lanes = [...find("picker").querySelectorAll("input:checked")].map((input) => input.value);
      save();
      drawLanes();
    });
    return element("label", { style: `color:var(--${track.hue})` }, box, track.label);
  });
  const left = shown.left ? [element("p", {}, `${shown.left.toLocaleString("en")} more numbers are not on this page`)] : [];
  const summary = element("summary", {}, `${chosen.size} of ${tracks.length + shown.left} tracks`);
  return element("details", { id: "picker" }, summary, element("div", {}, ...boxes), ...left);
}

function conversation() {  // HTML of the tokens of a language agent, escaped by the template
  if (!shown.conversation) return [];
  const part = element("div", { id: "conversation" });
  part.innerHTML = shown.conversation;
  return [part];
}

function turns() {  // texts of an episode in the order of its steps
  const items = [];
  for (let step = firstStep(shown); step <= shown.length && items.length < MOST_TURNS; step++) {
    for (const track of shown.texts) {
      const at = step + shown.lookback - (track.more ? 0 : 1);  // an action stands before the observation that it led to
      const text = at >= 0 ? track.texts[at] : null;
      if (text === null || text === undefined || text === "") continue;
      const turn = element("li", { class: track.hue, "data-step": step }, element("small", {}, `${track.label} · step ${track.more ? step : step - 1}`), text);
      turn.addEventListener("click", () => move(step));
      items.push(turn);
    }
  }
  return items.length ? [element("ol", { id: "turns", "aria-label": "texts" }, ...items)] : [];
}

function firstDifference() {
  if (!other) return [];
  let best = null;
  for (const track of shown.lanes) {
    const [step] = differences(track);
    if (step !== undefined && (best === null || step < best[0])) best = [step, track.label];
  }
  const words = best ? `first difference: step ${best[0]}, ${best[1]}` : "no difference in the tracks of this page";
  const go = element("button", { type: "button" }, words);
  if (best) go.addEventListener("click", () => move(best[0]));
  const close = element("button", { type: "button", "aria-label": "stop comparing" }, "×");
  close.addEventListener("click", () => { state.other = other = null; save(); drawRows(); draw(); });
  return [element("p", { id: "difference" }, `compared with ${other.title} (dashed) `, go, " ", close)];
}

function heading(episode) {
  const words = `${counted(episode.length, "step")}, return ${show(episode.return)}${episode.started ? `, from t ${episode.started}` : ""}, `;
  return element("h2", {}, episode.title, element("small", {}, words, element("i", { class: kindOf(episode.ending) }, episode.ending)));
}

function draw() {
  const panel = find("episode");
  stop();
  if (!shown) return;
  if (shown.isMissing) {
    panel.replaceChildren(heading(shown), element("p", {}, shown.isMissing));
    return;
  }
  const scrubber = element("input", { id: "step", type: "range", min: firstStep(shown), max: shown.length, value: 0, "aria-label": "step" });
  scrubber.addEventListener("input", () => move(Number(scrubber.value)));
  const play = element("button", { id: "play", type: "button" }, "play");
  play.addEventListener("click", () => (playing ? stop() : start()));
  const caption = (episode, camera) => (other ? `${episode.title}: ${camera.label}` : camera.label);
  const cameras = (episode) => episode.cameras.map((camera) => element("figure", {}, element("img", { class: "frame", alt: "frame" }), element("figcaption", {}, caption(episode, camera))));
  const pictures = element("div", { class: "frames" }, ...cameras(shown), ...(other ? cameras(other) : []));
  const scrub = element("div", { id: "scrub" }, play, scrubber, element("span", { id: "now" }));
  const empty = shown.lanes.length ? [] : [element("p", {}, "This episode has no steps and no numbers.")];
  panel.replaceChildren(heading(shown), ...firstDifference(), pictures, scrub, ...empty, element("div", { id: "lanes" }), picker(), ...conversation(), ...turns());
  drawLanes();
}

function move(to, isSaved = true) {
  if (!shown || shown.isMissing) return;
  state.step = Math.max(firstStep(shown), Math.min(span()[1], to));
  const step = state.step;
  find("step").value = step;
  find("now").textContent = `step ${step}` + (shown.started ? ` (t ${shown.started + step})` : "");
  const cameras = [shown, other].filter(Boolean).flatMap((episode) => episode.cameras);
  document.querySelectorAll(".frame").forEach((picture, i) => {
    const { label, first, every, images } = cameras[i];
    const n = Math.min(images.length - 1, Math.max(0, Math.floor((step - first) / every)));
    if (picture.getAttribute("src") !== images[n]) picture.src = images[n];
    picture.alt = `${label} at step ${first + n * every}`;
  });
  document.querySelectorAll("#lanes .lane:not(.axis)").forEach((line) => {
    const { track } = line, x = xOf(step), second = partner(track);
    line.querySelector(".cursor").setAttribute("x1", x);
    line.querySelector(".cursor").setAttribute("x2", x);
    const values = [reading(shown, track, step), ...(second ? [reading(other, second, step)] : [])];
    line.querySelector("b").textContent = values.join(" | ");
    line.querySelector("b").className = second && values[0] !== values[1] ? "differs" : "";
  });
  document.querySelectorAll("#turns li").forEach((turn) => turn.classList.toggle("current", Number(turn.dataset.step) === step));
  if (isSaved) save();
}

function start() {
  if (state.step >= shown.length) move(firstStep(shown));
  find("play").textContent = "stop";
  playing = setInterval(() => (state.step < shown.length ? move(state.step + 1, false) : stop()), 50);
}

function stop() {
  if (playing) save();
  clearInterval(playing);
  playing = null;
  if (find("play")) find("play").textContent = "play";
}
