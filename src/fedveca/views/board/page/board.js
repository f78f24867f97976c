// The board: asks for the list once a second while something runs, and for pictures when the chosen runs grew.

import { ask, make, of, percent } from "./words.js";
import { List } from "./list.js";
import { look, Picture } from "./picture.js";
import { faults, Log, Settings } from "./detail.js";

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
  chips();
  refresh();
}

function remember() {
  history.replaceState(null, "", `#${new URLSearchParams([...chosen.map((id) => ["run", id]), ["tab", tab]])}`);
}

function recall() {
  const told = new URLSearchParams(location.hash.slice(1));
  chosen = told.getAll("run");
  tab = told.get("tab") in TABS ? told.get("tab") : "picture";
}

function chips() {
  of("view").hidden = !chosen.length;
  const focus = [...of("chips").querySelectorAll("button")].indexOf(document.activeElement);
  of("chips").replaceChildren(...chosen.map((id, i) => {
    const { colour, dash } = look(i);
    const row = rows.find((r) => r.id === id);
    const sign = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    sign.setAttribute("width", 22);
    sign.setAttribute("height", 10);
    for (const [key, v] of Object.entries({ d: "M1 5h20", stroke: colour, "stroke-width": 3, "stroke-dasharray": { solid: "none", dash: "7 4", dot: "3 3" }[dash] ?? "7 3 2 3" })) line.setAttribute(key, v);
    sign.append(line);
    const toggle = () => { hidden.has(id) ? hidden.delete(id) : hidden.add(id); chips(); picture.hidden = hidden; picture.draw(); };
    return make("div", { class: "chip" },
      make("button", { type: "button", "aria-pressed": !hidden.has(id), title: hidden.has(id) ? "show" : "hide", onclick: toggle },
        sign, make("span", {}, make("bdi", {}, id)), make("em", {}, row ? percent(row.accuracy) : "")),
      make("button", { type: "button", class: "drop", "aria-label": `take ${id} away`, onclick: () => choose(id, false) }, "×"));
  }));
  if (focus >= 0) of("chips").querySelectorAll("button")[focus]?.focus();
}

function tabs() {
  const bar = document.querySelector(".tabs");
  const names = Object.keys(TABS);
  bar.replaceChildren(...names.map((name) => make("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-controls": name, "aria-selected": name === tab, tabindex: name === tab ? 0 : -1,
    onclick: () => turn(name),
  }, TABS[name])));
  bar.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) turn(names[(names.indexOf(tab) + step + names.length) % names.length], true);
  };
  for (const name of names) of(name).hidden = name !== tab;
}

function turn(name, focus) {
  tab = name;
  remember();
  tabs();
  if (focus) of(`tab-${name}`).focus();
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
      count(Object.values(answer.data.runs));
      if (more || Object.values(answer.data.runs).some((run) => run.share < 1)) setTimeout(refresh, 50);
    } else if (tab === "settings") await settings.show(chosen);
    else if (tab === "log") await log.show(chosen, rows);
    else await faults(chosen);
    drawn = sign();
  } catch (error) {
    if (mine === asked) wrong(error);
  }
}

function count(runs) {
  const total = runs.reduce((sum, run) => sum + run.faults + run.damaged, 0);
  of("tab-faults").textContent = total ? `Faults (${total})` : "Faults";
}

function wrong(error) {
  if (error.status === 404) { // a run that was moved or deleted
    chosen = chosen.filter((id) => rows.some((row) => row.id === id));
    remember();
    chips();
    drawn = "";
  } else {
    of("status").className = "lost";
    of("status").textContent = error instanceof TypeError ? "the board does not answer" : error.message;
  }
}

const sign = () => chosen.map((id) => { const r = rows.find((row) => row.id === id); return `${id} ${r?.rounds} ${r?.state} ${r?.changed}`; }).join("\n");

async function look_again() {
  clearTimeout(timer);
  let running = 0;
  try {
    const answer = await ask("runs", [], tag);
    if (answer) {
      ({ tag } = answer);
      rows = answer.runs;
      of("root").textContent = `\u200e${answer.root}`;
      if (!touched && !chosen.length && rows.length) chosen = [(rows.find((row) => row.state === "running") ?? rows[0]).id];
    }
    running = rows.filter((row) => row.state === "running").length;
    of("status").className = "";
    of("status").textContent = running ? `${running} running` : "nothing runs now";
    document.title = running ? `(${running}) FedVeca board` : "FedVeca board";
    if (answer || Date.now() % 10000 < BUSY) list.draw(rows, chosen);
    if (sign() !== drawn || answer) chips();
    if (sign() !== drawn && !picture.due().length) await refresh(); // a slow machine draws what it has first
  } catch (error) {
    wrong(error);
  }
  if (!document.hidden) timer = setTimeout(look_again, running ? BUSY : IDLE);
}

const THEMES = { auto: "◐", light: "☀", dark: "☾" };
function theme(wanted) {
  const dark = wanted === "dark" || (wanted === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  of("theme").replaceChildren(THEMES[wanted], make("span", {}, ` ${wanted}`));
  localStorage.setItem("fedveca-theme", wanted);
  chips();
  picture.draw();
}
const wanted = () => localStorage.getItem("fedveca-theme") ?? "auto";
of("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  theme(names[(names.indexOf(wanted()) + 1) % names.length]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(wanted()));
document.addEventListener("visibilitychange", () => document.hidden || look_again());
addEventListener("hashchange", () => { recall(); tabs(); chips(); list.draw(rows, chosen); refresh(); });
document.addEventListener("click", (event) => { if (!of("names").contains(event.target)) of("names").open = false; });

recall();
tabs();
theme(wanted());
look_again();
