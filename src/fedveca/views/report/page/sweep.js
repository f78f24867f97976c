"use strict";
// Draws what views/report/sweep.py makes: the settings that a sweep tried, and how good they were.
const sweeps = (() => {
  const { draw, escaped, narrow, theme } = charts;

  // What a sweep tried: a map of two settings, or points where they came from ranges; the chosen one has a star.
  function figure(div, map, scale) {
    const t = theme(), unit = scale.percent ? " (%)" : "", star = map.best.map(([i, j]) => `${i},${j}`);
    const shown = (v) => (v === null ? "" : v.toFixed(scale.percent ? 1 : 3));
    const colours = { colorscale: "Cividis", reversescale: !scale.rising };
    const bar = { thickness: 10, outlinewidth: 0, len: 1, x: 1.01, xpad: 4 };
    if (map.kind === "map") {
      const [x, y] = [map.x, map.y].map((values) => values.map((v) => escaped(v)));
      const trace = {
        type: "heatmap", x, y, z: map.z, zmin: scale.low, zmax: scale.high, ...colours, xgap: 2, ygap: 2, hoverongaps: false,
        text: map.z.map((row, i) => row.map((v, j) => (star.includes(`${i},${j}`) ? `★ ${shown(v)}` : shown(v)))),
        texttemplate: "%{text}", customdata: map.texts.map((row) => row.map(escaped)),
        hovertemplate: "%{customdata}<extra></extra>", colorbar: bar,
      };
      const long = Math.max(...y.map((label) => label.length));
      return draw(div, [trace], {
        height: 110 + 44 * y.length, hovermode: "closest", margin: { l: Math.min(narrow() ? 110 : 200, 40 + 7 * long), r: 58 },
        xaxis: { title: { text: escaped(map.x_title) }, type: "category", showgrid: false },
        yaxis: { title: { text: map.y_title === "method" ? "" : escaped(map.y_title) }, type: "category", autorange: "reversed", showgrid: false },
      });
    }
    const alone = map.y_title === scale.label, chosen = map.x.map((_, j) => star.includes(`0,${j}`));
    const trace = {
      type: "scatter", mode: "markers", x: map.x, y: map.y, customdata: map.texts[0].map(escaped), hovertemplate: "%{customdata}<extra></extra>",
      marker: {
        color: map.z[0], cmin: scale.low, cmax: scale.high, ...colours, showscale: !alone, colorbar: bar,
        size: chosen.map((v) => (v ? 16 : 9)), symbol: chosen.map((v) => (v ? "star" : "circle")), line: { width: 1, color: t.ink },
      },
    };
    return draw(div, [trace], {
      height: 300, hovermode: "closest", margin: { r: alone ? 14 : 58 },
      xaxis: { title: { text: escaped(map.x_title) }, type: map.log_x ? "log" : "-" },
      yaxis: { title: { text: escaped(map.y_title) + (alone ? unit : "") }, type: map.log_y ? "log" : "-" },
    });
  }

  return { figure };
})();
