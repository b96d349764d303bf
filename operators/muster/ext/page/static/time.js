// Writes times in the zone that Airflow's UI shows, and as how long ago they were.

import { h } from "./dom.js";
import { coarse } from "./format.js";

// Airflow keeps a person's choice under this name; without one it uses the browser's zone, as this page does.
function chosen() {
  try {
    const zone = JSON.parse(localStorage.getItem("timezone"));
    new Intl.DateTimeFormat("en", { timeZone: zone ?? undefined });
    return zone ?? undefined;
  } catch {
    return undefined;
  }
}

const PARTS = { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" };
let known = { zone: null };

function writer() {
  const zone = chosen();
  if (known.zone !== (zone ?? ""))
    known = {
      zone: zone ?? "",
      parts: new Intl.DateTimeFormat("en-CA", { ...PARTS, hourCycle: "h23", timeZone: zone }),
      name: new Intl.DateTimeFormat("en", { timeZoneName: "short", timeZone: zone }),
    };
  return known;
}

const digits = (format, date) => {
  const part = Object.fromEntries(format.formatToParts(date).map(({ type, value }) => [type, value]));
  return `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second}`;
};

const zoned = (format, date) => format.formatToParts(date).find(({ type }) => type === "timeZoneName").value;

function exact(date) {
  const { parts, name } = writer();
  return [digits(parts, date), zoned(name, date)];
}

function title(date) {
  const [here, zone] = exact(date);
  const utc = date.toISOString().slice(0, 19).replace("T", " ");
  return zone === "UTC" ? `${utc} UTC` : `${here} ${zone}, ${utc} UTC`;
}

export const exactly = (seconds) => title(new Date(seconds * 1000));

// How long ago something was; the title is the exact time, here and in UTC.
export function ago(seconds) {
  if (!seconds) return "";
  const date = new Date(seconds * 1000);
  const old = Date.now() / 1000 - seconds;
  const text = old < 7 * 86400 ? `${coarse(Math.max(0, old))} ago` : exact(date)[0].slice(0, 16);
  return h("time", { datetime: date.toISOString(), title: title(date), class: "tight" }, text);
}

// The exact time, with its zone.
export function when(seconds) {
  if (!seconds) return "";
  const date = new Date(seconds * 1000);
  return h("time", { datetime: date.toISOString(), title: title(date), class: "tight" }, exact(date).join(" "));
}

// A run's id as people read it, "manual, 2026-11-22 10:05:33"; an id that holds no time stays as it is.
export function runWords(id) {
  const [, kind, at] = /^([a-z_]+?)__(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?)(?:\+00:00|Z)?(?!.*[+-]\d\d:\d\d)/.exec(id ?? "") ?? [];
  return at ? `${kind.replace("asset_triggered", "asset")}, ${exact(new Date(`${at}Z`))[0]}` : id ?? "";
}

// The time of day, for an axis; with the date where a chart covers more than a day.
export function clock(seconds, days) {
  const text = exact(new Date(seconds * 1000))[0];
  return days ? text.slice(5, 16) : text.slice(11, 19);
}
