// What answers predictions, and which model versions stand behind each name.

import { get } from "./api.js";
import { ago, crumbs, facts, h, state, table, toDeployment, toVersion, under } from "./dom.js";
import { watch } from "./watch.js";

const serving = (each) => each.percent > 0;
const coming = (each) => each.state === "starting";
const gone = (each) => ["retired", "refused"].includes(each.state);
const champion = ({ revisions }) => revisions.filter(serving).sort((one, other) => other.percent - one.percent)[0];
const standing = (each) => state(each.ready ? "serving" : "down");

export async function deployments(screen) {
  await changes(screen, 5, "deployments", (found) => list(found.deployments));
}

export async function deployment(screen, name) {
  await changes(screen, 3, `deployments/${encodeURIComponent(name)}`, describe);
}

async function changes(screen, seconds, where, draw) {
  let last;
  await watch(screen, seconds, async () => {
    const found = await get(where, {}, screen.signal);
    const now = JSON.stringify(found);
    if (now !== last) screen.put(...draw(found));
    last = now;
  });
}

function list(found) {
  const columns = [
    ["State", "tight"], ["Deployment"], ["Serves"], ["Partition"], ["Since", "tight"], ["Answers at"], ["Says"],
  ];
  const rows = found.map((each) => {
    const [best, next] = [champion(each), each.revisions.find(coming)];
    return [[
      standing(each),
      toDeployment(each.name),
      best ? toVersion(best.model.address) : "nothing",
      best?.model.partition ?? "",
      ago(best?.since),
      h("code", {}, each.url),
      next ? [toVersion(next.model.address), ` is coming: ${next.state}`] : each.reason,
    ]];
  });
  const empty = "No deployments yet: a DeployOperator makes one.";
  return [h("h1", {}, "Deployments"), table("Deployments", columns, rows, empty)];
}

function describe(found) {
  const columns = [
    ["State", "tight"], ["Revision"], ["Model"], ["Partition"], ["Share", "number"], ["Since", "tight"], ["Why"],
  ];
  const cells = (each) => [
    state(each.state),
    each.name,
    toVersion(each.model.address),
    each.model.partition ?? "",
    `${each.percent} %`,
    ago(each.since),
    each.reason,
  ];
  const rows = found.revisions.map((each) => [cells(each), gone(each) && "gone"]);
  const known = [["state", standing(found)], ["answers at", h("code", {}, found.url)], ["says", found.reason]];
  return [
    crumbs(h("a", { href: "#/deployments" }, "Deployments")),
    h("h1", { tabindex: -1 }, found.name),
    facts(known),
    under("Revisions", table(`Revisions of ${found.name}, newest first`, columns, rows, "No revisions.")),
  ];
}
