// Draws lineage as boxes and arrows, and a metric as a curve. Both are made of links.

import { count, h, number, path, s, short } from "./dom.js";

const [WIDTH, HEIGHT, ACROSS, DOWN, EDGE] = [212, 50, 48, 12, 8];
const LEAST = 0.7; // of its size, before a wide picture scrolls instead
const to = (address) => `#/volumes/${path(short(address)).replaceAll("%40", "@")}`;
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

export function lineage({ nodes, edges, rows, complete }, here) {
  if (nodes.length < 2) return h("p", { class: "quiet" }, "Nothing: no input of it is recorded.");
  const columns = Math.max(...nodes.map((node) => node.column));
  const members = new Array(columns + 1).fill(0);
  for (const [column, row] of [...nodes.map((node) => [node.column, node.row]), ...edges.flatMap((edge) => edge.by)])
    members[column] = Math.max(members[column], row + 1);
  const [tall, wide] = [rows * (HEIGHT + DOWN) - DOWN, columns * (WIDTH + ACROSS) + WIDTH];
  const at = (column, row) => [
    EDGE + (columns - column) * (WIDTH + ACROSS),
    EDGE + (tall - members[column] * (HEIGHT + DOWN) + DOWN) / 2 + row * (HEIGHT + DOWN),
  ];
  const places = new Map(nodes.map((node) => [node.id, at(node.column, node.row)]));
  const [width, height] = [wide + 2 * EDGE, tall + 2 * EDGE];
  const drawn = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `Made from ${count(nodes.length - 1, "version")}` },
    s("defs", {}, s("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, s("path", { d: "M0 0 8 4 0 8z", class: "tip" }))),
    edges.map((edge) => arrow(places.get(edge.from), edge.by.map(([column, row]) => at(column, row)), places.get(edge.to))),
    nodes.map((node) => box(node, places.get(node.id), node.id === here)));
  drawn.style.minWidth = `${Math.round(width * LEAST)}px`;
  return h("div", { class: "picture", tabindex: 0, role: "region", "aria-label": "Lineage" }, drawn,
    complete ? null : h("p", { class: "quiet" }, "Only the nearest are drawn: muster volumes show lists all."));
}

// From the right side of an input, level through the places between, to the left side of its reader.
function arrow([x, y], by, [toX, toY]) {
  const middle = HEIGHT / 2;
  const stops = [...by.map(([column, row]) => [[column, row + middle], [column + WIDTH, row + middle]]).flat(), [toX - 2, toY + middle]];
  let [fromX, fromY] = [x + WIDTH, y + middle];
  const steps = stops.map(([nextX, nextY]) => {
    const bend = nextY === fromY ? 0 : (nextX - fromX) / 2;
    const step = `C${fromX + bend} ${fromY} ${nextX - bend} ${nextY} ${nextX} ${nextY}`;
    [fromX, fromY] = [nextX, nextY];
    return step;
  });
  return s("path", { class: "edge", d: `M${x + WIDTH} ${y + middle}${steps.join("")}`, "marker-end": "url(#tip)" });
}

function box(node, [x, y], here) {
  const many = node.count > 1;
  const link = { href: many ? `#/volumes/${path(node.volume)}` : to(node.id), class: here ? "here" : null };
  const line = (text, at, kind, most) => s("text", { x: x + 10, y: y + at, class: kind }, cut(text, most));
  return s("a", { ...link, "aria-label": `${node.volume} ${node.label}${node.title ? `, made by ${node.title}` : ""}` },
    s("title", {}, `${node.volume} ${node.label}\n${node.title}`),
    many ? s("rect", { class: "box", x: x + 4, y: y - 4, width: WIDTH, height: HEIGHT, rx: 4 }) : null,
    s("rect", { class: "box", x, y, width: WIDTH, height: HEIGHT, rx: 4 }),
    line(node.volume, 20, null, 29),
    line(node.title && !many ? `${node.label} · ${node.title}` : node.label, 38, "quiet", 33));
}

const [WIDE, TALL, LEFT, TOP, BOTTOM] = [1200, 170, 64, 12, 22];

// One metric over the versions, oldest first. The scale begins at the least value, not at 0.
export function plot(versions, name) {
  const values = versions.map((each) => each.metrics[name]);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const across = (n) => LEFT + (versions.length > 1 ? (n * (WIDE - LEFT - 12)) / (versions.length - 1) : 0);
  const up = (value) => TOP + (high > low ? ((high - value) * (TALL - TOP - BOTTOM)) / (high - low) : (TALL - TOP - BOTTOM) / 2);
  const points = values.map((value, n) => `${across(n).toFixed(1)},${up(value).toFixed(1)}`);
  const scale = (high > low ? [low, high] : [low]).map((value) => [
    s("line", { class: "axis", x1: LEFT, x2: WIDE - 12, y1: up(value), y2: up(value) }),
    s("text", { class: "quiet", x: LEFT - 8, y: up(value) + 4, "text-anchor": "end" }, number(value)),
  ]);
  const ends = versions.length > 1 ? [0, versions.length - 1] : [0];
  return s("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, width: WIDE, height: TALL, role: "group", "aria-label": `${name} across ${count(versions.length, "version")}` },
    scale,
    s("polyline", { class: "curve", points: points.join(" ") }),
    versions.map((each, n) => s("a", { href: to(each.address), "aria-label": `version ${each.number}: ${name} ${number(values[n])}` },
      s("title", {}, `@${each.number}${each.partition ? ` · ${each.partition}` : ""}\n${name} ${number(values[n])}`),
      s("circle", { class: each.retired ? "dot gone" : "dot", cx: across(n), cy: up(values[n]), r: versions.length > 30 ? 3 : 4 }))),
    ends.map((n) => s("text", { class: "quiet", x: across(n), y: TALL - 5, "text-anchor": n ? "end" : "start" }, `@${versions[n].number}`)));
}
