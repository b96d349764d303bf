// The tab: each volume and its number of versions.

import { get } from "../api.js";
import { h } from "../dom.js";

export const choose = () => ["counts", counts];

async function counts({ put, signal }) {
  const found = await get("counts", {}, signal);
  put(h("h1", { tabindex: -1 }, "Counts"), Object.entries(found).map(([name, many]) => h("p", {}, `${name}: ${many}`)));
}
