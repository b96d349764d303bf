// A table: its columns can be sorted and chosen, its rows ticked. On a narrow screen each row becomes a card.

import { h } from "./dom.js";

// A table with a caption for those who do not see it. A column is [title, class, value]: `value` gives what a row is
// sorted by, from its third entry; or it is { by, way, id }: `by` has all rows sorted elsewhere, `way` how they are. A row is [cells, class, data].
export function table(caption, columns, rows, empty) {
  if (!rows.length) return h("p", { class: "quiet" }, empty);
  const body = h("tbody", {}, rows.map((row) => line(columns, row)));
  const head = h("tr", {}, columns.map((column) => heading(column, body, columns, rows)));
  return h("div", { class: "wide" },
    h("table", {}, h("caption", {}, caption), h("thead", {}, head), body));
}

function line(columns, [cells, kind]) {
  return h("tr", { class: kind }, cells.map((cell, n) => h("td", { class: columns[n][1], "data-title": columns[n][0] }, together(cell))));
}

// What a cell holds is one element, so that it stays together where a row is a card; nothing stays nothing.
function together(cell) {
  const parts = [cell].flat(Infinity).filter((each) => each || each === 0);
  return parts.length > 1 ? h("div", {}, parts) : parts;
}

function heading([title, kind, value], body, columns, rows) {
  const cell = h("th", { scope: "col", class: kind, title });
  if (!value) {
    cell.append(title);
    return cell;
  }
  if (value.by) {
    cell.ariaSort = value.way;
    cell.append(h("button", { type: "button", class: "sort", id: value.id, onclick: value.by }, title));
    return cell;
  }
  const sort = () => {
    const down = cell.ariaSort !== "descending";
    for (const each of cell.parentElement.children) each.ariaSort = null;
    cell.ariaSort = down ? "descending" : "ascending";
    const sorted = [...rows].sort((one, other) => order(value(one[2]), value(other[2]), down ? -1 : 1));
    body.replaceChildren(...sorted.map((row) => line(columns, row)));
  };
  cell.append(h("button", { type: "button", class: "sort", onclick: sort }, title));
  return cell;
}

// What has no value comes last, whichever way round.
function order(one, other, way) {
  const [none, neither] = [one, other].map((each) => each === undefined || each === null);
  if (none || neither) return Number(none) - Number(neither);
  const least = typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
  return least * way;
}

// A choice of columns that stays open while boxes are ticked; `apply` gets the names.
export function chooser(names, chosen, apply) {
  const boxes = names.map((name) => h("input", { type: "checkbox", value: name, checked: chosen.includes(name) }));
  const labels = names.map((name, n) => h("label", { class: "choice" }, boxes[n], ` ${name}`));
  const find = h("input", {
    type: "search", placeholder: "find a column", "aria-label": "Find a column",
    oninput: (event) => labels.forEach((label, n) => { label.hidden = !names[n].includes(event.target.value.trim()); }),
  });
  const done = () => apply(boxes.filter((box) => box.checked).map((box) => box.value));
  return h("details", { class: "chooser" },
    h("summary", {}, "columns"),
    h("div", { class: "menu" }, names.length > 8 && find, h("div", { class: "choices" }, labels),
      h("button", { type: "button", onclick: done }, "show these")));
}

// Whole pages of a list: `to` gives the address of an offset.
export function turn(total, offset, rows, what, to, [back, further] = ["newer", "older"]) {
  if (total <= rows && !offset) return null;
  const last = Math.min(offset + rows, total);
  return h("nav", { class: "bar quiet", "aria-label": "Pages" },
    `${(offset + 1).toLocaleString("en")} to ${last.toLocaleString("en")} of ${total.toLocaleString("en")} ${what}`,
    offset > 0 && h("a", { href: to(Math.max(0, offset - rows)), rel: "prev" }, back),
    last < total && h("a", { href: to(offset + rows), rel: "next" }, further));
}
