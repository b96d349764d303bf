// The log of a job: its end and what comes, the lines of one rank, the lines that hold a text, or all as a file. Each
// line has the time at which it was stored.

import { get } from "./api.js";
import { h, quiet } from "./dom.js";
import { bytes, number } from "./format.js";
import { query } from "./links.js";
import { clock, exactly } from "./time.js";

const MOST_LINES = 8000;
const RANK = /^\[rank (\d+)\]/;
const MANY = 24; // ranks that are offered one by one; of more a number is typed

// Whether times are shown is remembered by the browser.
const KEY = "muster times";
const chosen = () => { try { return localStorage.getItem(KEY) !== "no"; } catch { return true; } };
const choose = (yes) => { try { localStorage.setItem(KEY, yes ? "yes" : "no"); } catch { /* it is forgotten */ } };

export class Log {
  constructor(where, ranks) {
    this.where = where;
    this.next = null;
    this.text = h("pre", { class: "log", tabindex: 0, "aria-label": "Log" });
    this.found = h("pre", { class: "log", tabindex: 0, "aria-label": "Lines found", hidden: true });
    this.follow = h("input", { type: "checkbox", checked: true, id: "follow" });
    this.follow.addEventListener("change", () => this.down());
    this.times = h("input", { type: "checkbox", checked: chosen(), id: "times" });
    this.times.addEventListener("change", () => { choose(this.times.checked); this.timed(); });
    this.note = quiet();
    this.words = h("input", { id: "find", name: "find", type: "search", placeholder: "search the whole log", "aria-label": "Search the whole log" });
    this.rank = this.ranks(ranks);
    const form = h("form", { class: "bar", role: "search", onsubmit: (event) => { event.preventDefault(); this.find(); } }, this.rank, this.words);
    this.words.addEventListener("search", () => this.find());
    this.whole = h("a", { download: "" });
    this.element = h("section", { class: "logs" },
      h("div", { class: "bar" }, h("label", { for: "follow" }, this.follow, " follow"), h("label", { for: "times" }, this.times, " times"), form, this.note,
        h("span", { class: "end" }, this.whole)),
      this.found, this.text);
    this.timed();
  }

  ranks(many) {
    if (many > MANY)
      return h("input", { id: "rank", type: "number", min: 0, max: many - 1, placeholder: "rank", "aria-label": "Only of this rank", onchange: () => this.find() });
    const choice = h("select", { id: "rank", "aria-label": "Only of this rank", onchange: () => this.find() },
      h("option", { value: "" }, "all ranks"),
      Array.from({ length: many }, (_, n) => h("option", { value: n }, `rank ${n}`)));
    choice.hidden = many < 2;
    return choice;
  }

  async more(signal) {
    for (let pieces = 0; pieces < 8; pieces += 1) {
      const part = await get(`${this.where}/log`, { after: this.next }, signal);
      if (part.skipped_bytes && this.found.hidden)
        this.note.textContent = `its end: the first ${bytes(part.skipped_bytes)} are found by a search, and in the download`;
      this.next = part.next;
      if (part.text) this.add(part.text, part.times ?? []);
      if (part.next >= part.bytes || !part.text) return;
    }
  }

  // `times` are pairs: from that line on, the lines were stored at that time.
  add(text, times) {
    const lines = text.split("\n");
    if (lines.at(-1) === "") lines.pop();
    const begins = new Map(times);
    let at = null;
    this.text.append(...lines.map((line, n) => this.line(line, (at = begins.get(n) ?? at))));
    while (this.text.childElementCount > MOST_LINES) this.text.firstChild.remove();
    this.down();
  }

  line(text, at) {
    const said = RANK.exec(text);
    if (at && at !== this.stamp?.at) this.stamp = { at, clock: clock(at), title: exactly(at) };
    const stamp = at ? { "data-at": this.stamp.clock, title: this.stamp.title } : {};
    return h("span", { class: "row", ...stamp }, said ? [h("span", { class: "quiet" }, said[0]), text.slice(said[0].length)] : text, "\n");
  }

  // What is searched is asked of the server, which has all of it.
  async find() {
    const [text, rank] = [this.words.value.trim(), this.rank.value];
    const some = Boolean(text || rank !== "");
    [this.found.hidden, this.text.hidden] = [!some, some];
    this.download();
    if (!some) { this.note.textContent = ""; this.down(); return; }
    this.note.textContent = "searching …";
    try {
      const { lines, times, total, complete } = await get(`${this.where}/found`, { text, rank });
      this.found.replaceChildren(...lines.map((line, n) => this.line(line, times?.[n])));
      const some = total > lines.length ? `the last ${number(lines.length)} of ${number(total)} lines` : `${number(total)} lines`;
      this.note.textContent = complete ? some : `${some}; only its first 256 MB were searched`;
      this.found.scrollTop = this.found.scrollHeight;
    } catch (error) {
      this.note.textContent = error.message;
    }
  }

  timed() {
    this.element.classList.toggle("timed", this.times.checked);
    this.download();
  }

  // The file has what is shown: all lines or those found, with their times or without.
  download() {
    const [text, rank] = [this.words.value.trim(), this.rank.value];
    const some = text || rank !== "";
    this.whole.textContent = some ? "download these lines" : "download all of it";
    this.whole.href = `api/${this.where}/whole.log${query({ text, rank: String(rank), times: this.times.checked })}`;
  }

  down() {
    if (this.follow.checked) this.text.scrollTop = this.text.scrollHeight;
  }
}
