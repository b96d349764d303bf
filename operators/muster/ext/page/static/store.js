// The store and its images: room, the last check, what ended jobs keep, and the environments that jobs run in.

import { get } from "./api.js";
import { h, note, quiet, state, tabs, under } from "./dom.js";
import { bytes, count, number } from "./format.js";
import { toJob } from "./links.js";
import { table } from "./table.js";
import { ago } from "./time.js";

const PARTS = [["", "checks and room"], ["images", "images"]];
const place = (part) => (part ? `#/store?part=${part}` : "#/store");

export async function store({ put, signal }, { part = "" }) {
  const head = [h("h1", { tabindex: -1 }, "Store"), tabs("Parts of the store", PARTS, part, place)];
  put(head, h("p", { class: "quiet", role: "status" }, "Looking …"));
  put(head, part === "images" ? images(await get("images", {}, signal)) : upkeep(await get("upkeep", {}, signal)));
}

function upkeep({ room, checked, held, held_by_others_bytes: others }) {
  const rows = held.map((each) => [[toJob(each.job_id), ago(each.ended), bytes(each.checkpoints_bytes), bytes(each.outputs_bytes)], null, each]);
  const columns = [
    ["Job", "tight"], ["Ended", "tight", (each) => each.ended],
    ["Checkpoints", "number", (each) => each.checkpoints_bytes], ["Outputs", "number", (each) => each.outputs_bytes],
  ];
  return [
    room.comfortable ? h("p", {}, room.text) : note(room.text),
    under("The last check", check(checked)),
    under("Kept for ended jobs",
      h("p", { class: "quiet" }, "Checkpoints for a next try, and outputs that could not be committed. ",
        h("code", {}, "muster jobs get"), " fetches outputs, ", h("code", {}, "muster jobs gc --yes"), " deletes both."),
      table("Files of ended jobs", columns, rows, "No ended job keeps any files."),
      others > 0 && quiet(`Jobs of Dags that Airflow does not let you see keep ${bytes(others)} more.`)),
  ];
}

function check(found) {
  if (!found) return h("p", { class: "quiet" }, "The store has not been checked yet: ", h("code", {}, "muster volumes fsck"), " does it.");
  const what = found.damaged ? `${count(found.damaged, "problem")} found` : "every version is as it was committed";
  return [
    h("p", {}, state(found.damaged ? "failed" : "succeeded", what), " ", quiet(ago(found.at),
      `: ${number(found.versions)} versions, ${number(found.files)} files, ${bytes(found.size_bytes)}`,
      found.deep ? ", each hashed" : ", sizes and names; fsck --deep hashes each",
      found.harmless ? `; ${count(found.harmless, "harmless finding")}` : "")),
    found.damage.length > 0 && h("ul", { class: "damage" }, found.damage.map((line) => h("li", {}, line))),
    found.damaged > found.damage.length && quiet(`and ${number(found.damaged - found.damage.length)} more`),
  ];
}

function images({ here, images: found }) {
  const some = found.some((each) => each.trouble);
  const columns = [["Image", "name"], ["Lock", "tight"], ["Built", "tight"], ["Size", "number", (each) => each.size_bytes], ["Folder", "name"], some && ["Trouble", "says"]].filter(Boolean);
  const rows = found.map((each) => [[
    each.name,
    each.digest ? h("code", { title: each.digest }, each.digest.slice(0, 11)) : "none",
    here ? state(each.built ? "succeeded" : "none", each.built ? "yes" : "no") : "",
    here ? bytes(each.size_bytes) : "",
    h("code", {}, each.folder),
    ...(some ? [each.trouble] : []),
  ], null, each]);
  return [
    h("p", { class: "quiet" }, here
      ? ["An image is built when a job first needs it, or by ", h("code", {}, "muster images build NAME"), "."]
      : "Jobs run in containers that are built from these locks."),
    table("Images", columns, rows, "No images."),
  ];
}
