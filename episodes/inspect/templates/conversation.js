// Conversations of a language agent: tokens with the colour of a chosen quantity, one conversation or two beside each other.

const MOST_SIBLINGS = 64, MOST_OF_TURN = 300, MOST_FOUND = 200;  // tokens of a turn that are shown at first, and places of searched words that are marked
const MASKS = [["ep-dim", "left out of the loss"], ["ep-clipped", "ratio clipped"], ["ep-unknown", "unknown"], ["ep-special", "special token"]];
const TRAINER = { name: "trainer_logp", label: "trainer's log-probability" }, RANKS = ["trainer_logp", "logp"];  // the last one is first
const SPECIAL = /^(<\|.*\|>|<\/?[a-z_]+>|\[\/?[A-Z_]+\])$/s;

const talksOf = (episode) => episode?.conversation ?? [];
const isTalk = (episode) => talksOf(episode).length > 0 && !episode.turns;

function talkHeading(episode) {
  const [talk] = talksOf(episode), ofUpdate = updatesOf(episode), facts = talk.facts.map((fact) => (/^(one of \d+ in )?group /.test(fact) ? fact + ofUpdate : fact));
  return element("h2", {}, "Conversation ", idButton(episode.title), element("small", {}, facts.join(", ")));
}

function updatesOf(episode) {  // that learned from it, in words
  const updates = [...new Set((episode.updates ?? []).map(([update]) => update))].sort((a, b) => a - b);
  return updates.length ? ` of update ${updates.join(", ")}` : "";
}

function quantitiesOf(talks) {  // of all shown conversations, by name
  return new Map(talks.flatMap((talk) => talk.quantities.map((quantity) => [quantity.name, quantity])));
}

function colourBy(talks) {  // the chosen quantity, or the one that these conversations suggest
  const names = quantitiesOf(talks);
  if (state.colour === "none" || names.has(state.colour)) return state.colour;
  return talks.map((talk) => talk.quantity).find((name) => names.has(name)) ?? [...names.keys()][0] ?? "none";
}

function messageOf(talk, n, name = talk.name) {  // elements of one message; its tokens know their place
  const message = talk.messages[n], many = counted(message.size + message.left, "token");
  const meta = element("span", { class: "ep-meta" }, element("b", {}, message.role), ` ${name ? `${name} · ` : ""}turn ${message.turn} · ${[many, ...message.notes].join(" · ")}`);
  const made = element("p", { class: `ep-talk ep-${message.role}`, "data-step": message.step }, meta);
  made.said = [talk, message];
  made.append(...tokensOf(talk, message, 0, MOST_OF_TURN));
  if (message.size > MOST_OF_TURN) {
    const more = element("button", { type: "button", class: "more" }, `show all ${counted(message.size, "token")}`);
    more.addEventListener("click", () => { unfold(made); const token = tokenAt(made, MOST_OF_TURN); enter(made.parentElement, token); token.focus(); });
    made.append(" ", more);
  }
  if (message.left) made.append(element("span", { class: "ep-note" }, `… ${counted(message.left, "more token")}, not shown here`));
  return made;
}

function textOf(talk, at) {  // of a token; "" for a part of a character, which is at a later token
  if (!talk.decoded) return String(talk.ids[at]);
  return talk.texts[at] === "" ? `⟨${talk.ids[at]}⟩` : talk.texts[at] ?? "";
}

function tokensOf(talk, message, from, to) {
  return Array.from({ length: Math.max(Math.min(to, message.size) - from, 0) }, (_, i) => {
    const at = message.begin + from + i, text = textOf(talk, at), token = document.createElement("span");
    token.className = "ep-token";
    token.textContent = text;
    if (talk.decoded && (talk.texts[at] === "" || SPECIAL.test(text.trim()))) token.classList.add("ep-special");
    if (text === "") token.classList.add("ep-part");
    else if (text.trim() === "" && text.includes("\n")) token.classList.add("ep-line");
    token.place = [talk, message, from + i];
    return talk.decoded ? [token] : [token, " "];
  }).flat();
}

function unfold(made) {  // show all tokens of a long turn
  const more = made.querySelector(".more"), [talk, message] = made.said;
  if (!more) return;
  more.replaceWith(...tokensOf(talk, message, MOST_OF_TURN, message.size));
  const part = made.closest("#conversation");
  if (part) paint(part);  // otherwise it is painted later
}

function tokenAt(made, k) {  // the element of a token of a turn, which is unfolded if it has to
  if (k >= MOST_OF_TURN && k < made.said[1].size) unfold(made);
  return made.querySelectorAll(".ep-token")[k];
}

function placed(talk) {  // messages know the begin of their tokens among all, and among the sampled ones
  let begin = 0, sampled = 0;
  for (const message of talk.messages) {
    Object.assign(message, { begin, sampled: message.role === "model" ? sampled : -1 });
    begin += message.size;
    if (message.role === "model") sampled += message.size;
  }
  return talk;
}

function paint(part) {  // the colour of each sampled token, and what else is known of it
  const quantities = quantitiesOf(part.talks), name = colourBy(part.talks), quantity = quantities.get(name), found = new Set();
  for (const token of part.querySelectorAll(".talks .ep-token")) {
    const [talk, message, k] = token.place;
    if (token.classList.contains("ep-special")) found.add("ep-special");
    if (message.sampled < 0) continue;
    const at = message.sampled + k, own = talk.quantities.find((one) => one.name === name), strength = own ? own.strengths[at] : 0;
    token.style.backgroundColor = strength ? `rgba(${own.colours[Number(strength > 0)]}, ${Math.abs(strength) * own.opacity / 100})` : "";
    const marks = { "ep-dim": talk.values.learned && !talk.values.learned[at], "ep-clipped": talk.values.clipped?.[at] > 0, "ep-unknown": quantity !== undefined && !(own && !Number.isNaN(talk.values[name][at])) };
    for (const [mark, isOn] of Object.entries(marks)) {
      token.classList.toggle(mark, Boolean(isOn));
      if (isOn) found.add(mark);
    }
  }
  const scale = quantity ? [` ${quantity.ends[0]} `, element("i", { class: "ep-heat", style: `background:${quantity.gradient}` }), ` ${quantity.ends[1]} · ${quantity.remark}; one scale for all conversations `] : [];
  const marks = MASKS.filter(([mark]) => found.has(mark)).map(([mark, words]) => element("span", { class: `ep-token ${mark}` }, words));
  part.querySelector(".scales").replaceChildren(...scale, ...marks.flatMap((mark) => [" ", mark]));
}

function readToken(token) {  // all that is known of a token, in words
  const [talk, message, k] = token.place, at = message.sampled + k, { values } = talk;
  const words = [`turn ${message.turn}, ${message.role} token ${k}`, `id ${talk.ids[message.begin + k]}`];
  if (talk.decoded) words.push(talk.texts[message.begin + k] === null ? "part of a character" : JSON.stringify(talk.texts[message.begin + k]));
  if (message.sampled < 0) return [...words, "not sampled by the model"].join(" · ");
  for (const { name, label } of [...talk.quantities, ...("trainer_logp" in values ? [TRAINER] : [])].sort((a, b) => RANKS.indexOf(b.name) - RANKS.indexOf(a.name))) {
    const value = values[name][at], percent = name === "loss_share" && values.share ? `${show(100 * values.share[at])} % = ` : "";
    const known = Number.isNaN(value) ? "unknown" : `${percent}${show(value)}${name === "loss_share" ? " mean shares" : ""}`;
    words.push(`${label} ${known}`);
  }
  if (!("logp" in values)) words.push("no log-probability recorded");
  if (values.clipped?.[at] > 0) words.push(`clipped in ${show(100 * values.clipped[at])} % of the gradient steps`);
  if ("version" in values) words.push(`policy version ${values.version[at]}`);
  if ("learned" in values) words.push(values.learned[at] ? "learned from" : "left out of the loss");
  return words.join(" · ");
}

function firstOther(a, b) {  // place of the first token of two conversations that is not equal, as [message, token]; null if there is none
  for (let n = 0; n < Math.max(a.messages.length, b.messages.length); n++) {
    const [one, two] = [a.messages[n], b.messages[n]];
    if (!one || !two || one.role !== two.role || one.step !== two.step) return [n, 0];
    for (let k = 0; k < Math.max(one.size, two.size); k++) {
      if (k >= one.size || k >= two.size || a.ids[one.begin + k] !== b.ids[two.begin + k]) return [n, k];
    }
  }
  return null;
}

function siblings() {  // the other conversations of the group, with what they were worth
  const { columns } = table, row = rowOf(state.episode);
  const group = columns["custom_data/group_id"] ?? columns["custom_data/group"];
  const isMember = group && row >= 0 && group[row] !== null && group[row] !== undefined && !Number.isNaN(group[row]);
  const rows = isMember ? Array.from({ length: table.num }, (_, one) => one).filter((one) => group[one] === group[row]) : [];
  if (rows.length < 2) return [];
  const ids = rows.map((one) => columns.id[one]), sorted = [...rows].sort((a, b) => columns.return[b] - columns.return[a] || a - b);
  const best = sorted.filter((one, i) => i < MOST_SIBLINGS || one === row);
  const facts = [["turns", columns.length], ["ending", columns.ending]].filter(([, values]) => rows.some((one) => values[one] !== values[row]));
  const areKnown = best.some((one) => shown.advantages?.[columns.id[one]] !== undefined);
  const members = best.map((one) => {
    const key = keyOf(one), gain = shown.advantages?.[key.id], isHere = one === row, isOther = keyText(state.other) === keyText(key);
    const words = shortId(key.id, ids), compare = isHere ? "this one" : element("button", { type: "button", "aria-label": `compare with ${key.id}`, "aria-pressed": String(isOther) }, isOther ? "compared" : "compare");
    if (!isHere) compare.addEventListener("click", () => (isOther ? endComparison() : choose(one, true)));
    const go = isHere ? element("b", { title: key.id }, words) : element("button", { type: "button", title: key.id }, words);
    if (!isHere) go.addEventListener("click", () => follow(one));
    const cells = [[true, go], [true, compare], [false, show(columns.return[one])], ...(areKnown ? [[false, gain === undefined ? "–" : show(gain)]] : []), ...facts.map(([name, values]) => [name === "ending", String(values[one])])];
    return element("tr", { class: isHere ? "here" : isOther ? "compared" : "" }, ...cells.map(([isText, cell]) => element("td", isText ? { class: "text" } : {}, cell)));
  });
  const heads = ["id", "", "return", ...(areKnown ? ["advantage"] : []), ...facts.map(([name]) => name)].map((name) => element("th", ["id", "", "ending"].includes(name) ? { class: "text" } : {}, name));
  const list = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...members));
  const key = columns["custom_data/group_id"]?.[row];
  const name = `group ${columns["custom_data/group"]?.[row] ?? shortId(String(group[row]))}${updatesOf(shown) || (key ? ` (${shortId(String(key))})` : "")}`;
  const common = [facts.some(([one]) => one === "turns") ? "" : counted(columns.length[row], "turn"), facts.some(([one]) => one === "ending") ? "" : columns.ending[row]].filter(Boolean).join(", ");
  const words = `${name}: ${counted(rows.length, "conversation")}${common ? `, each of ${common}` : ""}${best.length < rows.length ? `, the ${best.length} best` : ""}`;
  const part = element("details", { id: "siblings", ...(state.siblings ? { open: "" } : {}) }, element("summary", key ? { title: `group ${key}` } : {}, words), element("div", { tabindex: 0, role: "region", "aria-label": "conversations of the group" }, list));
  part.addEventListener("toggle", () => { state.siblings = part.open; });
  return [part];
}

function conversation() {  // tokens of the shown episode, beside those of the one to compare with
  if (!talksOf(shown).length) return [];
  const pairs = isTalk(shown) && isTalk(other) ? [shown, other] : [shown];
  const part = element("div", { id: "conversation" }), talks = pairs.flatMap(talksOf).map(placed);
  part.talks = talks;
  const choice = element("select", { id: "colour", "aria-label": "colour by" }, ...[...quantitiesOf(talks).values(), { name: "none", label: "nothing" }].map(({ name, label }) => element("option", { value: name, ...(name === colourBy(talks) ? { selected: "" } : {}) }, label)));
  choice.addEventListener("change", () => { state.colour = choice.value; paint(part); save(); });
  const missing = talks.some((talk) => talk.quantities.length) ? [] : [element("p", { class: "note" }, "No log-probabilities were recorded.")];
  const ids = talks.every((talk) => talk.decoded) ? [] : [element("p", { class: "note" }, "No tokenizer given: token ids. ", element("code", {}, "--decode MODULE:NAME"), " or ", element("code", {}, "decode=tokenizer.decode"), " shows text.")];
  part.append(element("p", { class: "bar-of-talk" }, element("label", {}, "colour by ", choice), element("span", { class: "scales" }), ...finder(part)), ...missing, ...ids);
  const reading = element("p", { id: "token", role: "status" }, "Point at a token, or go through them with Tab, Left and Right.");
  const grid = element("div", { class: "talks ep" });
  if (pairs.length === 2) {
    const names = pairs.map((episode) => shortId(episode.title, pairs.map((one) => one.title)));
    const [a, b] = talks, first = firstOther(a, b), all = [a.messages, b.messages].map((messages) => new Map(messages.map((_, n) => [2 * messages[n].step + Number(messages[n].role === "model"), n])));
    grid.classList.add("two");
    grid.append(...pairs.map((episode, i) => element("p", { class: "whose" }, `${i ? "compared with" : "this"}: `, element("b", { title: episode.title }, names[i]), ` ${talks[i].facts.join(", ")}`)));
    for (const place of [...new Set(all.flatMap((numbers) => [...numbers.keys()]))].sort((x, y) => x - y)) {
      [a, b].forEach((talk, i) => grid.append(all[i].has(place) ? messageOf(talk, all[i].get(place), names[i]) : element("p", { class: "ep-talk none" }, `${names[i]} · nothing`)));
    }
    if (first) {
      const [n, k] = first, said = [...grid.querySelectorAll(".ep-talk:not(.none)")];
      const elements = [a, b].map((talk) => said.find((made) => made.said[0] === talk && made.said[1] === talk.messages[n])).filter(Boolean).map((made) => tokenAt(made, k)).filter(Boolean);
      for (const token of elements) token.classList.add("ep-differs");
      const at = (a.messages[n] ?? b.messages[n]), go = element("button", { type: "button", id: "first-token" }, `first difference: turn ${at.turn}, ${at.role} token ${k}`);
      part.first = elements[0];
      if (part.first) go.addEventListener("click", () => showIn(grid, part.first));
      part.append(element("p", { class: "note" }, go, " ", stopComparing()));
    } else part.append(element("p", { class: "note" }, "Both have the same tokens. ", stopComparing()));
  } else for (const talk of talks) grid.append(...talk.messages.map((_, n) => messageOf(talk, n)));
  for (const talk of talks) if (talk.left) grid.append(element("p", { class: "note" }, `${counted(talk.left, "more message")}, not shown here`));
  part.append(reading, grid, ...(isTalk(shown) ? siblings() : []));
  reads(grid, reading);
  paint(part);
  return [part];
}

function finder(part) {  // words to look for in the turns
  const words = element("input", { id: "find", type: "search", placeholder: "find in the turns", "aria-label": "find in the turns" }), count = element("span", { role: "status" });
  let found = [], at = -1;
  const go = (by) => {
    if (!found.length) return;
    at = (at + by + found.length) % found.length;
    part.querySelectorAll(".ep-at").forEach((token) => token.classList.remove("ep-at"));
    const [made, first] = found[at], token = tokenAt(made, first);
    token.classList.add("ep-at");
    showIn(part.querySelector(".talks"), token);
    count.textContent = `${at + 1} of ${found.length.toLocaleString("en")}`;
  };
  words.addEventListener("input", () => {
    part.querySelectorAll(".ep-found, .ep-at").forEach((token) => token.classList.remove("ep-found", "ep-at"));
    [found, at] = [[...part.querySelectorAll(".ep-talk:not(.none)")].flatMap((made) => placesOf(made, words.value)), -1];
    for (const [made, first, last] of found.slice(0, MOST_FOUND)) for (let k = first; k <= last; k++) tokenAt(made, k).classList.add("ep-found");
    count.textContent = words.value && !found.length ? "not found" : "";
    go(1);
  });
  words.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    go(event.shiftKey ? -1 : 1);
    event.preventDefault();
  });
  return [words, count];
}

function placesOf(made, words) {  // of searched words in a turn, each as the turn, its first and its last token
  const [talk, message] = made.said, places = [], starts = [], like = words.toLowerCase();
  let text = "", token = 0;
  for (let k = 0; k < message.size; k++) {
    starts.push(text.length);
    text += textOf(talk, message.begin + k).toLowerCase() + (talk.decoded ? "" : " ");
  }
  const tokenOf = (place) => { while (token + 1 < starts.length && starts[token + 1] <= place) token += 1; return token; };
  for (let place = like ? text.indexOf(like) : -1; place >= 0; place = text.indexOf(like, place + like.length)) places.push([made, tokenOf(place), tokenOf(place + like.length - 1)]);
  return places;
}

function enter(grid, token) {  // make a token the one that Tab goes to
  grid.querySelector(".ep-token[tabindex='0']")?.setAttribute("tabindex", "-1");
  token?.setAttribute("tabindex", "0");
}

function reads(grid, reading) {  // what is known of a token, on hover and on focus; one token is in the order of Tab
  const read = (event) => { if (event.target.place) reading.textContent = readToken(event.target); };
  enter(grid, grid.querySelector(".ep-model .ep-token") ?? grid.querySelector(".ep-token"));
  grid.addEventListener("pointerover", read);
  grid.addEventListener("focusin", read);
  grid.addEventListener("click", (event) => { if (event.target.place) { enter(grid, event.target); event.target.focus(); } });
  grid.addEventListener("keydown", (event) => {
    if (!event.target.place || !["ArrowRight", "ArrowLeft", "Home", "End"].includes(event.key)) return;
    const all = [...grid.querySelectorAll(".ep-token")], at = all.indexOf(event.target);
    const next = all[{ ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key]];
    if (next) { enter(grid, next); next.focus(); }
    event.preventDefault();
    event.stopPropagation();
  });
}

function showIn(grid, target, rounds = 4) {  // scroll the messages, but not the page; messages that come into view get their heights then
  const [box, place] = [grid.getBoundingClientRect(), target.getBoundingClientRect()];
  grid.scrollTop += place.top - box.top - Math.max((box.height - place.height) / 2, 30);
  if (rounds > 1) requestAnimationFrame(() => showIn(grid, target, rounds - 1));
}

function markTurn() {  // the current turn, and the token of the address
  const part = find("conversation");
  if (!part) return;
  const linked = state.token, { of } = shown;  // of a game: the agent and its turn that the address names
  const isHere = (talk, message) => message.role === "model" && (isTalk(shown) ? message.step === state.step : of !== undefined && talk.name === of.agent && message.turn === of.turn);
  const messages = [...part.querySelectorAll(".ep-talk:not(.none)")], current = messages.filter(({ said }) => isHere(...said));
  for (const message of messages) message.classList.toggle("ep-current", current.includes(message));
  let [target] = current;
  part.querySelector(".ep-linked")?.classList.remove("ep-linked");
  if (linked !== null && target !== undefined) {
    const token = tokenAt(target, linked) ?? target.querySelector(".ep-note");
    token?.classList.add("ep-linked");
    if (token?.place) {
      enter(part.querySelector(".talks"), token);
      if (state.isLinked) token.focus({ preventScroll: true });  // the next Tab goes on from there
      find("token").textContent = `linked: ${readToken(token)}`;
    }
    target = token ?? target;
  }
  if (!target || part.seen === state.step) return;
  const isFirst = part.seen === undefined;
  part.seen = state.step;
  if (isFirst && !state.isLinked) {  // an episode is shown from its begin, or from the first difference
    if (part.first) showIn(part.querySelector(".talks"), part.first);
    return;
  }
  showIn(part.querySelector(".talks"), target);
  if (state.isLinked) target.scrollIntoView({ block: "center" });
  state.isLinked = false;
}
