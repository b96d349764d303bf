// Looks again at what may change, for as long as it is on the screen.

import { Refused } from "./api.js";

const pause = (milliseconds, signal) =>
  new Promise((done) => {
    const timer = setTimeout(done, milliseconds);
    signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
  });

// Calls `look` now and every so often until it returns false or the page shows something else. A page
// that nobody sees asks nothing; a server that does not answer is asked again, more and more seldom.
export async function watch(signal, seconds, look) {
  let wait = seconds;
  for (let first = true; !signal.aborted; first = false) {
    if (first || !document.hidden) {
      try {
        if ((await look()) === false) return;
        wait = seconds;
      } catch (error) {
        if (first || signal.aborted || !(error instanceof Refused)) throw error;
        wait = Math.min(wait * 2, 60);
      }
    }
    await pause(wait * 1000, signal);
  }
}

// Whether somebody is just selecting text in there, which a new drawing would take away.
export function reading(element) {
  const selection = getSelection();
  return !selection.isCollapsed && element.contains(selection.anchorNode);
}

// Draws a part of the page anew; what stays in it keeps the focus.
export function redraw(element, draw) {
  const active = document.activeElement;
  element.replaceChildren(...draw());
  if (element.contains(active)) active.focus({ preventScroll: true });
}
