"""A mirror whose disk, of 8 MiB, is full: ``python full_mirror.py FOLDER`` fails at the first broken promise."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[4]))

import pytest
from tests.contract.mirrored import facts, mirror, put
from tests.unit.volumes.full_disk import fill

from muster.core.errors import StoreError
from muster.ext.mirrors.folder import FolderHome
from muster.ext.mirrors.open_layout import OpenHome
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
