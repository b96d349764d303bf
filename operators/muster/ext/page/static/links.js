// Links to the places of this page, and out of it.

import { h, s } from "./dom.js";

export const path = (text) => text.split("/").map(encodeURIComponent).join("/").replaceAll("%40", "@");

export const short = (address) => address.replace(/^volume:\/\//, "");

const mono = (href, text) => h("a", { href, class: "mono" }, text);

export const query = (given) => {
  const known = Object.entries(given).filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== 0);
  return known.length ? `?${new URLSearchParams(known)}` : "";
};

export const versionPlace = (address, more) => `#/volumes/${path(short(address))}${query(more ?? {})}`;

export const toVersion = (address, text) => mono(versionPlace(address), text ?? short(address));

const FEW = 3;

// Links to some versions; more than a few of one volume are named by the first and the last of them.
export function several(addresses) {
  const volumes = new Map();
  for (const each of addresses.map(short)) {
    const volume = each.slice(0, each.lastIndexOf("@"));
    volumes.set(volume, [...(volumes.get(volume) ?? []), each]);
  }
  return [...volumes].flatMap(([volume, found]) => (found.length <= FEW
    ? found.map((each) => h("div", {}, toVersion(each)))
    : [h("div", {}, toVolume(volume), " ", edge(found[0]), " … ", edge(found.at(-1)), h("span", { class: "quiet" }, `, ${found.length} versions`))]));
}

const edge = (address) => toVersion(address, `@${address.split("@").at(-1)}`);

export const toVolume = (name) => mono(`#/volumes/${path(name)}`, name);

export const toJob = (id, text) => mono(`#/jobs/${encodeURIComponent(id)}`, text ?? id);

export const toSearch = (id, text) => mono(`#/searches/${encodeURIComponent(id)}`, text ?? id);

export const toDeployment = (name) => h("a", { href: `#/deployments/${encodeURIComponent(name)}` }, name);

export const stagePlace = ({ job_id: job, search_id: search }) =>
  (job ? `#/jobs/${encodeURIComponent(job)}` : search ? `#/searches/${encodeURIComponent(search)}` : null);

export const runPlace = (dag, run) => `#/runs/${encodeURIComponent(dag)}/${encodeURIComponent(run)}`;

export const toRun = ({ dag_id: dag, run_id: run }, text) =>
  (dag && run ? h("a", { href: runPlace(dag, run), title: run }, text ?? run) : "");

export const comparePlace = (addresses) => `#/compare?v=${addresses.map((each) => encodeURIComponent(short(each))).join(",")}`;

// A link out of the page. Only http and https; anything else is shown as the text it is.
export function outward(url, text) {
  let known;
  try { known = new URL(url, document.baseURI); } catch { return h("span", {}, text); }
  if (!["http:", "https:"].includes(known.protocol)) return h("span", {}, text);
  return h("a", { href: known.href, rel: "external noopener noreferrer" }, text);
}

// The task that asked: a link where this Airflow's UI shows it.
export const toTask = ({ task, task_url: url }) => (url ? outward(url, task) : task);

const DOCUMENT = /\.html?$/i;
const PICTURE = /\.(png|jpe?g|gif|webp|svg)$/i;
const TABLE = /\.(parquet|csv|tsv|jsonl)$/i;

export const isPicture = (file) => PICTURE.test(file);
export const isTable = (file) => TABLE.test(file);
export const isMarkdown = (file) => /\.md$/i.test(file);
export const isShown = (file) => DOCUMENT.test(file) || PICTURE.test(file) || isMarkdown(file);
export const isDocument = (file) => DOCUMENT.test(file) || isMarkdown(file);

export function toFile(name, file, text) {
  const where = `${path(short(name))}/${path(file)}`;
  if (isShown(file)) return h("a", { href: `#/files/${where}` }, text ?? file);
  return h("a", { href: `files/${where}`, download: file.split("/").at(-1) }, text ?? file);
}

// The shares of a deployment's traffic as one bar; each part says whose it is, and the whole says it in words.
export function shares(parts) {
  let x = 0;
  const some = parts.filter(({ percent }) => percent);
  const boxes = some.map(({ name, percent, kind }) => {
    const box = s("rect", { x, y: 0, width: percent, height: 8, class: kind }, s("title", {}, `${name} ${percent} %`));
    x += percent;
    return box;
  });
  const said = some.map(({ name, percent }) => `${name} ${percent} %`).join(", ");
  const words = { role: "img", "aria-label": said || "nothing serves", class: "shares" };
  return s("svg", { ...words, viewBox: "0 0 100 8", preserveAspectRatio: "none" }, boxes);
}
