"use strict";
// The report's own behaviour: draws each figure in turn, follows its switches, prints.
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const figures = []; // {div, draw}: every drawing can be made again in another look

  function figure(id, draw) {
    const div = document.getElementById(id);
    if (div) figures.push({ div, draw: () => draw(div) });
  }

  data.sections.forEach((section, s) => {
    const state = { axis: "rounds", hidden: new Set(), run: 0, part: 0 };
    const part = document.getElementById(`s${s}`);
    const redraw = (kind) => figures.filter((f) => f.div.id.startsWith(`s${s}-${kind}`)).forEach((f) => f.draw());
    section.metrics.forEach((metric, m) => {
      figure(`s${s}-curve${m}`, (div) => charts.curves(div, section, metric, state.axis, state.hidden));
    });
    const maps = section.runs.length ? section.runs[0].maps.length : 0;
    for (let i = 0; i < maps; i++) {
      figure(`s${s}-inside-map${i}`, (div) => {
        const run = section.runs[state.run];
        return charts.heat(div, run.maps[i], i ? null : section.partitions[run.partition]);
      });
    }
    (section.runs.length ? section.runs[0].lines : []).forEach((_, i) => {
      figure(`s${s}-inside-line${i}`, (div) => charts.line(div, section.runs[state.run].lines[i]));
    });
    figure(`s${s}-part`, (div) => charts.partition(div, section.partitions[state.part]));

    part.querySelectorAll("input[type=radio]").forEach((input) => {
      input.addEventListener("change", () => { state.axis = input.value; redraw("curve"); });
    });
    const buttons = [...part.querySelectorAll(".legend button")];
    const press = () => {
      buttons.forEach((b, i) => b.setAttribute("aria-pressed", String(!state.hidden.has(i))));
      redraw("curve");
    };
    buttons.forEach((button, i) => {
      button.addEventListener("click", () => { state.hidden[state.hidden.has(i) ? "delete" : "add"](i); press(); });
      button.addEventListener("dblclick", () => {
        state.hidden = new Set(buttons.keys());
        state.hidden.delete(i);
        press();
      });
    });
    for (const [name, kind, key] of [["which-run", "inside", "run"], ["which-part", "part", "part"]]) {
      const select = part.querySelector(`select.${name}`);
      if (select) select.addEventListener("change", () => { state[key] = +select.value; redraw(kind); });
    }
  });

  const swatches = () => document.querySelectorAll(".legend line").forEach((line) => {
    line.setAttribute("stroke", charts.colour(line.dataset.colour));
  });
  const all = () => { swatches(); figures.forEach((f) => f.draw()); };

  const toggle = document.getElementById("theme");
  const dark = () => getComputedStyle(root).getPropertyValue("--dark").trim() === "1";
  const name = () => { toggle.textContent = dark() ? "Light" : "Dark"; };
  toggle.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); all(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { name(); all(); });

  window.addEventListener("beforeprint", () => { root.classList.add("printing"); all(); });
  window.addEventListener("afterprint", () => { root.classList.remove("printing"); all(); });

  name();
  swatches();
  let next = 0;
  const mark = (name) => { root.dataset[name] ??= String(Math.round(performance.now())); };
  (function step() { // one at a time, so that the page answers meanwhile
    if (next < figures.length && figures[next].div.getBoundingClientRect().top > window.innerHeight) mark("seen");
    if (next < figures.length) {
      figures[next++].draw();
      setTimeout(step, 0);
    } else {
      mark("seen");
      mark("drawn");
    }
  })();
})();
