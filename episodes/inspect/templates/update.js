// Page of an update: tables that are sorted and filtered, charts whose parts are filters, and keys to turn pages.
// Filter and order of the table in a section "steps" are in the address as "steps.filter" and "steps.sort".

const FEW = 20, MORE = 200, TEXTS = /'[^']*'|"[^"]*"/.source;

const grouped = (count) => count.toLocaleString("en-US");

function remember(key, value) {
  const query = new URLSearchParams(location.search);
  if (value) query.set(key, value); else query.delete(key);
  const text = query.toString();
  history.replaceState(null, "", `${location.pathname}${text && `?${text}`}${location.hash}`);
}

// Return a filter as a condition: names as the page shows them become those of columns, 5 % becomes 0.05,
// and ids are compared as they are shown.
function readable(text, names, texts) {
  const escaped = (name) => name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/[ _]/g, "[ _]");
  const known = Object.entries(names).flatMap(([name, shown]) => [[shown.toLowerCase().replaceAll("_", " "), name], [name.replaceAll("_", " "), name]]);
  const byText = new Map(known.reverse()), all = [...byText.keys()].sort((a, b) => b.length - a.length).map(escaped).join("|");
  const column = (found) => byText.get(found.toLowerCase().replaceAll("_", " "));
  const named = `(?<![\\w|])(?:${all})(?![\\w|])`;
  text = text.replace(new RegExp(`(${named})\\s*(==?|!=)\\s*(${TEXTS}|[\\w.-]+)`, "gi"), (found, shown, sign, value) => {
    const name = column(shown);
    if (!texts[name]) return found;
    const plain = value.replace(/^(['"])(.*)\1$/, "$2"), same = texts[name](plain), quoted = same.length ? same : [plain];
    const any = quoted.map((one) => `${name} == ${one.includes("'") ? `"${one}"` : `'${one}'`}`).join(" or ");
    return sign === "!=" ? `(not (${any}))` : `(${any})`;
  });
  text = text.replace(new RegExp(`${TEXTS}|${named}`, "gi"), (found, at, whole) => {
    if (!/^['"]/.test(found)) return column(found);
    return (/=\s*$/.test(whole.slice(0, at)) ? null : column(found.slice(1, -1))) ?? found; // a text is compared with
  });
  return text.replace(new RegExp(`${TEXTS}|([\\d.]+)\\s*%(?=\\s*(?:$|[)<>=!]|and\\b|or\\b))`, "g"), (found, percent) => (percent ? String(percent / 100) : found));
}

function prepare(box) {
  const table = box.querySelector("table"), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const rows = [...body.rows], tools = box.querySelector(".tools"), input = tools.firstElementChild, output = box.querySelector("output"), more = box.querySelector(".more");
  const hidden = JSON.parse(box.querySelector("script").textContent), id = box.closest("section")?.id ?? "";
  const isText = heads.map((head) => head.classList.contains("text"));
  const cell = (row, k) => row.cells[k].dataset.v ?? row.cells[k].textContent;
  const values = heads.map((_, k) => rows.map((row) => { const v = cell(row, k); return isText[k] ? v || null : v === "" ? NaN : Number(v.replace("inf", "Infinity")); }));
  const columns = Object.fromEntries(heads.map((head, k) => [head.dataset.name, values[k]]));
  for (const [name, column] of Object.entries(hidden.columns)) columns[name] = column.some((v) => typeof v === "string") ? column : column.map((v) => v ?? NaN);
  const texts = {};
  for (const [name, column] of Object.entries(columns)) {
    if (!column.some((v) => typeof v === "string")) continue;
    const k = heads.findIndex((head) => head.dataset.name === name);
    texts[name] = (shown) => [...new Set(column.filter((v, i) => v !== null && (v === shown || (k >= 0 && rows[i].cells[k].textContent.replace("…", "") === shown.replace("…", "")))))];
  }
  const [told, reason, ...orders] = box.querySelector(".order").children;
  const sorted = heads.find((head) => head.getAttribute("aria-sort") !== "none"), firstOrder = sorted && `${sorted.dataset.name} ${sorted.getAttribute("aria-sort")}`;
  let words = null, order = rows.map((_, i) => i), matches = () => true, shown = FEW, readableText = "", lastTest = matches;

  function draw() {
    const chosen = order.filter(matches);
    body.replaceChildren(...chosen.slice(0, shown).map((i) => rows[i]));
    more.hidden = chosen.length <= FEW;
    more.textContent = shown < chosen.length ? `show ${Math.min(MORE, chosen.length - shown)} more rows` : "show fewer rows";
    if (!output.classList.contains("wrong")) output.textContent = chosen.length < rows.length ? `${grouped(chosen.length)} of ${grouped(rows.length)} rows` : "";
  }

  function search(text) {
    output.classList.remove("wrong");
    if (text && /[<>=!]/.test(text)) {
      try {
        const test = condition(readable(text, hidden.names, texts), columns, Object.keys(columns).map((name) => hidden.names[name] ?? name));
        rows.forEach((_, i) => test(i));
        [matches, lastTest, readableText] = [test, test, text];
      } catch (error) {  // while it is typed, the rows of the last one stay
        output.classList.add("wrong");
        output.textContent = `${error.message}; the table still shows ${readableText || "all rows"}`;
        matches = lastTest;
      }
    } else if (!text) {
      [matches, lastTest, readableText] = [() => true, () => true, ""];
    } else {
      words ??= rows.map((row) => [...row.cells].map((one) => `${one.textContent} ${one.dataset.v ?? ""}`).join(" ").toLowerCase());
      matches = (i) => words[i].includes(text.toLowerCase());
    }
    draw();
    remember(`${id}.filter`, text);
  }

  function sort(k, way) {
    const ascending = way === "ascending";
    heads.forEach((head) => head.setAttribute("aria-sort", "none"));
    heads[k].setAttribute("aria-sort", way);
    tell(k, way);
    const column = values[k], missing = (v) => v === null || Number.isNaN(v), sign = ascending ? 1 : -1;
    order = rows.map((_, i) => i).sort((i, j) => {
      const [a, b] = [column[i], column[j]];
      if (missing(a) || missing(b)) return missing(a) - missing(b) || i - j;
      return sign * (a < b ? -1 : a > b ? 1 : 0) || i - j;
    });
    draw();
  }

  // The text above the table follows the order; the reason is that of the first order.
  function tell(k, way) {
    const ends = isText[k] ? ["a to z", "z to a"] : ["smallest first", "largest first"], name = `${heads[k].dataset.name} ${way}`;
    told.textContent = `Sorted by ${heads[k].textContent}, ${ends[way === "ascending" ? 0 : 1]}`;
    reason.hidden = name !== firstOrder;
    orders.forEach((button) => { button.hidden = button.dataset.order === name; });
  }

  function orderBy(name) {
    const [column, way] = name.split(" ");
    sort(heads.findIndex((head) => head.dataset.name === column), way);
    remember(`${id}.sort`, name);
  }

  heads.forEach((head, k) => head.firstElementChild.addEventListener("click", () => {
    const before = head.getAttribute("aria-sort"), ascending = before === "none" ? isText[k] : before === "descending";
    orderBy(`${head.dataset.name} ${ascending ? "ascending" : "descending"}`);
  }));
  orders.forEach((button) => button.addEventListener("click", () => { orderBy(button.dataset.order); heads.find((head) => head.getAttribute("aria-sort") !== "none").firstElementChild.focus(); }));
  tools.hidden = rows.length <= FEW / 4;
  input.addEventListener("input", () => search(input.value.trim()));
  more.addEventListener("click", () => { shown = shown < order.filter(matches).length ? shown + MORE : FEW; draw(); });
  const query = new URLSearchParams(location.search), [name, way] = (query.get(`${id}.sort`) ?? "").split(" ");
  const k = heads.findIndex((head) => head.dataset.name === name);
  const filter = query.get(`${id}.filter`);
  if (filter) { input.value = filter; search(filter); }
  if (k >= 0 && ["ascending", "descending"].includes(way)) sort(k, way);
  draw();
}

// The parts of a chart are read with the mouse or the keys, and a click or Enter filters the steps by one of them.
function connect(figure) {
  const svg = figure.querySelector("svg"), output = figure.querySelector("output"), parts = [...svg.querySelectorAll("g")].filter((part) => part.querySelector("rect"));
  const input = document.querySelector("section[id$=steps] input");
  let current = -1;
  const read = (part) => {
    parts.forEach((one) => one.classList.toggle("read", one === part));
    output.textContent = part ? part.querySelector("title").textContent : "";
  };
  const choose = (part) => {
    if (!part?.dataset.test || !input) return;
    filterSteps(input.closest("section"), part.dataset.test);
  };
  svg.addEventListener("pointermove", (event) => read(event.target.closest("g")));
  svg.addEventListener("pointerleave", () => read(null));
  svg.addEventListener("blur", () => read(null));
  svg.addEventListener("click", (event) => choose(event.target.closest("g")));
  svg.addEventListener("keydown", (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (way && parts.length) { current = Math.max(0, Math.min(parts.length - 1, current + way)); read(parts[current]); event.preventDefault(); }
    if (event.key === "Enter") choose(parts[current]);
  });
}

// The first cell of a row of a group is a button that filters the steps by the group; so is a click on the row.
function choose(row) {
  const section = row.closest("section"), steps = document.getElementById(section.id.replace(/by-\w+$/, "steps"));
  filterSteps(steps, row.dataset.test);
}

function filterSteps(section, test) {
  const input = section.querySelector("input");
  input.value = test;
  input.dispatchEvent(new Event("input"));
  section.scrollIntoView();
}

function pick(row) {
  const cell = row.cells[0], link = cell.querySelector("a"), button = document.createElement("button");
  const words = "show the steps of this row";
  Object.assign(button, { type: "button", className: "pick", title: words, textContent: link ? "" : cell.textContent });
  button.setAttribute("aria-label", `${cell.textContent}: ${words}`);
  if (link) cell.append(button); else cell.replaceChildren(button);
  row.addEventListener("click", (event) => {
    if (!event.target.closest("a") && !getSelection().toString()) choose(row);
  });
}

function unfold(isArrival) {
  const name = decodeURIComponent(location.hash.slice(1)), section = name && document.getElementById(name);
  const fold = section && section.querySelector("details");
  const findings = [...document.querySelectorAll(".finding")];
  findings.forEach((one) => one.classList.toggle("led", findings.length > 1 && one.dataset.table === name));
  if (!fold) return;
  fold.open = true;
  const told = isArrival && findings.find((one) => one.dataset.table === name);
  const isNear = told && section.getBoundingClientRect().top - told.getBoundingClientRect().top < 0.6 * innerHeight;
  (isNear ? told : section).scrollIntoView();
}

// Other updates are opened at the same place, with the same filters and order.
function turn(href) {
  const query = new URLSearchParams(location.search).toString();
  location.href = `${href.split("?")[0]}${query && `?${query}`}${location.hash}`;
}

document.querySelectorAll(".rows tr[data-test]").forEach(pick);
document.querySelectorAll(".rows").forEach(prepare);
document.querySelectorAll(".drawn figure").forEach(connect);
const pages = [...document.querySelectorAll("nav a[data-page]")];
pages.forEach((link) => link.addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  turn(link.getAttribute("href"));
}));
addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || event.target.closest("input, select, svg, .wide")) return;
  const link = pages.find((one) => one.getAttribute("aria-keyshortcuts") === event.key);
  if (link) turn(link.getAttribute("href"));
});
addEventListener("hashchange", () => unfold(false));
addEventListener("load", () => requestAnimationFrame(() => unfold(true))); // after the browser has scrolled to the section
unfold(true);
const go = document.getElementById("go");
if (go) go.addEventListener("submit", (event) => { event.preventDefault(); turn(go.querySelector("input").value); });
document.body.dataset.ready = "yes";
