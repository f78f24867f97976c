// The table of runs: search, states, groups, columns, sorting, choosing. Rows stay and are changed in place.

import { byId, make } from "./dom.js";
import { parseFilter } from "./filter.js";
import { commonStart, count, cutName, formatLabel, formatSeconds, formatSpread, formatValue, spread, toText } from "./format.js";
import { differing, groupRuns } from "./group.js";
import { view, writeView } from "./view.js";

const STATES = ["running", "paused", "finished", "diverged", "damaged", "inactive"];
const FIRST = 200; // rows drawn before "show all"
export const MOST = 64; // runs that are chosen at a time, as many as the server answers for
const VALUE = "value."; // begins the columns of recorded quantities
const compare = (a, b) => (a == null) - (b == null) || (a < b ? -1 : a > b ? 1 : 0); // what is missing comes last
const score = (run) => (run.better === "lower" ? run.score : run.score == null ? null : -run.score); // the best first
const showSetting = (value) => (value == null ? "–" : value === "" ? '""' : toText(value));

// What a column shows of a run and sorts by.
function column(key) {
  if (key === "run") return { key, label: "run", sort: (run) => run.id.toLowerCase() };
  if (key === "state") return { key, label: "state", style: "what", sort: (run) => STATES.indexOf(run.state) };
  if (key === "rounds") return { key, label: "rounds", style: "going", sort: (run) => run.rounds };
  if (key === "score") return { key, label: "score", style: "right score", sort: score };
  if (key === "age") return { key, label: "age", style: "right", sort: (run) => -run.began, text: (run) => formatSeconds(Date.now() / 1000 - run.began) };
  if (key.startsWith(VALUE)) {
    const name = key.slice(VALUE.length);
    return { key, label: formatLabel(name), style: "right", sort: (run) => run.values[name], text: (run) => formatValue(name, run.values[name]) };
  }
  return { key, label: key, style: "setting", sort: (run) => run.all[key], text: (run) => showSetting(run.all[key]) };
}

export class List {
  constructor(choose) {
    this.choose = choose; // (ids, {alone, on}) => void
    this.runs = [];
    this.rows = new Map();
    this.open = new Set(); // groups whose runs are shown
    this.whole = false;
    for (const state of ["", ...STATES]) {
      byId("states").append(make("button", {
        type: "button", "data-state": state, "aria-pressed": state === "", onclick: () => { view.state = state; this.change(); },
      }, state || "all"));
    }
    byId("search").addEventListener("input", () => { view.q = byId("search").value; this.change(); });
    byId("group").addEventListener("change", () => { view.group = byId("group").value; this.open.clear(); this.change(); this.grouped(); });
    byId("more").addEventListener("click", () => { this.whole = true; this.draw(); });
    document.querySelector("#list tbody").addEventListener("keydown", (event) => this.walk(event));
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) {
        event.preventDefault();
        byId("search").focus();
      } else if (event.key === "Escape" && event.target === byId("search")) {
        byId("search").value = view.q = "";
        this.change();
      }
    });
  }

  grouped() {} // the board redraws its charts

  change() {
    writeView();
    this.draw();
    this.changed?.();
  }

  sortBy(key) {
    view.rising = view.sort === key ? !view.rising : key !== "rounds";
    view.sort = key;
    this.change();
  }

  walk(event) {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    const next = step && event.target.closest("tr")?.[step];
    if (next) {
      event.preventDefault();
      next.querySelector(event.target.tagName === "INPUT" ? "input" : "button").focus();
    }
  }

  // The runs that the search and the state let through, sorted.
  search() {
    const { fits, unknown } = parseFilter(view.q, this.runs);
    this.unknown = unknown;
    const by = column(view.sort), side = view.rising ? 1 : -1;
    return this.runs
      .filter((run) => (!view.state || run.state === view.state) && fits(run))
      .map((run) => [by.sort(run) ?? null, run])
      .sort(([a, x], [b, y]) => (view.sort === "score" && (compare(x.score, null) - compare(y.score, null) || compare(x.metric, y.metric)))
        || (a == null || b == null ? compare(a, b) : side * compare(a, b)) || y.began - x.began || compare(x.id, y.id))
      .map(([, run]) => run);
  }

  draw(runs = this.runs) {
    this.runs = runs;
    this.shown = this.search();
    const scored = runs.filter((run) => run.metric);
    this.only = scored.every((run) => run.metric === scored[0].metric) ? scored[0] : null; // the one metric of all runs
    this.start = commonStart(runs.map((run) => run.id), /\//);
    const groups = view.group ? groupRuns(this.shown, view.group) : [];
    const items = view.group
      ? groups.flatMap((group) => [{ key: `group ${group.key}`, group }, ...(this.open.has(group.key) ? group.runs.map((run) => ({ key: run.id, run })) : [])])
      : this.shown.map((run) => ({ key: run.id, run }));
    const drawn = this.whole ? items : items.slice(0, FIRST);
    this.offerColumns();
    this.offerGroups();
    this.drawHead();
    const body = document.querySelector("#list tbody");
    const keys = new Set(drawn.map((item) => item.key));
    for (const [key, row] of this.rows) {
      if (!keys.has(key)) { row.element.remove(); this.rows.delete(key); }
    }
    let at = body.firstElementChild;
    for (const item of drawn) {
      const row = this.rows.get(item.key) ?? this.row(item);
      if (item.run) this.fill(row, item.run);
      else this.fillGroup(row, item.group);
      if (row.element === at) at = at.nextElementSibling;
      else body.insertBefore(row.element, at);
    }
    byId("list").classList.toggle("one-metric", this.only != null);
    byId("list").classList.toggle("grouped", view.group !== "");
    for (const button of byId("states").children) {
      const { state } = button.dataset;
      button.setAttribute("aria-pressed", state === view.state);
      button.hidden = state !== "" && state !== view.state && !runs.some((run) => run.state === state);
    }
    if (byId("search").value !== view.q) byId("search").value = view.q;
    byId("count").textContent = (this.shown.length === runs.length ? count(runs.length, "run") : `${this.shown.length} of ${count(runs.length, "run")}`)
      + (view.group ? ` in ${count(groups.length, "group")}` : "") + (view.runs.length > 1 ? `, ${view.runs.length} chosen` : "");
    byId("none").hidden = this.shown.length > 0;
    byId("none").replaceChildren(...(runs.length
      ? ["No matching runs.", ...this.unknown.map((name) => ` No run has a setting or a recorded quantity “${name}”.`)]
      : ["There are no runs yet. A run appears here as soon as ", make("code", {}, "fedveca run"), " starts it."]));
    byId("more").hidden = drawn.length === items.length;
    byId("more").textContent = `Show all ${items.length}`;
  }

  drawHead() {
    const stamp = JSON.stringify([view.columns, this.only?.label]);
    if (this.head !== stamp) {
      this.head = stamp;
      this.columns = [...new Set(view.columns)].filter((key) => key !== "run").map(column);
      for (const row of this.rows.values()) row.element.remove();
      this.rows.clear();
      this.all = make("input", { type: "checkbox", "aria-label": "choose all shown runs", onchange: () => this.choose(this.shown.map((run) => run.id), { on: this.all.checked }) });
      const heads = [column("run"), ...this.columns].map(({ key, label, style }) => make("th", { scope: "col", class: style, "data-name": key },
        make("button", { type: "button", onclick: () => this.sortBy(key) }, key === "score" ? this.only?.label ?? "score" : label)));
      document.querySelector("#list thead tr").replaceChildren(make("th", { scope: "col", class: "pick" }, this.all), ...heads);
    }
    for (const head of document.querySelectorAll("#list th[data-name]")) {
      const rising = view.rising === (view.sort !== "score" || this.only?.better === "lower");
      if (head.dataset.name === view.sort) head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    const among = this.shown.filter((run) => view.runs.includes(run.id)).length;
    this.all.checked = among > 0 && among === this.shown.length;
    this.all.indeterminate = among > 0 && among < this.shown.length;
  }

  // The boxes of the chooser; drawn anew only where there are others.
  offerColumns() {
    const settings = [...new Set(this.runs.flatMap((run) => Object.keys(run.all)))].sort();
    const values = [...new Set(this.runs.flatMap((run) => Object.keys(run.values)))].sort();
    const parts = { "": ["state", "rounds", "score", "age"], Settings: settings, Recorded: values.map((name) => VALUE + name) };
    const box = document.querySelector("#columns div"), stamp = JSON.stringify([parts, view.columns]);
    if (box.dataset.stamp === stamp) return;
    box.dataset.stamp = stamp;
    const order = Object.values(parts).flat();
    const tick = (key) => make("label", {}, make("input", {
      type: "checkbox", value: key, checked: view.columns.includes(key), onchange: (event) => {
        const without = view.columns.filter((other) => other !== key);
        view.columns = event.target.checked ? [...without, key] : without;
        this.change();
        document.querySelector(`#columns input[value="${CSS.escape(key)}"]`)?.focus();
      },
    }), column(key).label);
    box.replaceChildren(...Object.entries(parts).flatMap(([title, keys]) => [
      ...(title && keys.length ? [make("p", { class: "part" }, title)] : []), ...keys.filter((key) => order.includes(key)).map(tick),
    ]));
  }

  offerGroups() {
    const names = ["method", ...differing(this.runs).filter((name) => !["method", "seed"].includes(name)).sort()];
    if (view.group && !["folder", "seeds", ...names].includes(view.group)) names.push(view.group);
    if (byId("group").dataset.names !== names.join()) {
      byId("group").dataset.names = names.join();
      const fixed = [["", "nothing"], ["seeds", "all settings but the seed"], ["folder", "folder"]];
      byId("group").replaceChildren(...[...fixed, ...names.map((name) => [name, name])].map(([value, label]) => make("option", { value }, label)));
    }
    byId("group").value = view.group;
  }

  row({ key, run, group }) {
    const name = make("button", { type: "button" }), box = make("input", { type: "checkbox" });
    const cells = this.columns.map(({ style }) => make("td", { class: style }));
    const element = make("tr", run ? { "data-id": run.id } : { class: "group", "data-group": group.label },
      make("td", { class: "pick" }, box), make("td", { class: "name" }, name), ...cells);
    const row = { element, box, name, cells, texts: [] };
    if (run) {
      box.setAttribute("aria-label", `compare ${run.id} with the others`);
      box.addEventListener("change", () => this.choose([run.id], { on: box.checked }));
      name.addEventListener("click", () => this.choose([run.id], { alone: true }));
      name.setAttribute("aria-label", run.id);
      name.title = run.id;
    } else {
      box.addEventListener("change", () => this.choose(row.group.runs.map((r) => r.id), { on: box.checked }));
      name.addEventListener("click", () => { this.open.has(row.group.key) ? this.open.delete(row.group.key) : this.open.add(row.group.key); this.draw(); });
    }
    this.rows.set(key, row);
    return row;
  }

  put(row, i, text, make) {
    if (row.texts[i] === text) return;
    row.texts[i] = text;
    row.cells[i].replaceChildren(make ? make() : text);
  }

  fill(row, run) {
    const chosen = view.runs.includes(run.id), name = run.id.slice(this.start);
    row.box.checked = chosen;
    row.element.classList.toggle("chosen", chosen);
    if (row.shown !== name) row.name.replaceChildren(...cutName((row.shown = name)));
    this.columns.forEach(({ key, text }, i) => {
      if (key === "state") this.put(row, i, `${run.state} ${run.why}`, () => make("span", { class: `state ${run.state}`, title: run.why || null }, run.state));
      else if (key === "rounds") this.put(row, i, `${run.rounds}/${run.of}/${run.left}/${run.state}`, () => drawProgress(run));
      else if (key === "score") this.put(row, i, `${formatValue(run.metric, run.score)} ${run.label}`, () => drawScore(formatValue(run.metric, run.score), run.label));
      else this.put(row, i, text(run));
    });
  }

  fillGroup(row, group) {
    row.group = group;
    const open = this.open.has(group.key), among = group.runs.filter((run) => view.runs.includes(run.id)).length;
    row.box.checked = among === group.runs.length;
    row.box.indeterminate = among > 0 && among < group.runs.length;
    row.box.setAttribute("aria-label", `compare all of ${group.label} with the others`);
    row.element.classList.toggle("chosen", among > 0);
    const size = count(group.runs.length, "run") + (group.seeds === group.runs.length ? "" : `, ${count(group.seeds, "seed")}`);
    if (row.shown !== group.label + size) {
      row.shown = group.label + size;
      row.name.replaceChildren(...cutName(group.label), " ", make("small", {}, size));
    }
    row.name.setAttribute("aria-expanded", open);
    row.name.setAttribute("aria-label", `${group.label} ${size}`);
    row.name.title = group.label;
    const first = group.runs[0], same = (of) => new Set(group.runs.map(of)).size === 1;
    this.columns.forEach(({ key, text }, i) => {
      if (key === "state") this.put(row, i, STATES.map((state) => [group.runs.filter((run) => run.state === state).length, state]).filter(([n]) => n).map(([n, state]) => `${n} ${state}`).join(", "));
      else if (key === "rounds") this.put(row, i, same((run) => run.rounds) ? String(first.rounds) : `${Math.min(...group.runs.map((r) => r.rounds))} to ${Math.max(...group.runs.map((r) => r.rounds))}`);
      else if (key === "score") {
        const mean = same((run) => run.metric) ? formatSpread(first.metric, spread(group.runs.map((run) => run.score))) : "different metrics";
        this.put(row, i, mean + first.label, () => drawScore(mean, first.label));
      } else if (key.startsWith(VALUE)) this.put(row, i, formatSpread(key.slice(VALUE.length), spread(group.runs.map((run) => run.values[key.slice(VALUE.length)]))));
      else if (key === "age") this.put(row, i, text(first));
      else this.put(row, i, same((run) => toText(run.all[key])) ? text(first) : "differs");
    });
  }
}

const drawScore = (text, label) => {
  const parts = document.createDocumentFragment();
  parts.append(text, make("small", {}, ` ${label}`));
  return parts;
};

function drawProgress(run) {
  const part = run.of ? Math.min(1, run.rounds / run.of) : 0;
  const left = run.state === "running" && run.left != null ? `, ${formatSeconds(run.left)} left` : "";
  const bar = make("i", {});
  bar.style.width = `${100 * part}%`;
  return make("span", { class: "progress" }, bar, make("b", {}, `${run.rounds}${run.of ? ` / ${run.of}` : ""}${left}`));
}
