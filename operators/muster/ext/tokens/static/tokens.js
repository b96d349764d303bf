// A person's tokens: what there is, making one, which is shown once, and ending one.

import { get, post } from "../api.js";
import { copier, h, note, quiet, tabs, twice, under } from "../dom.js";
import { count } from "../format.js";
import { query } from "../links.js";
import { table } from "../table.js";
import { ago, when } from "../time.js";

const DAYS = [7, 30, 90];

export const choose = (_, asked) => ["tokens", tokens, asked];

async function tokens(screen, asked, made) {
  const everyone = asked.of === "everyone";
  const found = await get("tokens", { everyone }, screen.signal);
  const title = h("h1", { tabindex: -1 }, "Tokens");
  if (!found.tokens) {
    screen.put(title, h("p", { class: "quiet" }, "The store is a folder of this machine: its owner needs no token."));
    return;
  }
  const again = (fresh) => tokens(screen, asked, fresh);
  screen.put(
    title,
    found.may.everyone && tabs("Whose", [["own", "yours"], ["everyone", "everyone's"]], everyone ? "everyone" : "own", (of) => `#/tokens${query({ of })}`),
    h("p", { class: "quiet" }, "A token lets a command or notebook on your own machine use the store as you may, and no more. So may each person who has it."),
    made && shown(made),
    everyone || making(found, again),
    under("What there is", table(everyone ? "Everyone's tokens" : "Your tokens", columns(everyone), found.tokens.map((each) => row(each, everyone, again)), "No token was made yet.")),
  );
  if (made) document.querySelector(".secret")?.focus();
}

const columns = (everyone) => [
  ...(everyone ? [["Person", "name", ({ user }) => user]] : []),
  ["Name", "name", ({ name }) => name], ["May", "tight"], ["Made", "tight", ({ made }) => made],
  ["Used", "tight", ({ used }) => used], ["Until", "tight", ({ expires }) => expires], ["", "tight"],
];

const row = (each, everyone, again) => [[
  ...(everyone ? [each.user] : []),
  each.name,
  [each.changes ? "read and change" : "read", h("small", {}, each.teams.length ? each.teams.join(", ") : "all")],
  ago(each.made),
  each.used ? ago(each.used) : quiet("never"),
  each.ended ? ["ended ", ago(each.ended), h("small", {}, `by ${each.ended_by}`)] : each.counts ? when(each.expires) : quiet("expired"),
  each.counts && twice("End", `End ${each.name}? What uses it is refused at once.`, async () => { await post(`tokens/${each.id}/end`); await again(); },
    { yes: "end it", doing: "ending …", id: `end-${each.id}` }),
], each.counts ? null : "gone", each];

function making({ rights, most_days: most }, again) {
  if (!rights.reads) return note("You see no team's Dags as a whole, so no token can be made for you: ask an administrator for the right to all Dags of your team.");
  const name = h("input", { id: "token-name", maxlength: 80, placeholder: "what it is for, such as laptop" });
  const days = h("select", { id: "token-days" }, DAYS.filter((each) => each <= most).map((each) => h("option", { value: each, selected: each === 30 }, count(each, "day"))));
  const may = h("select", { id: "token-may" }, h("option", { value: "" }, "read"), rights.changes && h("option", { value: "true" }, "read and change"));
  const said = h("span", { role: "status" });
  const make = async () => {
    said.replaceChildren("making …");
    try {
      await again(await post(`tokens${query({ name: name.value, days: days.value, changes: may.value })}`));
    } catch (error) {
      said.replaceChildren(h("span", { role: "alert", class: "error" }, error.message));
    }
  };
  return under("Make one",
    h("p", { class: "bar" },
      h("label", { for: "token-name" }, "Name "), name, " ", h("label", { for: "token-may" }, "may "), may, " ",
      h("label", { for: "token-days" }, "for "), days, " ", h("button", { type: "button", id: "make-token", onclick: make }, "Make a token"), " ", said),
    h("p", { class: "quiet" }, `It reaches ${rights.teams.length ? `what is of ${rights.teams.join(", ")}, and what is shared` : "the whole store"}. Read: versions with their files, jobs with their logs. Change: put versions, and pin or retire them.`));
}

const shown = ({ token, url }) => h("div", { class: "note", role: "status" },
  h("p", {}, "This is the token. It is not shown again: put it into the file that ", h("code", {}, "token_file"), " of your cluster file names."),
  h("p", { class: "bar" }, h("code", { class: "secret", tabindex: -1 }, token), " ", copier(token)),
  quiet(`For the store at ${url}, as this page reaches it.`));
