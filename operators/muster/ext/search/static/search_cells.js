// What a search says of itself in a few words: for the list, and for the run that it is part of.

import { h, state } from "../dom.js";
import { cell, number, span } from "../format.js";
import { toSearch, toTask } from "../links.js";
import { table } from "../table.js";
import { ago, runWords } from "../time.js";

const COLUMNS = [
  ["State", "tight"], ["Search", "tight"], ["Task", "name"], ["Began", "tight"], ["Took", "number"], ["Trials", "number"],
  ["Running", "number"], ["Best", "says"], ["What it says", "name"],
];

export const searchTable = (caption, found, empty) => table(caption, COLUMNS, found.map((each) => [line(each)]), empty);

const line = (each) => (each.error ? [state(each.state), toSearch(each.search_id), ...Array(6).fill(""), each.error] : [
  state(each.state),
  toSearch(each.search_id),
  [toTask(each), h("small", { class: "run", title: each.run_id }, runWords(each.run_id))],
  ago(each.began),
  span((each.ended ?? Date.now() / 1000) - each.began),
  `${number(each.trials)} of ${number(each.most)}`,
  each.running || "",
  each.best && [`${each.metric} ${number(each.best.value)}`, h("small", {}, Object.entries(each.best.params).map(([name, value]) => `${name} ${cell(value)}`).join(", "))],
  (each.reason || each.waits) && h("div", { class: "two", title: each.reason || each.waits }, each.reason || each.waits),
]);
