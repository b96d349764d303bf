// What a run of a Dag would do now, said before it is triggered: each stage, when it starts, what it costs and deploys.

import { get, post } from "../api.js";
import { crumbs, facts, h, note, quiet, state, under } from "../dom.js";
import { count, gib, number, span } from "../format.js";
import { outward, query, several, short, toDeployment, toVersion } from "../links.js";
import { table } from "../table.js";

const COLUMNS = [
  ["Stage", "name"], ["Does", "tight"], ["Image", "tight"], ["Inputs", "name"], ["Needs", "tight"],
  ["Starts", "tight"], ["Takes", "tight"], ["Why", "says"],
];
const QUIET = ["kept", "served already", "is not muster's"]; // nothing happens there
const SHOWN = 3; // of the jobs ahead
const ADDRESS = "volume://";
const place = (dag, params) => `#/plan/${encodeURIComponent(dag)}${query({ params })}`;

export const choose = (name, asked) => ["runs", ...(name ? [plan, name, asked] : [plans])];

async function plans({ put, signal }) {
  const { dags, why_not: refused } = await get("dags", {}, signal);
  const rows = dags.map((dag) => [[refused ? dag : h("a", { href: place(dag) }, dag)]]);
  put(
    crumbs(h("a", { href: "#/runs" }, "Runs")),
    h("h1", { tabindex: -1 }, "Plan a run"),
    refused ? note(refused) : h("p", { class: "quiet" }, "A plan says what a run would do now. Nothing is submitted."),
    table("Dags", [["Dag", "name"]], rows, "There is no Dag that you may trigger."),
  );
}

async function plan({ put, signal }, dag, asked) {
  const head = [crumbs(h("a", { href: "#/runs" }, "Runs"), " / ", h("a", { href: "#/plan" }, "Plan a run")), h("h1", { tabindex: -1 }, dag, quiet(" what a run would do now"))];
  put(head, h("p", { class: "quiet", role: "status" }, "Planning: the Dag's file is read, nothing is submitted …"));
  const again = () => h("p", {}, h("a", { href: place(dag) }, "Plan it with the Dag's own params"));
  let found;
  try {
    found = await post(`plan${query({ dag, params: asked.params })}`, signal);
  } catch (error) {
    if (signal.aborted) return;
    put(head, h("p", { role: "alert", class: "error" }, error.message), asked.params && again());
    return;
  }
  const runs = found.stages.filter(({ start }) => start).length;
  put(
    head,
    facts([
      ["runs", `${number(runs)} of ${count(found.stages.length, "stage")}`],
      ["ends", found.ends ? `in ${between(found.ends)}` : runs ? "not known" : ""],
      ["CPU-hours", hours(found.cpu_hours)],
      ["GPU-hours", hours(found.gpu_hours)],
    ]),
    [...found.warnings, found.unseen].filter(Boolean).map((line) => note(line)),
    under("Stages", table(`Stages of ${dag}`, COLUMNS, found.stages.map((stage) => [cells(stage), QUIET.includes(stage.does) ? "gone" : null]), "The Dag has no stages.")),
    form(dag, found.params),
    h("p", {}, outward(`../dags/${encodeURIComponent(dag)}`, "Trigger it in Airflow")),
  );
}

const hours = (given) => (given ? `${Number(given.toPrecision(3))}` : "");

// The median, and what nine in ten stay below; one time where both are alike.
function between({ p50, p90 }) {
  const [low, high] = [span(p50), span(p90)];
  return low === high ? low : `${low} to ${high}`;
}

const KINDS = { kept: "kept", "served already": "kept", refused: "refused", runs: "running", maybe: "queued", deploys: "serving", asks: "ready" };

const cells = (stage) => [
  stage.label,
  state(KINDS[stage.does] ?? "none", stage.does),
  stage.image && [h("code", {}, stage.image), stage.image_built === false && h("small", {}, "to be built")],
  Object.entries(stage.inputs).map(([name, given]) => h("div", {}, quiet(`${name} `), inputs(given))),
  stage.start && needs(stage.needs),
  starts(stage.start),
  takes(stage.start),
  why(stage),
];

const inputs = (given) => (given.every((each) => each.startsWith(ADDRESS)) ? several(given) : given.join(", "));

function needs({ cpu, memory, gpu }) {
  if (!cpu) return "";
  return [`${count(cpu, "CPU")}, ${gib(memory)}`, gpu && h("small", {}, count(gpu, "GPU"))];
}

function starts(start) {
  if (!start) return "";
  if (!start.starts) return state(start.when === "never" ? "failed" : "none", start.when);
  return start.starts.p90 <= 0 ? "now" : `in ${between(start.starts)}`;
}

function takes(start) {
  if (!start?.starts) return "";
  return start.ends ? [`${span(start.ends.p50 - start.starts.p50)}`] : "not known";
}

// What a table has no room for, in the order of a person's questions: why, what stands in the way, what changes for users.
function why({ why: said, warnings, deploys, start, search }) {
  const ahead = start?.ahead ?? [];
  const more = ahead.length > SHOWN ? ` and ${ahead.length - SHOWN} more` : "";
  return [
    said,
    start?.why,
    ahead.length > 0 && `place ${ahead.length + 1} of queue ${start.queue}, behind ${ahead.slice(0, SHOWN).join(", ")}${more}`,
    ...warnings,
    deploys && serves(deploys),
    start?.starts && !start.ends && !search && "no run of it has ended here, so how long it takes is not known",
  ].filter(Boolean).map((line) => h("div", {}, line));
}

const version = (address) => (address.startsWith(ADDRESS) ? toVersion(address, short(address)) : address);

const serves = ({ name, model, instead_of: before }) => (before === model ? [toDeployment(name), " serves ", version(model), " already: nothing changes for its users"] : [
  toDeployment(name), " would serve ", version(model), before ? [", in place of ", version(before)] : ", as its first version",
]);

// The Dag's params, to plan with others. A value that is no text is written as JSON, as on the command line.
function form(dag, params) {
  const known = Object.entries(params);
  if (!known.length) return null;
  const written = (given) => (typeof given === "string" ? given : JSON.stringify(given));
  const fields = known.map(([name, given]) => [name, h("input", { id: `param-${name}`, name, value: written(given), "aria-label": name })]);
  const send = (event) => {
    event.preventDefault();
    const changed = fields.filter(([name, input]) => input.value !== written(params[name]) || typeof params[name] === "string");
    const given = Object.fromEntries(changed.map(([name, input]) => [name, input.value]));
    const kept = Object.fromEntries(known.filter(([name]) => !(name in given)));
    location.hash = place(dag, JSON.stringify({ ...kept, ...given }));
  };
  return under("With other params", h("form", { class: "params", onsubmit: send }, facts(fields), h("button", { type: "submit" }, "plan it with these")));
}
