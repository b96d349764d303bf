// What extensions add to the page: tabs, each drawn by a script of its own, and what they show of a run, a version or a job.
// The page's document names them. A script exports `choose(name, asked)`, which returns the tab's entry in the navigation, the view
// and its arguments; and, if it has something of one, `ofRun(dag, run, signal)`, `ofVersion(address, signal)` or
// `ofJob(id, signal)`, which returns what stands there.

const added = [...document.querySelectorAll("link[data-room]")];

export const tabs = added.map(({ dataset: { room, title } }) => [room, title]);

// The script that draws a tab; null where no extension has such a tab.
export async function tab(room) {
  const found = added.find(({ dataset }) => dataset.room === room);
  return found ? import(found.href) : null;
}

// What the scripts show by the function that is called so.
export async function shown(name, ...given) {
  const scripts = await Promise.all(added.map(({ href }) => import(href).catch(() => ({})))); // its own tab says what is wrong with it
  const found = await Promise.all(scripts.map((script) => script[name]?.(...given)));
  return found.filter(Boolean);
}
