// What extensions add to the page: tabs, each drawn by a script of its own, and what they show of a run.
// The page's document names them. A script exports `choose(name, asked)`, which returns the tab's entry in the navigation, the view
// and its arguments; and, if it has something of a run, `ofRun(dag, run, signal)`, which returns what stands there.

const added = [...document.querySelectorAll("link[data-room]")];

export const tabs = added.map(({ dataset: { room, title } }) => [room, title]);

// The script that draws a tab; null where no extension has such a tab.
export async function tab(room) {
  const found = added.find(({ dataset }) => dataset.room === room);
  return found ? import(found.href) : null;
}

export async function ofRun(dag, run, signal) {
  const scripts = await Promise.all(added.map(({ href }) => import(href).catch(() => ({})))); // its own tab says what is wrong with it
  const shown = await Promise.all(scripts.map((script) => script.ofRun?.(dag, run, signal)));
  return shown.filter(Boolean);
}
