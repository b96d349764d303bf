// One deployment: its revisions, what users were answered over time, a request to try, and the way forward or back.

import { get, post } from "./api.js";
import { chart } from "./chart.js";
import { called, champion, shareBar, standing, underWay } from "./deployment_cells.js";
import { copier, crumbs, facts, h, quiet, state, twice, under } from "./dom.js";
import { count, milliseconds, number, span } from "./format.js";
import { query, toFile, toVersion } from "./links.js";
import { table } from "./table.js";
import { ago } from "./time.js";
import { reading, redraw, watch } from "./watch.js";

const gone = (each) => ["retired", "refused"].includes(each.state);
const kept = (each) => (each.kept && each.state === "ready" ? "kept" : each.state);

export async function deployment(screen, name) {
  const where = `deployments/${encodeURIComponent(name)}`;
  const [about, curves, cards, request] = [h("div", {}), h("div", { class: "charts" }), h("div", {}), h("div", {})];
  let [last, drawn, model, curl, begun] = ["", "", "", "", false];
  await watch(screen, 3, async () => {
    const found = await get(where, {}, screen.signal);
    const now = JSON.stringify(found);
    const asking = about.contains(document.activeElement) && document.activeElement.matches("button");
    if (now !== last && !reading(about) && !asking) redraw(about, () => describe(found, where));
    last = now;
    if (!begun) screen.put(about, cards, curves, request);
    if (found.curl !== curl) redraw(request, () => example(found.curl));
    curl = found.curl;
    begun = true;
    await Promise.all([beside(curves, overTime), beside(cards, () => documents(champion(found)?.model.address))]);
  });

  // What cannot be had of these is said in their place: the deployment itself is shown.
  async function beside(place, ask) {
    try {
      await ask();
    } catch (error) {
      if (!screen.signal.aborted) redraw(place, () => [quiet(error.message)]);
    }
  }

  async function overTime() {
    const { intervals } = await get(`${where}/history`, {}, screen.signal);
    const now = JSON.stringify(intervals);
    if (now !== drawn) redraw(curves, () => plots(intervals));
    drawn = now;
  }

  async function documents(address) {
    if (!address || address === model) return;
    model = address;
    const found = await get("version", { address }, screen.signal);
    const links = found.documents.map((each) => h("span", {}, toFile(each.address, each.path, each.title), each.says && quiet(` ${each.says}`)));
    redraw(cards, () => [links.length > 0 && h("div", { class: "bar" }, quiet("of the model that serves: "), links)].filter(Boolean));
  }
}

function plots(intervals) {
  if (intervals.length < 2) return [h("p", { class: "quiet" }, "Curves begin when Airflow's api-server has counted for half a minute.")];
  const names = [...new Set(intervals.flatMap(({ figures }) => Object.keys(figures)))];
  const lines = (show) => names.map((name) => ({
    name,
    points: intervals.filter(({ figures }) => figures[name]).map((each) => [each.at, show(each.figures[name], each.seconds)]).filter(([, y]) => y !== null),
  }));
  const wide = { x: "time", from: 0 };
  return [
    chart("requests a second", lines((f, seconds) => f.requests / seconds), wide),
    chart("errors a second", lines((f, seconds) => f.failed / seconds), wide),
    chart("p95", lines((f) => f.p95_seconds), { ...wide, write: milliseconds }),
  ].filter(Boolean);
}

const example = (curl) =>
  (curl ? [h("h2", {}, "An example request"), h("div", { class: "bar" }, h("code", { class: "curl" }, curl), copier(curl))] : []);

const answered = (figures) => [
  figures ? number(figures.requests) : "", figures ? number(figures.failed) : "", milliseconds(figures?.p95_seconds),
];

// By revision, the inputs with values that no training row had, and in how many requests.
const outside = ({ figures }) => Object.entries(figures ?? {})
  .filter(([, each]) => Object.keys(each.outside ?? {}).length)
  .map(([name, each]) => `${name}: ${Object.entries(each.outside).map(([input, n]) => `${input} in ${number(n)}`).join(", ")} of ${count(each.requests, "request")}`)
  .join("; ");

function describe(found, where) {
  const columns = [
    ["State", "tight"], ["Revision"], ["Model", "name"], ["Partition", "tight"], ["Share", "number"], ["Ready", "number"],
    ["Requests", "number"], ["Errors", "number"], ["p95", "number"], ["Since", "tight"], ["Why"], ["Change", "tight"],
  ];
  const cells = (each) => [
    state(kept(each)),
    each.name,
    toVersion(each.model.address),
    each.model.partition ?? "",
    `${each.percent} %`,
    gone(each) ? "" : `${each.ready} of ${each.wanted}`,
    ...answered(found.figures?.[each.name]),
    ago(each.since),
    each.reason,
    changing(where, found, each),
  ];
  const rows = found.revisions.map((each) => [cells(each), gone(each) && "gone"]);
  const { release } = found;
  const known = [
    ["under way", release && underWay(found)],
    ["asked for by", release?.by],
    ["at this share", release && ago(release.since)],
    ["taken back", release?.failed],
    ["answers at", h("code", {}, found.url)],
    ["says", found.reason],
    ["edited", found.drift],
    ["drift of its inputs", found.report && drift(found.report)],
    ["outside what training rows had", outside(found)],
    ["counted", found.figures ? null : "its servers do not say now what they answered"],
  ];
  return [
    crumbs(h("a", { href: "#/deployments" }, "Deployments")),
    h("h1", { tabindex: -1 }, found.name),
    h("div", { class: "bar" }, standing(found), shareBar(found), shareWords(found), h("span", { class: "end bar" }, found.may?.change && [back(where, found), manual(where, found)])),
    facts(known),
    under("Revisions", table(`Revisions of ${found.name}, newest first`, columns, rows, "No revisions.")),
    lately(found),
  ].flat(Infinity).filter(Boolean);
}

const drift = ({ address, at, drifted, columns, rows }) => [
  toFile(address, "docs/index.html", columns ? `${number(drifted)} of ${count(columns, "column")} drifted` : "too few requests to judge"),
  quiet(` ${count(rows, "row")}, `), ago(at), " ", toVersion(address),
];

const shareWords = ({ revisions }) =>
  quiet(revisions.filter(({ percent }) => percent).map(({ name, percent }) => `${name} ${percent} %`).join(", "));

function changing(where, found, each) {
  if (!found.may?.change) return "";
  if (each.state === "refused") return quiet("is over: run its deploy task again");
  return !gone(each) && each.percent < 100 ? promoter(where, found, each) : "";
}

// What a step means for those who ask stands in its question.
const others = ({ revisions }, name) => revisions.filter((each) => each.percent && each.name !== name).map((each) => each.name).join(" and ");

const warned = ({ warnings }, name) => (warnings?.[name] ? ` ${warnings[name]}.` : "");

const promoter = (where, found, each) => twice("promote", `Give ${each.name} all traffic at once, without its steps and rules?${others(found, each.name) && ` ${others(found, each.name)} gets none then.`}${warned(found, each.name)}`,
  async () => { await post(`${where}/promote${query({ revision: each.name })}`); }, { yes: "give it", doing: "asked for …", id: `promote-${each.name}` });

// Of the whole deployment: what was edited or deleted is brought back, or all of it ends.
const manual = (where, { name }) => [
  twice("Repair", "Bring back what was edited or deleted? What users get stays the same.", async () => {
    const { done } = await post(`${where}/repair`);
    return done.length ? done.join("; ") : "nothing was to be repaired";
  },
    { yes: "repair it", doing: "repairing: this waits until it answers …", id: "repair" }),
  twice("Retire", `End ${name}? All who ask it get no answer from then on; its model versions stay.`, async () => { await post(`${where}/retire`); location.hash = "#/deployments"; },
    { yes: "end it", doing: "ending …", id: "retire" }),
];

function back(where, found) {
  const { revision, serves, why } = found.back ?? {};
  if (!revision) return why ? quiet(`Nothing to roll back: ${why}`) : null;
  const named = (name) => {
    const known = called(found, name);
    return `${name}${known ? ` (${known.model.address.replace(/^.*@/, "@")})` : ""}`;
  };
  const act = async () => { await post(`${where}/rollback${query({ revision })}`); };
  return twice("Roll back", `Take ${named(revision)} back?${serves ? ` ${named(serves)} has all traffic then, and ${revision} is refused.${warned(found, serves)}` : ""}`, act,
    { yes: "take it back", doing: "asked for …", id: "rollback" });
}

// What was answered since this page was opened.
function lately({ lately: figures, lately_seconds: seconds, revisions }) {
  const busy = revisions.filter(({ name }) => figures?.[name]?.requests);
  if (!busy.length) return null;
  const columns = [["Revision"], ["Requests", "number"], ["A second", "number"], ["Errors", "number"], ["p95", "number"]];
  const rows = busy.map(({ name }) => {
    const [requests, failed, p95] = answered(figures[name]);
    return [[name, requests, number(Number((figures[name].requests / seconds).toPrecision(3))), failed, p95]];
  });
  return under(`The last ${span(seconds)}`, table("What was answered lately", columns, rows, ""));
}
