"""A store on a file system of 2 MiB: ``python full_disk.py FOLDER`` fails at the first broken promise."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3]))

from tests.unit.volumes.conftest import Work

from muster.core.errors import StoreError


def main(folder):
    work = Work(folder / "store")
    work.run("a-1", {"x": b"1"})
    filler = folder / "filler"
    work.seal("b-1", work.spec(out="flights/features"), {"out": {"x": b"2" * 4096}})
    fill(filler)
    for _ in range(3):
        with pytest.raises(StoreError, match="No space left on device"):
            work.store.commit("b-1", attempt=1)
        with pytest.raises(StoreError, match="No space left on device"):
            work.store.add("flights/features", filler)
        assert len(work.store.versions("flights/features")) == 1
    filler.unlink()
    work.store.commit("b-1", attempt=1)
    assert len(work.store.versions("flights/features")) == 2
    assert work.store.check(deep=True).problems == ()


def fill(path):
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"0" * 4096):
                pass
        except OSError:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
