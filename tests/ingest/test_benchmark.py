"""What ``benchmarks.ingest`` measures: both copies bring the whole bucket, and the list is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.ingest import Copies
from tests.ingest.s3 import ObjectStore

pytestmark = [pytest.mark.slow, pytest.mark.data]


def test_both_copies_bring_the_same_objects(tmp_path: Path) -> None:
    with ObjectStore(tmp_path / "s3") as lake:
        copies = Copies(lake, tmp_path)
        copies.fill("lake", 20, 100)
        for verb in ("fsspec", "ingest"):
            assert copies.seconds(verb, "lake", target=verb) > 0
            found = {path.name for path in (tmp_path / verb).rglob("*") if path.name.isdigit()}
            assert found == {str(number) for number in range(20)}
        assert copies.seconds("list", "lake") > 0
