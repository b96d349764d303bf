// Draws lineage as boxes and arrows, and a metric as a curve. Both are made of links.

import { count, h, number, path, s, short } from "./dom.js";

const [WIDTH, HEIGHT, ACROSS, DOWN, EDGE] = [212, 50, 48, 12, 8];
const LEAST = 0.7; // of its size, before a wide picture scrolls instead
const to = (address) => `#/volumes/${path(short(address))}`;
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// Columns and rows are the server's; `here` is the version that is looked at, in the column at the right.
export function lineage({ nodes, edges, rows, complete }, here) {
  if (nodes.length < 2) return h("p", { class: "quiet" }, "Nothing: no input of it is recorded.");
  const columns = Math.max(...nodes.map((node) => node.column));
  const members = new Array(columns + 1).fill(0);
  for (const [column, row] of [...nodes.map((node) => [node.column, node.row]), ...edges.flatMap((edge) => edge.by)])
    members[column] = Math.max(members[column], row + 1);
  const at = ([column, row]) => [
    EDGE + (columns - column) * (WIDTH + ACROSS),
    EDGE + ((rows - members[column]) / 2 + row) * (HEIGHT + DOWN),
  ];
  const places = new Map(nodes.map((node) => [node.id, at([node.column, node.row])]));
  const drawn = frame(
    columns * (WIDTH + ACROSS) + WIDTH + 2 * EDGE,
    rows * (HEIGHT + DOWN) - DOWN + 2 * EDGE,
    `Made from ${count(nodes.length - 1, "version")}`,
    tip(),
    edges.map((edge) => arrow(places.get(edge.from), edge.by.map(at), places.get(edge.to))),
    nodes.map((node) => box(node, places.get(node.id), node.id === here)),
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

// From the right side of an input, level through the places between, to the left side of its reader.
function arrow([x, y], by, [toX, toY]) {
  const middle = HEIGHT / 2;
  const level = ([column, row]) => [[column, row + middle], [column + WIDTH, row + middle]];
  let [fromX, fromY] = [x + WIDTH, y + middle];
  const steps = [...by.flatMap(level), [toX - 2, toY + middle]].map(([nextX, nextY]) => {
    const bend = nextY === fromY ? 0 : (nextX - fromX) / 2;
    const step = `C${fromX + bend} ${fromY} ${nextX - bend} ${nextY} ${nextX} ${nextY}`;
    [fromX, fromY] = [nextX, nextY];
    return step;
  });
  return s("path", { class: "edge", d: `M${x + WIDTH} ${y + middle}${steps.join("")}`, "marker-end": "url(#tip)" });
}

function box(node, [x, y], here) {
  const many = node.count > 1;
  const href = many ? `#/volumes/${path(node.volume)}` : to(node.id);
  const label = `${node.volume} ${node.label}${node.title ? `, made by ${node.title}` : ""}`;
  const outline = (shift) =>
    s("rect", { class: "box", x: x + shift, y: y - shift, width: WIDTH, height: HEIGHT, rx: 4 });
  const line = (text, down, kind, most) => s("text", { x: x + 10, y: y + down, class: kind }, cut(text, most));
  return s("a", { href, class: here ? "here" : null, "aria-label": label },
    s("title", {}, label),
    many ? outline(4) : null,
    outline(0),
    line(node.volume, 20, null, 29),
    line(node.title && !many ? `${node.label} · ${node.title}` : node.label, 38, "quiet", 33));
}

const [WIDE, TALL, RIGHT, TOP, BOTTOM] = [1200, 170, 12, 12, 22];
const DIGIT = 7; // how wide a character of the scale is at most

// One metric over the versions, oldest first. The scale begins at the least value, not at 0.
export function plot(versions, name) {
  const values = versions.map((each) => each.metrics[name]);
  const [low, high, last] = [Math.min(...values), Math.max(...values), versions.length - 1];
  const left = Math.max(64, 16 + DIGIT * Math.max(...[low, high].map((value) => number(value).length)));
  const across = (n) => left + (last ? (n * (WIDE - left - RIGHT)) / last : 0);
  const up = (value) => TOP + (high > low ? (high - value) / (high - low) : 0.5) * (TALL - TOP - BOTTOM);
  const points = values.map((value, n) => `${across(n).toFixed(1)},${up(value).toFixed(1)}`).join(" ");
  const text = (x, y, anchor, words) => s("text", { class: "quiet", x, y, "text-anchor": anchor }, words);
  const level = (value) => [
    s("line", { class: "axis", x1: left, x2: WIDE - RIGHT, y1: up(value), y2: up(value) }),
    text(left - 8, up(value) + 4, "end", number(value)),
  ];
  return frame(WIDE, TALL, `${name} across ${count(versions.length, "version")}`,
    [...new Set([low, high])].map(level),
    s("polyline", { class: "curve", points }),
    versions.map((each, n) => dot(each, `${name} ${number(values[n])}`, across(n), up(values[n]), last > 30 ? 3 : 4)),
    text(left, TALL - 5, "start", `@${versions[0].number}`),
    last > 0 && text(WIDE - RIGHT, TALL - 5, "end", `@${versions[last].number}`));
}

function dot(each, says, cx, cy, r) {
  const label = `@${each.number}${each.partition ? ` · ${each.partition}` : ""}: ${says}`;
  return s("a", { href: to(each.address), "aria-label": label },
    s("title", {}, label),
    s("circle", { class: each.retired ? "dot gone" : "dot", cx, cy, r }));
}
