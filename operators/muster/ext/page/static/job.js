// One job: its state, how long it waited, its curves, what it read and made, and its log.

import { get, post } from "./api.js";
import { Curves } from "./curves.js";
import { crumbs, facts, h, quiet, spaced, state, twice, under, value } from "./dom.js";
import { shown } from "./extensions.js";
import { count, number, span } from "./format.js";
import { cause, ENDED, reason, told, took, waited } from "./job_cells.js";
import { outward, several, toRun, toSearch, toTask, toVolume } from "./links.js";
import { Log } from "./log.js";
import { runWords, when } from "./time.js";
import { timeline } from "./timeline.js";
import { reading, redraw, watch } from "./watch.js";

export async function job(screen, id) {
  const { put, signal } = screen;
  const where = `jobs/${encodeURIComponent(id)}`;
  const [head, about, more] = [h("div", {}), h("div", {}), h("div", {})];
  const cancel = twice("Cancel job", "End this job and its ranks? Its task fails, and nothing is committed.", async () => { await post(`${where}/cancel`); },
    { yes: "end it", doing: "ending: its ranks get time to save …", id: "cancel" });
  const curves = new Curves(where);
  let [log, begun] = [null, false];
  await watch(screen, 2, async () => {
    const found = await get(where, {}, signal);
    if (!reading(head)) redraw(head, () => describe(found, cancel));
    if (!reading(about)) redraw(about, () => details(found));
    if (!begun) {
      log = found.may.log ? new Log(where, found.ranks ?? 1) : null;
      put(head, curves.element, about, more, h("h2", {}, "Log"), log ? log.element : quiet("Airflow does not let you read the logs of this Dag."));
      shown("ofJob", id, signal).then((parts) => more.replaceChildren(...parts), () => null); // the job is shown nevertheless
    }
    begun = true;
    if (found.may.log) await Promise.all([log.more(signal), curves.more(signal)]);
    return !ENDED.includes(found.state);
  });
}

function describe(found, cancel) {
  const goesOn = !ENDED.includes(found.state);
  return [
    crumbs(h("a", { href: "#/jobs" }, "Jobs"), found.origin.run_id && [" / ", toRun(found.origin, runWords(found.origin.run_id))],
      found.search && [" / ", toSearch(found.search), ` trial ${found.origin.trial}`]),
    h("h1", { tabindex: -1 }, h("span", { class: "mono" }, found.job_id), quiet(` ${found.name}`)),
    h("div", { class: "bar" }, state(found.state), told(found.progress), (goesOn || !found.verdict) && reason(found),
      h("span", { class: "end" }, found.may.cancel && cancel)),
    found.verdict && verdict(found.verdict),
    found.failed_expectations && h("p", { class: "note" }, found.failed_expectations),
    timeline("How long it waited and ran", [{ ...found, name: found.state, href: `#/jobs/${encodeURIComponent(found.job_id)}` }]),
  ].filter(Boolean);
}

function details(found) {
  return [
    h("div", { class: "halves" },
      h("section", {}, under("Job", facts(asked(found)))),
      h("section", {},
        under("Inputs and outputs", facts([...inputs(found), ...outputs(found)])),
        metrics(found.metrics),
        params(found.params))),
  ];
}

const verdict = (given) =>
  h("div", { class: "verdict" },
    h("strong", {}, cause(given)), h("span", {}, given.message), h("span", { class: "quiet" }, given.advice));

function asked(found) {
  const links = Object.entries(found.links).map(([title, url]) => outward(url, title));
  return [
    ["task", toTask(found)],
    ["run", toRun(found.origin, runWords(found.origin.run_id))],
    ["submitted", when(found.submitted)],
    ["started", when(found.started)],
    ["ended", when(found.ended)],
    ["waited", span(waited(found))],
    ["took", span(took(found))],
    ["at most", span(found.run_timeout_seconds)],
    ["restarts", found.restarts || ""],
    ["queue", found.queue],
    ["priority", found.priority],
    ["image", h("code", {}, found.image)],
    ["launcher", found.launcher],
    ...found.roles.map((role) => [`role ${role.name}`, runs(role)]),
    ...(found.parts ?? []).map((part) => [part.name, [h("code", {}, part.process), part.node && quiet(` on ${part.node}`)]]),
    ["links", links.length ? spaced(links) : ""],
    ["TensorBoard", found.state === "running" ? [h("code", {}, `muster tensorboard ${found.job_id}`), quiet(" shows the event files that it writes")] : ""],
  ];
}

function runs({ entrypoint, command, replicas, ranks, resources }) {
  const gpus = resources.gpus ? `, ${count(resources.gpus, "GPU")} asked for` : "";
  const each = `each replica ${count(resources.cpus, "CPU")}, ${resources.memory_gib} GiB${gpus}`;
  const code = h("code", {}, entrypoint ?? command.join(" "));
  return [code, quiet(`  ${replicas} × ${count(ranks, "rank")}, ${each}`)];
}

const inputs = (found) =>
  Object.entries(found.inputs).map(([name, given]) => [`in: ${name}`, given.length ? several(given) : "none"]);

const uncommitted = (name) => (ENDED.includes(name) ? "nothing committed" : "committed at its end");

const outputs = (found) =>
  Object.entries(found.outputs).map(([name, made]) => [
    `out: ${name}`, made.length ? several(made) : [toVolume(found.writes[name]), quiet(`  ${uncommitted(found.state)}`)],
  ]);

function pairs(title, given, show) {
  const known = Object.entries(given).map(([name, each]) => [name, show(each, name)]);
  return under(title, known.length && facts(known));
}

export const metrics = (given) => pairs("Metrics", given, (each) => h("span", { title: String(each) }, number(each)));

// A time is kept as seconds since the epoch, which says nothing to a reader.
const MOMENT = /(^|_)(begin|end|from|since|until|at)$/;
const isMoment = (name, given) => typeof given === "number" && given > 1e9 && given < 4e9 && MOMENT.test(name);

export const params = (given) => pairs("Params", given, (each, name) => (isMoment(name, each) ? [when(each), quiet(` ${each}`)] : value(each)));
