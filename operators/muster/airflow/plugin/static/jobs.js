// The list of jobs, and one job with its log.

import { get, post } from "./api.js";
import { ago, bytes, count, facts, h, number, outward, path, span, state, table, toJob, toTask, toVersion, toVolume } from "./dom.js";
import { reading, redraw, watch } from "./watch.js";

const STATES = ["queued", "preparing", "running", "committing", "succeeded", "failed", "cancelled", "unreadable"];
const ENDED = ["succeeded", "failed", "cancelled", "unreadable"];
const ROWS = 50;
const MOST_CHARACTERS = 1_000_000;
const COLUMNS = [
  ["State", "tight"], ["Job", "tight"], ["Task", "tight"], ["Queue", "tight"], ["Ranks", "number"], ["Since", "tight"], ["Took", "number"], ["What it says", "says"],
];

const address = (asked) => {
  const given = Object.entries(asked).filter(([, v]) => v !== "" && v !== undefined && v !== 0 && v !== "0");
  return `#/jobs${given.length ? `?${new URLSearchParams(given)}` : ""}`;
};

export async function jobs({ put, signal }, asked) {
  const wanted = { state: asked.state, text: asked.text, offset: Number(asked.offset) || 0, limit: ROWS };
  let last;
  await watch(signal, 3, async () => {
    const found = await get("jobs", wanted, signal);
    const now = JSON.stringify(found);
    const live = found.jobs.some((each) => !ENDED.includes(each.state));
    if ((now !== last || live) && !reading(document.body)) put(...list(found, asked, wanted.offset));
    last = now;
  });
}

function list(found, asked, offset) {
  const all = Object.values(found.states).reduce((sum, n) => sum + n, 0);
  const choice = (name, text, many) =>
    h("a", { href: address({ ...asked, state: name, offset: 0 }), "aria-current": (asked.state ?? "") === name ? "true" : null }, `${text} `,
      h("span", { class: "quiet" }, many.toLocaleString("en")));
  const search = (event) => {
    event.preventDefault();
    location.hash = address({ ...asked, text: event.target.elements.text.value.trim(), offset: 0 });
  };
  return [
    h("h1", {}, "Jobs"),
    h("div", { class: "bar filters" },
      choice("", "all", all),
      STATES.filter((name) => found.states[name] || name === asked.state).map((name) => choice(name, name, found.states[name] ?? 0)),
      h("form", { class: "end", role: "search", onsubmit: search },
        h("input", { id: "text", name: "text", type: "search", value: asked.text ?? "", placeholder: "name or id", "aria-label": "Only jobs whose name or id holds" }))),
    table("Jobs, newest first", COLUMNS, found.jobs.map((each) => [line(each)]),
      all ? "No job matches." : "No jobs yet: a task of muster's starts one."),
    turn(found.total, offset, (to) => address({ ...asked, offset: to })),
  ];
}

function turn(total, offset, to) {
  if (total <= ROWS && !offset) return null;
  const last = Math.min(offset + ROWS, total);
  return h("nav", { class: "bar quiet", "aria-label": "Pages" },
    `${(offset + 1).toLocaleString("en")} to ${last.toLocaleString("en")} of ${count(total, "job")}`,
    offset > 0 && h("a", { href: to(Math.max(0, offset - ROWS)), rel: "prev" }, "newer"),
    last < total && h("a", { href: to(offset + ROWS), rel: "next" }, "older"));
}

function line(each) {
  return [
    state(each.state),
    toJob(each.job_id),
    each.origin?.dag_id ? [toTask(each.origin), h("small", {}, each.origin.run_id)] : each.name ?? "",
    [each.queue ?? "", each.priority && h("small", {}, `${each.priority} priority`)],
    [each.ranks ?? "", each.gpus ? h("small", {}, count(each.gpus, "GPU")) : null],
    ago(each.ended ?? each.started ?? each.submitted),
    span(took(each)),
    says(each),
  ];
}

const took = (each) => each.started && (each.ended ?? Date.now() / 1000) - each.started;

function says(each) {
  if (each.error) return each.error;
  if (each.verdict) return [h("strong", {}, cause(each.verdict)), h("small", { class: "two" }, each.verdict.message)];
  if (ENDED.includes(each.state)) return each.made.map((made) => [toVersion(made), " "]);
  return [told(each.progress), each.reason && (each.alive === false ? h("strong", {}, each.reason) : h("span", { class: "quiet" }, each.reason))]
    .filter(Boolean).map((part) => h("div", {}, part));
}

const cause = (verdict) => verdict.cause + (verdict.rank === null ? "" : `, rank ${verdict.rank}`);

export function told(progress) {
  const all = Object.entries(progress ?? {});
  if (!all.length) return null;
  return h("span", { class: "told" }, all.map(([name, { value, total, text }]) =>
    h("span", {}, total ? h("progress", { value, max: total, "aria-label": name }) : null, ` ${name} ${text}`)));
}

export async function job({ put, signal }, id) {
  const where = `jobs/${encodeURIComponent(id)}`;
  const about = h("div", {});
  const log = new Log(where);
  const cancel = canceller(where);
  let begun = false;
  await watch(signal, 2, async () => {
    const found = await get(where, {}, signal);
    if (!reading(about)) redraw(about, () => describe(found, cancel));
    if (!begun) put(about, found.may.log ? log.element : h("p", { class: "quiet" }, "Airflow does not let you read this Dag's task logs."));
    begun = true;
    if (found.may.log) await log.more(signal);
    return !ENDED.includes(found.state);
  });
}

function describe(found, cancel) {
  const resources = (role) => `${role.resources.cpus} CPUs, ${role.resources.memory_gib} GiB` + (role.resources.gpus ? `, ${count(role.resources.gpus, "GPU")}` : "");
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/jobs" }, "Jobs")),
    h("h1", { tabindex: -1 }, h("span", { class: "mono" }, found.job_id), h("span", { class: "quiet" }, ` ${found.name}`)),
    h("div", { class: "bar" }, state(found.state), told(found.progress), !ENDED.includes(found.state) && h("span", { class: found.alive === false ? "" : "quiet" }, found.reason),
      h("span", { class: "end" }, found.may.cancel ? cancel : null)),
    found.verdict && h("div", { class: "verdict" }, h("strong", {}, cause(found.verdict)), h("span", {}, found.verdict.message), h("span", { class: "quiet" }, found.verdict.advice)),
    h("div", { class: "halves" },
      h("section", {}, h("h2", {}, "Job"), facts([
        ["task", toTask(found.origin)], ["run", found.origin.run_id],
        ["submitted", ago(found.submitted)], ["started", ago(found.started)], ["ended", ago(found.ended)], ["took", span(took(found))],
        ["restarts", found.restarts || ""], ["queue", found.queue], ["priority", found.priority],
        ["image", h("code", {}, found.image)], ["launcher", found.launcher],
        ...found.roles.map((role) => [`role ${role.name}`, [h("code", {}, role.entrypoint ?? role.command.join(" ")), h("span", { class: "quiet" }, `  ${role.replicas} × ${count(role.ranks, "rank")}, each replica ${resources(role)}`)]]),
        ["links", Object.entries(found.links ?? {}).map(([title, url]) => [outward(url, title), " "])],
      ].filter(([name, value]) => name !== "links" || value.length))),
      h("section", {},
        h("h2", {}, "Inputs and outputs"), facts([...inputs(found), ...outputs(found)]),
        Object.keys(found.metrics).length ? [h("h2", {}, "Metrics"), facts(Object.entries(found.metrics).map(([name, value]) => [name, number(value)]))] : null,
        Object.keys(found.params).length ? [h("h2", {}, "Params"), params(found.params)] : null)),
    h("h2", {}, "Log"),
  ].filter(Boolean);
}

const several = (addresses) =>
  addresses.length > 12 ? [addresses.slice(0, 12).map((each) => [toVersion(each), " "]), `and ${addresses.length - 12} more`] : addresses.map((each) => [toVersion(each), " "]);
const inputs = (found) => Object.entries(found.inputs).map(([name, addresses]) => [`in: ${name}`, addresses.length ? several(addresses) : "none"]);
const outputs = (found) => Object.entries(found.outputs).map(([name, addresses]) => [`out: ${name}`, addresses.length ? several(addresses) : [toVolume(found.writes[name]), h("span", { class: "quiet" }, "  nothing committed")]]);

export const params = (given) =>
  facts(Object.entries(given).map(([name, value]) => [name, h("pre", { class: "value" }, typeof value === "string" ? value : JSON.stringify(value, null, 1))]));

// Two clicks, because a frame of Airflow's may not ask with a window of its own.
function canceller(where) {
  const place = h("span", {});
  const ask = () => {
    const no = h("button", { type: "button", onclick: begin }, "keep it");
    place.replaceChildren("End this job and its ranks? ", h("button", { type: "button", class: "danger", onclick: end }, "end it"), " ", no);
    no.focus();
  };
  const begin = () => place.replaceChildren(h("button", { type: "button", id: "cancel", onclick: ask }, "Cancel job"));
  const end = async () => {
    place.replaceChildren(h("span", { role: "status" }, "ending: its ranks get time to save …"));
    try { await post(`${where}/cancel`); } catch (error) { place.replaceChildren(h("span", { role: "alert", class: "error" }, error.message)); }
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
    this.note = h("span", { class: "quiet" });
    this.element = h("section", {}, h("div", { class: "bar" }, h("label", { for: "follow" }, this.follow, " follow"), this.note), this.text);
  }

  async more(signal) {
    for (let pieces = 0; pieces < 8; pieces += 1) {
      const part = await get(`${this.where}/log`, { after: this.next }, signal);
      const first = this.next === null;
      this.next = part.next;
      if (first && part.skipped_bytes) this.note.textContent = `the first ${bytes(part.skipped_bytes)} are left out: muster jobs logs shows all`;
      if (part.text) this.add(part.text);
      else if (first) this.text.textContent = "";
      if (part.next >= part.bytes || !part.text) return;
    }
  }

  add(text) {
    this.text.append(text);
    while (this.text.textContent.length > MOST_CHARACTERS && this.text.childNodes.length > 1) this.text.firstChild.remove();
    this.down();
  }

  down() {
    if (this.follow.checked) this.text.scrollTop = this.text.scrollHeight;
  }
}
