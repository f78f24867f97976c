// How lines look: a method's colour and dash, as in reports; several lines of one method differ in shade and marker.

import { ask, draw, make } from "./dom.js";

export const WIDTH = 2;
const SYMBOLS = ["", "circle", "square", "diamond", "triangle-up", "cross", "x", "star"];
const SHAPES = {
  circle: "M11 2a3.5 3.5 0 1 0 .01 0z", square: "M7.8 2.3h6.4v6.4h-6.4z", diamond: "M11 1l4.5 4.5-4.5 4.5-4.5-4.5z", "triangle-up": "M11 1.2l4.5 7.6h-9z",
  cross: "M9.5 1.5h3v2.5h2.5v3h-2.5v2.5h-3v-2.5h-2.5v-3h2.5z", x: "M8.5 1.5l2.5 2.5 2.5-2.5 1.5 1.5-2.5 2.5 2.5 2.5-1.5 1.5-2.5-2.5-2.5 2.5-1.5-1.5 2.5-2.5-2.5-2.5z",
  star: "M11 .8l1.5 3.1 3.4.4-2.5 2.3.7 3.4-3.1-1.7-3.1 1.7.7-3.4-2.5-2.3 3.4-.4z",
};
const SHADES = [0, 0.3, 0.5]; // of the ink in a further line's colour
const STORED = "fedveca-looks"; // of former visits: the server's first answer takes a while
const looks = new Map(recall()), asked = new Set(); // method -> {title, colour, dash}; those that were asked for

const nameOf = (method) => String(method ?? "");

function recall() {
  try {
    const stored = JSON.parse(localStorage.getItem(STORED) ?? "[]");
    return stored.filter(([name, look]) => typeof name === "string" && /^#[0-9a-f]{6}$/i.test(look.colour) && Array.isArray(look.dash));
  } catch { return []; }
}

// Asks once about each method; `changed` is called where one is not as it was known.
export function loadLooks(methods, changed) {
  const fresh = [...new Set(methods.map(nameOf))].filter((name) => !asked.has(name));
  for (let i = 0; i < fresh.length; i += 64) learn(fresh.slice(i, i + 64), changed);
}

async function learn(names, changed) {
  names.forEach((name) => asked.add(name));
  try {
    const before = JSON.stringify([...looks]);
    for (const [name, look] of Object.entries(await ask("looks", names.map((name) => ["method", name])))) looks.set(name, look);
    if (JSON.stringify([...looks]) === before) return;
    localStorage.setItem(STORED, JSON.stringify([...looks].slice(-64)));
    changed();
  } catch {
    names.forEach((name) => asked.delete(name)); // the list says that the board does not answer; asked again with its next answer
  }
}

const lookOf = (method) => looks.get(nameOf(method)) ?? { title: nameOf(method) || "unknown method", colour: "#666666", dash: [] };
export const titleOf = (method) => lookOf(method).title;

const parse = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const print = (rgb) => `#${rgb.map((v) => Math.min(255, Math.round(v)).toString(16).padStart(2, "0")).join("")}`;
const isDark = () => document.documentElement.dataset.theme === "dark";

// On dark paper a colour is mixed with white until it is bright enough, as in reports.
function lighten(rgb) {
  const bright = () => rgb.map((v) => (v / 255) ** 2.2).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  while (bright() < 0.3) rgb = rgb.map((v) => Math.ceil(v + 0.1 * (255 - v)));
  return rgb;
}

// Lines [{key, method}] in their order -> key -> {colour, dash, symbol}.
export function styleLines(lines) {
  const dark = isDark(), seen = new Map(), out = new Map();
  for (const { key, method } of lines) {
    const nth = seen.get(nameOf(method)) ?? 0, { colour, dash } = lookOf(method);
    seen.set(nameOf(method), nth + 1);
    const base = dark ? lighten(parse(colour)) : parse(colour), share = SHADES[nth % SHADES.length];
    const shade = base.map((v) => v + share * ((dark ? 255 : 0) - v));
    out.set(key, { colour: print(shade), dash, symbol: SYMBOLS[nth % SYMBOLS.length] });
  }
  return out;
}

export const plotlyDash = (dash) => (dash.length ? dash.map((v) => `${v * WIDTH}px`).join(",") : "solid");

// A short piece of a line, as the charts draw it.
export function sampleLine({ colour, dash, symbol }) {
  const parts = [draw("path", { d: "M0 5.5h22", stroke: colour, "stroke-width": 2.5, "stroke-dasharray": dash.map((v) => v * WIDTH).join(" ") || "none" })];
  if (symbol) parts.push(draw("path", { d: SHAPES[symbol], fill: colour }));
  return draw("svg", { width: 22, height: 11, viewBox: "0 0 22 11", "aria-hidden": "true" }, ...parts);
}

// A name behind its line.
export const labelLine = (name, style) => make("span", { class: "line", title: name }, sampleLine(style), make("bdi", {}, name));
