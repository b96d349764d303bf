// The list of searches, and those of one run.

import { get, Refused } from "../api.js";
import { h, under } from "../dom.js";
import { query } from "../links.js";
import { dagChoice } from "../runs.js";
import { oneSearch } from "./search.js";
import { searchTable } from "./search_cells.js";
import { turn } from "../table.js";
import { reading, watch } from "../watch.js";

const ROWS = 20;

export const choose = (name, asked) => (name ? ["searches", oneSearch, name] : ["searches", searches, asked]);

export async function ofRun(dag, run, signal) {
  try {
    const { searches: found } = await get("searches", { dag, run }, signal);
    return found.length > 0 && under("Searches", searchTable("Searches of this run", found, ""));
  } catch (error) { // a store service of an earlier release has none: the run is shown nevertheless
    if (!(error instanceof Refused)) throw error;
    return null;
  }
}

async function searches(screen, asked) {
  const [dag, offset] = [asked.dag ?? "", Number(asked.offset) || 0];
  let last;
  await watch(screen, 5, async () => {
    const found = await get("searches", { dag, offset, limit: ROWS }, screen.signal);
    const now = JSON.stringify(found);
    if (now !== last && !reading(document.body)) screen.put(...list(found, dag, offset));
    last = now;
  });
}

function list(found, dag, offset) {
  const to = (given) => `#/searches${query({ dag, ...given })}`;
  return [
    h("h1", { tabindex: -1 }, "Searches"),
    found.dags.length > 1 && h("div", { class: "bar" }, dagChoice(found.dags, dag, (chosen) => to({ dag: chosen }))),
    searchTable("Searches for params, newest first", found.searches, "No searches yet: a SearchOperator begins one."),
    turn(found.total, offset, ROWS, "searches", (at) => to({ offset: at })),
  ];
}
