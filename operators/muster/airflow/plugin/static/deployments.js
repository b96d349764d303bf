// What answers predictions, and which model versions stand behind each name.

import { get } from "./api.js";
import { ago, crumbs, facts, h, state, table, toDeployment, toVersion, under } from "./dom.js";
import { watch } from "./watch.js";

const serving = (each) => each.state === "serving";
const coming = (each) => ["loading", "smoke test"].includes(each.state);
const gone = (each) => ["retired", "refused"].includes(each.state);
const champion = ({ revisions }) => revisions.filter(serving).sort((one, other) => other.share - one.share)[0];
const standing = (each) => state(each.ready ? "serving" : "down");

export async function deployments({ put, signal }) {
  await changes(signal, 5, () => get("deployments", {}, signal), (found) => put(...list(found.deployments)));
}

export async function deployment({ put, signal }, name) {
  const where = `deployments/${encodeURIComponent(name)}`;
  await changes(signal, 3, () => get(where, {}, signal), (found) => put(...describe(found)));
}

async function changes(signal, seconds, ask, draw) {
  let last;
  await watch(signal, seconds, async () => {
    const found = await ask();
    const now = JSON.stringify(found);
    if (now !== last) draw(found);
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
    ["State", "tight"], ["Model"], ["Partition"], ["Share", "number"], ["Since", "tight"], ["Why"],
  ];
  const cells = (each) => [
    state(each.state),
    toVersion(each.model.address),
    each.model.partition ?? "",
    `${Math.round(each.share * 100)} %`,
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
