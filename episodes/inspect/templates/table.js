// The table of episodes: columns, filter, order, and rows of which only the visible ones are in the document.

const ROW_HEIGHT = 29, CUSTOM = "custom_data/", TRAINING_STEP = `${CUSTOM}num_steps`, KEPT_AS = `${CUSTOM}kept_as`;
const FIRST_COLUMNS = ["nth", "id", "length", "return", "findings", "update", "worker", "log_ratio", "advantage", "ending", "t_started", "agent_id", "num_agents"];
const TITLES = {
  nth: "position in the data set, from 0, which conditions call nth and Python dataset[nth]", findings: "findings of the doctor with this id; each names the first episode with its problem, so further ones may have 0",
  t_started: "first step of the chunk in its episode", update: "the newest update that learned from it", worker: "the worker that sampled it",
  log_ratio: "how much the policy differed from the one that sampled it when that update began: mean of |log(probability of the action when learned / when sampled)| of its steps in the first gradient step, which the page of the update calls |log ratio|; –: not learned from in an update that was measured", advantage: "mean advantage of its steps in that update",
  is_complete: "whether the rows with this id are one episode, from its reset to its end", episode_length: "steps of all chunks with this id", episode_return: "sum of the rewards of all chunks with this id",
  [TRAINING_STEP]: "environment steps of the run when it was sampled", [KEPT_AS]: "why it was kept: the best or the worst return of its interval of the training, or at random",
};
const MOST_USEFUL = ["id", "return", "findings", "update", "worker", "log_ratio", "nth", "length", "ending", "agent_id", "t_started", KEPT_AS, TRAINING_STEP, "num_agents", "advantage"];
const BOTH = "terminated and truncated";
let left = new Set();  // columns that are left out, since they do not fit or are not chosen
const LABELS = { nth: "#" };  // heads of columns that are not their names
const isLabel = (name) => /(^|[_\/])(nth|id|update|worker|seed|group|label|class|version|policy_version_m(in|ax))$/.test(name);  // of numbers that are names, without a bar
let table = { num: 0, columns: {} };
let named = {};  // the columns by the names of conditions: those of custom data also by their own
let findings = null;  // of the doctor
let natural = [];  // the rows in the order of the training, or of the data set
let isInTraining = false;  // whether the rows have the order of the training
let found = [];  // indices of the rows that match the text of the filter
let order = [];  // indices of the rows that match the filter, in the chosen order
let readable = "";  // the last condition that could be evaluated

function addRows(message) {  // the rows from `message.begin` on are replaced
  const columns = {};
  for (const [name, part] of Object.entries(message.columns)) {
    const texts = part.texts ? Array.from(part.codes, (code) => (code ? part.texts[code - 1] : null)) : null;
    const flags = part.flags ? Array.from(part.flags, Boolean) : null;
    const values = texts ?? flags ?? part.values;
    const before = name === "repetition" ? table.repetition : table.columns[name];  // none of a column that is empty in all earlier rows
    columns[name] = message.begin ? [...Array.from({ length: message.begin }, (_, row) => before?.[row] ?? null), ...values] : values;
  }
  const { repetition, ...others } = columns;  // of equal ids, which no condition knows
  table = { ...message, columns: { nth: [...Array(message.num).keys()], ...others }, repetition };
  nameColumns();
}

function nameColumns() {
  const { columns } = table, counts = new Int32Array(table.num);
  if (findings) {
    for (const { id } of findings.rows) if (id !== null) for (const row of rowsOf(id)) counts[row] += 1;
    columns.findings = counts;
  }
  const short = Object.keys(columns).filter((name) => name.startsWith(CUSTOM)).map((name) => [name.slice(CUSTOM.length), columns[name]]);
  named = { ...Object.fromEntries(short), ...columns };
  const steps = columns[TRAINING_STEP];
  natural = [...Array(table.num).keys()];
  isInTraining = Boolean(steps) && natural.every((row) => Number.isFinite(steps[row]));
  if (isInTraining) natural.sort((a, b) => steps[a] - steps[b] || a - b);
}

const orderedBy = () => (named[state.sort] ? { name: state.sort, isDown: state.down } : { name: isInTraining ? TRAINING_STEP : "nth", isDown: false });

const headOf = (name) => LABELS[name] ?? (name.startsWith(CUSTOM) && named[name.slice(CUSTOM.length)] === table.columns[name] ? name.slice(CUSTOM.length) : name);

function keyOf(row) {
  const { repetition, columns: { id, t_started, agent_id } } = table;
  return { id: id[row], t: t_started[row], agent: agent_id?.[row] ?? "", nth: repetition[row] };
}

function rowOf(key) {  // -1 if there is no such episode
  if (!key) return -1;
  const { repetition, columns: { id, t_started, agent_id } } = table;
  for (let row = 0; row < table.num; row++) {
    if (id[row] === key.id && t_started[row] === key.t && (agent_id?.[row] ?? "") === key.agent && repetition[row] === key.nth) return row;
  }
  return -1;
}

const isCondition = (text) => /[<>=!()'"]|\b(and|or|not)\b/i.test(text) || text in named;

function evaluate(text) {  // the rows for which a condition is true
  const matches = condition(text, named, namesOfConditions());
  return natural.filter((row) => matches(row));
}

function filtered() {
  const text = state.filter.trim();
  find("error").textContent = "";
  if (!text) readable = "";
  if (!text || !isCondition(text)) {
    const texts = Object.values(table.columns).filter(isText), searchedIn = searcher();
    return natural.filter((row) => !text || texts.some((column) => searchedIn(column[row])));
  }
  let rows = natural;
  try {
    rows = evaluate(text);
    readable = text;
  } catch (error) {  // while it is typed, the rows of the last one stay
    try { rows = readable ? evaluate(readable) : natural; } catch { readable = ""; }
    const name = /^unknown column '(.*?)'/.exec(error.message)?.[1], track = name && shown?.lanes.find((lane) => lane.label.split("/").at(-1) === name)?.label;
    find("error").textContent = `${error.message}${track ? `; ${track} has a value for each step, columns one for each episode` : ""}; the table still shows ${readable || "all rows"}`;
  }
  return rows;
}

const endingOf = (ending) => (ending === BOTH ? BOTH : kindOf(ending));

function namesOfConditions() {  // as the heads have them, each once
  const { every, repeated } = shownColumns(), names = new Set([...every, ...Object.keys(table.columns)]);
  return [...names].filter((name) => !repeated.includes(name)).map((name) => (LABELS[name] ? name : headOf(name)));
}

function arrange() {
  found = filtered();
  order = found.filter((row) => !state.ending || endingOf(table.columns.ending[row]) === state.ending);
  const column = named[state.sort];
  if (column) {
    const sign = state.down ? -1 : 1, isOdd = (value) => value === null || value === undefined || Number.isNaN(value);
    order.sort((a, b) => {
      const [x, y] = [column[a], column[b]];
      if (isOdd(x) || isOdd(y)) return isOdd(x) - isOdd(y);
      return typeof x === "string" ? sign * x.localeCompare(y) : sign * (x - y);
    });
  }
  const text = state.filter.trim(), searched = searchedText(), ids = searched ? table.columns.id.map(searcher()) : null, inIds = ids ? order.filter((row) => ids[row]).length : 0;
  const isWrong = find("error").textContent !== "", shares = `${order.length.toLocaleString("en")} of ${table.num.toLocaleString("en")}`;
  find("count").textContent = isWrong ? `still ${shares}${readable ? " (the last filter)" : ""}` : `${shares}${searched ? `: ${JSON.stringify(text)} in ${counted(inIds, "id")}${inIds < order.length ? `, ${(order.length - inIds).toLocaleString("en")} elsewhere` : ""}` : ""}`;
  const noun = table.columns.num_agents ? "game" : "episode";
  const unmatched = text && !isCondition(text) ? `no id and no other text contains ${JSON.stringify(text)}; a condition is, for example: return > 100` : `no ${noun} matches the filter`;
  const none = live ? `no ${noun}s yet: waiting for a writer` : "the data set has no episodes";
  find("empty").replaceChildren(...(order.length ? [] : table.num ? similarIds(text) ?? [unmatched] : [none]));
  drawRows();
}

function searchedText() {  // "" of a condition
  const text = state.filter.trim();
  return isCondition(text) ? "" : text.toLowerCase();
}

function searcher() {  // whether a text has the parts of the searched one
  const parts = searchedText().split("…");
  return (value) => parts.every((part) => String(value ?? "").toLowerCase().includes(part));
}

function marked(text) {  // a text of the table, in which the searched one is marked
  const searched = searchedText(), at = searched ? text.toLowerCase().indexOf(searched) : -1;
  return at < 0 ? [text] : [text.slice(0, at), element("mark", {}, text.slice(at, at + searched.length)), text.slice(at + searched.length)];
}

function filterBy(part, former) {  // add a condition to the filter in place of a former one
  const text = state.filter.trim(), rest = isCondition(text) ? text.replace(former, "").replace(/^ and | and $/, "") : "";
  const before = /\bor\b/.test(rest) && !/^\(.*\)$/.test(rest) ? `(${rest})` : rest;
  find("words").value = [before, part].filter(Boolean).join(" and ");
  find("words").dispatchEvent(new Event("input"));
}

function similarIds(text) {  // what to do if no id equals that of a condition, but ids begin with it
  const match = /\bid\s*==?\s*(?:'([^']+)'|"([^"]+)")/.exec(text), id = match?.[1] ?? match?.[2];
  if (!id || table.columns.id.includes(id)) return null;
  const parts = id.split("…"), isLike = new RegExp(`^${parts.map((part) => part.replace(/[^\p{L}\p{N}_]/gu, "\\$&")).join(".*")}${parts.length > 1 ? "$" : ""}`, "s");
  const count = table.columns.id.filter((one) => isLike.test(one ?? "")).length, words = parts[0] ? ["begins", "begin"] : ["agrees", "agree"];
  if (!count) return null;
  const button = element("button", { type: "button" }, `find ${id}`);
  button.addEventListener("click", () => { find("words").value = id; find("words").dispatchEvent(new Event("input")); find("words").focus(); });
  return [`no id equals '${id}', but ${count.toLocaleString("en")} ${words[count === 1 ? 0 : 1]} with it: write ${id} alone, without id and quotes `, button];
}

const isText = (column) => Array.prototype.some.call(column, (value) => typeof value === "string");
const isSame = (a, b) => a === b || (Number.isNaN(a) && Number.isNaN(b));

function shownColumns() {
  const { columns } = table, names = Object.keys(columns), differs = (a, b) => a && b && a.some((value, i) => !isSame(value, b[i]));
  const whole = differs(columns.episode_return, columns.return) ? ["episode_return"] : [];
  const isUseful = (name) => names.includes(name) && !(name === "t_started" && columns.t_started.every((start) => start === 0));
  const all = [...FIRST_COLUMNS.filter(isUseful), ...whole, ...names.filter((name) => name.startsWith(CUSTOM))].filter((name) => name !== "length" || !isLengthReturn());
  if (!names.includes("findings") || columns.findings.every((count) => count === 0)) all.splice(0, all.length, ...all.filter((name) => name !== "findings"));
  const isConstant = (name) => table.num > 1 && !["id", "return"].includes(name) && !Array.prototype.some.call(columns[name], (value) => !isSame(value, columns[name][0]));
  const varied = all.filter((name) => !isConstant(name));
  const repeats = ["terminated", "truncated", ...["return", "length"].map((name) => `episode_${name}`).filter((name) => columns[name] && !differs(columns[name], columns[name.slice(8)]))];
  const repeated = repeats.filter((name) => !["terminated", "truncated"].includes(name));
  const isOffered = (name) => !varied.includes(name) && (!repeats.includes(name) || state.columns?.includes(name));  // `ending` has both flags
  return { varied, constant: all.filter(isConstant), every: [...varied, ...names.filter(isOffered)], repeated };
}

function isLengthReturn() {  // so that one of the columns says both
  const { length, return: returns } = table.columns;
  return table.num > 1 && length.every((steps, row) => steps === returns[row]);
}

const visibleColumns = () => shownColumns().every.filter((name) => !left.has(name));

function fitColumns() {  // leave out the least useful columns until the others fit, or those that were not chosen
  const { varied, every } = shownColumns(), box = find("rows"), main = document.querySelector("main"), shownFirst = ["id", orderedBy().name];
  if (!box.clientWidth) return;  // the table is folded: it is fitted when it is shown
  const words = state.filter.match(/\w+/g) ?? [], isKept = (name) => shownFirst.includes(name) || state.kept.includes(name.replace(CUSTOM, "")) || (isCondition(state.filter) && words.includes(name.replace(CUSTOM, "")));
  left = new Set(every.filter((name) => !isKept(name) && !(state.columns ?? varied).includes(name)));
  main.style.setProperty("--table", "100%");  // the widest
  giveIds(isNarrow() ? 11 : MOST_OF_ID);
  drawHeads();
  drawRows();
  const inner = box.querySelector("table");
  inner.style.width = "max-content";
  const heads = [...box.querySelectorAll("thead th")], widths = new Map(visibleColumns().map((name, i) => [name, heads[i].getBoundingClientRect().width]));
  inner.style.width = "";
  let need = [...widths.values()].reduce((a, b) => a + b, 0);
  const rank = (name) => (MOST_USEFUL.includes(name) ? MOST_USEFUL.indexOf(name) : MOST_USEFUL.length + varied.indexOf(name));
  for (const name of state.columns ? [] : [...varied].sort((a, b) => rank(b) - rank(a))) {
    if (need <= box.clientWidth + 1) break;
    if (isKept(name) || name === "return") continue;
    left.add(name);
    need -= widths.get(name);
  }
  main.style.setProperty("--table", `${Math.ceil(need) + box.offsetWidth - box.clientWidth}px`);
  const before = idRoom, room = Math.floor((box.clientWidth - need) / 8);  // of a character, which most are narrower than
  if (room > 0) giveIds(before + room);
  drawHeads();
  drawRows();
  if (room <= 0 || box.scrollWidth <= box.clientWidth + 1) return;
  giveIds(before);
  drawRows();
}

let idRoom = MOST_OF_ID;  // characters of a short id in the table

function giveIds(room) {
  idRoom = room;
  find("rows").style.setProperty("--id", `${room}ch`);
}

function drawMenu(every) {  // the columns to choose from
  const choices = every.filter((name) => name !== "id").map((name) => {
    const box = element("input", { type: "checkbox", "data-column": name, ...(left.has(name) ? {} : { checked: "" }) });
    box.addEventListener("change", () => {
      state.columns = every.filter((one) => (one === name ? box.checked : !left.has(one)));
      chooseColumns(`input[data-column="${CSS.escape(name)}"]`);
    });
    return element("label", { title: TITLES[name] }, box, LABELS[name] ? `${LABELS[name]} (${name})` : headOf(name));
  });
  const fit = element("button", { type: "button", ...(state.columns ? {} : { disabled: "" }) }, "as many as fit");
  fit.addEventListener("click", () => { state.columns = null; chooseColumns("summary"); });
  find("chooser").firstElementChild.textContent = left.size ? `${left.size} more column${left.size === 1 ? "" : "s"}` : "columns";
  find("chooser").lastElementChild.replaceChildren(...choices, fit);
}

function chooseColumns(focused) {
  fitColumns();
  save();
  find("chooser").querySelector(focused).focus();
}

function drawHeads() {
  const { constant, every } = shownColumns(), first = (name) => table.columns[name][0];
  const same = constant.flatMap((name, i) => [i ? ", " : "", element("span", { title: TITLES[name] }, `${headOf(name)} ${cellText(first(name), name) || "none"}`)]);
  find("same").replaceChildren(...(same.length ? ["the same in all rows: ", ...same] : []));
  drawMenu(every);
  find("names").textContent = `Columns of conditions: ${namesOfConditions().join(", ")}.`;
  document.querySelector("#rows thead tr").replaceChildren(...visibleColumns().map((name) => {
    const button = element("button", { type: "button", "data-column": name, title: TITLES[name] }, headOf(name));
    button.addEventListener("click", () => {
      const isNumber = typeof table.columns[name].find?.((value) => value !== null) === "number", isLast = state.sort === name && state.down !== isNumber;
      Object.assign(state, { sort: isLast ? null : name, down: state.sort === name ? !isNumber : isNumber });  // the third time: the order of the table
      drawHeads();
      find("rows").scrollTop = 0;  // to the best or the worst, wherever the selected row is
      arrange();
      save();
      document.querySelector(`th button[data-column="${CSS.escape(name)}"]`).focus();
    });
    const { name: by, isDown } = orderedBy(), sorted = table.columns[name] !== named[by] ? "none" : isDown ? "descending" : "ascending";
    return element("th", { scope: "col", "aria-sort": sorted, class: isText(table.columns[name]) ? "text" : "" }, button);
  }));
}

const isNarrow = () => matchMedia("(max-width: 600px)").matches;

function cellText(value, name = "") {
  if (typeof value === "string") return shortId(value, table.columns[name], name === "id" ? idRoom : MOST_OF_ID);
  return Number.isNaN(value) ? "–" : isLabel(name) ? show(value) : amount(value);
}

function whyNone(name, row) {  // why a measurement of the updates is not known
  const { update } = table.columns;
  if (!update || !["update", "worker", "log_ratio", "advantage"].includes(name) || !Number.isNaN(table.columns[name][row])) return undefined;
  if (Number.isNaN(update[row])) return "not learned from in an update that was measured";
  return { worker: "not recorded, or several workers", log_ratio: `no step of it is in the first gradient step of update ${show(update[row])}` }[name] ?? `not recorded in update ${show(update[row])}`;
}

const extents = new WeakMap();  // of columns

function barOf(name, value) {  // the style of a bar behind an amount, from 0 on the scale of its column
  const column = table.columns[name];
  if (isLabel(name) || typeof value !== "number" || !Number.isFinite(value)) return undefined;
  if (!extents.has(column)) {
    const known = Array.prototype.filter.call(column, Number.isFinite), [low, high] = known.reduce(([a, b], one) => [Math.min(a, one), Math.max(b, one)], [0, 0]);
    extents.set(column, [low, high, known.some((one) => one !== known[0])]);
  }
  const [low, high, isVaried] = extents.get(column), at = (one) => `${(100 * (one / 2 - low / 2) / (high / 2 - low / 2)).toFixed(1)}%`;
  return isVaried ? `--from:${at(Math.min(value, 0))};--to:${at(Math.max(value, 0))}` : undefined;
}

const meaningOf = (name) => (TITLES[name] ? `${headOf(name)}: ${TITLES[name]}` : "");

function markClipped() {  // whether there are further columns to the right
  const box = find("rows");
  box.classList.toggle("clipped", box.scrollWidth > box.clientWidth + box.scrollLeft + 2);
}

function drawRows() {
  drawPlace();
  const box = find("rows"), names = visibleColumns(), chosen = rowOf(state.episode), other = rowOf(state.other);
  const first = Math.max(0, Math.min(Math.floor(box.scrollTop / ROW_HEIGHT) - 10, order.length - 1));
  const rows = order.slice(first, first + Math.ceil(box.clientHeight / ROW_HEIGHT) + 30);
  find("above").firstElementChild.style.height = `${first * ROW_HEIGHT}px`;
  find("below").firstElementChild.style.height = `${Math.max(order.length - first - rows.length, 0) * ROW_HEIGHT}px`;
  find("body").replaceChildren(...rows.map((row) => {
    const cells = names.map((name) => {
      const value = table.columns[name][row];
      const bar = barOf(name, value);
      const isOdd = ["return", "episode_return"].includes(name) && !Number.isFinite(value), isText = typeof value === "string";
      const kind = name === "ending" ? kindOf(value) : isText ? "text" : isOdd || (name === "findings" && value) ? "bad" : "";
      return element("td", { class: bar ? `${kind} amount` : kind, style: bar, "data-column": name, title: isText ? value : isOdd ? "not a finite number" : whyNone(name, row) }, ...(isOdd ? [show(value)] : marked(cellText(value, name))));
    });
    const line = element("tr", { id: `row-${row}`, "aria-selected": String(row === chosen), class: row === other ? "other" : "" }, ...cells);
    line.addEventListener("mousedown", (event) => { if (event.shiftKey) event.preventDefault(); });  // which would select text
    line.addEventListener("click", (event) => {
      const isOther = (event.shiftKey || state.isComparing) && chosen >= 0 && row !== chosen;
      choose(row, isOther).then(() => { if (matchMedia("(max-width: 900px)").matches && !state.isComparing) find("reading").scrollIntoView({ block: "start" }); });
    });
    return line;
  }));
  find("compare").setAttribute("aria-pressed", String(state.isComparing));
  find("compare").disabled = table.num < 2;
  const noun = table.columns.num_agents ? "game" : "episode", isOutside = chosen >= 0 && !order.includes(chosen);
  find("hint").textContent = state.isComparing ? `choose a second ${noun} in the table` : "";
  const note = isOutside ? `${noun} ${shortId(state.episode.id, table.columns.id)} is not among the ${order.length.toLocaleString("en")} shown ` : "";
  if (find("outside").firstChild?.textContent !== (note || undefined)) {  // so that its button keeps the focus
    const open = element("button", { type: "button" }, "open the first match");
    open.addEventListener("click", () => { const [best] = order; choose(best).then(() => find("episode").focus({ preventScroll: true })); reveal(best); });
    find("outside").replaceChildren(...(isOutside ? [note, ...(order.length ? [open] : [])] : []));
  }
  markClipped();
  for (const svg of document.querySelectorAll("#overview svg")) svg.mark(chosen);
  box.setAttribute("aria-activedescendant", chosen < 0 ? "" : `row-${chosen}`);
}

function reveal(row) {  // scroll the table so that a row is in its part that is in the window
  const at = order.indexOf(row) * ROW_HEIGHT, box = find("rows"), head = 34;
  if (at < 0) return;
  const inWindow = innerHeight - box.getBoundingClientRect().top, height = inWindow > head + 2 * ROW_HEIGHT ? Math.min(box.clientHeight, inWindow) : box.clientHeight;
  if (at < box.scrollTop) box.scrollTop = at;
  if (at + ROW_HEIGHT + head > box.scrollTop + height) box.scrollTop = at + ROW_HEIGHT + head - height;
}

function bring(row) {  // scroll the window, too, which matters for the last rows
  reveal(row);
  drawRows();
  if (state.isListed) find(`row-${row}`)?.scrollIntoView({ block: "nearest" });
}

function brief(value) {  // at most 8 characters, if few digits say about the same
  const texts = [amount(value), ...[3, 2].map((digits) => String(Number(value.toPrecision(digits)))), value.toExponential(1)];
  return texts.find((text) => text.length <= 8) ?? texts.at(-1);
}

// --- charts of all episodes ---------------------------------------------------------------------------------------

const MOST_DOTS = 2000, GROUPS = 40;  // of more episodes, a chart has the quantiles of groups

function axisOfEpisodes() {  // of the charts: training steps, or places in the order of the table if no numbers are the places of their groups
  const steps = table.columns[TRAINING_STEP], noun = table.columns.num_agents ? "game" : "episode", last = Math.max(table.num - 1, 0);
  const [first, end] = isInTraining && table.num ? [steps[natural[0]], steps[natural[last]]] : [0, 0];
  if (first < end && table.num <= MOST_DOTS) return { name: "training step", column: headOf(TRAINING_STEP), of: (row) => steps[row], low: first, high: end };
  const placeOf = new Int32Array(table.num);
  natural.forEach((row, place) => { placeOf[row] = place; });
  return { name: isInTraining ? `${noun} in the order of the training` : noun, column: isInTraining ? null : "nth", of: (row) => placeOf[row], low: 0, high: last };
}

function dragRange(svg, axis, valueAt) {  // a drag over a chart selects the episodes of a range of its axis; whether the last press was a drag
  let from = null, isDrag = false;
  const at = (event) => { const box = svg.getBoundingClientRect(); return Math.min(600, Math.max(0, 600 * (event.clientX - box.left) / box.width)); };
  svg.addEventListener("pointerdown", (event) => { [from, isDrag] = [axis.column && event.button === 0 ? at(event) : null, false]; });
  svg.addEventListener("pointermove", (event) => {
    if (from === null || Math.abs(at(event) - from) < 6) return;
    if (!isDrag) svg.setPointerCapture(event.pointerId);
    isDrag = true;
    svg.querySelector(".drag")?.remove();
    svg.append(element("rect", { class: "drag", x: Math.min(from, at(event)), width: Math.abs(at(event) - from), y: 0, height: 96 }));
  });
  svg.addEventListener("pointerup", (event) => {
    if (isDrag && from !== null) {
      const [a, b] = [from, at(event)].sort((x, y) => x - y).map(valueAt), { column } = axis;
      filterBy(`${column} >= ${Math.ceil(a)} and ${column} <= ${Math.floor(b)}`, new RegExp(`\\b${column} >= \\d+ and ${column} <= \\d+`));
    }
    from = null;
  });
  svg.addEventListener("pointercancel", () => { svg.querySelector(".drag")?.remove(); [from, isDrag] = [null, false]; });
  return () => isDrag;
}

function chart(title, values, axis) {  // returns or lengths of all episodes
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
  const xAt = (row) => 4 + 592 * (axis.of(row) - axis.low) / (axis.high - axis.low || 1), yAt = (value) => height(value, low, high, 6, 90);
  const isDense = num > MOST_DOTS, parts = isDense ? [lowest, highest].filter((row) => row >= 0) : natural.filter((row) => Number.isFinite(values[row]));
  const bands = isDense ? quantiles(values, isChosen, yAt) : [], reading = element("p", { class: "key reading", role: "status" });
  if (isDense) {
    svg.append(...bands.paths);
    readGroups(svg, bands.groups, reading);
  }
  const paths = new Map();
  for (const row of parts) {
    const key = `${kindOf(ending[row])} ${isChosen[row] ? "" : "faint"}`;
    paths.set(key, `${paths.get(key) ?? ""}M${xAt(row).toFixed(1)} ${yAt(values[row]).toFixed(1)}h0`);
  }
  for (const [key, d] of [...paths].sort(([a], [b]) => b.length - a.length)) {  // faint ones below
    const [kind, faint] = key.split(" ");
    svg.append(element("path", { d, class: `dots ${faint}`, stroke: `var(--${kind})`, "stroke-width": 5, "stroke-linecap": "round", fill: "none" }));
  }
  const infinite = natural.filter((row) => isChosen[row] && !Number.isFinite(values[row]) && !Number.isNaN(values[row]));
  const ends = infinite.map((row) => (values[row] > 0 ? `M${xAt(row).toFixed(1)} -2l-5 8h10z` : `M${xAt(row).toFixed(1)} 98l-5 -8h10z`));
  if (infinite.length) svg.append(element("path", { class: "infinite", d: ends.join(""), fill: "var(--defect)" }));
  const isDragged = dragRange(svg, axis, (x) => axis.low + (x - 4) / 592 * (axis.high - axis.low));
  svg.addEventListener("click", (event) => {
    if (isDragged()) return;
    const box = svg.getBoundingClientRect(), x = 600 * (event.clientX - box.left) / box.width, y = 96 * (event.clientY - box.top) / box.height;
    let best = -1, distance = Infinity;
    for (let row = 0; row < num; row++) {
      if (!Number.isFinite(values[row])) continue;
      const d = (xAt(row) - x) ** 2 + (yAt(values[row]) - y) ** 2;
      if (d < distance) [best, distance] = [row, d];
    }
    if (best >= 0) { choose(best); bring(best); }
  });
  svg.mark = (row) => {  // the shown episode
    svg.querySelectorAll(".here").forEach((part) => part.remove());
    svg.setAttribute("aria-label", row < 0 ? title : `${title}; of the shown one: ${show(values[row])}`);
    if (row < 0) return;
    svg.prepend(element("line", { class: "here", x1: xAt(row), x2: xAt(row), y1: 0, y2: 96 }));
    const at = { class: "here", d: `M${xAt(row).toFixed(1)} ${yAt(values[row]).toFixed(1)}h0`, "stroke-linecap": "round", fill: "none" };
    const rings = Number.isFinite(values[row]) ? [["text", 13], ["panel", 10], [kindOf(ending[row]), 6]] : [];
    svg.append(...rings.map(([name, width]) => element("path", { ...at, stroke: `var(--${name})`, "stroke-width": width })));
  };
  svg.mark(rowOf(state.episode));
  const count = order.length - odd, range = least > most ? "none" : least === most ? `${count > 1 ? "all " : ""}${amount(least)}` : `mean ${amount(sum / count)}, ${amount(least)} … ${amount(most)}`;
  const words = [range, ...(odd ? [", ", element("b", { class: "bad" }, `${odd.toLocaleString("en")} not finite${infinite.length ? " (▲)" : ""}`)] : [])];
  const isKnown = low <= high;
  const heights = isKnown ? [...new Set([high, low])].map((value) => element("span", { style: `top:${yAt(value)}px`, title: show(value) }, brief(value))) : [];
  const places = num ? [...new Set([0, num - 1])].map((n) => element("span", { style: `left:${xAt(natural[n]) / 6}%` }, `${n === 0 ? `${axis.name} ` : ""}${axis.of(natural[n]).toLocaleString("en")}`)) : [];
  const plot = element("div", { class: "plot" }, element("div", { class: "heights" }, ...heights), svg, element("div", { class: "places" }, ...places));
  if (isKnown && low < 0 && high > 0) svg.prepend(element("line", { class: "grid", x1: 0, x2: 600, y1: yAt(0), y2: yAt(0) }));
  const key = (style, name) => [element("i", { class: "swatch", style }), name];
  const kinds = [...new Set(parts.map((row) => kindOf(ending[row])))];
  const legend = isDense ? [key("background:var(--text);height:2px", "median"), key("background:var(--focus);opacity:.45", "middle half"), key("background:var(--focus);opacity:.2", "10 to 90 %")] : kinds.map((kind) => key(`background:var(--${kind})`, kind));
  return element("div", { class: "chart" }, element("h2", {}, title, element("span", {}, ...words)), plot, element("p", { class: "key" }, ...legend.map((one) => element("span", {}, ...one))), ...(isDense ? [reading] : []));
}

function readGroups(svg, groups, reading) {  // at the pointer, or by the keys: the numbers of a group, below the chart
  let at = -1;
  const read = (group) => {
    at = group;
    svg.querySelector(".at")?.remove();
    if (groups[at]) svg.prepend(element("rect", { class: "at", x: groups[at].x, width: groups[at].width, y: 0, height: 96 }));
    reading.textContent = groups[at]?.words ?? "point at a group, or press ← and →, for its numbers";
  };
  svg.setAttribute("tabindex", 0);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), x = 600 * (event.clientX - box.left) / box.width;
    read(groups.findIndex((group) => group.x <= x && x <= group.x + group.width));
  });
  svg.addEventListener("pointerleave", () => read(-1));
  svg.addEventListener("blur", () => read(-1));
  svg.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: Math.max(at - 1, 0), ArrowRight: Math.min(at + 1, groups.length - 1), Home: 0, End: groups.length - 1 }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    read(to);
    event.preventDefault();
    event.stopPropagation();
  });
  read(-1);
}

function quantiles(values, isChosen, yAt) {  // of the chosen ones of each of at most 40 groups of neighbouring episodes: no line joins separate groups
  const every = Math.ceil(table.num / GROUPS), groups = [], noun = table.columns.num_agents ? "games" : "episodes", paths = { wide: "", half: "", median: "" };
  const spans = { wide: [0.1, 0.9], half: [0.25, 0.75], median: [0.5, 0.5] };
  for (let begin = 0; begin < table.num; begin += every) {
    const rows = natural.slice(begin, begin + every).filter((row) => isChosen[row] && Number.isFinite(values[row]));
    if (!rows.length) continue;
    const sorted = Float64Array.from(rows, (row) => values[row]).sort(), at = (share) => {
      const place = share * (sorted.length - 1), below = Math.floor(place), rest = place - below;
      return sorted[below] * (1 - rest) + sorted[Math.ceil(place)] * rest;
    };
    const x = 4 + 592 * begin / table.num, width = 592 * Math.min(every, table.num - begin) / table.num;
    groups.push({ x, width, words: `${noun} ${begin.toLocaleString("en")} to ${(Math.min(begin + every, table.num) - 1).toLocaleString("en")}: ${amount(sorted[0])} … ${amount(sorted.at(-1))}, median ${amount(at(0.5))}` });
    for (const [name, [low, high]] of Object.entries(spans)) {
      const [bottom, top] = [yAt(at(low)), yAt(at(high))].map((y) => y.toFixed(2));
      paths[name] += name === "median" ? `M${x.toFixed(1)} ${top}h${width.toFixed(2)}` : `M${x.toFixed(1)} ${top}h${width.toFixed(2)}V${bottom}h${(-width).toFixed(2)}z`;
    }
  }
  return { paths: Object.entries(paths).map(([name, d]) => element("path", { d, class: `quantile ${name}` })), groups };
}

function overview() {
  const { ending } = table.columns, counts = { terminated: 0, truncated: 0, [BOTH]: 0, cut: 0 };
  for (const row of found) counts[endingOf(ending[row])] += 1;
  const bars = element("div", { class: "chart" }, element("h2", {}, "endings"));
  for (const [name, count] of Object.entries(counts)) {
    const isOn = state.ending === name;
    if (!count && !isOn && name === BOTH) continue;
    const bar = element("i", { style: `width:${100 * count / Math.max(found.length, 1)}%;background:var(--${kindOf(name)})` });
    const line = element("button", { type: "button", class: "bar", "data-ending": name, title: isOn ? "any ending" : `only those that are ${name}`, "aria-pressed": String(isOn), ...(count || isOn ? {} : { disabled: "" }) }, element("span", {}, name === BOTH ? "both" : name), element("span", {}, bar), element("b", {}, count.toLocaleString("en")));
    line.addEventListener("click", () => {
      find("ending").value = isOn ? "" : name;
      find("ending").dispatchEvent(new Event("input"));
      document.querySelector(`#overview .bar[data-ending="${name}"]`)?.focus();
    });
    bars.append(line);
  }
  const { return: returns, length: lengths, [KEPT_AS]: reasons } = table.columns, noun = table.columns.num_agents ? "game" : "episode";
  const isConstant = table.num > 1 && lengths.every((length) => length === lengths[0]), isReturn = isLengthReturn(), axis = axisOfEpisodes();
  const notes = isConstant ? [`The length of each ${noun} is ${show(lengths[0])}.`] : isReturn ? [`The length of each ${noun} is its return.`] : [];
  const names = [...new Set(reasons ?? [])].filter((name) => typeof name === "string").sort().join(", ").replace(/, ([^,]*)$/, " and $1");
  if (names) notes.unshift(`${counted(table.num, `kept ${noun}`)} (${names} of their interval): their mean is not the run's.`);
  find("overview").classList.toggle("short", isConstant || isReturn);
  find("overview").replaceChildren(...(notes.length ? [element("p", { class: "note" }, notes.join(" "))] : []), chart("returns", returns, axis), ...(isConstant || isReturn ? [] : [chart("lengths", lengths, axis)]), bars);
  let steps = 0;
  for (const length of table.columns.length) steps += length;
  const parts = [table.environment, counted(table.num, noun), counted(steps, table.columns.num_agents ? "env step" : "step"), table.missing];
  find("about").textContent = parts.filter(Boolean).join(" · ");
}

// --- what the doctor found ----------------------------------------------------------------------------------------

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
    const place = element(rows.length ? "button" : "span", rows.length ? { type: "button" } : {}, one.id === null ? "" : `${shortId(one.id, table.columns.id)}${one.step === null ? "" : `, step ${one.step}`}`);
    if (one.id !== null) place.title = one.id;
    if (rows.length) place.addEventListener("click", async () => { reveal(rows[0]); [state.step, state.stepOfAgent] = table.columns.num_agents ? [0, { id: one.id, t: one.step ?? 0 }] : [one.step ?? 0, null]; await choose(rows[0]); find("episode").focus(); });
    const times = one.times > 1 ? ` (${one.times.toLocaleString("en")} times)` : "";
    return element("li", {}, element("b", {}, one.kind), " ", place, ` ${one.evidence}${times}`, element("small", {}, `${one.harm}. To do: ${one.advice}.`));
  });
  const summary = element("summary", {}, `doctor: ${findings.rows.length ? counted(findings.rows.length, "finding") : "no findings"} in ${findings.extent}`);
  const ofRun = find("back") ? [element("p", { class: "note" }, "The doctor checks the episodes only. See ", element("a", { href: "../../../#findings" }, "what stands out in the updates of the run"), ".")] : [];
  find("doctor").replaceChildren(element("details", { class: findings.rows.length ? "sick" : "", ...(findings.rows.length && state.isListed ? { open: "" } : {}) }, summary, element("ul", {}, ...items)), ...ofRun);
}
