// Builds the page's elements. Every text from outside becomes a text node, never markup.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

export const h = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) =>
  build(document.createElementNS(SVG, tag), attributes, children);

// A list of facts; those without a value are left out, and nothing where none has one.
export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return known.length ? h("dl", {}, known.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])) : null;
}

// Names with values; a long one is folded.
const LONG = 160;
const written = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

export function value(given) {
  const text = written(given);
  const whole = h("pre", { class: "value" }, text);
  if (text.length <= LONG) return whole;
  return h("details", {}, h("summary", {}, `${text.slice(0, 60).replace(/\s+/g, " ")} …`), whole);
}

export const state = (name, text) => h("span", { class: `state ${name.split(" ")[0]}` }, text ?? name);

export const quiet = (...children) => h("span", { class: "quiet" }, children);

export const note = (...children) => h("p", { class: "note", role: "status" }, children);

export const tag = (text, title, kind) => h("span", { class: `tag ${kind ?? ""}`, title }, text);

export const crumbs = (...children) => h("p", { class: "crumbs" }, children);

// A heading with what stands under it; nothing where that is empty.
export const under = (title, ...children) => (children.some(Boolean) ? [h("h2", {}, title), children] : null);

export const spaced = (items) => items.map((item) => [item, " "]);

// Links to parts of one page: `choices` are [name, text]; `to` gives the address of a name.
export function tabs(label, choices, chosen, to) {
  return h("nav", { class: "tabs", "aria-label": label }, choices.filter(Boolean).map(([name, text, many]) =>
    h("a", { href: to(name), "aria-current": name === chosen ? "true" : null }, text,
      many === undefined ? null : quiet(` ${many.toLocaleString("en")}`))));
}

// A button that copies a text, and says that it did.
export function copier(text) {
  const button = h("button", { type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(text); } catch { select(button.previousElementSibling); return; }
    button.textContent = "copied";
  } }, "copy");
  return button;
}

function select(element) {
  getSelection().selectAllChildren(element);
}

// Asks twice, because a frame of Airflow's may not ask with a window of its own. `act` does it, and may return what
// was done, as a text.
export function twice(text, question, act, { yes = "yes", doing = "…", id } = {}) {
  const place = h("span", { class: "twice" });
  const button = (words, onclick, more) => h("button", { type: "button", onclick, ...more }, words);
  const begin = () => place.replaceChildren(button(text, ask, { id }));
  const ask = () => {
    const keep = button("no", begin);
    place.replaceChildren(`${question} `, button(yes, end, { class: "danger" }), " ", keep);
    keep.focus();
  };
  const end = async () => {
    place.replaceChildren(h("span", { role: "status" }, doing));
    try {
      const done = await act();
      if (done) place.replaceChildren(h("span", { role: "status" }, done));
    } catch (error) {
      place.replaceChildren(h("span", { role: "alert", class: "error" }, error.message));
    }
  };
  begin();
  return place;
}
