// The list of searches.

import { get } from "./api.js";
import { h } from "./dom.js";
import { query } from "./links.js";
import { dagChoice } from "./runs.js";
import { searchTable } from "./search_cells.js";
import { turn } from "./table.js";
import { reading, watch } from "./watch.js";

const ROWS = 20;

export async function searches(screen, asked) {
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
