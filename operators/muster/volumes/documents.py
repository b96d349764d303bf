"""Shows files that users wrote, such as Data Docs and model cards, so that they can do no harm.

A file of a version holds whatever the job's author put into it. It is served from the address that a session
belongs to, Airflow's or this service's, so a script in it could act as the user who opens it. Therefore each
response carries ``Content-Security-Policy: sandbox`` without exceptions: the document has an origin of its
own, no scripts, forms, popups or plugins, and loads only what is embedded in it. From that origin a browser
sends no session either, so it could not load a picture beside the document. That is enough for the Data Docs
and model cards that muster writes, which are one file each; other files of a version are requested by
themselves. A file without a harmless type is downloaded, and ``nosniff`` keeps a browser from guessing
another type.
"""

from __future__ import annotations

import stat
from pathlib import Path

from starlette.responses import FileResponse

from muster.core.address import Address, Select
from muster.core.errors import NotFound, SpecError
from muster.volumes.protocols import LocalStore

POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "private, max-age=300",
    # Airflow compresses responses without a content encoding: a model of 5 GB would keep its process
    # busy for minutes, and a part of a file would not be the requested bytes.
    "Content-Encoding": "identity",
}
TYPES = {
    **dict.fromkeys((".html", ".htm"), "text/html; charset=utf-8"),
    **dict.fromkeys(
        (".txt", ".md", ".csv", ".log", ".yaml", ".yml", ".toml", ".py"), "text/plain; charset=utf-8"
    ),
    ".json": "application/json",
    ".css": "text/css; charset=utf-8",
    ".png": "image/png",
    **dict.fromkeys((".jpg", ".jpeg"), "image/jpeg"),
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
}


def parse(where: str) -> Address:
    """Parse ``VOLUME@NUMBER/PATH``: exactly one version and a file in it.

    :raises SpecError: it has another form, or the path is not plain: ``..``, empty parts, control characters.
    """
    address = Address.parse(where)
    if address.select is not Select.NUMBER or not address.path:
        raise SpecError(f"{where!r:.120}: expected VOLUME@NUMBER/PATH, such as flights/report@3/index.html")
    return address


def show(store: LocalStore, address: Address) -> FileResponse:
    """Answer with one file of a version, or a range of it.

    :raises NotFound: there is no such version or file, or a link in it leads out of the version.
    """
    path = _regular(store, address)
    kind = TYPES.get(path.suffix.lower())
    return FileResponse(
        path,
        stat_result=path.stat(),
        media_type=kind or "application/octet-stream",
        filename=Path(address.path).name,
        content_disposition_type="inline" if kind else "attachment",
        headers=HEADERS,
    )


def _regular(store: LocalStore, address: Address) -> Path:
    try:
        named = store.path(str(address))
        root = named.parents[address.path.count("/")].resolve()
        path = named.resolve(strict=True)
        if stat.S_ISREG(path.stat().st_mode) and path.is_relative_to(root):
            return path
    except (OSError, RuntimeError):  # an impossible name, or links in a circle
        pass
    version = f"{address.volume}@{address.value}"
    raise NotFound(
        f"volume://{version} holds no file {address.path!r:.120}: `muster volumes show {version}` lists what it holds"
    )
