// The board: asks for the list once a second while something runs, and for pictures when the chosen runs grew.

import { ask, byId, make } from "./dom.js";
import { formatValue, loadSchema } from "./format.js";
import { List } from "./list.js";
import { Picture, styleRun } from "./picture.js";
import { Log, Settings, showFaults } from "./detail.js";

const BUSY = 1000, IDLE = 2500;
const TABS = { picture: "Picture", settings: "Settings", log: "Log", faults: "Faults" };

let rows = [], tag = null, tab = "picture", chosen = [], hidden = new Set(), asked = 0, timer = null, drawn = "", touched = false;
const list = new List(choose), picture = new Picture(refresh), settings = new Settings(), log = new Log();

function choose(id, alone) {
  const among = chosen.includes(id);
  touched = true;
  chosen = alone ? [id] : among ? chosen.filter((other) => other !== id) : [...chosen, id];
  hidden = new Set([...hidden].filter((other) => chosen.includes(other)));
  if (alone && picture.window) picture.window = null;
  remember();
  list.draw(rows, chosen);
  drawChips();
  refresh();
}

function remember() {
  history.replaceState(null, "", `#${new URLSearchParams([...chosen.map((id) => ["run", id]), ["tab", tab]])}`);
}

function recall() {
  const words = new URLSearchParams(location.hash.slice(1));
  chosen = words.getAll("run");
  tab = words.get("tab") in TABS ? words.get("tab") : "picture";
}

function drawChips() {
  byId("view").hidden = !chosen.length;
  const focus = [...byId("chips").querySelectorAll("button")].indexOf(document.activeElement);
  byId("chips").replaceChildren(...chosen.map((id, i) => {
    const { colour, dash } = styleRun(i);
    const row = rows.find((r) => r.id === id);
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    svg.setAttribute("width", 22);
    svg.setAttribute("height", 10);
    for (const [key, v] of Object.entries({ d: "M1 5h20", stroke: colour, "stroke-width": 3, "stroke-dasharray": { solid: "none", dash: "7 4", dot: "3 3" }[dash] ?? "7 3 2 3" })) line.setAttribute(key, v);
    svg.append(line);
    const toggle = () => { hidden.has(id) ? hidden.delete(id) : hidden.add(id); drawChips(); picture.hidden = hidden; picture.draw(); };
    return make("div", { class: "chip" },
      make("button", { type: "button", "aria-pressed": !hidden.has(id), title: hidden.has(id) ? "show" : "hide", onclick: toggle },
        svg, make("span", {}, make("bdi", {}, id)), make("em", {}, row?.metric ? `${row.label} ${formatValue(row.metric, row.score)}` : "")),
      make("button", { type: "button", class: "drop", "aria-label": `remove ${id}`, onclick: () => choose(id, false) }, "×"));
  }));
  if (focus >= 0) byId("chips").querySelectorAll("button")[focus]?.focus();
}

function drawTabs() {
  const bar = document.querySelector(".tabs");
  const names = Object.keys(TABS);
  bar.replaceChildren(...names.map((name) => make("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-controls": name, "aria-selected": name === tab, tabindex: name === tab ? 0 : -1,
    onclick: () => openTab(name),
  }, TABS[name])));
  bar.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) openTab(names[(names.indexOf(tab) + step + names.length) % names.length], true);
  };
  for (const name of names) byId(name).hidden = name !== tab;
}

function openTab(name, focus) {
  tab = name;
  remember();
  drawTabs();
  if (focus) byId(`tab-${name}`).focus();
  refresh();
}

// What the chosen tab shows; only the last question's answer is drawn.
async function refresh() {
  if (!chosen.length) return;
  const mine = ++asked;
  try {
    if (tab === "picture") {
      const answer = await picture.fetch(chosen);
      if (mine !== asked) return;
      const more = picture.show(answer, hidden);
      countFaults(Object.values(answer.data.runs));
      if (more || Object.values(answer.data.runs).some((run) => run.share < 1)) setTimeout(refresh, 50);
    } else if (tab === "settings") await settings.show(chosen);
    else if (tab === "log") await log.show(chosen, rows);
    else await showFaults(chosen);
    drawn = stampRuns();
  } catch (error) {
    if (mine === asked) report(error);
  }
}

function countFaults(runs) {
  const total = runs.reduce((sum, run) => sum + run.faults + run.damaged, 0);
  byId("tab-faults").textContent = total ? `Faults (${total})` : "Faults";
}

function report(error) {
  if (error.status === 404) { // a run that was moved or deleted
    chosen = chosen.filter((id) => rows.some((row) => row.id === id));
    remember();
    drawChips();
    drawn = "";
  } else {
    byId("status").className = "lost";
    byId("status").textContent = error instanceof TypeError ? "the board does not answer" : error.message;
  }
}

const stampRuns = () => chosen.map((id) => { const r = rows.find((row) => row.id === id); return `${id} ${r?.rounds} ${r?.state} ${r?.changed}`; }).join("\n");

async function refreshList() {
  clearTimeout(timer);
  let running = 0;
  try {
    await loadSchema();
    const answer = await ask("runs", [], tag);
    if (answer) {
      ({ tag } = answer);
      rows = answer.runs;
      byId("root").textContent = `\u200e${answer.root}`;
      if (!touched && !chosen.length && rows.length) chosen = [(rows.find((row) => row.state === "running") ?? rows[0]).id];
    }
    running = rows.filter((row) => row.state === "running").length;
    byId("status").className = "";
    byId("status").textContent = running ? `${running} running` : "no run is running";
    document.title = running ? `(${running}) FedVeca board` : "FedVeca board";
    if (answer || Date.now() % 10000 < BUSY) list.draw(rows, chosen);
    if (stampRuns() !== drawn || answer) drawChips();
    if (stampRuns() !== drawn && !picture.due().length) await refresh(); // a slow machine draws what it has first
  } catch (error) {
    report(error);
  }
  if (!document.hidden) timer = setTimeout(refreshList, running ? BUSY : IDLE);
}

const THEMES = { auto: "◐", light: "☀", dark: "☾" };
function setTheme(wanted) {
  const dark = wanted === "dark" || (wanted === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").replaceChildren(THEMES[wanted], make("span", {}, ` ${wanted}`));
  localStorage.setItem("fedveca-theme", wanted);
  drawChips();
  picture.draw();
}
const wanted = () => localStorage.getItem("fedveca-theme") ?? "auto";
byId("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(wanted()) + 1) % names.length]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(wanted()));
document.addEventListener("visibilitychange", () => document.hidden || refreshList());
addEventListener("hashchange", () => { recall(); drawTabs(); drawChips(); list.draw(rows, chosen); refresh(); });
document.addEventListener("click", (event) => { if (!byId("names").contains(event.target)) byId("names").open = false; });

recall();
drawTabs();
setTheme(wanted());
refreshList();
