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

function shortId(id, others = [], most = MOST_OF_ID) {  // with "…" for what is left out: all but 8 of 32 random hexadecimal digits, and the middle
  const short = middleCut(id.replace(/^([0-9a-f]{8})[0-9a-f]{24}(?![0-9a-f])/, "$1…"), most);
  return short !== id && others.some((other) => other !== id && shortId(other) === short) ? id : short;
}

function middleCut(text, most) {
  const end = Math.floor((most - 1) / 2);
  return text.length <= most ? text : `${text.slice(0, most - 1 - end)}…${text.slice(-end)}`;
}

function idButton(id) {  // the short id, which copies the whole one
  const button = element("button", { type: "button", class: "id", title: id, "aria-description": "copies the id" }, shortId(id));
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
