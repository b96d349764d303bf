"""Builds the worker for an image where muster is not installed: a folder on a machine, a zipapp in a cluster.

Both hold ``__main__.py`` and the packages ``muster.core`` and ``muster.worker``, as sources read from
this installation, and are run as ``python WORKER REPLICA.json``.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path

from muster.core.errors import BackendError

_PACKAGE = Path(__file__).parent.parent
_ROOMS = ("core", "worker")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest a zip can hold; the same sources give the same bytes


def worker_folder(cache: Path) -> Path:
    """Return ``CACHE/worker/DIGEST``, building it where it is not there yet.

    It appears whole or not at all, and two who build it at once get the same folder.
    """
    target = cache / "worker" / _known()
    if target.is_dir():
        return target
    sources = _sources()
    target = cache / "worker" / _digest(sources)
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=target.parent))
    try:
        _write(building, sources)
        building.chmod(0o755)  # mkdtemp's own 0700 would hide it from other users of the cache
        _rename(building, target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


@cache
def zipapp() -> bytes:
    """Return the worker as one file, the same bytes for the same sources."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        for path, data in sorted(_sources().items()):
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return whole.getvalue()


@cache
def _known() -> str:
    """The digest of the sources as this process found them first: its own code does not change either."""
    return _digest(_sources())


def _sources() -> dict[str, bytes]:
    found = {
        f"muster/{path.relative_to(_PACKAGE).as_posix()}": path.read_bytes()
        for room in _ROOMS
        for path in (_PACKAGE / room).rglob("*.py")
    }
    if "muster/worker/__main__.py" not in found:
        raise BackendError(
            f"this installation of muster lacks its worker ({_PACKAGE / 'worker'}): install it again"
        )
    found["muster/__init__.py"] = (_PACKAGE / "__init__.py").read_bytes()
    found["__main__.py"] = found["muster/worker/__main__.py"]
    return found


def _digest(sources: dict[str, bytes]) -> str:
    total = hashlib.sha256()
    for path, data in sorted(sources.items()):
        total.update(f"{path}\0{len(data)}\0".encode())
        total.update(data)
    return total.hexdigest()[:16]


def _write(folder: Path, sources: dict[str, bytes]) -> None:
    for path, data in sources.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def _rename(building: Path, target: Path) -> None:
    try:
        building.rename(target)
    except OSError as error:
        if not target.is_dir():
            raise BackendError(f"cannot put the worker into {target}: {error}") from error
