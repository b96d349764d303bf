// The volumes, one volume's versions with their metrics, one version with its lineage, one file of it.

import { get } from "./api.js";
import { ago, bytes, count, facts, h, number, path, short, span, table, toJob, toTask, toVersion, toVolume } from "./dom.js";
import { params } from "./jobs.js";
import { lineage, plot } from "./picture.js";

const ROWS = 50;
const MOST_METRICS = 5;
const DOCUMENT = /\.html?$/i;
const PICTURE = /\.(png|jpe?g|gif|webp|svg)$/i;

export async function volumes({ put, signal }) {
  const found = await get("volumes", {}, signal);
  const columns = [["Volume"], ["Versions", "number"], ["Newest"], ["Partition"], ["Size", "number"], ["Made", "tight"]];
  const rows = found.volumes.map(({ volume, versions: many, newest, error }) => [[
    toVolume(volume), many === null ? "" : many.toLocaleString("en"), newest ? toVersion(newest.address, `@${newest.number}`) : error ?? "",
    newest?.partition ?? "", bytes(newest?.size_bytes), ago(newest?.created),
  ]]);
  put(h("h1", {}, "Volumes"), table("Volumes", columns, rows, "No volumes yet: the first job that writes one makes it."));
}

export async function versions({ put, signal }, name, asked) {
  const before = Number(asked.before) || null;
  const found = await get(`volumes/${path(name)}`, { before, limit: ROWS }, signal);
  const metrics = [...new Set(found.versions.flatMap((each) => Object.keys(each.metrics)))].slice(0, MOST_METRICS);
  const columns = [["Version"], ["Partition"], ["Made", "tight"], ["Files", "number"], ["Size", "number"], ...metrics.map((m) => [m, "number"]), ["Job"], ["Kept by"]];
  const rows = found.versions.map((each) => [[
    toVersion(each.address, `@${each.number}`), each.partition ?? "", ago(each.created), each.files.toLocaleString("en"), bytes(each.size_bytes),
    ...metrics.map((m) => (m in each.metrics ? number(each.metrics[m]) : "")),
    each.job_id ? toJob(each.job_id) : h("span", { class: "quiet" }, each.note),
    [each.pins.map((pin) => [h("span", { class: "tag", title: "kept from gc" }, pin), " "]), each.retired && h("span", { class: "tag", title: each.retired }, "retired")],
  ], each.retired ? "gone" : null]);
  const oldest = found.versions.at(-1)?.number;
  put(
    h("p", { class: "crumbs" }, h("a", { href: "#/volumes" }, "Volumes")),
    h("h1", { class: "mono", tabindex: -1 }, name),
    h("div", { class: "bar" }, h("span", { class: "quiet" }, count(found.total, "version")), finder(name)),
    metrics.length && found.versions.length > 1 ? curves(found.versions, [...new Set(found.versions.flatMap((each) => Object.keys(each.metrics)))]) : null,
    table(`Versions of ${name}, newest first`, columns, rows, "No version has its data any more."),
    h("nav", { class: "bar quiet", "aria-label": "Pages" },
      before && h("a", { href: `#/volumes/${path(name)}`, rel: "prev" }, "newest"),
      found.versions.length === ROWS && oldest > 1 && h("a", { href: `#/volumes/${path(name)}?before=${oldest}`, rel: "next" }, "older")),
  );
}

function finder(name) {
  const go = (event) => {
    event.preventDefault();
    const wanted = event.target.elements.which.value.trim().replace(/^@/, "");
    if (wanted) location.hash = `#/volumes/${path(name)}@${encodeURIComponent(wanted)}`;
  };
  return h("form", { class: "end", onsubmit: go },
    h("input", { id: "which", name: "which", type: "search", placeholder: "number, partition or b3:…", "aria-label": "Go to a version by its number, partition or digest" }));
}

function curves(found, names) {
  const place = h("div", { class: "picture" });
  const draw = (name) => place.replaceChildren(plot([...found].reverse().filter((each) => name in each.metrics), name));
  const choice = h("select", { id: "metric", onchange: (event) => draw(event.target.value) }, names.map((name) => h("option", { value: name }, name)));
  draw(names[0]);
  return h("section", { "aria-label": "Metrics across versions" }, h("div", { class: "bar" }, h("label", { for: "metric" }, "Metric across these versions "), choice), place);
}

export async function version({ put, signal }, address) {
  const found = await get("version", { address }, signal);
  const record = found.record;
  const name = `${found.volume}@${found.number}`;
  const documents = found.files.filter(({ path: file }) => DOCUMENT.test(file) || PICTURE.test(file));
  put(
    h("p", { class: "crumbs" }, h("a", { href: "#/volumes" }, "Volumes"), " / ", toVolume(found.volume)),
    h("h1", { class: "mono", tabindex: -1 }, name, found.partition ? h("span", { class: "quiet" }, ` ${found.partition}`) : null),
    found.deleted && h("p", { class: "note" }, "Its data was deleted by gc. Its record and the list of its files are kept."),
    found.retired && h("p", { class: "note" }, `Retired, so no selector finds it: ${found.retired}`),
    documents.length && !found.deleted ? h("div", { class: "bar" }, documents.slice(0, 12).map(({ path: file }) => toFile(name, file))) : null,
    h("div", { class: "halves" },
      h("section", {}, h("h2", {}, "Version"), facts([
        ["digest", h("code", {}, found.digest)], ["size", `${bytes(found.size_bytes)} in ${count(found.total_files, "file")}`],
        ["made", ago(found.created)], ["pinned by", found.pins.join(", ")],
        ["served by", found.served_by.length ? found.served_by.map((each) => [h("a", { href: `#/deployments/${encodeURIComponent(each)}` }, each), " "]) : ""],
        ...(record ? made(record) : [["made by", h("span", { class: "quiet" }, "a Dag that Airflow does not let you see")]]),
      ])),
      record && h("section", {},
        Object.keys(record.metrics).length ? [h("h2", {}, "Metrics"), facts(Object.entries(record.metrics).map(([key, value]) => [key, number(value)]))] : null,
        Object.keys(record.params).length ? [h("h2", {}, "Params"), params(record.params)] : null)),
    h("h2", {}, "Made from"),
    lineage(found.lineage, found.address),
    h("h2", {}, "Files"),
    table(`Files of ${name}`, [["File", "mono"], ["Size", "number"]], found.files.map(({ path: file, size_bytes }) => [[found.deleted ? file : toFile(name, file), bytes(size_bytes)]]), "No files."),
    found.total_files > found.files.length ? h("p", { class: "quiet" }, `and ${count(found.total_files - found.files.length, "more file", "more files")}: muster volumes show ${name}`) : null,
  );
}

const made = (record) => [
  ["by job", record.job_id ? toJob(record.job_id) : ""], ["of task", toTask(record.origin)], ["in run", record.origin.run_id],
  ["as output", record.output], ["image", record.image && h("code", {}, record.image)], ["entrypoint", record.entrypoint && h("code", {}, record.entrypoint)],
  ["code", record.code && h("code", {}, record.code.slice(0, 19))], ["beside", record.siblings.length ? record.siblings.map((each) => [toVersion(each), " "]) : ""], ["note", record.note],
];

function toFile(name, file) {
  if (DOCUMENT.test(file) || PICTURE.test(file)) return h("a", { href: `#/files/${path(name).replaceAll("%40", "@")}/${path(file)}` }, file);
  return h("a", { href: `files/${path(name).replaceAll("%40", "@")}/${path(file)}`, download: file.split("/").at(-1) }, file);
}

// A document that a user wrote stays in its sandbox; this page is only the frame around it.
export async function file({ put }, where) {
  const at = where.indexOf("/", where.indexOf("@"));
  const [name, inner] = [where.slice(0, at), where.slice(at + 1)];
  const source = `files/${path(where).replaceAll("%40", "@")}`;
  put(
    h("p", { class: "crumbs" }, h("a", { href: "#/volumes" }, "Volumes"), " / ", toVersion(name)),
    h("h1", { class: "mono", tabindex: -1 }, inner),
    PICTURE.test(inner) ? h("img", { class: "look", src: source, alt: inner }) : h("iframe", { sandbox: "", src: source, title: inner }),
  );
}
