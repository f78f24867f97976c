// Curves and heat maps of the chosen runs. One picture is drawn per frame, and only when it is in sight.

import { ask, byId, make } from "./dom.js";
import { addQuantities, AXES, brief, escapeTags, formatLabel, formatNote, formatValue, isShare } from "./format.js";

const USUAL = ["test_accuracy", "test_loss", "train_loss", "tau_k", "premise", "L"];
const isTest = (name) => name.startsWith("test_");
const DASHES = ["solid", "dash", "dot", "dashdot"];
const MOST_HEATS = 6;

let script;
function plotly() {
  script ??= new Promise((done, failed) => {
    const tag = make("script", { src: "plotly.js" });
    tag.onload = () => done(window.Plotly);
    tag.onerror = () => failed(new Error("plotly.js did not load"));
    document.head.append(tag);
  });
  return script;
}

export const styleRun = (i) => ({
  colour: getComputedStyle(document.documentElement).getPropertyValue(`--c${i % 7}`).trim(), dash: DASHES[Math.floor(i / 7) % 4],
});

// A run's name behind its colour.
export function labelRun(id, i) {
  const swatch = make("i", { class: `swatch c${i % 7}` });
  return [swatch, id];
}

// The metrics first, then the usual names.
const sortNames = (names) => [...new Set([...names.filter((name) => isTest(name) && name !== "test_loss"), ...USUAL, ...names])].filter((name) => names.includes(name));

const tall = (clients) => Math.min(440, Math.max(150, 70 + 16 * clients));

export class Picture {
  constructor(changed) {
    this.changed = changed; // () => void: something else is wanted from the server
    this.window = null; // [from, to] of the axis
    this.plots = new Map(); // key -> {element, draw, seen, dirty}
    this.ticks = new Map(JSON.parse(localStorage.getItem("fedveca-curves") ?? "[]")); // name -> whether it was ticked
    this.sight = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const plot = [...this.plots.values()].find((p) => p.element === entry.target);
        if (plot) plot.seen = entry.isIntersecting;
      }
      this.soon();
    }, { rootMargin: "200px" });
    byId("axis").addEventListener("change", () => this.zoom(null));
    byId("all").addEventListener("click", () => this.zoom(null));
    byId("log-scale").addEventListener("change", () => this.draw());
    byId("heat-name").addEventListener("change", () => this.changed());
    for (const id of ["from", "to"]) {
      byId(id).addEventListener("change", () => {
        const [from, to] = [byId("from").value, byId("to").value];
        this.zoom(from === "" && to === "" ? null : [+from, to === "" ? Infinity : +to]);
      });
    }
  }

  get axis() { return byId("axis").value; }

  zoom(window) {
    this.window = window && window[0] < window[1] ? window : null;
    byId("from").value = this.window ? +this.window[0].toPrecision(6) : "";
    byId("to").value = this.window && Number.isFinite(this.window[1]) ? +this.window[1].toPrecision(6) : "";
    this.changed();
  }

  // What the server is asked for; the answer goes to show().
  async fetch(chosen) {
    const within = this.window ? [["from", this.window[0]], ["to", this.window[1]]] : [];
    const width = Math.max(200, Math.round((document.querySelector(".plot")?.clientWidth ?? 500) - 60));
    const names = this.wanted(this.data ? Object.values(this.data.runs) : []);
    const curves = ask("curves", [
      ...chosen.map((id) => ["run", id]), ...names.map((name) => ["name", name]), ["x", this.axis], ["width", width], ...within,
    ]);
    const name = byId("heat-name").value || "tau";
    const across = Math.max(100, Math.round(((document.querySelector("#heats .plot") ?? byId("heats")).clientWidth - 120) / 2)); // two pixels per cell
    const heats = Promise.all(chosen.slice(0, MOST_HEATS).map((id) => ask("heat", [
      ["run", id], ["name", name], ["width", across], ["height", 180], ...(this.axis === "round" ? within : []),
    ])));
    const [data, cells] = await Promise.all([curves, heats, plotly()]);
    return { data, cells, name, chosen };
  }

  wanted(runs) {
    const known = [...new Set(runs.flatMap((run) => run.names))];
    return known.length ? sortNames(known).filter((name) => this.shows(name)) : USUAL;
  }

  shows(name) { return this.ticks.get(name) ?? (isTest(name) || USUAL.includes(name)); }

  show({ data, cells, name, chosen }, hidden) {
    Object.assign(this, { data, cells, heatName: name, chosen, hidden });
    const runs = Object.values(data.runs);
    runs.forEach((run) => addQuantities(run.custom));
    const lists = [...new Set(runs.flatMap((run) => run.lists))];
    this.offer([...new Set(runs.flatMap((run) => run.names))]);
    const options = lists.map((n) => make("option", { value: n, selected: n === name }, formatLabel(n)));
    if (byId("heat-name").dataset.names !== lists.join()) byId("heat-name").replaceChildren(...options);
    byId("heat-name").dataset.names = lists.join();
    byId("clients").hidden = !lists.length;
    this.draw();
    return this.wanted(runs).some((n) => runs.every((run) => !(n in run.curves))); // a name that was not asked for
  }

  offer(all) {
    const order = sortNames(all);
    const box = document.querySelector("#names div");
    if (box.dataset.names === order.join()) return;
    box.dataset.names = order.join();
    box.replaceChildren(...order.map((name) => make("label", {}, make("input", {
      type: "checkbox", value: name, checked: this.shows(name), onchange: (event) => {
        this.ticks.set(name, event.target.checked);
        localStorage.setItem("fedveca-curves", JSON.stringify([...this.ticks]));
        this.changed();
      },
    }), formatLabel(name))));
  }

  draw() {
    if (!this.data) return;
    const wanted = new Set();
    let place = 0;
    for (const name of this.wanted(Object.values(this.data.runs))) {
      if (!Object.values(this.data.runs).some((run) => run.curves[name]?.[0].length)) continue;
      wanted.add(name);
      this.plot(byId("charts"), place++, name, [formatLabel(name)], formatNote(name), () => this.curve(name));
    }
    place = 0;
    this.chosen.slice(0, MOST_HEATS).forEach((id, i) => {
      if (this.hidden.has(id) || !this.cells[i]?.x.length) return;
      wanted.add(`heat ${i} ${id}`);
      this.plot(byId("heats"), place++, `heat ${i} ${id}`, labelRun(id, i), "", () => this.heat(id, this.cells[i]), tall(this.cells[i].y.length));
    });
    this.note();
    for (const [key, plot] of this.plots) {
      if (wanted.has(key)) continue;
      this.sight.unobserve(plot.element);
      window.Plotly.purge(plot.element);
      plot.figure.remove();
      this.plots.delete(key);
    }
    this.soon();
  }

  plot(parent, place, key, title, text, draw, height) {
    let plot = this.plots.get(key);
    if (!plot) {
      const element = make("div", { class: "plot", role: "img" });
      if (height) element.style.height = `${height}px`;
      const figure = make("figure", { "data-name": key }, make("figcaption", {}, ...title, make("span", {}, text)), element);
      plot = { element, figure, seen: false, drawn: 0 };
      this.plots.set(key, plot);
      this.sight.observe(element);
    }
    const at = parent.children[place] ?? null;
    if (at !== plot.figure) parent.insertBefore(plot.figure, at);
    Object.assign(plot, { draw, dirty: true });
  }

  due() { return [...this.plots.values()].filter((plot) => plot.dirty && plot.seen); }

  soon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      const [next] = this.due().sort((a, b) => a.drawn - b.drawn); // the one that has waited longest
      if (!next) return;
      Object.assign(next, { dirty: false, drawn: performance.now() });
      const [traces, layout, text] = next.draw();
      next.element.setAttribute("aria-label", text);
      window.Plotly.react(next.element, traces, layout, { responsive: true, displaylogo: false, displayModeBar: false });
      if (!next.wired) {
        next.wired = true;
        next.element.on("plotly_relayout", (change) => {
          if (change["xaxis.range[0]"] !== undefined) this.zoom([Math.max(0, change["xaxis.range[0]"]), change["xaxis.range[1]"]]);
          else if (change["xaxis.autorange"]) this.zoom(null);
        });
      }
      this.soon();
    });
  }

  layout(more) {
    const style = getComputedStyle(document.documentElement);
    const [ink, grid] = ["--soft", "--grid"].map((name) => style.getPropertyValue(name).trim());
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, color: ink, automargin: true };
    return {
      margin: { l: 48, r: 10, t: 8, b: 36 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 11.5, color: ink }, showlegend: false, hovermode: "closest",
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: { ...axis, title: { text: AXES[this.axis], standoff: 6 }, ...more.xaxis },
      yaxis: { ...axis, fixedrange: true, ...more.yaxis },
    };
  }

  range() {
    if (!this.window) return { autorange: true };
    const last = Math.max(...Object.values(this.data.runs).flatMap((run) => Object.values(run.curves).map(([x]) => x.at(-1) ?? 0)));
    return { range: [this.window[0], Math.min(this.window[1], Math.max(last, this.window[0] + 1e-9))], autorange: false };
  }

  curve(name) {
    const texts = [];
    const traces = this.chosen.map((id, i) => {
      const [x, y] = this.data.runs[id]?.curves[name] ?? [[], []];
      const { colour, dash } = styleRun(i);
      if (x.length && !this.hidden.has(id)) texts.push(`${id}: ${formatValue(name, y.at(-1))} at ${brief(x.at(-1))}`);
      return {
        x, y, name: escapeTags(id), visible: !this.hidden.has(id), type: "scatter", mode: x.length > 1 ? "lines" : "markers",
        line: { color: colour, width: 1.8, dash }, marker: { color: colour },
        hovertemplate: `${AXES[this.axis]} %{x}<br>%{y:${isShare(name) ? ".2%" : ".4g"}}<extra>%{fullData.name}</extra>`,
      };
    });
    const log = /loss/.test(name) && byId("log-scale").checked;
    const yaxis = { type: log ? "log" : "linear", tickformat: isShare(name) ? ".0%" : "" };
    const layout = this.layout({ xaxis: this.range(), yaxis });
    if (name === "premise") layout.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: layout.font.color, width: 1, dash: "dot" } }];
    return [traces, layout, `${formatLabel(name)} by ${AXES[this.axis]}. ${texts.join("; ")}`];
  }

  extent() {
    const values = this.cells.flatMap((cells, i) => (this.hidden.has(this.chosen[i]) ? [] : cells.z.flat())).filter((v) => v != null);
    let [low, high] = [Infinity, -Infinity];
    for (const v of values) { low = Math.min(low, v); high = Math.max(high, v); }
    return [low, high];
  }

  heat(id, cells) {
    const [low, high] = this.extent();
    const what = formatLabel(this.heatName);
    const trace = {
      type: "heatmap", ...cells, zmin: low, zmax: high, colorscale: "Viridis", hoverongaps: false,
      colorbar: { thickness: 10, outlinewidth: 0, len: 1 },
      hovertemplate: `client %{y}<br>round %{x}<br>${escapeTags(what)} %{z:.4g}<extra></extra>`,
    };
    const xaxis = { title: { text: "round", standoff: 6 }, ...(this.axis === "round" ? this.range() : { autorange: true }), showgrid: false };
    const yaxis = { title: { text: "client", standoff: 4 }, autorange: "reversed", showgrid: false, ...(cells.y.length < 12 ? { dtick: 1 } : {}) };
    return [[trace], this.layout({ xaxis, yaxis }),
      `${what} of ${id}, one row per client and one column per round, from ${brief(low)} to ${brief(high)}; latest round: ` +
      cells.z.slice(0, 20).map((row, i) => `client ${brief(cells.y[i])} ${brief(row.at(-1))}`).join(", ")];
  }

  note() {
    const means = this.cells.filter((c) => c.rounds > 1 || c.clients > 1);
    const parts = [];
    if (means.length) {
      const [rounds, clients] = [Math.max(...means.map((c) => c.rounds)), Math.max(...means.map((c) => c.clients))];
      parts.push(`a cell is the mean of up to ${[rounds > 1 && `${rounds} rounds`, clients > 1 && `${clients} clients`].filter(Boolean).join(" and ")}; zoom to see each`);
    }
    if (this.chosen.length > MOST_HEATS) parts.push(`the first ${MOST_HEATS} of ${this.chosen.length} runs`);
    byId("heat-note").textContent = parts.join(" · ");
  }
}
