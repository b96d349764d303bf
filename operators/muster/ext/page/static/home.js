// The first screen: what runs, what waits and why, what failed last, and what serves.

import { get } from "./api.js";
import { champion, shareBar, standing, underWay } from "./deployment_cells.js";
import { h, note, quiet, state } from "./dom.js";
import { count, milliseconds, number, span } from "./format.js";
import { cause, inAirflow, made, reason, told, took, waited } from "./job_cells.js";
import { runPlace, stagePlace, toDeployment, toJob, toRun, toVersion } from "./links.js";
import { table } from "./table.js";
import { ago, runWords } from "./time.js";
import { reading, redraw, watch } from "./watch.js";

export async function home(screen) {
  const { put, signal } = screen;
  const [jobs, serves] = [h("div", { class: "first" }), h("section", { class: "card" })];
  let begun = false;
  const deployments = async () => {
    try {
      const found = await get("deployments", {}, signal);
      redraw(serves, () => serving(found.deployments));
    } catch (error) {
      if (!signal.aborted) redraw(serves, () => [h("h2", {}, "Serving"), h("p", { class: "error" }, error.message)]);
    }
  };
  await watch(screen, 4, async () => {
    const others = deployments(); // of a server that is down this waits, and nothing else does
    const found = await get("first", {}, signal);
    if (!reading(document.body)) redraw(jobs, () => draw(found));
    if (!begun) put(h("h1", { tabindex: -1 }, "Now"), jobs, serves);
    begun = true;
    await others;
  });
}

function draw(found) {
  const { running } = found.in_all;
  const runs = found.airflow ?? [];
  const waiting = found.in_all.waiting + runs.reduce((sum, each) => sum + each.waiting, 0);
  const none = (text) => h("p", { class: "quiet" }, text);
  return [
    found.warning && note(found.warning),
    card("Running", running, "#/jobs?state=running", found.running.length
      ? found.running.map(active) : none("Nothing runs.")),
    card("Waiting", waiting, "#/queue", waiting
      ? [found.waiting.map(active), runs.map((each) => entry(inAirflow(each)))] : none("Nothing waits.")),
    card("Failed last", found.in_all.failed, "#/runs?state=failed", found.failed.length
      ? found.failed.map(failed) : none("No task has failed."), found.in_all.failed - found.failed.length),
    card("Newest runs", null, "#/runs", found.runs.length
      ? found.runs.map(run) : none("No runs yet: trigger a Dag, or type muster run.")),
  ].filter(Boolean);
}

function card(title, many, href, children, more = 0) {
  return h("section", { class: "card" },
    h("h2", {}, h("a", { href }, title), many ? quiet(` ${number(many)}`) : null),
    h("div", { class: "entries" }, children),
    more > 0 && h("p", {}, h("a", { href }, `and ${number(more)} more`)));
}

// The heading above says it already.
const PLAIN = ["running", "queued"];

const entry = (...lines) => h("div", { class: "entry" }, lines.filter(Boolean));

const active = (each) => entry(
  h("div", { class: "line" }, state(each.state, PLAIN.includes(each.state) ? "" : each.state), toJob(each.job_id, each.name ?? each.job_id),
    h("span", { class: "end quiet" }, span(each.started ? took(each) : waited(each)))),
  told(each.progress),
  reason(each),
  h("small", { class: "run", title: each.origin?.run_id }, each.ranks > 1 ? `${count(each.ranks, "rank")} · ` : "", toRun(each.origin ?? {}, runWords(each.origin?.run_id))));

const failed = (each) => entry(
  h("div", { class: "line" }, state(each.state, ""), each.job_id ? toJob(each.job_id, each.name ?? each.job_id) : toRun(each.origin, each.name),
    h("span", { class: "end quiet" }, ago(each.ended ?? each.submitted))),
  h("div", { class: "two" }, each.verdict ? [h("strong", {}, cause(each.verdict)), " ", each.verdict.message]
    : [each.failed_expectations || each.error, " ", each.made ? made(each) : null]),
  h("small", { class: "run", title: each.origin?.run_id }, toRun(each.origin ?? {}, runWords(each.origin?.run_id)),
    each.mended && [" ", h("span", { class: "tag good", title: "This task has succeeded since" }, "mended since")]));

const run = (each) => entry(
  h("div", { class: "line" }, state(each.state, ""), toRun(each, each.dag_id),
    h("span", { class: "dots" }, each.stages.map((stage) =>
      h("a", { href: stagePlace(stage) ?? runPlace(each.dag_id, each.run_id), class: `state ${stage.state}`, title: `${stage.stage}: ${stage.state}`, "aria-label": `${stage.stage}: ${stage.state}` }))),
    h("span", { class: "end quiet" }, ago(each.began))),
  h("small", { class: "run", title: each.run_id }, runWords(each.run_id), each.ended ? ` · ${span(each.ended - each.began)}` : ""));

function serving(found) {
  const columns = [["State", "tight"], ["Deployment"], ["Serves"], ["Shares", "tight"], ["Requests", "number"], ["Errors", "number"], ["Slowest p95", "number"], ["Under way"]];
  const rows = found.map((each) => {
    const best = champion(each);
    const all = Object.values(each.figures ?? {});
    const sum = (name) => (each.figures ? number(all.reduce((total, one) => total + one[name], 0)) : "");
    const slow = all.map((one) => one.p95_seconds).filter((one) => one !== null);
    return [[
      standing(each), toDeployment(each.name), best ? toVersion(best.model.address) : "nothing", shareBar(each),
      sum("requests"), sum("failed"), slow.length ? milliseconds(Math.max(...slow)) : "", underWay(each),
    ]];
  });
  return [
    h("h2", {}, h("a", { href: "#/deployments" }, "Serving")),
    table("Deployments", columns, rows, "Nothing serves: a DeployOperator makes a deployment."),
  ];
}
