// Curves and heat maps of the chosen runs, or of groups of them with mean and band.

import { address, ask, byId, copier, make, saveAnswer, split } from "./dom.js";
import { addQuantities, AXES, boundOf, brief, count, escapeTags, formatLabel, formatNote, formatValue, isShare } from "./format.js";
import { labelLine, plotlyDash, WIDTH } from "./look.js";
import { Figures, layOut, plotly, toFileName } from "./plot.js";
import { view, writeView } from "./view.js";

const USUAL = ["test_accuracy", "test_loss", "train_loss", "tau_k", "premise", "L"];
const LOGARITHMIC = ["A", "beta", "delta"]; // maps, as in reports
const isTest = (name) => /^(test|val)_/.test(name);
const isWorst = (name) => /^clients_(?!loss_).+_worst$/.test(name);
const isOfClients = (name) => /^client_(test|tuned)_/.test(name); // a list over the clients that tested the model
const MOST_HEATS = 6, MOST_IN_HOVER = 12, MOST_NOTES = 6;

// The metrics first, then the worst tenth of the clients, losses and validation, the usual names.
const sortNames = (names) => [...new Set([...names.filter((name) => /^test_(?!loss$)/.test(name)), ...names.filter(isWorst), ...names.filter(isTest), ...USUAL, ...names])].filter((name) => names.includes(name));
const tall = (clients) => Math.min(440, Math.max(150, 70 + 16 * clients));

export class Charts {
  constructor(changed, wrong) {
    this.changed = changed; // () => void: something else is wanted from the server
    this.wrong = wrong; // (error) => void
    this.figures = new Figures((window) => this.zoom(window));
    byId("axis").addEventListener("change", () => { view.axis = byId("axis").value; this.zoom(null); });
    byId("all").addEventListener("click", () => this.zoom(null));
    byId("log-scale").addEventListener("change", () => { view.log = byId("log-scale").checked; writeView(); this.draw(); });
    byId("smooth").addEventListener("input", () => { view.smooth = +byId("smooth").value; writeView(); this.draw(); });
    byId("spread-name").addEventListener("change", () => { view.spread = byId("spread-name").value; writeView(); this.changed(); });
    byId("heat-name").addEventListener("change", () => { view.heat = byId("heat-name").value; writeView(); this.changed(); });
    for (const id of ["from", "to"]) {
      byId(id).addEventListener("change", () => {
        const [from, to] = [byId("from").value, byId("to").value];
        this.zoom(from === "" && to === "" ? null : [+from, to === "" ? null : +to]);
      });
    }
  }

  get window() { return view.from == null && view.to == null ? null : [view.from ?? 0, view.to ?? Infinity]; }

  // The controls as the view has them.
  recall() {
    byId("axis").value = view.axis in AXES ? view.axis : (view.axis = "round");
    byId("log-scale").checked = view.log;
    byId("smooth").value = view.smooth;
    byId("from").value = view.from ?? "";
    byId("to").value = view.to ?? "";
  }

  zoom(window) {
    const fits = window && (window[1] == null || window[0] < window[1]);
    view.from = fits ? Math.max(0, Math.floor(window[0])) : null;
    view.to = fits && window[1] != null ? Math.ceil(window[1]) : null;
    writeView();
    this.recall();
    this.changed();
  }

  within() { return this.window ? [["from", this.window[0]], ...(view.to == null ? [] : [["to", view.to]])] : []; }

  // What the server is asked for; the answer goes to show().
  async fetch(lines) {
    const width = Math.max(200, Math.round((document.querySelector(".plot")?.clientWidth ?? 500) - 60));
    const names = this.wanted(this.data ? Object.values(this.data.runs) : []);
    const about = [["x", view.axis], ["width", width], ...this.within()], wanted = names.map((name) => ["name", name]);
    const runs = [...new Set(lines.flatMap((line) => line.runs.map((run) => run.id)))].map((id) => ["run", id]);
    const members = lines.flatMap((line, i) => line.runs.map((run) => ["group", `${i}:${run.id}`]));
    const curves = Promise.all(split(runs).map((part) => ask("curves", [...part, ...(view.group ? [] : wanted), ...about])));
    const bands = Promise.all(view.group ? split(members, ([, member]) => parseInt(member, 10)).map((part) => ask("bands", [...part, ...wanted, ...about])) : []);
    const across = Math.max(100, Math.round(((document.querySelector("#heats .plot") ?? byId("heats")).clientWidth - 120) / 2)); // two pixels per cell
    const heat = view.heat;
    const heats = Promise.all(lines.slice(0, MOST_HEATS).map((line) => ask("heat", [
      ["run", line.runs[0].id], ["name", heat], ["width", across], ["height", 180], ...(view.axis === "round" ? this.within() : []),
    ])));
    const spread = this.spreadOf(this.data ? Object.values(this.data.runs) : []);
    const spreads = Promise.all(spread ? lines.slice(0, MOST_HEATS).map((line) => ask("clients", [["run", line.runs[0].id], ["name", spread], ...about])) : []);
    const [answers, means, cells, clients] = await Promise.all([curves, bands, heats, spreads, plotly()]);
    const data = { runs: Object.assign({}, ...answers.map((answer) => answer.runs)), groups: Object.assign({}, ...means.map((answer) => answer.groups)), names };
    return { data, cells, clients, lines, heat, spread };
  }

  // The list over clients whose distribution is drawn: the chosen one, else the first metric's.
  spreadOf(runs) {
    const known = [...new Set(runs.flatMap((run) => run.lists))].filter(isOfClients);
    return known.includes(view.spread) ? view.spread : known.find((name) => !name.endsWith("_loss")) ?? known[0] ?? "";
  }

  wanted(runs) {
    const known = [...new Set(runs.flatMap((run) => run.names))];
    return known.length ? sortNames(known).filter((name) => this.shows(name)) : USUAL;
  }

  // The view names what differs from the usual choice: a name with a minus was ticked off.
  shows(name) { return view.curves.includes(name) || (!view.curves.includes(`-${name}`) && (isTest(name) || isWorst(name) || USUAL.includes(name))); }

  show({ data, cells, clients, lines, heat, spread }) {
    Object.assign(this, { data, cells, clients, lines, heatName: heat, spreadName: spread });
    const runs = Object.values(data.runs);
    runs.forEach((run) => addQuantities(run.custom));
    for (const option of byId("axis").querySelectorAll("[value=clock], [value=joules]")) { // simulated, or measured in a deployment
      option.hidden = option.disabled = !runs.length || !runs.every((run) => run.names.includes(option.value));
      if (option.disabled && runs.length && view.axis === option.value) { view.axis = "round"; return this.zoom(null); }
    }
    const lists = [...new Set(runs.flatMap((run) => run.lists))];
    this.offer([...new Set(runs.flatMap((run) => run.names))]);
    const ofClients = lists.filter(isOfClients);
    for (const [id, names, chosen] of [["heat-name", lists, heat], ["spread-name", ofClients, spread]]) {
      if (byId(id).dataset.names !== names.join()) byId(id).replaceChildren(...names.map((n) => make("option", { value: n }, formatLabel(n))));
      byId(id).dataset.names = names.join();
      byId(id).value = chosen;
    }
    byId("clients").hidden = !lists.length;
    byId("tested").hidden = !ofClients.length;
    this.draw();
    return this.spreadOf(runs) !== spread || this.wanted(runs).some((name) => !data.names.includes(name)); // a name that was not asked for
  }

  offer(all) {
    const order = sortNames(all), box = document.querySelector("#names div");
    if (box.dataset.names === order.join()) return;
    box.dataset.names = order.join();
    box.replaceChildren(...order.map((name) => make("label", {}, make("input", {
      type: "checkbox", value: name, checked: this.shows(name), onchange: (event) => {
        view.curves = [...view.curves.filter((other) => ![name, `-${name}`].includes(other)), event.target.checked ? name : `-${name}`];
        writeView();
        this.changed();
      },
    }), formatLabel(name))));
  }

  isHidden(line) { return view.hidden.includes(line.key); }

  // A line's numbers under a name: {x, y} and, where they are means, {low, high}, of a group also {std, n}.
  numbers(line, i, name) {
    if (view.group) {
      const [x, y, std, n] = this.data.groups[i]?.[name] ?? [[], [], [], []];
      return line.runs.length > 1 ? { x, y, std, n, low: y.map((v, k) => v - std[k]), high: y.map((v, k) => v + std[k]) } : { x, y };
    }
    const [x, y, low, high] = this.data.runs[line.key]?.curves[name] ?? [[], []];
    return { x, y, low, high };
  }

  draw() {
    if (!this.data) return;
    const wanted = new Set();
    let place = 0;
    for (const name of this.wanted(Object.values(this.data.runs))) {
      if (!this.lines.some((line, i) => this.numbers(line, i, name).x.length)) continue;
      wanted.add(name);
      const saves = () => this.saveCsv(name, this.lines.filter((line) => !this.isHidden(line)).flatMap((line) => line.runs), name);
      this.figures.put(byId("charts-grid"), place++, name, {
        title: [formatLabel(name)], name: formatLabel(name), note: formatNote(name), shares: true, saves, draw: () => this.curve(name),
      });
    }
    byId("no-charts").hidden = wanted.size > 0 || this.lines.some((line) => line.runs[0].state === "damaged");
    place = 0;
    this.lines.slice(0, MOST_HEATS).forEach((line, i) => {
      if (this.isHidden(line) || !this.clients[i]?.x.length) return;
      const [run] = line.runs, key = `spread ${i} ${run.id}`, name = `${formatLabel(this.spreadName)} of ${run.id}`;
      wanted.add(key);
      this.figures.put(byId("spreads"), place++, key, {
        title: [labelLine(line.label, line.style)], name, note: line.runs.length > 1 ? `the first of its runs: ${run.id}` : "", shares: true,
        saves: () => this.saveCsv(this.spreadName, [run], name), draw: () => this.spread(line, this.clients[i]),
      });
    });
    place = 0;
    this.lines.slice(0, MOST_HEATS).forEach((line, i) => {
      if (this.isHidden(line) || !this.cells[i]?.x.length) return;
      const [run] = line.runs, key = `heat ${i} ${run.id}`, name = `${formatLabel(this.heatName)} of ${run.id}`;
      wanted.add(key);
      this.figures.put(byId("heats"), place++, key, {
        title: [labelLine(line.label, line.style)], name, note: line.runs.length > 1 ? `the first of its runs: ${run.id}` : "", height: tall(this.cells[i].y.length), shares: view.axis === "round",
        saves: () => this.saveCsv(this.heatName, [run], name), draw: () => this.heat(run.id, this.cells[i]),
      });
    });
    this.note();
    this.figures.keep(wanted);
  }

  async saveCsv(name, runs, file) {
    try {
      await saveAnswer(`${toFileName(file)}.csv`, "csv", [...runs.map((run) => ["run", run.id]), ["name", name], ["x", view.axis], ...this.within()]);
    } catch (error) { this.wrong(error); }
  }

  range() {
    if (!this.window) return { autorange: true };
    const ends = this.lines.flatMap((line, i) => this.wanted(Object.values(this.data.runs)).map((name) => this.numbers(line, i, name).x.at(-1) ?? 0));
    return { range: [this.window[0], Math.min(this.window[1], Math.max(...ends, this.window[0] + 1e-9))], autorange: false };
  }

  curve(name) {
    const texts = [], traces = [], shown = this.lines.filter((line) => !this.isHidden(line)).length;
    const format = isShare(name) ? ".2%" : ".4g";
    this.lines.forEach((line, i) => {
      const { x, y, low, high, std, n } = this.numbers(line, i, name), { colour, dash, symbol } = line.style;
      const visible = !this.isHidden(line), extra = `<extra>${escapeTags(line.label)}</extra>`;
      if (x.length && visible) texts.push(`${line.label}: ${formatValue(name, y.at(-1))}${std ? ` ± ${formatValue(name, std.at(-1))}` : ""} at ${brief(x.at(-1))}`);
      if (low && x.length > 1) {
        const edges = [smoothen(high, view.smooth), smoothen(low, view.smooth).reverse()];
        traces.push({
          x: [...x, ...[...x].reverse()], y: edges.flat(), fill: "toself", fillcolor: `${colour}2e`, line: { width: 0 }, mode: "lines", type: "scatter",
          hoverinfo: "skip", showlegend: false, visible, part: "band",
        });
      } else if (view.smooth && x.length > 1) {
        traces.push({ x, y, type: "scatter", mode: "lines", line: { color: colour, width: 1 }, opacity: 0.3, hoverinfo: "skip", showlegend: false, visible, part: "raw" });
      }
      const mode = x.length < 2 ? "markers" : symbol ? "lines+markers" : "lines";
      traces.push({
        x, y: smoothen(y, view.smooth), name: escapeTags(line.label), visible, type: "scatter", mode, line: { color: colour, width: WIDTH, dash: plotlyDash(dash) },
        marker: { color: colour, symbol: symbol || "circle", size: 7, ...(x.length > 1 ? { maxdisplayed: 9 } : {}) }, meta: line.key,
        customdata: std ? std.map((v, k) => [v, n[k]]) : undefined,
        hovertemplate: std ? `%{y:${format}} ± %{customdata[0]:${format}} (runs: %{customdata[1]:d})${extra}` : `%{y:${format}}${extra}`,
      });
    });
    const log = /loss/.test(name) && view.log;
    const layout = layOut({
      hovermode: shown > MOST_IN_HOVER ? "closest" : "x unified",
      xaxis: { title: { text: AXES[view.axis], standoff: 6 }, unifiedhovertitle: { text: `${AXES[view.axis]} %{x:${{ round: ".0f", steps: ".0f" }[view.axis] ?? ".4s"}}` }, showspikes: false, ...this.range() },
      yaxis: { type: log ? "log" : "linear", tickformat: isShare(name) ? ".0%" : "" },
    });
    const bound = boundOf(name);
    if (bound !== null) layout.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: bound, y1: bound, line: { color: layout.font.color, width: 1, dash: "dot" } }];
    const more = texts.length > MOST_IN_HOVER ? `; and ${texts.length - MOST_IN_HOVER} more` : "";
    return [traces, layout, `${formatLabel(name)} by ${AXES[view.axis]}. ${texts.slice(0, MOST_IN_HOVER).join("; ")}${more}`];
  }

  // The clients of one run: the mean, the middle half, and between the worst and the best tenth.
  spread(line, found) {
    const { x, mean, worst, low, middle, high, best } = found, { colour } = line.style, name = this.spreadName, format = isShare(name) ? ".2%" : ".4g";
    const mode = x.length < 2 ? "markers" : "lines", there = (values) => values.every((v) => v != null);
    const area = (from, to, alpha) => ({
      x: [...x, ...[...x].reverse()], y: [...to, ...[...from].reverse()], fill: "toself", fillcolor: colour + alpha, line: { width: 0 }, mode: "lines", type: "scatter",
      hoverinfo: "skip", showlegend: false, part: "band",
    });
    const curve = (label, y, look) => ({ x, y, name: label, type: "scatter", mode, line: { color: colour, ...look }, hovertemplate: `%{y:${format}}<extra>${label}</extra>` });
    const tenths = there(worst) && there(best), traces = tenths ? [area(worst, best, "26"), area(low, high, "4d")] : [area(low, high, "4d")];
    if (tenths) traces.push(curve("best 10 %", best, { width: 1 }));
    traces.push(curve("median", middle, { width: 1, dash: "dot" }), curve("mean", mean, { width: WIDTH }));
    if (tenths) traces.push(curve("worst 10 %", worst, { width: 1.5, dash: "dash" }));
    const layout = layOut({
      hovermode: "x unified", xaxis: { title: { text: AXES[view.axis], standoff: 6 }, showspikes: false, ...this.range() },
      yaxis: { tickformat: isShare(name) ? ".0%" : "", ...this.spreadRange() },
    });
    const said = [["mean", mean], ...(tenths ? [["worst tenth", worst], ["best tenth", best]] : [])].map(([part, y]) => `${part} ${formatValue(name, y.at(-1))}`);
    return [traces, layout, `${formatLabel(name)}, ${line.label}, by ${AXES[view.axis]}; at ${brief(x.at(-1))}: ${said.join(", ")}`];
  }

  // All runs have one scale, so that they can be compared.
  spreadRange() {
    const shown = this.clients.filter((_, i) => !this.isHidden(this.lines[i]));
    const values = shown.flatMap(({ worst, low, mean, high, best }) => [worst, low, mean, high, best].flat()).filter((v) => v != null);
    const [low, high] = [Math.min(...values), Math.max(...values)], pad = 0.05 * (high - low || 1);
    return values.length ? { range: [low - pad, high + pad] } : {};
  }

  extent() {
    const values = this.cells.flatMap((cells, i) => (this.isHidden(this.lines[i]) ? [] : cells.z.flat())).filter((v) => v != null);
    let [low, high] = [Infinity, -Infinity];
    for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
    return [low, high];
  }

  heat(id, cells) {
    const [low, high] = this.extent(), what = formatLabel(this.heatName);
    const log = LOGARITHMIC.includes(this.heatName) && low > 0 && high > low;
    const scale = (v) => (v == null || !log ? v : Math.log10(v));
    const trace = {
      type: "heatmap", x: cells.x, y: cells.y, z: log ? cells.z.map((row) => row.map(scale)) : cells.z, zmin: scale(low), zmax: scale(high), colorscale: "Cividis", hoverongaps: false,
      ...(log ? { customdata: cells.z } : {}), colorbar: { thickness: 10, outlinewidth: 0, len: 1, ...(log ? powers(scale(low), scale(high)) : {}) },
      hovertemplate: `client %{y}<br>round %{x}<br>${escapeTags(what)} %{${log ? "customdata" : "z"}:.4g}<extra></extra>`,
    };
    const xaxis = { title: { text: "round", standoff: 6 }, ...(view.axis === "round" ? this.range() : { autorange: true }), showgrid: false };
    const yaxis = { title: { text: "client", standoff: 4 }, autorange: "reversed", showgrid: false, ...(cells.y.length < 12 ? { dtick: 1 } : {}) };
    return [[trace], layOut({ xaxis, yaxis }),
      `${what} of ${id}, one row per client and one column per round, from ${brief(low)} to ${brief(high)}${log ? ", logarithmic" : ""}; latest round: ` +
      cells.z.slice(0, 20).map((row, i) => `client ${brief(cells.y[i])} ${brief(row.at(-1))}`).join(", ")];
  }

  note() {
    const means = this.cells.filter((c) => c.rounds > 1 || c.clients > 1), parts = [];
    if (LOGARITHMIC.includes(this.heatName)) parts.push("logarithmic colours");
    if (means.length) {
      const [rounds, clients] = [Math.max(...means.map((c) => c.rounds)), Math.max(...means.map((c) => c.clients))];
      parts.push(`a cell is the mean of up to ${[rounds > 1 && `${rounds} rounds`, clients > 1 && `${clients} clients`].filter(Boolean).join(" and ")}; zoom to see each`);
    }
    if (this.lines.length > MOST_HEATS) parts.push(`the first ${MOST_HEATS} of ${this.lines.length}`);
    byId("heat-note").textContent = parts.join(" · ");
  }
}

// An exponential moving average whose start is not drawn towards zero.
function smoothen(y, share) {
  if (!share) return y;
  let [sum, weight] = [0, 0];
  return y.map((v) => {
    [sum, weight] = [share * sum + (1 - share) * v, share * weight + (1 - share)];
    return sum / weight;
  });
}

function powers(low, high) {
  const at = [];
  for (let p = Math.ceil(low); p <= high; p += Math.max(1, Math.ceil((high - low) / 5))) at.push(p);
  return at.length ? { tickvals: at, ticktext: at.map((p) => (Math.abs(p) < 4 ? String(+(10 ** p).toPrecision(1)) : `1e${p}`)) } : {};
}

// What to know of the chosen runs before their charts: what is damaged, how to resume, what a band is.
export function drawNotes(lines, data) {
  const runs = lines.flatMap((line) => line.runs), notes = [];
  for (const run of runs) {
    const lost = data?.runs[run.id]?.damaged ?? 0, name = make("b", {}, run.id);
    if (run.state === "damaged") notes.push(make("p", { class: "wrong" }, name, ` is damaged: ${run.why}.`));
    else if (lost) notes.push(make("p", { class: "wrong" }, name, `: ${count(lost, "line")} of rounds.jsonl cannot be read and ${lost === 1 ? "is" : "are"} left out.`));
    if (run.state === "diverged") notes.push(make("p", { class: "wrong" }, name, ` diverged: ${run.why}`));
    if (run.resume) {
      notes.push(make("p", {}, name, ` is ${run.state} at round ${run.rounds}${run.of ? ` of ${run.of}` : ""}: ${run.why}. To resume it: `,
        make("code", {}, run.resume), " ", copier(() => run.resume, "Copy", `Copy the command that resumes ${run.id}`)));
    }
  }
  const more = notes.splice(MOST_NOTES).length;
  if (more) notes.push(make("p", {}, `${count(more, "more note")}: see Settings.`));
  if (view.group && lines.some((line) => line.runs.length > 1)) {
    const mixed = lines.filter((line) => line.mixed).length;
    notes.push(make("p", {}, "Lines are means over the runs of a group, bands are ± one standard deviation.",
      mixed ? ` ${count(mixed, "group")} ${mixed === 1 ? "joins" : "join"} runs that differ in more than the seed.` : ""));
  }
  if (!view.group && Object.values(data?.runs ?? {}).some((run) => Object.values(run.curves).some((curve) => curve.length > 2))) {
    notes.push(make("p", { class: "note" }, "Where there are more rounds than room, a line is the mean of a stretch and its band reaches from the lowest to the highest value; zoom to see each round."));
  }
  byId("notes").replaceChildren(...notes);
}

export const reportAddress = (runs, file) => address("report", [...runs.filter((run) => run.state !== "damaged").map((run) => ["run", run.id]), ...(file ? [["file", 1]] : [])]);
