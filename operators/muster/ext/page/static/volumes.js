// The volumes: each with its newest version, and what of it is served.

import { get } from "./api.js";
import { h, spaced } from "./dom.js";
import { bytes, number } from "./format.js";
import { short, toDeployment, toVersion, toVolume } from "./links.js";
import { table } from "./table.js";
import { ago } from "./time.js";

const COLUMNS = [
  ["Volume", "name", (each) => each.volume], ["Versions", "number", (each) => each.versions], ["Newest", "tight"],
  ["Partition", "tight", (each) => each.newest?.partition], ["Size", "number", (each) => each.newest?.size_bytes],
  ["Made", "tight", (each) => each.newest?.created], ["Served by"],
];

export async function volumes({ put, signal }, asked) {
  const { volumes: found } = await get("volumes", {}, signal);
  let serves = new Map();
  let text = asked.text ?? "";
  const place = h("div", {});
  const draw = () => place.replaceChildren(list(found.filter(({ volume }) => volume.includes(text.trim())), serves, found.length));
  const find = h("input", {
    id: "text", type: "search", placeholder: "find a volume", value: text, "aria-label": "Only volumes whose name holds",
    oninput: (event) => { text = event.target.value; draw(); },
  });
  draw();
  put(h("h1", { tabindex: -1 }, "Volumes"), h("div", { class: "bar" }, find), place);
  serves = await served(signal);
  if (serves.size) draw();
}

// The deployments that answer with versions of each volume; a platform that is away is said on its own page.
export async function served(signal) {
  const found = new Map();
  try {
    const { deployments } = await get("deployments", {}, signal);
    for (const { name, revisions } of deployments)
      for (const { model, percent } of revisions.filter((each) => each.percent)) {
        const [volume] = short(model.address).split("@");
        found.set(volume, [...(found.get(volume) ?? []), { name, address: model.address, percent }]);
      }
  } catch (error) {
    if (signal.aborted) throw error;
  }
  return found;
}

function list(found, serves, all) {
  const rows = found.map((each) => [cells(each, serves.get(each.volume) ?? []), null, each]);
  const empty = all ? "No volume has such a name." : "No volumes yet: the first job that writes one makes it.";
  return table("Volumes", COLUMNS, rows, empty);
}

const cells = ({ volume, versions, newest, error }, serving) => [
  toVolume(volume),
  versions === null ? "" : number(versions),
  newest ? toVersion(newest.address, `@${newest.number}`) : error ?? "",
  newest?.partition ?? "",
  bytes(newest?.size_bytes),
  ago(newest?.created),
  spaced(serving.map(({ name, address }) => [toDeployment(name), " ", toVersion(address, `@${address.split("@").at(-1)}`)])),
];
