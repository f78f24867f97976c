// Groups of runs: by folder, by a setting, or those that differ in their seed alone. A group has one method.

import { toText } from "./format.js";
import { titleOf } from "./look.js";

// Settings that may differ between runs which a mean over seeds joins, as in reports.
const MAY_DIFFER = ["seed", "data_dir", "tau_all", "test_every", "checkpoint_every", "track"];
const keyOf = (run) => JSON.stringify(Object.entries(run.all).filter(([name]) => !MAY_DIFFER.includes(name)).sort());

// The names of settings that differ between some runs.
export function differing(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.all)))];
  return names.filter((name) => new Set(runs.map((run) => toText(run.all[name]))).size > 1);
}

// [{key, label, method, runs, seeds, mixed}], in the order of the runs.
export function groupRuns(runs, by) {
  const groups = new Map();
  for (const run of runs) {
    const part = by === "folder" ? run.folder : by === "seeds" ? keyOf(run) : toText(run.all[by] ?? "–");
    const key = `${part}\n${run.method}`;
    if (!groups.has(key)) groups.set(key, { key, part, method: run.method, runs: [] });
    groups.get(key).runs.push(run);
  }
  const all = [...groups.values()];
  for (const group of all) {
    const seeds = new Set(group.runs.map((run) => run.seed));
    const words = [titleOf(group.method)];
    if (by === "folder") words.push("in", group.part || "the board's folder");
    else if (by === "seeds") {
      const rivals = all.filter((other) => other.method === group.method).map((other) => other.runs[0]);
      words.push(...differing(rivals).filter((name) => !MAY_DIFFER.includes(name)).map((name) => `${name}=${toText(group.runs[0].all[name] ?? "–")}`));
    } else if (by !== "method") words.push(`${by}=${group.part}`);
    Object.assign(group, { label: words.join(" "), seeds: seeds.size, mixed: new Set(group.runs.map(keyOf)).size > 1 });
  }
  return all;
}
