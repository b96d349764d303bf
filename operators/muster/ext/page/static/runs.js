// The runs of Dags, and one run: its stages over time, and what each was given and made.

import { get } from "./api.js";
import { crumbs, facts, h, quiet, spaced, state, under, value } from "./dom.js";
import { shown } from "./extensions.js";
import { cell, span } from "./format.js";
import { jobTable } from "./job_cells.js";
import { diffPlace } from "./run_diff.js";
import { outward, query, several, toJob, toRun, toSearch } from "./links.js";
import { table, turn } from "./table.js";
import { ago, runWords, when } from "./time.js";
import { timeline } from "./timeline.js";
import { reading, watch } from "./watch.js";

const ROWS = 50;
const MOST = 8; // metrics or params of one stage that are shown at once

export const dagChoice = (dags, chosen, to) =>
  h("select", { "aria-label": "Only of this Dag", onchange: (event) => { location.hash = to(event.target.value); } },
    h("option", { value: "" }, "all Dags"),
    dags.map((dag) => h("option", { value: dag, selected: dag === chosen }, dag)));

export async function runs(screen, asked) {
  const [dag, state, offset] = [asked.dag ?? "", asked.state ?? "", Number(asked.offset) || 0];
  let last;
  const ticked = new Map(); // what is ticked stays so when the list is drawn anew
  await watch(screen, 5, async () => {
    const found = await get("runs", { dag, state, offset, limit: ROWS }, screen.signal);
    const now = JSON.stringify(found);
    if (now !== last && !reading(document.body)) screen.put(...list(found, { dag, state, offset }, ticked));
    last = now;
  });
}

const STATES = [["", "all"], ["failed", "failed"], ["running", "running"], ["queued", "queued"], ["succeeded", "succeeded"], ["cancelled", "cancelled"]];

function list(found, { dag, state: chosenState, offset }, ticked) {
  const columns = [["Compare", "tight tick"], ["State", "tight"], ["Run", "name"], ["Dag", "tight"], ["Began", "tight"], ["Took", "number"], ["Stages", "says"]];
  const compare = h("a", { class: "button" }, "compare");
  const show = () => {
    const two = [...ticked.values()].slice(-2).sort((one, other) => one.began - other.began);
    compare.hidden = two.length < 2;
    if (two.length === 2) compare.href = diffPlace(...two);
  };
  const key = (run) => `${run.dag_id}/${run.run_id}`;
  const tick = (run, on) => {
    if (on) ticked.set(key(run), run); else ticked.delete(key(run));
    show();
  };
  show();
  const rows = found.runs.map((run) => [[
    h("input", { type: "checkbox", checked: ticked.has(key(run)), "aria-label": `Compare ${run.run_id}`, onchange: (event) => tick(run, event.target.checked) }),
    state(run.state),
    toRun(run, runWords(run.run_id)),
    run.dag_id,
    ago(run.began),
    span((run.ended ?? Date.now() / 1000) - run.began),
    spaced(run.stages.map((stage) => h("span", { class: `state ${stage.state}` }, toStage(stage)))),
  ]]);
  const to = (given) => `#/runs${query({ dag, state: chosenState, ...given })}`;
  return [
    h("h1", { tabindex: -1 }, "Runs"),
    h("div", { class: "bar filters" }, STATES.map(([name, text]) => h("a", { href: to({ state: name }), "aria-current": name === chosenState ? "true" : null }, text)),
      dagChoice(found.dags, dag, (chosen) => to({ dag: chosen })), compare,
      h("a", { class: "end", href: `#/plan${dag ? `/${encodeURIComponent(dag)}` : ""}` }, dag ? `plan a run of ${dag}` : "plan a run")),
    table("Runs of Dags, newest first", columns, rows, chosenState ? `No run is ${chosenState}.` : "No runs yet: trigger a Dag, or type muster run."),
    turn(found.total, offset, ROWS, "runs", (at) => to({ offset: at })),
  ];
}

export async function run(screen, dag, id) {
  let last;
  let before;
  let added = null; // by extensions
  await watch(screen, 3, async () => {
    const found = await get("run", { dag, run: id }, screen.signal);
    const now = JSON.stringify(found);
    const live = found.ended === null;
    const draw = () => { if (!reading(document.body)) screen.put(...describe(found, before, added ?? [])); };
    if (now !== last || live) draw();
    last = now;
    if (live || added === null) {
      added = await shown("ofRun", dag, id, screen.signal);
      if (added.length) draw();
    }
    if (before === undefined) {
      const { runs: others } = await get("runs", { dag, limit: ROWS }, screen.signal);
      before = others.find((other) => other.run_id !== id && other.began < found.began) ?? null;
      if (before) draw();
    }
    return live;
  });
}

function describe(found, before, added) {
  const newest = new Map(found.jobs.map((job) => [job.stage, job]));
  const told = new Set(found.ends.map((end) => end.stage));
  const order = new Map(found.stages.map((each, n) => [each.stage, n]));
  const inOrder = (parts) => parts.sort((one, other) => (order.get(one.stage) ?? 0) - (order.get(other.stage) ?? 0));
  const known = [
    ["state", state(found.state)],
    ["run", h("code", {}, found.run_id)],
    ["Dag", h("a", { href: `#/runs${query({ dag: found.dag_id })}` }, found.dag_id)],
    ["in Airflow", found.run_url ? outward(found.run_url, "run") : quiet("not there: it is of muster run")],
    ["began", when(found.began)],
    ["ended", when(found.ended)],
    ["took", span((found.ended ?? Date.now() / 1000) - found.began)],
    ["compare", before && h("a", { href: diffPlace(before, found) }, "with the run before")],
  ];
  return [
    crumbs(h("a", { href: "#/runs" }, "Runs"), " / ", h("a", { href: `#/runs${query({ dag: found.dag_id })}` }, found.dag_id)),
    h("h1", { tabindex: -1 }, found.dag_id, quiet(` ${runWords(found.run_id)}`)),
    facts(known),
    under("Stages", timeline("Stages over time", inOrder([
      ...found.jobs.map((job) => ({ ...job, name: job.stage, href: jobPlace(job.job_id) })),
      ...found.searching.map((each) => ({ ...each, name: each.stage, href: searchPlace(each.search_id) })),
      ...found.ends.map((end) => ({ ...end, name: end.stage, href: end.kept_of ? jobPlace(end.kept_of) : end.search_id ? searchPlace(end.search_id) : null })),
    ]))),
    under("What each made", table("Stages", [["Stage", "name"], ["Params", "name"], ["Metrics", "name"], ["From", "tight"], ["Made", "tight"]],
      inOrder([...[...newest.values()].filter((job) => !told.has(job.stage)), ...found.ends]).map((each) => [each.job_id === undefined ? ended(each) : stage(each)]), "")),
    newest.size > 0 && !found.jobs[0].job_id && quiet("Its jobs were deleted by gc; the records of their versions are kept."),
    ...added,
    found.jobs[0]?.job_id && under("Jobs", jobTable("Jobs of this run", [...found.jobs].reverse(), "")),
  ].filter(Boolean);
}

const toStage = ({ stage: name, job_id: job, search_id: search }) => (job ? toJob(job, name) : search ? toSearch(search, name) : name);

const stage = (job) => [
  [state(job.state, ""), job.job_id ? toJob(job.job_id, job.stage) : job.stage],
  pairs(job.params, value),
  pairs(job.metrics, cell),
  named(job.inputs),
  several(Object.values(job.outputs).flat()),
];

const searchPlace = (id) => `#/searches/${encodeURIComponent(id)}`;

const jobPlace = (id) => `#/jobs/${encodeURIComponent(id)}`;

// A task without a job of its own: what it says, or the job whose versions it kept.
const ended = (end) => [
  [state(end.state, ""), toStage({ stage: end.stage, search_id: end.search_id })],
  end.kept_of ? [quiet("kept, made by "), toJob(end.kept_of, end.kept_of)] : h("span", {}, end.line),
  "",
  "",
  several(Object.values(end.outputs).flat()),
];

const named = (inputs) => Object.entries(inputs).map(([name, given]) => h("div", {}, quiet(name), several(given)));

function pairs(given, show) {
  const all = Object.entries(given);
  const more = all.length - MOST;
  return [
    all.slice(0, MOST).map(([name, each]) => h("div", { class: "pair" }, quiet(`${name} `), h("span", {}, show(each)))),
    more > 0 && quiet(`and ${more} more`),
  ];
}

