// The log of a job: its end and what comes, the lines of one rank, the lines that hold a text, or all as a file.

import { get } from "./api.js";
import { h, quiet } from "./dom.js";
import { bytes, number } from "./format.js";

const MOST_LINES = 8000;
const RANK = /^\[rank (\d+)\]/;
const MANY = 24; // ranks that are offered one by one

export class Log {
  constructor(where, ranks) {
    this.where = where;
    this.next = null;
    this.text = h("pre", { class: "log", tabindex: 0, "aria-label": "Log" });
    this.found = h("pre", { class: "log", tabindex: 0, "aria-label": "Lines found", hidden: true });
    this.follow = h("input", { type: "checkbox", checked: true, id: "follow" });
    this.follow.addEventListener("change", () => this.down());
    this.note = quiet();
    this.words = h("input", { id: "find", name: "find", type: "search", placeholder: "search the whole log", "aria-label": "Search the whole log" });
    this.rank = this.ranks(ranks);
    const form = h("form", { class: "bar", role: "search", onsubmit: (event) => { event.preventDefault(); this.find(); } }, this.rank, this.words);
    this.words.addEventListener("search", () => this.find());
    const whole = h("a", { href: `api/${where}/whole.log`, download: "" }, "download all of it");
    this.element = h("section", { class: "logs" },
      h("div", { class: "bar" }, h("label", { for: "follow" }, this.follow, " follow"), form, this.note, h("span", { class: "end" }, whole)),
      this.found, this.text);
  }

  ranks(many) {
    const choice = h("select", { id: "rank", "aria-label": "Only of this rank", onchange: () => this.find() },
      h("option", { value: "" }, "all ranks"),
      Array.from({ length: Math.min(many, MANY) }, (_, n) => h("option", { value: n }, `rank ${n}`)));
    choice.hidden = many < 2;
    return choice;
  }

  async more(signal) {
    for (let pieces = 0; pieces < 8; pieces += 1) {
      const part = await get(`${this.where}/log`, { after: this.next }, signal);
      if (part.skipped_bytes && this.found.hidden)
        this.note.textContent = `its end: the first ${bytes(part.skipped_bytes)} are found by a search, and in the download`;
      this.next = part.next;
      if (part.text) this.add(part.text);
      if (part.next >= part.bytes || !part.text) return;
    }
  }

  add(text) {
    const lines = text.split("\n");
    if (lines.at(-1) === "") lines.pop();
    this.text.append(...lines.map((line) => this.line(line)));
    while (this.text.childElementCount > MOST_LINES) this.text.firstChild.remove();
    this.down();
  }

  line(text) {
    const said = RANK.exec(text);
    return h("span", { class: "row" }, said ? [h("span", { class: "quiet" }, said[0]), text.slice(said[0].length)] : text, "\n");
  }

  // What is searched is asked of the server, which has all of it.
  async find() {
    const [text, rank] = [this.words.value.trim(), this.rank.value];
    const some = Boolean(text || rank !== "");
    [this.found.hidden, this.text.hidden] = [!some, some];
    if (!some) { this.note.textContent = ""; this.down(); return; }
    this.note.textContent = "searching …";
    try {
      const { lines, total, complete } = await get(`${this.where}/found`, { text, rank });
      this.found.replaceChildren(...lines.map((line) => this.line(line)));
      const some = total > lines.length ? `the last ${number(lines.length)} of ${number(total)} lines` : `${number(total)} lines`;
      this.note.textContent = complete ? some : `${some}; only its first 256 MB were searched`;
      this.found.scrollTop = this.found.scrollHeight;
    } catch (error) {
      this.note.textContent = error.message;
    }
  }

  down() {
    if (this.follow.checked) this.text.scrollTop = this.text.scrollHeight;
  }
}
