// What answers predictions, and which model versions stand behind each name.

import { get } from "./api.js";
import { ago, facts, h, state, table, toVersion } from "./dom.js";
import { watch } from "./watch.js";

const champion = ({ revisions }) => revisions.filter((each) => each.state === "serving").sort((a, b) => b.share - a.share)[0];
const standing = (each) => state(each.ready ? "serving" : "down");
const to = (name) => h("a", { href: `#/deployments/${encodeURIComponent(name)}` }, name);

export async function deployments({ put, signal }) {
  let last;
  await watch(signal, 5, async () => {
    const found = await get("deployments", {}, signal);
    const now = JSON.stringify(found);
    const columns = [["State", "tight"], ["Deployment"], ["Serves"], ["Partition"], ["Since", "tight"], ["Answers at"], ["Says"]];
    const rows = found.deployments.map((each) => {
      const best = champion(each);
      const coming = each.revisions.find((one) => ["loading", "smoke test"].includes(one.state));
      return [[standing(each), to(each.name), best ? toVersion(best.model.address) : "nothing", best?.model.partition ?? "", ago(best?.since),
        h("code", {}, each.url), coming ? [toVersion(coming.model.address), ` is coming: ${coming.state}`] : each.reason]];
    });
    if (now !== last) put(h("h1", {}, "Deployments"), table("Deployments", columns, rows, "No deployments yet: a DeployOperator makes one."));
    last = now;
  });
}

export async function deployment({ put, signal }, name) {
  let last;
  await watch(signal, 3, async () => {
    const found = await get(`deployments/${encodeURIComponent(name)}`, {}, signal);
    const now = JSON.stringify(found);
    if (now !== last) put(...describe(found));
    last = now;
  });
}

function describe(found) {
  const columns = [["State", "tight"], ["Model"], ["Partition"], ["Share", "number"], ["Since", "tight"], ["Why"]];
  const rows = found.revisions.map((each) => [[
    state(each.state), toVersion(each.model.address), each.model.partition ?? "", `${Math.round(each.share * 100)} %`, ago(each.since), each.reason,
  ], ["retired", "refused"].includes(each.state) ? "gone" : null]);
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/deployments" }, "Deployments")),
    h("h1", { tabindex: -1 }, found.name),
    facts([["state", standing(found)], ["answers at", h("code", {}, found.url)], ["says", found.reason]]),
    h("h2", {}, "Revisions"),
    table(`Revisions of ${found.name}, newest first`, columns, rows, "No revisions."),
  ];
}
