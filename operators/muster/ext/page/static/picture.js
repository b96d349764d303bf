// Draws lineage as boxes and arrows. Each box is a link.

import { h, s } from "./dom.js";
import { count } from "./format.js";
import { path, versionPlace } from "./links.js";

const [WIDTH, HEIGHT, ACROSS, DOWN, EDGE] = [236, 50, 68, 12, 8];
const LEAST = 0.7; // of its size, before a wide picture scrolls instead
const NAME = 10; // characters of an input's name that there is room for
// Of a long path its end tells most: "flights/…/predictions".
const fitting = (text, most) => (text.length <= most ? text : `…${text.slice(1 - most)}`);
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Columns and rows are the server's: `here` is in column 0, its inputs to the left, what was made of it to the right.
// `serves` are the names of the deployments that answer with a version, by its address.
export function lineage({ nodes, edges, complete }, here, serves = {}) {
  if (nodes.length < 2 && !serves[here]?.length) return h("p", { class: "quiet" }, "Nothing: no input of it is recorded, and no job has read it.");
  const columns = [...nodes.map((node) => node.column), ...edges.flatMap((edge) => edge.by.map(([column]) => column))];
  const [most, least] = [Math.max(...columns), Math.min(...columns)];
  const members = new Map();
  for (const [column, row] of [...nodes.map((node) => [node.column, node.row]), ...edges.flatMap((edge) => edge.by)])
    members.set(column, Math.max(members.get(column) ?? 0, row + 1));
  const rows = Math.max(...members.values());
  const at = ([column, row]) => [
    EDGE + (most - column) * (WIDTH + ACROSS),
    EDGE + ((rows - members.get(column)) / 2 + row) * (HEIGHT + DOWN),
  ];
  const places = new Map(nodes.map((node) => [node.id, at([node.column, node.row])]));
  const leaving = new Map();
  for (const { from } of edges) leaving.set(from, (leaving.get(from) ?? 0) + 1);
  const drawn = frame(
    (most - least) * (WIDTH + ACROSS) + WIDTH + 2 * EDGE + 4,
    rows * (HEIGHT + DOWN) - DOWN + 2 * EDGE + 4,
    `Lineage of ${count(nodes.length, "version")}`,
    tip(),
    edges.map((edge) => arrow(edge, places.get(edge.from), edge.by.map(at), places.get(edge.to), leaving.get(edge.from) > 1)),
    nodes.map((node) => box(node, places.get(node.id), node.id === here, serves[node.id])),
  );
  return h("div", { class: "picture", tabindex: 0, role: "region", "aria-label": "Lineage" }, drawn,
    complete ? null : h("p", { class: "quiet" }, "Only the nearest are drawn: muster volumes show lists all."));
}

function frame(width, height, label, ...children) {
  const viewBox = `0 0 ${width} ${height}`;
  const drawn = s("svg", { width, height, viewBox, role: "group", "aria-label": label }, children);
  drawn.style.minWidth = `${Math.round(width * LEAST)}px`;
  return drawn;
}

function tip() {
  const size = { viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" };
  return s("defs", {}, s("marker", { id: "tip", ...size }, s("path", { d: "M0 0 8 4 0 8z", class: "tip" })));
}

// From the right side of an input, level through the places between, to the left side of its reader. The input's name
// stands where the arrow begins, or where it ends if several begin there.
function arrow({ names }, [x, y], by, [toX, toY], fans) {
  const middle = HEIGHT / 2;
  const level = ([column, row]) => [[column, row + middle], [column + WIDTH, row + middle]];
  let [fromX, fromY] = [x + WIDTH, y + middle];
  const steps = [...by.flatMap(level), [toX - 2, toY + middle]].map(([nextX, nextY]) => {
    const bend = nextY === fromY ? 0 : (nextX - fromX) / 2;
    const step = `C${fromX + bend} ${fromY} ${nextX - bend} ${nextY} ${nextX} ${nextY}`;
    [fromX, fromY] = [nextX, nextY];
    return step;
  });
  const words = (names ?? []).join(", ");
  const label = fans ? { x: toX - 10, y: toY + middle - 6, "text-anchor": "end" } : { x: x + WIDTH + 5, y: y + middle - 5 };
  return [
    s("path", { class: "edge", d: `M${x + WIDTH} ${y + middle}${steps.join("")}`, "marker-end": "url(#tip)" }, s("title", {}, `as ${words}`)),
    words && s("text", { class: "quiet input", ...label }, cut(words, NAME)),
  ];
}

function box(node, [x, y], here, serving) {
  const many = node.count > 1;
  const href = many ? `#/volumes/${path(node.volume)}` : versionPlace(node.id);
  const said = serving?.length ? `, serves ${serving.join(", ")}` : "";
  const first = fitting(node.volume, 27);
  const second = cut(node.title && !many ? `${node.label} · ${node.title}` : node.label, 38);
  const label = `${first} ${second}${said}`; // what is seen comes first, for who speaks to the page
  const whole = `${node.volume} ${node.label}${node.title ? `, made by ${node.title}` : ""}${said}`;
  const outline = (shift) =>
    s("rect", { class: "box", x: x + shift, y: y - shift, width: WIDTH, height: HEIGHT, rx: 4 });
  const line = (text, down, kind) => s("text", { x: x + 10, y: y + down, class: kind }, text);
  return s("a", { href, class: [here && "here", serving?.length && "serves"].filter(Boolean).join(" ") || null, "aria-label": label },
    s("title", {}, whole),
    many ? outline(4) : null,
    outline(0),
    serving?.length ? s("circle", { class: "live", cx: x + WIDTH - 12, cy: y + 14, r: 4 }) : null,
    line(first, 20, null),
    line(second, 38, "quiet"));
}
