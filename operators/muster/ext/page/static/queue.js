// The queues, what waits in them and why, and who has the GPUs: by class, node and team.

import { get } from "./api.js";
import { h, note, quiet, state, under } from "./dom.js";
import { count, gib, number, span } from "./format.js";
import { inAirflow } from "./job_cells.js";
import { toJob } from "./links.js";
import { table } from "./table.js";
import { watch } from "./watch.js";


export async function queue(screen) {
  let last;
  await watch(screen, 4, async () => {
    const found = await get("queue", {}, screen.signal);
    const now = JSON.stringify(found);
    if (now !== last || found.waiting.length) screen.put(...draw(found));
    last = now;
  });
}

function draw({ queues, waiting, gpus, warning, airflow: runs }) {
  return [
    h("h1", { tabindex: -1 }, "Queue"),
    warning && note(warning),
    table("Queues", [["Queue"], ["Team"], ["Waiting", "number"], ["Running", "number"], ["State"]],
      queues.map((each) => [[each.name, each.team, number(each.waiting), number(each.running), open(each)]]), "No queues."),
    under("What waits", table("What waits, the next to leave its queue first",
      [["Queue", "tight"], ["Place", "number"], ["Job", "name"], ["Needs"], ["Waited", "number"], ["Why", "says"]],
      waiting.map((each) => [line(each)]), runs?.length ? "No job waits." : "Nothing waits."),
    runs?.map((each) => h("div", { class: "entry" }, inAirflow(each)))),
    under("GPUs", cards(gpus)),
  ];
}

const open = (each) => (each.stopped ? [state("down", "stopped"), quiet(` ${each.stopped}`)] : state("serving", "open"));

const line = (each) => [
  each.queue,
  each.place ? `${each.place.number} of ${each.place.of}` : "",
  [each.job_id ? toJob(each.job_id) : each.name, each.title && h("small", {}, each.title)],
  needs(each.needs),
  span(Date.now() / 1000 - each.since),
  each.why,
];

function needs(amounts) {
  const parts = Object.entries(amounts).map(([name, amount]) => {
    if (name.endsWith("/gpu")) return [0, count(amount, "GPU")];
    if (name === "cpu") return [1, count(amount, "CPU")];
    return name === "memory" ? [2, gib(amount)] : [3, `${number(amount)} ${name}`];
  });
  return parts.filter(([, text]) => !text.endsWith("ephemeral-storage")).sort(([one], [other]) => one - other).map(([, text]) => text).join(", ");
}

function cards({ by_class: classes, by_node: nodes, by_team: teams, shares, unseen }) {
  if (!nodes.length) return h("p", { class: "quiet" }, "No GPUs here.");
  const numbers = [["GPUs", "number"], ["Used", "number"], ["Free", "number"], ["In use", "tight"]];
  const cells = (each) => [number(each.total), number(each.used), number(each.free), meter(each)];
  const quotas = shares.filter((each) => each.quota || each.used);
  return [
    table("GPUs by class", [["Class"], ...numbers], classes.map((each) => [[each.name, ...cells(each)]]), ""),
    h("h3", {}, "by node"),
    table("GPUs by node", [["Node", "name"], ["Class"], ...numbers, ["State"]],
      nodes.map((each) => [[each.name, each.gpu_class, ...cells(each), each.why_not ? `takes no jobs: ${each.why_not}` : "ok"]]), ""),
    quotas.length > 0 && [h("h3", {}, "by team"), table("GPUs by team", [["Team"], ["Class"], ["Quota", "number"], ["Used", "number"], ["Borrowed", "number"]],
      quotas.map((each) => [[each.team, each.gpu_class, number(each.quota), number(each.used), each.borrowed ? number(each.borrowed) : ""]]), "")],
    !quotas.length && teams.length > 0 && [h("h3", {}, "by team"), table("GPUs by team", [["Team"], ["Used", "number"]], teams.map((each) => [[each.name, number(each.used)]]), "")],
    unseen && note(unseen),
  ].filter(Boolean);
}

const meter = ({ used, total }) => (total ? h("meter", { min: 0, max: total, value: used, title: `${used} of ${total} used` }) : "");
