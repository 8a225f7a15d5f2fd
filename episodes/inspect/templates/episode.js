// One episode, or two to compare: lanes of numbers over a common time axis, frames of all cameras, texts as turns.

const SHOWN_LANES = 32, WIDE = 8, SHOWN_OF_WIDE = 2, NAMED_TRACKS = 6, HEAT = 2, MOST_TURNS = 400, MOST_UPDATES = 6, SPEEDS = [2, 5, 10, 20, 30, 60];
const KEYS = "Left, Right: a step. Page Up, Page Down: a tenth. Home, End. Space: play. Escape: the whole episode. ?: this list.";
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

function endOf(episode, track, cell) {  // the step after the last item of a cell
  if (track.at) return cell + 1 < track.at.length ? track.at[cell + 1] : track.until ?? track.at[cell] + track.every;
  return Math.min(track.begin + (cell + 1) * track.every, track.items) - episode.lookback;
}

function cellOf(episode, track, step) {
  const place = Math.floor(step) + episode.lookback;
  const cell = track.at ? track.at.findLastIndex((start) => start <= step) : Math.floor((place - track.begin) / track.every);
  const num = (track.values ?? track.low).length;
  return cell >= 0 && cell < num && (track.at || place < track.items) ? cell : -1;
}

function reading(episode, track, step) {  // the number of a step, or the range of the cell that has the step
  const cell = cellOf(episode, track, step);
  if (cell < 0) return "";
  const found = (from, to) => [...new Set((track.marks ?? []).filter(([at]) => from <= at && at <= to).map(([, text]) => text))].slice(0, 3);
  const odd = track.odd[cell] ?? "";
  const begin = startOf(episode, track, cell), end = endOf(episode, track, cell) - 1;
  const since = track.at && track.values && begin !== step ? ` (of step ${begin})` : "";
  if (track.band === HEAT && odd) return "–";
  if (track.values) return [(odd || show(track.values[cell])) + since, ...found(begin, begin)].join(", ");
  const range = Number.isNaN(track.low[cell]) ? "" : `${show(track.low[cell])} … ${show(track.high[cell])}`;
  return `${[range, odd, ...found(begin, end)].filter(Boolean).join(", ")} (${begin}–${end})`;
}

function path(episode, track, low, high) {  // states are joined by lines; what happens in a step has its height from begin to end of the step, and what an agent of a game observes until its next turn
  const rows = track.values ? [track.values] : [track.low, track.high], [a, b] = view();
  let text = "", gap = true;
  for (let i = 0; i < rows[0].length; i++) {
    const begin = startOf(episode, track, i), start = begin + (track.more ? 0 : 0.5), width = Math.max(endOf(episode, track, i) - begin, 1);
    if (start + width < a || start - width > b) continue;
    if (Number.isNaN(rows[0][i])) { gap = true; continue; }
    if ((!track.more || track.at) && rows.length === 1) {
      text += `${gap ? "M" : "L"}${xOf(begin).toFixed(1)} ${height(rows[0][i], low, high, 2, 28).toFixed(1)}H${xOf(begin + width).toFixed(1)}`;
      gap = false;
      continue;
    }
    rows.forEach((row, k) => {
      const x = xOf(start + (width - 1) * k / 2), y = height(row[i], low, high, 2, 28);
      const isAlone = gap && rows.length === 1 && !(i + 1 < row.length && !Number.isNaN(row[i + 1]));
      text += `${gap ? "M" : "L"}${x.toFixed(1)} ${y.toFixed(1)}${isAlone ? "h0" : ""}`;
      gap = false;
    });
  }
  return text;
}

function bars(episode, track, low, high) {  // rewards, from 0; of a cell of many steps the lowest and the highest, and 0
  const [a, b] = view(), [least, most] = track.values ? [track.values, track.values] : [track.low, track.high];
  let text = "";
  for (let i = 0; i < least.length; i++) {
    const [from, to] = [startOf(episode, track, i), endOf(episode, track, i)];
    if (to < a || from > b || Number.isNaN(least[i])) continue;
    const wide = xOf(to) - xOf(from), y = (value) => height(value, low, high, 2, 28).toFixed(2);
    text += `M${xOf(from).toFixed(1)} ${y(Math.max(most[i], 0))}h${Math.max(wide - Math.min(wide / 5, 2), 0.4).toFixed(1)}V${y(Math.min(least[i], 0))}H${xOf(from).toFixed(1)}z`;
  }
  return text;
}

function bands(episode, track, low, high, top, bottom) {  // whole numbers as colours: of each item, or as shares of a cell
  const [a, b] = view(), paths = new Map(), shares = track.shares ? Object.entries(track.shares) : null;
  const add = (value, from, to, y, tall) => {
    const [left, right] = [from, to].map((step) => xOf(Math.max(a, Math.min(b, step))));
    if (right > left && tall > 0) paths.set(value, `${paths.get(value) ?? ""}M${left.toFixed(1)} ${y.toFixed(2)}H${right.toFixed(1)}v${tall.toFixed(2)}H${left.toFixed(1)}z`);
  };
  const half = track.more && !track.at ? 0.5 : 0, num = (track.values ?? track.low).length;
  for (let i = 0; i < num; i++) {
    const from = startOf(episode, track, i) - half;
    let to = endOf(episode, track, i) - half;
    if (to < a || from > b) continue;
    if (shares) {
      let total = 0, y = bottom;
      for (const [, counts] of shares) total += counts[i];
      for (const [value, counts] of shares) { const tall = (bottom - top) * counts[i] / total; y -= tall; add(Number(value), from, to, y, tall); }
      continue;
    }
    const value = track.values[i];
    if (Number.isNaN(value) || track.odd[i]) continue;
    while (i + 1 < num && track.values[i + 1] === value && !track.odd[i + 1]) to = endOf(episode, track, ++i) - half;
    add(value, from, to, top, bottom - top);
  }
  return [...paths].map(([value, d]) => element("path", { d, class: "cell", "data-value": value, fill: `var(--${track.hue})`, "fill-opacity": (high > low ? 0.18 + 0.82 * (value - low) / (high - low) : 0.6).toFixed(3) }));
}

function heat(episode, track, low, high, top, bottom) {  // differences as colours, without colour at 0: the number of an item, or of a cell the one farther from 0
  const [a, b] = view(), most = Math.max(-low, high) || 1, cells = [], num = (track.values ?? track.low).length, half = track.more && !track.at ? 0.5 : 0;
  for (let i = 0; i < num; i++) {
    const value = track.values ? track.values[i] : -track.low[i] > track.high[i] ? track.low[i] : track.high[i];
    const [from, to] = [startOf(episode, track, i) - half, endOf(episode, track, i) - half].map((step) => xOf(Math.max(a, Math.min(b, step))));
    if (!(to > from) || Number.isNaN(value)) continue;
    const fill = `var(--${value < 0 ? "observations" : "rewards"})`;
    cells.push(element("rect", { class: "cell", x: from.toFixed(1), y: top, width: (to - from).toFixed(1), height: bottom - top, "data-value": value, fill, "fill-opacity": (Math.abs(value) / most).toFixed(3) }));
  }
  return cells;
}

const knownOf = (track) => (track.values ?? track.low).filter((value) => !Number.isNaN(value)).length;
const isLearned = (track) => track.label.split("/").includes("learner");

function knownWords(track) {  // how many steps of a lane of differences have a number
  const known = knownOf(track), total = (track.values ?? track.low).length, noun = track.values ? "step" : "cell";
  if (!known) return "no step can be compared";
  if (known === total) return "";
  return `known for ${known} of ${counted(total, noun)}${isLearned(track) ? ": only those of the first gradient step after sampling" : ""}`;
}

function legend(track, low, high) {  // of a lane of differences
  const words = knownWords(track), known = knownOf(track), next = words && known ? [" ", nextKnown(track)] : [];
  if (!known || (low === 0 && high === 0)) return element("small", { class: "legend" }, ` ${[words, known ? "no difference" : ""].filter(Boolean).join(", ")}`, ...next);
  const most = Math.max(-low, high) || 1;
  const scale = element("i", { class: "heat", style: "background:linear-gradient(to right,var(--observations),#0000,var(--rewards))" });
  return element("small", { class: "legend" }, ` ${show(-most)} `, scale, ` ${show(most)}`, words ? `, ${words}` : "", ...next);
}

function nextKnown(track) {
  const button = element("button", { type: "button" }, "next known step");
  button.addEventListener("click", () => {
    const values = track.values ?? track.low, starts = [...values.keys()].filter((cell) => !Number.isNaN(values[cell])).map((cell) => startOf(shown, track, cell));
    move(starts.find((step) => step > state.step) ?? starts[0]);
  });
  return button;
}

function isBlank(track) {  // a lane of differences without a difference
  const [low, high] = track.band === HEAT ? rangeOf(track) : [];
  return track.band === HEAT && !(low < 0 || high > 0) && !(partner(track) && !isBlankOf(partner(track)));
}

const isBlankOf = (track) => { const [low, high] = rangeOf(track); return !(low < 0 || high > 0); };

function rangeOf(track) {  // of the whole track
  if (!track.range) {
    track.range = [Infinity, -Infinity];
    for (const value of track.values) if (!Number.isNaN(value)) track.range = [Math.min(track.range[0], value), Math.max(track.range[1], value)];
  }
  return track.range;
}

function seenRange(episode, track) {  // of the steps in view
  if (!state.view || track.band) return rangeOf(track);
  const [a, b] = view(), [least, most] = track.values ? [track.values, track.values] : [track.low, track.high];
  const range = [Infinity, -Infinity];
  for (let i = 0; i < least.length; i++) {
    if (Number.isNaN(least[i]) || startOf(episode, track, i) > b - (track.more ? 0 : 1) || endOf(episode, track, i) <= a) continue;
    range[0] = Math.min(range[0], least[i]);
    range[1] = Math.max(range[1], most[i]);
  }
  return range;
}

function partner(track) {
  return other?.lanes.find((lane) => lane.label === track.label) ?? null;
}

function exact(episode, track, step) {  // the number at a step; undefined if the track has none, a text for the range of a cell
  const cell = cellOf(episode, track, step);
  return cell < 0 ? undefined : track.values && !track.odd[cell] ? track.values[cell] : reading(episode, track, step);
}

function differences(track) {  // the steps at which two episodes differ by more than the tolerance
  const second = partner(track), steps = [];
  if (!second) return steps;
  if (track.compared?.second === second && track.compared.tolerance === state.tolerance) return track.compared.steps;
  track.compared = { second, tolerance: state.tolerance, steps };
  const end = Math.max(shown.length, other.length);
  for (let step = Math.min(firstStep(shown), firstStep(other)); step <= end; step++) {
    const [a, b] = [exact(shown, track, step), exact(other, second, step)];
    const isNear = typeof a === "number" && typeof b === "number" && (Math.abs(a - b) <= state.tolerance || (Number.isNaN(a) && Number.isNaN(b)));
    if (a !== b && !isNear) steps.push(step);
  }
  return steps;
}

function differs(track, step) {
  return differences(track).includes(step);
}

function runsOf(steps) {  // neighbouring steps as [first, last]
  const runs = [];
  for (const step of steps) {
    if (runs.length && runs.at(-1)[1] === step - 1) runs.at(-1)[1] = step;
    else runs.push([step, step]);
  }
  return runs;
}

function lane(tracks) {  // of one or several tracks, which then share a scale
  const [track] = tracks, pairs = tracks.flatMap((one) => [[shown, one, ""], ...(partner(one) ? [[other, partner(one), "second"]] : [])]);
  const middle = middleOf(tracks), colour = (one, i) => (tracks.length > 1 && !middle ? `hsl(${(i * 67 + 215) % 360} 65% var(--joined))` : `var(--${one.hue})`);
  const ranges = pairs.map(([episode, one]) => seenRange(episode, one)).filter((range) => range[0] <= range[1]);
  const hasBars = track.hue === "rewards" && !track.band && tracks.length === 1, ends = hasBars && ranges.length ? [0] : [];
  const low = Math.min(...ends, ...ranges.map((range) => range[0])), high = Math.max(...ends, ...ranges.map((range) => range[1]));
  const each = track.every <= 1 ? "" : track.shares ? `; each column is the shares of ${track.every} steps` : `; each point is the lowest and the highest of ${track.every} steps`;
  const isShared = tracks.length > 1 && tracks.every((one) => agentOf(one) !== null && quantityOf(one) === quantityOf(track));  // one quantity of several agents
  const names = tracks.map((one) => one.label).join(", "), note = noteOf(track), extent = ranges.length ? `${show(low)} to ${show(high)}` : "no numbers";
  const svg = element("svg", { viewBox: "0 0 1000 30", preserveAspectRatio: "none", role: "img", "aria-label": `${names}${note}, ${extent}${each}` });
  if (shown.lookback) svg.append(element("rect", { class: "before", x: xOf(firstStep(shown)), width: Math.max(xOf(0) - xOf(firstStep(shown)), 0), height: 30 }));
  const zero = height(0, low, high, 2, 28);
  if (ranges.length && low <= 0 && high >= 0 && (low < high || hasBars) && !track.band) svg.append(element("line", { class: "zero", x1: 0, x2: 1000, y1: zero, y2: zero }));
  pairs.forEach(([episode, one, kind], i) => {
    if (one.band && tracks.length === 1) {
      const [top, bottom] = pairs.length === 1 ? [3, 27] : i ? [16, 28] : [2, 14];
      svg.append(...(one.band === HEAT ? heat : bands)(episode, one, low, high, top, bottom));
      return;
    }
    if (hasBars && !kind) {
      svg.append(element("path", { class: "cell bar", d: bars(episode, one, low, high), fill: `var(--${one.hue})` }));
      return;
    }
    const k = tracks.findIndex((each) => each.label === one.label);
    svg.append(element("path", { class: kind, d: path(episode, one, low, high), stroke: colour(one, k), "stroke-linecap": "round", "stroke-opacity": middle && partOf(one) !== "mean" ? 0.5 : 1 }));
  });
  for (const one of tracks) {
    const mid = (cell) => startOf(shown, one, cell) + (one.more ? 0 : 0.5);
    const odd = oddCells(one), at = (cell) => xOf(mid(cell)).toFixed(1);
    svg.append(element("path", { class: "odd", d: odd.map(([cell]) => `M${at(cell)} 22v8`).join("") }));
    const infinite = odd.filter(([, words]) => /∞/.test(words)).map(([cell, words]) => (/(^|[^-])∞/.test(words) ? `M${at(cell)} 0v30` : `M${at(cell)} 30v-30`));
    if (infinite.length) svg.append(element("path", { class: "odd infinite", d: infinite.join("") }));
    const found = (one.marks ?? []).map(([at]) => `M${xOf(at + (one.more ? 0 : 0.5)).toFixed(1)} 0v7`);
    if (found.length) svg.append(element("path", { class: "found", d: found.join("") }));
    const steps = differences(one), x = (step) => xOf(Math.max(view()[0], Math.min(view()[1], step))).toFixed(1);
    if (steps.length) {
      svg.append(element("path", { class: "differing", d: runsOf(steps).map(([from, to]) => `M${x(from)} 1H${x(to + 1)}`).join("") }));
      svg.append(element("path", { class: "first", d: `M${xOf(steps[0] + (one.more ? 0 : 0.5)).toFixed(1)} 0v30`, "data-step": steps[0] }));
    }
  }
  svg.append(element("rect", { class: "drag", height: 30, width: 0 }), element("line", { class: "cursor", y1: -2, y2: 32 }));
  drags(svg);
  const name = element("span", { class: "name", title: names + note + each });
  if (middle) name.append(element("i", { class: "swatch", style: `background:${colour(track, 0)}` }), track.label.split(" · ")[0], element("small", {}, ": mean, lowest and highest of the tokens"));
  else {
    if (isShared) name.append(`${quantityOf(track)}: `);
    tracks.forEach((one, i) => name.append(i ? ", " : "", element("i", { class: "swatch", style: `background:${colour(one, i)}` }), isShared ? agentOf(one) : one.label));
    for (const one of tracks) name.append(...oddButton(one));
  }
  if (note && !middle) name.append(element("small", {}, note));
  if (track.band === HEAT && tracks.length === 1 ) name.append(legend(track, low, high));
  const scale = element("span", { class: "scale" }, ...(ranges.length ? [...new Set([high, low])] : []).map((end) => element("span", { title: show(end) }, brief(end))));
  const line = element("div", { class: state.large.includes(track.label) ? "lane large" : "lane" }, name, menu(tracks), element("b", {}), scale, svg);
  line.tracks = tracks;
  return line;
}

const oddCells = (track) => Object.entries(track.band === HEAT ? {} : track.odd).filter(([, words]) => /NaN|∞/.test(words)).map(([cell, words]) => [Number(cell), words]);

function oddButton(track) {  // to the first infinite number
  const found = oddCells(track).find(([, words]) => /∞/.test(words));
  if (!found) return [];
  const step = startOf(shown, track, found[0]), button = element("button", { type: "button", class: "bad" }, `${found[1]} at step ${step}`);
  button.addEventListener("click", () => move(step));
  return [" ", button];
}

function menu(tracks) {  // what can be done with a lane
  const labels = tracks.map((track) => track.label), list = element("div"), part = element("details", { class: "menu" });
  const add = (words, change) => {
    const button = element("button", { type: "button" }, words);
    button.addEventListener("click", () => { change(); save(); drawLanes(); });
    list.append(button);
  };
  part.append(element("summary", { "aria-label": `menu of ${labels.join(", ")}`, title: "draw large or with another lane, or hide" }, "⋯"), list);
  if (!state.byQuantity) {
    if (tracks.length > 1 && !middleOf(tracks)) add("draw each track in its own lane", () => { state.joined = joined().filter((label) => !labels.includes(label)); });
    else if (chosenLanes()[0] !== tracks[0]) add("draw in the lane above", () => { state.joined = [...joined(), ...labels]; });
  }
  const isLarge = state.large.includes(labels[0]);
  add(isLarge ? "small" : "large", () => { state.large = isLarge ? state.large.filter((label) => label !== labels[0]) : [...state.large, labels[0]]; });
  add("hide", () => { state.lanes = chosenLanes().map((track) => track.label).filter((label) => !labels.includes(label)); });
  part.addEventListener("focusout", (event) => { if (!part.contains(event.relatedTarget)) part.open = false; });
  part.addEventListener("keydown", (event) => { if (event.key === "Escape") { part.open = false; part.querySelector("summary").focus(); event.stopPropagation(); } });
  return part;
}

const agentOf = (track) => track.agent ?? null;  // of a game
const quantityOf = (track) => (agentOf(track) === null ? track.label : track.label.slice(agentOf(track).length + 1));
const itemOf = (track) => track.label.replace(/\[\d+\]$/, "");  // the track of a lane

function noteOf(track) {
  const notes = track.note ? [track.note] : [];
  const isFirst = track.hue === "observations" && shown.lanes.find((one) => one.hue === track.hue && agentOf(one) === agentOf(track)) === track;
  if (isFirst && find("back")) notes.push("as the environment gave it, before connectors");
  return notes.length ? ` (${notes.join("; ")})` : "";
}

function openAgent(agent) {  // of a game: its lanes are open, and those of the others are closed
  const turns = shown.turns ?? [], before = state.agent;
  state.agent = turns.some((turn) => turn.agent === agent) ? agent : null;
  if (state.agent !== null) state.closed = turns.map((turn) => turn.agent).filter((one) => one !== agent);
  else if (before !== null) state.closed = [];
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
  const most = Math.max(find("episode").clientWidth - 40, 120) / 60, size = 10 ** Math.floor(Math.log10((b - a) / most));
  const every = Math.max(1, Math.round([1, 2, 5, 10].map((unit) => unit * size).find((unit) => (b - a) / unit <= most)));
  for (let step = Math.ceil(a / every) * every; step <= b; step += every) rail.append(element("i", { style: left(step) }, String(step + shown.started)));
  if (shown.started === 0) mark(0, "reset", "reset observation");
  else if (shown.started - shown.lookback === 0) mark(-shown.lookback, "reset", "reset observation");
  for (const word of shown.ending.split(" and ")) mark(shown.length, word, word);
  for (const one of findingsOf(state.episode)) mark(one.step, "found", `${one.kind}: ${one.evidence}`);
  const whole = element("button", { type: "button", id: "whole", ...(state.view ? {} : { disabled: "" }) }, "whole");
  whole.addEventListener("click", () => zoom());
  return element("div", { class: "lane axis" }, element("span", { class: "name", title: "Step t has the observation that the agent sees, its action, and the reward that follows. After the last step there is one more observation." }, shown.turns ? "env step" : "step"), whole, element("b", {}), rail);
}

function chosenLanes() {
  const labels = state.lanes, isChosen = (track) => state.agent !== null && agentOf(track) === state.agent;
  if (labels) return shown.lanes.filter((track) => labels.includes(track.label));
  if (isTalk(shown)) return shown.lanes.filter((track) => !isConstant(track));
  const counts = new Map(), byAgent = new Map(), chosen = [], places = new Map();
  for (const track of shown.lanes) counts.set(itemOf(track), (counts.get(itemOf(track)) ?? 0) + 1);
  for (const track of shown.lanes) {  // of a wide track few lanes, after all others
    const place = places.get(itemOf(track)) ?? 0, isWide = counts.get(itemOf(track)) > WIDE;
    places.set(itemOf(track), place + 1);
    if (isBlank(track) || (isWide && place >= SHOWN_OF_WIDE)) continue;
    const { narrow, wide } = byAgent.get(agentOf(track)) ?? byAgent.set(agentOf(track), { narrow: [], wide: [] }).get(agentOf(track));
    (isWide ? wide : narrow).push(track);
  }
  const lists = [...byAgent.values()].map(({ narrow, wide }) => [...narrow, ...wide]), first = lists.find((list) => isChosen(list[0]));
  if (first) chosen.push(...first);
  for (let k = 0; lists.some((list) => k < list.length); k++) chosen.push(...lists.filter((list) => list !== first && k < list.length).map((list) => list[k]));
  const drawn = new Set(chosen.slice(0, SHOWN_LANES));
  return shown.lanes.filter((track) => drawn.has(track));
}

const VALUES = /(^|\/)learner\/values$/, TARGETS = /(^|\/)learner\/value_targets$/;

function joined() {  // labels of the tracks that are drawn in the lane above; by default a value and its target are in one
  if (state.joined) return state.joined;
  const pairs = [[VALUES, TARGETS], [TARGETS, VALUES]];
  return chosenLanes().filter((track, i, all) => i && agentOf(all[i - 1]) === agentOf(track) && pairs.some(([a, b]) => a.test(all[i - 1].label) && b.test(track.label))).map((track) => track.label);
}

function lanesOfTracks() {  // lists of tracks, one for each lane
  const lanes = [], below = joined(), named = new Map();
  if (state.byQuantity && shown.turns) {
    for (const track of chosenLanes()) named.set(quantityOf(track), [...(named.get(quantityOf(track)) ?? []), track]);
    return [...named.values()].flatMap((tracks) => (tracks.some((track) => track.band) ? tracks.map((track) => [track]) : [tracks]));
  }
  for (const track of chosenLanes()) {
    const isPart = isTalk(shown) && lanes.length && /^(mean|highest)$/.test(partOf(track)) && lanes.at(-1)[0].label.startsWith(`${track.label.slice(0, -partOf(track).length)}`);
    if (lanes.length && (isPart || below.includes(track.label))) lanes.at(-1).push(track);
    else lanes.push([track]);
  }
  return lanes;
}

const partOf = (track) => track.label.split(" · ")[1] ?? "";  // of lists of numbers: what describes each of them

function isConstant(track) {
  const both = [track, partner(track)].filter(Boolean), ends = both.flatMap(rangeOf);
  return !(Math.min(...ends) < Math.max(...ends)) && both.every((one) => !Object.keys(one.odd).length);
}

function middleOf(tracks) {  // the mean, in a lane of what describes the tokens of a turn
  return isTalk(shown) && tracks.length > 1 && tracks.every((one) => partOf(one)) ? tracks.find((one) => partOf(one) === "mean") : undefined;
}

function constants() {  // of a conversation: tracks that are one number, in words
  const tracks = isTalk(shown) && !state.lanes ? shown.lanes.filter(isConstant) : [], words = new Map();
  for (const track of tracks) {
    const [name] = track.label.split(" · "), number = partOf(track) === "length" ? `${show(rangeOf(track)[0])} tokens` : show(rangeOf(track)[0]);
    words.set(name, [...new Set([...(words.get(name) ?? []), number])]);
  }
  return words.size ? [element("p", { class: "note" }, `equal in all turns: ${[...words].map(([name, numbers]) => `${name} ${numbers.join(", ")}`).join(" · ")}`)] : [];
}

function leftOut() {  // by default: the tracks of which not all lanes are drawn, with buttons
  if (state.lanes || isTalk(shown)) return [];
  const drawn = new Set(chosenLanes()), items = new Map(), parts = [];
  for (const track of shown.lanes.filter((one) => !drawn.has(one))) items.set(itemOf(track), [...(items.get(itemOf(track)) ?? []), track]);
  for (const [item, tracks] of [...items].slice(0, NAMED_TRACKS)) {
    const total = shown.lanes.filter((track) => itemOf(track) === item).length, blank = tracks.every(isBlank);
    const why = blank ? `: ${knownOf(tracks[0]) ? `0 at all ${counted(knownOf(tracks[0]), "known step")}` : "no step can be compared"}` : total > 1 ? ` (${tracks.length} of ${counted(total, "lane")})` : "";
    const button = element("button", { type: "button", title: "draw" }, `${item}${why}`);
    button.addEventListener("click", () => { state.lanes = shown.lanes.filter((track) => drawn.has(track) || tracks.includes(track)).map((track) => track.label); save(); drawLanes(); });
    parts.push(" ", button);
  }
  const more = items.size - NAMED_TRACKS;
  return parts.length ? [element("p", { id: "left" }, "left out:", ...parts, more > 0 ? ` and ${counted(more, "more track")}, listed below` : "")] : [];
}

function modes() {  // of a game: the lanes of each agent, or of each quantity
  if (!shown.turns) return [];
  const buttons = [[false, "by agent"], [true, "by quantity"]].map(([value, words]) => {
    const button = element("button", { type: "button", "aria-pressed": String(state.byQuantity === value) }, words);
    button.addEventListener("click", () => { state.byQuantity = value; save(); drawLanes(); [...document.querySelectorAll("#modes button")].find((one) => one.textContent === words).focus(); });
    return button;
  });
  return [element("p", { id: "modes" }, "lanes ", ...buttons)];
}

function groups(lines) {  // lanes by the first part of their path; a group of several can be closed
  const named = new Map();
  for (const line of lines) {
    const [track] = line.tracks, name = (state.byQuantity ? null : agentOf(track)) ?? quantityOf(track).split(/[/[]/)[0];
    named.set(name, [...(named.get(name) ?? []), line]);
  }
  const total = (name) => shown.lanes.filter((track) => agentOf(track) === name).length;
  return [...named].map(([name, members]) => {
    const drawn = members.flatMap((line) => line.tracks).length;
    const isOfAgent = shown.turns && !state.byQuantity;
    if (members.length === 1 && !isOfAgent) return members[0];
    const isOpen = !state.closed.includes(name), group = element("details", { class: name === state.agent ? "group current" : "group", ...(isOpen ? { open: "" } : {}) }, element("summary", {}, `${name} · ${isOfAgent && total(name) > drawn ? `${drawn} of ` : ""}${counted(isOfAgent ? total(name) : members.length, "lane")}`), ...members);
    group.addEventListener("toggle", () => { state.closed = group.open ? state.closed.filter((one) => one !== name) : [...new Set([...state.closed, name])]; });
    return group;
  });
}

function drawLanes() {
  find("axis").replaceChildren(axis());
  find("lanes").replaceChildren(...turnLanes(), ...modes(), ...groups(lanesOfTracks().map(lane)), ...constants(), ...leftOut());
  move(state.step, false);
}

function agentButton(turn) {
  const button = element("button", { type: "button", "aria-pressed": String(turn.agent === state.agent), title: `open the lanes of ${turn.agent} alone` }, turn.agent);
  button.addEventListener("click", () => {
    if (turn.agent !== state.agent) state.byQuantity = false;
    openAgent(turn.agent === state.agent ? null : turn.agent);
    save();
    drawLanes();
    [...document.querySelectorAll("#lanes .agent button")].find((one) => one.textContent === turn.agent).focus();
  });
  return element("span", { class: turn.agent === state.agent ? "agent current" : "agent", title: turn.agent }, button, element("small", {}, ` return ${show(turn.return)}, ${turn.ending}`));
}

function turnLanes() {  // of a game: who observes (above) and who acts (below) at which step
  const turns = shown.turns ?? [], isAlways = ({ observed, acted }) => acted.length >= shown.length && observed.length > acted.length;
  if (turns.length && turns.every(isAlways)) return [element("p", { id: "agents" }, ...turns.map(agentButton), element("small", {}, "All act at every step."))];
  return turns.map((turn) => {
    const svg = element("svg", { viewBox: "0 0 1000 30", preserveAspectRatio: "none", role: "img", "aria-label": `${turn.agent}: ${counted(turn.observed.length, "observation")}, ${counted(turn.acted.length, "action")}` });
    const [a, b] = view(), ticks = (times, y) => Array.from(times).filter((at) => a <= at && at <= b).map((at) => `M${xOf(at).toFixed(1)} ${y}v11`).join("");
    svg.append(element("path", { class: "observes", d: ticks(turn.observed, 2), stroke: "var(--observations)" }));
    svg.append(element("path", { class: "acts", d: ticks(turn.acted, 16), stroke: "var(--actions)" }));
    const kind = kindOf(turn.ending), last = turn.observed.length ? turn.observed.at(-1) : 0;
    if (turn.ending !== "ongoing" && turn.ending !== "cut") svg.append(element("path", { class: "ends", d: `M${xOf(last).toFixed(1)} 0v30`, stroke: `var(--${kind})`, "data-step": last }));
    svg.append(element("rect", { class: "drag", height: 30, width: 0 }), element("line", { class: "cursor", y1: -2, y2: 32 }));
    drags(svg);
    const name = agentButton(turn);
    name.classList.add("name");
    const line = element("div", { class: turn.agent === state.agent ? "lane turn current" : "lane turn" }, name, element("span", {}), element("b", {}), element("span", { class: "scale" }, element("span", {}, "obs"), element("span", {}, "act")), svg);
    line.turn = turn;
    return line;
  });
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
    return element("label", {}, box, element("i", { class: "swatch", style: `background:var(--${track.hue})` }), track.label);
  });
  const left = shown.left ? [element("p", {}, `${shown.left.toLocaleString("en")} more numbers are not on this page`)] : [];
  const summary = element("summary", {}, `${chosen.size} of ${tracks.length + shown.left} lanes`);
  const search = element("input", { type: "search", placeholder: "search", "aria-label": "search lanes" });
  search.addEventListener("input", () => { for (const box of boxes) box.hidden = !box.textContent.toLowerCase().includes(search.value.trim().toLowerCase()); });
  return element("details", { id: "picker" }, summary, ...(tracks.length > WIDE ? [search] : []), element("div", {}, ...boxes), ...left);
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

function stopComparing() {
  const close = element("button", { type: "button", "aria-label": "stop comparing" }, "×");
  close.addEventListener("click", endComparison);
  return close;
}

function endComparison() {
  state.other = other = null;
  save();
  drawRows();
  draw();
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
  const tolerance = element("input", { type: "number", min: 0, step: "any", value: state.tolerance, "aria-label": "tolerance" });
  tolerance.addEventListener("change", () => { state.tolerance = Math.max(Number(tolerance.value) || 0, 0); save(); draw(); });
  return [element("p", { id: "difference" }, `compared with ${shortId(other.title, table.columns.id)} (dashed, or below) `, go, " ", element("label", {}, "tolerance ", tolerance), " ", stopComparing())];
}

function heading(episode) {
  const name = idButton(episode.title ?? "", table.columns.id);
  if (isTalk(episode)) return talkHeading(episode);
  if (episode.ending === undefined) return element("h2", {}, name);
  const row = rowOf(episode === shown ? state.episode : state.other), place = row < 0 ? "" : `# ${row}, `;
  const words = [`${place}${counted(episode.length, "step")}, return `, typeof episode.return === "number" && Number.isFinite(episode.return) ? show(episode.return) : element("b", { class: "bad" }, show(episode.return)), `${episode.started ? `, from t ${episode.started}` : ""}, `];
  return element("h2", {}, name, element("small", {}, ...words, element("i", { class: kindOf(episode.ending) }, episode.ending), sampledBy(episode)));
}

function sampledBy(episode) {  // worker and policy version, as far as they are recorded
  const row = rowOf(episode === shown ? state.episode : state.other), { policy_version_min: from, policy_version_max: to } = table.columns;
  if (row < 0) return "";
  const worker = named.worker?.[row], isKnown = worker !== null && worker !== undefined && !Number.isNaN(worker);
  const version = from && to && from[row] >= 0 ? ` policy version ${from[row]}${to[row] === from[row] ? "" : ` to ${to[row]}`}` : "";
  return isKnown || version ? `, sampled${isKnown ? ` by worker ${show(worker)}` : ""}${version ? ` with recorded${version}` : ""}` : "";
}

function learnedIn() {  // the updates of the run that learned from the episode
  const { updates, extent } = shown;
  if (!find("back") || !extent) return [];
  if (!extent.length) return [element("p", { id: "learned" }, "Which updates learned from it is not recorded; train with --explain.")];
  const sums = new Map();
  for (const [update, module, num, agent] of updates) {
    const key = JSON.stringify([update, module]), before = sums.get(key) ?? { num: 0, agents: [] };
    sums.set(key, { num: before.num + num, agents: agent === undefined ? [] : [...before.agents, agent] });
  }
  if (!sums.size) return [element("p", { id: "learned" }, `None of the updates ${extent.join(" to ")} learned from it.`)];
  const run = location.pathname.split("/").at(-3), links = [...sums].map(([key, { num, agents }]) => {
    const [update, module] = JSON.parse(key), query = module ? `?${new URLSearchParams({ module })}` : "";
    return [element("a", { href: `../../../updates/${run}/${update}${query}` }, `update ${update}`), ` (${counted(num, agents.length ? "agent step" : "step")}${agents.length ? ` of ${agents.join(", ")}` : ""})`];
  });
  const left = links.length - MOST_UPDATES, shownLinks = links.slice(-MOST_UPDATES).flatMap((link, i) => (i ? [", ", ...link] : link));
  return [element("p", { id: "learned" }, left > 0 ? `Learned from by ${links.length} of the updates ${extent.join(" to ")}, last by ` : "Learned from by ", ...shownLinks)];
}

function folded(tracks) {  // of a conversation, whose turns are above
  const isOpen = state.areTracksOpen || state.view !== null || state.lanes !== null || shown.cameras.length > 0;
  const part = element("details", { id: "tracks", ...(isOpen ? { open: "" } : {}) }, element("summary", {}, "tracks of turns"), ...tracks);
  part.addEventListener("toggle", () => { state.areTracksOpen = part.open; });
  return part;
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
  const speed = element("select", { id: "speed", "aria-label": "steps per second" }, ...SPEEDS.map((one) => element("option", { value: one, ...(one === state.speed ? { selected: "" } : {}) }, `${one}/s`)));
  speed.addEventListener("change", () => { state.speed = Number(speed.value); if (playing) start(); });
  const loop = element("input", { type: "checkbox", ...(state.loop ? { checked: "" } : {}) });
  loop.addEventListener("change", () => { state.loop = loop.checked; });
  const scrub = element("div", { id: "scrub" }, play, scrubber, element("span", { id: "now" }), speed, element("label", {}, loop, "loop"));
  const empty = shown.lanes.length ? [] : [element("p", {}, "This episode has no steps and no numbers.")];
  const keys = element("details", { id: "keys" }, element("summary", {}, "keys"), element("p", {}, KEYS));
  const stage = element("div", { id: "stage" }, pictures, scrub, element("div", { id: "axis" }));
  const tracks = [stage, ...empty, element("div", { id: "lanes" }), picker()], difference = firstDifference();
  const parts = isTalk(shown) ? [...(isTalk(other) ? [] : difference), ...conversation(), folded([...(isTalk(other) ? difference : []), ...tracks, ...turns()])] : [...difference, ...conversation(), ...tracks];
  panel.replaceChildren(heading(shown), ...learnedIn(), ...parts, keys, ...(isTalk(shown) ? [] : turns()));
  drawLanes();
}

function move(to, isSaved = true) {
  if (!shown || shown.isMissing) return;
  state.step = Math.max(firstStep(shown), Math.min(span()[1], to));
  if (isSaved) state.token = null;
  const step = state.step;
  find("step").value = step;
  find("now").textContent = `step ${step}` + (shown.started ? ` (t ${shown.started + step})` : "");
  const cameras = [shown, other].filter(Boolean).flatMap((episode) => episode.cameras);
  document.querySelectorAll(".frame").forEach((picture, i) => {
    const { label, first, every, images, at } = cameras[i];
    const n = Math.min(images.length - 1, Math.max(0, at ? at.findLastIndex((time) => time <= step) : Math.floor((step - first) / every)));
    if (picture.getAttribute("src") !== images[n]) picture.src = images[n];
    picture.alt = `${label} at step ${at ? at[n] : first + n * every}`;
  });
  document.querySelectorAll("#lanes .lane").forEach((line) => {
    const { tracks, turn } = line, x = xOf(step), cursor = line.querySelector(".cursor"), value = line.querySelector("b");
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    if (turn) {
      value.textContent = [turn.observed.includes(step) ? "observes" : "", turn.acted.includes(step) ? "acts" : ""].filter(Boolean).join(", ");
      return;
    }
    const read = (track) => {
      const found = [reading(shown, track, step), ...(partner(track) ? [reading(other, partner(track), step)] : [])];
      return (found.length * tracks.length > 1 ? found.map((words) => words || "–") : found).join(" | ");
    };
    value.textContent = (middleOf(tracks) ? [middleOf(tracks)] : tracks).map(read).join(", ");
    value.className = tracks.some((track) => partner(track) && differs(track, step)) ? "differs" : "";
  });
  document.querySelectorAll("#turns li").forEach((turn) => turn.classList.toggle("current", Number(turn.dataset.step) === step));
  markTurn();
  if (isSaved) save();
}

function start() {
  stop();
  if (state.step >= shown.length) move(firstStep(shown));
  find("play").textContent = "stop";
  playing = setInterval(() => {
    if (state.step < shown.length) move(state.step + 1, false);
    else if (state.loop) move(firstStep(shown), false);
    else stop();
  }, 1000 / state.speed);
}

function stop() {
  if (playing) save();
  clearInterval(playing);
  playing = null;
  if (find("play")) find("play").textContent = "play";
}
