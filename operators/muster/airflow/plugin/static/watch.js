// Looks again at what may change, for as long as it is on the screen.

import { NoAnswer, Refused } from "./api.js";

const pause = (milliseconds, signal) =>
  new Promise((done) => {
    const timer = setTimeout(done, milliseconds);
    signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
  });

// Calls `look` now and every so often until it returns false or the page shows something else. A page
// that is not visible asks nothing. What fails later, or is not answered, is said and asked for again, more
// and more seldom.
export async function watch({ signal, fail, mended }, seconds, look) {
  let wait = seconds;
  for (let first = true; !signal.aborted; first = false) {
    if (first || !document.hidden) {
      try {
        const goesOn = (await look()) !== false;
        if (wait > seconds) mended();
        if (!goesOn) return;
        wait = seconds;
      } catch (error) {
        if (signal.aborted || !(error instanceof (first ? NoAnswer : Refused))) throw error;
        wait = Math.min(wait * 2, 60);
        fail(error, " This page tries again by itself.");
      }
    }
    await pause(wait * 1000, signal);
  }
}

// Whether text is being selected in there, which a new drawing would take away.
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
