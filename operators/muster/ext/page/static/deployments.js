// What answers predictions: each deployment in a line.

import { get } from "./api.js";
import { champion, shareBar, standing, underWay } from "./deployment_cells.js";
import { h } from "./dom.js";
import { milliseconds, number } from "./format.js";
import { toDeployment, toVersion } from "./links.js";
import { table } from "./table.js";
import { ago } from "./time.js";
import { watch } from "./watch.js";

export async function deployments(screen) {
  let last;
  await watch(screen, 5, async () => {
    const found = await get("deployments", {}, screen.signal);
    const now = JSON.stringify(found);
    if (now !== last) screen.put(...list(found.deployments));
    last = now;
  });
}

// Of all revisions together: the slowest counts, since percentiles cannot be added up.
function together(figures) {
  const all = Object.values(figures ?? {});
  if (!all.length) return ["", "", ""];
  const sum = (name) => all.reduce((total, each) => total + each[name], 0);
  const slow = all.map((f) => f.p95_seconds).filter((seconds) => seconds !== null);
  return [number(sum("requests")), number(sum("failed")), slow.length ? milliseconds(Math.max(...slow)) : ""];
}

function list(found) {
  const columns = [
    ["State", "tight"], ["Deployment"], ["Serves", "name"], ["Shares", "tight"], ["Requests", "number"],
    ["Errors", "number"], ["Slowest p95", "number"], ["Since", "tight"], ["Answers at", "name"], ["Under way"],
  ];
  const rows = found.map((each) => {
    const best = champion(each);
    return [[
      standing(each),
      toDeployment(each.name),
      best ? toVersion(best.model.address) : "nothing",
      shareBar(each),
      ...together(each.figures),
      ago(best?.since),
      h("code", {}, each.url),
      underWay(each),
    ]];
  });
  const empty = "No deployments yet: a DeployOperator makes one.";
  return [h("h1", { tabindex: -1 }, "Deployments"), table("Deployments", columns, rows, empty)];
}
