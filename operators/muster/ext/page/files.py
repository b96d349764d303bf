"""The page's files: its own, those of the extensions below their names, and the document that names them all."""

from __future__ import annotations

from html import escape
from pathlib import Path

from muster.core.extensions import extensions

_STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


def files() -> dict[str, Path]:
    """Return every file by its name: ``app.js``, and ``search/searches.js`` of an extension."""
    folders = {"": _STATIC, **{f"{name}/": each.static for name, each in extensions().items() if each.static}}
    return {
        f"{prefix}{path.name}": path
        for prefix, folder in folders.items()
        for path in sorted(folder.glob("*"))
        if path.suffix in TYPES
    }


def document() -> str:
    """Return the page's document: it names all scripts and the extensions' tabs, so that the browser asks for nothing twice."""
    tabs = {f"{name}/{tab.script}": tab for name, each in extensions().items() for tab in each.tabs}
    modules, links = "", ""
    for name in files():
        if name.endswith(".js"):
            tab = tabs.get(name)
            of = f' data-room="{escape(tab.room)}" data-title="{escape(tab.title)}"' if tab else ""
            modules += f'<link rel="modulepreload" href="static/{escape(name)}"{of}>\n'
            if tab and tab.listed:
                links += f'<a href="#/{escape(tab.room)}">{escape(tab.title)}</a>\n'
    text = (_STATIC / "index.html").read_text(encoding="utf-8")
    return text.replace("<!-- modules -->\n", modules).replace("<!-- tabs -->\n", links)
