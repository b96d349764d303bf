// Draws the params of a search's trials as parallel coordinates: one axis a param, one line a trial, its colour by the metric.

import { get } from "../api.js";
import { h, s } from "../dom.js";
import { inline, number } from "../format.js";
import { middle } from "./search_curves.js";
import { drawnOf } from "./search_rungs.js";
import { redraw } from "../watch.js";

const [TALL, TOP, BOTTOM, SIDE, NONE, NEAR, LEAST] = [304, 40, 34, 46, 18, 10, 92];
export const SHADES = 5;
const NAME = 13; // characters of a name, or of a choice, that there is room for
const MOST_LABELS = 8;
const MANY = 60; // lines, from which on they are drawn more faintly
const middling = (text) => (text.length > NAME ? `${text.slice(0, 4)}…${text.slice(5 - NAME)}` : text); // names often differ at their end
const short = (text) => (text.length > NAME ? `${text.slice(0, NAME - 1)}…` : text);

export class Points {
  constructor(where) {
    this.where = where;
    this.element = h("section", {});
    this.last = "";
  }

  async more(found, signal) {
    const told = await get(`${this.where}/points`, {}, signal);
    const now = JSON.stringify(told);
    if (now !== this.last) redraw(this.element, () => draw(found, told));
    this.last = now;
  }
}

function draw(found, { axes, trials, of }) {
  const title = `Params and ${found.metric}`;
  if (!trials.length) return [h("h2", {}, title), h("p", { class: "quiet" }, "No trial yet.")];
  const said = h("span", { class: "quiet" });
  const place = h("div", { class: "plot tall sideways", tabindex: 0, role: "region", "aria-label": title });
  const shown = coloured(trials, found.mode);
  const left = Object.keys(found.space).length - axes.length;
  let last = 0;
  new ResizeObserver(() => {
    const wide = Math.max(Math.round(place.clientWidth), LEAST * axes.length + 2 * SIDE);
    if (wide === last || !place.clientWidth) return;
    last = wide;
    place.replaceChildren(picture(title, found, axes, shown, wide, said));
  }).observe(place);
  const keys = Array.from({ length: SHADES }, (_, n) => h("i", { class: `shade-${n}` }));
  return [
    h("h2", {}, title),
    h("p", { class: "legend" }, h("span", { class: "key" }, "worst ", keys, " best"),
      trials.some(([, , value]) => value === null) && h("span", { class: "key" }, h("i", { class: "shade-none" }), `no ${found.metric}`), said),
    place,
    drawnOf(trials.length, of, "are drawn"),
    left > 0 && h("p", { class: "quiet" }, `The ${axes.length} params that matter most are drawn, ${left} are not.`),
  ].filter(Boolean);
}

// Coloured by the place of a trial among those that are drawn, so that one value far out leaves the others apart; the best is drawn last.
function coloured(trials, mode) {
  const better = mode === "max" ? 1 : -1;
  const known = trials.filter(([, , value]) => value !== null).sort(([, , one], [, , other]) => (one - other) * better);
  const all = trials.filter(([, , value]) => value === null).map((each) => [each, "none"]);
  return [...all, ...known.map((each, n) => [each, known.length > 1 ? Math.min(SHADES - 1, Math.floor((n / (known.length - 1)) * SHADES)) : SHADES - 1])];
}

function picture(title, found, axes, shown, wide, said) {
  const values = shown.map(([[, , value]]) => value).filter((value) => value !== null);
  const [low, high] = values.length ? middle(values, [Math.max(...values), Math.min(...values)].slice(found.mode === "max" ? 0 : 1, found.mode === "max" ? 1 : 2)) : [null, null];
  const all = [...axes, { name: found.metric, choices: [], low, high, metric: true, beyond: [Math.min(...values) < low, Math.max(...values) > high] }];
  const step = (wide - 2 * SIDE) / (all.length - 1 || 1);
  const at = (n) => SIDE + n * step;
  const ups = all.map((axis) => upwards(axis));
  const lines = shown.map(([[trial, phase, value, places], shade]) => ({ trial, phase, shade, value, ys: [...places, value].map((each, n) => ups[n](each)), places }));
  const drawn = lines.map(({ shade, trial, ys }) =>
    s("polyline", { class: `curve shade-${shade} ${trial === found.best?.trial ? "best" : ""}`, points: ys.map((y, n) => `${at(n).toFixed(1)},${y.toFixed(1)}`).join(" ") }));
  const missing = all.map((_, n) => lines.some(({ places, value }) => (n < axes.length ? places[n] : value) === null));
  const svg = s("svg", { width: wide, height: TALL, viewBox: `0 0 ${wide} ${TALL}`, role: "img", class: shown.length > MANY ? "parallel many" : "parallel", "aria-label": `${title} of ${shown.length} trials` },
    drawn, all.map((axis, n) => scaleOf(axis, at(n), ups[n], missing[n], n === all.length - 1)));
  const point = (x, y) => name(lines, drawn, [x, y], { step, axes, said, found });
  svg.addEventListener("pointermove", (event) => {
    const frame = svg.getBoundingClientRect();
    point(event.clientX - frame.left, event.clientY - frame.top);
  });
  svg.addEventListener("pointerleave", () => point(-1e9, 0));
  return svg;
}

// From a value to its height; what a trial does not have lies below the axis.
function upwards({ low, high, log }) {
  const of = log ? Math.log : (each) => each;
  const [from, to] = [of(low), of(high)];
  return (value) => {
    if (value === null) return TALL - BOTTOM + NONE;
    const share = to > from ? Math.min(1, Math.max(0, (of(value) - from) / (to - from))) : 0.5;
    return TOP + (1 - share) * (TALL - TOP - BOTTOM);
  };
}

function scaleOf({ name: title, choices, low, high, metric, beyond: [below, above] = [] }, x, up, missing, last) {
  const every = Math.ceil(choices.length / MOST_LABELS) || 1;
  const labels = low === null ? [] : choices.length ? choices.map((each, n) => [n, inline(each)]).filter(([n]) => n % every === 0) : [[low, `${below ? "≤ " : ""}${number(low)}`], ...(high > low ? [[high, `${above ? "≥ " : ""}${number(high)}`]] : [])];
  const text = (y, words, kind = "label") => s("text", { class: kind, x: last ? x + 6 : x + 5, y, "text-anchor": last ? "end" : "start" }, short(words), s("title", {}, words));
  return s("g", {},
    s("line", { class: metric ? "post metric" : "post", x1: x, x2: x, y1: TOP, y2: TALL - BOTTOM }),
    s("text", { class: "title", x: last ? x + SIDE - 6 : x, y: 16, "text-anchor": last ? "end" : "middle" }, middling(title), s("title", {}, title)),
    labels.map(([each, words]) => text(up(each) + (choices.length ? 4 : each === high && high > low ? -6 : 14), words)),
    missing && text(TALL - BOTTOM + NONE + 12, "none"));
}

function name(lines, drawn, [x, y], { step, axes, said, found }) {
  const [n, part] = [Math.floor((x - SIDE) / step), ((x - SIDE) / step) % 1];
  let [nearest, least] = [-1, NEAR];
  lines.forEach(({ ys }, place) => {
    if (n < 0 || n >= ys.length - 1) return;
    const far = Math.abs(ys[n] + part * (ys[n + 1] - ys[n]) - y);
    if (far <= least) [nearest, least] = [place, far];
  });
  drawn.forEach((each, place) => each.classList.toggle("pointed", place === nearest));
  const line = lines[nearest];
  said.textContent = !line ? "" : [`trial ${line.trial}: ${found.metric} ${line.value === null ? "none" : number(line.value)}`,
    ...axes.flatMap((axis, place) => (line.places[place] === null ? [] : [`${axis.name} ${axis.choices.length ? inline(axis.choices[line.places[place]]) : number(line.places[place])}`]))].join(", ");
}
