"""A mirror whose disk, of 8 MiB, is full: ``python full_mirror.py FOLDER`` fails at the first broken promise."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[4]))

import pytest
from tests.contract.mirrored import facts, mirror, put
from tests.unit.volumes.full_disk import fill
from tests.unit.volumes.service.process import Service

from muster.core.errors import StoreError
from muster.ext.mirrors.folder import FolderHome
from muster.ext.mirrors.open_layout import OpenHome
from muster.ext.mirrors.opening import home_of
from muster.volumes.folder import FolderStore


def main(folder):
    source = FolderStore(folder / "source")
    (folder / "put").mkdir()
    put(source, folder / "put", "flights/model", {"a": b"1"})
    homes = [
        lambda: FolderHome(FolderStore(folder / "mirror")),
        lambda: OpenHome(f"file://{folder}/open"),
    ]
    for opened in homes:
        mirror(FolderHome(source), opened())
    put(source, folder / "put", "flights/model", {"a": b"2" * (1 << 20), "b": b"3" * 4096})
    before = facts(source)
    fill(folder / "filler")
    for opened in homes:
        for _ in range(2):
            with pytest.raises(StoreError, match="No space left on device"):
                mirror(FolderHome(source), opened())
            assert list(opened().holdings()) == [("flights/model", 1)]
    (folder / "filler").unlink()
    for opened in homes:
        assert mirror(FolderHome(source), opened()).whole
        assert opened().holdings() == FolderHome(source).holdings()
    assert facts(source) == facts(FolderStore(folder / "mirror")) == before
    assert FolderStore(folder / "mirror").check(deep=True).problems == ()
    restores(folder, before)


def restores(folder, before):
    """A store in whose place the mirror is brought back, by a service as on a claim: it fails in words, and goes on."""
    (folder / "claim").mkdir()
    with Service(folder / "claim") as service, service.client() as store:
        fill(folder / "filler")
        for _ in range(2):
            with pytest.raises(StoreError, match="No space left on device"):
                restore(folder, store)
            assert facts(FolderStore(folder / "mirror")) == before
            assert FolderStore(service.root).check(deep=True).problems == ()
        (folder / "filler").unlink()
        assert restore(folder, store).whole
        assert facts(FolderStore(service.root)) == before


def restore(folder, store):
    return mirror(FolderHome(FolderStore(folder / "mirror")), home_of(store), adopt=True, keep_deleted=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
