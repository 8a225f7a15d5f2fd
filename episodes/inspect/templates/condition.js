// Conditions on columns, in the language of `episodes copy --where`: names, numbers, strings, comparisons, arithmetic,
// and, or, not; "=" is "==". `condition(text, columns)` returns a function from the index of a row to true or false. An error has the
// `names` of the columns, as the page shows them.

const TOKEN = /\s*(?:(custom_data\s*\/\s*(?:[A-Za-z_]\w*|'[^']*'|"[^"]*"))|(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?)|('[^']*'|"[^"]*")|([A-Za-z_]\w*)|(<=|>=|==?|!=|[-+*\/%<>()]))/y;
const COMPARISONS = ["<", "<=", ">", ">=", "==", "!="];

function tokens(text) {
  const result = [];
  TOKEN.lastIndex = 0;
  while (text.slice(TOKEN.lastIndex).trim()) {
    const at = TOKEN.lastIndex, match = TOKEN.exec(text);
    if (!match) throw new Error(`cannot read ${JSON.stringify(text.slice(at).trim())}`);
    const [, custom, number, string, name, sign] = match;
    if (custom) result.push({ kind: "name", value: "custom_data/" + custom.replace(/^custom_data\s*\/\s*/, "").replace(/^(['"])(.*)\1$/, "$2") });
    else if (number) result.push({ kind: "value", value: Number(number) });
    else if (string) result.push({ kind: "value", value: string.slice(1, -1) });
    else if (["and", "or", "not"].includes(name)) result.push({ kind: name });
    else if (name === "True" || name === "False") result.push({ kind: "value", value: name === "True" });
    else if (name) result.push({ kind: "name", value: name });
    else result.push({ kind: sign === "=" ? "==" : sign });
  }
  return result;
}

function condition(text, columns, names = Object.keys(columns)) {
  const list = tokens(text);
  let at = 0;
  const next = (...kinds) => (at < list.length && kinds.includes(list[at].kind) ? list[at++].kind : null);
  const number = (value) => {
    if (typeof value === "string" || value === null) throw new Error("a text or None is no number");
    return Number(value);
  };
  const compare = (sign, a, b) => {
    if (sign === "==") return (typeof a === "string") === (typeof b === "string") && (a === b || Number(a) === Number(b)) && a !== null && b !== null;
    if (sign === "!=") return !compare("==", a, b);
    if (typeof a !== typeof b && (typeof a === "string" || typeof b === "string")) throw new Error(`${sign} compares numbers with numbers, and texts with texts`);
    return { "<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b }[sign];
  };
  function or() {
    let left = and();
    while (next("or")) { const [a, b] = [left, and()]; left = (i) => Boolean(a(i)) | Boolean(b(i)); }
    return left;
  }
  function and() {
    let left = not();
    while (next("and")) { const [a, b] = [left, not()]; left = (i) => Boolean(a(i)) & Boolean(b(i)); }
    return left;
  }
  function not() {
    if (!next("not")) return comparison();
    const value = not();
    return (i) => !value(i);
  }
  function comparison() {
    const parts = [sum()], signs = [];
    for (let sign; (sign = next(...COMPARISONS)); ) { signs.push(sign); parts.push(sum()); }
    if (!signs.length) return parts[0];
    return (i) => { const values = parts.map((part) => part(i)); return signs.every((sign, k) => compare(sign, values[k], values[k + 1])); };
  }
  function sum() {
    let left = product();
    for (let sign; (sign = next("+", "-")); ) {
      const [a, b, s] = [left, product(), sign];
      left = (i) => (s === "+" ? number(a(i)) + number(b(i)) : number(a(i)) - number(b(i)));
    }
    return left;
  }
  function product() {
    let left = signed();
    for (let sign; (sign = next("*", "/", "%")); ) {
      const [a, b, s] = [left, signed(), sign];
      left = (i) => {
        const [x, y] = [number(a(i)), number(b(i))];
        return s === "*" ? x * y : s === "/" ? x / y : ((x % y) + y) % y;
      };
    }
    return left;
  }
  function signed() {
    if (!next("-")) return atom();
    const value = signed();
    return (i) => -number(value(i));
  }
  function atom() {
    if (next("(")) {
      const value = or();
      if (!next(")")) throw new Error("a ) is missing");
      return value;
    }
    const token = list[at++];
    if (!token) throw new Error("the condition is not complete");
    if (token.kind === "value") return () => token.value;
    if (token.kind !== "name") throw new Error(`${token.kind} is out of place`);
    const column = columns[token.value];
    if (!column) throw new Error(`unknown column '${token.value}'; the columns are ${names.join(", ")}`);
    return (i) => column[i];
  }
  const result = or();
  if (at < list.length) throw new Error(`${list[at].value ?? list[at].kind} is out of place`);
  return (i) => Boolean(result(i));
}
