// Recorded quantities as the server's schema describes them, and numbers as people read them.

import { ask } from "./dom.js";

export const AXES = { round: "round", steps: "local steps", bytes: "bytes sent", seconds: "seconds" };
const quantities = new Map();

export const addQuantities = (described) => Object.entries(described).forEach(([name, quantity]) => quantities.set(name, quantity));
export async function loadSchema() { if (!quantities.size) addQuantities(await ask("schema")); }

const describe = (name) => quantities.get(name) ?? { label: name, symbol: "", formula: "", unit: "" };
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

export function formatSeconds(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

// Text of a value that a folder holds, whatever it is.
export function toText(v) {
  try { return String(v); } catch { return "invalid"; }
}

// Plotly reads tags in its texts; a folder's name is not a tag.
export const escapeTags = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
