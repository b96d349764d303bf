// Looks again at what may change, for as long as it is on the screen.

import { NoAnswer, Refused } from "./api.js";

const MOST = 15; // seconds between two tries

// Ends after a time, when the page shows something else, when a person asks for it, and when the network is back.
function pause(milliseconds, signal) {
  let end;
  const over = new Promise((done) => {
    const timer = setTimeout(done, milliseconds);
    end = () => { clearTimeout(timer); done(); };
    signal.addEventListener("abort", end, { once: true });
    addEventListener("online", end, { once: true });
  });
  return { end, over: over.finally(() => { signal.removeEventListener("abort", end); removeEventListener("online", end); }) };
}

// Calls `look` now and every so often until it returns false or the page shows something else. A page
// that is not visible asks nothing. What fails later, or is not answered, is said and asked for again, more
// and more seldom, and at once where a person wants it.
export async function watch({ signal, fail, mended }, seconds, look) {
  let wait = seconds;
  for (let first = true; !signal.aborted; first = false) {
    let failed = null;
    if (first || !document.hidden) {
      try {
        const goesOn = (await look()) !== false;
        if (wait > seconds) mended();
        if (!goesOn) return;
        wait = seconds;
      } catch (error) {
        if (signal.aborted || !(error instanceof (first ? NoAnswer : Refused))) throw error;
        wait = Math.max(Math.min(wait * 2, MOST), seconds);
        failed = error;
      }
    }
    const next = pause(wait * 1000, signal);
    if (failed) fail(failed, " This page tries again by itself. ", next.end);
    await next.over;
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
