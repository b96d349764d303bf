// Builds the page's elements. Every text from outside becomes a text node, never markup.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

export const h = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) =>
  build(document.createElementNS(SVG, tag), attributes, children);

// A table with a caption for those who do not see it. A column is [title, class]; a row [cells, class].
export function table(caption, columns, rows, empty) {
  if (!rows.length) return h("p", { class: "quiet" }, empty);
  const head = columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title));
  const body = rows.map(([cells, kind]) =>
    h("tr", { class: kind }, cells.map((cell, n) => h("td", { class: columns[n][1], "data-title": columns[n][0] }, cell))),
  );
  return h("div", { class: "wide" },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

// A list of facts; those without a value are left out.
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", {}, known.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export const state = (name) => h("span", { class: `state ${name.split(" ")[0]}` }, name);

export const quiet = (...children) => h("span", { class: "quiet" }, children);

export const crumbs = (...children) => h("p", { class: "crumbs" }, children);

// A heading with what stands under it; nothing where that is empty.
export const under = (title, ...children) => (children.some(Boolean) ? [h("h2", {}, title), children] : null);

export const spaced = (items) => items.map((item) => [item, " "]);

export const path = (text) => text.split("/").map(encodeURIComponent).join("/").replaceAll("%40", "@");

export const short = (address) => address.replace(/^volume:\/\//, "");

const mono = (href, text) => h("a", { href, class: "mono" }, text);

export const toVersion = (address, text) => mono(`#/volumes/${path(short(address))}`, text ?? short(address));

export const toDeployment = (name) => h("a", { href: `#/deployments/${encodeURIComponent(name)}` }, name);

export const toVolume = (name) => mono(`#/volumes/${path(name)}`, name);

export const toJob = (id) => mono(`#/jobs/${encodeURIComponent(id)}`, id);

// A link out of the page. Only http and https; anything else is shown as the text it is.
export function outward(url, text) {
  let known;
  try { known = new URL(url, document.baseURI); } catch { return h("span", {}, text); }
  if (!["http:", "https:"].includes(known.protocol)) return h("span", {}, text);
  return h("a", { href: known.href, rel: "external noopener noreferrer" }, text);
}

// The task that asked: a link where this Airflow's UI shows it.
export const toTask = ({ task, task_url }) => (task_url ? outward(task_url, task) : task);

export function bytes(count) {
  if (count === null || count === undefined) return "";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (count >= 1000 && power < units.length - 1) { count /= 1000; power += 1; }
  return `${power && count < 100 ? count.toFixed(1) : Math.round(count)} ${units[power]}`;
}

export function span(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  const total = Math.max(0, seconds);
  if (total < 60) return `${total < 10 ? total.toFixed(1) : Math.round(total)} s`;
  const [days, hours, minutes] = [total / 86400, (total / 3600) % 24, (total / 60) % 60].map(Math.floor);
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${Math.floor(total % 60)} s`;
}

const coarse = (seconds) => {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 2 * 86400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
};

const zone = new Intl.DateTimeFormat("en", { timeZoneName: "short" });
const zoned = (date) => zone.formatToParts(date).find(({ type }) => type === "timeZoneName").value;

// When something was, as how long ago; the title is the exact time, here and as Airflow counts it.
export function ago(seconds) {
  if (!seconds) return "";
  const date = new Date(seconds * 1000);
  const local = new Date(date - date.getTimezoneOffset() * 60000).toISOString();
  const old = Date.now() / 1000 - seconds;
  const text = old < 7 * 86400 ? `${coarse(Math.max(0, old))} ago` : local.slice(0, 16).replace("T", " ");
  const [here, utc] = [local, date.toISOString()].map((each) => each.slice(0, 19).replace("T", " "));
  const title = zoned(date) === "UTC" ? `${utc} UTC` : `${here} ${zoned(date)}, ${utc} UTC`;
  return h("time", { datetime: date.toISOString(), title, class: "tight" }, text);
}

const LARGEST = 1e15; // above, digits are noise

export const number = (value) =>
  Number.isInteger(value) && Math.abs(value) < LARGEST
    ? value.toLocaleString("en")
    : Number(value.toPrecision(5)).toString();

// The shares of a deployment's traffic as one bar; each part says whose it is, and the whole says it in words.
export function shares(parts) {
  let x = 0;
  const boxes = parts.filter(({ percent }) => percent).map(({ name, percent, kind }) => {
    const box = s("rect", { x, y: 0, width: percent, height: 8, class: kind }, s("title", {}, `${name} ${percent} %`));
    x += percent;
    return box;
  });
  const said = parts.filter(({ percent }) => percent).map(({ name, percent }) => `${name} ${percent} %`).join(", ");
  const words = { role: "img", "aria-label": said || "nothing serves", class: "shares" };
  return s("svg", { ...words, viewBox: "0 0 100 8", preserveAspectRatio: "none" }, boxes);
}

export const milliseconds = (seconds) =>
  seconds === null || seconds === undefined ? "" : `${Number((seconds * 1000).toPrecision(3))} ms`;

export const count = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many ?? `${one}s`}`;
