"use strict";
// Draws what views/series.py makes: curves over seeds, heat maps of clients and rounds, partitions. Needs Plotly.
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
    while (bright() < 0.3) rgb = rgb.map((v) => Math.ceil(v + 0.1 * (255 - v)));
    return "#" + rgb.map((v) => Math.min(255, v).toString(16).padStart(2, "0")).join("");
  }

  // Lengths on and off in widths of the line, as the registry of methods has them.
  const dashed = (parts, width) => (parts.length ? parts.map((v) => `${v * width}px`).join(",") : "solid");

  function layout(more) {
    const t = theme();
    // Fixed margins: Plotly's own search for them draws every chart twice.
    const axis = { gridcolor: t.rule, linecolor: t.rule, zeroline: false, tickcolor: t.rule };
    const base = {
      font: { family: "system-ui, sans-serif", size: 12, color: t.ink },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false,
      margin: { l: 56, r: 14, t: 10, b: 44 }, dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      hoverlabel: { bgcolor: t.panel, bordercolor: t.rule, font: { color: t.ink } },
    };
    for (const [key, value] of Object.entries(more)) base[key] = /^[xy]axis/.test(key) ? { ...axis, ...value } : value;
    return base;
  }

  function draw(div, traces, more) {
    const config = {
      responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      toImageButtonOptions: { format: "svg", filename: div.id },
    };
    const paper = document.documentElement.classList.contains("printing"); // a window's width is no paper's
    return Plotly.react(div, traces, { ...layout(more), ...(paper ? { width: div.clientWidth } : { autosize: true }) }, config);
  }

  // The first steep rounds may leave the picture: the end is what is compared. A double click shows all.
  function focus(sets, rising) {
    const rest = sets.flatMap((c) => c.mean.slice(c.mean.length > 5 ? Math.floor(c.mean.length / 20) : 0));
    const sorted = rest.sort((a, b) => a - b);
    if (sorted.length < 2) return undefined;
    const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
    const [low, high] = rising ? [at(0.02), at(1)] : [at(0), at(0.98)];
    const pad = 0.06 * (high - low || Math.abs(high) || 1);
    return [low - pad, high + pad];
  }

  function curves(div, section, metric, axis, hidden) {
    const scale = metric.percent ? 100 : 1, unit = metric.percent ? " %" : "";
    const traces = [], sets = [];
    section.curves.forEach((curve, i) => {
      const band = curve.metrics[metric.name];
      if (!band || hidden.has(i)) return;
      const x = band.x[axis], mean = band.mean.map((v) => scale * v), std = band.std.map((v) => scale * v);
      const ink = colour(curve.colour), width = curve.strong ? 2.6 : 2;
      sets.push({ mean });
      if (std.some((v) => v > 0)) {
        traces.push({
          x: [...x, ...[...x].reverse()],
          y: [...mean.map((m, k) => m + std[k]), ...mean.map((m, k) => m - std[k]).reverse()],
          fill: "toself", fillcolor: ink + "26", line: { width: 0 }, mode: "lines", hoverinfo: "skip", type: "scatter",
        });
      }
      traces.push({
        x, y: mean, name: curve.label, type: "scatter", mode: x.length > 1 ? "lines" : "markers",
        line: { color: ink, dash: dashed(curve.dash, width), width }, customdata: std.map((s, k) => [s, band.seeds[k]]),
        hovertemplate: `%{y:.4~g}${unit} ±%{customdata[0]:.2~g} (%{customdata[1]})<extra>${escaped(curve.label)}</extra>`,
      });
    });
    return draw(div, traces, {
      height: narrow() ? 260 : 320, hovermode: axis === "rounds" && !narrow() ? "x unified" : "closest",
      xaxis: { title: { text: section.axes[axis] }, rangemode: "tozero" },
      yaxis: { title: { text: escaped(metric.label) + (metric.percent ? " (%)" : "") }, range: focus(sets, metric.rising) },
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
      colorbar: { thickness: 10, outlinewidth: 0, len: 1, x: 1.01, xpad: 4, ...(map.log ? ticks(z) : {}) },
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
      height: map.small ? Math.min(300, tall(y.length)) : tall(y.length), hovermode: "closest", margin: { l: 52, r: 54, t: 10, b: 44 },
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
    const bars = {
      type: "bar", orientation: "h", y: ids, x: part.sizes, marker: { color: colour("#009E73") }, xaxis: labels > 1 ? "x2" : "x",
      hovertemplate: "client %{y}: %{x} rows<extra></extra>",
    };
    const traces = [bars], cut = narrow() ? 0.68 : 0.76;
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
      height, hovermode: "closest", margin: { l: 52, r: 14, t: 10, b: 44 }, bargap: 0.35,
      xaxis: labels > 1 ? { title: { text: "label" }, domain: [0, cut], range: [-0.6, labels - 0.4], dtick: labels > 12 ? undefined : 1 } : { title: { text: "rows" } },
      ...(labels > 1 ? { xaxis2: { title: { text: "rows" }, domain: [cut + 0.03, 1], nticks: 4 } } : {}),
      yaxis: { title: { text: "client" }, type: "category", autorange: "reversed", categoryarray: ids, dtick: ids.length > 30 ? Math.ceil(ids.length / 15) : 1 },
    });
  }

  return { curves, heat, line, partition, colour };
})();
