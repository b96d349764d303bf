"""Which spool files are settled, told by time alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.core.prediction import hour_of
from muster.volumes.spool import SETTLED_SECONDS, Spool

NOW = 1_795_000_000.0  # 05:46 and 40 s
BEFORE = hour_of(NOW - 3600)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    made = Spool(tmp_path, "flights")
    made.begin()
    return made


def written(spool: Spool, hour: str, name: str, *, at: float) -> Path:
    file = spool.path / f"{hour}.1-{name}.spool"
    file.write_bytes(b"{}\n")
    os.utime(file, (at, at))
    return file


def test_an_hour_is_settled_once_it_is_over_and_all_its_files_are_quiet(spool: Spool) -> None:
    early = written(spool, BEFORE, "aa", at=NOW - 3000)
    late = written(spool, BEFORE, "bb", at=NOW - SETTLED_SECONDS + 1)
    written(spool, hour_of(NOW), "cc", at=NOW - 2000)
    assert spool.settled(NOW) == {}
    assert spool.settled(NOW + 2) == {BEFORE: [early, late]}


def test_what_is_no_file_of_a_servers_is_none(spool: Spool, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("secret")
    os.utime(tmp_path / "keys", (0, 0))
    (spool.path / f"{BEFORE}.1-aa.spool").symlink_to(tmp_path / "keys")
    (spool.path / f"{BEFORE}.1-bb.spool").symlink_to("nowhere")
    (spool.path / f"{BEFORE}.1-cc.spool").mkdir()
    written(spool, f".{BEFORE}", "dd", at=0)  # half made
    written(spool, BEFORE, "../x".replace("/", "_"), at=0)
    assert spool.settled(NOW) == {}
