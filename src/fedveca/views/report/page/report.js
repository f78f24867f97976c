"use strict";
// The report's own behaviour: unpacks Plotly, draws each figure in turn, follows its switches, sorts, copies, prints.
(() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("data").textContent);
  const figures = []; // {div, draw}: every drawing can be made again in another look

  function figure(id, draw) {
    const div = document.getElementById(id);
    if (div) figures.push({ div, draw: () => draw(div) });
  }

  data.sections.forEach((section, s) => {
    const state = { axis: "rounds", hidden: new Set(), run: 0, part: 0, metric: 0, curve: 0, model: 0, confusion: 0, zoom: false, log: false, seeds: false, smooth: 1 };
    const part = document.getElementById(`s${s}`);
    const redraw = (kind) => figures.filter((f) => f.div.id.startsWith(`s${s}-${kind}`)).forEach((f) => f.draw());
    const zoomed = part.querySelector("input.view[value=zoom]");
    const home = (draw) => () => { // the first view again
      if (zoomed && zoomed.checked) {
        zoomed.checked = state.zoom = false;
        redraw("curve");
      } else draw();
    };
    if (section.gaps) figure(`s${s}-gaps`, (div) => charts.gaps(div, section.gaps));
    section.metrics.forEach((metric, m) => {
      const draw = (div) => charts.curves(div, section, metric, state, home(() => draw(div)));
      figure(`s${s}-curve${m}`, draw);
    });
    const maps = section.runs.length ? section.runs[0].maps.length : 0;
    for (let i = 0; i < maps; i++) {
      figure(`s${s}-inside-map${i}`, (div) => {
        const run = section.runs[state.run];
        div.setAttribute("aria-label", run.maps[i].alternative);
        return charts.heat(div, run.maps[i], i ? null : section.partitions[run.partition]);
      });
    }
    (section.runs.length ? section.runs[0].lines : []).forEach((_, i) => {
      figure(`s${s}-inside-line${i}`, (div) => {
        const line = section.runs[state.run].lines[i], said = div.parentNode.querySelector(".conclusion");
        div.setAttribute("aria-label", line.alternative);
        if (said) said.textContent = line.conclusion;
        return charts.line(div, line);
      });
    });
    (section.clients ? section.clients.stages : []).forEach((stage) => {
      const of = section.clients, words = (div, made) => div.setAttribute("aria-label", made.alternatives[stage][of.metrics[state.metric].name]);
      figure(`s${s}-clients-band-${stage}`, (div) => {
        words(div, of.curves[state.curve]);
        return clientCharts.band(div, of, of.curves[state.curve], of.metrics[state.metric], stage);
      });
      figure(`s${s}-clients-dots-${stage}`, (div) => {
        words(div, of.models[state.model]);
        return clientCharts.dots(div, of, of.models[state.model], of.metrics[state.metric], stage, part.querySelector("select.which-colour")?.value);
      });
    });
    figure(`s${s}-confusion-map`, (div) => {
      div.setAttribute("aria-label", section.confusions[state.confusion].alternative);
      return clientCharts.confusion(div, section.confusions[state.confusion].counts);
    });
    figure(`s${s}-part`, (div) => charts.partition(div, section.partitions[state.part]));

    part.querySelectorAll("input[type=radio]").forEach((input) => {
      input.addEventListener("change", () => { state.axis = input.value; redraw("curve"); });
    });
    part.querySelectorAll("input.view").forEach((input) => {
      input.addEventListener("change", () => { state[input.value] = input.checked; redraw("curve"); });
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
    const selects = [
      ["which-run", "inside", "run"], ["which-part", "part", "part"], ["smooth", "curve", "smooth"], ["which-metric", "clients", "metric"],
      ["which-curve", "clients-band", "curve"], ["which-model", "clients-dots", "model"], ["which-confusion", "confusion", "confusion"],
    ];
    for (const [name, kind, key] of selects) {
      const select = part.querySelector(`select.${name}`);
      if (select) select.addEventListener("change", () => { state[key] = +select.value; redraw(kind); });
    }
    const tint = part.querySelector("select.which-colour");
    if (tint) tint.addEventListener("change", () => redraw("clients-dots"));
    part.querySelectorAll("button.csv").forEach((button) => {
      const table = button.dataset.what === "table";
      button.addEventListener("click", () => save(table ? "results.csv" : "curves.csv", table ? section.csv : listCurves(section)));
    });
    part.querySelectorAll("button.copy").forEach((button) => {
      const of = button.dataset.what === "answer" ? part.querySelector(".answer") : button.parentNode.querySelector("pre");
      button.addEventListener("click", () => copy(of.textContent, button));
    });
    part.querySelectorAll("table.sortable").forEach(makeSortable);
  });
  data.sweeps.forEach((sweep, t) => {
    sweep.figures.forEach((map, i) => figure(`t${t}-map${i}`, (div) => sweeps.figure(div, map, sweep)));
  });

  // Every point of every curve, one line each.
  function listCurves(section) {
    const cell = (v) => (typeof v === "string" ? `"${(/^[=+\-@\t\r]/.test(v) ? "'" : "") + v.replace(/"/g, '""')}"` : v);
    const axes = Object.keys(section.axes), heading = { rounds: "round", steps: "local_steps", rows: "gradient_rows", clock: "device_seconds" };
    const lines = [["curve", "quantity", ...axes.map((axis) => heading[axis] ?? axis), "mean", "std", "seeds"].join(",")];
    for (const curve of section.curves) {
      for (const [name, band] of Object.entries(curve.metrics)) {
        band.mean.forEach((mean, k) => {
          const x = axes.map((axis) => band.x[axis][k]);
          lines.push([curve.label, name, ...x, mean, band.std[k], band.seeds[k]].map(cell).join(","));
        });
      }
    }
    return lines.join("\n") + "\n";
  }

  function save(name, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  async function copy(text, button) {
    const label = button.dataset.label ??= button.textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // no clipboard for files in this browser: the old way
      const area = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  }

  function makeSortable(table) {
    const heads = [...table.querySelectorAll("thead tr:last-child th")], body = table.tBodies[0];
    heads.forEach((head, i) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: head.textContent });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        heads.forEach((h) => h.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down === 1 ? "ascending" : "descending");
        const key = (row) => (i ? row.cells[i].dataset.value : row.cells[0].textContent);
        const rows = [...body.rows].sort((a, b) => {
          const [u, v] = [key(a), key(b)];
          if (!i) return down * u.localeCompare(v);
          return u === "" || v === "" ? (u === "") - (v === "") : down * (u - v); // what has no number comes last
        });
        body.append(...rows);
      });
    });
  }

  const swatches = () => document.querySelectorAll(".legend line").forEach((line) => {
    line.setAttribute("stroke", charts.colour(line.dataset.colour));
  });
  let drawn = 0;
  const all = () => { swatches(); figures.slice(0, drawn).forEach((f) => f.draw()); };

  const toggle = document.getElementById("theme");
  const dark = () => getComputedStyle(root).getPropertyValue("--dark").trim() === "1";
  const name = () => { toggle.textContent = dark() ? "Light" : "Dark"; };
  toggle.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); all(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { name(); all(); });

  window.addEventListener("beforeprint", () => { root.classList.add("printing"); all(); });
  window.addEventListener("afterprint", () => { root.classList.remove("printing"); all(); });

  // The page's policy names the hash of the unpacked script, so that nothing else can run in its place.
  async function unpack() {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  }

  const mark = (name) => { root.dataset[name] ??= String(Math.round(performance.now())); };
  function step() { // one at a time, so that the page answers meanwhile
    if (drawn < figures.length && figures[drawn].div.getBoundingClientRect().top > window.innerHeight) mark("seen");
    if (drawn < figures.length) {
      figures[drawn++].draw();
      setTimeout(step, 0);
    } else {
      mark("seen");
      mark("drawn");
    }
  }

  name();
  swatches();
  unpack().then(step, (error) => {
    const trouble = document.getElementById("trouble");
    trouble.textContent = `The figures cannot be drawn: this browser is too old for this page (${error.message}). The tables and commands are complete.`;
    trouble.hidden = false;
  });
})();
