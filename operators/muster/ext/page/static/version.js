// One version: its metrics, its card and validation, where it comes from and what was made of it, its files and code.

import { get, post } from "./api.js";
import { crumbs, facts, h, note, quiet, spaced, state, tabs, twice, under } from "./dom.js";
import { shown as added } from "./extensions.js";
import { bytes, count } from "./format.js";
import { metrics, params } from "./job.js";
import {
  comparePlace, isDocument, isShown, isTable, outward, query, toDeployment, toFile, toJob, toRun, toSearch, toTask, toVersion, toVolume, versionPlace,
} from "./links.js";
import { lineage } from "./picture.js";
import { table, turn } from "./table.js";
import { ago, runWords, when } from "./time.js";

const MOST_DOCUMENTS = 12;

export async function version({ put, signal }, address, asked) {
  const found = await get("version", { address }, signal);
  const name = `${found.volume}@${found.number}`;
  const again = () => version({ put, signal }, address, asked);
  const parts = { files: () => files(found, name, asked, signal), code: () => code(name, asked, signal) };
  const shown = parts[asked.tab] ? await parts[asked.tab]() : overview(found, name);
  const more = h("div", {}); // of extensions, which may take longer
  const choices = [["", "overview"], ["files", "files", found.total_files], found.record?.code && ["code", "code"]];
  put(
    crumbs(h("a", { href: "#/volumes" }, "Volumes"), " / ", toVolume(found.volume)),
    h("h1", { class: "mono", tabindex: -1 }, name, found.partition && quiet(` ${found.partition}`)),
    found.deleted && note("Its data was deleted by gc. Its record and the list of its files are kept."),
    found.retired && note(`Retired, so no selector finds it: ${found.retired}`),
    tabs("Parts of the version", choices, asked.tab ?? "", (tab) => versionPlace(name, { tab })),
    shown,
    more,
    found.may?.change && !asked.tab && !found.deleted && under("Keep or hide it", h("div", { class: "bar" }, changes(found, again))),
  );
  if (!asked.tab) more.replaceChildren(...await added("ofVersion", found.address, signal));
}

function overview(found, name) {
  const { record } = found;
  const serves = { [found.address]: found.served_by };
  return [
    documents(found, name),
    h("div", { class: "halves" },
      record && h("section", {}, metrics(record.metrics), params(record.params)),
      h("section", {}, under("Version", facts(known(found))))),
    under("Lineage", lineage(found.lineage, found.address, serves)),
    found.used_by?.length > 0 && under("Read by", uses(found.used_by)),
  ].filter(Boolean);
}

const OWN = "deployment/"; // what begins the pin that a deployment keeps

// What a person may do to a version. Each is asked twice, and shown when it is done.
function changes({ address, deleted, pins, retired }, again) {
  if (deleted) return null;
  const act = (name, reason) => async () => { await post(`version/${name}${query({ address, reason })}`); await again(); };
  const reason = h("input", { id: "reason", placeholder: "why, one line", "aria-label": "Why, one line", maxlength: 200 });
  const keeping = pins.filter((pin) => pin.startsWith(OWN)).map((pin) => pin.slice(OWN.length));
  const given = (name) => () => act(name, reason.value.trim())();
  return [
    reason,
    twice("pin", "Keep its files from gc until it is unpinned?", given("pin"), { yes: "keep it", id: "pin" }),
    pins.filter((pin) => !pin.startsWith(OWN)).map((pin) =>
      twice(`unpin: ${pin}`, pins.length > 1 ? "Take this pin away? The others still keep it from gc." : "Let gc delete it?", act("unpin", pin), { yes: "take the pin away", id: `unpin-${pin}` })),
    retired
      ? twice("reinstate", "Let selectors find it again?", act("reinstate"), { yes: "reinstate it", id: "reinstate" })
      : keeping.length
        ? quiet(`${keeping.join(" and ")} serves it or keeps it for a rollback: to retire it, release another version first`)
        : twice("retire", `Hide it from every selector? ${pins.length ? "Its pins keep its files" : "gc deletes its files then"}.`, given("retire"), { yes: "hide it", id: "retire" }),
  ];
}

// The documents of the version itself, then the card and the validation that other jobs made.
function documents(found, name) {
  const shown = (each) => h("span", { class: "document" }, toFile(name, each.path));
  const own = found.deleted ? [] : (found.files ?? []).filter((each) => isShown(each.path)).slice(0, MOST_DOCUMENTS);
  const others = (found.documents ?? []).map((each) =>
    h("span", { class: "document" }, toFile(each.address, each.path, each.title), each.says && h("strong", {}, ` ${each.says}`)));
  return (own.length > 0 || others.length > 0) && h("div", { class: "bar documents" },
    own.filter((each) => isDocument(each.path)).map(shown), others, own.filter((each) => !isDocument(each.path)).map(shown));
}

function known(found) {
  const served = found.served_by.map((each) => toDeployment(each));
  const hidden = [["made by", quiet("a Dag that Airflow does not let you see")]];
  return [
    ["served by", served.length ? spaced(served) : ""],
    ["made", [when(found.created), quiet(" "), ago(found.created)]],
    ...(found.record ? made(found.record) : hidden),
    ["MLflow", found.mlflow ? outward(found.mlflow, "run") : found.tracked && [h("code", {}, "muster mlflow"), quiet(" shows its run")]],
    ["size", `${bytes(found.size_bytes)} in ${count(found.total_files, "file")}`],
    ["pinned by", found.pins.join(", ")],
    ["digest", h("code", { class: "digest", title: found.digest }, found.digest)],
    found.number > 1 && ["compare", h("a", { href: comparePlace([`${found.volume}@${found.number - 1}`, `${found.volume}@${found.number}`]) }, `with @${found.number - 1}`)],
  ].filter(Boolean);
}

const made = (record) => [
  ["by search", record.search && [toSearch(record.search.search_id), record.search.trial >= 0 && quiet(` trial ${record.search.trial}`)]],
  ["by job", record.job_id && (record.job_known ? toJob(record.job_id) : [h("code", {}, record.job_id), quiet(" deleted by gc")])],
  ["of task", toTask(record)],
  ["in run", toRun(record.origin, runWords(record.origin.run_id))],
  ["as output", record.output],
  ["image", record.image && h("code", {}, record.image)],
  ["entrypoint", record.entrypoint && h("code", {}, record.entrypoint)],
  ["code", record.code && h("code", {}, record.code.slice(0, 19))],
  ["beside", record.siblings.length ? spaced(record.siblings.map((each) => toVersion(each))) : ""],
  ["note", record.search ? "" : record.note],
];

function uses(found) {
  const columns = [["State", "tight"], ["Job", "tight"], ["Task", "name"], ["As", "tight"], ["Ended", "tight"], ["Made", "name"]];
  const rows = found.map((each) => [[
    state(each.state), toJob(each.job_id), each.task ? toTask(each) : each.name, each.input, ago(each.ended),
    [each.failed_expectations && h("strong", {}, `${each.failed_expectations} `), spaced(each.made.map((one) => toVersion(one)))],
  ]]);
  return table("Jobs that read this version", columns, rows, "");
}

const FILES = 500; // on a page

async function files(found, name, asked, signal) {
  if (!found.files) return quiet("Airflow does not let you see what the tasks of this Dag left behind.");
  const preview = h("section", { class: "preview plain" });
  const show = async (file) => {
    preview.replaceChildren(h("p", { class: "quiet" }, `reading ${file} …`));
    try {
      const where = `${name}/${file}`;
      preview.replaceChildren(...rows(file, await get("rows", { where }, signal)));
    } catch (error) {
      if (!signal.aborted) preview.replaceChildren(h("p", { class: "error", role: "alert" }, error.message));
    }
  };
  const { under = "", text = "", offset = 0 } = asked;
  const listed = await get("version_files", { address: found.address, under, text, offset }, signal);
  const place = (more) => versionPlace(name, { tab: "files", ...more });
  const inner = (file) => (text ? file : file.slice(under ? under.length + 1 : 0));
  const folders = listed.folders.map(([folder, many, size]) => [[
    h("a", { href: place({ under: under ? `${under}/${folder}` : folder }) }, `${folder}/`), bytes(size), quiet(count(many, "file")),
  ], null, { path: `${folder}/`, size_bytes: size }]);
  const lines = listed.files.map(([file, size]) => [[
    found.deleted ? inner(file) : toFile(name, file, inner(file)), bytes(size),
    isTable(file) && !found.deleted ? h("button", { type: "button", onclick: () => show(file), "aria-label": `look into ${file}` }, "look into it") : "",
  ], null, { path: file, size_bytes: size }]);
  const columns = [["File", "mono name", (each) => each.path], ["Size", "number", (each) => each.size_bytes], ["About", "tight"]];
  const first = found.deleted ? null : listed.files.map(([file]) => file).filter(isTable).sort((one, other) => other.endsWith(".parquet") - one.endsWith(".parquet"))[0];
  if (first) show(first);
  const steps = under.split("/").filter(Boolean);
  const find = (event) => { event.preventDefault(); location.hash = place({ text: event.target.elements.text.value.trim() }); };
  return [
    h("div", { class: "bar" },
      h("span", { class: "mono" }, h("a", { href: place({}) }, name), steps.map((step, n) => [" / ", h("a", { href: place({ under: steps.slice(0, n + 1).join("/") }) }, step)])),
      text && quiet(`${count(listed.total, "file")} with ${text}`),
      h("form", { role: "search", class: "end", onsubmit: find },
        h("input", { id: "text", name: "text", type: "search", value: text, placeholder: "find a file", "aria-label": "Only files whose path holds" }))),
    table(`Files of ${name}`, columns, [...folders, ...lines], text ? "No file has such a path." : "No files."),
    turn(listed.total, Number(offset), FILES, "files", (at) => place({ under, text, offset: at }), ["back", "further"]),
    preview,
  ].filter(Boolean);
}

// The columns of a table with their types, and its first rows.
function rows(file, { columns, total, rows: found, note: says }) {
  const many = total === null ? "" : `, ${count(total, "row")}`;
  return [
    h("h2", {}, h("span", { class: "mono" }, file), h("small", { class: "quiet" }, ` ${count(columns.length, "column")}${many}`)),
    says && quiet(says),
    found.length
      ? table(`The first rows of ${file}`, columns.map(({ name, type }) => [type ? `${name} ${type}` : name, "tight"]), found.map((row) => [row]), "")
      : table(`Columns of ${file}`, [["Column", "mono name"], ["Type"], ["May be null"]], columns.map((each) => [[each.name, each.type, each.nullable ? "yes" : ""]]), "No columns."),
  ].filter(Boolean);
}

async function code(name, asked, signal) {
  const { files: found } = await get("code", { address: name }, signal);
  const chosen = asked.file ?? found.find(({ path: file }) => file.endsWith(".py"))?.path ?? found[0]?.path;
  const { text } = chosen ? await get("code", { address: name, file: chosen }, signal) : { text: "" };
  const list = h("nav", { class: "side", "aria-label": "Files of the code" }, found.map(({ path: file }) =>
    h("a", { href: versionPlace(name, { tab: "code", file }), "aria-current": file === chosen ? "true" : null }, file)));
  return h("div", { class: "code" }, list, h("pre", { class: "source", tabindex: 0, "aria-label": chosen }, numbered(text)));
}

const numbered = (text) => text.split("\n").map((line) => h("span", { class: "row" }, line, "\n"));
