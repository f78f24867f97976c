// Plotly's script, and figures that are drawn one per frame and only when they are in sight.

import { make, save } from "./dom.js";

let script;
export function plotly() {
  script ??= new Promise((done, failed) => {
    const tag = make("script", { src: "plotly.js" });
    tag.onload = () => done(window.Plotly);
    tag.onerror = () => failed(new Error("plotly.js did not load"));
    document.head.append(tag);
  });
  return script;
}

const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false, showTips: false };
const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function layOut(more) {
  const [ink, grid, card, text] = ["--soft", "--grid", "--card", "--ink"].map(styleOf);
  const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, color: ink, automargin: true };
  return {
    margin: { l: 48, r: 10, t: 8, b: 36 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 11.5, color: ink }, showlegend: false, hovermode: "closest",
    hoverlabel: { bgcolor: card, bordercolor: grid, font: { color: text, size: 12 }, namelength: 40 },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    ...more, xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, fixedrange: true, ...more.yaxis },
  };
}

export class Figures {
  constructor(zoomed) {
    this.zoomed = zoomed; // (window or null) => void
    this.plots = new Map(); // key -> {element, figure, draw, seen, dirty, shares}
    this.sight = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const plot = [...this.plots.values()].find((p) => p.element === entry.target);
        if (plot) plot.seen = entry.isIntersecting;
      }
      this.soon();
    }, { rootMargin: "200px" });
  }

  // A figure at a place of its parent. `draw` returns [traces, layout, text]; `shares` tells whether its x axis is the common one.
  put(parent, place, key, { title, name, note = "", draw, height, shares, saves }) {
    let plot = this.plots.get(key);
    if (!plot) {
      const element = make("div", { class: "plot", role: "img", "aria-label": `${name}: not drawn yet` });
      if (height) element.style.height = `${height}px`;
      const cross = make("i", { class: "cross", hidden: true });
      plot = { element, cross, seen: false, drawn: 0, caption: make("span", { class: "title" }), note: make("span", {}) };
      const items = Object.entries({ CSV: () => plot.saves(), PNG: () => this.picture(plot) })
        .map(([label, act]) => make("button", { type: "button", onclick: (event) => { event.target.closest("details").open = false; act(); } }, label));
      const menu = make("details", { class: "menu save" }, make("summary", { "aria-label": `Save ${name}`, title: "save" }, "⤓"), make("div", {}, ...items));
      plot.figure = make("figure", { "data-name": key }, make("figcaption", {}, plot.caption, plot.note, menu), make("div", { class: "frame" }, element, cross));
      this.plots.set(key, plot);
      this.sight.observe(element);
    }
    plot.caption.replaceChildren(...title);
    plot.note.textContent = plot.note.title = note;
    const at = parent.children[place] ?? null;
    if (at !== plot.figure) parent.insertBefore(plot.figure, at);
    Object.assign(plot, { draw, name, shares, saves, dirty: true });
  }

  // Removes all figures but these.
  keep(wanted) {
    for (const [key, plot] of this.plots) {
      if (wanted.has(key)) continue;
      this.sight.unobserve(plot.element);
      window.Plotly.purge(plot.element);
      plot.figure.remove();
      this.plots.delete(key);
    }
    this.soon();
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
      window.Plotly.react(next.element, traces, layout, CONFIG);
      if (!next.wired) this.wire(next);
      this.soon();
    });
  }

  wire(plot) {
    plot.wired = true;
    plot.element.on("plotly_relayout", (change) => {
      if (change["xaxis.range[0]"] !== undefined) this.zoomed([change["xaxis.range[0]"], change["xaxis.range[1]"]]);
      else if (change["xaxis.autorange"]) this.zoomed(null);
    });
    plot.element.on("plotly_hover", (event) => plot.shares && this.point(event.xvals?.[0] ?? event.points[0].x));
    plot.element.on("plotly_unhover", () => this.point(null));
    plot.element.on("plotly_click", (event) => plot.clicked?.(event));
  }

  // One line through all charts with the common axis.
  point(x) {
    for (const { element, cross, shares } of this.plots.values()) {
      const axis = element._fullLayout?.xaxis, at = x != null && shares && axis ? axis.l2p(x) : -1;
      cross.hidden = !(at >= 0 && at <= axis._length);
      if (cross.hidden) continue;
      const { t, h } = element._fullLayout._size;
      Object.assign(cross.style, { left: `${axis._offset + at}px`, top: `${t}px`, height: `${h}px` });
    }
  }

  async picture(plot) {
    const { element, name } = plot;
    if (!element.data) return;
    const layout = {
      ...element.layout, width: 900, height: Math.max(500, element.clientHeight * 1.4), title: { text: name, x: 0.02, xanchor: "left" }, margin: { l: 60, r: 20, t: 48, b: 48 },
      paper_bgcolor: styleOf("--card"), plot_bgcolor: styleOf("--card"), showlegend: element.data.some((trace) => trace.showlegend !== false && trace.type === "scatter"),
      legend: { orientation: "h", y: -0.18 },
    };
    const href = await window.Plotly.toImage({ data: element.data, layout }, { format: "png", width: layout.width, height: layout.height, scale: 2 });
    save(`${toFileName(name)}.png`, href);
  }
}

export const toFileName = (name) => name.replaceAll(/[^\p{L}\p{N}_-]+/gu, "-").slice(0, 80) || "chart";
