// The list of jobs.

import { get } from "./api.js";
import { h, note, quiet } from "./dom.js";
import { ENDED, jobTable } from "./job_cells.js";
import { query } from "./links.js";
import { dagChoice } from "./runs.js";
import { turn } from "./table.js";
import { reading, watch } from "./watch.js";

const STATES = ["queued", "preparing", "running", "committing", ...ENDED];
const ROWS = 50;

const address = (asked) => `#/jobs${query(asked)}`;

export async function jobs(screen, asked) {
  const { put, signal } = screen;
  const offset = Number(asked.offset) || 0;
  const wanted = { state: asked.state, text: asked.text, dag: asked.dag, run: asked.run, trials: asked.trials, offset, limit: ROWS };
  let last;
  await watch(screen, 3, async () => {
    const found = await get("jobs", wanted, signal);
    const now = JSON.stringify(found);
    const live = found.jobs.some((each) => !ENDED.includes(each.state));
    if ((now !== last || live) && !reading(document.body)) put(...list(found, asked, offset));
    last = now;
  });
}

function list(found, asked, offset) {
  const all = Object.values(found.states).reduce((sum, many) => sum + many, 0);
  const empty = all ? "No job matches." : "No jobs yet: a task of muster's starts one.";
  const there = STATES.filter((name) => found.states[name] || name === asked.state);
  return [
    h("h1", {}, "Jobs"),
    found.warning ? note(found.warning) : null,
    h("div", { class: "bar filters" },
      choice("", "all", all, asked),
      there.map((name) => choice(name, name, found.states[name] ?? 0, asked)),
      found.trials > 0 && h("a", { href: address({ ...asked, trials: asked.trials ? "" : "yes", offset: 0 }), "aria-current": asked.trials ? "true" : null }, "trials of searches ", quiet(found.trials.toLocaleString("en"))),
      h("span", { class: "end bar" }, found.dags?.length > 1 && dagChoice(found.dags, asked.dag, (dag) => address({ ...asked, dag, offset: 0 })), search(asked))),
    jobTable("Jobs, newest first", found.jobs, empty),
    turn(found.total, offset, ROWS, "jobs", (to) => address({ ...asked, offset: to })),
  ];
}

function choice(name, text, many, asked) {
  const chosen = (asked.state ?? "") === name ? "true" : null;
  const href = address({ ...asked, state: name, offset: 0 });
  return h("a", { href, "aria-current": chosen }, `${text} `, quiet(many.toLocaleString("en")));
}

function search(asked) {
  const go = (event) => {
    event.preventDefault();
    location.hash = address({ ...asked, text: event.target.elements.text.value.trim(), offset: 0 });
  };
  return h("form", { role: "search", onsubmit: go },
    h("input", {
      id: "text", name: "text", type: "search", value: asked.text ?? "", placeholder: "job, task or run",
      "aria-label": "Only jobs whose name, id or run holds",
    }));
}
