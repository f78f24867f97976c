// Settings side by side, the log, the faults.

import { ask, byId, copier, make } from "./dom.js";
import { brief, count, formatValue, toText } from "./format.js";
import { labelLine } from "./look.js";

const COUNT = 100;

export class Settings {
  constructor() { this.whole = false; }

  // `names`: id -> {label, style}
  async show(chosen, rows, names) {
    const runs = await Promise.all(chosen.map((id) => ask("run", [["run", id]])));
    const keys = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
    const cell = (run, key) => (key in run.settings ? toText(run.settings[key]) || '""' : "–");
    const differs = (key) => new Set(runs.map((run) => cell(run, key))).size > 1;
    const different = keys.filter(differs);
    const whole = this.whole || runs.length === 1;
    const note = runs.length === 1 ? "" : different.length ? `${different.length} of ${keys.length} settings differ.` : "The settings are the same.";
    const box = make("input", { type: "checkbox", checked: whole, onchange: () => { this.whole = box.checked; this.show(chosen, rows, names); } });
    const head = make("tr", {}, make("th", { scope: "col" }, "setting"), ...runs.map((run) => make("th", { scope: "col" }, labelOf(run.id, names))));
    const states = runs.map((run) => rows.find((row) => row.id === run.id));
    const about = [
      ["state", states.map((row) => (row ? [make("span", { class: `state ${row.state}` }, row.state), row.why ? `: ${row.why}` : ""] : ["–"]))],
      ["folder", runs.map((run) => [run.folder, " ", copier(() => run.folder, "Copy", `Copy the folder of ${run.id}`)])],
      ["resume with", runs.map((run, i) => (states[i]?.resume ? [run.resume, " ", copier(() => run.resume, "Copy", `Copy the command that resumes ${run.id}`)] : ["–"]))],
      ["clients", runs.map((run, i) => [listClients(run, states[i]) || "–"])],
    ].filter(([name]) => name !== "resume with" || states.some((row) => row?.resume))
      .filter(([name]) => name !== "clients" || runs.some((run, i) => listClients(run, states[i])))
      .map(([name, cells]) => make("tr", { class: "about" }, make("th", { scope: "row" }, name), ...cells.map((parts) => make("td", {}, ...parts))));
    const lines = (whole ? keys : different).map((key) => make("tr", { class: differs(key) ? "differs" : null },
      make("th", { scope: "row" }, key), ...runs.map((run) => make("td", {}, cell(run, key)))));
    const made = [...new Set(runs.flatMap((run) => Object.keys(run.environment)))].map((key) => make("tr", {},
      make("th", { scope: "row" }, key), ...runs.map((run) => make("td", {}, toText(run.environment[key] ?? "–")))));
    byId("settings").replaceChildren(
      make("p", { class: "note" }, note, runs.length > 1 ? make("label", { class: "box" }, " ", box, "show all") : ""),
      make("table", {}, make("caption", { class: "hidden" }, "Settings of the chosen runs"), make("thead", {}, head),
        make("tbody", {}, ...about, ...lines, ...(whole && made.length ? [make("tr", {}, make("th", { colspan: runs.length + 1 }, "made with")), ...made] : []))),
    );
  }
}

// How the kept model, or the latest of a run under way, does for the clients that tested it.
function listClients(run, row) {
  const values = run.summary.kept ?? row?.values ?? {}, metric = row?.metric ?? "", of = `clients_${metric.replace(/^test_/, "")}`;
  const parts = [["mean", of], ["worst tenth", `${of}_worst`], ["best tenth", `${of}_best`]].filter(([, name]) => typeof values[name] === "number");
  return parts.length ? `${row.label}: ${parts.map(([label, name]) => `${label} ${formatValue(metric, values[name])}`).join(", ")}` : "";
}

const labelOf = (id, names) => (names.has(id) ? labelLine(names.get(id).label, names.get(id).style) : make("span", { class: "line" }, id));

export class Log {
  constructor() { this.before = new Map(); }

  async show(chosen, rows, names) {
    const parts = await Promise.all(chosen.map(async (id) => {
      const before = this.before.get(id);
      const log = await ask("log", [["run", id], ["count", COUNT], ...(before == null ? [] : [["before", before]])]);
      const row = rows.find((r) => r.id === id);
      const go = (to) => () => { this.before.set(id, to); this.show(chosen, rows, names); };
      const last = log.first + log.lines.length;
      return [
        make("h2", {}, labelOf(id, names)),
        make("p", { class: ["diverged", "damaged"].includes(row?.state) ? "note wrong" : "note" }, [
          row && `${row.state}`, row?.why, log.total ? `rounds ${log.first + 1} to ${last} of ${log.total}, the newest first` : "no round has ended yet",
        ].filter(Boolean).join(" · ")),
        make("p", { class: "note" },
          make("button", { type: "button", disabled: log.first === 0, onclick: go(log.first) }, "earlier"), " ",
          make("button", { type: "button", disabled: before == null, onclick: go(last + COUNT >= log.total ? null : last + COUNT) }, "later")),
        make("pre", { tabindex: 0, role: "region", "aria-label": `Log of ${id}` }, log.lines.reverse().map((line) => formatLine(line, row)).join("\n")),
      ];
    }));
    const places = [...byId("log").querySelectorAll("pre")].map((pre) => [pre.scrollTop, pre.scrollLeft]);
    byId("log").replaceChildren(...parts.flat());
    [...byId("log").querySelectorAll("pre")].forEach((pre, i) => { [pre.scrollTop, pre.scrollLeft] = places[i] ?? [0, 0]; });
  }
}

function formatLine(line, row) {
  try { return joinValues(line, row); } catch { return `round ${line.round + 1}  invalid`; }
}

function joinValues(line, row) {
  const tau = Array.isArray(line.tau) ? line.tau : [];
  return [
    `round ${String(line.round + 1).padStart(String(row?.of ?? "").length)}${row?.of ? `/${row.of}` : ""}`,
    row?.metric && line[row.metric] != null && `${row.label} ${formatValue(row.metric, line[row.metric])}`,
    line.test_loss != null && `loss ${brief(line.test_loss)}`,
    line.train_loss != null && `train ${brief(line.train_loss)}`,
    tau.length > 0 && (tau.length <= 12 ? `tau ${tau.join(" ")}` : `tau ${Math.min(...tau)}..${Math.max(...tau)} of ${tau.length} clients`),
    line.premise != null && `premise ${brief(line.premise)}`,
    line.seconds != null && `${brief(line.seconds)} s`,
    line.accepted === false && "not accepted",
    line.left_out?.length > 0 && `left out ${line.left_out.join(" ")}`,
    line.faults?.length > 0 && count(line.faults.length, "fault"),
  ].filter(Boolean).join("  ");
}

export async function showFaults(chosen, names) {
  const runs = await Promise.all(chosen.map((id) => ask("run", [["run", id]])));
  const rows = runs.flatMap((run) => run.faults.map((fault) => make("tr", {},
    make("td", {}, labelOf(run.id, names)), make("td", { class: "right" }, fault.round), make("td", {}, fault.client), make("td", {}, fault.what))));
  const notes = runs.flatMap((run) => [
    run.summary.stopped && make("p", { class: "note wrong" }, `${run.id} diverged: ${toText(run.summary.stopped)}`),
    run.damaged > 0 && make("p", { class: "note wrong" }, `${run.id}: ${count(run.damaged, "line")} of rounds.jsonl cannot be read and ${run.damaged === 1 ? "is" : "are"} left out`),
    run.fault_count > run.faults.length && make("p", { class: "note" }, `${run.id}: the last ${run.faults.length} of ${run.fault_count} faults`),
  ].filter(Boolean));
  const head = make("tr", {}, ...["run", "round", "client", "what"].map((name) => make("th", { scope: "col" }, name)));
  byId("faults").replaceChildren(...notes, rows.length
    ? make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows.reverse()))
    : make("p", { class: "note" }, "No client failed or was left out."));
}
