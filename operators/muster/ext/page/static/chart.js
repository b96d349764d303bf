// Draws lines over an axis, at the width that there is, with a legend that says the values under the pointer.

import { h, s } from "./dom.js";
import { number, span } from "./format.js";
import { clock } from "./time.js";

const [TALL, TOP, RIGHT, BOTTOM, DIGIT] = [170, 8, 14, 22, 6.6];
export const COLOURS = 8;

// `lines` are { name, points: [[x, y], …], href? }, x ascending; `x` says what x is: "time", "seconds" or "number".
// `from` is where the scale begins at the latest, such as 0; `write` writes a value; `label` a point's x.
export function chart(title, lines, { x = "number", from, write = number, label, tall = TALL } = {}) {
  const drawn = lines.filter(({ points }) => points.length);
  if (!drawn.length) return null;
  const legend = keys(drawn, write);
  const place = h("div", { class: "plot" });
  const figure = h("figure", { class: "chart" }, h("figcaption", {}, h("strong", {}, title), legend.element), place);
  let last = 0;
  const draw = () => {
    const wide = Math.round(place.clientWidth);
    if (!wide || wide === last) return;
    last = wide;
    place.replaceChildren(picture(title, drawn, { x, from, write, label, wide, tall, legend }));
  };
  new ResizeObserver(draw).observe(place);
  return figure;
}

function picture(title, lines, { x, from, write, label, wide, tall, legend }) {
  const all = lines.flatMap(({ points }) => points);
  const [least, most] = range(all.map(([, y]) => y), from);
  const levels = scale(least, most > least || from === undefined ? most : least + 1);
  const [low, high] = [levels[0], levels.at(-1)];
  const left = 10 + DIGIT * Math.max(...levels.map((value) => write(value).length));
  const [first, final] = range(all.map(([at]) => at));
  const across = (at) => left + (final > first ? (at - first) / (final - first) : 0.5) * (wide - left - RIGHT);
  const up = (y) => TOP + (high > low ? (high - y) / (high - low) : 0.5) * (tall - TOP - BOTTOM);
  const text = (at, y, anchor, words) => s("text", { class: "quiet", x: at, y, "text-anchor": anchor }, words);
  const mark = s("line", { class: "cursor", y1: TOP, y2: tall - BOTTOM, visibility: "hidden" });
  const written = label ?? axis(x, first, final);
  const drawn = s("svg", { width: wide, height: tall, viewBox: `0 0 ${wide} ${tall}`, role: lines.some(({ href }) => href) ? "group" : "img", "aria-label": said(title, lines, write) },
    levels.map((value) => [
      s("line", { class: "axis", x1: left, x2: wide - RIGHT, y1: up(value), y2: up(value) }),
      text(left - 6, up(value) + 4, "end", write(value)),
    ]),
    along(first, final, x, Math.max(3, Math.floor((wide - left) / 130))).map((at, n, ats) =>
      text(across(at), tall - 5, anchored(n, ats.length, final > first), written(at))),
    lines.map((line, n) => curve(line, n, across, up)),
    mark);
  const point = (event) => {
    const at = event.clientX - drawn.getBoundingClientRect().left;
    const nearest = lines.map(({ points }) => nearestTo(points, at, across));
    const [shown] = nearest.filter(Boolean).sort((one, other) => Math.abs(across(one[0]) - at) - Math.abs(across(other[0]) - at));
    for (const [name, to] of [["x1", across(shown[0])], ["x2", across(shown[0])], ["visibility", "visible"]]) mark.setAttribute(name, to);
    legend.say(nearest, written(shown[0]));
  };
  drawn.addEventListener("pointermove", point);
  drawn.addEventListener("pointerleave", () => { mark.setAttribute("visibility", "hidden"); legend.rest(); });
  return drawn;
}

const anchored = (n, many, spread) => (!spread ? "middle" : n === 0 ? "start" : n === many - 1 ? "end" : "middle");

function curve({ points, href }, n, across, up) {
  const at = points.map(([x, y]) => `${across(x).toFixed(1)},${up(y).toFixed(1)}`);
  const kind = `line-${n % COLOURS}`;
  const dots = points.length <= 40 || href ? points.slice(-400) : [];
  return [
    points.length > 1 && s("polyline", { class: `curve ${kind}`, points: at.join(" ") }),
    dots.map((each) => {
      const dot = s("circle", { class: `dot ${kind}`, cx: across(each[0]), cy: up(each[1]), r: points.length > 30 ? 2.5 : 3.5 });
      return href ? s("a", { href: href(each), "aria-label": each[2] }, s("title", {}, each[2]), dot) : dot;
    }),
  ];
}

// The colour and name of each line, and beside it the value under the pointer, or the last one.
function keys(lines, write) {
  const values = lines.map(() => h("span", { class: "value" }));
  const where = h("span", { class: "quiet" });
  const rest = () => {
    lines.forEach(({ points }, n) => { values[n].textContent = write(points.at(-1)[1]); });
    where.textContent = "";
  };
  const say = (points, at) => {
    points.forEach((each, n) => { values[n].textContent = each ? write(each[1]) : ""; });
    where.textContent = at;
  };
  rest();
  const element = h("span", { class: "legend" },
    lines.map(({ name }, n) => h("span", { class: "key" }, h("i", { class: `line-${n % COLOURS}` }), name, " ", values[n])), where);
  return { element, rest, say };
}

const said = (title, lines, write) =>
  `${title}: ${lines.map(({ name, points }) => `${name} ${write(points.at(-1)[1])}`).join(", ")}`;

export function range(values, from) {
  let [low, high] = [from ?? Infinity, from ?? -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function nearestTo(points, at, across) {
  let [low, high] = [0, points.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (across(points[middle][0]) < at) low = middle; else high = middle;
  }
  const pair = [points[low], points[high]];
  return Math.abs(across(pair[0][0]) - at) < Math.abs(across(pair[1][0]) - at) ? pair[0] : pair[1];
}

// A round distance between about `many` values from low to high.
function pace(low, high, many) {
  const rough = (high - low) / many;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
}

// Round values around all from low to high; they need not be far from them.
export function scale(low, high) {
  if (!(high > low)) return [low];
  const step = pace(low, high, 3);
  return ticks(Math.floor(low / step) * step, Math.ceil(high / step) * step, 3, step);
}

// Round values from low to high, about `many` of them.
export function ticks(low, high, many, step = pace(low, high, many)) {
  if (!(high > low)) return [low];
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) found.push(Number((n * step).toPrecision(12)));
  return found.length ? found : [low, high];
}

function along(first, final, x, many) {
  if (!(final > first)) return [first];
  if (x === "number") {
    const found = ticks(first, final, many - 1);
    const whole = found.filter(Number.isInteger); // epochs and versions are counted
    return whole.length > 1 ? whole : found;
  }
  return Array.from({ length: many }, (_, n) => first + ((final - first) * n) / (many - 1));
}

function axis(x, first, final) {
  if (x === "time") return (at) => clock(at, final - first > 86400);
  return x === "seconds" ? (at) => span(at) : (at) => number(at);
}
