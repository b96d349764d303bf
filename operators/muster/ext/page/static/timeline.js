// Draws what took how long: a row for each part, with the time that it waited and the time that it ran.

import { h, s } from "./dom.js";
import { span } from "./format.js";
import { ticks } from "./chart.js";

const STEPS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400];

// `parts` are { name, href, state, submitted, started, ended, says }; times are seconds since the epoch.
export function timeline(label, parts) {
  const known = parts.filter(({ submitted }) => submitted);
  if (!known.length) return null;
  const now = Date.now() / 1000;
  const began = Math.min(...known.map(({ submitted }) => submitted));
  const over = Math.max(...known.map(({ ended }) => ended ?? now), began + 1);
  const share = (at) => ((at - began) / (over - began)) * 100;
  return h("div", { class: "timeline", role: "table", "aria-label": label },
    known.map((part) => row(part, share, now)),
    h("div", { class: "scale", "aria-hidden": "true" }, h("span", {}), scale(over - began), h("span", {})));
}

function row(part, share, now) {
  const { name, href, state, submitted, started, ended } = part;
  const [runs, ends] = [started ?? ended ?? now, ended ?? now];
  const waited = span(runs - submitted);
  const ran = started ? span(ends - started) : "";
  const words = [`waited ${waited}`, ran && `${ended ? "took" : "has run for"} ${ran}`].filter(Boolean).join(", ");
  return h("div", { class: "span", role: "row" },
    h("span", { role: "rowheader" }, h(href ? "a" : "span", { href, class: `state ${state}` }, name)),
    h("span", { role: "cell" }, bars([[submitted, runs, "waits"], [runs, started ? ends : runs, state]], share, `${name}: ${words}`)),
    h("span", { role: "cell", class: "took" }, ran || waited, ran ? null : h("span", { class: "quiet" }, " waiting")));
}

function bars(parts, share, words) {
  const drawn = parts.filter(([from, to]) => to > from).map(([from, to, kind]) =>
    s("rect", { x: `${share(from)}%`, width: `${Math.max(0.4, share(to) - share(from))}%`, y: 5, height: kind === "waits" ? 4 : 12, rx: 2, class: `bar-${kind}`, transform: kind === "waits" ? "translate(0 4)" : null }));
  return s("svg", { class: "bars", height: 22, width: "100%", role: "img", "aria-label": words }, s("title", {}, words), drawn);
}

function scale(seconds) {
  const step = STEPS.find((each) => seconds / each <= 6);
  const marks = step ? Array.from({ length: Math.floor(seconds / step) + 1 }, (_, n) => n * step) : ticks(0, seconds, 5);
  return s("svg", { height: 18, width: "100%", class: "bars" }, marks.map((at) => {
    const x = `${(at / seconds) * 100}%`;
    return [
      s("line", { class: "axis", x1: x, x2: x, y1: 0, y2: 5 }),
      s("text", { class: "quiet", x, y: 16, "text-anchor": at === 0 ? "start" : at / seconds > 0.95 ? "end" : "middle" }, at ? span(at) : "0"),
    ];
  }));
}
