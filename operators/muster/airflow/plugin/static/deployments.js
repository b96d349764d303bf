// What answers predictions, which model versions stand behind each name, and what users were answered.

import { get } from "./api.js";
import {
  ago, crumbs, facts, h, milliseconds, number, shares, span, state, table, toDeployment, toVersion, under,
} from "./dom.js";
import { watch } from "./watch.js";

const gone = (each) => ["retired", "refused"].includes(each.state);
const called = ({ revisions }, name) => revisions.find((each) => each.name === name);
const standing = (each) => state(!each.ready ? "down" : each.drift ? "drifted" : "serving");
const kept = (each) => (each.kept && each.state === "ready" ? "kept" : each.state);

function champion({ revisions, release }) {
  const order = (one, other) => other.percent - one.percent || (other.name === release?.champion) - 0.5;
  return revisions.filter((each) => each.percent > 0).sort(order)[0];
}

export async function deployments(screen) {
  await changes(screen, 5, "deployments", (found) => list(found.deployments));
}

export async function deployment(screen, name) {
  await changes(screen, 3, `deployments/${encodeURIComponent(name)}`, describe);
}

async function changes(screen, seconds, where, draw) {
  let last;
  await watch(screen, seconds, async () => {
    const found = await get(where, {}, screen.signal);
    const now = JSON.stringify(found);
    if (now !== last) screen.put(...draw(found));
    last = now;
  });
}

// The one that had the traffic before last: what comes stands at the end of the bar.
function bar(found) {
  const coming = found.release?.revision;
  const parts = found.revisions.map(({ name, percent }) => ({
    name, percent, kind: name === coming ? "coming" : "serving",
  }));
  return shares(parts.sort((one, other) => (one.kind === "coming") - (other.kind === "coming")));
}

function underWay(found) {
  if (!found.release || found.drift) return found.reason;
  const { revision, failed, held } = found.release;
  const mine = called(found, revision);
  const how = failed ? "is taken back" : held ? "is held" : mine?.percent ? "is on its way" : "comes up";
  return [mine ? toVersion(mine.model.address) : revision, ` ${how} at ${mine?.percent ?? 0} %`];
}

// Of all revisions together: the slowest counts, since percentiles cannot be added up.
function together(figures) {
  const all = Object.values(figures ?? {});
  if (!all.length) return ["", "", ""];
  const sum = (name) => all.reduce((total, each) => total + each[name], 0);
  const slow = all.map((f) => f.p95_seconds).filter((seconds) => seconds !== null);
  return [number(sum("requests")), number(sum("failed")), slow.length ? milliseconds(Math.max(...slow)) : ""];
}

const answered = (figures) => [
  figures ? number(figures.requests) : "", figures ? number(figures.failed) : "", milliseconds(figures?.p95_seconds),
];

function list(found) {
  const columns = [
    ["State", "tight"], ["Deployment"], ["Serves"], ["Shares", "tight"], ["Requests", "number"],
    ["Errors", "number"], ["Slowest p95", "number"], ["Since", "tight"], ["Answers at"], ["Under way"],
  ];
  const rows = found.map((each) => {
    const best = champion(each);
    return [[
      standing(each),
      toDeployment(each.name),
      best ? toVersion(best.model.address) : "nothing",
      bar(each),
      ...together(each.figures),
      ago(best?.since),
      h("code", {}, each.url),
      underWay(each),
    ]];
  });
  const empty = "No deployments yet: a DeployOperator makes one.";
  return [h("h1", {}, "Deployments"), table("Deployments", columns, rows, empty)];
}

function describe(found) {
  const columns = [
    ["State", "tight"], ["Revision"], ["Model"], ["Partition"], ["Share", "number"], ["Ready", "number"],
    ["Requests", "number"], ["Errors", "number"], ["p95", "number"], ["Since", "tight"], ["Why"],
  ];
  const cells = (figures) => (each) => [
    state(kept(each)),
    each.name,
    toVersion(each.model.address),
    each.model.partition ?? "",
    `${each.percent} %`,
    gone(each) ? "" : `${each.ready} of ${each.wanted}`,
    ...answered(figures?.[each.name]),
    ago(each.since),
    each.reason,
  ];
  const rows = found.revisions.map((each) => [cells(found.figures)(each), gone(each) && "gone"]);
  const { release } = found;
  const known = [
    ["state", standing(found)],
    ["shares", bar(found)],
    ["under way", release && underWay(found)],
    ["asked for by", release?.by],
    ["at this share", release && ago(release.since)],
    ["taken back", release?.failed],
    ["answers at", h("code", {}, found.url)],
    ["says", found.reason],
    ["counted", found.figures ? null : "its servers do not say now what they answered"],
  ];
  return [
    crumbs(h("a", { href: "#/deployments" }, "Deployments")),
    h("h1", { tabindex: -1 }, found.name),
    facts(known),
    under("Revisions", table(`Revisions of ${found.name}, newest first`, columns, rows, "No revisions.")),
    lately(found),
  ];
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
