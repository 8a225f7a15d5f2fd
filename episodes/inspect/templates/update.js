// Tables of an update: sort by a column, filter by a condition or a text, and show more rows.

const FEW = 20;

function prepare(box) {
  const table = box.querySelector("table"), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const rows = [...body.rows], tools = box.querySelector(".tools"), output = box.querySelector("output"), more = box.querySelector(".more");
  const isText = heads.map((head) => head.classList.contains("text"));
  const values = heads.map((_, k) => rows.map((row) => { const v = row.cells[k].dataset.v; return isText[k] ? v || null : v === "" ? NaN : Number(v.replace("inf", "Infinity")); }));
  const columns = Object.fromEntries(heads.map((head, k) => [head.dataset.name, values[k]]));
  const texts = rows.map((row) => [...row.cells].map((cell) => `${cell.textContent} ${cell.dataset.v}`).join(" ").toLowerCase());
  let order = rows.map((_, i) => i), matches = () => true, all = false;

  function draw() {
    const chosen = order.filter(matches);
    rows.forEach((row) => { row.hidden = true; });
    chosen.slice(0, all ? rows.length : FEW).forEach((i) => { rows[i].hidden = false; });
    body.append(...order.map((i) => rows[i]));
    more.hidden = chosen.length <= FEW;
    more.textContent = all ? "show fewer rows" : `show ${chosen.length - FEW} more rows`;
    if (!output.classList.contains("wrong")) output.textContent = chosen.length < rows.length ? `${chosen.length} of ${rows.length} rows on this page` : "";
  }

  function search(text) {
    output.classList.remove("wrong");
    matches = () => true;
    if (text) {
      const contains = (i) => texts[i].includes(text.toLowerCase());
      matches = contains;
      try {
        const test = condition(text, columns);
        rows.forEach((_, i) => test(i));
        if (/[<>=!]/.test(text)) matches = test;
      } catch (error) {
        if (/[<>=!]/.test(text)) { output.classList.add("wrong"); output.textContent = error.message; matches = () => true; }
      }
    }
    draw();
  }

  function sort(k) {
    const before = heads[k].getAttribute("aria-sort");
    const ascending = before === "none" ? isText[k] : before === "descending";
    heads.forEach((head) => head.setAttribute("aria-sort", "none"));
    heads[k].setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const column = values[k], missing = (v) => v === null || Number.isNaN(v), sign = ascending ? 1 : -1;
    order = rows.map((_, i) => i).sort((i, j) => {
      const [a, b] = [column[i], column[j]];
      if (missing(a) || missing(b)) return missing(a) - missing(b) || i - j;
      return sign * (a < b ? -1 : a > b ? 1 : 0) || i - j;
    });
    draw();
  }

  heads.forEach((head, k) => head.firstElementChild.addEventListener("click", () => sort(k)));
  tools.hidden = rows.length <= FEW / 4;
  tools.firstElementChild.addEventListener("input", (event) => search(event.target.value.trim()));
  more.addEventListener("click", () => { all = !all; draw(); });
  draw();
}

function unfold() {
  const name = decodeURIComponent(location.hash.slice(1)), section = name && document.getElementById(name);
  const fold = section && section.querySelector("details");
  if (fold) {
    fold.open = true;
    const cell = section.querySelector("tr.led td.stands");
    if (cell) cell.scrollIntoView({ block: "nearest", inline: "center" });
    section.scrollIntoView();
  }
  const findings = [...document.querySelectorAll(".finding")];
  findings.forEach((one) => one.classList.toggle("led", findings.length > 1 && one.dataset.table === name));
}

document.querySelectorAll(".rows").forEach(prepare);
addEventListener("hashchange", unfold);
unfold();
const go = document.getElementById("go");
if (go) go.addEventListener("submit", (event) => { event.preventDefault(); location.href = `${go.querySelector("input").value}${go.dataset.query}${location.hash}`; });
document.body.dataset.ready = "yes";
