// Draws how many trials reached each rung of a search and what became of them there, and how much each param explains.

import { h, quiet, s } from "../dom.js";
import { count, number } from "../format.js";
import { table } from "../table.js";

const KINDS = [["passed", "went on"], ["going", "run on"], ["paused", "paused"], ["left", "failed or ended there"]];

const MOST = 10; // params that are shown

export function rungs({ rungs: found, metric, trials, resource_name: name, until }) {
  const most = Math.max(1, trials);
  const last = found.length - 1;
  const columns = [["Rung", "tight"], ["", "picture-cell"], ["Reached", "number"], ["Went on", "number"], [`Best ${metric}`, "number"]];
  const rows = found.map((rung, n) => [[
    `${number(rung.at)}`,
    bar(parts(rung), most, `at ${number(rung.at)}`),
    number(rung.reached),
    [number(rung.passed), n === last && rung.passed > 0 && h("small", {}, "to the end")],
    rung.best === null ? "" : number(rung.best),
  ]]);
  return [
    h("div", { class: "plain" }, table(`Trials by rung${name || until ? `, of ${name || until}` : ""}`, columns, rows, "")),
    h("p", { class: "legend" }, KINDS.filter(([kind]) => found.some((rung) => parts(rung)[kind]))
      .map(([kind, words]) => h("span", { class: "key" }, h("i", { class: `rung-${kind}` }), words))),
  ];
}

const parts = ({ reached, passed, paused, left }) => ({ passed, going: reached - passed - paused - left, paused, left });

function bar(given, most, where) {
  let x = 0;
  const some = KINDS.filter(([kind]) => given[kind] > 0);
  const boxes = some.map(([kind, words]) => {
    const width = (given[kind] / most) * 100;
    const box = s("rect", { x: `${x}%`, width: `${Math.max(0.4, width)}%`, y: 0, height: 14, class: `rung-${kind}` }, s("title", {}, `${number(given[kind])} ${words}`));
    x += width;
    return box;
  });
  const said = some.map(([kind, words]) => `${number(given[kind])} ${words}`).join(", ") || "no trial";
  return s("svg", { class: "rungs", width: "100%", height: 14, role: "img", "aria-label": `${where}: ${said}` }, boxes);
}

export function matters({ importance, rungs: [first] }) {
  const known = importance.filter(({ share }) => share !== null);
  if (!known.length) return h("p", { class: "quiet" }, "Too few trials have been compared to say which params matter.");
  const rows = importance.slice(0, MOST).map(({ param, share, chance, trials }) => [[
    h("code", {}, param),
    share === null ? quiet("too little to say") : whole(share, chance, param),
    share === null ? "" : `${Math.round(share * 100)} %`,
    number(trials),
  ]]);
  return [
    h("div", { class: "plain" }, table("How much each param explains", [["Param", "name"], ["", "picture-cell"], ["Share", "number"], ["Trials", "number"]], rows, "")),
    h("p", { class: "quiet" }, `How much of the ranking at the first rung, ${number(first.at)}, each param explains by itself (η² of ranks). Grey is no more than chance would: 19 of 20 params that do nothing stay below. What params do only together is not seen.`),
    importance.length > MOST && h("p", { class: "quiet" }, `${count(importance.length - MOST, "more param")}: less, or too few trials have one.`),
  ];
}

function whole(share, chance, param) {
  const said = `${param}: ${Math.round(share * 100)} %${share > chance ? "" : ", no more than chance would"}`;
  return s("svg", { class: "rungs", width: "100%", height: 14, role: "img", "aria-label": said },
    s("rect", { x: 0, width: `${Math.max(0.4, share * 100)}%`, height: 14, class: share > chance ? "rung-share" : "rung-paused" }, s("title", {}, said)));
}

export const drawnOf = (many, all, what) => (many < all
  ? h("p", { class: "quiet" }, `${count(many, "trial")} of ${number(all)} ${what}: the best, those that run, and others evenly from better to worse.`) : null);
