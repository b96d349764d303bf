// Draws the learning curves of a search's trials over its rungs: the best one stands out, the one under the pointer is named.

import { get } from "../api.js";
import { range, scale } from "../chart.js";
import { h, quiet, s } from "../dom.js";
import { count, number } from "../format.js";
import { drawnOf } from "./search_rungs.js";
import { redraw } from "../watch.js";

const [TALL, TOP, RIGHT, BOTTOM, DIGIT, NEAR] = [280, 10, 16, 24, 6.6, 24];
const FAR = 3; // times the distance of the quartiles from these: Tukey's "far out"

export class Curves {
  constructor(where) {
    this.where = where;
    this.element = h("section", { class: "curves" });
    this.last = "";
  }

  async more(found, signal) {
    const { curves, chosen, of, told } = await get(`${this.where}/curves`, {}, signal);
    const now = JSON.stringify([curves, of, found.best?.trial]);
    if (now !== this.last) redraw(this.element, () => draw(found, curves, { chosen, of, told }));
    this.last = now;
  }
}

function draw(found, curves, { chosen, of, told }) {
  const title = `Learning curves: ${found.metric}`;
  if (!curves.length) return [h("h2", {}, title), h("p", { class: "quiet" }, `No trial has told ${found.metric}${found.ended === null ? " yet" : ""}.`)];
  const said = h("span", { class: "quiet" });
  const [place, outside] = [h("div", { class: "plot tall" }), h("p", { class: "quiet" })];
  const [low, high] = span(found, curves);
  const beyond = curves.filter(({ points }) => points.some(([, y]) => y < low || y > high)).length;
  outside.textContent = beyond ? `${count(beyond, "trial")} told values that are not drawn: they are below ${number(low)}, or above ${number(high)}.` : "";
  const kinds = [["best", "the best"], ["running", "running"], ["other", "the others"]];
  const there = kinds.filter(([kind]) => curves.some((each) => kindOf(each, found) === kind));
  let last = 0;
  new ResizeObserver(() => {
    const wide = Math.round(place.clientWidth);
    if (!wide || wide === last) return;
    last = wide;
    place.replaceChildren(picture(title, found, curves, wide, said));
  }).observe(place);
  return [
    h("h2", {}, title),
    h("p", { class: "legend" }, there.map(([kind, words]) => h("span", { class: "key" }, h("i", { class: `trial-${kind}` }), words)), said),
    place,
    outside,
    drawnOf(chosen, of, "are drawn"),
    !told && h("p", {}, quiet("Airflow does not let you read the logs of this Dag: only the values at rungs are drawn.")),
  ].filter(Boolean);
}

const kindOf = ({ trial, phase }, { best }) => (trial === best?.trial ? "best" : phase === "running" ? "running" : "other");
const ORDER = ["other", "running", "best"];

// Where the values are, without the few that are very far out, such as those of a trial that diverged.
export function middle(values, keep) {
  const sorted = [...values].sort((one, other) => one - other);
  const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
  const [low, high, spread] = [at(0.25), at(0.75), at(0.75) - at(0.25)];
  const inside = sorted.filter((each) => !spread || (each >= low - FAR * spread && each <= high + FAR * spread));
  return range([...inside, ...keep]);
}

// The values that are drawn: round ones, at least all of the best trial.
function span(found, curves) {
  const best = curves.find((each) => kindOf(each, found) === "best")?.points ?? [];
  const levels = scale(...middle(curves.flatMap(({ points }) => points.map(([, y]) => y)), best.map(([, y]) => y)));
  return [levels[0], levels.at(-1), levels];
}

function picture(title, found, curves, wide, said) {
  const best = curves.find((each) => kindOf(each, found) === "best")?.points ?? [];
  const [low, high, levels] = span(found, curves);
  const left = 10 + DIGIT * Math.max(...levels.map((each) => number(each).length));
  const [first, final] = [0, Math.max(found.rungs.at(-1).at, ...curves.map(({ points }) => points.at(-1)[0]))];
  const across = (at) => left + ((at - first) / (final - first || 1)) * (wide - left - RIGHT);
  const up = (y) => TOP + (high > low ? (high - y) / (high - low) : 0.5) * (TALL - TOP - BOTTOM);
  const ordered = [...curves].sort((one, other) => ORDER.indexOf(kindOf(one, found)) - ORDER.indexOf(kindOf(other, found)));
  const drawn = ordered.map((each) => line(each, kindOf(each, found), across, up));
  const words = `${title} of ${curves.length} trials${best.length ? `, the best ${number(best.at(-1)[1])}` : ""}`;
  const box = { x: left - 3, y: TOP - 3, width: wide - left - RIGHT + 6, height: TALL - TOP - BOTTOM + 6 };
  const svg = s("svg", { width: wide, height: TALL, viewBox: `0 0 ${wide} ${TALL}`, role: "img", "aria-label": words },
    s("clipPath", { id: "inside-curves" }, s("rect", box)),
    levels.map((each) => [
      s("line", { class: "axis", x1: left, x2: wide - RIGHT, y1: up(each), y2: up(each) }),
      s("text", { class: "quiet", x: left - 6, y: up(each) + 4, "text-anchor": "end" }, number(each)),
    ]),
    marks(found, across).map(([at, shown]) => [
      s("line", { class: "rung", x1: across(at), x2: across(at), y1: TOP, y2: TALL - BOTTOM }),
      shown && s("text", { class: "quiet", x: across(at), y: TALL - 6, "text-anchor": "middle" }, number(at)),
    ]),
    s("g", { "clip-path": "url(#inside-curves)" }, drawn));
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    name(ordered, drawn, [event.clientX - frame.left, event.clientY - frame.top], [across, up], said, found);
  });
  svg.addEventListener("pointerleave", () => name(ordered, drawn, [-1e9, 0], [across, up], said, found));
  return svg;
}

// Each rung has a line; its number stands where there is room for it.
function marks({ rungs }, across) {
  let free = -Infinity;
  return rungs.map(({ at }) => {
    const room = across(at) - free > 26;
    if (room) free = across(at);
    return [at, room];
  });
}

function line({ points }, kind, across, up) {
  const at = points.map(([x, y]) => `${across(x).toFixed(1)},${up(y).toFixed(1)}`);
  return s("g", { class: `trial-${kind}` },
    points.length > 1 && s("polyline", { class: "curve", points: at.join(" ") }),
    points.length <= 12 && points.map(([x, y]) => s("circle", { class: "spot", cx: across(x).toFixed(1), cy: up(y).toFixed(1), r: 2 })));
}

function name(curves, drawn, [x, y], [across, up], said, found) {
  let [nearest, point, least] = [-1, null, NEAR ** 2];
  curves.forEach(({ points }, n) => {
    for (const each of points) {
      const far = (across(each[0]) - x) ** 2 + (up(each[1]) - y) ** 2;
      if (far < least) [nearest, point, least] = [n, each, far];
    }
  });
  drawn.forEach((each, n) => each.classList.toggle("pointed", n === nearest));
  said.textContent = point ? `trial ${curves[nearest].trial}: ${found.metric} ${number(point[1])} at ${number(point[0])}` : "";
}

