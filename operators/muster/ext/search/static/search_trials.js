// The table of a search's trials, a page at a time: sorted and chosen by the server, since all may be ten thousand.

import { get } from "../api.js";
import { h, note, quiet, state, tag } from "../dom.js";
import { inline, number } from "../format.js";
import { told } from "../job_cells.js";
import { toJob } from "../links.js";
import { chooser, table } from "../table.js";
import { reading, redraw } from "../watch.js";

const ROWS = 50;
const MOST_PARAMS = 8; // columns, before a person chooses
const PHASES = ["running", "new", "again", "paused", "ended", "failed"];

export class Trials {
  constructor(where, { signal, fail }) {
    Object.assign(this, { where, signal, fail, asked: { sort: "value", down: false, phase: "", offset: 0 }, columns: null, last: "" });
    [this.bar, this.body] = [h("div", { class: "bar" }), h("div", { class: "trials" })];
    this.element = h("section", {}, h("h2", {}, "Trials"), this.bar, this.body);
  }

  async more(found, signal = this.signal) {
    if (this.columns === null) this.begin(found);
    this.found = found;
    const answer = await get(`${this.where}/trials`, { ...this.asked, limit: ROWS }, signal);
    const now = JSON.stringify([answer, this.asked, this.columns, found.best]);
    if (now !== this.last && !reading(this.body)) redraw(this.body, () => this.draw(answer));
    this.last = now;
  }

  begin({ space }) {
    const names = Object.keys(space);
    this.columns = names.slice(0, MOST_PARAMS);
    if (names.length > MOST_PARAMS) this.bar.append(chooser(names, this.columns, (chosen) => { this.columns = chosen; this.ask({}); }));
    else this.bar.remove();
  }

  async ask(changes) {
    Object.assign(this.asked, changes);
    try { await this.more(this.found); } catch (error) { if (!this.signal.aborted) this.fail(error); }
  }

  draw({ trials, total, phases, unseen }) {
    const { found, asked } = this;
    const all = Object.values(phases).reduce((sum, many) => sum + many, 0);
    const choice = (name, words, many) => h("button", {
      type: "button", id: `phase-${name || "all"}`, class: "choice-of", "aria-pressed": asked.phase === name ? "true" : "false", onclick: () => this.ask({ phase: name, offset: 0 }),
    }, `${words} `, quiet(number(many)));
    const shown = { has: trials.some((each) => each.held.length), why: trials.some((each) => why(each)) }; // a column of nothing is left out
    return [
      h("div", { class: "bar filters" }, choice("", "all", all),
        PHASES.filter((name) => phases[name] || name === asked.phase).map((name) => choice(name, name, phases[name] ?? 0))),
      unseen && note(`What each trial has is not known: ${unseen}`),
      table("Trials", this.heads(found, shown), trials.map((each) => [this.cells(each, shown)]), all ? "No trial is in this state." : "No trial yet."),
      this.pages(total, trials.length),
    ].filter(Boolean);
  }

  heads({ metric, mode }, shown) {
    const way = (sort) => (this.asked.down !== (sort === "value" && mode === "max") ? "descending" : "ascending"); // the best value is first
    const by = (sort) => ({ by: () => this.sort(sort), way: this.asked.sort === sort ? way(sort) : null, id: `sort-${sort}` });
    return [
      ["Trial", "number", by("trial")], ["State", "tight", by("phase")], ["At", "number", by("at")], [metric, "number", by("value")],
      ...this.columns.map((name) => [name, "number param", by(`param.${name}`)]),
      shown.has && ["Has now", "tight"], ["Job", "tight"], shown.why && ["Why", "says"],
    ].filter(Boolean);
  }

  sort(name) {
    this.ask({ sort: name, down: this.asked.sort === name && !this.asked.down, offset: 0 });
  }

  cells(each, shown) {
    const { found } = this;
    const at = found.rungs.map((rung, n) => n < each.values.length && `${number(rung.at)}: ${each.values[n] === null ? "NaN" : number(each.values[n])}`);
    return [
      each.trial,
      [state(each.phase), each.trial === found.best?.trial && [" ", tag("best", `the best ${found.metric}`, "good")], doing(each.now)],
      each.at ? number(each.at) : "",
      each.value === null ? (each.values.length ? quiet("NaN") : "") : h("span", { title: at.filter(Boolean).join(", ") }, number(each.value)),
      ...this.columns.map((name) => (name in each.params ? param(each.params[name]) : quiet("–"))),
      ...(shown.has ? [each.held.map(held)] : []),
      each.job_id && [toJob(each.job_id), each.jobs > 1 && h("small", {}, `its job number ${each.jobs}`)],
      ...(shown.why ? [why(each)] : []),
    ];
  }

  pages(total, shown) {
    const { offset } = this.asked;
    if (total <= ROWS && !offset) return null;
    const turn = (words, to) => h("button", { type: "button", id: `page-${words}`, onclick: () => this.ask({ offset: to }) }, words);
    return h("nav", { class: "bar quiet", "aria-label": "Pages of trials" },
      `${number(Math.min(total, offset + 1))} to ${number(offset + shown)} of ${number(total)} trials`,
      offset > 0 && turn("back", Math.max(0, offset - ROWS)), offset + shown < total && turn("further", offset + ROWS));
  }
}

const LONG = 20;

function param(value) {
  const text = typeof value === "number" ? number(value) : inline(value);
  return text.length > LONG ? h("span", { title: text }, `${text.slice(0, LONG - 1)}…`) : text;
}

const doing = (now) => now && [now.state !== "running" && h("small", {}, now.state), told(now.progress)];

function held({ node, gpus, which }) {
  const cards = which.length ? `GPU ${which.join(", ")} of ` : gpus ? `${gpus} GPU${gpus > 1 ? "s" : ""} of ` : "";
  return h("div", {}, `${cards}${node}`);
}

const why = ({ reason, phase, now }) => reason && (phase === "failed" || phase === "again") ? h("div", { class: "two", title: reason }, reason) : now?.reason ? quiet(now.reason) : "";
