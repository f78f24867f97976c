// Numbers and names as people read them, and elements without a line of HTML in a string.

export const NAMES = {
  test_accuracy: ["Test accuracy", "share of test rows, after the round"],
  test_loss: ["Test loss", "after the round"],
  train_loss: ["Training loss", "F(w_k), at the start of the round"],
  tau_k: ["Mean local steps", "τ_k, weighted by rows"],
  premise: ["Premise", "η τ_k L; Theorem 1 asks for at least 1"],
  L: ["Smoothness", "L, the largest seen so far"],
  seconds: ["Seconds a round", ""],
  bytes_up: ["Bytes up", "a round"],
  bytes_down: ["Bytes down", "a round"],
  accepted: ["Accepted", "1 where the round was kept"],
};
export const PER_CLIENT = {
  tau: "local steps τ", A: "A = η β² δ", beta: "smoothness β", delta: "deviation δ",
};
export const AXES = { round: "round", steps: "local steps", bytes: "bytes sent", seconds: "seconds" };

export const share = (name) => /accuracy/.test(name);
export const percent = (v) => (v == null ? "–" : `${(100 * v).toFixed(2)} %`);
export const brief = (v) => (v == null ? "–" : Math.abs(v) >= 1e5 || (v && Math.abs(v) < 1e-3) ? v.toExponential(2) : String(+v.toPrecision(4)));
export const value = (name, v) => (share(name) ? percent(v) : brief(v));

export function span(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 129600) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

// Text of a value that a folder holds, whatever it is.
export function text(v) {
  try { return String(v); } catch { return "invalid"; }
}

// Plotly reads tags in its texts; a folder's name is no tag.
export const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, v] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), v);
    else if (key.startsWith("aria-")) element.setAttribute(key, v);
    else if (v === true) element.setAttribute(key, "");
    else if (v !== false && v != null) element.setAttribute(key, v);
  }
  element.append(...children);
  return element;
}

export const of = (id) => document.getElementById(id);

// Asks the server. With a tag: null when the answer is the one that bore the tag.
export async function ask(what, pairs = [], tag = null) {
  const address = `api/${what}?${new URLSearchParams(pairs)}`;
  const response = await fetch(address, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
  if (response.status === 304) return null;
  const content = await response.json().catch(() => ({ error: response.statusText }));
  if (!response.ok) throw Object.assign(new Error(content.error), { status: response.status });
  return Object.defineProperty(content, "tag", { value: response.headers.get("ETag") });
}
