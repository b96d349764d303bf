// What a deployment says of itself in a few words: for the lists, and for its own page.

import { state } from "./dom.js";
import { shares, toVersion } from "./links.js";

export const called = ({ revisions }, name) => revisions.find((each) => each.name === name);

// `drift` is of what muster left, `report` of what is asked.
export const standing = (each) => (!each.ready ? state("down") : each.drift ? state("drifted", "serving, edited")
  : each.report?.drifted ? state("drifted", "serving, its inputs drifted") : state("serving"));

export function champion({ revisions, release }) {
  const order = (one, other) => other.percent - one.percent || (other.name === release?.champion) - 0.5;
  return revisions.filter((each) => each.percent > 0).sort(order)[0];
}

// The one that had the traffic before last: what comes stands at the end of the bar.
export function shareBar(found) {
  const coming = found.release?.revision;
  const parts = found.revisions.map(({ name, percent }) => ({
    name, percent, kind: name === coming ? "coming" : "serving",
  }));
  return shares(parts.sort((one, other) => (one.kind === "coming") - (other.kind === "coming")));
}

export function underWay(found) {
  if (!found.release || found.drift) return found.drift || found.reason;
  const { revision, failed, held } = found.release;
  const mine = called(found, revision);
  const how = failed ? "is taken back" : held ? "is held" : mine?.percent ? "is on its way" : "comes up";
  return [mine ? toVersion(mine.model.address) : revision, ` ${how} at ${mine?.percent ?? 0} %`];
}
