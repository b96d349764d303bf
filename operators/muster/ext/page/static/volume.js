// One volume: its versions, or the newest of each partition, with the metrics and params of one's choice.

import { get } from "./api.js";
import { chart } from "./chart.js";
import { crumbs, h, quiet, spaced, tabs, tag } from "./dom.js";
import { bytes, cell, count, number } from "./format.js";
import { comparePlace, path, query, toDeployment, toJob, toSearch, toVersion, versionPlace } from "./links.js";
import { chooser, table } from "./table.js";
import { ago } from "./time.js";
import { served } from "./volumes.js";

const ROWS = { number: 50, partition: 200 };
const MOST_COMPARED = 6;
const LONG = 24; // characters of a metric's name, before its heading is wrapped
const BASELINE = "_baseline";

// What a person chose to see of a volume is remembered by the browser.
const KEY = "muster columns ";
const kept = (name) => { try { return localStorage.getItem(KEY + name) ?? ""; } catch { return ""; } };
const keep = (name, columns) => { try { localStorage.setItem(KEY + name, columns); } catch { /* it is forgotten */ } };

export async function volume({ put, signal }, name, asked) {
  const before = Number(asked.before) || null;
  const by = asked.by ?? "number";
  const columns = asked.columns ?? kept(name);
  const found = await get(`volumes/${path(name)}`, { before, limit: ROWS[by] ?? 50, columns, by }, signal);
  const place = (more) => `#/volumes/${path(name)}${query({ by: by === "number" ? "" : by, columns: asked.columns, ...more })}`;
  const draw = (serves) => put(...page(found, { name, before, by, place, serves }));
  draw([]);
  const serves = (await served(signal)).get(name);
  if (serves) draw(serves);
}

function page(found, { name, before, by, place, serves }) {
  const partitions = found.versions.some(({ partition }) => partition);
  const views = [["number", "all versions", found.total], ["partition", "newest of each partition"]];
  const looked = by === "partition" && found.looked_at < found.total && `of the newest ${number(found.looked_at)} versions`;
  const names = [...found.names.metrics, ...found.names.params];
  const choose = (chosen) => { keep(name, chosen.join(",")); location.hash = place({ columns: chosen.join(",") }); };
  const ticked = new Set();
  const compare = h("a", { class: "button", hidden: true }, "compare");
  const tick = (each, on) => {
    if (on) ticked.add(each); else ticked.delete(each);
    compare.hidden = ticked.size < 2;
    compare.textContent = `compare ${Math.min(ticked.size, MOST_COMPARED)}`;
    compare.href = comparePlace([...ticked].slice(0, MOST_COMPARED).sort((one, other) => one.number - other.number).map(({ address }) => address));
  };
  return [
    crumbs(h("a", { href: "#/volumes" }, "Volumes")),
    h("h1", { class: "mono", tabindex: -1 }, name),
    (partitions || by === "partition") && tabs("Which versions", views, by, (each) => place({ by: each === "number" ? "" : each })),
    curves(found),
    h("div", { class: "bar" },
      !partitions && quiet(count(found.total, "version")), looked && quiet(looked),
      names.length > 0 && chooser(names, found.columns, choose), compare, finder(name)),
    listed(name, found, serves, tick),
    turn(found, before, by, place),
  ].filter(Boolean);
}

function listed(name, found, serves, tick) {
  const columns = [
    ["Compare", "tight tick"], ["Version", "tight", (each) => each.number], ["Partition", "tight", (each) => each.partition], ["Made", "tight", (each) => each.created],
    ...found.columns.map((each) => [each, each.length > LONG ? "number name" : "number", (version) => version.values[each]]),
    ["Size", "number", (each) => each.size_bytes], ["Job", "name"], ["Marks"],
  ];
  const cells = (each) => [
    h("input", { type: "checkbox", "aria-label": `Compare @${each.number}`, onchange: (event) => tick(each, event.target.checked) }),
    toVersion(each.address, `@${each.number}`),
    each.partition ?? "",
    ago(each.created),
    ...found.columns.map((column) => cell(each.values[column])),
    h("span", { title: count(each.files, "file") }, bytes(each.size_bytes)),
    each.search ? [toSearch(each.search.search_id), quiet(` trial ${each.search.trial}`)] : each.job_id ? toJob(each.job_id) : quiet(each.note),
    marks(each, serves),
  ];
  const rows = found.versions.map((each) => [cells(each), each.retired && "gone", each]);
  return table(`Versions of ${name}, newest first`, columns, rows, "No version has its data any more.");
}

function marks(each, serves) {
  const live = serves.filter(({ address }) => address === each.address);
  const names = new Set(live.map((one) => `deployment/${one.name}`));
  return [
    live.map((one) => h("span", { class: "tag good" }, "serves ", toDeployment(one.name), ` ${one.percent} %`)),
    spaced(each.pins.filter((pin) => !names.has(pin)).map((pin) => tag(pin, "kept from gc"))),
    each.retired && tag("retired", each.retired),
  ];
}

function turn(found, before, by, place) {
  const oldest = found.versions.at(-1)?.number;
  const more = by === "number" && found.versions.length === ROWS.number && oldest > 1;
  return h("nav", { class: "bar quiet", "aria-label": "Pages" },
    before && h("a", { href: place({}), rel: "prev" }, "newest"),
    more && h("a", { href: place({ before: oldest }), rel: "next" }, "older"));
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

// One metric over the versions, in the order of their partitions where they have some, with its baseline.
function curves(found) {
  const names = found.columns.filter((name) => found.versions.some(({ values }) => typeof values[name] === "number"));
  if (!names.length || found.versions.length < 2) return null;
  const main = names.filter((name) => !(name.endsWith(BASELINE) && names.includes(name.slice(0, -BASELINE.length))));
  const ordered = [...found.versions].sort((one, other) =>
    (one.partition ?? "").localeCompare(other.partition ?? "") || one.number - other.number);
  const place = h("div", {});
  const draw = (name) => place.replaceChildren(plot(ordered, name, names));
  const options = main.map((name) => h("option", { value: name }, name));
  const choice = h("select", { id: "metric", onchange: (event) => draw(event.target.value) }, options);
  draw(main[0]);
  return h("section", { "aria-label": "Metrics across versions" },
    main.length > 1 && h("div", { class: "bar" }, h("label", { for: "metric" }, "Metric across these versions "), choice),
    place);
}

function plot(ordered, name, names) {
  const called = (each) => `@${each.number}${each.partition ? ` · ${each.partition}` : ""}`;
  const line = (metric, linked) => ({
    name: metric,
    href: linked ? ([, , , address]) => versionPlace(address) : undefined,
    points: ordered.flatMap((each, n) => (typeof each.values[metric] === "number"
      ? [[n, each.values[metric], `${called(each)}: ${metric} ${number(each.values[metric])}`, each.address]] : [])),
  });
  const baseline = names.includes(name + BASELINE) ? [line(name + BASELINE, false)] : [];
  return chart(name, [line(name, true), ...baseline], { label: (n) => called(ordered[Math.round(n)] ?? ordered.at(-1)) });
}
