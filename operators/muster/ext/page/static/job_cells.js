// What a job says of itself in a few words: for the lists, and for its own page.

import { h, quiet, spaced, state } from "./dom.js";
import { count, span } from "./format.js";
import { query, toJob, toRun, toTask, toVersion } from "./links.js";
import { table } from "./table.js";
import { ago, runWords } from "./time.js";

export const ENDED = ["succeeded", "failed", "cancelled", "unreadable"];

const COLUMNS = [
  ["State", "tight"], ["Job", "tight"], ["Task", "name"], ["Queue", "tight"], ["Ranks", "number"],
  ["Since", "tight"], ["Took", "number"], ["What it says", "says"],
];

// A table of jobs. One machine has no queues: a column of nothing is left out.
export function jobTable(caption, jobs, empty) {
  const queues = jobs.some((each) => each.queue || each.priority);
  const some = (cells) => cells.filter((_, n) => queues || COLUMNS[n][0] !== "Queue");
  return table(caption, some(COLUMNS), jobs.map((each) => [some(line(each))]), empty);
}

const line = (each) => [
  state(each.state),
  toJob(each.job_id),
  each.task ? [toTask(each), h("small", { class: "run", title: each.origin.run_id }, toRun(each.origin, runWords(each.origin.run_id)))] : each.name ?? "",
  [each.queue ?? "", each.priority && h("small", {}, `${each.priority} priority`)],
  [each.ranks ?? "", each.gpus ? h("small", {}, `${count(each.gpus, "GPU")} asked for`) : null],
  ago(each.ended ?? each.started ?? each.submitted),
  each.started && [span(took(each)), waited(each) > 5 && h("small", {}, `waited ${span(waited(each))}`)],
  says(each),
];

// Runs that have no job yet: Airflow lets only so many of a Dag run at a time, and none of one that is paused.
export const inAirflow = ({ dag_id: dag, waiting, running, most, paused }) => [
  h("a", { href: `#/runs${query({ dag })}` }, dag), ` ${count(waiting, "run")} ${waiting === 1 ? "waits" : "wait"} in Airflow`,
  h("small", { class: "quiet" }, paused ? "the Dag is paused" : most && running >= most
    ? `${count(running, "run")} of it ${running === 1 ? "goes" : "go"} on, and max_active_runs is ${most}` : "for Airflow's scheduler"),
];

const now = () => Date.now() / 1000;

export const took = (each) => each.started && (each.ended ?? now()) - each.started;

export const waited = (each) => each.submitted && (each.started ?? each.ended ?? now()) - each.submitted;

export const cause = (verdict) => verdict.cause + (verdict.rank === null ? "" : `, rank ${verdict.rank}`);

export function says(each) {
  if (each.error) return each.error;
  if (each.verdict)
    return [h("strong", {}, cause(each.verdict)), h("small", { class: "two" }, each.verdict.message)];
  if (each.failed_expectations) return [h("strong", {}, each.failed_expectations), h("div", {}, made(each))];
  if (ENDED.includes(each.state)) return each.reason ? [h("div", {}, made(each)), h("div", {}, reason(each))] : made(each);
  return [told(each.progress), reason(each)].filter(Boolean).map((part) => h("div", {}, part));
}

export function made(each) {
  const more = each.made_in_all - each.made.length;
  return [spaced(each.made.map((version) => toVersion(version))), more > 0 && quiet(` and ${more} more`)];
}

export const reason = (each) =>
  each.reason && (each.alive === false ? h("strong", {}, each.reason) : quiet(each.reason));

// What user code told of itself: a bar where it said of how much.
export function told(progress) {
  const parts = Object.entries(progress ?? {}).map(([name, { value, total, text }]) =>
    h("span", {}, total ? h("progress", { value, max: total, "aria-label": name }) : null, ` ${name} ${text}`));
  return parts.length ? h("span", { class: "told" }, parts) : null;
}
