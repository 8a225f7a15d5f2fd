// Elements, and numbers as texts.

const find = (id) => document.getElementById(id);
const counted = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const isEnded = (status) => Boolean(status) && !["running", "running or killed", "not begun"].includes(status);  // of a run
const kindOf = (ending) => ending.split(" ")[0];

function element(name, attributes = {}, ...children) {
  const isSvg = ["svg", "path", "rect", "line", "g", "title"].includes(name);
  const made = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [attribute, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(attribute, value);
  made.append(...children);
  return made;
}

const MOST_OF_ID = 24;  // characters

const shortIds = new WeakMap();  // by list of ids, and by the number of characters

function shortId(id, others = [], most = MOST_OF_ID) {  // with "…" for what is left out, different from the short ids of the others
  const known = shortIds.get(others) ?? new Map();
  if (!known.has(most)) known.set(most, shortsOf(others, most));
  shortIds.set(others, known);
  return known.get(most).get(id) ?? shortsOf([...others, id], most).get(id);
}

function shortsOf(ids, most) {  // without all but 8 of 32 random hexadecimal digits, and without the middle, or without what ids have in common whose short ones would be equal
  const groups = new Map(), shorts = new Map(), counts = new Map();
  for (const id of new Set(ids)) {
    if (typeof id !== "string") continue;
    const short = middleCut(id.replace(/^([0-9a-f]{8})[0-9a-f]{24}(?![0-9a-f])/, "$1…"), most);
    if (!groups.has(short)) groups.set(short, []);
    groups.get(short).push(id);
  }
  for (const [short, group] of groups) for (const [i, part] of (group.length > 1 ? differingParts(group, most) : [short]).entries()) shorts.set(group[i], part);
  for (const short of shorts.values()) counts.set(short, (counts.get(short) ?? 0) + 1);
  for (const [id, short] of shorts) if (counts.get(short) > 1) shorts.set(id, id);
  return shorts;
}

function differingParts(ids, most) {  // of each id, between the parts that all have in common: whole words if there is room
  const [first] = ids, least = ids.reduce((best, id) => Math.min(best, id.length), Infinity), isWord = (sign) => /[\p{L}\p{N}]/u.test(sign ?? "");
  let begin = 0, end = 0;
  while (begin < least && ids.every((id) => id[begin] === first[begin])) begin++;
  while (end < least - begin && ids.every((id) => id.at(-1 - end) === first.at(-1 - end))) end++;
  let [left, right] = [begin, end];
  while (left && isWord(first[left - 1])) left--;
  while (right && isWord(first.at(-right))) right--;
  if (ids.some((id) => id.length - left - right > most - 2)) [left, right] = [begin, end];
  const [before, after] = [left ? "…" : "", right ? "…" : ""];
  return ids.map((id) => (left + right < id.length ? `${before}${middleCut(id.slice(left, id.length - right), most - before.length - after.length)}${after}` : id));
}

function middleCut(text, most) {
  const end = Math.floor((most - 1) / 2);
  return text.length <= most ? text : `${text.slice(0, most - 1 - end)}…${text.slice(-end)}`;
}

function idButton(id, others = []) {  // the short id, which copies the whole one
  const button = element("button", { type: "button", class: "id", title: id, "aria-description": "copies the id" }, shortId(id, others));
  button.addEventListener("click", () => navigator.clipboard?.writeText(id).then(() => { button.classList.add("copied"); }, () => {}));
  return button;
}

function show(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return String(value);
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  if (Math.abs(value) >= 1e12) return value.toExponential(3);
  if (Number.isInteger(value)) return String(value);
  const rounded = +value.toPrecision(4);
  return Math.abs(rounded) < 1e-3 ? rounded.toExponential().replace(/e([-+])(\d)$/, "e$10$2") : String(rounded);
}

const amount = (value) => (Number.isInteger(value) && Math.abs(value) < 1e12 ? value.toLocaleString("en") : show(value));  // in tables and charts

function height(value, low, high, top, bottom) {
  return high > low ? bottom - (bottom - top) * ((value / 2 - low / 2) / (high / 2 - low / 2)) : (top + bottom) / 2;
}
