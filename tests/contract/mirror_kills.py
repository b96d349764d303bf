"""Mirrors whose sending process is killed at random moments: ``python -m tests.contract.mirror_kills SOURCE KIND …`` is that process.

KIND is ``open URL OPTIONS`` (options of fsspec's, as JSON), or ``service URL TOKEN CACHE``.
"""

from __future__ import annotations

import itertools
import json
import random
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.contract.mirrored import bytes_of, facts, mirror, put

from muster.ext.mirrors.base import Home
from muster.ext.mirrors.folder import FolderHome
from muster.ext.mirrors.open_layout import OpenHome
from muster.ext.mirrors.service_home import ServiceHome
from muster.volumes.folder import FolderStore
from muster.volumes.service.client import ServiceStore

KILLS, SEED = 100, 7
BEGINS = "begins"


class KilledMirrorContract:
    """Inherit it beside :class:`MirrorContract`, and give a fixture `target`: the words behind SOURCE."""

    @pytest.mark.soak
    def test_a_hundred_kills_leave_a_mirror_that_is_whole(
        self,
        source: FolderStore,
        opened: Callable[[], Home],
        target: Sequence[str],
        tmp_path: Path,
        record_property: Callable[[str, object], None],
    ) -> None:
        """The first store's folder is deleted then, and all is restored from the mirror."""
        dice, kills, began = random.Random(SEED), 0, time.monotonic()
        root = source.layout.root
        words = [sys.executable, "-m", "tests.contract.mirror_kills", str(root), *target]
        seconds = sent(words, kill_after=None)
        for round_ in itertools.count():
            if kills == KILLS:
                break
            if round_ % 4 == 0:  # what was killed goes on at least three times before there is more to do
                files = {f"{n}": bytes_of((round_, n), 200_000) for n in range(4)}
                put(source, tmp_path / "put", "flights/more", files)
            if sent(words, kill_after=dice.uniform(0, seconds)) < 0:
                kills += 1
                home = opened()
                there, ours = home.holdings(), FolderHome(source).holdings()
                home.close()
                assert there.keys() <= ours.keys()
        assert sent(words, kill_after=None) >= 0
        home = opened()
        assert home.holdings() == FolderHome(source).holdings()
        home.close()
        before = facts(source)
        source.close()
        shutil.rmtree(root)
        restored = FolderStore(tmp_path / "restored")
        assert mirror(opened(), FolderHome(restored), adopt=True).whole
        assert facts(restored) == before
        assert restored.check(deep=True).problems == ()
        record_property(
            "mirrors whose process is killed at random moments",
            f"{target[0]}: {kills} kills, {len(before)} versions, equal, in {time.monotonic() - began:.0f} s",
        )


def sent(words: Sequence[str], *, kill_after: float | None) -> float:
    """Mirror in a process; return its seconds, less than 0 where it was killed so long after it began."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == BEGINS
        began = time.monotonic()
        if kill_after is not None and not select.select([process.stdout], [], [], kill_after)[0]:
            process.kill()
    if process.returncode == -9:
        return -1.0
    assert process.returncode == 0
    return time.monotonic() - began


def home_of(kind: str, *words: str) -> Home:
    """Open a target by its words."""
    if kind == "open":
        url, options = words
        return OpenHome(url, json.loads(options))
    url, token, cache = words
    return ServiceHome(ServiceStore(url, token=token, cache=Path(cache)))


def main(source: str, *target: str) -> None:
    """Bring the target up to the source."""
    home = home_of(*target)
    print(BEGINS, flush=True)
    mirror(FolderHome(FolderStore(Path(source))), home)


if __name__ == "__main__":
    main(*sys.argv[1:])
