// A document that a user wrote stays in its sandbox; this page is only the frame around it.

import { crumbs, h } from "./dom.js";
import { isPicture, path, toVersion } from "./links.js";

// The document fills what is left of the window and scrolls itself, so no scroller stands within a scroller. A
// document knows nothing of dark: where the page is dark its colours are turned, and a box turns them back.
export async function file({ put }, where) {
  const at = where.indexOf("/", where.indexOf("@"));
  const [name, inner] = [where.slice(0, at), where.slice(at + 1)];
  const src = `files/${path(where)}`;
  const shown = isPicture(inner) ? h("img", { class: "look", src, alt: inner }) : h("iframe", { sandbox: "", src, title: inner, class: "look" });
  const plain = h("input", { type: "checkbox", id: "plain", onchange: (event) => shown.classList.toggle("plain", event.target.checked) });
  put(
    h("div", { class: "bar document-bar" },
      crumbs(h("a", { href: "#/volumes" }, "Volumes"), " / ", toVersion(name), " / "),
      h("h1", { class: "mono", tabindex: -1 }, inner),
      h("label", { for: "plain", class: "end only-dark" }, plain, " in its own colours"),
      h("a", { href: src, download: inner.split("/").at(-1) }, "download")),
    shown,
  );
}
