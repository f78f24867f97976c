// The table of runs: search, states, sorting, choosing. Rows are kept and changed in place.

import { make, of, percent, span } from "./words.js";

const STATES = ["running", "finished", "stopped", "killed", "quiet", "invalid"];
const FIRST = 200; // rows drawn before "show all"
const COLUMNS = [
  ["", null],
  ["run", (r) => r.id.toLowerCase()],
  ["state", (r) => STATES.indexOf(r.state)],
  ["rounds", (r) => r.rounds],
  ["accuracy", (r) => r.accuracy ?? -1, "right"],
  ["method", (r) => r.method ?? ""],
  ["data", (r) => r.data ?? ""],
  ["model", (r) => r.model ?? ""],
  ["partition", (r) => r.partition ?? ""],
  ["clients", (r) => r.clients ?? 0, "right"],
  ["seed", (r) => r.seed ?? 0, "right"],
  ["age", (r) => -r.began, "right"],
];
const DOWN_FIRST = ["accuracy", "rounds"];

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
      of("states").append(make("button", {
        type: "button", "data-state": state, "aria-pressed": state === "", onclick: () => { this.state = state; this.draw(); },
      }, state || "all"));
    }
    of("search").addEventListener("input", () => this.draw());
    of("more").addEventListener("click", () => { this.whole = true; this.draw(); });
    document.querySelector("#list tbody").addEventListener("keydown", (event) => this.walk(event));
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) {
        event.preventDefault();
        of("search").focus();
      } else if (event.key === "Escape" && event.target === of("search")) {
        of("search").value = "";
        this.draw();
      }
    });
  }

  sortBy(name) {
    const down = DOWN_FIRST.includes(name) ? -1 : 1;
    this.sort = this.sort[0] === name ? [name, -this.sort[1]] : [name, down];
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

  shown() {
    const words = of("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (run) => words.every((word) => {
      const [key, wanted] = word.split("=");
      return wanted !== undefined && key in run ? String(run[key]).toLowerCase().startsWith(wanted) : run.text.includes(word);
    });
    const key = COLUMNS.find(([name]) => name === this.sort[0])[1];
    return this.runs
      .filter((run) => (!this.state || run.state === this.state) && fits(run))
      .map((run) => [key(run), run])
      .sort(([a, x], [b, y]) => this.sort[1] * (a < b ? -1 : a > b ? 1 : 0) || y.began - x.began || (x.id < y.id ? -1 : 1))
      .map(([, run]) => run);
  }

  draw(runs = this.runs, chosen = this.chosen) {
    this.runs = runs;
    this.chosen = chosen;
    for (const run of runs) {
      run.text ??= [run.id, run.method, run.data, run.model, run.partition, run.state, `seed ${run.seed}`].join(" ").toLowerCase();
    }
    const shown = this.shown();
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
      if (mine) head.setAttribute("aria-sort", this.sort[1] > 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    for (const button of of("states").children) {
      button.setAttribute("aria-pressed", button.dataset.state === this.state);
    }
    of("count").textContent = shown.length === runs.length ? `${runs.length} runs` : `${shown.length} of ${runs.length} runs`;
    of("none").hidden = shown.length > 0;
    of("none").textContent = runs.length ? "No run is like that." : "No run is here yet. It appears as soon as `fedveca run` writes one.";
    of("more").hidden = drawn.length === shown.length;
    of("more").textContent = `Show all ${shown.length}`;
  }

  row(id) {
    const box = make("input", { type: "checkbox", "aria-label": `lay ${id} over the others`, onchange: () => this.choose(id, false) });
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
      null, null, run.state, `${run.rounds}/${run.of}/${run.left}/${run.state}`, percent(run.accuracy), run.method, run.data, run.model,
      run.partition, run.clients, run.seed, span(Date.now() / 1000 - run.began),
    ];
    texts.forEach((text, i) => {
      if (i < 2 || row.texts[i] === text) return;
      if (i === 2) row.cells[i].replaceChildren(make("span", { class: `state ${run.state}`, title: run.why || null }, run.state));
      else if (i === 3) row.cells[i].replaceChildren(progress(run));
      else row.cells[i].textContent = text ?? "–";
    });
    row.texts = texts;
  }
}

function progress(run) {
  const part = run.of ? Math.min(1, run.rounds / run.of) : 0;
  const left = run.state === "running" && run.left != null ? `, ${span(run.left)} left` : "";
  const bar = make("i", {});
  bar.style.width = `${100 * part}%`;
  return make("span", { class: "progress" }, bar, make("b", {}, `${run.rounds}${run.of ? ` / ${run.of}` : ""}${left}`));
}
