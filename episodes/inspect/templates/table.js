// The table of episodes: columns, filter, order, and rows of which only the visible ones are in the document.

const ROW_HEIGHT = 29, FIRST_COLUMNS = ["id", "length", "return", "ending", "t_started", "agent_id", "num_agents"];
const HEADS = { t_started: "from t", agent_id: "agent", num_agents: "agents" };
let table = { num: 0, columns: {} };
let order = [];  // indices of the rows that match the filter, in the chosen order

function addRows(message) {  // the rows from `message.begin` on are replaced
  const columns = {};
  for (const [name, part] of Object.entries(message.columns)) {
    const texts = part.texts ? Array.from(part.codes, (code) => (code ? part.texts[code - 1] : null)) : null;
    const flags = part.flags ? Array.from(part.flags, Boolean) : null;
    const values = texts ?? flags ?? part.values;
    columns[name] = message.begin ? [...Array.prototype.slice.call(table.columns[name] ?? [], 0, message.begin), ...values] : values;
  }
  table = { ...message, columns };
}

function keyOf(row) {
  const { id, t_started, agent_id, nth } = table.columns;
  return { id: id[row], t: t_started[row], agent: agent_id?.[row] ?? "", nth: nth[row] };
}

function rowOf(key) {  // -1 if there is no such episode
  if (!key) return -1;
  const { id, t_started, agent_id, nth } = table.columns;
  for (let row = 0; row < table.num; row++) {
    if (id[row] === key.id && t_started[row] === key.t && (agent_id?.[row] ?? "") === key.agent && nth[row] === key.nth) return row;
  }
  return -1;
}

const isCondition = (text) => /[<>=!()'"]|\b(and|or|not)\b/.test(text) || text in table.columns;

function filtered() {
  const text = state.filter.trim(), { id, ending, agent_id } = table.columns;
  find("error").textContent = "";
  let matches = () => true;
  if (text && isCondition(text)) {
    try {
      matches = condition(text, table.columns);
      for (let row = 0; row < Math.min(table.num, 1); row++) matches(row);
    } catch (error) {
      find("error").textContent = `${error.message}`;
      matches = () => false;
    }
  } else if (text) {
    const part = text.toLowerCase();
    matches = (row) => `${id[row]} ${ending[row]} ${agent_id?.[row] ?? ""}`.toLowerCase().includes(part);
  }
  const rows = [];
  try {
    for (let row = 0; row < table.num; row++) {
      if ((!state.ending || ending[row].includes(state.ending)) && matches(row)) rows.push(row);
    }
  } catch (error) {
    find("error").textContent = `this cannot be evaluated for these episodes: ${error.message}`;
    return [];
  }
  return rows;
}

function arrange() {
  order = filtered();
  const column = table.columns[state.sort];
  if (column) {
    const sign = state.down ? -1 : 1, isOdd = (value) => value === null || value === undefined || Number.isNaN(value);
    order.sort((a, b) => {
      const [x, y] = [column[a], column[b]];
      if (isOdd(x) || isOdd(y)) return isOdd(x) - isOdd(y) || a - b;
      return (typeof x === "string" ? sign * x.localeCompare(y) : sign * (x - y)) || a - b;
    });
  }
  find("count").textContent = `${order.length.toLocaleString("en")} of ${table.num.toLocaleString("en")}`;
  const texts = table.num ? ["no episode matches the filter"] : [live ? "no episodes yet: waiting for a writer" : "the data set has no episodes"];
  find("empty").textContent = order.length ? "" : texts[0];
  drawRows();
}

function shownColumns() {
  const names = Object.keys(table.columns), differs = (a, b) => a && b && a.some((value, i) => value !== b[i] && !(Number.isNaN(value) && Number.isNaN(b[i])));
  const { columns } = table;
  const whole = differs(columns.episode_return, columns.return) ? ["episode_return"] : [];
  const isUseful = (name) => names.includes(name) && !(name === "t_started" && columns.t_started.every((start) => start === 0));
  return [...FIRST_COLUMNS.filter(isUseful), ...whole, ...names.filter((name) => name.startsWith("custom_data/")).slice(0, 4)];
}

function drawHeads() {
  document.querySelector("#rows thead tr").replaceChildren(...shownColumns().map((name) => {
    const button = element("button", { type: "button", "data-column": name }, HEADS[name] ?? name.replace("custom_data/", ""));
    button.addEventListener("click", () => {
      const isNumber = typeof table.columns[name][0] === "number";
      Object.assign(state, { sort: name, down: state.sort === name ? !state.down : isNumber });
      drawHeads();
      arrange();
      save();
      document.querySelector(`th button[data-column="${CSS.escape(name)}"]`).focus();
    });
    const sorted = state.sort !== name ? "none" : state.down ? "descending" : "ascending";
    const isText = typeof table.columns[name][0] === "string";
    return element("th", { scope: "col", "aria-sort": sorted, class: isText ? "text" : "" }, button);
  }));
}

function drawRows() {
  drawPlace();
  const box = find("rows"), names = shownColumns(), chosen = rowOf(state.episode), other = rowOf(state.other);
  const first = Math.max(0, Math.min(Math.floor(box.scrollTop / ROW_HEIGHT) - 10, order.length - 1));
  const rows = order.slice(first, first + Math.ceil(box.clientHeight / ROW_HEIGHT) + 30);
  find("above").firstElementChild.style.height = `${first * ROW_HEIGHT}px`;
  find("below").firstElementChild.style.height = `${Math.max(order.length - first - rows.length, 0) * ROW_HEIGHT}px`;
  find("body").replaceChildren(...rows.map((row) => {
    const cells = names.map((name) => {
      const value = table.columns[name][row];
      const kind = name === "ending" ? kindOf(value) : typeof value === "string" ? "text" : "";
      const isText = typeof value === "string";
      return element("td", { class: kind, title: isText ? value : undefined }, isText ? briefId(value) : show(value));
    });
    const line = element("tr", { id: `row-${row}`, "aria-selected": String(row === chosen), class: row === other ? "other" : "" }, ...cells);
    line.addEventListener("click", (event) => {
      if (event.shiftKey && chosen >= 0 && row !== chosen) choose(row, true);
      else choose(row);
    });
    return line;
  }));
  box.setAttribute("aria-activedescendant", chosen < 0 ? "" : `row-${chosen}`);
}

function reveal(row) {  // scroll so that a row is visible
  const at = order.indexOf(row) * ROW_HEIGHT, box = find("rows"), head = 34;
  if (at < 0) return;
  if (at < box.scrollTop) box.scrollTop = at;
  if (at + ROW_HEIGHT + head > box.scrollTop + box.clientHeight) box.scrollTop = at + ROW_HEIGHT + head - box.clientHeight;
}

function brief(value) {  // at most 8 characters, if few digits say about the same
  const texts = [show(value), ...[3, 2].map((digits) => String(Number(value.toPrecision(digits)))), value.toExponential(1)];
  return texts.find((text) => text.length <= 8) ?? texts.at(-1);
}

// --- charts of all episodes ---------------------------------------------------------------------------------------

const MOST_DOTS = 2000, DENSE_X = 40, DENSE_Y = 12;  // of more episodes, a chart has cells that are as dark as they are full

function chart(title, values) {  // returns or lengths in the order of the table
  const num = table.num, { ending } = table.columns, isChosen = new Uint8Array(num).fill(order.length === num ? 1 : 0);
  if (order.length < num) for (const row of order) isChosen[row] = 1;
  let low = Infinity, high = -Infinity, least = Infinity, most = -Infinity, odd = 0, sum = 0, lowest = -1, highest = -1;  // low and high are of all episodes, the others of the chosen ones
  for (let row = 0; row < num; row++) {
    const value = values[row];
    if (!Number.isFinite(value)) { odd += isChosen[row]; continue; }
    if (isChosen[row]) [sum, least, most] = [sum + value, Math.min(least, value), Math.max(most, value)];
    if (value < low) [low, lowest] = [value, row];
    if (value > high) [high, highest] = [value, row];
  }
  const svg = element("svg", { viewBox: "0 0 600 96", preserveAspectRatio: "none", role: "img", "aria-label": title });
  const xAt = (row) => 4 + 592 * row / Math.max(num - 1, 1), yAt = (value) => height(value, low, high, 6, 90);
  const isDense = num > MOST_DOTS, parts = isDense ? [lowest, highest].filter((row) => row >= 0) : [...Array(num).keys()].filter((row) => Number.isFinite(values[row]));
  if (isDense) density(svg, values, isChosen, low, high);
  const paths = new Map();
  for (const row of parts) {
    const key = `${kindOf(ending[row])} ${isChosen[row] ? "" : "faint"}`;
    paths.set(key, `${paths.get(key) ?? ""}M${xAt(row).toFixed(1)} ${yAt(values[row]).toFixed(1)}h0`);
  }
  for (const [key, d] of [...paths].sort(([a], [b]) => b.length - a.length)) {  // faint ones below
    const [kind, faint] = key.split(" ");
    svg.append(element("path", { d, class: `dots ${faint}`, stroke: `var(--${kind})`, "stroke-width": 5, "stroke-linecap": "round", fill: "none" }));
  }
  if (num > 20) svg.append(element("path", { class: "mean", d: meanLine(values, isChosen, xAt, yAt) }));
  svg.addEventListener("click", (event) => {
    const box = svg.getBoundingClientRect(), x = 600 * (event.clientX - box.left) / box.width, y = 96 * (event.clientY - box.top) / box.height;
    let best = -1, distance = Infinity;
    for (let row = 0; row < num; row++) {
      if (!Number.isFinite(values[row])) continue;
      const d = (xAt(row) - x) ** 2 + (yAt(values[row]) - y) ** 2;
      if (d < distance) [best, distance] = [row, d];
    }
    if (best >= 0) { choose(best); reveal(best); }
  });
  const count = order.length - odd, mean = count ? `mean ${show(sum / count)}, ` : "", range = least > most ? "none" : least === most ? show(least) : `${show(least)} … ${show(most)}`;
  const words = `${mean}${range}${odd ? `, ${odd.toLocaleString("en")} not finite` : ""}`;
  const noun = table.columns.num_agents ? "game" : "episode", isKnown = low <= high;
  const heights = isKnown ? [...new Set([high, low])].map((value) => element("span", { style: `top:${yAt(value)}px`, title: show(value) }, brief(value))) : [];
  const places = num ? [...new Set([1, num])].map((n) => element("span", { style: `left:${xAt(n - 1) / 6}%` }, n === 1 ? `${noun} 1` : n.toLocaleString("en"))) : [];
  const plot = element("div", { class: "plot" }, element("div", { class: "heights" }, ...heights), svg, element("div", { class: "places" }, ...places));
  if (isKnown && low < 0 && high > 0) svg.prepend(element("line", { class: "grid", x1: 0, x2: 600, y1: yAt(0), y2: yAt(0) }));
  return element("div", { class: "chart" }, element("h2", {}, title, element("span", {}, words)), plot);
}

function density(svg, values, isChosen, low, high) {  // how many of the chosen episodes are in each cell; the share of each ending is a part of its width
  const kinds = ["terminated", "truncated", "cut"], num = table.num, { ending } = table.columns, size = DENSE_X * DENSE_Y;
  const counts = kinds.map(() => new Uint32Array(size)), all = new Uint32Array(size);
  for (let row = 0; row < num; row++) {
    if (!isChosen[row] || !Number.isFinite(values[row])) continue;
    const level = high > low ? (values[row] / 2 - low / 2) / (high / 2 - low / 2) : 0.5;
    const cell = Math.min(Math.floor(DENSE_X * row / num), DENSE_X - 1) * DENSE_Y + Math.min(Math.floor(level * DENSE_Y), DENSE_Y - 1);
    counts[kinds.indexOf(kindOf(ending[row]))][cell]++;
    all[cell]++;
  }
  let most = 1;
  for (const count of all) most = Math.max(most, count);
  const wide = 592 / DENSE_X, tall = 84 / DENSE_Y, paths = new Map();
  for (let cell = 0; cell < size; cell++) {
    let x = 4 + wide * Math.floor(cell / DENSE_Y);
    const y = 90 - tall * (cell % DENSE_Y + 1), strength = Math.ceil(8 * Math.sqrt(all[cell] / most));
    kinds.forEach((kind, k) => {
      const width = all[cell] ? wide * counts[k][cell] / all[cell] : 0;
      if (!width) return;
      paths.set(`${kind} ${strength}`, `${paths.get(`${kind} ${strength}`) ?? ""}M${x.toFixed(1)} ${y.toFixed(1)}h${width.toFixed(2)}v${tall.toFixed(1)}h${(-width).toFixed(2)}z`);
      x += width;
    });
  }
  for (const [key, d] of paths) svg.append(element("path", { d, class: "dense", fill: `var(--${key.split(" ")[0]})`, "fill-opacity": (0.1 + 0.9 * key.split(" ")[1] / 8).toFixed(2) }));
}

function meanLine(values, isChosen, xAt, yAt) {  // the mean of the chosen ones of each of 60 groups of neighbouring episodes
  const num = table.num, every = Math.ceil(num / 60);
  let d = "";
  for (let begin = 0; begin < num; begin += every) {
    let sum = 0, count = 0;
    const end = Math.min(begin + every, num);
    for (let row = begin; row < end; row++) if (isChosen[row] && Number.isFinite(values[row])) { sum += values[row]; count++; }
    if (count) d += `${d ? "L" : "M"}${xAt((begin + end - 1) / 2).toFixed(1)} ${yAt(sum / count).toFixed(1)}`;
  }
  return d;
}

function overview() {
  const { ending } = table.columns, counts = { terminated: 0, truncated: 0, both: 0, cut: 0 };
  for (const row of order) counts[ending[row] === "terminated and truncated" ? "both" : kindOf(ending[row])] += 1;
  const bars = element("div", { class: "chart" }, element("h2", {}, "endings"));
  for (const [name, count] of Object.entries(counts)) {
    if (!count && name === "both") continue;
    const bar = element("i", { style: `width:${100 * count / Math.max(order.length, 1)}%;background:var(--${name === "both" ? "terminated" : name})` });
    bars.append(element("div", { class: "bar" }, element("span", {}, name), element("span", {}, bar), element("b", {}, count.toLocaleString("en"))));
  }
  find("overview").replaceChildren(chart("returns", table.columns.return), chart("lengths", table.columns.length), bars);
  let steps = 0;
  for (const length of table.columns.length) steps += length;
  const [noun, step] = table.columns.num_agents ? ["game", "env step"] : ["episode", "step"];
  const parts = [table.environment, counted(table.num, noun), counted(steps, step), table.missing];
  find("about").textContent = parts.filter(Boolean).join(" · ");
}

// --- what the doctor found ----------------------------------------------------------------------------------------

let findings = null;

function findingsOf(key) {  // with a step, of an episode whose id is that of no other row
  const known = (findings?.rows ?? []).filter((one) => one.step !== null);
  if (table.columns.num_agents) {  // steps are those of one agent, whose turns have their env steps
    const turns = shown?.turns ?? [], of = (one) => turns.filter((turn) => turn.id === one.id);
    return known.flatMap((one) => (of(one).length === 1 && rowsOf(one.id).length === 1 ? [{ ...one, turn: of(one)[0] }] : []))
      .map(({ turn, ...one }) => ({ ...one, step: turn.observed[one.step + turn.lookback] ?? null, evidence: `${turn.agent}: ${one.evidence}` })).filter((one) => one.step !== null);
  }
  const rows = known.filter((one) => one.id === key.id);
  return rows.length && rowsOf(key.id).length === 1 ? rows : [];
}

function rowsOf(id) {  // a game has the rows of its agents, whose ids begin with its own
  const rows = [], isGames = Boolean(table.columns.num_agents);
  for (let row = 0; row < table.num; row++) {
    const own = table.columns.id[row];
    if (own === id || (isGames && own && id.startsWith(`${own}_`))) rows.push(row);
  }
  return rows;
}

function drawDoctor() {
  if (!findings) {
    const button = element("button", { type: "button" }, "run the doctor");
    button.addEventListener("click", () => { button.disabled = true; button.textContent = "the doctor reads all steps"; fetchFindings(); });
    find("doctor").replaceChildren(...(live ? [button] : []));
    return;
  }
  const items = findings.rows.map((one) => {
    const rows = one.id === null ? [] : rowsOf(one.id);
    const place = element(rows.length ? "button" : "span", rows.length ? { type: "button" } : {}, one.id === null ? "" : `${briefId(one.id)}${one.step === null ? "" : `, step ${one.step}`}`);
    if (one.id !== null) place.title = one.id;
    if (rows.length) place.addEventListener("click", async () => { reveal(rows[0]); [state.step, state.stepOfAgent] = table.columns.num_agents ? [0, { id: one.id, t: one.step ?? 0 }] : [one.step ?? 0, null]; await choose(rows[0]); find("episode").focus(); });
    const times = one.times > 1 ? ` (${one.times.toLocaleString("en")} times)` : "";
    return element("li", {}, element("b", {}, one.kind), " ", place, ` ${one.evidence}${times}`, element("small", {}, `${one.harm}. To do: ${one.advice}.`));
  });
  const summary = element("summary", {}, `doctor: ${findings.rows.length ? counted(findings.rows.length, "finding") : "no findings"} in ${findings.extent}`);
  const ofRun = find("back") ? [element("p", { class: "note" }, "The doctor checks the episodes only. See ", element("a", { href: "../../../#findings" }, "what stands out in the updates of the run"), ".")] : [];
  find("doctor").replaceChildren(element("details", findings.rows.length ? { open: "" } : {}, summary, element("ul", {}, ...items)), ...ofRun);
}
