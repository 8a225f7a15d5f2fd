// Conditions on columns, in the language of `episodes copy --where`: names, numbers, strings, comparisons, arithmetic,
// and, or, not; "=" is "==". `condition(text, columns)` returns a function from the index of a row to true or false. An error has the
// `names` of the columns, as the page shows them.

// The tokens are those of `episodes/storage/copying.py`.

const SPACE = "[ \\t\\n\\r\\f\\v]*", QUOTED = `'[^']*'|"[^"]*"`;
const TOKEN = new RegExp(`${SPACE}(?:custom_data${SPACE}/${SPACE}(?<custom>[A-Za-z_]\\w*|${QUOTED})|(?<number>\\.?\\d(?:[eE][-+](?=\\d)|[\\w.])*)|(?<text>${QUOTED})|(?<name>[A-Za-z_]\\w*)|(?<sign><=|>=|==?|!=|[-+*/%<>()])|(?<end>$))`, "y");
const NUMBER = /^(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?$/, PADDED = /^0\d*[1-9][\deE+-]*$/;  // such as 007
const UNQUOTED = /'[^']*'|"[^"]*"|\b([A-Za-z_]\w*) *(==?|!=) *(\w+(?:[-.:\/]\w+)+)(?= *(?:$|\)|and\b|or\b))/g;
const OF_STEPS = ["observations", "actions", "rewards", "infos", "extra_model_outputs"];
const COMPARISONS = ["<", "<=", ">", ">=", "==", "!="];

function tokens(text) {
  const result = [];
  for (let at = 0; ; at = TOKEN.lastIndex) {
    TOKEN.lastIndex = at;
    const parts = TOKEN.exec(text)?.groups;
    if (!parts) throw new Error(`cannot read ${JSON.stringify(text.slice(at).trim())}`);
    const { custom, number, text: quoted, name, sign } = parts;
    if (parts.end !== undefined) return result;
    if (custom) result.push({ kind: "name", value: "custom_data/" + custom.replace(/^(['"])(.*)\1$/s, "$2") });
    else if (number) result.push({ kind: "value", value: numberFrom(number, text), words: number });
    else if (quoted) result.push({ kind: "value", value: quoted.slice(1, -1), words: quoted });
    else if (["and", "or", "not"].includes(name)) result.push({ kind: name });
    else if (name === "True" || name === "False") result.push({ kind: "value", value: name === "True", words: name });
    else if (/^(and|or|not)$/i.test(name)) throw new Error(`${name} is out of place; did you mean ${name.toLowerCase()}`);
    else if (name) result.push({ kind: "name", value: name });
    else result.push({ kind: sign === "=" ? "==" : sign });
  }
}

function numberFrom(word, text) {  // throw an error if a word that begins with a digit is no number, or no exact one
  if (!NUMBER.test(word) || PADDED.test(word)) throw new Error(`${word} is no number${hintOf(text) || `; a text is in quotes: '${word}'`}`);
  if (/^\d+$/.test(word) && Number(word) >= 2 ** 53) throw new Error(`${word.slice(0, 40)} is above 2**53, where conditions do not tell each integer from the next one; for a limit that is not exact write ${word.slice(0, 40)}.0`);
  return Number(word);
}

function hintOf(text) {  // what to write if a column is compared with a text that has no quotes
  for (const [, name, sign, word] of text.matchAll(UNQUOTED)) if (name && !NUMBER.test(word)) return `; a text is in quotes: ${name} ${sign} '${word}'`;
  return "";
}

function suggestion(word, names) {  // the most similar name, if at most a third of its characters differ, in any case
  const shareOf = (name) => edits(word.toLowerCase(), name.toLowerCase()) / Math.max(name.length, 1);
  const [share, name] = [...names, "True", "False"].map((one) => [shareOf(one), one]).reduce((best, one) => (one[0] < best[0] ? one : best));
  return share <= 1 / 3 ? `did you mean ${name}; ` : "";
}

function hintOfName(name, names) {  // on the name of no column
  return OF_STEPS.includes(name) ? `${name} have a value for each step, columns one for each episode, such as custom_data/key; ` : suggestion(name, names);
}

function edits(a, b) {  // the fewest insertions, removals and replacements of characters from one text to the other
  let row = [...b, ""].map((_, j) => j);
  [...a].forEach((x, i) => {
    const next = [i + 1];
    [...b].forEach((y, j) => next.push(Math.min(next[j] + 1, row[j + 1] + 1, row[j] + (x !== y))));
    row = next;
  });
  return row.at(-1);
}

function typeOf(values) {  // "text", "number" or "flag"; "" of values of several types, or of none
  const types = new Set();
  for (const value of values) if (value !== null && value !== undefined) types.add(typeof value);
  const [type] = types;
  return types.size === 1 ? { string: "text", boolean: "flag" }[type] ?? "number" : "";
}

function checkTypes(a, sign, b) {  // throw an error if two parts of a comparison are a text and no text
  for (const [one, other] of [[a, b], [b, a]]) {
    const isUnknown = other.unknown !== undefined && one.unknown === undefined;
    if (one.type !== "text" || !(isUnknown || ["number", "flag"].includes(other.type))) continue;
    const known = isUnknown ? other.unknown : `${sign} compares numbers with numbers, and texts with texts, but ${one.words} is a text and ${other.words} a ${other.type}`;
    const quoted = `'${other.words}'`, isWord = /^[\w.]+$/.test(other.words ?? "") && !one.isValue;
    throw new Error(isWord ? `${known}; a text is in quotes: ${other === b ? `${one.words} ${sign} ${quoted}` : `${quoted} ${sign} ${one.words}`}` : known);
  }
}

function checkFlag(part) {
  if (part.unknown) throw new Error(part.unknown);
  if (part.type === "text") throw new Error(`${part.words} is a text, no condition; compare it, such as: ending == 'cut'`);
  return part;
}

function modulo(x, y) {  // with the sign of y, as in Python
  const rest = x % y;
  if (rest === 0) return y < 0 ? -0 : 0;
  return (rest < 0) !== (y < 0) ? rest + y : rest;
}

function inOrder(a, b) {  // two numbers for two texts, with the order of their first different characters, as in Python
  const [x, y] = [a, b].map((text) => [...text, ""]);
  const k = x.findIndex((character, i) => character !== y[i]);
  return k < 0 ? [0, 0] : [x, y].map((characters) => characters[k].codePointAt(0) ?? -1);
}

const isTrue = (value) => Number.isNaN(value) || Boolean(value);  // as in Python

function condition(text, columns, names = Object.keys(columns)) {
  try {
    return compiled(text, columns, names);
  } catch (error) {
    throw new Error(error.message.includes("in quotes") ? error.message : error.message + hintOf(text));
  }
}

function compiled(text, columns, names) {
  const list = tokens(text);
  let at = 0, reads = 0;  // of columns
  const next = (...kinds) => (at < list.length && kinds.includes(list[at].kind) ? list[at++].kind : null);
  const number = (value) => {
    if (typeof value === "string" || value === null) throw new Error("a text or None is no number");
    return Number(value);
  };
  const compare = (sign, a, b) => {
    if (sign === "==" && (a === null || b === null)) return a === b;
    if (sign === "==") return typeof a === "string" || typeof b === "string" ? a === b : Number(a) === Number(b);  // True is 1
    if (sign === "!=") return !compare("==", a, b);
    if (a === null || b === null || (typeof a === "string") !== (typeof b === "string")) throw new Error(`${sign} compares numbers with numbers, and texts with texts`);
    [a, b] = typeof a === "string" ? inOrder(a, b) : [a, b];
    return { "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b }[sign];
  };
  const typed = (type, of, words) => Object.assign(of, { type, words });
  const operand = (part) => {
    if (part.unknown) throw new Error(part.unknown);
    if (part.type === "text") throw new Error(`${part.words} is a text or None, no number`);
    return part;
  };
  function or() {
    let left = and();
    while (next("or")) { const [a, b] = [checkFlag(left), checkFlag(and())]; left = (i) => isTrue(a(i)) | isTrue(b(i)); }
    return left;
  }
  function and() {
    let left = not();
    while (next("and")) { const [a, b] = [checkFlag(left), checkFlag(not())]; left = (i) => isTrue(a(i)) & isTrue(b(i)); }
    return left;
  }
  function not() {
    if (!next("not")) return comparison();
    const value = checkFlag(not());
    return (i) => !isTrue(value(i));
  }
  function comparison() {
    const parts = [sum()], signs = [];
    for (let sign; (sign = next(...COMPARISONS)); ) { signs.push(sign); parts.push(sum()); }
    if (!signs.length) return parts[0];
    signs.forEach((sign, k) => checkTypes(parts[k], sign, parts[k + 1]));
    const unknown = parts.find((part) => part.unknown)?.unknown;
    if (unknown) throw new Error(unknown);
    return (i) => { const values = parts.map((part) => part(i)); return signs.map((sign, k) => compare(sign, values[k], values[k + 1])).every(Boolean); };
  }
  function sum() {
    let left = product();
    for (let sign; (sign = next("+", "-")); ) {
      const [a, b, s] = [operand(left), operand(product()), sign];
      left = typed("number", (i) => (s === "+" ? number(a(i)) + number(b(i)) : number(a(i)) - number(b(i))), "the result");
    }
    return left;
  }
  function product() {
    let left = signed();
    for (let sign; (sign = next("*", "/", "%")); ) {
      const before = reads, [a, b, s] = [operand(left), operand(signed()), sign];
      if (s !== "*" && reads === before && number(b(0)) === 0) throw new Error("a division by 0");
      left = typed("number", (i) => {
        const [x, y] = [number(a(i)), number(b(i))];
        return s === "*" ? x * y : s === "/" ? x / y : modulo(x, y);
      }, "the result");
    }
    return left;
  }
  function signed() {
    if (!next("-")) return atom();
    const value = operand(signed());
    return typed("number", (i) => -number(value(i)), "the result");
  }
  function atom() {
    if (next("(")) {
      const value = or();
      if (!next(")")) throw new Error("a ) is missing");
      return value;
    }
    const token = list[at++];
    if (!token) throw new Error("the condition is not complete");
    if (token.kind === "value") return Object.assign(typed(typeOf([token.value]), () => token.value, token.words), { isValue: true });
    if (token.kind !== "name") throw new Error(`${token.kind} is out of place`);
    reads++;
    const column = Object.hasOwn(columns, token.value) ? columns[token.value] : undefined;
    if (!column) return Object.assign(typed("", () => null, token.value), { unknown: `unknown column '${token.value}'; ${hintOfName(token.value, [...names, ...Object.keys(columns)])}the columns are ${names.join(", ")}` });
    return typed(typeOf(column), (i) => column[i] ?? null, token.value);
  }
  const result = checkFlag(or());
  if (at < list.length) throw new Error(`${list[at].words ?? list[at].value ?? list[at].kind} is out of place`);
  return (i) => Boolean(isTrue(result(i)));
}
