"use strict";
// Draws what views/series.py makes: curves over seeds, differences, heat maps of clients and rounds, partitions.
const charts = (() => {
  const narrow = () => window.innerWidth < 560;

  function theme() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    return { dark: of("--dark") === "1", ink: of("--ink"), faint: of("--faint"), rule: of("--rule"), panel: of("--panel") };
  }

  // A method's colour; on dark paper mixed with white until it is bright enough to read.
  function colour(hex) {
    if (!theme().dark) return hex;
    let rgb = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    const bright = () => rgb.map((v) => (v / 255) ** 2.2).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    while (bright() < 0.2) rgb = rgb.map((v) => Math.ceil(v + 0.1 * (255 - v)));
    return "#" + rgb.map((v) => Math.min(255, v).toString(16).padStart(2, "0")).join("");
  }

  // Lengths on and off in widths of the line, as the registry of methods has them.
  const dashed = (parts, width) => (parts.length ? parts.map((v) => `${v * width}px`).join(",") : "solid");

  const touch = () => narrow() || matchMedia("(pointer: coarse)").matches;

  function layout(more) {
    const t = theme();
    // Fixed margins: Plotly's own search for them draws every chart twice. The toolbar stands above the data.
    const axis = { gridcolor: t.rule, linecolor: t.rule, zeroline: false, tickcolor: t.rule };
    const base = {
      font: { family: "system-ui, sans-serif", size: 12, color: t.ink },
      paper_bgcolor: t.panel, plot_bgcolor: t.panel, showlegend: false,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: t.faint, activecolor: t.ink, orientation: "h" },
      dragmode: touch() ? false : "zoom", hoverlabel: { bgcolor: t.panel, bordercolor: t.rule, font: { color: t.ink } },
    };
    for (const [key, value] of Object.entries(more)) base[key] = /^[xy]axis/.test(key) ? { ...axis, ...value } : value;
    base.margin = { l: 56, r: 14, t: touch() ? 10 : 32, b: 44, ...more.margin };
    return base;
  }

  function draw(div, traces, more, home) {
    const again = home || (() => draw(div, traces, more));
    const buttons = [
      { name: "save", title: "Save this chart as SVG", icon: Plotly.Icons.camera, click: (gd) => Plotly.downloadImage(gd, { format: "svg", filename: gd.id }) },
      { name: "home", title: "First view", icon: Plotly.Icons.home, click: () => again() },
    ];
    const config = {
      responsive: true, displaylogo: false, displayModeBar: !touch(), modeBarButtons: [buttons], plotlyServerURL: "",
      showTips: false, doubleClick: "autosize",
    };
    const paper = document.documentElement.classList.contains("printing"); // a window's width is no paper's
    const done = Plotly.react(div, traces, { ...layout(more), ...(paper ? { width: div.clientWidth } : { autosize: true }) }, config);
    div.querySelectorAll(".main-svg").forEach((svg) => svg.setAttribute("aria-hidden", "true")); // the group has words
    return done;
  }

  // Where the run is at its end: the first steep rounds leave the picture.
  function focus(sets, rising) {
    const rest = sets.flatMap((c) => c.mean.slice(c.mean.length > 5 ? Math.floor(c.mean.length / 3) : 0));
    const sorted = rest.sort((a, b) => a - b);
    if (sorted.length < 2) return undefined;
    const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
    const [low, high] = rising ? [at(0.02), at(1)] : [at(0), at(0.98)];
    const pad = 0.06 * (high - low || Math.abs(high) || 1);
    return [low - pad, high + pad];
  }

  // The mean of so many points around each one; fewer at the ends.
  function smoothed(values, wide) {
    const half = (wide - 1) / 2;
    return values.map((v, k) => {
      if (!half || v === null) return v;
      const near = values.slice(Math.max(0, k - half), k + half + 1).filter((w) => w !== null);
      return near.reduce((a, b) => a + b, 0) / near.length;
    });
  }

  function curves(div, section, metric, state, home) {
    const scale = metric.percent ? 100 : 1, axis = state.axis;
    const traces = [], sets = [];
    section.curves.forEach((curve, i) => {
      const band = curve.metrics[metric.name];
      if (!band || state.hidden.has(i) || !band.mean.length) return;
      const [mean, std] = [band.mean, band.std].map((v) => smoothed(v.map((y) => scale * y), state.smooth));
      const x = band.x[axis], ink = colour(curve.colour), width = curve.strong ? 2.6 : 2;
      const marks = x.length > 1 ? "lines" : "markers";
      sets.push({ mean, std, x, ink, label: curve.label, seeds: band.seeds, rounds: band.x.rounds });
      if (state.seeds && band.each.length) {
        band.each.forEach((values) => traces.push({
          x, y: smoothed(values.map((y) => (y === null ? null : scale * y)), state.smooth), type: "scatter", mode: marks,
          opacity: 0.55, line: { color: ink, width: 1, dash: dashed(curve.dash, 1) }, hoverinfo: "skip", name: "",
        }));
      } else if (std.some((v) => v > 0)) {
        const low = (m, k) => (state.log ? Math.max(m - std[k], m / 10) : m - std[k]); // a log axis has no 0
        traces.push({
          x: [...x, ...[...x].reverse()], y: [...mean.map((m, k) => m + std[k]), ...mean.map(low).reverse()],
          fill: "toself", fillcolor: ink + "26", line: { width: 0 }, mode: "lines", hoverinfo: "skip", type: "scatter",
        });
      }
      traces.push({
        x, y: mean, name: curve.label, type: "scatter", mode: marks, hoverinfo: "none",
        line: { color: ink, dash: dashed(curve.dash, width), width },
      });
    });
    let range = state.zoom ? focus(sets, metric.rising) : undefined;
    if (range && state.log) range = range[0] > 0 ? range.map(Math.log10) : undefined;
    const done = draw(div, traces, {
      height: narrow() ? 260 : 320, hovermode: "x", hoverdistance: -1,
      xaxis: { title: { text: section.axes[axis] }, rangemode: "tozero", showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "dot", spikecolor: theme().faint },
      yaxis: { title: { text: escaped(metric.label) + (metric.percent ? " (%)" : "") }, ...(state.log ? { type: "log" } : {}), ...(range ? { range } : {}) },
    }, home);
    div.shown = { metric, state, sets };
    if (!div.listens) listen(div);
    return done;
  }

  // The values at the pointer, below the chart instead of over it.
  function listen(div) {
    const out = div.closest(".over").querySelector(".readout");
    div.listens = true;
    out.firstText ??= out.textContent;
    const show = (event) => {
      const { metric, state, sets } = div.shown; // of the last drawing
      const digits = metric.percent ? 2 : 4, unit = metric.percent ? " %" : "";
      const units = { seconds: "s", clock: "device s", joules: "J" };
      const cost = (v) => (state.axis === "bytes" ? `${(v / 1e6).toPrecision(3)} MB` : state.axis in units ? `${v.toPrecision(3)} ${units[state.axis]}` : `${Math.round(v).toLocaleString("en")} ${state.axis === "rows" ? "gradient rows" : "local steps"}`);
      const x = event.points[0].x, made = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });
      out.classList.add("on");
      out.replaceChildren(made("b", `${metric.label}, ${state.axis === "rounds" ? `round ${x}` : cost(x)}`), " ");
      for (const set of sets) {
        let k = 0;
        set.x.forEach((v, j) => { if (Math.abs(v - x) < Math.abs(set.x[k] - x)) k = j; });
        if (state.axis === "rounds" && set.x[k] !== x) continue; // it has no such round
        const span = made("span", ""), dot = made("i", ""), many = set.seeds[k];
        dot.style.background = set.ink;
        const spread = many > 1 ? ` ±${set.std[k].toFixed(digits)}` : "";
        span.append(dot, `${set.label} ${set.mean[k].toFixed(digits)}${spread}${unit}${state.axis === "rounds" ? "" : ` (round ${set.rounds[k]})`}`);
        out.append(span);
      }
      const most = Math.max(...sets.map((set) => Math.max(...set.seeds)));
      if (most > 1) out.append(`mean ± standard deviation of up to ${most} seeds`);
      if (state.smooth > 1) out.append(` smoothed over ${state.smooth} points`);
    };
    div.on("plotly_hover", show);
    div.on("plotly_click", show);
    div.on("plotly_unhover", () => { // a finger is gone at once: what it touched stays
      if (touch()) return;
      out.textContent = out.firstText;
      out.classList.remove("on");
    });
  }

  // Each rival's difference to the best, with its interval.
  function gaps(div, data) {
    const t = theme(), y = data.labels.map(escaped);
    const trace = {
      type: "scatter", mode: "markers", x: data.mean, y, customdata: data.texts, marker: { color: t.ink, size: 9 },
      error_x: { type: "data", symmetric: false, array: data.high.map((v, i) => v - data.mean[i]), arrayminus: data.mean.map((v, i) => v - data.low[i]), color: t.ink, thickness: 2, width: 6 },
      hovertemplate: "%{y}: %{customdata}<extra></extra>",
    };
    const long = Math.max(...data.labels.map((label) => label.length));
    return draw(div, [trace], {
      height: 90 + 30 * y.length, hovermode: "closest", margin: { l: Math.min(narrow() ? 130 : 260, 24 + 7 * long), r: 20, b: 44 },
      shapes: [{ type: "line", yref: "paper", y0: 0, y1: 1, x0: 0, x1: 0, line: { color: t.faint, dash: "dot", width: 1.5 } }],
      xaxis: { title: { text: `minus ${escaped(data.best)}${data.unit ? ` (${data.unit})` : ""}` }, rangemode: "tozero" },
      yaxis: { type: "category", autorange: "reversed", showgrid: false, range: undefined },
    });
  }

  // Plotly reads a little HTML in its labels: words from a folder must not be read as such.
  function escaped(text) {
    return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/[{}%]/g, "");
  }

  const tall = (rows) => Math.max(200, Math.min(640, 80 + (rows > 30 ? 9 : 26) * rows));

  function ticks(z) {
    const known = z.flat().filter((v) => v !== null);
    if (!known.length) return {};
    const low = Math.floor(Math.min(...extent(known))), high = Math.ceil(Math.max(...extent(known)));
    const at = [];
    for (let p = low; p <= high; p += Math.max(1, Math.ceil((high - low) / 5))) at.push(p);
    return { tickvals: at, ticktext: at.map((p) => (Math.abs(p) < 4 ? String(+Math.pow(10, p).toPrecision(1)) : `1e${p}`)) };
  }

  const extent = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);

  // One number per client and round; `mix` puts the clients' labels next to it.
  function heat(div, map, mix) {
    const t = theme(), y = map.clients.map(String);
    const z = map.log ? map.z.map((row) => row.map((v) => (v > 0 ? Math.log10(v) : null))) : map.z;
    const hasMix = mix && mix.labels[0].length > 1;
    const traces = [{
      type: "heatmap", x: map.rounds, y, z, customdata: map.z, colorscale: "Cividis", hoverongaps: false,
      hovertemplate: `client %{y}, round %{x}: ${map.symbol} = %{customdata:.4~g}<extra></extra>`,
      colorbar: {
        thickness: 10, outlinewidth: 0, len: 1, x: 1.01, xpad: 4, ...(map.log ? ticks(z) : {}),
        title: { text: `${map.symbol}${map.unit ? `, ${map.unit}` : ""}${map.log ? " (log scale)" : ""}`, side: "right" },
      },
    }];
    if (hasMix) {
      const share = y.map((id) => {
        const row = mix.labels[mix.clients.indexOf(+id)];
        const sum = row ? row.reduce((a, b) => a + b, 0) : 0;
        return row ? row.map((n) => (sum ? (100 * n) / sum : null)) : mix.labels[0].map(() => null);
      });
      traces.push({
        type: "heatmap", x: mix.labels[0].map((_, label) => label), y, z: share, xaxis: "x2", showscale: false, hoverongaps: false,
        colorscale: [[0, t.panel], [1, t.dark ? "#56B4E9" : "#0072B2"]], zmin: 0, xgap: 1, ygap: 1,
        hovertemplate: "client %{y}: %{z:.0f} % of its rows have label %{x}<extra></extra>",
      });
    }
    const cut = narrow() ? 0.66 : 0.78;
    return draw(div, traces, {
      height: map.small ? Math.min(300, tall(y.length)) : tall(y.length), hovermode: "closest", margin: { l: 52, r: 78 },
      xaxis: { title: { text: "round" }, domain: hasMix ? [0, cut] : [0, 1], showgrid: false, tickangle: 0 },
      ...(hasMix ? { xaxis2: { title: { text: "label" }, domain: [cut + (narrow() ? 0.05 : 0.02), 1], showgrid: false, dtick: mix.labels[0].length > 12 ? undefined : narrow() ? 3 : 1, tick0: 0 } } : {}),
      yaxis: { title: { text: "client" }, type: "category", autorange: "reversed", showgrid: false, dtick: y.length > 30 ? Math.ceil(y.length / 15) : 1 },
    });
  }

  function line(div, series) {
    const t = theme(), bound = series.bound;
    const shapes = bound === null ? [] : [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: bound, y1: bound, line: { color: t.faint, dash: "dot", width: 1.5 } }];
    const trace = {
      x: series.rounds, y: series.y, type: "scatter", mode: series.y.length > 1 ? "lines" : "markers", line: { color: colour("#D55E00"), width: 2 },
      hovertemplate: `round %{x}: ${series.symbol} = %{y:.4~g}<extra></extra>`,
    };
    return draw(div, [trace], {
      height: 220, shapes, hovermode: "closest", xaxis: { title: { text: "round" } },
      yaxis: { title: { text: series.symbol }, rangemode: "tozero" },
    });
  }

  // Rows of each label as the area of a disc, rows of each client as a bar.
  function partition(div, part) {
    const ids = part.clients.map(String), labels = part.labels[0].length;
    const fill = colour("#0072B2"), height = Math.max(220, Math.min(900, 80 + (ids.length > 30 ? 12 : 30) * ids.length));
    const bars = (x, what, opacity) => ({
      type: "bar", orientation: "h", y: ids, x, marker: { color: colour("#009E73"), opacity }, xaxis: labels > 1 ? "x2" : "x",
      hovertemplate: `client %{y}: %{x} ${what}<extra></extra>`,
    });
    const held = [["val", "rows held back for validation", 0.55], ["test", "rows held back for tests", 0.3]].filter(([name]) => part[name]?.some((n) => n > 0));
    const traces = [bars(part.sizes, held.length ? "training rows" : "rows", 1), ...held.map(([name, what, opacity]) => bars(part[name], what, opacity))], cut = narrow() ? 0.68 : 0.76;
    if (labels > 1) {
      const most = Math.max(1, ...extent(part.labels.flat()).filter(Number.isFinite));
      const side = Math.min((height - 70) / ids.length, ((div.clientWidth || 800) * cut * 0.85) / labels);
      const all = part.clients.flatMap((_, i) => part.labels[i].map((n, label) => [ids[i], label, n])).filter((c) => c[2] > 0);
      traces.push({
        type: "scatter", mode: "markers", y: all.map((c) => c[0]), x: all.map((c) => c[1]), customdata: all.map((c) => c[2]),
        marker: { size: all.map((c) => Math.max(2.5, 0.92 * side * Math.sqrt(c[2] / most))), color: fill, opacity: 0.9, line: { width: 0 } },
        hovertemplate: "client %{y}, label %{x}: %{customdata} rows<extra></extra>",
      });
    }
    return draw(div, traces, {
      height, hovermode: "closest", margin: { l: 52 }, bargap: 0.35, barmode: "stack",
      xaxis: labels > 1 ? { title: { text: "label" }, domain: [0, cut], range: [-0.6, labels - 0.4], dtick: labels > 12 ? undefined : 1 } : { title: { text: "rows" } },
      ...(labels > 1 ? { xaxis2: { title: { text: "rows" }, domain: [cut + 0.03, 1], nticks: 4 } } : {}),
      yaxis: { title: { text: "client" }, type: "category", autorange: "reversed", categoryarray: ids, dtick: ids.length > 30 ? Math.ceil(ids.length / 15) : 1 },
    });
  }

  return { curves, gaps, heat, line, partition, colour, draw, escaped, extent, narrow, theme };
})();
