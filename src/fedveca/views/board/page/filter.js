// What the search box asks: words, and comparisons such as lr<=0.05 or method!=fedavg.

const COMPARISON = /^([^\s<>!=]+)(<=|>=|!=|=|<|>)(.+)$/;
const ALIASES = { folder: (run) => run.folder, name: (run) => run.id, accuracy: (run) => run.values.test_accuracy ?? (run.metric === "test_accuracy" ? run.score : undefined) };

// A run's value under a name: a field of the list, a setting, or a recorded quantity.
export function valueOf(run, name) {
  if (name in ALIASES) return ALIASES[name](run);
  if (name === "age") return Date.now() / 1000 - run.began;
  if (["id", "state", "rounds", "score", "loss", "metric"].includes(name)) return run[name];
  return Object.hasOwn(run.all, name) ? run.all[name] : Object.hasOwn(run.values, name) ? run.values[name] : undefined;
}

const toNumber = (text) => (/^[-+]?[\d.]+(e[-+]?\d+)?%$/i.test(text) ? parseFloat(text) / 100 : text === "" ? NaN : Number(text));

// {fits: (run) => boolean, unknown: names that no run has}
export function parseFilter(text, runs) {
  const words = text.trim().replaceAll(/\s*(<=|>=|!=|=|<|>)\s*/g, "$1").split(/\s+/).filter(Boolean);
  const unknown = [];
  const tests = words.map((word) => {
    const [, name, sign, wanted] = COMPARISON.exec(word) ?? [];
    if (!sign) return (run) => run.text.includes(word.toLowerCase());
    const key = runs.some((run) => valueOf(run, name) !== undefined) ? name : name.toLowerCase();
    if (runs.length && runs.every((run) => valueOf(run, key) === undefined)) unknown.push(name);
    return compare(key, sign, wanted.toLowerCase(), runs);
  });
  return { fits: (run) => tests.every((test) => test(run)), unknown };
}

function compare(key, sign, wanted, runs) {
  const number = toNumber(wanted);
  const equals = (run) => {
    const value = valueOf(run, key);
    return typeof value === "number" && !Number.isNaN(number) ? value === number : String(value ?? "").toLowerCase() === wanted;
  };
  if (sign === "!=") return (run) => valueOf(run, key) != null && !equals(run);
  if (sign === "=") { // the start of a word is enough while no run has exactly this value
    return runs.some(equals) ? equals : (run) => String(valueOf(run, key) ?? "").toLowerCase().startsWith(wanted);
  }
  return (run) => {
    const value = valueOf(run, key);
    if (typeof value !== "number" || Number.isNaN(number)) return false;
    return { "<": value < number, ">": value > number, "<=": value <= number, ">=": value >= number }[sign];
  };
}
