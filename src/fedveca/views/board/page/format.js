// Recorded quantities as the server's schema describes them, and numbers and names as people read them.

import { ask, make } from "./dom.js";

export const AXES = { round: "round", steps: "local steps", rows: "gradient rows", bytes: "bytes sent", seconds: "seconds", clock: "device seconds", joules: "joules" };
const TOTALS = {
  total_steps: { label: "Local steps in total" }, total_seconds: { label: "Seconds in total" }, kept_round: { label: "Round of the kept model" },
};
const quantities = new Map();

export const addQuantities = (described) => Object.entries(described).forEach(([name, quantity]) => quantities.set(name, quantity));
export async function loadSchema() { if (!quantities.size) addQuantities(await ask("schema")); }

const describe = (name) => quantities.get(name) ?? { label: name.replaceAll("_", " "), symbol: "", formula: "", unit: "", ...TOTALS[name] };
export const boundOf = (name) => describe(name).condition?.[2] ?? null; // what the paper's theory asks for: a title, a sign and a bound
export const isShare = (name) => describe(name).unit === "share";

export function formatLabel(name) {
  const { label, symbol } = describe(name);
  return label.includes(symbol) ? label : `${label} ${symbol}`;
}

export function formatNote(name) {
  const { formula, at } = describe(name);
  return [formula, at === "start" && "at the start of the round"].filter(Boolean).join(", ");
}

export const brief = (v) => (v == null ? "–" : Math.abs(v) >= 1e5 || (v && Math.abs(v) < 1e-3) ? v.toExponential(2) : String(+v.toPrecision(4)));
export const formatValue = (name, v) => (isShare(name) && v != null ? `${(100 * v).toFixed(2)} %` : brief(v));
export const formatSpread = (name, { mean, std, n }) => (n < 2 || mean == null ? formatValue(name, mean)
  : isShare(name) ? `${(100 * mean).toFixed(2)} ± ${(100 * std).toFixed(2)} %` : `${brief(mean)} ± ${brief(std)}`);

export function spread(values) {
  const known = values.filter((v) => v != null), n = known.length;
  const mean = n ? known.reduce((a, b) => a + b, 0) / n : null;
  const std = n > 1 ? Math.sqrt(known.reduce((sum, v) => sum + (v - mean) ** 2, 0) / (n - 1)) : 0;
  return { mean, std, n };
}

export function formatSeconds(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export const count = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;

// Text of a value that a folder holds, whatever it is.
export function toText(v) {
  try { return String(v); } catch { return "invalid"; }
}

// Plotly reads tags in its texts; a folder's name is not a tag.
export const escapeTags = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

export const folderOf = (id) => id.slice(0, Math.max(0, id.lastIndexOf("/")));

// How many letters at the start of all ids say nothing about which is which; `ends` matches where a part ends.
export function commonStart(ids, ends = /[/_\-. ]/) {
  if (ids.length < 2) return ids.length ? folderOf(ids[0]).length + (ids[0].includes("/") ? 1 : 0) : 0;
  const first = ids[0], most = Math.min(...ids.map((id) => id.length)) - 1;
  let same = 0;
  while (same < most && ids.every((id) => id[same] === first[same])) same++;
  while (same > 0 && !ends.test(first[same - 1])) same--;
  return same;
}

// A name that is cut in its middle where there is no room for it: its start gives way, its end stays.
const END = 20;
export const cutName = (name) => (name.length < END + 6 ? [make("span", { class: "end" }, name)]
  : [make("span", { class: "start" }, name.slice(0, -END)), make("span", { class: "end" }, name.slice(-END))]);
