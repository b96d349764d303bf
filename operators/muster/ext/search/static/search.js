// One search for params: what it is, how far its rungs are, its trials and their curves, which params matter, and the best one.

import { get, post } from "../api.js";
import { crumbs, facts, h, quiet, state, twice, under, value } from "../dom.js";
import { cell, count, number, span } from "../format.js";
import { several, toJob, toRun, toTask } from "../links.js";
import { Curves } from "./search_curves.js";
import { Points } from "./search_points.js";
import { matters, rungs } from "./search_rungs.js";
import { Trials } from "./search_trials.js";
import { runWords, when } from "../time.js";
import { reading, redraw, watch } from "../watch.js";

const CURVES_EVERY = 4; // looks: the curves of trials that run are read from their jobs
const STOPPING = {
  asha: "asynchronous successive halving (asha)",
  halving: "synchronous successive halving (halving)",
  none: "none: every trial trains to the last rung",
};

export async function oneSearch(screen, id) {
  const { put, signal } = screen;
  const where = `searches/${encodeURIComponent(id)}`;
  const [head, about] = [h("div", {}), h("div", {})];
  const cancel = twice("Cancel search", "End this search and its trials? Its task fails, and no best trial is kept.", async () => { await post(`${where}/cancel`); },
    { yes: "end it", doing: "ending: its trials get time to save …", id: "cancel" });
  const parts = { curves: new Curves(where), points: new Points(where), trials: new Trials(where, screen) };
  let [known, looks] = [null, 0];
  await watch(screen, 3, async () => {
    const found = await get(where, {}, signal);
    if (!reading(head)) redraw(head, () => describe(found, cancel));
    if (!reading(about)) redraw(about, () => details(found));
    if (known === null)
      put(head, about, h("div", { class: "halves" }, parts.curves.element, parts.points.element), parts.trials.element);
    const news = found.version !== known;
    const again = news || (found.running > 0 && looks % CURVES_EVERY === 0);
    [known, looks] = [found.version, looks + 1];
    await Promise.all([
      parts.trials.more(found, signal), news && parts.points.more(found, signal), again && parts.curves.more(found, signal),
    ]);
    return found.ended === null || found.running > 0; // one that is over has trials that end yet
  });
}

function describe(found, cancel) {
  const going = found.ended === null;
  return [
    crumbs(h("a", { href: "#/searches" }, "Searches"), found.run_id && [" / ", toRun(found, runWords(found.run_id))]),
    h("h1", { tabindex: -1 }, h("span", { class: "mono" }, found.search_id), quiet(` ${found.dag_id}.${found.stage}`)),
    h("div", { class: "bar" }, state(found.state), trials(found), found.waits && quiet(found.waits),
      h("span", { class: "end" }, found.may.cancel && cancel)),
    !going && found.reason && h("div", { class: "verdict" }, h("strong", {}, "It ended without a best trial"), h("span", {}, found.reason)),
  ].filter(Boolean);
}

const trials = (found) => h("span", { class: "told" },
  h("progress", { value: found.trials, max: found.most, "aria-label": "Trials that were begun" }),
  ` ${number(found.trials)} of ${found.trials < found.most ? "at most " : ""}${count(found.most, "trial")}`,
  found.running > 0 && h("span", {}, `${number(found.running)} running`), found.failed > 0 && h("span", {}, `${number(found.failed)} failed`));

function details(found) {
  return [
    h("div", { class: "halves" },
      h("section", {}, under("Search", facts(rules(found)))),
      h("section", {}, under("Best trial", found.best ? facts(best(found)) : h("p", { class: "quiet" }, `No trial has told ${found.metric}${found.ended === null ? " yet" : ""}.`)))),
    h("div", { class: "halves" },
      h("section", {}, under("Rungs", rungs(found))),
      h("section", {}, under("What matters", matters(found)))),
  ];
}

const rules = (found) => [
  ["task", toTask(found)],
  ["metric", [h("code", {}, found.metric), quiet(found.mode === "max" ? " more is better" : " less is better")]],
  ["points", [found.sampler, quiet(` seed ${found.seed}`)]],
  ["stopping", STOPPING[found.stopping]],
  ["rungs", [found.rungs.map(({ at }) => number(at)).join(", "), quiet(` ${found.resource_name || found.until || ""}`)]],
  ["at once", found.at_once ?? "as many as there is room for"],
  ["retries", found.retries],
  ["earlier", found.earlier.length ? several(found.earlier) : ""],
  ...budgets(found),
  ["began", when(found.began)],
  ["ended", when(found.ended)],
  ["took", span((found.ended ?? Date.now() / 1000) - found.began)],
  ["space", h("div", { class: "space" }, Object.entries(found.space).map(([name, text]) => h("div", {}, h("code", {}, name), " ", quiet(text))))],
];

const UNITS = { seconds: span, gpu_hours: (hours) => `${number(hours)} GPU-hours`, resource: number };

function budgets({ budget, resource, began, ended }) {
  const used = { resource, seconds: (ended ?? Date.now() / 1000) - began };
  return Object.entries(budget).map(([name, most]) => [
    `budget: ${name.replace("_", " ")}`, [name in used ? `${UNITS[name](used[name])} of ` : "", UNITS[name](most)],
  ]);
}

function best({ best: { trial, value: reached, params }, metric, made }) {
  const outputs = (given, word) => Object.entries(given).map(([name, addresses]) => [`${word}: ${name}`, several(addresses)]);
  return [
    ["trial", [`${trial} `, made.job_id && toJob(made.job_id)]],
    [metric, h("strong", {}, number(reached))],
    ...Object.entries(params).map(([name, each]) => [name, typeof each === "number" ? cell(each) : value(each)]),
    ...outputs(made.kept, "out"),
    ...(Object.keys(made.kept).length ? [] : outputs(made.outputs, "its own")),
    ["metrics", Object.entries(made.metrics).map(([name, each]) => `${name} ${number(each)}`).join(", ")],
  ];
}
