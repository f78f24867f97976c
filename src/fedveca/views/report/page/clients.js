"use strict";
// Draws what views/report/clients.py makes: distributions over clients, clients next to their rows, confusion matrices.
const clientCharts = (() => {
  const { colour, draw, escaped, extent, narrow, theme } = charts;
  const LABELS = ["#0072B2", "#D55E00", "#009E73", "#BC5E94", "#2B93D1", "#B77900", "#444444", "#8F4BD0", "#C62828", "#6B6B00"];
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon", "hexagon"];

  const below = { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0 }; // the title of the axis is above it
  const scaleOf = (metric) => (metric.percent ? 100 : 1);
  const titleOf = (metric) => escaped(metric.label) + (metric.percent ? " (%)" : "");
  const known = (values) => values.filter((v) => v !== null);

  // All stages of a figure have one scale, so that they can be compared.
  function range(values) {
    const [low, high] = extent(known(values)), pad = 0.05 * (high - low || Math.abs(high) || 1);
    return Number.isFinite(low) ? { range: [low - pad, high + pad] } : {};
  }

  function band(div, clients, curve, metric, stage) {
    const scale = scaleOf(metric), found = curve.stages[stage][metric.name], ink = colour(curve.colour), x = found.x.rounds;
    const of = (key) => found[key].map((v) => (v === null ? null : scale * v));
    const area = (low, high, alpha) => ({
      x: [...x, ...[...x].reverse()], y: [...high, ...[...low].reverse()], fill: "toself", fillcolor: ink + alpha, line: { width: 0 }, mode: "lines",
      type: "scatter", hoverinfo: "skip", showlegend: false,
    });
    const [mean, worst, low, middle, high, best] = ["mean", "worst", "low", "middle", "high", "best"].map(of);
    const digits = metric.percent ? ".2f" : ".4f", unit = metric.percent ? " %" : "", mode = x.length > 1 ? "lines" : "markers";
    const whole = (values) => values.every((v) => v !== null), tenths = whole(worst) && whole(best), quartiles = whole(low);
    const traces = x.length > 1 && tenths ? [area(worst, best, "26")] : [];
    if (x.length > 1 && quartiles) traces.push(area(low, high, "4d"));
    const line = (name, y, more) => ({
      x, y, name, type: "scatter", mode, line: { color: ink, ...more }, hovertemplate: `%{y:${digits}}${unit}<extra>${name}</extra>`,
    });
    if (tenths) traces.push(line("best 10 %", best, { width: 1 }));
    if (quartiles) traces.push(line("median", middle, { width: 1.2, dash: "dot" }));
    traces.push(line("mean", mean, { width: 2.4 }));
    if (tenths) traces.push(line("worst 10 %", worst, { width: 1.6, dash: "dash" }));
    const all = clients.stages.flatMap((s) => ["worst", "low", "mean", "high", "best"].flatMap((key) => known(curve.stages[s][metric.name][key]).map((v) => scale * v)));
    return draw(div, traces, {
      height: narrow() ? 280 : 340, hovermode: "x unified", xaxis: { title: { text: "round" }, rangemode: "tozero" }, yaxis: { title: { text: titleOf(metric) }, ...range(all) },
      showlegend: true, legend: below, margin: { b: narrow() ? 96 : 74 },
    });
  }

  function dots(div, clients, model, metric, stage, tint) {
    const t = theme(), scale = scaleOf(metric), values = model.values[stage][metric.name].map((v) => (v === null ? null : scale * v));
    const digits = metric.percent ? ".2f" : ".4f", unit = metric.percent ? " %" : "";
    const text = model.clients.map((client, i) => {
      const tested = model.tested[i] === null ? "" : `, tested on ${model.tested[i]}`;
      const main = model.main[i] === null ? "" : `<br>${model.labels[i]} label${model.labels[i] === 1 ? "" : "s"}, ${Math.round(100 * model.share[i])} % of its rows have label ${model.main[i]}`;
      return `client ${client}: ${model.rows[i]} training rows${tested}${main}`;
    });
    const trace = (places, marker, name) => ({
      type: "scatter", mode: "markers", x: places.map((i) => model.rows[i]), y: places.map((i) => values[i]), text: places.map((i) => text[i]), name,
      marker: { size: 9, opacity: 0.9, line: { color: t.panel, width: 1 }, ...marker }, hovertemplate: `%{text}<br>%{y:${digits}}${unit}<extra></extra>`,
    });
    const every = values.map((_, i) => i).filter((i) => values[i] !== null);
    let traces;
    if (tint === "main") {
      const labels = [...new Set(every.map((i) => model.main[i]))].sort((a, b) => a - b);
      traces = labels.map((label) => trace(every.filter((i) => model.main[i] === label), { color: colour(LABELS[(label ?? 0) % LABELS.length]), symbol: SYMBOLS[(label ?? 0) % SYMBOLS.length] }, `label ${label}`));
    } else if (tint === "labels") {
      const bar = { thickness: 10, outlinewidth: 0, title: { text: "labels", side: "right" }, tickformat: "d" };
      traces = [trace(every, { color: every.map((i) => model.labels[i]), colorscale: "Cividis", colorbar: bar, line: { color: t.faint, width: 1 } }, "")];
    } else traces = [trace(every, { color: colour(LABELS[0]) }, "")];
    const ranked = every.map((i) => values[i]).sort((a, b) => a - b), tenth = Math.max(1, Math.floor(ranked.length / 10));
    const worst = metric.better === "lower" ? ranked.slice(-tenth) : ranked.slice(0, tenth), mean = (v) => v.reduce((a, b) => a + b, 0) / v.length;
    const level = (y, dash) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: y, y1: y, line: { color: t.faint, dash, width: 1.5 } });
    const rows = known(model.rows).filter((n) => n > 0), wide = Math.max(...extent(rows)) > 20 * Math.min(...extent(rows));
    const all = clients.stages.flatMap((s) => known(model.values[s][metric.name]).map((v) => scale * v));
    return draw(div, traces, {
      height: narrow() ? 300 : 360, hovermode: "closest", shapes: ranked.length ? [level(mean(ranked), "dash"), ...(metric.better ? [level(mean(worst), "dot")] : [])] : [],
      xaxis: { title: { text: "training rows of the client" }, ...(wide ? { type: "log" } : {}) }, yaxis: { title: { text: titleOf(metric) }, ...range(all) },
      showlegend: tint === "main", legend: below, margin: { b: tint === "main" ? 44 + 20 * Math.ceil(traces.length / (narrow() ? 4 : 6)) + 8 : 44, ...(tint === "labels" ? { r: 70 } : {}) },
    });
  }

  // Rows are true labels: of each, the share that was given every label.
  function confusion(div, counts) {
    const t = theme(), labels = counts.map((_, i) => String(i)), few = counts.length <= 12;
    const share = counts.map((row) => {
      const sum = row.reduce((a, b) => a + b, 0);
      return row.map((n) => (sum ? (100 * n) / sum : null));
    });
    const side = Math.min(div.clientWidth || 600, 620);
    const annotations = few ? share.flatMap((row, i) => row.map((v, j) => ({
      x: labels[j], y: labels[i], text: v === null || v < 0.5 ? "" : String(Math.round(v)), showarrow: false,
      font: { size: narrow() ? 9 : 11, color: v > 55 ? (t.dark ? "#10222e" : "#ffffff") : t.ink },
    }))) : [];
    return draw(div, [{
      type: "heatmap", x: labels, y: labels, z: share, customdata: counts, zmin: 0, zmax: 100, hoverongaps: false, xgap: few ? 1 : 0, ygap: few ? 1 : 0,
      colorscale: [[0, t.panel], [1, t.dark ? "#56B4E9" : "#005a8c"]], colorbar: { thickness: 10, outlinewidth: 0, title: { text: "% of the true label", side: "right" } },
      hovertemplate: "true label %{y}, predicted %{x}: %{z:.1f} % (%{customdata} rows)<extra></extra>",
    }], {
      height: Math.max(280, 0.8 * side), hovermode: "closest", annotations, margin: { r: 84 },
      xaxis: { title: { text: "predicted label" }, type: "category", showgrid: false, ...(few ? { dtick: 1 } : {}) },
      yaxis: { title: { text: "true label" }, type: "category", autorange: "reversed", showgrid: false, ...(few ? { dtick: 1 } : {}) },
    });
  }

  return { band, dots, confusion };
})();
