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
