// Two or more versions side by side: what differs stands out, what is the same is quiet.

import { get } from "./api.js";
import { crumbs, h, quiet, spaced, state, under } from "./dom.js";
import { bytes, cell, count } from "./format.js";
import { several, short, toJob, toVersion, toVolume } from "./links.js";
import { table } from "./table.js";
import { ago } from "./time.js";

const same = (values) => values.every((each) => JSON.stringify(each) === JSON.stringify(values[0]));

export async function compare({ put, signal }, asked) {
  const addresses = (asked.v ?? "").split(",").filter(Boolean);
  const found = await get("compare", { version: addresses }, signal);
  put(
    crumbs(h("a", { href: "#/volumes" }, "Volumes"), " / ", spaced([...new Set(found.versions.map(({ volume }) => volume))].map((each) => toVolume(each)))),
    h("h1", { tabindex: -1 }, `${count(found.versions.length, "version")} compared`),
    whole(found),
    found.differences.map((each) => difference(found.versions[0], each)),
  );
}

function whole({ versions, metrics, params, inputs, made }) {
  const columns = [["Of it", "name"], ...versions.map((each) => [`${short(each.address)}${each.partition ? ` · ${each.partition}` : ""}`, "name"])];
  const head = [
    [["version", ...versions.map((each) => toVersion(each.address))]],
    [["made", ...versions.map((each) => [ago(each.created), each.job_id && h("small", {}, toJob(each.job_id))])]],
  ];
  const part = (title, rows, show) => rows.length
    ? [[[h("strong", {}, title), ...versions.map(() => "")], "part"], ...rows.map(([name, values]) => [[name, ...values.map(show)], same(values) ? "gone" : "differs"])]
    : [];
  const rows = [
    ...head,
    ...part("metrics", metrics, cell), ...part("params", params, cell),
    ...part("inputs", inputs, list), ...part("made with", made, brief),
  ];
  return h("div", { class: "compared plain" }, table("Versions side by side", columns, rows, ""));
}

const list = (addresses) => (addresses ? several(addresses) : "");

const DIGEST = /^b3:[0-9a-f]{64}$/;
const brief = (value) => (DIGEST.test(value) ? h("code", { title: value }, value.slice(0, 19)) : cell(value));

function difference(first, { address, code, files, schemas }) {
  const title = `${short(first.address)} → ${short(address)}`;
  if (code === null) return under(title, quiet("Airflow does not let you see the files of one of them."));
  return [
    h("h2", {}, title),
    schemas.map((each) => [h("h3", {}, "columns of ", h("code", {}, each.path)), table(`Columns of ${each.path}`, [["Column", "mono name"], ["Before"], ["After"]],
      each.columns.filter(([, values]) => !same(values)).map(([name, values]) => [[name, ...values.map((one) => one ?? "—")]]), "")]),
    changed(files),
    code.length ? code.map(changes) : h("p", { class: "quiet" }, "The code is the same, or is not known."),
  ];
}

function changed({ changed: found, in_all: all, same: others }) {
  if (!all) return h("p", { class: "quiet" }, `The files are the same: ${count(others, "file")}.`);
  const kind = (was, now) => (was === null ? "new" : now === null ? "gone" : "changed");
  const rows = found.map(([file, was, now]) => [[state(kind(was, now)), file, was === null ? "" : bytes(was), now === null ? "" : bytes(now)]]);
  return [
    h("h3", {}, "files"),
    table("Files that differ", [["State", "tight"], ["File", "mono name"], ["Before", "number"], ["After", "number"]], rows, ""),
    h("p", { class: "quiet" }, `${all > found.length ? `${all - found.length} more differ, ` : ""}${count(others, "file")} the same`),
  ];
}

export function changes({ path: file, change, lines, cut }) {
  return h("details", { open: lines.length < 60 },
    h("summary", {}, h("code", {}, file), quiet(` ${change}`)),
    h("pre", { class: "diff" }, lines.map((line) => h("span", { class: kindOf(line) }, line, "\n")), cut && quiet("… and more")));
}

const kindOf = (line) => ({ "+": "plus", "-": "minus", "@": "hunk" })[line[0]] ?? null;
