// What the page shows, kept in its address: a bookmark or a copied link opens the same view.

export const TABS = { charts: "Charts", scatter: "Scatter", settings: "Settings", log: "Log", faults: "Faults" };
const COLUMNS = ["state", "rounds", "score", "method", "data", "model", "partition", "clients", "seed", "age"];
const TEXTS = { q: "", state: "", sort: "age", group: "", axis: "round", heat: "tau", spread: "", x: "", y: "score" };

export const view = { runs: [], hidden: [], curves: [], columns: [...COLUMNS], tab: "charts", rising: true, from: null, to: null, smooth: 0, log: false, ...TEXTS };

export function readView() {
  const words = new URLSearchParams(location.hash.slice(1));
  const number = (key) => (words.get(key)?.trim() && Number.isFinite(+words.get(key)) ? +words.get(key) : null);
  for (const key of ["run", "hidden"]) view[key === "run" ? "runs" : key] = [...new Set(words.getAll(key))];
  view.curves = words.getAll("curve");
  view.columns = words.has("column") ? words.getAll("column") : [...COLUMNS];
  view.tab = words.get("tab") in TABS ? words.get("tab") : "charts";
  view.rising = words.get("falling") === null;
  view.log = words.has("log");
  view.smooth = Math.min(0.99, Math.max(0, number("smooth") ?? 0));
  for (const key of ["from", "to"]) view[key] = number(key);
  for (const [key, usual] of Object.entries(TEXTS)) view[key] = words.get(key) ?? usual;
}

export function writeView() {
  const pairs = [...view.runs.map((id) => ["run", id]), ...view.hidden.map((key) => ["hidden", key]), ...view.curves.map((name) => ["curve", name])];
  if (view.tab !== "charts") pairs.push(["tab", view.tab]);
  if (view.columns.join() !== COLUMNS.join()) pairs.push(...view.columns.map((key) => ["column", key]));
  if (!view.rising) pairs.push(["falling", ""]);
  if (view.log) pairs.push(["log", ""]);
  if (view.smooth) pairs.push(["smooth", view.smooth]);
  for (const key of ["from", "to"]) if (view[key] != null) pairs.push([key, view[key]]);
  for (const [key, usual] of Object.entries(TEXTS)) if (view[key] !== usual) pairs.push([key, view[key]]);
  history.replaceState(null, "", `${location.pathname}${location.search}#${new URLSearchParams(pairs)}`);
}
