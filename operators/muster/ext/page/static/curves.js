// The curves of a job: what its ranks told, and what its replicas used, while it ran.

import { get, Refused } from "./api.js";
import { chart } from "./chart.js";
import { h, quiet } from "./dom.js";
import { count, number } from "./format.js";
import { reading, redraw } from "./watch.js";

const UNIT = /_?(cores|gib|share)$/;
const short = (n) => number(Number(n.toPrecision(3)));
const COUNTED = /^(epochs?|steps?|global_step|iterations?|batch(es)?)$/i; // what is counted is the axis of others, and no curve
const WRITES = {
  cores: (n) => `${short(n)} CPU`,
  gib: (n) => `${short(n)} GiB`,
  mib: (n) => `${short(n)} MiB`,
  share: (n) => `${Math.round(n * 100)} %`,
};
const LEAST_GIB = 0.1;
const AT_ONCE = 12; // curves that are drawn before the rest is asked for

export class Curves {
  constructor(where) {
    this.where = where;
    this.element = h("div", { class: "curves" });
    this.last = "";
    this.by = "time";
    this.all = false;
  }

  async more(signal) {
    try {
      const series = await get(`${this.where}/series`, {}, signal);
      const now = JSON.stringify(series);
      if (now !== this.last && !reading(this.element)) this.draw(series);
      this.last = now;
    } catch (error) { // a store service of an earlier release has none: the job is shown nevertheless
      if (!(error instanceof Refused)) throw error;
      redraw(this.element, () => [h("p", {}, quiet(`Its curves cannot be had: ${error.message}`))]);
    }
  }

  draw(series) {
    redraw(this.element, () => this.parts(series));
  }

  parts(series) {
    const [all, used] = [byName(series.numbers), byName(series.use)];
    const curved = all.filter(([name]) => !COUNTED.test(name));
    const told = curved.length ? curved : all;
    const shown = this.all ? told : told.slice(0, AT_ONCE);
    const more = told.length - shown.length;
    return [
      told.length > 0 && h("h2", {}, "Progress"),
      told.some(([, curves]) => stepped(curves)) && this.axis(series),
      told.length > 0 && h("div", { class: "charts" }, shown.map(([name, curves]) => this.told(name, curves))),
      more > 0 && h("button", { type: "button", onclick: () => { this.all = true; this.draw(series); } }, count(more, "more curve")),
      leftOut(series),
      used.length > 0 && h("h2", {}, "What it uses"),
      used.length > 0 && h("div", { class: "charts" }, used.map(([name, curves]) => use(name, curves))),
    ].filter(Boolean);
  }

  // Over time, or over what the ranks count: steps or epochs.
  axis(series) {
    const choice = h("select", { id: "axis", onchange: (event) => { this.by = event.target.value; this.draw(series); } },
      ["time", "steps"].map((name) => h("option", { value: name, selected: name === this.by }, name)));
    return h("div", { class: "bar" }, h("label", { for: "axis" }, "over "), choice);
  }

  told(name, curves) {
    const steps = this.by === "steps" && stepped(curves);
    const lines = curves.map((curve) => ({ name: `rank ${curve.source}`, points: points(curve, steps) }));
    const unit = steps ? { label: (at) => `${curves[0].step_name} ${number(at)}` } : { x: "seconds" };
    return chart(name, lines, unit);
  }
}

const stepped = (curves) => curves.some(({ steps }) => (steps ?? []).some((each) => each !== null));

function use(name, curves) {
  const unit = UNIT.exec(name)?.[1];
  const small = unit === "gib" && curves.every(({ values = [] }) => values.every((each) => each < LEAST_GIB)); // an axis in GiB would have no round value
  const lines = curves.map((curve) => ({ name: curve.source, points: points(curve, false).map(([at, each]) => [at, small ? each * 1024 : each]) }));
  return chart(name.replace(UNIT, "").replaceAll("_", " ") || name, lines, { x: "seconds", from: 0, write: small ? WRITES.mib : WRITES[unit] ?? number });
}

// A gang that started again from its checkpoint counts some steps twice; over steps the later ones count.
function points({ seconds = [], values = [], steps = [] }, byStep) {
  if (!byStep) return values.map((value, n) => [seconds[n], value]);
  const known = new Map();
  values.forEach((value, n) => { if (steps[n] !== null && steps[n] !== undefined) known.set(steps[n], value); });
  return [...known].sort(([one], [other]) => one - other);
}

function byName(curves) {
  const found = new Map();
  for (const each of curves ?? []) found.set(each.name, [...(found.get(each.name) ?? []), each]);
  return [...found];
}

function leftOut({ numbers = [], names_left_out: names = [], lines_left_out: lines = 0 }) {
  const broken = numbers.filter((each) => each.not_finite).map((each) => `${each.name} of rank ${each.source}: ${number(each.not_finite)} NaN or infinite`);
  const said = [
    names.length && `${count(names.length, "name")} beyond the limit`,
    lines && `${count(lines, "line")} came too fast to be read`,
    ...broken.slice(0, 8),
  ].filter(Boolean);
  return said.length ? h("p", {}, quiet(`Not drawn: ${said.join("; ")}`)) : null;
}
