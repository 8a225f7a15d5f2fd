// The page: its state, which is in the address too, the choice of episodes, the keyboard, and the server if there is one.

const live = document.body.dataset.live === "yes";
const state = { stepOfAgent: null, filter: "", ending: "", sort: null, down: false, isListed: true, episode: null, other: null, agent: null, step: 0, view: null, lanes: null, joined: null, closed: [], tolerance: 0, speed: 20, loop: false, token: null, isLinked: false, colour: "", siblings: true, areTracksOpen: false, isComparing: false, large: [], byQuantity: false, columns: null, kept: [] };
const blocks = new Map();  // decoded blocks of the episodes in this file, by index
let version = null;
let requests = 0;
let isLost = false;  // whether the server does not answer
let isLoaded = false;  // whether the state of the address was read

// --- the address ------------------------------------------------------------------------------------------------

const keyText = (key) => (key ? JSON.stringify([key.id, key.t, key.agent, key.nth]) : "");

function keyFrom(text) {
  try {
    const [id, t, agent, nth] = JSON.parse(text);
    return { id, t, agent, nth };
  } catch {
    return null;
  }
}

function listFrom(text) {
  try {
    const list = JSON.parse(text);
    return Array.isArray(list) ? list : null;
  } catch {
    return null;
  }
}

let saving = null;

function save() {  // browsers limit how often the address may change
  if (saving === null) saving = setTimeout(saveNow, 120);
}

function saveNow(isNew = false) {  // `isNew`: Back returns to the address before
  clearTimeout(saving);
  saving = null;
  const parts = {
    filter: state.filter, ending: state.ending, sort: state.sort ? `${state.down ? "-" : ""}${state.sort}` : "", episode: keyText(state.episode),
    list: state.isListed && state.episode ? "yes" : "", other: keyText(state.other), agent: shown?.turns && state.agent ? state.agent : "", step: state.step || "", view: state.view?.join(",") ?? "", lanes: state.lanes ? JSON.stringify(state.lanes) : "",
    joined: state.joined ? JSON.stringify(state.joined) : "", tolerance: state.tolerance || "", large: state.large.length ? JSON.stringify(state.large) : "",
    token: state.token ?? "", colour: state.colour, by: state.byQuantity ? "quantity" : "", columns: state.columns ? JSON.stringify(state.columns) : "", keep: state.kept.join(","),
  };
  const query = new URLSearchParams(Object.entries(parts).filter(([, value]) => value !== ""));
  history[isNew ? "pushState" : "replaceState"](null, "", `#${query}`);
}

function load() {
  const query = new URLSearchParams(location.hash.slice(1)), sort = query.get("sort") ?? "";
  const numbers = (query.get("view") ?? "").split(",").map(Number);
  Object.assign(state, {
    filter: query.get("filter") ?? "", ending: query.get("ending") ?? "", sort: sort.replace(/^-/, "") || null, down: sort.startsWith("-"),
    episode: keyFrom(query.get("episode")), other: keyFrom(query.get("other")), step: Number(query.get("step")) || 0,
    view: numbers.length === 2 && numbers[0] < numbers[1] ? numbers : null, lanes: listFrom(query.get("lanes")),
    joined: listFrom(query.get("joined")), large: listFrom(query.get("large")) ?? [], byQuantity: query.get("by") === "quantity", tolerance: Math.max(Number(query.get("tolerance")) || 0, 0),
    token: /^\d+$/.test(query.get("token") ?? "") ? Number(query.get("token")) : null, colour: query.get("colour") ?? "", columns: listFrom(query.get("columns")), kept: query.get("keep")?.split(",") ?? [],
  });
  state.agent = query.get("agent");
  state.isLinked = query.has("id") || state.step > 0 || state.token !== null;
  if (query.has("id")) findStep(query.get("id"), Number(query.get("t")), query.get("agent"));
  state.isListed = query.get("list") === "yes" || rowOf(state.episode) < 0;  // a link to an episode folds the table
  find("words").value = state.filter;
  find("ending").value = state.ending;
  state.ending = find("ending").value;  // "" if no ending has this name
}

function findStep(id, t, agent) {  // an address of links from batches has the id, the agent and the time of a step
  const { id: ids, t_started, length, agent_id, num_agents } = table.columns;
  if (num_agents) {  // t counts the steps of the agent
    const rows = rowsOf(id);
    state.episode = rows.length ? keyOf(rows[0]) : { id, t, agent: agent ?? "", nth: 0 };
    [state.step, state.stepOfAgent] = [0, { id, t }];
    return;
  }
  let chosen = -1;
  for (let row = 0; row < table.num; row++) {  // the last chunk that has the observation at this time
    const isIn = ids[row] === id && t_started[row] <= t && t <= t_started[row] + length[row];
    if (isIn && (agent === null || (agent_id?.[row] ?? "") === agent)) chosen = row;
  }
  state.episode = chosen < 0 ? { id, t, agent: agent ?? "", nth: 0 } : keyOf(chosen);
  state.step = chosen < 0 ? 0 : t - t_started[chosen];
}

// --- episodes ---------------------------------------------------------------------------------------------------

async function fetchEpisode(key, window_) {
  const query = new URLSearchParams({ id: key.id, t: key.t, agent: key.agent, nth: key.nth, ...(window_ ? { from: window_[0], to: window_[1] } : {}) });
  const answer = await fetch(`episode?${query}`).catch(() => null);
  if (!answer?.ok) return null;
  const episode = decode(await answer.arrayBuffer());
  return Object.assign(episode, { title: key.id });
}

async function fetchFindings() {
  const answer = await fetch("findings").catch(() => null);
  if (answer?.ok) findings = decode(await answer.arrayBuffer());
  nameColumns();
  arrange();
  fitColumns();
  drawDoctor();
  draw();
}

async function episodeOf(key) {
  const row = rowOf(key), { columns } = table;
  const facts = row < 0 ? { title: key.id, length: 0, started: key.t } : { title: key.id, length: columns.length[row], return: columns.return[row], ending: columns.ending[row], started: key.t };
  const missing = { ...facts, lookback: 0, lanes: [], texts: [], cameras: [], left: 0 };
  if (live) return (await fetchEpisode(key, null)) ?? { ...missing, isMissing: isLost ? "The server is gone." : "The data set does not have this episode any more." };
  if (row < 0) return { ...missing, isMissing: "This page does not have this episode." };
  const n = table.place?.[row] ?? -1;
  if (n < 0) return { ...missing, isMissing: "This page does not carry the tracks of this episode." };
  const block = table.starts.findLastIndex((start) => start <= n);
  if (!blocks.has(block)) blocks.set(block, decode(await inflate(embedded(`block-${block}`))));
  const { kinds, episodes } = blocks.get(block), episode = episodes[n - table.starts[block]];
  const lanes = episode.lanes.map(([kind, part]) => {
    const [label, hue, more, note, band] = kinds[kind], shared = { label, hue, more, note, band };
    return ArrayBuffer.isView(part) ? { ...shared, values: part, every: 1, begin: 0, items: part.length, odd: {} } : { ...shared, ...part };
  });
  return { title: key.id, ...episode, lanes };
}

async function choose(row, isOther = false, isNew = true) {
  await chooseKey(keyOf(row), isOther, isNew);
}

async function chooseKey(key, isOther = false, isNew = false) {  // whether no other one was chosen meanwhile; `isNew`: Back returns to the episodes before
  const request = ++requests;
  const isSame = isOther ? keyText(state.other) === keyText(key) : keyText(state.episode) === keyText(key) && state.other === null;
  if (isNew) saveNow();
  state.isComparing = false;
  if (isOther) state.other = key;
  else Object.assign(state, { episode: key, other: null, ...(state.episode && keyText(state.episode) === keyText(key) ? {} : { view: null, token: null }) });
  if (isNew && !isSame) saveNow(true);
  drawRows();
  const episode = await episodeOf(key);
  if (request !== requests) return false;
  if (isOther) other = episode.isMissing ? null : episode;
  else [shown, other] = [episode, null];
  const turn = !isOther && state.stepOfAgent && shown.turns?.find((one) => one.id === state.stepOfAgent.id);
  if (turn) {
    state.step = turn.observed[state.stepOfAgent.t - turn.first] ?? 0;
    shown.of = { agent: turn.agent, turn: state.stepOfAgent.t };
  }
  const isLinked = state.stepOfAgent !== null;
  state.stepOfAgent = null;
  if (!isOther) openAgent(turn ? turn.agent : state.agent);
  draw();
  if (isLinked) document.querySelector(".group.current > summary")?.scrollIntoView({ block: "nearest" });
  save();
  return true;
}

function drawPlace() {  // in place of the table, where the episode is in it
  const at = order.indexOf(rowOf(state.episode)), noun = table.columns.num_agents ? "game" : "episode";
  document.body.classList.toggle("focused", !state.isListed);
  const step = (to, words) => {
    const button = element("button", { type: "button", "data-to": words, ...(at < 0 || order[to] === undefined ? { disabled: "" } : {}) }, words);
    button.addEventListener("click", () => { follow(order[to]); find("place").querySelector(`[data-to=${words}]`)?.focus(); });
    return button;
  };
  const all = element("button", { type: "button" }, `all ${noun}s`);
  all.addEventListener("click", () => { state.isListed = true; save(); bring(rowOf(state.episode)); fitColumns(); find("rows").focus(); });
  const compare = element("button", { type: "button", title: `then choose a second ${noun}` }, "compare");
  compare.addEventListener("click", () => { all.click(); compareNext(true); });
  const words = at < 0 ? "" : `${noun} ${(at + 1).toLocaleString("en")} of ${order.length.toLocaleString("en")}`;
  find("place").replaceChildren(element("span", {}, words), step(at - 1, "previous"), step(at + 1, "next"), ...(table.num > 1 ? [compare] : []), all);
}

function compareNext(isOn) {  // the next episode that is chosen is compared with the one that is shown
  state.isComparing = isOn && state.episode !== null;
  drawRows();
}

function follow(row, isNew = true) {
  if (row === undefined) return;
  reveal(row);
  choose(row, false, isNew);
}

function walk(to) {  // by a key, to a place in the table, which scrolls into the window
  if (order[to] === undefined) return;
  if (state.isComparing) choose(order[to], true); else choose(order[to], false, false);
  bring(order[to]);
}

// --- keyboard and forms -----------------------------------------------------------------------------------------

find("rows").addEventListener("keydown", (event) => {
  const at = order.indexOf(rowOf(state.episode)), page = Math.max(1, Math.floor(find("rows").clientHeight / ROW_HEIGHT) - 2);
  const to = { ArrowDown: at + 1, ArrowUp: Math.max(at - 1, 0), PageDown: Math.min(at + page, order.length - 1), PageUp: Math.max(at - page, 0), Home: 0, End: order.length - 1 }[event.key];
  if (to !== undefined) {
    walk(to);
    event.preventDefault();
    event.stopPropagation();
  }
  if (event.key === "Escape") compareNext(false);
  if (event.key === "Enter" && shown && !event.target.matches("button")) { find("episode").focus(); event.preventDefault(); }
});

document.addEventListener("keydown", (event) => {  // of the whole page
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, textarea, input:not([type=checkbox])")) return;
  const at = order.indexOf(rowOf(state.episode)), to = { j: at + 1, k: at - 1 }[event.key];
  if (to !== undefined) walk(to);
  if (event.key !== "/") return;
  event.preventDefault();
  Object.assign(state, { isListed: true });
  drawRows();
  fitColumns();
  find("words").focus();
});

document.addEventListener("keydown", (event) => {
  if (!shown || shown.isMissing || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("select, textarea, input:not([type=checkbox], [type=range])")) return;
  const isSlider = event.target.matches("[type=range]");  // which moves by itself
  const [a, b] = view(), far = Math.max(1, Math.round((b - a) / 10));
  const to = { ArrowRight: state.step + 1, ArrowLeft: state.step - 1, PageDown: state.step + far, PageUp: state.step - far, Home: firstStep(shown), End: shown.length }[event.key];
  if (to !== undefined && !isSlider) { move(to); event.preventDefault(); }
  if (event.key === "?") { find("keys").open = !find("keys").open; event.preventDefault(); }
  if (event.key === " " && !event.target.matches("button, summary, [type=checkbox]")) { playing ? stop() : start(); event.preventDefault(); }
  if (event.key === "Escape") zoom();
});

find("fold").addEventListener("click", () => { state.isListed = false; save(); drawRows(); find("place").querySelector("button:last-child").focus(); });
find("compare").addEventListener("click", () => compareNext(!state.isComparing));
find("rows").addEventListener("scroll", () => requestAnimationFrame(drawRows));
let fitted = "";  // the widths for which the columns were chosen
const sizes = new ResizeObserver(() => requestAnimationFrame(() => {  // also when the table is shown again
  const widths = `${document.body.clientWidth} ${find("rows").clientWidth > 0}`;
  if (fitted === widths) return;
  fitted = widths;
  if (table.num) fitColumns();
}));
for (const one of [document.body, find("list")]) sizes.observe(one);
find("chooser").addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  find("chooser").open = false;
  find("chooser").querySelector("summary").focus();
  event.stopPropagation();
});
document.addEventListener("pointerdown", ({ target }) => { if (!find("chooser").contains(target)) find("chooser").open = false; });
find("back-to-table").addEventListener("click", () => {
  if (!state.isListed) { find("place").querySelector("button:last-child").click(); return; }
  find("rows").focus({ preventScroll: true });
  bring(rowOf(state.episode));
});
for (const event of ["pointerover", "focusin"]) find("rows").addEventListener(event, ({ target }) => { if (target.closest("th")) find("meaning").textContent = meaningOf(target.closest("th").querySelector("button")?.dataset.column); });
find("words").addEventListener("keydown", (event) => {  // the text stays
  if (event.key !== "Escape") return;
  find("rows").focus({ preventScroll: true });
  event.preventDefault();
});
find("filters").addEventListener("submit", (event) => { event.preventDefault(); find("rows").focus(); });
for (const [id, name] of [["words", "filter"], ["ending", "ending"]]) {
  find(id).addEventListener("input", () => {
    state[name] = find(id).value;
    find("rows").scrollTop = 0;
    arrange();
    fitColumns();
    overview();
    save();
  });
}

// --- begin, and follow the server -------------------------------------------------------------------------------

function refresh(message) {
  if (!isLoaded) findings = message.findings ?? null;
  addRows(message);
  if (!isLoaded) {
    load();  // after the rows, in which it may look for a step
    drawDoctor();
  }
  isLoaded = true;
  drawHeads();
  arrange();
  fitColumns();
  overview();
}

async function poll() {
  try {
    const answer = await fetch(`rows?version=${version ?? ""}`);
    if (answer.status === 200) {
      const message = decode(await answer.arrayBuffer());
      version = message.version;
      refresh(message);
    }
    isLost = false;
    const { status } = table;  // of the run of the episodes, as its own page shows it
    find("live").className = typeof status !== "string" || status === "running" ? "" : "ended";
    find("live").textContent = typeof status !== "string" ? "live" : status === "running" ? "running" : isEnded(status) ? "ended" : "not known to be running";
    find("live").title = status ?? "";
  } catch {
    isLost = true;
    find("live").className = "lost";
    find("live").textContent = "the server is gone";
  }
}

async function followServer() {
  await poll();
  setTimeout(followServer, 1000);
}

async function open() {
  if (live) await poll();
  else refresh(decode(await inflate(embedded("table"))));
  const first = order[0];
  if (state.episode) {
    await restore();
    reveal(rowOf(state.episode));
  } else if (first !== undefined) await choose(first, false, false);
  document.body.dataset.ready = "yes";
  if (live) setTimeout(followServer, 1000);
}

async function restore() {  // the episodes of the address
  const second = state.other, zoomed = state.view, choosing = chooseKey(state.episode);
  state.other = second;
  if (!(await choosing) || (second && !(await chooseKey(second, true)))) return;  // another address meanwhile
  if (zoomed) await zoom(...zoomed);
}

addEventListener("popstate", async () => {  // at once, since a later save would write the old state to the new address
  clearTimeout(saving);
  saving = null;
  load();
  arrange();
  overview();
  fitColumns();
  if (state.episode) await restore();
});
open();
