// Who held GPUs and CPUs, and what was made of them; and what one version or job cost.

import { get, Refused } from "../api.js";
import { facts, h, note, quiet, tabs, under } from "../dom.js";
import { count, number } from "../format.js";
import { query } from "../links.js";
import { table } from "../table.js";

const BY = [["dag", "Dag"], ["team", "team"], ["user", "user"], ["class", "class of card"], ["model", "model"]];
const DAYS = [7, 30, 90];
const HOURS = ["gpu", "cpu"].flatMap((what) => ["held", "used", "wasted"].map((name) => [
  `${what.toUpperCase()}-hours ${name}`, "number", (row) => row[`${what}_hours_${name}`],
]));

export const choose = (_, asked) => ["usage", usage, asked];

async function usage({ put, signal }, asked) {
  const by = BY.some(([name]) => name === asked.by) ? asked.by : "dag";
  const days = DAYS.includes(Number(asked.days)) ? Number(asked.days) : 30;
  const { rows } = await get("usage", { by, days }, signal);
  const columns = [[BY.find(([name]) => name === by)[1], "name", (row) => row[by]], ["Jobs", "number", (row) => row.jobs], ...HOURS];
  const to = (given) => `#/usage${query({ by, days, ...given })}`;
  const blind = ["gpu", "cpu"].map((what) => rows.reduce((sum, row) => sum + row[`${what}_hours_unmeasured`], 0));
  put(
    h("h1", { tabindex: -1 }, "Usage"),
    tabs("By", BY.map(([name, title]) => [name, `by ${title}`]), by, (name) => to({ by: name })),
    tabs("Period", DAYS.map((each) => [each, `${each} days`]), days, (each) => to({ days: each })),
    table(`Hours of one card and of one core by ${by}, the most wasted first`, columns, rows.map((row) => [
      [row[by], number(row.jobs), ...HOURS.map(([, , value]) => hours(value(row)))], null, row,
    ]), by === "model" ? "No job made a model that a deployment serves." : `No job held anything in ${days} days.`),
    blind.some(Boolean) && note(`Not measured, so neither used nor wasted: ${hours(blind[0])} GPU-hours, ${hours(blind[1])} CPU-hours.`),
    h("p", { class: "quiet" }, "Jobs of Dags that you may see; those that go on count until now."),
  );
}

const hours = (given) => (given >= 10 ? number(Math.round(given)) : given.toFixed(2));

export const ofVersion = (address, signal) => cost("usage/version", { address }, signal,
  (jobs) => ` by ${count(jobs, "job")} that made it, or what it was made from, of Dags that you may see`);

export const ofJob = (id, signal) => cost(`usage/jobs/${encodeURIComponent(id)}`, {}, signal, () => "");

function costs(row) {
  const what = row.gpu_hours_held ? "gpu" : "cpu";
  const [held, wasted, blind] = ["held", "wasted", "unmeasured"].map((name) => row[`${what}_hours_${name}`]);
  return `${hours(held)} ${what.toUpperCase()}-hours, ${hours(wasted)} wasted${blind ? `, ${hours(blind)} not measured` : ""}`;
}

async function cost(where, given, signal, words) {
  try {
    const { rows: [row] } = await get(where, given, signal);
    return row && h("section", {}, under("Usage", facts([["cost", [costs(row), quiet(words(row.jobs))]]])));
  } catch (error) { // a store service of an earlier release has none: the page is shown nevertheless
    if (!(error instanceof Refused)) throw error;
    return null;
  }
}
