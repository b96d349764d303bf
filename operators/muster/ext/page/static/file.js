// A document that a user wrote stays in its sandbox; this page is only the frame around it.

import { crumbs, h } from "./dom.js";
import { isMarkdown, isPicture, path, toVersion } from "./links.js";

const HEAD = 65_536; // bytes in which a document says what it can

// Whether a document is dark by itself where the person wants that.
async function adapts(src, signal) {
  const response = await fetch(src, { signal, headers: { Range: `bytes=0-${HEAD - 1}` } });
  return response.ok && /prefers-color-scheme|color-scheme:\s*light dark/.test(await response.text());
}

// The document fills what is left of the window and scrolls itself, so no scroller stands within a scroller. A
// document that knows nothing of dark has its colours turned where the page is dark, and a box turns them back.
export async function file({ put, signal }, where) {
  const at = where.indexOf("/", where.indexOf("@"));
  const [name, inner] = [where.slice(0, at), where.slice(at + 1)];
  const plainly = `files/${path(where)}`;
  const src = isMarkdown(inner) ? `${plainly}?rendered=1` : plainly;
  const own = !isPicture(inner) && await adapts(src, signal).catch(() => false);
  const shown = isPicture(inner) ? h("img", { class: "look", src, alt: inner }) : h("iframe", { sandbox: "", src, title: inner, class: own ? "look own" : "look" });
  const plain = h("input", { type: "checkbox", id: "plain", onchange: (event) => shown.classList.toggle("plain", event.target.checked) });
  put(
    h("div", { class: "bar document-bar" },
      crumbs(h("a", { href: "#/volumes" }, "Volumes"), " / ", toVersion(name), " / "),
      h("h1", { class: "mono", tabindex: -1 }, inner),
      !own && !isPicture(inner) && h("label", { for: "plain", class: "end only-dark" }, plain, " in its own colours"),
      h("a", { href: plainly, class: own ? "end" : null, download: inner.split("/").at(-1) }, "download")),
    shown,
  );
}
