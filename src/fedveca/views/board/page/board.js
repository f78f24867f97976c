// The board: asks for the list once per second while something runs, and for charts when the chosen runs grew.

import { ask, byId, copier, make } from "./dom.js";
import { Charts, drawNotes, reportAddress } from "./charts.js";
import { Log, Settings, showFaults } from "./detail.js";
import { addQuantities, commonStart, count, cutName, folderOf, formatSpread, loadSchema, spread } from "./format.js";
import { groupRuns } from "./group.js";
import { List, MOST } from "./list.js";
import { loadLooks, sampleLine, styleLines } from "./look.js";
import { Scatter } from "./scatter.js";
import { readView, TABS, view, writeView } from "./view.js";

const BUSY = 1000, IDLE = 2500, FIRST_CHIPS = 14;

let rows = [], tag = null, asked = 0, timer = null, drawn = "", touched = false, all = false;
const list = new List(choose), charts = new Charts(refresh, report), scatter = new Scatter(choose), settings = new Settings(), log = new Log();
list.grouped = () => { view.hidden = []; writeView(); redraw(); };
list.changed = () => { if (view.tab === "scatter") refresh(); };

function choose(ids, { alone, on }) {
  touched = true;
  if (alone) { view.runs = ids; [view.from, view.to] = [null, null]; charts.recall(); }
  else if (on) view.runs = [...new Set([...view.runs, ...ids])];
  else view.runs = view.runs.filter((id) => !ids.includes(id));
  const many = view.runs.length - MOST;
  view.runs = view.runs.slice(0, MOST);
  view.hidden = view.hidden.filter((key) => makeLines().some((line) => line.key === key));
  say(many > 0 ? `The first ${MOST} runs are chosen; ${many} more are not.` : "");
  writeView();
  redraw();
}

const say = (text) => { byId("said").textContent = byId("limit").textContent = text; };

function redraw() {
  list.draw(rows);
  drawChips();
  refresh();
}

function recolour() {
  list.draw(rows);
  drawChips();
  refresh();
}

const chosenRuns = () => view.runs.map((id) => rows.find((row) => row.id === id)).filter(Boolean);

// What the charts draw: a line per chosen run, or per group of them.
function makeLines() {
  const runs = chosenRuns(), start = commonStart(runs.map((run) => run.id));
  const lines = view.group ? groupRuns(runs, view.group) : runs.map((run) => ({ key: run.id, label: run.id.slice(start), method: run.method, runs: [run] }));
  const styles = styleLines(lines);
  return lines.map((line) => ({ ...line, style: styles.get(line.key) }));
}

// id -> how a chosen run is called and drawn
function nameRuns(lines) {
  const start = commonStart(view.runs);
  return new Map(lines.flatMap((line) => line.runs.map((run) => [run.id, { label: run.id.slice(start), style: line.style }])));
}

function drawChips() {
  const lines = makeLines(), shown = all ? lines : lines.slice(0, FIRST_CHIPS);
  byId("view").hidden = !view.runs.length;
  const focus = [...byId("chips").querySelectorAll("button")].indexOf(document.activeElement);
  const more = lines.length > FIRST_CHIPS
    ? [make("button", { type: "button", class: "more", "aria-expanded": all, onclick: () => { all = !all; drawChips(); } }, all ? "fewer" : `${lines.length - FIRST_CHIPS} more`)] : [];
  byId("chips").replaceChildren(...shown.map(drawChip), ...more);
  if (focus >= 0) byId("chips").querySelectorAll("button")[focus]?.focus();
  const runs = chosenRuns(), damaged = runs.filter((run) => run.state === "damaged").length;
  byId("report").href = reportAddress(runs, false);
  byId("report-file").href = reportAddress(runs, true);
  byId("make-report").hidden = damaged === runs.length;
  byId("report").title = damaged ? `without ${count(damaged, "damaged run")}` : "opens in a new tab";
}

function drawChip(line) {
  const [first] = line.runs, hidden = view.hidden.includes(line.key), same = new Set(line.runs.map((run) => run.metric)).size === 1;
  const value = same && first.metric ? formatSpread(first.metric, spread(line.runs.map((run) => run.score))) : "";
  const text = value && !list.only ? `${first.label} ${value}` : value;
  const whole = view.group ? `${line.label}, ${count(line.runs.length, "run")}` : line.key;
  const toggle = () => {
    view.hidden = hidden ? view.hidden.filter((key) => key !== line.key) : [...view.hidden, line.key];
    writeView();
    drawChips();
    charts.draw();
  };
  return make("div", { class: "chip" },
    make("button", { type: "button", "aria-pressed": !hidden, "aria-label": view.group ? `${line.label} ${text}, ${count(line.runs.length, "run")}` : `${line.key} ${text}`, title: `${whole}: ${hidden ? "show" : "hide"}`, onclick: toggle },
      sampleLine(line.style), make("span", { class: "cut" }, ...cutName(line.label)), " ", make("em", { title: first.label }, text)),
    make("button", { type: "button", class: "drop", "aria-label": `remove ${whole}`, onclick: () => choose(line.runs.map((run) => run.id), { on: false }) }, "×"));
}

function drawTabs() {
  const bar = document.querySelector(".tabs"), names = Object.keys(TABS);
  if (!bar.children.length) {
    bar.append(...names.map((name) => make("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": name, onclick: () => openTab(name) }, TABS[name])));
    bar.addEventListener("keydown", (event) => {
      const at = { ArrowRight: names.indexOf(view.tab) + 1, ArrowLeft: names.indexOf(view.tab) - 1, Home: 0, End: -1 }[event.key];
      if (at !== undefined) { event.preventDefault(); openTab(names.at(at % names.length), true); }
    });
  }
  for (const name of names) {
    byId(`tab-${name}`).setAttribute("aria-selected", name === view.tab);
    byId(`tab-${name}`).tabIndex = name === view.tab ? 0 : -1;
    byId(name).hidden = name !== view.tab;
  }
}

function openTab(name, focus) {
  view.tab = name;
  writeView();
  drawTabs();
  if (focus) byId(`tab-${name}`).focus();
  refresh();
}

// What the chosen tab shows; only the last question's answer is drawn.
async function refresh() {
  const mine = ++asked;
  try {
    const lines = makeLines(), names = nameRuns(lines), ids = [...names.keys()];
    if (!lines.length) return;
    if (view.tab === "charts") {
      drawNotes(lines, charts.data);
      const answer = await charts.fetch(lines);
      if (mine !== asked) return;
      const more = charts.show(answer);
      drawNotes(lines, answer.data);
      countFaults(Object.values(answer.data.runs));
      if (more || Object.values(answer.data.runs).some((run) => run.share < 1)) setTimeout(refresh, 50);
    } else if (view.tab === "scatter") await scatter.show(list.shown, view.runs);
    else if (view.tab === "settings") await settings.show(ids, rows, names);
    else if (view.tab === "log") await log.show(ids, rows, names);
    else await showFaults(ids, names);
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
    view.runs = view.runs.filter((id) => rows.some((row) => row.id === id));
    writeView();
    drawChips();
    drawn = "";
  } else {
    byId("status").className = "lost";
    byId("status").textContent = error instanceof TypeError ? "the board does not answer" : error.message;
  }
}

const stampRuns = () => chosenRuns().map((run) => `${run.id} ${run.rounds} ${run.state} ${run.changed}`).join("\n");

// Rows as the list, the search and the groups need them.
function prepare({ runs, common, quantities }) {
  addQuantities(quantities);
  for (const run of runs) {
    run.all = Object.fromEntries(Object.entries({ ...common, ...run.settings }).filter(([, value]) => value != null));
    run.folder = folderOf(run.id);
    run.text = [run.id, run.method, run.data, run.model, run.partition, run.state, run.label, `seed ${run.seed}`].join(" ").toLowerCase();
  }
  return runs;
}

async function refreshList() {
  clearTimeout(timer);
  let running = 0;
  try {
    const [answer] = await Promise.all([ask("runs", [], tag), loadSchema()]);
    if (answer) {
      ({ tag } = answer);
      rows = prepare(answer);
      byId("root").textContent = `\u200e${answer.root}`;
      if (!touched && !view.runs.length && rows.length) view.runs = [(rows.find((row) => row.state === "running") ?? rows[0]).id];
      const known = view.runs.filter((id) => rows.some((row) => row.id === id));
      if (rows.length && known.length < view.runs.length && known.length) view.runs = known;
    }
    running = rows.filter((row) => row.state === "running").length;
    byId("status").className = "";
    byId("status").textContent = running ? `${running} running` : "no active runs";
    document.title = running ? `(${running}) FedVeca board` : "FedVeca board";
    if (answer || Date.now() % 10000 < BUSY) list.draw(rows);
    loadLooks(rows.map((row) => row.method), recolour); // nothing waits for it: the server's first answer takes a while
    if (stampRuns() !== drawn || answer) drawChips();
    if (stampRuns() !== drawn && !charts.figures.due().length) await refresh(); // a slow machine draws what it has first
  } catch (error) {
    report(error);
  }
  if (!document.hidden) timer = setTimeout(refreshList, running ? BUSY : IDLE);
}

const THEMES = { auto: "◐", light: "☀", dark: "☾" };
function setTheme(wanted) {
  const dark = wanted === "dark" || (wanted === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").replaceChildren(THEMES[wanted], make("span", {}, ` ${wanted}`), make("span", { class: "hidden" }, " colours"));
  localStorage.setItem("fedveca-theme", wanted);
  drawChips();
  drawn = "";
  if (rows.length) refresh();
}
const wanted = () => localStorage.getItem("fedveca-theme") ?? "auto";
byId("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(wanted()) + 1) % names.length]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(wanted()));
document.addEventListener("visibilitychange", () => document.hidden || refreshList());
addEventListener("hashchange", () => { readView(); charts.recall(); drawTabs(); redraw(); });
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  const menu = event.key === "Escape" && event.target.closest?.("details.menu[open]");
  if (menu) { menu.open = false; menu.querySelector("summary").focus(); }
});
byId("copy-link").replaceWith(Object.assign(copier(() => location.href, "Copy link", "Copy link to this view"), { id: "copy-link" }));

readView();
charts.recall();
drawTabs();
setTheme(wanted());
refreshList();
