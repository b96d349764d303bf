// Two runs compared, stage by stage: code, environment, inputs, params, metrics and durations.

import { get } from "./api.js";
import { changes } from "./compare.js";
import { crumbs, h, quiet, state, under } from "./dom.js";
import { cell, span } from "./format.js";
import { toRun } from "./links.js";
import { table } from "./table.js";
import { runWords, when } from "./time.js";

const DIGEST = /^b3:[0-9a-f]{64}$/;
const COLUMNS = [["Of it", "name"], ["Before", "name"], ["After", "name"]];

export const diffPlace = (old, next) => `#/diff?${new URLSearchParams({
  old_dag: old.dag_id, old: old.run_id, new_dag: next.dag_id, new: next.run_id,
})}`;

export async function runDiff({ put, signal }, asked) {
  const { old_dag: oldDag, old, new_dag: newDag, new: next } = asked;
  const found = await get("run_diff", { old_dag: oldDag, old, new_dag: newDag, new: next }, signal);
  const alike = found.stages.every(({ only, facts }) => !only && !facts.length);
  put(
    crumbs(h("a", { href: "#/runs" }, "Runs")),
    h("h1", { tabindex: -1 }, "2 runs compared"),
    h("div", { class: "compared plain" }, table("The runs", COLUMNS, head(found), "")),
    alike && h("p", { class: "quiet" }, "Nothing but the durations differs."),
    found.stages.map(stage),
  );
}

const head = ({ old, new: next }) => [
  [["run", toRun(old, runWords(old.run_id)), toRun(next, runWords(next.run_id))]],
  [["Dag", old.dag_id, next.dag_id], old.dag_id === next.dag_id ? "gone" : "differs"],
  [["state", state(old.state), state(next.state)]],
  [["began", when(old.began), when(next.began)]],
  [["took", lasted(old), lasted(next)]],
];

const lasted = ({ began, ended }) => (ended ? span(ended - began) : "it runs");

function stage({ stage: name, only, facts, seconds: [was, now], code }) {
  if (only) return under(name, h("p", { class: "quiet" }, `Only the ${only === "old" ? "first" : "second"} run has this stage.`));
  const took = was !== null && now !== null ? `${span(was)} → ${span(now)}` : "";
  if (!facts.length) return [h("h2", {}, name, h("small", { class: "quiet" }, ` ${took}`)), quiet("the same")];
  return [
    h("h2", {}, name, h("small", { class: "quiet" }, ` ${took}`)),
    h("div", { class: "compared plain" }, table(`What differs in ${name}`, COLUMNS, facts.map((fact) => [[fact.name, brief(fact.old), brief(fact.new)], "differs"]), "")),
    code === null ? quiet("Airflow does not let you read the code.") : code.map(changes),
  ];
}

const brief = (value) => (DIGEST.test(value) ? h("code", { title: value }, value.slice(0, 19)) : value === null ? "—" : cell(value));
