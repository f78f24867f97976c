// A setting against the score or another recorded number: one point per run of the list.

import { byId, make } from "./dom.js";
import { escapeTags, formatLabel, formatValue, isShare, toText } from "./format.js";
import { differing } from "./group.js";
import { styleLines, titleOf } from "./look.js";
import { Figures, layOut, plotly } from "./plot.js";
import { valueOf } from "./filter.js";
import { view, writeView } from "./view.js";

export class Scatter {
  constructor(choose) {
    this.figures = new Figures(() => {});
    this.choose = choose;
    for (const id of ["x", "y"]) byId(`scatter-${id}`).addEventListener("change", (event) => { view[id] = event.target.value; writeView(); this.draw(); });
    byId("scatter-log").addEventListener("change", () => this.draw());
  }

  async show(runs, chosen) {
    Object.assign(this, { runs, chosen });
    await plotly();
    const settings = differing(runs).sort(), values = [...new Set(runs.flatMap((run) => Object.keys(run.values)))].sort();
    const usual = ["lr", "alpha", "tau_max", "batch", "clients", "method"].find((name) => settings.includes(name)) ?? settings[0] ?? "method";
    const xs = [...new Set([...(settings.length ? settings : ["method"]), ...values])], ys = ["score", ...values];
    if (!xs.includes(view.x)) view.x = usual;
    if (!ys.includes(view.y)) view.y = "score";
    this.offer("scatter-x", xs, view.x);
    this.offer("scatter-y", ys, view.y);
    this.draw();
  }

  offer(id, names, value) {
    if (byId(id).dataset.names !== names.join()) byId(id).replaceChildren(...names.map((name) => make("option", { value: name }, name === "score" ? this.score() : formatLabel(name))));
    byId(id).dataset.names = names.join();
    byId(id).value = value;
  }

  score() {
    const labels = new Set(this.runs.map((run) => run.label).filter(Boolean));
    return labels.size === 1 ? `score: ${[...labels][0]}` : "score";
  }

  draw() {
    if (!this.runs) return;
    const points = this.runs.map((run) => ({ run, x: valueOf(run, view.x), y: valueOf(run, view.y) })).filter(({ x, y }) => x != null && typeof y === "number");
    const numeric = points.every(({ x }) => typeof x === "number");
    byId("scatter-log").disabled = !numeric || points.some(({ x }) => x <= 0);
    const log = byId("scatter-log").checked && !byId("scatter-log").disabled;
    byId("scatter-note").textContent = points.length < this.runs.length ? `${this.runs.length - points.length} of ${this.runs.length} runs have no such value` : "";
    const name = view.y === "score" ? this.runs.find((run) => run.metric)?.metric ?? "score" : view.y;
    const labels = { x: formatLabel(view.x), y: view.y === "score" ? this.score() : formatLabel(view.y) };
    this.figures.put(byId("scatter-place"), 0, "scatter", {
      title: [`${labels.y} by ${labels.x}`], name: `${labels.y} by ${labels.x}`, height: 420, saves: () => this.saveCsv(points),
      draw: () => this.trace(points, numeric, log, name, labels),
    });
    this.figures.plots.get("scatter").clicked = (event) => this.choose([event.points[0].customdata], { on: true });
    this.figures.soon();
  }

  trace(points, numeric, log, name, labels) {
    const methods = [...new Set(points.map(({ run }) => run.method))];
    const styles = styleLines(methods.map((method) => ({ key: method, method })));
    const format = isShare(name) ? ".2%" : ".4g";
    const traces = methods.map((method, i) => {
      const mine = points.filter(({ run }) => run.method === method);
      return {
        x: mine.map(({ x }) => (numeric ? x : toText(x))), y: mine.map(({ y }) => y), type: "scatter", mode: "markers", name: escapeTags(titleOf(method)), customdata: mine.map(({ run }) => run.id),
        marker: { color: styles.get(method).colour, symbol: ["circle", "square", "diamond", "triangle-up", "cross", "x", "star"][i % 7], size: 10, line: { color: styleInk(), width: mine.map(({ run }) => (this.chosen.includes(run.id) ? 2 : 0)) } },
        text: mine.map(({ run }) => escapeTags(run.id)), hovertemplate: `%{text}<br>${escapeTags(labels.x)} %{x}<br>%{y:${format}}<extra>${escapeTags(titleOf(method))}</extra>`,
      };
    });
    const layout = layOut({
      dragmode: false, showlegend: true, legend: { orientation: "h", y: 1.12 }, margin: { l: 56, r: 12, t: 34, b: 44 },
      xaxis: { title: { text: escapeTags(labels.x), standoff: 6 }, type: numeric ? (log ? "log" : "linear") : "category", fixedrange: true },
      yaxis: { title: { text: escapeTags(labels.y), standoff: 4 }, tickformat: isShare(name) ? ".0%" : "" },
    });
    const said = points.slice(0, 20).map(({ run, x, y }) => `${run.id}: ${toText(x)}, ${formatValue(name, y)}`).join("; ");
    return [traces, layout, `${labels.y} by ${labels.x}, ${points.length} runs. ${said}`];
  }

  saveCsv(points) {
    const cell = (v) => (typeof v === "number" ? String(v) : `"${String(v).replace(/^(?=[=+\-@\t\r])/, "'").replaceAll('"', '""')}"`);
    const lines = [["run", view.x, view.y], ...points.map(({ run, x, y }) => [run.id, x, y])].map((line) => line.map(cell).join(","));
    const place = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
    const link = make("a", { href: place, download: "scatter.csv" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(place), 10000);
  }
}

const styleInk = () => getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
