// Shows what the address after # names, keeps it up to date, and says what went wrong where something did.

import { NoAnswer, Refused } from "./api.js";
import { compare } from "./compare.js";
import { deployment } from "./deployment.js";
import { deployments } from "./deployments.js";
import { h } from "./dom.js";
import { tab } from "./extensions.js";
import { file } from "./file.js";
import { home } from "./home.js";
import { job } from "./job.js";
import { jobs } from "./jobs.js";
import { listed, nowhere } from "./lost.js";
import { queue } from "./queue.js";
import { runDiff } from "./run_diff.js";
import { run, runs } from "./runs.js";
import { store } from "./store.js";
import { version } from "./version.js";
import { volume } from "./volume.js";
import { volumes } from "./volumes.js";

const main = document.querySelector("main");
const framed = window.parent !== window;
let leave = new AbortController();

const decoded = (text) => { try { return decodeURIComponent(text); } catch { return text; } };

async function choose(hash) {
  const [where, search] = hash.replace(/^#\/?/, "").split("?", 2);
  const [room, ...rest] = where.split("/").map(decoded);
  const name = rest.join("/");
  if (name.split("/").some((part) => part === "." || part === "..")) return [room, nowhere, where];
  const asked = Object.fromEntries(new URLSearchParams(search ?? ""));
  if (room === "volumes" && name.includes("@")) return [room, version, name, asked];
  if (room === "volumes") return name ? [room, volume, name, asked] : [room, volumes, asked];
  if (room === "compare") return ["volumes", compare, asked];
  if (room === "files") return ["volumes", file, name];
  if (room === "deployments") return name ? [room, deployment, name] : [room, deployments];
  if (room === "runs") return rest.length > 1 ? [room, run, rest[0], rest.slice(1).join("/")] : [room, runs, { ...asked, dag: asked.dag ?? rest[0] }];
  if (room === "jobs") return name ? [room, job, name] : [room, jobs, asked];
  if (room === "diff") return ["runs", runDiff, asked];
  if (room === "store") return [room, store, asked];
  if (room === "queue") return [room, queue];
  if (room === "" || room === "now") return ["now", home];
  return (await tab(room))?.choose(name, asked) ?? [room, nowhere, where];
}

async function show() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  let room = "";
  let shown = false;
  const put = (...children) => {
    if (signal.aborted) return;
    shown = true;
    place(children);
    entitle();
  };
  const say = (error, more, again) => {
    if (signal.aborted) return;
    if (!shown) main.replaceChildren(); // what stood there is another place's
    fail(error, more, again);
  };
  try {
    const [entry, view, ...words] = await choose(location.hash);
    if (signal.aborted) return;
    room = entry;
    for (const link of document.querySelectorAll("nav a[href^='#']"))
      link.ariaCurrent = link.hash === `#/${room}` ? "page" : null;
    document.body.classList.toggle("document", view === file);
    remember();
    await view({ put, signal, fail: say, mended }, ...words);
  } catch (error) {
    say(error, error.status === 404 ? listed(room) : " ", error instanceof NoAnswer || error.status >= 500 ? show : null);
  }
}

// Replaces what is shown. What had the focus has it again, what was typed stays, and nothing jumps.
function place(children) {
  const active = document.activeElement;
  const mark = main.contains(active) && (active.id || active.getAttribute("href"));
  const typed = main.contains(active) && active.matches("input[type='search']") ? active.value : null;
  const [top, left] = [scrollY, scrollX];
  main.replaceChildren(...children.flat(Infinity).filter(Boolean));
  if (mark) {
    const marked = [...main.querySelectorAll("[id],[href]")];
    const same = marked.find((each) => each.id === mark || each.getAttribute("href") === mark);
    same?.focus({ preventScroll: true });
    if (typed !== null && same) same.value = typed;
  }
  scrollTo(left, top);
}

// `again` is what a person may ask for at once.
function fail(error, more = "", again = null) {
  const text = error instanceof Refused ? error.message : `This page made a mistake: ${error?.stack ?? error}`;
  mended();
  const retry = again && h("button", { type: "button", onclick: again }, "try now");
  main.prepend(h("p", { role: "alert", class: "error" }, text, more, retry));
}

function mended() {
  main.querySelector(":scope > .error")?.remove();
}

// A tab inside Airflow is called by Airflow's own document, which would leave every one of them "Airflow".
function entitle() {
  const heading = main.querySelector("h1");
  document.title = heading ? `${heading.dataset.title ?? heading.textContent.trim()} · muster` : "muster";
  try { if (framed) window.parent.document.title = document.title; } catch { /* framed by something else than Airflow */ }
}

// Inside Airflow its own address names the place too, so that a reload or a sent link comes back here.
function remember() {
  if (!framed) return;
  try {
    const outer = window.parent;
    const [before, found] = outer.location.pathname.split(/(\/plugin\/muster)(?=\/|$)/);
    if (!found) return;
    outer.history.replaceState(outer.history.state, "", `${before}${found}${location.pathname}${location.hash}`);
  } catch { /* framed by something else than Airflow */ }
}

// Airflow's frame may neither open windows nor leave itself. A link out of the page is followed by
// Airflow's own document, which this page shares an origin with.
function follow(event) {
  const link = event.target.closest?.("a[rel~='external'], a.home");
  if (!link || !framed) return;
  event.preventDefault();
  const outer = window.parent.document;
  const same = link.origin === location.origin;
  const copy = outer.createElement("a");
  Object.assign(copy, { href: link.href, target: same ? "_self" : "_blank", rel: "noopener noreferrer" });
  outer.body.append(copy);
  copy.click();
  copy.remove();
}

// Airflow's own switch between dark and light, where this page is inside it.
function theme() {
  try {
    const chosen = window.parent.document.documentElement.classList;
    const name = ["dark", "light"].find((each) => chosen.contains(each));
    if (framed && name) document.documentElement.dataset.theme = name;
  } catch { /* framed by something else than Airflow */ }
}

document.documentElement.classList.toggle("alone", !framed);
document.addEventListener("click", follow);
addEventListener("hashchange", async () => {
  scrollTo(0, 0);
  await show();
  main.focus({ preventScroll: true });
});
addEventListener("error", (event) => fail(event.error ?? event.message));
addEventListener("unhandledrejection", (event) => fail(event.reason));
if (framed) {
  theme();
  try {
    new MutationObserver(theme).observe(window.parent.document.documentElement, { attributeFilter: ["class"] });
  } catch { /* framed by something else than Airflow */ }
}
show();
