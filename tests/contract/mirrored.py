"""A store with versions of every kind, and what a mirror of it must hold."""

from __future__ import annotations

import os
import random
from pathlib import Path

from muster.ext.mirrors.base import Home
from muster.ext.mirrors.copying import Copying, Mirrored
from muster.ext.mirrors.folder import FolderHome
from muster.volumes.folder import FolderStore

BIG_BYTES = 3 << 20


def bytes_of(seed: object, size: int) -> bytes:
    """The same bytes for the same seed."""
    return random.Random(str(seed)).randbytes(size)


def put(store: FolderStore, folder: Path, volume: str, files: dict[str, bytes], **facts: str) -> str:
    """Put files into a version; return its address without scheme."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        (folder / path).chmod(0o755 if path == "run.sh" else 0o644)
    version = store.add(volume, folder, **facts)
    for path in files:
        (folder / path).unlink()
    return f"{version.volume}@{version.number}"


def fill(store: FolderStore, folder: Path) -> None:
    """Make six versions: shared files, partitions, a large file, an empty one; pinned, retired and deleted ones."""
    folder.mkdir(exist_ok=True)
    (folder / "logs" / "empty").mkdir(parents=True, exist_ok=True)
    same = {"same": bytes_of("same", 5000), "d/é x": b"1", "empty": b"", "run.sh": b"#!/bin/sh\n"}
    put(store, folder, "flights/features", {**same, "new": b"1"}, partition="2013-01")
    put(store, folder, "flights/features", {**same, "new": b"22"}, partition="2013-02")
    put(store, folder, "flights/features", {**same, "new": b"333", "big": bytes_of("big", BIG_BYTES)})
    for number in range(3):
        put(store, folder, "flights/model", {"model": bytes_of(number, 9000)})
    store.pin("flights/model@2", reason="deployment/flights")
    store.pin("flights/model@2", reason="in the paper")
    store.collect(volumes=["flights/model"], keep_last=1)  # deletes @1
    store.collect(keep_last=100)  # and folds what is left of it
    store.retire("flights/features@1", reason="torn: ä")


def mirror(source: Home, target: Home, **rules: object) -> Mirrored:
    """Bring `target` up to `source`."""
    try:
        return Copying(source, target, **rules).run()  # type: ignore[arg-type]
    finally:
        target.close()
        source.close()


def facts(store: FolderStore) -> dict[str, object]:
    """All that a store tells of its versions and their files."""
    found: dict[str, object] = {}
    for volume in store.volumes():
        for number in store.catalog.numbers(volume):
            version = store.catalog.described(volume, number)
            data = store.layout.version(volume, number) / "data"
            files = {
                str(p.relative_to(data)): (p.read_bytes(), p.stat().st_mode) if p.is_file() else None
                for p in data.rglob("*")
            }
            found[version.address] = (version, store.record(version.address), files)
    return found


def assert_restores(source: FolderStore, home: Home, folder: Path) -> FolderStore:
    """Restore a mirror into a new store, and compare it with what was mirrored, live and deleted versions."""
    restored = FolderStore(folder)
    done = mirror(home, FolderHome(restored), adopt=True)
    assert done.whole
    assert facts(restored) == facts(source)
    assert restored.check(deep=True).problems == ()
    return restored


def damage(path: Path, data: bytes) -> None:
    """Change a committed file under its mode."""
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


def lose(path: Path) -> None:
    """Delete a committed file under its folder's mode."""
    path.parent.chmod(0o755)
    path.unlink()
    path.parent.chmod(0o555)


def spread(seconds: float) -> float:
    """A random time of at most so many seconds."""
    return float(int.from_bytes(os.urandom(2), "big")) / 65_536 * seconds
