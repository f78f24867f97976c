// The table of runs: search, states, sorting, choosing. Rows stay and are changed in place.

import { byId, make } from "./dom.js";
import { formatSeconds, formatValue } from "./format.js";

const STATES = ["running", "finished", "stopped", "diverged", "quiet", "invalid"];
const FIRST = 200; // rows drawn before "show all"
const COLUMNS = [
  ["", null],
  ["run", (r) => r.id.toLowerCase()],
  ["state", (r) => STATES.indexOf(r.state)],
  ["rounds", (r) => r.rounds],
  ["score", (r) => (r.better === "lower" ? r.score : -r.score), "right"], // the best first, within one metric
  ["method", (r) => r.method ?? ""],
  ["data", (r) => r.data ?? ""],
  ["model", (r) => r.model ?? ""],
  ["partition", (r) => r.partition ?? ""],
  ["clients", (r) => r.clients ?? 0, "right"],
  ["seed", (r) => r.seed ?? 0, "right"],
  ["age", (r) => -r.began, "right"],
];
const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

export class List {
  constructor(choose) {
    this.choose = choose; // (id, alone) => void
    this.runs = [];
    this.rows = new Map();
    this.state = "";
    this.sort = ["age", 1];
    this.whole = false;
    this.chosen = [];
    const head = document.querySelector("#list thead tr");
    for (const [name, key, side] of COLUMNS) {
      const button = key && make("button", { type: "button", onclick: () => this.sortBy(name) }, name);
      head.append(make("th", { scope: "col", class: side, "data-name": name }, button ?? make("span", { class: "hidden" }, "chosen")));
    }
    for (const state of ["", ...STATES]) {
      byId("states").append(make("button", {
        type: "button", "data-state": state, "aria-pressed": state === "", onclick: () => { this.state = state; this.draw(); },
      }, state || "all"));
    }
    byId("search").addEventListener("input", () => this.draw());
    byId("more").addEventListener("click", () => { this.whole = true; this.draw(); });
    document.querySelector("#list tbody").addEventListener("keydown", (event) => this.walk(event));
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) {
        event.preventDefault();
        byId("search").focus();
      } else if (event.key === "Escape" && event.target === byId("search")) {
        byId("search").value = "";
        this.draw();
      }
    });
  }

  sortBy(name) {
    this.sort = [name, this.sort[0] === name ? -this.sort[1] : name === "rounds" ? -1 : 1];
    this.draw();
  }

  walk(event) {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const next = step && event.target.closest("tr")?.[step];
    if (next) {
      event.preventDefault();
      next.querySelector(event.target.tagName === "INPUT" ? "input" : "button").focus();
    }
  }

  search() {
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (run) => words.every((word) => {
      const [key, wanted] = word.split("=");
      return wanted !== undefined && key in run ? String(run[key]).toLowerCase().startsWith(wanted) : run.text.includes(word);
    });
    const scores = this.sort[0] === "score";
    const key = COLUMNS.find(([name]) => name === this.sort[0])[1];
    return this.runs
      .filter((run) => (!this.state || run.state === this.state) && fits(run))
      .map((run) => [key(run), run])
      .sort(([a, x], [b, y]) => (scores && (compare(x.score == null, y.score == null) || compare(x.metric, y.metric)))
        || this.sort[1] * compare(a, b) || y.began - x.began || compare(x.id, y.id))
      .map(([, run]) => run);
  }

  draw(runs = this.runs, chosen = this.chosen) {
    this.runs = runs;
    this.chosen = chosen;
    for (const run of runs) {
      run.text ??= [run.id, run.method, run.data, run.model, run.partition, run.state, run.label, `seed ${run.seed}`].join(" ").toLowerCase();
    }
    const shown = this.search();
    const scored = runs.filter((run) => run.metric);
    const only = scored.every((run) => run.metric === scored[0].metric) ? scored[0] : null; // the one metric of all runs
    const drawn = this.whole ? shown : shown.slice(0, FIRST);
    const body = document.querySelector("#list tbody");
    const ids = new Set(drawn.map((run) => run.id));
    for (const [id, row] of this.rows) {
      if (!ids.has(id)) { row.element.remove(); this.rows.delete(id); }
    }
    let at = body.firstElementChild;
    for (const run of drawn) {
      const row = this.rows.get(run.id) ?? this.row(run.id);
      this.fill(row, run);
      if (row.element === at) at = at.nextElementSibling;
      else body.insertBefore(row.element, at);
    }
    for (const head of document.querySelectorAll("#list th")) {
      const mine = head.dataset.name === this.sort[0];
      const rising = this.sort[1] > 0 === (this.sort[0] !== "score" || only?.better === "lower");
      if (mine) head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    document.querySelector("#list th[data-name=score] button").textContent = only?.label ?? "score";
    byId("list").classList.toggle("one-metric", only != null);
    for (const button of byId("states").children) {
      button.setAttribute("aria-pressed", button.dataset.state === this.state);
    }
    byId("count").textContent = shown.length === runs.length ? `${runs.length} runs` : `${shown.length} of ${runs.length} runs`;
    byId("none").hidden = shown.length > 0;
    byId("none").textContent = runs.length ? "No run matches." : "There are no runs yet. A run appears here as soon as `fedveca run` starts it.";
    byId("more").hidden = drawn.length === shown.length;
    byId("more").textContent = `Show all ${shown.length}`;
  }

  row(id) {
    const box = make("input", { type: "checkbox", "aria-label": `compare ${id} with the others`, onchange: () => this.choose(id, false) });
    const name = make("button", { type: "button", title: id, onclick: () => this.choose(id, true) }, id);
    const cells = COLUMNS.map(([, , side]) => make("td", { class: side }));
    cells[0].append(box);
    cells[0].className = "pick";
    cells[1].append(name);
    cells[1].className = "name";
    cells[3].className = "going";
    cells[4].className = "right score";
    cells[2].className = "what";
    const row = { element: make("tr", { "data-id": id }, ...cells), box, cells, texts: [] };
    this.rows.set(id, row);
    return row;
  }

  fill(row, run) {
    const chosen = this.chosen.includes(run.id);
    row.box.checked = chosen;
    row.element.classList.toggle("chosen", chosen);
    const texts = [
      null, null, run.state, `${run.rounds}/${run.of}/${run.left}/${run.state}`, `${formatValue(run.metric, run.score)} ${run.label}`, run.method, run.data, run.model,
      run.partition, run.clients, run.seed, formatSeconds(Date.now() / 1000 - run.began),
    ];
    texts.forEach((text, i) => {
      if (i < 2 || row.texts[i] === text) return;
      if (i === 2) row.cells[i].replaceChildren(make("span", { class: `state ${run.state}`, title: run.why || null }, run.state));
      else if (i === 3) row.cells[i].replaceChildren(drawProgress(run));
      else if (i === 4) row.cells[i].replaceChildren(formatValue(run.metric, run.score), make("small", {}, ` ${run.label}`));
      else row.cells[i].textContent = text ?? "–";
    });
    row.texts = texts;
  }
}

function drawProgress(run) {
  const part = run.of ? Math.min(1, run.rounds / run.of) : 0;
  const left = run.state === "running" && run.left != null ? `, ${formatSeconds(run.left)} left` : "";
  const bar = make("i", {});
  bar.style.width = `${100 * part}%`;
  return make("span", { class: "progress" }, bar, make("b", {}, `${run.rounds}${run.of ? ` / ${run.of}` : ""}${left}`));
}
