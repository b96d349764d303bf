"""What users wrote, Data Docs and model cards among it, shown so that it can do nothing.

A file of a version is whatever a job's author put there. It comes from the address that Airflow's
session belongs to, so a script in it would act as whoever looks at it. Therefore each response
carries ``Content-Security-Policy: sandbox`` with nothing allowed again: the document has an origin
of its own, no scripts, forms, popups or plugins, and loads nothing but what it carries itself. From
that origin a browser sends no session either, so a picture beside the document would not be let in.
That is enough for the Data Docs and model cards that muster writes, which are one file each; pictures
and further documents of a version are listed on its page. Whatever has no harmless type is
downloaded, and ``nosniff`` keeps a browser from deciding otherwise.
"""

from __future__ import annotations

import stat
from pathlib import Path

from fastapi.responses import FileResponse

from muster.core.address import Address, Select
from muster.core.errors import NotFound, SpecError
from muster.volumes.base import Store

POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "private, max-age=300",
    # Airflow compresses what does not say how it is encoded: a model of 5 GB would keep its process
    # busy for minutes, and a part of a file would no longer be the bytes that were asked for.
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
    """Read ``VOLUME@NUMBER/PATH``: exactly one version and a file in it.

    :raises SpecError: it is anything else, or the path is not plain: ``..``, empty parts, control characters.
    """
    address = Address.parse(where)
    if address.select is not Select.NUMBER or not address.path:
        raise SpecError(f"{where!r:.120}: expected VOLUME@NUMBER/PATH, such as flights/report@3/index.html")
    return address


def show(store: Store, address: Address) -> FileResponse:
    """Answer with one file of a version, in ranges where the browser asks for them.

    :raises NotFound: there is no such version or file, or a link in it leads out of the version.
    """
    root = store.path(f"{address.volume}@{address.value}")
    path = _inside(root, address)
    kind = TYPES.get(path.suffix.lower())
    return FileResponse(
        path,
        stat_result=path.stat(),
        media_type=kind or "application/octet-stream",
        filename=Path(address.path).name,
        content_disposition_type="inline" if kind else "attachment",
        headers=HEADERS,
    )


def _inside(root: Path, address: Address) -> Path:
    try:
        path = (root / address.path).resolve(strict=True)
        regular = stat.S_ISREG(path.stat().st_mode)
    except (OSError, RuntimeError):  # not there, a name that no file can have, links in a circle
        path, regular = root, False
    if not regular or not path.is_relative_to(root.resolve()):
        raise NotFound(
            f"volume://{address.volume}@{address.value} holds no file {address.path!r:.120}: "
            f"`muster volumes show {address.volume}@{address.value}` lists what it holds"
        )
    return path
