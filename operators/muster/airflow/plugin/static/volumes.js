// The volumes, one volume's versions with their metrics, one version with its lineage, one file of it.

import { get } from "./api.js";
import {
  ago, bytes, count, crumbs, facts, h, number, path, quiet, spaced, table, toDeployment, toJob, toTask, toVersion,
  toVolume, under,
} from "./dom.js";
import { metrics, params } from "./jobs.js";
import { lineage, plot } from "./picture.js";

const ROWS = 50;
const MOST_METRICS = 5;
const MOST_DOCUMENTS = 12;
const LONG = 24; // characters of a metric's name, before its heading is wrapped
const DOCUMENT = /\.html?$/i;
const PICTURE = /\.(png|jpe?g|gif|webp|svg)$/i;

const top = () => h("a", { href: "#/volumes" }, "Volumes");
const shown = (file) => DOCUMENT.test(file) || PICTURE.test(file);

export async function volumes({ put, signal }) {
  const found = await get("volumes", {}, signal);
  const columns = [
    ["Volume"], ["Versions", "number"], ["Newest"], ["Partition"], ["Size", "number"], ["Made", "tight"],
  ];
  const rows = found.volumes.map(({ volume, versions: many, newest, error }) => [[
    toVolume(volume),
    many?.toLocaleString("en") ?? "",
    newest ? toVersion(newest.address, `@${newest.number}`) : error ?? "",
    newest?.partition ?? "",
    bytes(newest?.size_bytes),
    ago(newest?.created),
  ]]);
  const empty = "No volumes yet: the first job that writes one makes it.";
  put(h("h1", {}, "Volumes"), table("Volumes", columns, rows, empty));
}

export async function versions({ put, signal }, name, asked) {
  const before = Number(asked.before) || null;
  const found = await get(`volumes/${path(name)}`, { before, limit: ROWS }, signal);
  const known = [...new Set(found.versions.flatMap((each) => Object.keys(each.metrics)))];
  put(
    crumbs(top()),
    h("h1", { class: "mono", tabindex: -1 }, name),
    h("div", { class: "bar" }, quiet(count(found.total, "version")), finder(name)),
    known.length && found.versions.length > 1 && curves(found.versions, known),
    listed(name, found.versions, known.slice(0, MOST_METRICS)),
    turn(name, before, found.versions),
  );
}

function listed(name, found, known) {
  const columns = [
    ["Version"], ["Partition", "tight"], ["Made", "tight"], ["Files", "number"], ["Size", "number"],
    ...known.map((metric) => [metric, metric.length > LONG ? "number name" : "number"]), ["Job", "name"], ["Marks"],
  ];
  const cells = (each) => [
    toVersion(each.address, `@${each.number}`),
    each.partition ?? "",
    ago(each.created),
    each.files.toLocaleString("en"),
    bytes(each.size_bytes),
    ...known.map((metric) => (metric in each.metrics ? number(each.metrics[metric]) : "")),
    each.job_id ? toJob(each.job_id) : quiet(each.note),
    [spaced(each.pins.map((pin) => tag(pin, "kept from gc"))), each.retired && tag("retired", each.retired)],
  ];
  const rows = found.map((each) => [cells(each), each.retired && "gone"]);
  return table(`Versions of ${name}, newest first`, columns, rows, "No version has its data any more.");
}

const tag = (text, title) => h("span", { class: "tag", title }, text);

function turn(name, before, found) {
  const oldest = found.at(-1)?.number;
  const more = found.length === ROWS && oldest > 1;
  return h("nav", { class: "bar quiet", "aria-label": "Pages" },
    before && h("a", { href: `#/volumes/${path(name)}`, rel: "prev" }, "newest"),
    more && h("a", { href: `#/volumes/${path(name)}?before=${oldest}`, rel: "next" }, "older"));
}

function finder(name) {
  const go = (event) => {
    event.preventDefault();
    const wanted = event.target.elements.which.value.trim().replace(/^@/, "");
    if (wanted) location.hash = `#/volumes/${path(name)}@${encodeURIComponent(wanted)}`;
  };
  return h("form", { class: "end", onsubmit: go },
    h("input", {
      id: "which", name: "which", type: "search", placeholder: "number, partition or b3:…",
      "aria-label": "Go to a version by its number, partition or digest",
    }));
}

function curves(found, names) {
  const oldestFirst = [...found].reverse();
  const place = h("div", { class: "picture" });
  const draw = (name) => place.replaceChildren(plot(oldestFirst.filter((each) => name in each.metrics), name));
  const options = names.map((name) => h("option", { value: name }, name));
  const choice = h("select", { id: "metric", onchange: (event) => draw(event.target.value) }, options);
  draw(names[0]);
  return h("section", { "aria-label": "Metrics across versions" },
    h("div", { class: "bar" }, h("label", { for: "metric" }, "Metric across these versions "), choice),
    place);
}

export async function version({ put, signal }, address) {
  const found = await get("version", { address }, signal);
  const { record } = found;
  const name = `${found.volume}@${found.number}`;
  put(
    crumbs(top(), " / ", toVolume(found.volume)),
    h("h1", { class: "mono", tabindex: -1 }, name, found.partition && quiet(` ${found.partition}`)),
    found.deleted && note("Its data was deleted by gc. Its record and the list of its files are kept."),
    found.retired && note(`Retired, so no selector finds it: ${found.retired}`),
    documents(found, name),
    h("div", { class: "halves" },
      h("section", {}, under("Version", facts(known(found)))),
      record && h("section", {}, metrics(record.metrics), params(record.params))),
    under("Made from", lineage(found.lineage, found.address)),
    under("Files", files(found, name)),
  );
}

const note = (text) => h("p", { class: "note" }, text);

function documents(found, name) {
  const some = found.deleted ? [] : (found.files ?? []).filter((each) => shown(each.path)).slice(0, MOST_DOCUMENTS);
  return some.length > 0 && h("div", { class: "bar" }, some.map((each) => toFile(name, each.path)));
}

function known(found) {
  const served = found.served_by.map((each) => toDeployment(each));
  const hidden = [["made by", quiet("a Dag that Airflow does not let you see")]];
  return [
    ["digest", h("code", {}, found.digest)],
    ["size", `${bytes(found.size_bytes)} in ${count(found.total_files, "file")}`],
    ["made", ago(found.created)],
    ["pinned by", found.pins.join(", ")],
    ["served by", served.length ? spaced(served) : ""],
    ...(found.record ? made(found.record) : hidden),
  ];
}

const made = (record) => [
  ["by job", record.job_id && toJob(record.job_id)],
  ["of task", toTask(record)],
  ["in run", record.origin.run_id],
  ["as output", record.output],
  ["image", record.image && h("code", {}, record.image)],
  ["entrypoint", record.entrypoint && h("code", {}, record.entrypoint)],
  ["code", record.code && h("code", {}, record.code.slice(0, 19))],
  ["beside", record.siblings.length ? spaced(record.siblings.map((each) => toVersion(each))) : ""],
  ["note", record.note],
];

function files(found, name) {
  if (!found.files) return quiet("Airflow does not let you see what the tasks of this Dag left behind.");
  const rows = found.files.map((each) => [[
    found.deleted ? each.path : toFile(name, each.path), bytes(each.size_bytes),
  ]]);
  const more = found.total_files - found.files.length;
  return [
    table(`Files of ${name}`, [["File", "mono"], ["Size", "number"]], rows, "No files."),
    more > 0 && h("p", { class: "quiet" }, `and ${count(more, "more file")}: muster volumes show ${name}`),
  ];
}

function toFile(name, file) {
  const where = `${path(name)}/${path(file)}`;
  if (shown(file)) return h("a", { href: `#/files/${where}` }, file);
  return h("a", { href: `files/${where}`, download: file.split("/").at(-1) }, file);
}

// A document that a user wrote stays in its sandbox; this page is only the frame around it.
export async function file({ put }, where) {
  const at = where.indexOf("/", where.indexOf("@"));
  const [name, inner] = [where.slice(0, at), where.slice(at + 1)];
  const src = `files/${path(where)}`;
  const picture = () => h("img", { class: "look", src, alt: inner });
  put(
    crumbs(top(), " / ", toVersion(name)),
    h("h1", { class: "mono", tabindex: -1 }, inner),
    PICTURE.test(inner) ? picture() : h("iframe", { sandbox: "", src, title: inner }),
  );
}
