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

function briefId(id) {  // of 32 random hexadecimal digits the first 8; what follows them stays
  return /^[0-9a-f]{32}(?![0-9a-f])/.test(id) ? id.slice(0, 8) + id.slice(32) : id;
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

function height(value, low, high, top, bottom) {
  return high > low ? bottom - (bottom - top) * ((value / 2 - low / 2) / (high / 2 - low / 2)) : (top + bottom) / 2;
}
