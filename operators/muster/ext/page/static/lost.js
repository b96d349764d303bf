// What is not there: its name, and what there is instead.

import { h, spaced } from "./dom.js";
import { tabs } from "./extensions.js";

const ROOMS = [
  ["now", "Now"], ["runs", "Runs"], ["jobs", "Jobs"], ["queue", "Queue"], ["volumes", "Volumes"], ["deployments", "Deployments"],
  ["store", "Store"], ...tabs,
];

const link = ([room, text]) => h("a", { href: `#/${room}` }, text);

// An address of this page that leads to nothing. A path with dots a browser would follow out of the page.
export function nowhere({ put }, asked) {
  put(
    h("h1", { tabindex: -1 }, "There is no such place"),
    h("p", {}, "This page has nothing at ", h("code", {}, `#/${asked}`), "."),
    h("p", {}, "There is: ", spaced(ROOMS.map(link))),
  );
}

// Where to look for a thing that the server does not have: beside its message.
export function listed(room) {
  const known = ROOMS.find(([name]) => name === room);
  return known ? [" ", h("a", { href: `#/${room}` }, `${known[1]} that there are`)] : "";
}
