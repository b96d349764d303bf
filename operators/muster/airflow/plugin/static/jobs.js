// The list of jobs, and one job with its log.

import { get, post } from "./api.js";
import {
  ago, bytes, count, crumbs, facts, h, number, outward, quiet, spaced, span, state, table, toJob, toTask,
  toVersion, toVolume, under,
} from "./dom.js";
import { reading, redraw, watch } from "./watch.js";

const ENDED = ["succeeded", "failed", "cancelled", "unreadable"];
const STATES = ["queued", "preparing", "running", "committing", ...ENDED];
const ROWS = 50;
const MOST_CHARACTERS = 1_000_000;
const MOST_VERSIONS = 12;
const COLUMNS = [
  ["State", "tight"], ["Job", "tight"], ["Task", "name"], ["Queue", "tight"], ["Ranks", "number"],
  ["Since", "tight"], ["Took", "number"], ["What it says", "says"],
];

const address = (asked) => {
  const given = Object.entries(asked).filter(([, value]) => value && value !== "0");
  return `#/jobs${given.length ? `?${new URLSearchParams(given)}` : ""}`;
};

export async function jobs(screen, asked) {
  const { put, signal } = screen;
  const wanted = { state: asked.state, text: asked.text, offset: Number(asked.offset) || 0, limit: ROWS };
  let last;
  await watch(screen, 3, async () => {
    const found = await get("jobs", wanted, signal);
    const now = JSON.stringify(found);
    const live = found.jobs.some((each) => !ENDED.includes(each.state));
    if ((now !== last || live) && !reading(document.body)) put(...list(found, asked, wanted.offset));
    last = now;
  });
}

function list(found, asked, offset) {
  const all = Object.values(found.states).reduce((sum, many) => sum + many, 0);
  const empty = all ? "No job matches." : "No jobs yet: a task of muster's starts one.";
  const there = STATES.filter((name) => found.states[name] || name === asked.state);
  return [
    h("h1", {}, "Jobs"),
    found.warning ? h("p", { class: "note", role: "status" }, found.warning) : null,
    h("div", { class: "bar filters" },
      choice("", "all", all, asked),
      there.map((name) => choice(name, name, found.states[name] ?? 0, asked)),
      search(asked)),
    table("Jobs, newest first", COLUMNS, found.jobs.map((each) => [line(each)]), empty),
    turn(found.total, offset, (to) => address({ ...asked, offset: to })),
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
  return h("form", { class: "end", role: "search", onsubmit: go },
    h("input", {
      id: "text", name: "text", type: "search", value: asked.text ?? "", placeholder: "job, task or run",
      "aria-label": "Only jobs whose name, id or run holds",
    }));
}

function turn(total, offset, to) {
  if (total <= ROWS && !offset) return null;
  const last = Math.min(offset + ROWS, total);
  return h("nav", { class: "bar quiet", "aria-label": "Pages" },
    `${(offset + 1).toLocaleString("en")} to ${last.toLocaleString("en")} of ${count(total, "job")}`,
    offset > 0 && h("a", { href: to(Math.max(0, offset - ROWS)), rel: "prev" }, "newer"),
    last < total && h("a", { href: to(offset + ROWS), rel: "next" }, "older"));
}

const line = (each) => [
  state(each.state),
  toJob(each.job_id),
  each.task ? [toTask(each), h("small", { class: "run", title: each.origin.run_id }, each.origin.run_id)] : each.name ?? "",
  [each.queue ?? "", each.priority && h("small", {}, `${each.priority} priority`)],
  [each.ranks ?? "", each.gpus ? h("small", {}, `${count(each.gpus, "GPU")} asked for`) : null],
  ago(each.ended ?? each.started ?? each.submitted),
  span(took(each)),
  says(each),
];

const took = (each) => each.started && (each.ended ?? Date.now() / 1000) - each.started;

const cause = (verdict) => verdict.cause + (verdict.rank === null ? "" : `, rank ${verdict.rank}`);

function says(each) {
  if (each.error) return each.error;
  if (each.verdict)
    return [h("strong", {}, cause(each.verdict)), h("small", { class: "two" }, each.verdict.message)];
  if (each.failed_expectations) return [h("strong", {}, each.failed_expectations), h("div", {}, made(each))];
  if (ENDED.includes(each.state)) return made(each);
  return [told(each.progress), reason(each)].filter(Boolean).map((part) => h("div", {}, part));
}

function made(each) {
  const more = each.made_in_all - each.made.length;
  return [spaced(each.made.map((version) => toVersion(version))), more > 0 && quiet(` and ${more} more`)];
}

const reason = (each) =>
  each.reason && (each.alive === false ? h("strong", {}, each.reason) : quiet(each.reason));

// What user code told of itself: a bar where it said of how much.
function told(progress) {
  const parts = Object.entries(progress ?? {}).map(([name, { value, total, text }]) =>
    h("span", {}, total ? h("progress", { value, max: total, "aria-label": name }) : null, ` ${name} ${text}`));
  return parts.length ? h("span", { class: "told" }, parts) : null;
}

export async function job(screen, id) {
  const { put, signal } = screen;
  const where = `jobs/${encodeURIComponent(id)}`;
  const [about, log, cancel] = [h("div", {}), new Log(where), canceller(where)];
  let begun = false;
  await watch(screen, 2, async () => {
    const found = await get(where, {}, signal);
    if (!reading(about)) redraw(about, () => describe(found, cancel));
    if (!begun) put(about, found.may.log ? log.element : quiet("Airflow does not let you read the logs of this Dag."));
    begun = true;
    if (found.may.log) await log.more(signal);
    return !ENDED.includes(found.state);
  });
}

function describe(found, cancel) {
  const goesOn = !ENDED.includes(found.state);
  return [
    crumbs(h("a", { href: "#/jobs" }, "Jobs")),
    h("h1", { tabindex: -1 }, h("span", { class: "mono" }, found.job_id), quiet(` ${found.name}`)),
    h("div", { class: "bar" }, state(found.state), told(found.progress), goesOn && reason(found),
      h("span", { class: "end" }, found.may.cancel && cancel)),
    found.verdict && verdict(found.verdict),
    h("div", { class: "halves" },
      h("section", {}, under("Job", facts(asked(found)))),
      h("section", {},
        under("Inputs and outputs", facts([...inputs(found), ...outputs(found)])),
        metrics(found.metrics),
        params(found.params))),
    h("h2", {}, "Log"),
  ].filter(Boolean);
}

const verdict = (given) =>
  h("div", { class: "verdict" },
    h("strong", {}, cause(given)), h("span", {}, given.message), h("span", { class: "quiet" }, given.advice));

function asked(found) {
  const links = Object.entries(found.links).map(([title, url]) => outward(url, title));
  return [
    ["task", toTask(found)],
    ["run", found.origin.run_id],
    ["submitted", ago(found.submitted)],
    ["started", ago(found.started)],
    ["ended", ago(found.ended)],
    ["took", span(took(found))],
    ["restarts", found.restarts || ""],
    ["queue", found.queue],
    ["priority", found.priority],
    ["image", h("code", {}, found.image)],
    ["launcher", found.launcher],
    ...found.roles.map((role) => [`role ${role.name}`, runs(role)]),
    ["links", links.length ? spaced(links) : ""],
  ];
}

function runs({ entrypoint, command, replicas, ranks, resources }) {
  const gpus = resources.gpus ? `, ${count(resources.gpus, "GPU")} asked for` : "";
  const each = `each replica ${count(resources.cpus, "CPU")}, ${resources.memory_gib} GiB${gpus}`;
  const code = h("code", {}, entrypoint ?? command.join(" "));
  return [code, quiet(`  ${replicas} × ${count(ranks, "rank")}, ${each}`)];
}

function several(addresses) {
  const more = addresses.length - MOST_VERSIONS;
  const shown = spaced(addresses.slice(0, MOST_VERSIONS).map((each) => toVersion(each)));
  return more > 0 ? [shown, quiet(`and ${more} more`)] : shown;
}

const inputs = (found) =>
  Object.entries(found.inputs).map(([name, given]) => [`in: ${name}`, given.length ? several(given) : "none"]);

const uncommitted = (state) => (ENDED.includes(state) ? "nothing committed" : "committed at its end");

const outputs = (found) =>
  Object.entries(found.outputs).map(([name, made]) => [
    `out: ${name}`, made.length ? several(made) : [toVolume(found.writes[name]), quiet(`  ${uncommitted(found.state)}`)],
  ]);

function pairs(title, given, show) {
  const known = Object.entries(given).map(([name, value]) => [name, show(value)]);
  return under(title, known.length && facts(known));
}

export const metrics = (given) => pairs("Metrics", given, number);

export const params = (given) =>
  pairs("Params", given, (value) =>
    h("pre", { class: "value" }, typeof value === "string" ? value : JSON.stringify(value, null, 1)));

// Two clicks, because a frame of Airflow's may not ask with a window of its own.
function canceller(where) {
  const place = h("span", {});
  const button = (text, onclick, more) => h("button", { type: "button", onclick, ...more }, text);
  const begin = () => place.replaceChildren(button("Cancel job", ask, { id: "cancel" }));
  const ask = () => {
    const keep = button("keep it", begin);
    place.replaceChildren("End this job and its ranks? ", button("end it", end, { class: "danger" }), " ", keep);
    keep.focus();
  };
  const end = async () => {
    place.replaceChildren(h("span", { role: "status" }, "ending: its ranks get time to save …"));
    try {
      await post(`${where}/cancel`);
    } catch (error) {
      place.replaceChildren(h("span", { role: "alert", class: "error" }, error.message));
    }
  };
  begin();
  return place;
}

// The end of a job's log, and what comes.
class Log {
  constructor(where) {
    this.where = where;
    this.next = null;
    this.text = h("pre", { class: "log", tabindex: 0, "aria-label": "Log" });
    this.follow = h("input", { type: "checkbox", checked: true, id: "follow" });
    this.follow.addEventListener("change", () => this.down());
    this.note = quiet();
    const bar = h("div", { class: "bar" }, h("label", { for: "follow" }, this.follow, " follow"), this.note);
    this.element = h("section", {}, bar, this.text);
  }

  async more(signal) {
    for (let pieces = 0; pieces < 8; pieces += 1) {
      const part = await get(`${this.where}/log`, { after: this.next }, signal);
      if (part.skipped_bytes)
        this.note.textContent = `the first ${bytes(part.skipped_bytes)} are left out: muster jobs logs shows all`;
      this.next = part.next;
      if (part.text) this.add(part.text);
      if (part.next >= part.bytes || !part.text) return;
    }
  }

  add(text) {
    this.text.append(text);
    while (this.text.textContent.length > MOST_CHARACTERS && this.text.childNodes.length > 1)
      this.text.firstChild.remove();
    this.down();
  }

  down() {
    if (this.follow.checked) this.text.scrollTop = this.text.scrollHeight;
  }
}
